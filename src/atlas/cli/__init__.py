"""The command line: thin; it parses, calls and prints."""

from __future__ import annotations

import os
import sys

from atlas.cli.process import ctrl_c, prepare


def main() -> None:
    """Run `atlas`. An error of ours becomes one line and its exit code."""
    prepare()  # before torch is imported
    with ctrl_c(os._exit):  # an exception may come out of a half-done import as any other
        from atlas.cli.app import app
        from atlas.cli.console import errors_to_exit_codes

    with ctrl_c(sys.exit), errors_to_exit_codes():
        app()
