"""The lanes engine: run an attack over many examples with every batch full.

A server batches requests of many lengths; we batch attempts. A lane is one attempt on one example. As
soon as an example is fooled it leaves, with all its restarts still to come, and the next waiting attempt
takes its place. Because randomness belongs to (example, restart, step), the outcome does not depend on
the batch size or the order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atlas.attacks.finite import finite
from atlas.attacks.frozen import Model, frozen
from atlas.rng import Rng
from atlas.threat import Threat, check_pixels

if TYPE_CHECKING:
    from atlas.attacks.attack import Attack, State

CLEAN = -1
"""The attempt that is noted for an example that was wrong before any attack."""
SURVIVED = -2
"""The attempt that is noted for an example that no attempt has fooled."""


@dataclass(frozen=True)
class Outcome:
    """What became of each example; all tensors have the example first."""

    attempt: Tensor
    """Which attempt fooled it, int64 [N]; or CLEAN, or SURVIVED."""
    x_adv: Tensor
    """The image that fools the model; where none was found, the last iterate."""

    @property
    def robust(self) -> Tensor:
        """Right on the clean image and under every attempt, bool [N]."""
        return self.attempt == SURVIVED

    @property
    def clean(self) -> Tensor:
        """Right on the clean image, bool [N]."""
        return self.attempt != CLEAN


def run(
    attack: Attack,
    model: Model,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    rng: Rng,
    *,
    batch_size: int = 256,
    each_step: Callable[[int], None] = lambda settled: None,
) -> Outcome:
    """Attack x [N, ...] with labels y until every example is fooled or out of attempts.

    `each_step` is called after every step with the number of examples settled so far; what it raises
    ends the run.
    """
    check_pixels(x)
    with frozen(model):
        return _Engine(attack, model, x, y, threat, rng, batch_size, each_step).run()


class _Engine:
    def __init__(
        self,
        attack: Attack,
        model: Model,
        x: Tensor,
        y: Tensor,
        threat: Threat,
        rng: Rng,
        batch_size: int,
        each_step: Callable[[int], None],
    ) -> None:
        self.attack, self.model, self.threat, self.rng = attack, model, threat, rng
        self.x, self.y, self.batch_size, self.each_step = x, y, batch_size, each_step
        self.attempt = torch.full_like(y, SURVIVED)
        self.x_adv = x.clone()
        self.waiting: deque[tuple[int, int]] = deque()
        self.settled = 0
        # The lanes under way: which example and attempt each is, and the attack's own state.
        self.examples = torch.empty(0, dtype=torch.int64, device=x.device)
        self.attempts = torch.empty(0, dtype=torch.int64, device=x.device)
        self.state: State | None = None
        # Lanes that are out of steps and await the look at their last iterate.
        self.ended: list[tuple[Tensor, Tensor]] = []

    def run(self) -> Outcome:
        self._settle_clean()
        while self.waiting or len(self.examples) or self.ended:
            self._fill()
            if len(self.examples):
                self._advance()
            self._judge()
            self.each_step(self.settled)
        return Outcome(self.attempt, self.x_adv)

    @torch.no_grad()
    def _wrong(self, x: Tensor, y: Tensor) -> Tensor:
        batches = zip(torch.split(x, self.batch_size), torch.split(y, self.batch_size), strict=True)
        return torch.cat([finite(self.model(a)).argmax(1) != b for a, b in batches])

    def _settle_clean(self) -> None:
        """A wrong answer on the clean image is a success of any attack; eps 0 leaves nothing to try."""
        wrong = self._wrong(self.x, self.y)
        self.attempt[wrong] = CLEAN
        left = [] if self.threat.eps == 0 else (~wrong).nonzero()[:, 0].tolist()
        self.settled = len(self.y) - len(left)
        self.waiting.extend((example, 0) for example in left)

    def _fill(self) -> None:
        """Start waiting attempts until the batch is full."""
        room = min(self.batch_size - len(self.examples), len(self.waiting))
        if room == 0:
            return
        pairs = torch.tensor([self.waiting.popleft() for _ in range(room)], device=self.x.device)
        examples, attempts = pairs.unbind(1)
        rng = self.rng[examples].fold("restart", attempts)
        fresh = self.attack.start(self.model, self.x[examples], self.y[examples], self.threat, rng)
        self.examples = torch.cat([self.examples, examples])
        self.attempts = torch.cat([self.attempts, attempts])
        self.state = self.state.join(fresh) if self.state is not None else fresh

    def _advance(self) -> None:
        """One step for all lanes; those that are fooled are settled, those out of steps await judgement."""
        assert self.state is not None
        before = self.state
        after, logits = self.attack.advance(self.model, before, self.threat)
        fooled = self._confirmed(before, finite(logits).argmax(1) != before.y)
        spent = ~fooled & (after.step >= self.attack.steps)
        self._settle(self.examples[fooled], self.attempts[fooled], before.x_adv[fooled])
        if spent.any():
            self.x_adv[self.examples[spent]] = after.x_adv[spent]
            self.ended.append((self.examples[spent], self.attempts[spent]))
        keep = (~(fooled | spent)).nonzero()[:, 0]
        if len(keep) < len(self.examples):
            self.examples, self.attempts = self.examples[keep], self.attempts[keep]
            after = after.select(keep)
        self.state = after

    def _confirmed(self, state: State, claimed: Tensor) -> Tensor:
        """Claims that a separate forward pass bears out, inside ball and box. Other lanes go on."""
        lanes = claimed.nonzero()[:, 0]
        if len(lanes):
            x_adv, x, y = state.x_adv[lanes], state.x[lanes], state.y[lanes]
            claimed[lanes] = self.threat.contains(x_adv, x) & self._wrong(x_adv, y)
        return claimed

    def _settle(self, examples: Tensor, attempts: Tensor, x_adv: Tensor) -> None:
        """Fooled: note by which attempt and with which image."""
        self.attempt[examples] = attempts
        self.x_adv[examples] = x_adv
        self.settled += len(examples)

    def _judge(self) -> None:
        """Look at the last iterates, which a loop of steps never does, once a batch of them has gathered."""
        count = sum(len(examples) for examples, _ in self.ended)
        if count == 0 or (count < self.batch_size and (self.waiting or len(self.examples))):
            return
        examples, attempts = (torch.cat(column) for column in zip(*self.ended, strict=True))
        self.ended = []
        x_adv = self.x_adv[examples]
        fooled = self.threat.contains(x_adv, self.x[examples]) & self._wrong(x_adv, self.y[examples])
        self._settle(examples[fooled], attempts[fooled], x_adv[fooled])
        again = ~fooled & (attempts + 1 < self.attack.restarts)
        self.settled += int((~fooled & ~again).sum())
        self.waiting.extend(zip(examples[again].tolist(), (attempts[again] + 1).tolist(), strict=True))
