"""One attack from its start, or from where it was left, to its end."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from atlas.attacks import Attack, Model, Transfer
from atlas.attacks.engine import Engine, predict
from atlas.attacks.gradients import check_gradients
from atlas.attacks.inputs import answer
from atlas.attacks.model_variants import averaged, searched
from atlas.data import Images
from atlas.data.images import describe
from atlas.errors import DataError, Interrupted, is_out_of_memory
from atlas.evaluation.evaluation_folder import EvaluationFolder
from atlas.evaluation.flags import Flag
from atlas.evaluation.plan import Plan
from atlas.evaluation.probes import POOL, changed
from atlas.models.user_model import InDtype, weight_dtype
from atlas.rng import Rng
from atlas.signals import Requests
from atlas.terminal import Terminal, share_bars
from atlas.threat import Threat, check_threat

SAVE_SHARE = 0.05
"""Saving takes at most this share of the time: large states are saved less often."""


@dataclass(frozen=True)
class AttackedModel:
    """The model under attack and its images, on its device, with its answers to the clean ones."""

    model: Model
    search: Model
    """The form of the model in which attacks search that need no precision; `model` checks what they find."""
    x: Tensor
    y: Tensor
    logits: Tensor
    rng: Rng
    plan: Plan
    batch_size: int
    first: Tensor | None
    """Its answers at the start to the first clean images, in whole batches; None where it is random."""

    @classmethod
    def of(
        cls, model: Model, images: Images, plan: Plan, batch_size: int, requests: Requests = Requests()
    ) -> AttackedModel:
        """What cannot be attacked as planned is refused here, before any time is spent."""
        device = device_of(model)
        x, y = images.pixels(slice(None), device), images.y.to(device)
        rng = Rng.lanes(plan.seed, images.ids.to(device)).fold("evaluation")
        model = _in_float32(model, x)
        check_inputs(model, x, y, plan.threat)
        asked = averaged(model, plan.eot)
        for attack in plan.attacks.values():
            attack.check(plan.threat)
            for surrogate in attack.surrogates if isinstance(attack, Transfer) else ():
                check_inputs(surrogate, x, y, plan.threat)
            check_gradients(asked, attack, x)
        search = averaged(searched(model, plan.attack_dtype), plan.eot)
        logits = predict(interruptible(asked, requests), x, batch_size)
        attacked = cls(asked, search, x, y, logits, rng, plan, batch_size, None)
        first = logits[: max(POOL // batch_size, 1) * batch_size]
        random = plan.eot > 1 or changed(first, attacked.ask_again(len(first)), "at once")
        return attacked if random else replace(attacked, first=first)

    def ask_again(self, count: int) -> Tensor:
        """The model's answers to the first clean images, [count, C]."""
        return predict(self.model, self.x[:count], self.batch_size)

    def changes(self, since: str) -> list[Flag]:
        """The flag of a model that does not answer the clean images as it did at the start."""
        return [] if self.first is None else changed(self.first, self.ask_again(len(self.first)), since)

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


def interruptible(model: Model, requests: Requests) -> Model:
    """The model, which leaves at its next pass where a signal has come in: where there is nothing to save."""

    def predict(x: Tensor) -> Tensor:
        requests.check()
        return model(x)

    return predict


def device_of(model: Model) -> torch.device:
    """Where the model's weights are; the CPU for a function."""
    weights = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return torch.device("cpu") if weights is None else weights.device


def finish(
    label: str,
    engine: Engine,
    place: EvaluationFolder | None,
    display: AttackProgress,
    requests: Requests,
    save_seconds: float,
) -> float:
    """Run the engine to its end, saved now and then and at a signal; the seconds over all interruptions."""
    before = 0.0
    if place and (state := place.load_state(label)):
        tensors, before = state
        engine.restore(tensors)
    began = saved = time.monotonic()
    pause = save_seconds
    display.begin(label)
    while not engine.finished:
        engine.step()
        display.show(engine)
        now = time.monotonic()
        if place and (requests.caught is not None or now - saved >= pause):
            place.save_state(label, engine.snapshot(), before + now - began)
            saved = time.monotonic()
            pause = max(save_seconds, (saved - now) / SAVE_SHARE)
        if requests.caught is not None:
            raise Interrupted(requests.caught)
    seconds = before + time.monotonic() - began
    display.end(engine, seconds)
    return seconds


REFRESH_SECONDS = 0.2


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

    def warn(self, text: str) -> None:
        """What nobody must miss: as a Python warning where nothing is shown."""
        if self.console.quiet:
            warnings.warn(text, stacklevel=2)
        self.say(text, style="bold red")

    def say(self, text: str, style: str | None = None) -> None:
        self.console.say(text, style)


def check_inputs(model: Model, x: Tensor, y: Tensor, threat: Threat) -> None:
    """Refuse images, labels, a model or a threat that no attack can work with.

    x: floats in [0, 1], [N, C, H, W]; y: int64 [N], 0 .. classes - 1. The model is asked at two images, and
    is as it was before. NaN in its outputs is not refused but flagged (`atlas.evaluation.probes`).
    """
    check_threat(threat)
    for name, value in {"x": x, "y": y}.items():
        if not isinstance(value, Tensor):
            raise DataError(
                f"{name} must be a tensor, got a {type(value).__name__}: as_images converts arrays"
            )
    if not x.is_floating_point():
        raise DataError(f"x must be floats in [0, 1], got {describe(x)}: divide by 255")
    whole = y.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64) and len(y) > 0
    largest = int(y.max()) if whole else 0
    images = Images(x.detach().to("cpu", torch.float32), y.cpu(), largest + 1)
    classes = answer(model, x[:2]).shape[1]
    if classes <= largest:
        raise DataError(
            f"y: labels go up to {largest} and the model has {classes} classes, expected labels 0 to "
            f"{classes - 1}: is it the model of this data set?"
            + (f" Or is there a class too many? {images.empty_classes}" if images.empty_classes else "")
        )
