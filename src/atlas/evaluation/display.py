"""What a person sees while attacks run: a bar with the images still right and the time left."""

from __future__ import annotations

import time
import warnings

from atlas.attacks.engine import Engine
from atlas.evaluation.folder import EvaluationFolder
from atlas.terminal import Terminal, share_bars

REFRESH_SECONDS = 0.2


class Display:
    """A bar for the attack at hand on a terminal; a line for each attack everywhere.

    In the folder `watched` it leaves notes for who shows the bar of several processes.
    """

    def __init__(self, *, shown: bool, watched: EvaluationFolder | None = None) -> None:
        self.console = Terminal(stderr=True, quiet=not shown)
        self.bars = share_bars(self.console)
        self.task = self.bars.add_task("", total=1.0, visible=False)
        self.label, self.shown_at, self.watched = "", 0.0, watched

    def begin(self, label: str) -> None:
        self.label = label
        self.bars.reset(self.task, description=label, completed=0, visible=True)

    def show(self, engine: Engine) -> None:
        """Where the attack is. Asking the engine costs a little, so not at every step."""
        now = time.monotonic()
        if now - self.shown_at < REFRESH_SECONDS:
            return
        self.shown_at = now
        if self.watched:
            self.watched.note_progress(self.label, engine.share_done, engine.robust, len(engine.y))
        if not self.bars.disable:
            self.update(engine.share_done, engine.robust, len(engine.y))

    def update(self, share: float, robust: int, n: int) -> None:
        text = f"{self.label}  {robust} of {n} still right"
        self.bars.update(self.task, description=text, completed=share)

    def end(self, engine: Engine, seconds: float) -> None:
        self.bars.update(self.task, visible=False)
        self.say(f"{self.label}: {engine.robust} of {len(engine.y)} images still right, {seconds:.0f} s")

    def warn(self, text: str) -> None:
        """What nobody must miss: as a Python warning where nothing is shown."""
        if self.console.quiet:
            warnings.warn(text, stacklevel=2)
        self.say(text, style="bold red")

    def say(self, text: str, style: str | None = None) -> None:
        self.console.say(text, style)
