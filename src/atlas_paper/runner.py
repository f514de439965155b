"""The work behind an artefact: trainings, evaluations and timings, each done once and found again."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from atlas import data, models
from atlas.data import Batch, Images
from atlas.distributed.launch import checked_device
from atlas.errors import CheckpointError, LockError, NumericError
from atlas.evaluation import Report
from atlas.evaluation.evaluate import Evaluation
from atlas.evaluation.evaluation_folder import load_report, slug
from atlas.evaluation.plan import Plan, build_attack, chosen_images
from atlas.files import write_atomic
from atlas.machine import machine, wait_for
from atlas.rng import Rng
from atlas.signals import Requests, caught_signals
from atlas.training import load_config, load_model, train
from atlas.training.trainer import Trainer
from atlas_paper.artefact import Column, ModelRow
from atlas_paper.paper import TIME
from atlas_paper.request import Request, RunSpec, make_smoke_data
from atlas_paper.workspace import Workspace, note_origin

SEED = 0
"""Of attacks, and of test images that are drawn at random."""
REPEATS = 5
"""Training steps that are timed."""


@dataclass
class Runner:
    """A workspace with data and a device."""

    workspace: Workspace
    data_root: Path | None = None
    device: str | None = None
    say: Callable[[str], None] = lambda text: None
    progress: bool = True
    _images: dict[tuple[str, int | None, bool], Images] = field(default_factory=dict)
    _models: dict[Path, nn.Module] = field(default_factory=dict)

    @cached_property
    def timings(self) -> Timings:
        return Timings(self.workspace.root / "timings.json", checked_device(self.device))

    def work(self, request: Request) -> None:
        """Train and attack all that the request still lacks.

        What cannot be done now (a folder in use, a training that failed) is reported and left out.
        """
        if request.scale == "smoke":
            make_smoke_data(self.workspace.data)
        with caught_signals() as signals:
            for seed in range(request.seeds):
                for row in request.rows:
                    with self._or_later(f"{row.label}, seed {seed}"):
                        self._row(request, row, seed, signals)

    def _row(self, request: Request, row: ModelRow, seed: int, signals: Requests) -> None:
        run = request.run(row, seed)
        signals.check()
        folder = self.trained(request, run, f"{row.label}, {row.task}, seed {seed}")
        for column in request.columns(row):
            signals.check()
            with self._or_later(f"{row.label}, seed {seed}, {column.label}"):
                if column.transfer:
                    self.trained(
                        request, request.surrogate(row.task), f"surrogate of the black box, {row.task}"
                    )
                    signals.check()
                self.evaluate(request, row, run, folder, column)
        signals.check()
        if TIME in request.artefact.columns_of(row):
            repeats = 1 if request.scale == "smoke" else REPEATS
            self.timings.measure(run, self.test_images(run.config.data), repeats)

    @contextmanager
    def _or_later(self, what: str) -> Iterator[None]:
        """Report what could not be done, and continue with the next."""
        try:
            yield
        except (LockError, NumericError, CheckpointError) as error:
            self.say(f"{what}: left out for now: {error}")

    def trained(self, request: Request, run: RunSpec, what: str) -> Path:
        """The folder of the finished run, trained now if need be."""
        status = self.workspace.status(run)
        if status.finished and status.folder is not None:
            return status.folder
        if status.state == "in use":
            raise LockError(f"{status.folder} is being trained by another process")
        if status.state == "failed":
            raise NumericError(
                f"training failed: see not-finite.json in {status.folder}; remove the folder to try again"
            )
        if status.state == "changed on the way":
            raise CheckpointError(f"{status.folder}: its settings were changed during training; move it away")
        folder = self.workspace.copy_into_workspace(run)
        begun = status.state == "unfinished"
        self.say(f"{what}: {'resuming' if begun else 'training'} {folder}")
        note_origin(folder, request.command)
        config = load_config(folder) if begun else run.config  # an older version may spell out defaults
        train(config, folder, data_root=self.data_root, device=self.device, progress=self.progress)
        return folder

    def model(self, folder: Path) -> nn.Module:
        if folder not in self._models:
            self._models[folder] = load_model(folder, device=checked_device(self.device))
        return self._models[folder]

    def test_images(self, name: str, n: int | None = None, random: bool = False) -> Images:
        """All test images, the first n, or n at random."""
        key = (name, n, random)
        if key not in self._images:
            whole = data.load(name, train=False, root=self.data_root) if n is None else self.test_images(name)
            self._images[key] = chosen_images(whole, n, random, SEED)
        return self._images[key]

    def report(
        self, request: Request, row: ModelRow, run: RunSpec, folder: Path, column: Column
    ) -> Report | None:
        """The finished evaluation of a column; None where there is none yet."""
        found = self._evaluation(request, row, run, folder, column)
        return None if found is None else _finished(found[1])

    def evaluate(self, request: Request, row: ModelRow, run: RunSpec, folder: Path, column: Column) -> None:
        """Run the evaluation of a column, unless it is finished."""
        found = self._evaluation(request, row, run, folder, column)
        assert found is not None, "the surrogate is trained first"
        evaluation, folders = found
        if _finished(folders) is None:
            images = len(evaluation.data)
            self.say(f"{row.label}, {row.task}, seed {run.seed}: {column.label} on {images} images")
            note_origin(folders[0], request.command)
            evaluation.run(folders[0], progress=self.progress)

    def _evaluation(
        self, request: Request, row: ModelRow, run: RunSpec, folder: Path, column: Column
    ) -> tuple[Evaluation, list[Path]] | None:
        """The column's evaluation of the finished run and its folders; None where it lacks its surrogate."""
        surrogates: tuple[nn.Module, ...] = ()
        if column.transfer:
            trained = self.workspace.finished(request.surrogate(row.task))
            if trained is None:
                return None
            surrogates = (self.model(trained),)
        attacks = {label: build_attack(table, surrogates) for label, table in column.attacks.items()}
        plan = Plan(run.config.threat, attacks, column.chain, SEED, request.attack_dtype)
        images = self.test_images(run.config.data, column.n, column.random)
        evaluation = Evaluation(self.model(folder), images, plan)
        return evaluation, self.workspace.evaluations(run, folder, slug(column.label), evaluation.about)


def _finished(folders: Sequence[Path]) -> Report | None:
    """The first evaluation in these folders that can be read."""
    for folder in folders:
        with suppress(CheckpointError):  # not finished, or damaged: it is made again
            return replace(load_report(folder), folder=folder)
    return None


@dataclass(frozen=True)
class Timings:
    """Seconds per training step, measured once for each configuration, whatever its seed, and kept."""

    path: Path
    device: torch.device

    def measure(self, run: RunSpec, images: Images, repeats: int = REPEATS) -> None:
        """Time a training step on a batch of made-up images, unless the time is known."""
        if self.known(run) is None:
            entry = {"seconds": step_seconds(run, images, repeats, self.device), **machine(self.device)}
            # Read again: another process may have measured something meanwhile.
            table = {**self._read(), self._key(run): entry}
            write_atomic(self.path, (json.dumps(table, indent=2) + "\n").encode())

    def known(self, run: RunSpec) -> dict[str, Any] | None:
        """Its seconds, and the machine that they were measured on."""
        return self._read().get(self._key(run))

    def _key(self, run: RunSpec) -> str:
        return f"{RunSpec(run.preset, run.changes, 0).hash} on {self.device}"

    def _read(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.path.read_text()))
        except (OSError, ValueError, TypeError):
            return {}


def step_seconds(run: RunSpec, images: Images, repeats: int, device: torch.device) -> float:
    """The median time of a training step at the full eps, after one step to warm up."""
    config, shape, classes = run.config, images.shape, images.num_classes
    stats = ([0.5] * shape[0], [0.25] * shape[0]) if config.normalize else None
    model = models.build(config.model, num_classes=classes, shape=shape, normalize=stats).to(device)
    optimizer = replace(config.training.optimizer, lr=1e-5)  # so that the weights hardly change
    schedule = replace(config.training.schedule, ramp_epochs=0)
    training = replace(config.training, optimizer=optimizer, schedule=schedule)
    ids = torch.arange(training.batch_size, device=device)
    batch = Batch(ids, Rng.lanes(0, ids).fold("timing").uniform(shape), ids % classes)
    noise = Images(batch.x.cpu(), batch.y.cpu(), classes)
    trainer = Trainer(model, noise, noise, config.method, config.threat, training)
    trainer.progress.batch = 1  # the last step of an epoch would measure the Jacobian as well
    seconds = []
    for _ in range(1 + repeats):
        began = time.perf_counter()
        trainer.step(batch)
        wait_for(device)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])
