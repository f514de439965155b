"""The lanes engine: run an attack over many examples with every batch full.

A server batches requests of many lengths; we batch attempts. A lane is one attempt on one example. As
soon as an example is fooled, all its later attempts leave, and the next waiting attempts take their place.
Earlier attempts on it that are still under way go on, so that the attempt, step and image that are noted
are always those that attempts made one after the other would have found. Because randomness belongs to
(example, attempt, step), the outcome does not depend on the batch size, the order or an interruption.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atlas.attacks.finite import NotFinite, finite
from atlas.attacks.frozen import Model, frozen
from atlas.attacks.state import Fresh, State, Step
from atlas.objectives import margin
from atlas.rng import Rng
from atlas.threat import Threat, check_pixels

if TYPE_CHECKING:
    from atlas.attacks.attack import Attack

CLEAN = -1
"""The attempt that is noted for an example that was wrong before any attack."""
SURVIVED = -2
"""The attempt that is noted for an example that no attempt has fooled."""
BROKEN = -3
"""The attempt that is noted for an example at which the model gave NaN or infinity."""
NONE = torch.iinfo(torch.int64).max
"""No attempt has ended the example so far."""
IDLE_LANES = 16
"""Dead lanes are replaced once they are one in so many: one by one would cost more than it saves."""
RESULTS = ("ended_by", "at_step", "margin", "broken", "x_adv", "open_attempts")
"""What the engine knows of each example."""


@dataclass(frozen=True)
class Outcome:
    """What became of each example; all tensors have the example first."""

    attempt: Tensor
    """Which attempt fooled it, int64 [N]; or CLEAN, SURVIVED or BROKEN."""
    step: Tensor
    """At which step of that attempt, int64 [N]; -1 where none did."""
    margin: Tensor
    """max_{i != y} f_i - f_y, [N]: at the image that fools; else the largest at the end of any attempt."""
    queries: Tensor
    """Forward passes that the attempts up to that one took, int64 [N]."""
    x_adv: Tensor
    """The image that fools the model; where none was found, the end of the last attempt."""

    @property
    def robust(self) -> Tensor:
        """Right on the clean image and under every attempt, bool [N]."""
        return self.attempt == SURVIVED

    @property
    def clean(self) -> Tensor:
        """Right on the clean image, bool [N]."""
        return self.attempt != CLEAN

    @property
    def broken(self) -> Tensor:
        """Met by NaN or infinity, so that nothing can be said of them, bool [N]."""
        return self.attempt == BROKEN


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
    with frozen(model):
        engine = Engine(attack, model, x, y, threat, rng, batch_size=batch_size)
        while not engine.finished:
            engine.step()
            each_step(engine.settled)
        return engine.outcome()


@torch.no_grad()
def ask(model: Model, x: Tensor, batch_size: int) -> Tensor:
    """f(x) [N, C], a batch at a time."""
    return torch.cat([model(part) for part in torch.split(x, batch_size)])


@dataclass
class Lanes:
    """The attempts under way: whose and which each is, whether it still counts, and the attack's state."""

    example: Tensor
    attempt: Tensor
    live: Tensor
    state: State

    def __len__(self) -> int:
        return len(self.example)

    def select(self, which: Tensor) -> Lanes:
        return Lanes(self.example[which], self.attempt[which], self.live[which], self.state.select(which))

    def join(self, other: Lanes) -> Lanes:
        return Lanes(
            torch.cat([self.example, other.example]),
            torch.cat([self.attempt, other.attempt]),
            torch.cat([self.live, other.live]),
            self.state.join(other.state),
        )

    def tensors(self) -> dict[str, Tensor]:
        own = {"example": self.example, "attempt": self.attempt, "live": self.live}
        return own | {f"state.{name}": value for name, value in self.state.tensors().items()}


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
        check_pixels(x)
        self.attack, self.model, self.search, self.threat = attack, model, search or model, threat
        self.x, self.y, self.rng, self.batch_size = x, y, rng, batch_size
        self.logits = ask(model, x, batch_size) if logits is None else logits
        self.attempts = 0 if threat.eps == 0 else attack.attempts(self.logits.shape[1])
        self.broken = ~self.logits.isfinite().all(1)
        self.wrong = (self.logits.argmax(1) != y) & ~self.broken
        self.standing = (~self.wrong & ~self.broken).nonzero()[:, 0]
        self.ended_by = torch.full_like(y, NONE)
        self.at_step = torch.full_like(y, -1)
        self.margin = margin(self.logits, y)
        self.x_adv = x.clone()
        self.open_attempts = torch.zeros_like(y)
        self.open_attempts[self.standing] = self.attempts
        if self.attempts:
            self.margin[self.standing] = -torch.inf
        # Attempts wait in the order (attempt, example); this many have been taken.
        self.taken = 0
        self.lanes: Lanes | None = None
        # Lanes that are done and await the last look at their points.
        self.finishing: list[Lanes] = []

    @property
    def waiting(self) -> bool:
        return self.taken < len(self.standing) * self.attempts

    @property
    def finished(self) -> bool:
        return not self.waiting and self.lanes is None and not self.finishing

    @property
    def settled(self) -> int:
        """Examples whose verdict is known."""
        return len(self.y) - int(self._undecided().sum())

    @property
    def robust(self) -> int:
        """Examples that no attempt has fooled so far."""
        return int((self.ended_by[self.standing] == NONE).sum())

    @property
    def share_done(self) -> float:
        """How much of the longest course that the attack can still take is over, 0 to 1."""
        left = float(self.open_attempts[self._undecided()].sum())
        if self.lanes:
            left -= float((self.lanes.state.step[self.lanes.live] / self.attack.steps).clamp(max=1).sum())
        return 1 - max(left, 0.0) / max(len(self.standing) * self.attempts, 1)

    def _undecided(self) -> Tensor:
        return (self.open_attempts > 0) & (self.ended_by == NONE)

    def step(self) -> None:
        """Advance all lanes by one step, note what is found, and let waiting attempts in."""
        self._fill()
        if self.lanes:
            self._advance(self.lanes)
        self._look_at_last()
        self._fill()

    def outcome(self) -> Outcome:
        attempt = torch.where(self.ended_by == NONE, SURVIVED, self.ended_by)
        attempt = torch.where(self.wrong, CLEAN, torch.where(self.broken, BROKEN, attempt))
        whole = self.attack.steps * self.attack.forwards + self.attack.looks_at_last
        queries = attempt * whole + (self.at_step + 1) * self.attack.forwards
        queries = torch.where(attempt == SURVIVED, self.attempts * whole, queries)
        queries = torch.where((attempt == CLEAN) | (attempt == BROKEN), 0, queries)
        return Outcome(attempt, self.at_step, self.margin, queries, self.x_adv)

    def _fill(self) -> None:
        """Drop dead lanes and start waiting attempts, once there are enough of them to be worth it."""
        if self.lanes:
            live = int(self.lanes.live.sum())
            room = self.batch_size - live if self.waiting else len(self.lanes) - live
            if room * IDLE_LANES < len(self.lanes):
                return
            if live < len(self.lanes):
                self.lanes = self.lanes.select(self.lanes.live.nonzero()[:, 0]) if live else None
        while self.waiting and (room := self.batch_size - len(self.lanes or ())):
            self._start(room)

    def _start(self, room: int) -> None:
        """Take up to `room` waiting attempts, and start those that still matter."""
        count = len(self.standing)
        end = min(self.taken + room, count * self.attempts)
        numbers = torch.arange(self.taken, end, device=self.x.device)
        self.taken = end
        example, attempt = self.standing[numbers % count], numbers // count
        wanted = self.ended_by[example] > attempt
        if wanted.any():
            fresh = self._new(example[wanted], attempt[wanted])
            self.lanes = self.lanes.join(fresh) if self.lanes else fresh

    def _new(self, example: Tensor, attempt: Tensor) -> Lanes:
        rng = self.rng[example].fold("restart", attempt)
        fresh = Fresh(self.x[example], self.y[example], rng, attempt, self.logits[example])
        state = self.attack.start(self.search, fresh, self.threat)
        return Lanes(example, attempt, torch.ones_like(example, dtype=torch.bool), state)

    def _advance(self, lanes: Lanes) -> None:
        try:
            step = self.attack.advance(self.search, lanes.state, self.threat)
            finite(step.logits)
        except NotFinite as error:
            bad = lanes.select((error.lanes & lanes.live).nonzero()[:, 0])
            self._note(bad, bad.state.x_adv, torch.full_like(bad.example, torch.nan, dtype=self.x.dtype))
            kept = (lanes.live & ~error.lanes).nonzero()[:, 0]
            self.lanes = lanes.select(kept) if len(kept) else None
            return
        self._note_claims(lanes, step)
        lanes.state = step.state
        done = (self.attack.done(step.state) & lanes.live).nonzero()[:, 0]
        if len(done):
            self._finish(lanes, done, step)

    def _note_claims(self, lanes: Lanes, step: Step) -> None:
        """A claim counts if it is in ball and box and a separate forward pass bears it out. Other lanes go on."""
        which = ((step.logits.argmax(1) != lanes.state.y) & lanes.live).nonzero()[:, 0]
        if len(which):
            which = which[self.threat.contains(step.x_tried[which], lanes.state.x[which])]
        if len(which):
            logits = ask(self.model, step.x_tried[which], self.batch_size)
            wrong = logits.argmax(1) != lanes.state.y[which]
            which, logits = which[wrong], logits[wrong]
            self._note(lanes.select(which), step.x_tried[which], margin(logits, lanes.state.y[which]))

    def _note(self, lanes: Lanes, x_adv: Tensor, margins: Tensor) -> None:
        """These attempts end their examples: fooled, or broken where the margin is NaN.

        Of several attempts on an example the earliest counts, and the later ones are dead.
        """
        earlier = lanes.attempt < self.ended_by[lanes.example]
        self.ended_by.scatter_reduce_(0, lanes.example, lanes.attempt, "amin")
        which = (earlier & (lanes.attempt == self.ended_by[lanes.example])).nonzero()[:, 0]
        example = lanes.example[which]
        self.at_step[example] = lanes.state.step[which]
        self.margin[example] = margins[which].to(self.margin.dtype)
        self.broken[example] = margins[which].isnan()
        self.x_adv[example] = x_adv[which]
        for others in [self.lanes, *self.finishing]:
            if others:
                others.live = others.live & (self.ended_by[others.example] > others.attempt)

    def _finish(self, lanes: Lanes, done: Tensor, step: Step) -> None:
        """Lanes that are done await the last look at their points, or end where the model was asked last."""
        ended = lanes.select(done)
        lanes.live = lanes.live.index_fill(0, done, False)
        if self.attack.looks_at_last:
            self.finishing.append(ended)
        else:
            x_adv = self.threat.project(step.x_tried[done], ended.state.x)
            self._end(ended, x_adv, margin(step.logits[done], ended.state.y))

    def _look_at_last(self) -> None:
        """Ask the model at the last points, which a loop of steps never does, once they fill a batch."""
        busy = self.waiting or (self.lanes is not None and bool(self.lanes.live.any()))
        if not self.finishing or (busy and sum(map(len, self.finishing)) < self.batch_size):
            return
        lanes = reduce(Lanes.join, self.finishing)
        self.finishing = []
        lanes = lanes.select(lanes.live.nonzero()[:, 0])
        if len(lanes):
            self._judge(lanes)

    def _judge(self, lanes: Lanes) -> None:
        x_adv, y = lanes.state.x_adv, lanes.state.y
        logits = ask(self.model, x_adv, self.batch_size)
        broken = ~logits.isfinite().all(1)
        margins = margin(logits, y).masked_fill(broken, torch.nan)
        fooled = self.threat.contains(x_adv, lanes.state.x) & (logits.argmax(1) != y)
        for over, note in ((fooled | broken, self._note), (~(fooled | broken), self._end)):
            which = over.nonzero()[:, 0]
            note(lanes.select(which), x_adv[which], margins[which])

    def _end(self, lanes: Lanes, x_adv: Tensor, margins: Tensor) -> None:
        """These attempts are over and have fooled nobody."""
        self.open_attempts.index_add_(0, lanes.example, torch.full_like(lanes.example, -1))
        alive = (self.ended_by[lanes.example] == NONE).nonzero()[:, 0]
        highest = margins[alive].to(self.margin.dtype)
        self.margin.scatter_reduce_(0, lanes.example[alive], highest, "amax")
        last = alive[lanes.attempt[alive] == self.attempts - 1]
        self.x_adv[lanes.example[last]] = x_adv[last]

    def snapshot(self) -> dict[str, Tensor]:
        """All that a new engine of the same arguments needs to go on from here to the same bits."""
        tensors = {name: getattr(self, name) for name in RESULTS} | {"taken": torch.tensor(self.taken)}
        finishing = reduce(Lanes.join, self.finishing) if self.finishing else None
        for name, lanes in {"lanes": self.lanes, "finishing": finishing}.items():
            if lanes:
                tensors |= {f"{name}.{key}": value for key, value in lanes.tensors().items()}
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from a snapshot."""
        for name in RESULTS:
            setattr(self, name, tensors[name].to(self.x.device))
        self.taken = int(tensors["taken"])
        self.lanes = self._restored("lanes.", tensors)
        finishing = self._restored("finishing.", tensors)
        self.finishing = [finishing] if finishing else []

    def _restored(self, prefix: str, tensors: Mapping[str, Tensor]) -> Lanes | None:
        found = {
            k.removeprefix(prefix): v.to(self.x.device) for k, v in tensors.items() if k.startswith(prefix)
        }
        if not found:
            return None
        state = {k.removeprefix("state."): v for k, v in found.items() if k.startswith("state.")}
        like = self._new(found["example"][:1], found["attempt"][:1]).state
        return Lanes(found["example"], found["attempt"], found["live"], replace(like, **state))
