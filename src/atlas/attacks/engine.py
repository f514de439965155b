"""The lanes engine: run an attack over many examples with every batch full.

A server batches requests of many lengths; we batch attempts. A lane is one attempt on one example. As
soon as an example is fooled, all its later attempts leave, and the next waiting attempts take their place.
Earlier attempts on it that are still under way continue, so that the attempt, step and image that are noted
are always those that attempts made one after the other would have found. Because randomness belongs to
(example, attempt, step), the outcome does not depend on the batch size, the order or an interruption.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from atlas.attacks.attack import Attack, NewAttempts, State, Step
from atlas.attacks.attack_log import AttackLog, Outcome
from atlas.attacks.gradients import NotFinite, finite
from atlas.attacks.inputs import check_classes
from atlas.attacks.model_variants import Model, frozen, full_float32
from atlas.config import check_counts
from atlas.errors import DataError
from atlas.objectives import margin
from atlas.rng import Rng, streams
from atlas.threat import Threat, check_pixels

VERSION = 1
"""Of the engine and of the threats. As `Attack.version`, for all attacks at once."""
IDLE_LANES = 16
"""Dead lanes are replaced once they are one in so many: one by one would cost more than it saves."""


@dataclass
class Lanes:
    """Attempts under way: on which example, which attempt on it, whether it still counts, and its state."""

    example: Tensor
    attempt: Tensor
    live: Tensor
    state: State

    def __len__(self) -> int:
        return len(self.example)

    def select(self, which: Tensor) -> Lanes:
        return Lanes(self.example[which], self.attempt[which], self.live[which], self.state.select(which))

    def join(self, other: Lanes) -> Lanes:
        more = other.numbers()
        both = {name: torch.cat([value, more[name]]) for name, value in self.numbers().items()}
        return Lanes(**both, state=self.state.join(other.state))

    def numbers(self) -> dict[str, Tensor]:
        return {"example": self.example, "attempt": self.attempt, "live": self.live}


def run(
    attack: Attack,
    model: Model,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    rng: Rng | None = None,
    *,
    batch_size: int = 256,
    search: Model | None = None,
    each_step: Callable[[int], None] = lambda settled: None,
) -> Outcome:
    """Attack x [N, ...] with labels y until every example is fooled or out of attempts.

    `rng` is as for a call of the attack, `search` as `Engine` has it. `each_step` is called after every step
    with the number of examples settled so far; what it raises ends the run.
    """
    check_counts(batch_size=batch_size)
    with frozen(model):
        engine = Engine(attack, model, x, y, threat, streams(rng, x), batch_size=batch_size, search=search)
        while not engine.finished:
            engine.step()
            each_step(engine.settled)
        return engine.outcome()


@torch.no_grad()
def predict(model: Model, x: Tensor, batch_size: int) -> Tensor:
    """f(x) [N, C], a batch at a time, in full float32: verdicts come from here."""
    with full_float32():
        return torch.cat([model(part) for part in torch.split(x, batch_size)])


class Engine:
    """One attack on one set of examples, a step at a time. The model has to stand still: see `frozen`.

    Claims are found with `search` (a faster form of the model, where one is given) and checked with `model`.
    `logits` are the model's answers f(x), where they are at hand.
    """

    def __init__(
        self,
        attack: Attack,
        model: Model,
        x: Tensor,
        y: Tensor,
        threat: Threat,
        rng: Rng,
        *,
        batch_size: int = 256,
        search: Model | None = None,
        logits: Tensor | None = None,
    ) -> None:
        x = x.detach()
        if x.dtype in (torch.float16, torch.bfloat16):  # rounding would carry honest points out of the ball
            raise DataError(f"images must be float32, got {x.dtype}: let the model convert them")
        check_pixels(x)
        attack.check(threat)
        self.attack, self.model, self.threat = attack, model, threat
        self.search = model if search is None else search
        self.x, self.y, self.rng, self.batch_size = x, y, rng, batch_size
        self.logits = predict(model, x, batch_size) if logits is None else logits
        check_classes(y, self.logits.shape[1])
        attempts = 0 if threat.eps == 0 else attack.attempts(self.logits.shape[1])
        self.log = AttackLog(x, y, self.logits, attempts)
        # Attempts wait in the order (attempt, example); the first of them have been taken.
        self.all, self.taken = len(self.log.to_attack) * attempts, 0
        self.lanes: Lanes | None = None
        self.finishing: list[Lanes] = []  # lanes that are done and await the last look at their points

    @property
    def finished(self) -> bool:
        return self.taken == self.all and self.lanes is None and not self.finishing

    @property
    def settled(self) -> int:
        """Examples whose verdict is known."""
        return len(self.y) - int(self.log.undecided().sum())

    @property
    def robust(self) -> int:
        """Examples that nothing has fooled so far."""
        return self.log.unbeaten()

    @property
    def share_done(self) -> float:
        """How much of the longest course that the attack can still take is over, 0 to 1."""
        left = float(self.log.open_attempts[self.log.undecided()].sum())
        if self.lanes:
            left -= float((self.lanes.state.step[self.lanes.live] / self.attack.steps).clamp(max=1).sum())
        return 1 - max(left, 0.0) / max(self.all, 1)

    def outcome(self) -> Outcome:
        steps, forwards = self.attack.steps, self.attack.forwards
        return self.log.outcome(steps, forwards, steps * forwards + self.attack.looks_at_last)

    def step(self) -> None:
        """Advance all lanes by one step, note what is found, and let waiting attempts in."""
        with full_float32() if self.attack.needs_precision else nullcontext():
            if self.lanes is None:
                self._fill()
            live = self.lanes.live if self.lanes else None
            if self.lanes:
                self._advance(self.lanes)
            if self.finishing:
                self._look_at_last()
            if self.lanes and self.lanes.live is not live:
                self._fill()

    def _fill(self) -> None:
        """Drop dead lanes and start waiting attempts, once there are enough of them to be worth it."""
        if self.lanes:
            live = int(self.lanes.live.sum())
            free = self.batch_size - live if self.taken < self.all else len(self.lanes) - live
            if free * IDLE_LANES < len(self.lanes):
                return
            if live < len(self.lanes):
                self.lanes = self.lanes.select(_where(self.lanes.live)) if live else None
        while self.taken < self.all and (free := self.batch_size - len(self.lanes or ())):
            numbers = torch.arange(self.taken, min(self.taken + free, self.all), device=self.x.device)
            self.taken += len(numbers)
            examples = self.log.to_attack
            example, attempt = examples[numbers % len(examples)], numbers // len(examples)
            needed = _where(self.log.matters(example, attempt))
            if len(needed):
                new = self._start(example[needed], attempt[needed])
                self.lanes = self.lanes.join(new) if self.lanes else new

    def _start(self, example: Tensor, attempt: Tensor) -> Lanes:
        rng = self.rng[example].fold("restart", attempt)
        fresh = NewAttempts(self.x[example], self.y[example], rng, attempt, self.logits[example])
        state = self.attack.start(self.search, fresh, self.threat)
        return Lanes(example, attempt, torch.ones_like(example, dtype=torch.bool), state)

    def _advance(self, lanes: Lanes) -> None:
        try:
            step = self.attack.advance(self.search, lanes.state, self.threat)
            finite(step.logits)
        except NotFinite as error:  # those lanes end their examples; the others take the step again
            bad = lanes.select(_where(error.lanes & lanes.live))
            self._end(bad, bad.state.x_adv, torch.full_like(bad.example, torch.nan, dtype=self.x.dtype))
            kept = _where(lanes.live & ~error.lanes)
            self.lanes = lanes.select(kept) if len(kept) else None
            return
        self._check_claims(lanes, step)
        lanes.state = step.state
        done = _where(self.attack.done(step.state) & lanes.live)
        if len(done):
            ended = lanes.select(done)
            lanes.live = lanes.live.index_fill(0, done, False)
            if not self.attack.looks_at_last:  # the point tried last may lie outside the ball
                x_adv = self.threat.project(step.x_tried[done], ended.state.x)
                ended.state = replace(ended.state, x_adv=x_adv)
            self.finishing.append(ended)

    def _check_claims(self, lanes: Lanes, step: Step) -> None:
        """A claim counts in ball and box, if a separate forward pass bears it out. Other lanes continue."""
        which = _where((step.logits.argmax(1) != lanes.state.y) & lanes.live)
        if len(which):
            which = which[self.threat.contains(step.x_tried[which], lanes.state.x[which])]
        if len(which):
            logits, y = predict(self.model, step.x_tried[which], self.batch_size), lanes.state.y[which]
            wrong = _where(logits.argmax(1) != y)
            which = which[wrong]
            self._end(lanes.select(which), step.x_tried[which], margin(logits, y)[wrong])

    def _end(self, lanes: Lanes, x_adv: Tensor, margins: Tensor) -> None:
        """These lanes end their examples; lanes of later attempts on them are dead."""
        self.log.fooled(lanes.example, lanes.attempt, lanes.state.step, x_adv, margins)
        for others in [self.lanes, *self.finishing]:
            if others:
                others.live = others.live & self.log.matters(others.example, others.attempt)

    def _look_at_last(self) -> None:
        """Query the model at the last points, which a loop of steps never does, once they fill a batch."""
        busy = self.taken < self.all or (self.lanes is not None and bool(self.lanes.live.any()))
        if busy and sum(map(len, self.finishing)) < self.batch_size:
            return
        lanes = reduce(Lanes.join, self.finishing)
        lanes, self.finishing = lanes.select(_where(lanes.live)), []
        if not len(lanes):
            return
        x_adv, y = lanes.state.x_adv, lanes.state.y
        logits = predict(self.model, x_adv, self.batch_size)
        broken = ~logits.isfinite().all(1)
        margins = margin(logits, y).masked_fill(broken, torch.nan)
        over = broken | (self.threat.contains(x_adv, lanes.state.x) & (logits.argmax(1) != y))
        fallen, rest = _where(over), _where(~over)
        self._end(lanes.select(fallen), x_adv[fallen], margins[fallen])
        self.log.withstood(lanes.example[rest], lanes.attempt[rest], x_adv[rest], margins[rest])

    def snapshot(self) -> dict[str, Tensor]:
        """All that a new engine with the same arguments needs to continue with bit-identical results."""
        tensors = self.log.tensors() | {"taken": torch.tensor(self.taken, device="cpu")}
        finishing = reduce(Lanes.join, self.finishing) if self.finishing else None
        for name, lanes in {"lanes": self.lanes, "finishing": finishing}.items():
            if lanes:
                tensors |= {f"{name}.{key}": value for key, value in lanes.numbers().items()}
                tensors |= {f"{name}.state.{key}": value for key, value in lanes.state.tensors().items()}
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from a snapshot."""
        tensors = {name: value.to(self.x.device) for name, value in tensors.items()}
        self.log.restore(tensors)
        self.taken = int(tensors["taken"])
        self.lanes = self._restored("lanes.", tensors)
        finishing = self._restored("finishing.", tensors)
        self.finishing = [finishing] if finishing else []

    def _restored(self, name: str, tensors: Mapping[str, Tensor]) -> Lanes | None:
        own = {k.removeprefix(name): v for k, v in tensors.items() if k.startswith(name)}
        if not own:
            return None
        numbers = own.pop("example"), own.pop("attempt"), own.pop("live")
        like = self._start(numbers[0][:1], numbers[1][:1]).state
        # What an older version did not keep is not there.
        kept: dict[str, Any] = dict.fromkeys(like.tensors())
        kept |= {k.removeprefix("state."): v for k, v in own.items()}
        return Lanes(*numbers, replace(like, **kept))


def _where(mask: Tensor) -> Tensor:
    """The indices at which a mask is true."""
    return mask.nonzero()[:, 0]
