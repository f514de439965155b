"""The work behind an artefact: trainings and evaluations, each done once and found again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from torch import nn

from atlas import data
from atlas.data import Images
from atlas.errors import CheckpointError, LockError, NumericError
from atlas.evaluation import Report
from atlas.evaluation.evaluate import Evaluation
from atlas.evaluation.evaluation_folder import load_report, slug
from atlas.evaluation.plan import Plan, build_attack, chosen_images
from atlas.files import in_use
from atlas.runs import RunFolder
from atlas.signals import Requests, caught_signals
from atlas.training import load_config, load_model, train
from atlas.training.run import checked_device
from atlas_paper.artefact import Column, Row
from atlas_paper.cost import REPEATS, Timings
from atlas_paper.paper import TIME
from atlas_paper.request import Request, Run
from atlas_paper.scales import make_smoke_data
from atlas_paper.workspace import Workspace, note_origin

SEED = 0
"""Of attacks, and of test images that are drawn by chance."""


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
        return Timings(self.workspace.root / "timings.json", self.device)

    def work(self, order: Request) -> None:
        """Train and attack all that the order still lacks.

        What cannot be done now (a folder in use, a training that broke off) is said and left for later.
        """
        if order.scale == "smoke":
            make_smoke_data(self.workspace.data)
        with caught_signals() as requests:
            for seed in range(order.seeds):
                for row in order.rows:
                    with self._or_later(f"{row.label}, seed {seed}"):
                        self._row(order, row, seed, requests)

    def _row(self, order: Request, row: Row, seed: int, requests: Requests) -> None:
        run = order.run(row, seed)
        requests.check()
        folder = self.trained(order, run, f"{row.label}, {row.task}, seed {seed}")
        for column in order.columns(row):
            requests.check()
            with self._or_later(f"{row.label}, seed {seed}, {column.label}"):
                if column.transfer:
                    self.trained(order, order.surrogate(row.task), f"surrogate of the black box, {row.task}")
                    requests.check()
                self._examine(order, row, run, folder, column)
        requests.check()
        if TIME in order.artefact.columns_of(row):
            repeats = 1 if order.scale == "smoke" else REPEATS
            self.timings.measure(run, self.test_images(run.config.data), repeats)

    @contextmanager
    def _or_later(self, what: str) -> Iterator[None]:
        """Say what could not be done, and go on with the next."""
        try:
            yield
        except (LockError, NumericError, CheckpointError) as error:
            self.say(f"{what}: left out for now: {error}")

    # --- trainings ---

    def trained(self, order: Request, run: Run, what: str) -> Path:
        """The folder of the finished run, trained now if need be."""
        if (found := self.workspace.finished(run)) is not None:
            return found
        begun = self.workspace.unfinished(run)
        if begun is not None and in_use(begun):
            raise LockError(f"{begun} is being trained by another process")
        broken = RunFolder(begun or self.workspace.place(run)).not_finite
        if broken.exists():
            raise NumericError(f"training broke off: see {broken}, and remove its folder to try again")
        if RunFolder(place := self.workspace.place(run)).changed_from:
            raise CheckpointError(f"{place}: its settings were changed on the way; move it to another place")
        folder = self.workspace.copy_into_workspace(run)
        self.say(f"{what}: {'going on with' if begun else 'training'} {folder}")
        note_origin(folder, order.command)
        config = load_config(folder) if begun else run.config  # which may say the same in other words
        train(config, folder, data_root=self.data_root, device=self.device, progress=self.progress)
        return folder

    def model(self, folder: Path) -> nn.Module:
        if folder not in self._models:
            self._models[folder] = load_model(folder, device=checked_device(self.device))
        return self._models[folder]

    def test_images(self, name: str, n: int | None = None, random: bool = False) -> Images:
        """All test images, the first n, or n by chance."""
        key = (name, n, random)
        if key not in self._images:
            whole = data.load(name, train=False, root=self.data_root) if n is None else self.test_images(name)
            self._images[key] = chosen_images(whole, n, random, SEED)
        return self._images[key]

    # --- evaluations ---

    def examination(
        self, order: Request, row: Row, run: Run, folder: Path, column: Column
    ) -> tuple[Path, Report] | None:
        """The finished evaluation of a column, with its folder; None where there is none yet."""
        task = self._task(order, row, run, folder, column)
        if task is None:
            return None
        return _finished(self.workspace.evaluations(run, folder, slug(column.label), task.about))

    def _examine(self, order: Request, row: Row, run: Run, folder: Path, column: Column) -> None:
        task = self._task(order, row, run, folder, column)
        assert task is not None, "the surrogate is trained first"
        places = self.workspace.evaluations(run, folder, slug(column.label), task.about)
        if _finished(places) is not None:
            return
        place = places[0]
        self.say(f"{row.label}, {row.task}, seed {run.seed}: {column.label} on {len(task.data)} images")
        note_origin(place, order.command)
        task.run(place, progress=self.progress)

    def _task(self, order: Request, row: Row, run: Run, folder: Path, column: Column) -> Evaluation | None:
        """The column's evaluation of the finished run; None where it lacks its surrogate."""
        surrogates: tuple[nn.Module, ...] = ()
        if column.transfer:
            trained = self.workspace.finished(order.surrogate(row.task))
            if trained is None:
                return None
            surrogates = (self.model(trained),)
        attacks = {label: build_attack(table, surrogates) for label, table in column.attacks.items()}
        plan = Plan(run.config.threat, attacks, column.chain, SEED, order.attack_dtype)
        images = self.test_images(run.config.data, column.n, column.random)
        return Evaluation(self.model(folder), images, plan)


def _finished(places: Sequence[Path]) -> tuple[Path, Report] | None:
    """The first evaluation of these folders that can be read."""
    for place in places:
        with suppress(CheckpointError):  # not finished, or damaged: it is made again
            return place, load_report(place)
    return None
