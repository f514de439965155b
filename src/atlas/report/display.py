"""What a person sees while a report attacks: one bar with the time left."""

from __future__ import annotations

from types import TracebackType

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from atlas.terminal import Terminal


class Display:
    """A bar over the parts of all studies, on a terminal; nothing of a run's name is taken for markup."""

    def __init__(self, parts: int, *, shown: bool = True) -> None:
        self.console = Terminal(stderr=True, quiet=not shown)
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not (shown and self.console.is_terminal),
            transient=True,
        )
        self.task = self.bars.add_task("", total=parts)
        self.what, self.over = "", -1

    def step(self, what: str, share: float) -> None:
        if what != self.what:
            self.what, self.over = what, self.over + 1
        self.bars.update(self.task, description=what, completed=self.over + share)

    def say(self, text: str) -> None:
        self.console.print(text, style="yellow", highlight=False, soft_wrap=True)

    def __enter__(self) -> Display:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()
