"""What a person sees while a run goes on: bars on a terminal, a line an epoch elsewhere."""

from __future__ import annotations

import warnings
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

from atlas.terminal import Terminal
from atlas.threat import eps_text
from atlas.training.log import Record


def beside(record: Record) -> str:
    """What a model with one answer reaches, and the mean over the classes, where classes are imbalanced."""
    if "val_majority" not in record:
        return ""
    return f" (majority {record['val_majority']:.1%}, balanced {record['val_balanced']:.1%})"


class Display:
    """Two bars: the whole run (for a guided schedule its longest course) and the work at hand.

    Of several processes that train together the first speaks.
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
        self.epochs = epochs
        self.whole = self.bars.add_task(title, total=1.0 * epochs)
        self.work = self.bars.add_task("", total=None)

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """A new piece of work at hand: an epoch's batches, or the validation images."""
        self.bars.reset(self.work, description=what, total=total, completed=done)

    def advance_to(self, done: int, epochs: float | None = None) -> None:
        self.bars.update(self.work, completed=done)
        if epochs is not None:
            self.bars.update(self.whole, completed=epochs)

    def epoch(self, record: Record, accuracy: str, seconds: float) -> None:
        """The line that sums up an epoch."""
        best = " *" if record["best"] else "  "
        self.say(
            f"epoch {record['epoch'] + 1:>3}/{self.epochs}  loss {record['loss']:.3f}  "
            f"eps {eps_text(record['eps'], 3):<5}  lr {record['lr']:.2g}  ||J||^2 {record['jacobian']:.3g}  "
            f"{accuracy.replace('_', ' ')} {record[accuracy]:.1%}  val clean {record['val_clean']:.1%}  "
            f"val robust {record['val_robust']:.1%}{beside(record)}{best}  {seconds:.0f}s"
        )

    def say(self, text: str, style: str | None = None) -> None:
        self.console.say(text, style)

    def warn(self, text: str) -> None:
        """What nobody should miss: as a warning of Python's where nothing is shown."""
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
