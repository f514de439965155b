"""Where runs and evaluations of artefacts lie, and how finished ones are found: by what they are of.

runs/NAME-HASH/          trainings
evaluations/NAME-HASH/   of each: one folder a column
results/ARTEFACT-SCALE/  tables, figures, data
data/                    made-up images of scale smoke
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from atlas import __version__
from atlas.config import fingerprint
from atlas.errors import AtlasError, CheckpointError, LockError
from atlas.evaluation.evaluation_folder import EvaluationFolder
from atlas.files import ORIGIN, in_use, write_atomic
from atlas.runs import RunFolder
from atlas.training import load_config
from atlas_paper.request import Run, canonical_hash


@dataclass(frozen=True)
class Workspace:
    """A folder to work in, and others where finished work may be found; those are never written to."""

    root: Path
    others: tuple[Path, ...] = ()

    @property
    def data(self) -> Path:
        return self.root / "data"

    def results(self, name: str) -> Path:
        return self.root / "results" / name

    # --- trainings ---

    @cached_property
    def _elsewhere(self) -> dict[str, list[Path]]:
        """All that was there at first: runs by the meaning of their settings, evaluations by their hash."""
        found: dict[str, list[Path]] = {}
        for path, table in _configs([self.root, *self.others]):
            if "attacks" in table:
                found.setdefault(_evaluation(path), []).append(path)
            with suppress(AtlasError):  # a run of another version, say
                found.setdefault(canonical_hash(load_config(path)), []).append(path)
        return found

    def _places(self, run: Run) -> list[Path]:
        """Where the run may lie; its own place first. One whose settings were changed on the way is none."""
        places = [self.place(run), *self._elsewhere.get(canonical_hash(run.config), ())]
        return [place for place in places if not RunFolder(place).changed_from]

    def place(self, run: Run) -> Path:
        """Where the run is trained, if it is not found."""
        return self._own("runs", run)

    def _own(self, part: str, run: Run) -> Path:
        """The run's folder in a part of the workspace: two presets may come to the same configuration."""
        found = sorted((self.root / part).glob(f"*-{run.hash[:8]}"))
        return found[0] if found else self.root / part / run.name

    def finished(self, run: Run) -> Path | None:
        """A folder where the run has come to its end."""
        ends = ((path, RunFolder(path)) for path in self._places(run))
        return next((path for path, run in ends if run.last.exists() and run.best.exists()), None)

    def unfinished(self, run: Run) -> Path | None:
        """A folder where the run has begun and can go on."""
        return next((path for path in self._places(run) if RunFolder(path).begun), None)

    def copy_into_workspace(self, run: Run) -> Path:
        """The folder to train in: one that has begun in another place is copied first."""
        place, begun = self.place(run), self.unfinished(run)
        if begun is not None and begun != place:
            if in_use(place):
                raise LockError(f"{place} is being trained by another process")
            part = place.with_name(f".{place.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(begun, part, ignore=shutil.ignore_patterns("lock", "evaluations"))
            shutil.rmtree(place, ignore_errors=True)
            part.rename(place)
        return place

    # --- evaluations ---

    def evaluations(self, run: Run, folder: Path, name: str, about: Mapping[str, Any]) -> list[Path]:
        """Where an evaluation of the run in `folder` is made, and where else it may have been."""
        known = fingerprint(json.loads(json.dumps(about)))
        place = self._own("evaluations", run) / f"{name}-{known[:8]}"
        beside = [path for path, _ in _configs([folder / "evaluations"]) if _evaluation(path) == known]
        return [place, *beside, *self._elsewhere.get(known, ())]


def _evaluation(path: Path) -> str:
    """By what the evaluation in this folder is known; "" where it is damaged."""
    try:
        return fingerprint(EvaluationFolder(path).about())
    except CheckpointError:
        return ""


def _configs(places: Sequence[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every folder with a config.json that can be read, in a fixed order; links are followed, each once.

    Hidden ones are left out: a copy that was cut off is one.
    """
    seen: set[str] = set()
    for place in places:
        for folder, below, files in os.walk(place, followlinks=True):
            real = os.path.realpath(folder)
            below[:] = [] if real in seen else sorted(each for each in below if not each.startswith("."))
            if "config.json" in files and real not in seen:
                with suppress(OSError, ValueError, TypeError):
                    yield Path(folder), dict(json.loads(Path(folder, "config.json").read_text()))
            seen.add(real)


def note_origin(folder: Path, command: str) -> None:
    """Write down who makes what the folder will hold, unless that is known already."""
    if not (folder / ORIGIN).exists():
        table = {"command": command, "commit": commit(), "version": __version__}
        write_atomic(folder / ORIGIN, (json.dumps(table, indent=2) + "\n").encode())


@cache
def commit() -> str | None:
    """The commit of this code, with a + where files differ from it; None where it is in no work tree.

    Asked once: what runs is what was there when it was started.
    """
    try:
        _git("ls-files", "--error-unmatch", __file__)  # an installed copy may lie in somebody's work tree
        known = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--", "src")
    except (OSError, subprocess.CalledProcessError):
        return None
    return known[:12] + ("+" if changed else "")


def _git(*words: str) -> str:
    """An answer about the work tree that this file is in."""
    command = ["git", "-C", str(Path(__file__).parents[2]), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
