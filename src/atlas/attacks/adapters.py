"""Other people's attack objects (torchattacks, foolbox, ART) as attacks of ours, for the same tables.

None of these libraries is imported here: an object is known by the module of its class, and whoever made it
has imported its library.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from atlas.attacks.attack import Attack, Model, NewAttempts, State, Step
from atlas.errors import UsageError
from atlas.threat import L2, Linf, Threat

LIBRARIES = ("torchattacks", "foolbox", "art")
NORMS: dict[str, type[Threat]] = {"linf": Linf, "inf": Linf, "l2": L2, "2": L2, "2.0": L2}
"""What an attack's own norm may be called."""


def adapt(theirs: Any, name: str | None = None, *, white_box: bool = True) -> Adapted:
    """An attack object of torchattacks, foolbox or ART as an attack of ours.

        attack = atlas.attacks.adapt(torchattacks.PGD(model, eps=8 / 255, steps=20))
        report = atlas.evaluate(model, images, Linf(8 / 255), attacks={"their PGD": attack})

    What it says of its success is not asked: each image that it hands back is verified like any other, and
    one outside the ball is drawn back to it first.
    A torchattacks object is lent the model under attack for each batch, whatever model it was made with, and
    foolbox takes model and eps with each call. **An ART attack owns its model**: it needs an estimator of
    ART, so make that of the model which is evaluated; with another one this is a transfer attack. With
    `white_box=False` it is one that only asks the model.
    """
    kind = Adapted if white_box else AdaptedBlackBox
    return kind(theirs, name or f"{_library(theirs)}.{type(theirs).__name__}")


@dataclass(frozen=True, repr=False)
class Adapted(Attack[State]):
    """One step in which a foreign object attacks the whole batch of lanes.

    It works on a batch at a time and **its randomness is its own**: its images may depend on the batch size,
    on the order and on what was drawn before, and a killed evaluation begins its batch again. It counts as
    one query, the one that verifies: what it asks on its own is not counted. It comes from no table of a
    configuration, so it is in no registry.
    """

    theirs: Any
    name: str
    steps: int = field(default=1, init=False)
    counts_steps: ClassVar[bool] = False
    looks_at_last: ClassVar[bool] = False

    def __post_init__(self) -> None:
        # With true labels in the place of targets such an attack would pull images to where they are.
        mode = str(getattr(self.theirs, "attack_mode", ""))
        if getattr(self.theirs, "targeted", False) is True and mode in ("", "targeted(label)"):
            raise UsageError(f"{self.name} is targeted and needs target labels; make it untargeted")
        _library(self.theirs)
        super().__post_init__()

    def __repr__(self) -> str:
        """Its name and its own description, without the addresses of objects, which change with each run."""
        return f"{self.name}: {re.sub(r' at 0x[0-9a-fA-F]+', '', repr(self.theirs))}"

    def check(self, threat: Threat) -> None:
        """Refuse an attack made for another radius or norm: it would find too little or nothing."""
        super().check(threat)
        eps = getattr(self.theirs, "eps", None)
        if isinstance(eps, int | float) and abs(eps - threat.eps) > 1e-6 * max(1.0, threat.eps):
            raise UsageError(f"{self.name} was made with eps {eps}, expected that of {threat}")
        norm = getattr(self.theirs, "norm", getattr(getattr(self.theirs, "distance", None), "p", None))
        if not isinstance(threat, NORMS.get(str(norm).lower(), Threat)):
            raise UsageError(f"{self.name} was made for the norm {norm}, expected that of {threat}")

    def start(self, model: Model, fresh: NewAttempts, threat: Threat) -> State:
        return State(fresh.x, fresh.y, fresh.x.clone(), fresh.no_steps())

    def advance(self, model: Model, state: State, threat: Threat) -> Step[State]:
        with torch.enable_grad():
            x_adv = self._craft(Lent(model), state.x.clone(), state.y.clone(), threat)
        if x_adv.shape != state.x.shape:
            raise UsageError(
                f"{self.name} must return images of shape {tuple(state.x.shape)}, got {tuple(x_adv.shape)}"
            )
        x_adv = x_adv.detach().to(state.x)
        # NaN in their images says nothing about the model.
        x_adv = torch.where(x_adv.isfinite(), x_adv, state.x)
        with torch.no_grad():
            logits = model(x_adv)
        return Step(replace(state, x_adv=x_adv, step=state.step + 1), x_adv, logits)

    def _craft(self, model: Lent, x: Tensor, y: Tensor, threat: Threat) -> Tensor:
        library = _library(self.theirs)
        if library == "art":
            return torch.from_numpy(self.theirs.generate(x=x.cpu().numpy(), y=y.cpu().numpy()))
        if library == "foolbox":
            wrapped = sys.modules["foolbox"].PyTorchModel(model, bounds=(0, 1), device=x.device)
            return self.theirs(wrapped, x, y, epsilons=threat.eps)[1]  # type: ignore[no-any-return]
        own = self.theirs.model
        self.theirs.set_model(model)
        try:
            return self.theirs(x, y)  # type: ignore[no-any-return]
        finally:
            self.theirs.set_model(own)


class AdaptedBlackBox(Adapted):
    """The same, for an object that needs no gradients."""

    white_box: ClassVar[bool] = False


class Lent(nn.Module):
    """The model under attack as a module whose modes and weights the borrower cannot reach."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.ask = (model,)  # in a tuple, so that it is no part of this module
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.ask[0](x)


def _library(theirs: Any) -> str:
    """Which library the object is of; its class may be derived from one of the library's."""
    for kind in type(theirs).__mro__:
        library = kind.__module__.partition(".")[0]
        if library in LIBRARIES:
            return library
    got = f"{type(theirs).__module__}.{type(theirs).__qualname__}"
    raise UsageError(
        f"cannot adapt a {got}, expected an attack object of {', '.join(LIBRARIES)}. "
        "Another attack is adapted by a subclass of atlas.attacks.Attack of a few lines"
    )
