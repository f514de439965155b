"""What is printed during training: progress bars on a terminal, and a line per epoch."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from types import TracebackType

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from atlas.runs import Record
from atlas.terminal import Terminal
from atlas.threat import eps_text

WIDTHS = {
    **{"epoch": 7, "loss": 7, "eps": 7, "lr": 8, "||J||^2": 8},
    **{"train": 6, "clean": 6, "robust  ": 8, "balanced": 8, "time": 5},
}
"""Of the columns, which fit a terminal of 80 with a space between them."""


def imbalance_note(record: Record) -> str:
    """If classes are imbalanced, the accuracy of a constant answer, and the mean over the classes."""
    if "val_majority" not in record:
        return ""
    return f" (majority {record['val_majority']:.1%}, balanced {record['val_balanced']:.1%})"


class Display:
    """Two bars: the whole run (for a guided schedule at its longest) and the current epoch or validation.

    Of several processes that train together only the first prints.
    """

    def __init__(self, title: str, epochs: int, *, shown: bool, first: bool = True) -> None:
        shown, self.first = shown and first, first
        self.console = Terminal(stderr=True, quiet=not shown)
        self.live = shown and self.console.is_terminal
        self.bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.live,
        )
        self.epochs, self.headed = epochs, False
        self.whole = self.bars.add_task(title, total=1.0 * epochs)
        self.work = self.bars.add_task("", total=None)

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Start the bar of an epoch's batches, or of the validation images."""
        self.bars.reset(self.work, description=what, total=total, completed=done)

    def advance_to(self, done: int, epochs: float | None = None) -> None:
        self.bars.update(self.work, completed=done)
        if epochs is not None:
            self.bars.update(self.whole, completed=epochs)

    def epoch(self, record: Record, accuracy: str, seconds: float) -> None:
        """Print the line of an epoch, and before the first one the headings."""
        loss, star = record["loss"], "*" if record["best"] else " "
        cells = {
            "epoch": f"{record['epoch'] + 1}/{self.epochs}",
            "loss": f"{loss:.3f}" if abs(loss) < 100 else f"{loss:.2g}",
            "eps": eps_text(record["eps"], 3),
            "lr": f"{record['lr']:.2g}",
            "||J||^2": f"{record['jacobian']:.3g}",
            "train": f"{record[accuracy]:.1%}",
            "clean": f"{record['val_clean']:.1%}",
            "robust  ": f"{record['val_robust']:.1%} {star}",
        }
        if "val_balanced" in record:
            cells["balanced"] = f"{record['val_balanced']:.1%}"
        cells["time"] = f"{seconds:.0f}s"
        if not self.headed:
            self.headed = True
            self.say(_legend(record, accuracy))
            self.say(_row(cells, cells))
        self.say(_row(cells, cells.values()))

    def say(self, text: str, style: str | None = None) -> None:
        self.console.say(text, style)

    def warn(self, text: str) -> None:
        """Print in red, or warn by Python's warnings if nothing is printed."""
        if self.console.quiet and self.first:
            warnings.warn(text, stacklevel=2)
        self.say(text, style="bold red")

    def __enter__(self) -> Display:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()


def _legend(record: Record, accuracy: str) -> str:
    images = "clean images" if accuracy == "train_clean" else "adversaries"
    text = f"train: accuracy on the {images} trained on; clean, robust: on validation images; "
    if "val_majority" in record:
        share = f"{record['val_majority']:.1%}"
        text += f"balanced: robust, as the mean over classes (a constant answer has {share} robust); "
    return f"{text}*: best so far, its weights are kept"


def _row(headings: Iterable[str], cells: Iterable[str]) -> str:
    return " ".join(cell.rjust(WIDTHS[heading]) for heading, cell in zip(headings, cells, strict=True))
