"""The command line: thin; it parses, calls and prints."""

from __future__ import annotations

from atlas.cli.process import prepare


def main() -> None:
    """Run `atlas`. An error of ours becomes one line and its exit code."""
    prepare()  # before torch is imported
    from atlas.cli.app import app
    from atlas.cli.console import errors_to_exit_codes

    with errors_to_exit_codes():
        app()
