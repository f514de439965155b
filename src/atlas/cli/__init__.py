"""The command line: thin; it parses, calls and prints."""

from __future__ import annotations

import os


def main() -> None:
    """Run `atlas`. An error of ours becomes one line and its exit code."""
    # Threads that spin while they wait were seen 24 times slower beside one busy neighbour. OpenMP reads
    # this when torch is first imported, so it comes before anything else.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from atlas.cli.app import app
    from atlas.cli.console import errors_to_exit_codes

    with errors_to_exit_codes():
        app()
