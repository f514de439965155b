"""What is printed during training: progress bars on a terminal, and a line per epoch."""

from __future__ import annotations

import warnings

from atlas.runs import Record
from atlas.terminal import Terminal, share_bars
from atlas.threat import eps_text


class Display:
    """Two bars: the whole run (for a guided schedule at its longest) and the current epoch or validation.

    Of several processes that train together only the first prints.
    """

    def __init__(self, title: str, epochs: int, *, shown: bool, first: bool = True) -> None:
        self.epochs, self.first, self.headed = epochs, first, False
        self.console = Terminal(stderr=True, quiet=not (shown and first))
        self.bars = share_bars(self.console)
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
        loss, imbalanced = record["loss"], "val_majority" in record
        columns = [  # which fit a terminal of 80 with a space between them
            ("epoch", 7, f"{record['epoch'] + 1}/{self.epochs}"),
            ("loss", 7, f"{loss:.3f}" if abs(loss) < 100 else f"{loss:.2g}"),
            ("eps", 7, eps_text(record["eps"], 3)),
            ("lr", 8, f"{record['lr']:.2g}"),
            ("||J||^2", 8, f"{record['jacobian']:.3g}"),
            ("train", 6, f"{record[accuracy]:.1%}"),
            ("clean", 6, f"{record['val_clean']:.1%}"),
            ("robust  ", 8, f"{record['val_robust']:.1%} {'*' if record['best'] else ' '}"),
            *([("balanced", 8, f"{record['val_balanced']:.1%}")] if imbalanced else []),
            ("time", 5, f"{seconds:.0f}s"),
        ]
        if not self.headed:
            self.headed = True
            images = "clean images" if accuracy == "train_clean" else "adversaries"
            text = f"train: accuracy on the {images} trained on; clean, robust: on validation images; "
            if imbalanced:
                share = f"{record['val_majority']:.1%}"
                text += f"balanced: robust, as the mean over classes (a constant answer has {share} robust); "
            self.say(f"{text}*: best so far, its weights are kept")
            self.say(" ".join(heading.rjust(width) for heading, width, _ in columns))
        self.say(" ".join(cell.rjust(width) for _, width, cell in columns))

    def say(self, text: str, style: str | None = None) -> None:
        self.console.say(text, style)

    def warn(self, text: str) -> None:
        """Print in red, or warn by Python's warnings if nothing is printed."""
        if self.console.quiet and self.first:
            warnings.warn(text, stacklevel=2)
        self.say(text, style="bold red")
