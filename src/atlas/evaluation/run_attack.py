"""A model under attack: what is refused beforehand, its answers, an engine for each attack, and progress."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn

from atlas.attacks import Attack, Model, NotFinite, Transfer, frozen
from atlas.attacks.engine import Engine, predict
from atlas.attacks.gradients import check_gradients, has_gradients, input_gradients
from atlas.attacks.inputs import answer
from atlas.attacks.model_variants import averaged, searched
from atlas.data import Images
from atlas.errors import DataError, is_out_of_memory
from atlas.evaluation.flags import Flag
from atlas.evaluation.plan import Plan
from atlas.evaluation.probes import POOL, changed, probe
from atlas.models.user_model import InDtype, weight_dtype
from atlas.objectives import margin
from atlas.rng import Rng
from atlas.signals import Requests
from atlas.terminal import Terminal, share_bars

GRADIENTS = 8
"""Images whose gradients are kept, to know the model again by."""
TURNED = 0.1
"""Gradients of one model may differ by this share, all together: rounding turns a few units on or off."""
REFRESH_SECONDS = 0.2


class AttackedModel:
    """The model under attack and its images, on its device, with its answers to the clean ones.

    What cannot be attacked as planned is refused here, before any time is spent.
    """

    def __init__(
        self, model: Model, images: Images, plan: Plan, batch_size: int, requests: Requests = Requests()
    ) -> None:
        weights = next(model.parameters(), None) if isinstance(model, nn.Module) else None
        device = torch.device("cpu") if weights is None else weights.device
        self.x, self.y = images.pixels(slice(None), device), images.y.to(device)
        self.rng = Rng.lanes(plan.seed, images.ids.to(device)).fold("evaluation")
        self.plan, self.batch_size, self.requests = plan, batch_size, requests
        model = _in_float32(model, self.x)
        check_model(model, self.x, images)
        self.model = averaged(model, plan.eot)
        for attack in plan.attacks.values():
            attack.check(plan.threat)
            for surrogate in attack.surrogates if isinstance(attack, Transfer) else ():
                check_model(surrogate, self.x, images)
            check_gradients(self.model, attack, self.x)
        self.search = averaged(searched(model, plan.attack_dtype), plan.eot)
        """The form in which attacks search that need no precision; `model` checks what they find."""
        self.logits = predict(self._interruptible(self.model), self.x, batch_size)
        self.first: Tensor | None = self.logits[: max(POOL // batch_size, 1) * batch_size]
        """Its answers at the start to the first clean images, in whole batches; None where it is random."""
        if plan.eot > 1 or self.changes("at once"):
            self.first = None

    def _interruptible(self, model: Model) -> Model:
        """The model, which leaves at its next pass after a signal: where there is nothing to save."""

        def predict(x: Tensor) -> Tensor:
            self.requests.check()
            return model(x)

        return predict

    def probe(self) -> list[Flag]:
        """The flags that the model raises before any attack."""
        return probe(
            self._interruptible(self.model),
            self.x,
            self.y,
            self.plan.threat,
            rng=self.rng,
            eot=self.plan.eot > 1,
            batch_size=self.batch_size,
        )

    def changes(self, since: str) -> list[Flag]:
        """The flag of a model that does not answer the clean images as it did at the start."""
        if self.first is None:
            return []
        return changed(self.first, predict(self.model, self.x[: len(self.first)], self.batch_size), since)

    def gradients(self) -> Tensor | None:
        """The margin's at the first images, [K, ...]; None where there are none, or others each time."""
        x, y = self.x[:GRADIENTS], self.y[:GRADIENTS]
        if not has_gradients(self.model, x[:1]):
            return None
        with suppress(NotFinite):
            one, two = (input_gradients(self.model, x, y, margin, self.batch_size) for _ in range(2))
            return None if far_apart(one, two) else one.cpu()
        return None

    def surrogate_answers(self, attack: Transfer) -> Tensor:
        """The answers of all its surrogates to the clean images, side by side: [N, classes]."""
        answers = []
        for surrogate in attack.surrogates:
            with frozen(surrogate):
                answers.append(predict(self._interruptible(surrogate), self.x, self.batch_size).float().cpu())
        return torch.cat(answers, 1)

    def under(self, attack: Attack, tried: Tensor) -> Engine:
        """The attack on the images of the mask `tried`."""
        which = tried.nonzero()[:, 0].to(self.x.device)
        return Engine(
            attack,
            self.model,
            self.x[which],
            self.y[which],
            self.plan.threat,
            self.rng[which],
            batch_size=self.batch_size,
            search=self.model if attack.needs_precision else self.search,
            logits=self.logits[which],
        )


def far_apart(a: Tensor, b: Tensor) -> bool:
    """Whether gradients differ by more than rounding makes them."""
    return bool((a - b).norm() > TURNED * torch.maximum(a.norm(), b.norm()))


@torch.no_grad()
def _in_float32(model: Model, x: Tensor) -> Model:
    """The model, behind a conversion where its weights have another precision and it does not convert."""
    dtype = weight_dtype(model)
    if not isinstance(model, nn.Module) or dtype == torch.float32:
        return model
    try:
        if model(x[:1]).dtype == torch.float32:
            return model
    except Exception as error:  # of torch, about the precision; another one is raised again behind it
        if is_out_of_memory(error):
            raise
    return InDtype(model, dtype)


def check_model(model: Model, x: Tensor, images: Images) -> None:
    """Refuse a model that does not give logits of the classes of these images, at x on its device.

    It is asked at two images, and is as it was before. NaN in its outputs is not refused but flagged
    (`atlas.evaluation.probes`).
    """
    classes, largest = answer(model, x[:2]).shape[1], int(images.y.max())
    if classes <= largest:
        raise DataError(
            f"y: labels go up to {largest} and the model has {classes} classes, expected labels 0 to "
            f"{classes - 1}: is it the model of this data set?"
            + (f" Or is there a class too many? {images.empty_classes}" if images.empty_classes else "")
        )


class AttackProgress:
    """A bar for the current attack on a terminal; a line for each attack everywhere."""

    def __init__(self, *, shown: bool) -> None:
        self.console = Terminal(stderr=True, quiet=not shown)
        self.bars = share_bars(self.console)
        self.task = self.bars.add_task("", total=1.0, visible=False)
        self.label, self.shown_at = "", 0.0

    def begin(self, label: str) -> None:
        self.label = label
        self.bars.reset(self.task, description=label, completed=0, visible=True)

    def show(self, engine: Engine) -> None:
        """Where the attack is. Asking the engine costs a little, so not at every step."""
        now = time.monotonic()
        if now - self.shown_at < REFRESH_SECONDS:
            return
        self.shown_at = now
        if not self.bars.disable:
            text = f"{self.label}  {engine.robust} of {len(engine.y)} still right"
            self.bars.update(self.task, description=text, completed=engine.share_done)

    def end(self, engine: Engine, seconds: float) -> None:
        self.bars.update(self.task, visible=False)
        self.say(f"{self.label}: {engine.robust} of {len(engine.y)} images still right, {seconds:.0f} s")

    def warn(self, flags: Sequence[Flag]) -> None:
        """What nobody must miss is said at once, because attacks take long; also where nothing is shown."""
        for flag in flags:
            if flag.fatal:
                self.say(f"the result will be invalid: {flag.name}: {flag.message}", "bold red")
            elif flag.grave:
                text = f"{flag.word}: {flag.name}: {flag.message}"
                if self.console.quiet:
                    warnings.warn(text, stacklevel=2)
                self.say(text, "bold red")

    def say(self, text: str, style: str | None = None) -> None:
        self.console.say(text, style)
