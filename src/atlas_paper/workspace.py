"""A folder in which each training, evaluation and timing is done once, and found again by its configuration.

runs/NAME-HASH/          trainings
evaluations/NAME-HASH/   of each training: one folder per evaluation
timings.json             seconds per training step
results/                 what is made of them
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from atlas import __version__, data, models
from atlas.config import fingerprint
from atlas.data import Images, batches
from atlas.distributed.launch import checked_device
from atlas.errors import AtlasError, CheckpointError, LockError, NumericError
from atlas.evaluation import Report
from atlas.evaluation.evaluate import Evaluation
from atlas.evaluation.evaluation_folder import EvaluationFolder, load_report, slug
from atlas.evaluation.plan import Plan, build_attack, chosen_images
from atlas.files import ORIGIN, in_use, write_atomic
from atlas.machine import machine, wait_for
from atlas.runs import Run, RunState
from atlas.signals import caught_signals
from atlas.training import RunConfig, load_config, load_model, train
from atlas.training.trainer import Trainer
from atlas_paper.jobs import AttackSpec, Job, RunSpec, canonical_hash

SEED = 0
"""Of attacks, and of test images that are drawn at random."""
State = RunState | Literal["changed on the way"]
REMOVE = dict.fromkeys(("failed", "changed on the way"), "; to try again, remove its folder")
"""What to do about a run in this state."""


@dataclass(eq=False)
class Workspace:
    """Several processes may work in one: a run that one of them trains is left out by the others."""

    root: Path
    others: tuple[Path, ...] = ()
    """Folders to search for finished work; they are only read."""
    data_root: Path | None = None
    device: str | None = None
    say: Callable[[str], None] = lambda text: None
    _images: dict[str, Images] = field(default_factory=dict)
    _models: dict[Path, nn.Module] = field(default_factory=dict)

    def work(self, jobs: Sequence[Job]) -> None:
        """Do all that the jobs still lack.

        What cannot be done now (a folder in use, a training that failed) is reported and left out.
        """
        with caught_signals() as signals:
            for job in jobs:
                with self._or_later(job.name):
                    signals.check()
                    self.train(job)
                    for spec in job.attacks:
                        signals.check()
                        with self._or_later(f"{job.name}, {spec.label}"):
                            self.attack(job, spec)
                    signals.check()
                    if job.timed_steps and self.timing(job.run) is None:
                        self.measure(job.run, job.timed_steps)

    @contextmanager
    def _or_later(self, what: str) -> Iterator[None]:
        """Report what could not be done, and continue with the next."""
        try:
            yield
        except (LockError, NumericError, CheckpointError) as error:
            self.say(f"{what}: left out for now: {error}")

    # --- trainings ---

    @cached_property
    def _found(self) -> dict[str, list[Path]]:
        """What was there at first, by hash: the canonical one of a run, that of an evaluation's config."""
        found = defaultdict[str, list[Path]](list)
        for path in (folder for place in (self.root, *self.others) for folder in _folders(place)):
            with suppress(AtlasError):  # a run of another version, say
                found[canonical_hash(load_config(path))].append(path)
            with suppress(AtlasError):
                found[fingerprint(EvaluationFolder(path).about())].append(path)
        return found

    def folder(self, part: str, run: RunSpec) -> Path:
        """The run's folder in a part of the workspace: two presets may give the same configuration."""
        found = sorted((self.root / part).glob(f"*-{run.hash[:8]}"))
        return found[0] if found else self.root / part / run.name

    def find(self, spec: RunSpec) -> tuple[Run, State]:
        """The run, wherever it is, and how far it has come; a run whose settings were changed is another."""
        place = Run(self.folder("runs", spec))
        known = [place, *map(Run, self._found.get(canonical_hash(spec.config), ()))]
        runs = [run for run in known if not run.changed_from]
        for run in runs:
            if run.state == "finished":
                return run, "finished"
        begun = next((run for run in runs if run.begun), place)
        if place.changed_from and begun.state != "failed":
            return place, "changed on the way"
        return begun, begun.state

    def finished(self, spec: RunSpec) -> Path | None:
        """The folder of the finished run."""
        run, state = self.find(spec)
        return run.path if state == "finished" else None

    def train(self, job: Job) -> None:
        """Train the job's model, unless it is finished."""
        (run, state), folder = self.find(job.run), self.folder("runs", job.run)
        if state == "finished":
            return
        if state not in ("not begun", "unfinished"):
            raise CheckpointError(f"{run.path}: training {state}{REMOVE.get(state, '')}")
        begun = state == "unfinished"
        if begun and run.path != folder:
            _copy(run.path, folder)
        self.say(f"{job.name}: {'resuming' if begun else 'training'} {folder}")
        _note_origin(folder, job.command)
        config = load_config(folder) if begun else job.run.config  # an older version may spell out defaults
        train(config, folder, data_root=self.data_root, device=self.device)

    # --- evaluations ---

    def model(self, folder: Path) -> nn.Module:
        if folder not in self._models:
            self._models[folder] = load_model(folder, device=checked_device(self.device))
        return self._models[folder]

    def test_images(self, name: str, n: int | None = None, random: bool = False) -> Images:
        """All test images, the first n, or n at random."""
        if name not in self._images:
            self._images[name] = data.load(name, train=False, root=self.data_root)
        return chosen_images(self._images[name], n, random, SEED)

    def report(self, run: RunSpec, spec: AttackSpec) -> Report | None:
        """The finished evaluation; None where there is none yet."""
        known = self._evaluation(run, spec)
        return None if known is None else _first_report(known[1])

    def attack(self, job: Job, spec: AttackSpec) -> None:
        """Run the evaluation of a trained model, unless it is finished."""
        known = self._evaluation(job.run, spec)
        if known is None:
            raise CheckpointError("its surrogate is not trained yet")
        evaluation, folders = known
        if _first_report(folders) is None:
            self.say(f"{job.name}: {spec.label} on {len(evaluation.data)} images")
            _note_origin(folders[0], job.command)
            evaluation.run(folders[0])

    def _evaluation(self, run: RunSpec, spec: AttackSpec) -> tuple[Evaluation, list[Path]] | None:
        """The evaluation, the folder for it and others where it may be; None where a model is not trained."""
        trained = [self.finished(each) for each in (run, spec.surrogate) if each]
        folders = [folder for folder in trained if folder is not None]
        if len(folders) < len(trained):
            return None
        model, *surrogates = map(self.model, folders)
        attacks = {label: build_attack(table, surrogates) for label, table in spec.attacks.items()}
        plan = Plan(run.config.threat, attacks, spec.cascade, SEED, spec.dtype)
        evaluation = Evaluation(model, self.test_images(run.config.data, spec.n, spec.random), plan)
        known = fingerprint(json.loads(json.dumps(evaluation.about)))
        place = self.folder("evaluations", run) / f"{slug(spec.label)}-{known[:8]}"
        return evaluation, [place, *self._found.get(known, ())]

    # --- timings ---

    @property
    def _timings(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.root / "timings.json").read_text()))
        except (OSError, ValueError, TypeError):
            return {}

    def _timing_key(self, run: RunSpec) -> str:
        return f"{replace(run, seed=0).hash} on {checked_device(self.device)}"

    def timing(self, run: RunSpec) -> dict[str, Any] | None:
        """The seconds per training step of this configuration, whatever its seed, and the machine."""
        return self._timings.get(self._timing_key(run))

    def measure(self, run: RunSpec, steps: int) -> None:
        """Time a training step, and keep the time."""
        device = checked_device(self.device)
        seconds = step_seconds(run.config, self.test_images(run.config.data), steps, device)
        # Read after the measurement: another process may have added a time meanwhile.
        table = {**self._timings, self._timing_key(run): {"seconds": seconds, **machine(device)}}
        write_atomic(self.root / "timings.json", (json.dumps(table, indent=2) + "\n").encode())


def _folders(place: Path) -> Iterator[Path]:
    """Those with a config.json, in a fixed order; links are followed, each once.

    Hidden folders are skipped: an interrupted copy is one.
    """
    seen = set[str]()
    for folder, below, files in os.walk(place, followlinks=True):
        real = os.path.realpath(folder)
        below[:] = [] if real in seen else sorted(name for name in below if not name.startswith("."))
        if "config.json" in files and real not in seen:
            yield Path(folder)
        seen.add(real)


def _first_report(folders: Sequence[Path]) -> Report | None:
    """The first evaluation in these folders that can be read."""
    for folder in folders:
        with suppress(CheckpointError):  # not finished, or damaged: it is made again
            return replace(load_report(folder), folder=folder)
    return None


def _copy(begun: Path, folder: Path) -> None:
    """Copy a run that has begun in another folder, so that it can be resumed here."""
    if in_use(folder):
        raise LockError(f"{folder} is being trained by another process")
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(begun, part, ignore=shutil.ignore_patterns("lock", "evaluations"))
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)


def step_seconds(config: RunConfig, images: Images, steps: int, device: torch.device) -> float:
    """The median time of a training step at the full eps, after one step to warm up."""
    stats = images.stats() if config.normalize else None
    model = models.build(config.model, num_classes=images.num_classes, shape=images.shape, normalize=stats)
    training = replace(config.training, schedule=replace(config.training.schedule, ramp_epochs=0))
    trainer = Trainer(model.to(device), images, images, config.method, config.threat, training)
    batch = next(batches(images, training.batch_size, seed=SEED, epoch=0, device=device))
    seconds = []
    for _ in range(1 + steps):
        began = time.perf_counter()
        trainer.step(batch)
        wait_for(device)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def _note_origin(folder: Path, command: str) -> None:
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
