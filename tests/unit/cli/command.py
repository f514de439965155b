"""`atlas` as a person calls it, in this process."""

from __future__ import annotations

import pytest

from atlas import cli


def atlas(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The exit code of `atlas ARGUMENTS`."""
    monkeypatch.setattr("sys.argv", ["atlas", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code if isinstance(ended.value.code, int) else 0
