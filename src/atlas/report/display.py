"""What a person sees while a report attacks: one bar with the time left."""

from __future__ import annotations

from atlas.terminal import Terminal, share_bars


class Display:
    """A bar over the parts of all studies, on a terminal; nothing of a run's name is taken for markup."""

    def __init__(self, parts: int, *, shown: bool = True) -> None:
        self.console = Terminal(stderr=True, quiet=not shown)
        self.bars = share_bars(self.console)
        self.task = self.bars.add_task("", total=parts)
        self.what, self.over = "", -1

    def step(self, what: str, share: float) -> None:
        if what != self.what:
            self.what, self.over = what, self.over + 1
        self.bars.update(self.task, description=what, completed=self.over + share)

    def say(self, text: str) -> None:
        self.console.say(text, "yellow")
