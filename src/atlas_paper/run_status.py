"""How far the training behind a row has come, and how it went."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from atlas.config import fingerprint
from atlas.files import in_use
from atlas.reports.collect import origin
from atlas.runs import RunFolder
from atlas.training.log import read_metrics, read_seconds
from atlas_paper.request import Run
from atlas_paper.workspace import Workspace

State = Literal["finished", "unfinished", "in use", "failed", "changed on the way", "not begun"]


@dataclass(frozen=True)
class RunStatus:
    """A training as its folder tells it."""

    run: Run
    state: State
    folder: Path | None
    records: tuple[dict[str, Any], ...]
    """Epochs and probes, as in metrics.jsonl."""
    seconds: float

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
        """Epochs, from 0, in which the watch saw a collapse."""
        return [e["epoch"] for e in self.epochs if e["collapse"]]

    @property
    def lacks(self) -> str:
        """In words, what keeps it from being finished; "" where it is."""
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
        known = fingerprint(RunFolder(self.folder).read_config()) if self.finished and self.folder else None
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


def course(run: Run, workspace: Workspace) -> RunStatus:
    """The course of a run, wherever it lies."""
    done, begun = workspace.finished(run), workspace.unfinished(run)
    folder = done or begun
    state: State = "finished" if done else "unfinished" if begun else "not begun"
    if not done:
        broken = RunFolder(begun or workspace.place(run)).not_finite
        if broken.exists():
            state, folder = "failed", broken.parent
        elif RunFolder(own := workspace.place(run)).changed_from:
            state, folder = "changed on the way", own
        elif begun is not None and in_use(begun):
            state = "in use"
    if folder is None:
        return RunStatus(run, state, None, (), 0.0)
    place = RunFolder(folder)
    seconds = read_seconds(place.timing)
    return RunStatus(run, state, folder, tuple(read_metrics(place.metrics)), seconds)
