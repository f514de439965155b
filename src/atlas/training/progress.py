"""Where a run is and what it has decided: the part of its state that is not tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from atlas.training.schedule import Guide
from atlas.training.watch import Watch


@dataclass
class Progress:
    """Counters, the sums of the epoch under way, and the minds of guide and watch."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    rollbacks: int = 0
    ended: str | None = None
    seen: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    """Sums over the `seen` images of this epoch."""
    probes: int = 0
    probed: float = 0.0
    """Sum of the Jacobian norms that were looked at in this epoch."""
    jacobian: float = 0.0
    """Their mean in the last epoch that had any."""
    guide: Guide = field(default_factory=Guide)
    watch: Watch = field(default_factory=Watch)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Progress:
        """From what `dataclasses.asdict` made."""
        rest = {k: v for k, v in table.items() if k not in ("guide", "watch")}
        return cls(**rest, guide=Guide(**table["guide"]), watch=Watch(**table["watch"]))

    def add(self, means: Mapping[str, float], count: int) -> None:
        """Take in the means over a batch of `count` images."""
        self.seen += count
        for name, mean in means.items():
            self.sums[name] = self.sums.get(name, 0.0) + mean * count

    def probe(self, jacobian: float) -> None:
        self.probes += 1
        self.probed += jacobian
        self.jacobian = self.probed / self.probes

    def means(self) -> dict[str, float]:
        return {name: total / self.seen for name, total in self.sums.items()}

    def forget_validation(self) -> None:
        """Start the choice of the best epoch, the count of a plateau and the watch for a collapse anew.

        The cuts of the learning rate stay.
        """
        self.guide, self.watch = Guide(cuts=self.guide.cuts), Watch()

    def next_epoch(self) -> None:
        self.epoch += 1
        self.batch = self.seen = self.probes = 0
        self.probed = 0.0
        self.sums = {}
