"""The folders of runs and evaluations, and how finished ones are found: by their configuration.

runs/NAME-HASH/          trainings
evaluations/NAME-HASH/   of each training: one folder per column
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
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from atlas import __version__
from atlas.attacks import TrainingAttack
from atlas.config import fingerprint
from atlas.errors import AtlasError, CheckpointError, LockError
from atlas.evaluation.evaluation_folder import EvaluationFolder
from atlas.files import ORIGIN, in_use, write_atomic
from atlas.reports.collect import origin
from atlas.runs import Run, RunState
from atlas.training import RunConfig, load_config
from atlas_paper.request import RunSpec

State = RunState | Literal["changed on the way"]


@dataclass(frozen=True)
class RunStatus:
    """How far a training has come, and how it went."""

    run: RunSpec
    state: State
    folder: Path | None = None
    records: tuple[dict[str, Any], ...] = ()
    """Epochs and probes, as in metrics.jsonl."""
    seconds: float = 0.0

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    @property
    def epochs(self) -> list[dict[str, Any]]:
        return [record for record in self.records if record["kind"] == "epoch"]

    @property
    def best_epoch(self) -> int | None:
        """The last that was the best so far, from 0."""
        return max((e["epoch"] for e in self.epochs if e["best"]), default=None)

    @property
    def collapses(self) -> list[int]:
        """Epochs, from 0, in which a collapse was detected."""
        return [e["epoch"] for e in self.epochs if e["collapse"]]

    @property
    def lacks(self) -> str:
        """Why it is not finished; "" where it is."""
        if self.finished:
            return ""
        again = "; to try again, remove its folder" if self.state in ("failed", "changed on the way") else ""
        return f"training {self.state}{f' after {len(self.epochs)} epochs' if self.epochs else ''}{again}"

    @property
    def marks(self) -> tuple[str, ...]:
        """What must be said beside its numbers."""
        if self.state == "failed":
            return ("failed",)
        return ("collapsed",) if self.collapses else ()

    def record(self) -> dict[str, Any]:
        """For the artefact's JSON."""
        made = origin(self.folder) if self.folder else {}
        known = fingerprint(Run(self.folder).config) if self.finished and self.folder else None
        best = self.best_epoch
        return {
            "seed": self.run.seed,
            "config_hash": known or self.run.hash,
            "train": self.run.command,
            "state": self.state,
            "network": self.run.config.model,
            "train_commit": made.get("commit"),
            "train_seconds": round(self.seconds, 1),
            "epochs": len(self.epochs),
            "best_epoch": None if best is None else best + 1,
            "collapsed_in_epochs": [epoch + 1 for epoch in self.collapses],
        }


@dataclass(frozen=True)
class Workspace:
    """A folder to work in, and others to search for finished work; those are never written to."""

    root: Path
    others: tuple[Path, ...] = ()

    @property
    def data(self) -> Path:
        return self.root / "data"

    def results(self, name: str) -> Path:
        return self.root / "results" / name

    @cached_property
    def _found(self) -> dict[str, list[Path]]:
        """What was there at first: runs by their canonical hash, evaluations by the hash of their config."""
        found: dict[str, list[Path]] = {}
        for path, table in _configs([self.root, *self.others]):
            if "attacks" in table:
                found.setdefault(_evaluation_hash(path), []).append(path)
            with suppress(AtlasError):  # a run of another version, say
                found.setdefault(canonical_hash(load_config(path)), []).append(path)
        return found

    def _folders(self, run: RunSpec) -> list[Path]:
        """Where the run may be; the workspace first. A run whose settings were changed does not count."""
        folders = [self.run_folder(run), *self._found.get(canonical_hash(run.config), ())]
        return [folder for folder in folders if not Run(folder).changed_from]

    def run_folder(self, run: RunSpec) -> Path:
        """Where the run is trained, if it is not found."""
        return self._folder("runs", run)

    def _folder(self, part: str, run: RunSpec) -> Path:
        """The run's folder in a part of the workspace: two presets may give the same configuration."""
        found = sorted((self.root / part).glob(f"*-{run.hash[:8]}"))
        return found[0] if found else self.root / part / run.name

    def finished(self, run: RunSpec) -> Path | None:
        """A folder with the finished run."""
        folders = map(Run, self._folders(run))
        return next((f.path for f in folders if f.state == "finished"), None)

    def unfinished(self, run: RunSpec) -> Path | None:
        """A folder where the run has begun and can be resumed."""
        return next((path for path in self._folders(run) if Run(path).begun), None)

    def status(self, run: RunSpec) -> RunStatus:
        """The status of a run, wherever it is."""
        done, place = self.finished(run), Run(self.run_folder(run))
        found = Run(done or self.unfinished(run) or place.path)
        state: State = found.state
        if done is None and state != "failed" and place.changed_from:
            found, state = place, "changed on the way"
        if state == "not begun":
            return RunStatus(run, state)
        return RunStatus(run, state, found.path, tuple(found.records), found.seconds)

    def copy_into_workspace(self, run: RunSpec) -> Path:
        """The folder to train in: a run that has begun in another folder is copied first."""
        folder, begun = self.run_folder(run), self.unfinished(run)
        if begun is not None and begun != folder:
            if in_use(folder):
                raise LockError(f"{folder} is being trained by another process")
            part = folder.with_name(f".{folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(begun, part, ignore=shutil.ignore_patterns("lock", "evaluations"))
            shutil.rmtree(folder, ignore_errors=True)
            part.rename(folder)
        return folder

    def evaluations(self, run: RunSpec, folder: Path, name: str, about: Mapping[str, Any]) -> list[Path]:
        """Where an evaluation of the run in `folder` is made, and where else it may be."""
        known = fingerprint(json.loads(json.dumps(about)))
        place = self._folder("evaluations", run) / f"{name}-{known[:8]}"
        beside = [path for path, _ in _configs([folder / "evaluations"]) if _evaluation_hash(path) == known]
        return [place, *beside, *self._found.get(known, ())]


def canonical_hash(config: RunConfig) -> str:
    """The hash of a configuration with its default objectives filled in.

    An attack without an objective takes that of its method; runs of earlier versions spell it out.
    """
    attack = config.method.attack
    if attack is not None:
        method: Any = config.method  # a dataclass, as all methods are
        attack = attack.with_default_objective(method.objective)
        config = replace(config, method=replace(method, attack=attack))
    training, validation = config.training, config.training.validation
    if isinstance(validation.attack, TrainingAttack):
        validation = replace(validation, attack=validation.attack.with_default_objective("ce"))
    return fingerprint(replace(config, training=replace(training, validation=validation)).table())


def _evaluation_hash(path: Path) -> str:
    """The hash of the evaluation in this folder; "" where it is damaged."""
    try:
        return fingerprint(EvaluationFolder(path).about())
    except CheckpointError:
        return ""


def _configs(places: Sequence[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every folder with a readable config.json, in a fixed order; links are followed, each once.

    Hidden folders are skipped: an interrupted copy is one.
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
    """Write the command, commit and version that make the folder's contents, unless they are known."""
    if not (folder / ORIGIN).exists():
        table = {"command": command, "commit": commit(), "version": __version__}
        write_atomic(folder / ORIGIN, (json.dumps(table, indent=2) + "\n").encode())


@cache
def commit() -> str | None:
    """The commit of this code, with a + where files differ from it; None outside a work tree.

    Cached: what runs is the code as it was at the start.
    """
    try:
        _git("ls-files", "--error-unmatch", __file__)  # an installed copy may be in a user's work tree
        known = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--", "src")
    except (OSError, subprocess.CalledProcessError):
        return None
    return known[:12] + ("+" if changed else "")


def _git(*words: str) -> str:
    """The output of git in the work tree of this file."""
    command = ["git", "-C", str(Path(__file__).parents[2]), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
