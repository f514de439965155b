"""What tests of every layer share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from atlas.data.store import home, present

# A folder beside the repository may hold the full MNIST in a packed form, with a script that unpacks it.
UNPACK = Path(__file__).parents[2] / "shared" / "data" / "unpack"


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the full MNIST (and whatever else is in it); without one the test is skipped by name."""
    if present("mnist", True, home()) and present("mnist", False, home()):
        return home()
    if not UNPACK.is_file():
        pytest.skip("the full MNIST is not here: set ATLAS_DATA, or run `atlas data fetch mnist`")
    root = tmp_path_factory.mktemp("data")
    subprocess.run([sys.executable, str(UNPACK), str(root), "mnist"], check=True, capture_output=True)
    return root
