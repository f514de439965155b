"""A process of its own: answers, errors and its end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from atlas.bench.apart import ApartError, apart


def made(base: int) -> Callable[[str], object]:
    """Made there, where it tells of itself."""
    seen: list[str] = []

    def answer(what: str) -> object:
        seen.append(what)
        if what == "raise":
            raise ZeroDivisionError("no luck")
        if what == "die":
            os._exit(3)
        return {"pid": os.getpid(), "threads": torch.get_num_threads(), "base": base, "seen": list(seen)}

    return answer


def test_it_lives_elsewhere_and_remembers() -> None:
    with apart(made, 7) as ask:
        first, second = ask("a"), ask("b")
        assert first["pid"] != os.getpid()
        assert first["pid"] == second["pid"]
        assert second == {**first, "seen": ["a", "b"]}
        assert (first["base"], first["threads"]) == (7, torch.get_num_threads())
        with pytest.raises(ApartError, match=r"^ZeroDivisionError: no luck$"):
            ask("raise")
        assert ask("c")["seen"] == ["a", "b", "raise", "c"]
    deadline = time.monotonic() + 10
    while Path(f"/proc/{first['pid']}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{first['pid']}").exists()


def test_one_that_dies_is_told_of_and_another_takes_its_place() -> None:
    with apart(made, 7) as ask:
        for _ in range(2):
            assert ask("a")["seen"] == ["a"]
            with pytest.raises(ApartError, match="its process has ended, with code 3"):
                ask("die")
