"""The same attacks by other libraries, called as their users would call them, with our budgets.

Each library is one function: it reads the budget from our attacks and returns x_adv [N, ...]. Several attacks
are a chain, each on what those before it have left. A library is imported when it first runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from math import inf
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atlas.attacks import APGD, PGD, Attack, Square, TargetedAPGD, TargetedFAB, Untargeted
from atlas.data import Images

RESTART_STEP = 0.25
"""In Un-T, the step in units of eps of peers whose steps do not shrink. With 1/30 or 1/10 they find less."""
PACKAGES = {
    "torchattacks": "torchattacks",
    "foolbox": "foolbox",
    "ART": "adversarial-robustness-toolbox",
    "adv-lib": "adv-lib",
    "pyautoattack": "pyautoattack",
}
"""Their names on PyPI."""


def versions() -> dict[str, str | None]:
    """The version of every package; None if it is not installed."""
    found: dict[str, str | None] = dict.fromkeys(PACKAGES.values())
    for package in found:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def installed(peer: str) -> bool:
    return peer not in PACKAGES or versions()[PACKAGES[peer]] is not None


@dataclass(frozen=True)
class AttackTask:
    """A frozen model, images in batches, and a radius in L-inf."""

    model: nn.Module
    images: Images
    x: Tensor
    """The images as floats, on the model's device."""
    y: Tensor
    eps: float
    batch_size: int
    seed: int = 0

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(torch.split(self.x, self.batch_size), torch.split(self.y, self.batch_size), strict=True)

    def each(self, attack: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """What the attack makes of one batch after the other."""
        return torch.cat([attack(x, y) for x, y in self.batches()])

    def step_of(self, attack: PGD | Untargeted) -> float:
        """The length of the attack's steps in pixels."""
        if isinstance(attack, Untargeted):
            return RESTART_STEP * self.eps
        return attack.step_size or (attack.relative_step or 2.5 / attack.steps) * self.eps

    def targets_of(self, attack: TargetedAPGD | TargetedFAB) -> int:
        return min(attack.targets, self.images.num_classes - 1)


def signed_steps(
    loss: Callable[[Tensor], Tensor], x: Tensor, x_adv: Tensor, eps: float, step: float, steps: int
) -> Tensor:
    """PGD in L-inf as one writes it in a notebook, from x_adv; the loss is a function of x'."""
    for _ in range(steps):
        x_adv.requires_grad_()
        (gradient,) = torch.autograd.grad(loss(x_adv), x_adv)
        x_adv = x_adv.detach() + step * gradient.sign()
        x_adv = torch.clamp(x_adv, x - eps, x + eps).clamp(0, 1)
    return x_adv


def plain_loop(task: AttackTask, attack: PGD) -> Tensor:
    def climb(x: Tensor, y: Tensor) -> Tensor:
        start = (x + torch.empty_like(x).uniform_(-task.eps, task.eps)).clamp(0, 1)
        rest = (task.eps, task.step_of(attack), attack.steps)
        return signed_steps(lambda x_adv: F.cross_entropy(task.model(x_adv), y), x, start, *rest)

    return task.each(climb)


def torchattacks(task: AttackTask, *attacks: Attack) -> Tensor:
    """Its own AutoAttack has stages of ten steps, so a chain is put together from its parts."""
    library = import_module("torchattacks")
    rest: dict[str, Any] = {"norm": "Linf", "eps": task.eps, "seed": task.seed}

    def stage(attack: Attack) -> Any:
        match attack:
            case PGD():
                return library.PGD(task.model, task.eps, task.step_of(attack), attack.steps)
            case Untargeted():
                settings = (task.model, task.eps, task.step_of(attack), attack.steps)
                return library.MultiAttack([library.PGD(*settings) for _ in range(attack.restarts)])
            case APGD():
                return library.APGD(task.model, steps=attack.steps, loss=attack.loss, **rest)
            case TargetedAPGD():
                classes = task.targets_of(attack) + 1
                return library.APGDT(task.model, steps=attack.steps, n_classes=classes, **rest)
            case TargetedFAB():
                many = {"multi_targeted": True, "n_classes": task.targets_of(attack) + 1}
                return library.FAB(task.model, steps=attack.steps, **many, **rest)
            case Square():
                # By default it stretches the shrinking of the squares to its budget; AutoAttack does not.
                return library.Square(task.model, n_queries=attack.queries, resc_schedule=False, **rest)
        raise NotImplementedError(f"torchattacks has no {type(attack).__name__}")

    stages = [stage(attack) for attack in attacks]
    return task.each(library.MultiAttack(stages) if len(stages) > 1 else stages[0])


def foolbox(task: AttackTask, attack: PGD | Untargeted) -> Tensor:
    library = import_module("foolbox")
    model = library.PyTorchModel(task.model, bounds=(0, 1), device=task.x.device)
    once = library.attacks.LinfPGD(steps=attack.steps, abs_stepsize=task.step_of(attack), random_start=True)
    repeated = once.repeat(attack.restarts) if isinstance(attack, Untargeted) else once
    return task.each(lambda x, y: repeated(model, x, y, epsilons=task.eps)[1])


def art(task: AttackTask, attack: Attack) -> Tensor:
    """The Adversarial Robustness Toolbox. It makes batches itself, of numpy arrays."""
    module, rest = "projected_gradient_descent.projected_gradient_descent_pytorch", dict[str, Any]()
    match attack:
        case PGD() | Untargeted():
            name, times = "ProjectedGradientDescentPyTorch", getattr(attack, "restarts", 1)
            rest = {"eps_step": task.step_of(attack), "max_iter": attack.steps, "num_random_init": times}
        case APGD():
            module, name = "auto_projected_gradient_descent", "AutoProjectedGradientDescent"
            rest = {"max_iter": attack.steps, "eps_step": 2 * task.eps, "nb_random_init": 1}
            rest |= {"loss_type": "cross_entropy"}
        case Square():
            module, name, rest = "square_attack", "SquareAttack", {"max_iter": attack.queries}
    make = getattr(import_module(f"art.attacks.evasion.{module}"), name)
    rest |= {"norm": np.inf, "eps": task.eps, "batch_size": task.batch_size, "verbose": False}
    made = make(art_classifier(task.model, task.x, task.images.num_classes), **rest)
    return torch.from_numpy(made.generate(task.x.cpu().numpy(), task.y.cpu().numpy())).to(task.x)


def art_classifier(model: nn.Module, x: Tensor, classes: int, **rest: Any) -> Any:
    return import_module("art.estimators.classification").PyTorchClassifier(
        model,
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(x.shape[1:]),
        nb_classes=classes,
        clip_values=(0.0, 1.0),
        device_type="gpu" if x.is_cuda else "cpu",
        **rest,
    )


UNUSED = ("torchvision", "visdom")
"""Modules that adversarial-library imports and its attacks here do not use."""


def adv_lib(task: AttackTask, attack: Attack) -> Tensor:
    library, rest = _adv_lib_attacks(), dict[str, Any]()
    match attack:
        case PGD() | Untargeted():
            name, rest = "pgd_linf", {"steps": attack.steps, "absolute_step_size": task.step_of(attack)}
            if isinstance(attack, Untargeted):
                rest |= {"restarts": attack.restarts, "loss_function": "dl"}
        case APGD():
            name, rest = "apgd", {"norm": inf, "n_iter": attack.steps, "loss_function": attack.loss}
        case TargetedAPGD():
            name, rest = "apgd_targeted", {"norm": inf, "n_iter": attack.steps}
            rest |= {"num_targets": task.targets_of(attack)}
        case TargetedFAB():
            fab, rest = library.fab, {"restarts": task.targets_of(attack), "targeted_restarts": True}
            return task.each(lambda x, y: fab(task.model, x, y, inf, attack.steps, task.eps, **rest))
    return task.each(lambda x, y: getattr(library, name)(task.model, x, y, task.eps, **rest))


def _adv_lib_attacks() -> ModuleType:
    """Its attacks. Empty modules stand in, during the import, for unused ones that are not installed."""
    absent = [name for name in UNUSED if name not in sys.modules and find_spec(name) is None]
    for name in absent:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].models = None  # type: ignore[attr-defined]  # the one name taken from them
    try:
        return import_module("adv_lib.attacks")
    finally:
        for name in absent:
            del sys.modules[name]


def pyautoattack(task: AttackTask, *attacks: Attack) -> Tensor:
    """The original AutoAttack; a chain is its standard version with stages of our budgets."""
    rest: dict[str, Any] = {"norm": "Linf", "eps": task.eps, "seed": task.seed, "device": task.x.device}

    def stage(attack: Attack) -> Any:
        match attack:
            case APGD():
                module, name = "autopgd_base", "APGDAttack"
                more: dict[str, Any] = {"n_iter": attack.steps, "loss": attack.loss}
            case TargetedAPGD():
                module, name, more = "autopgd_base", "APGDAttack_targeted", {"n_iter": attack.steps}
                more |= {"n_target_classes": task.targets_of(attack)}
            case TargetedFAB():
                module, name, more = "fab_pt", "FABAttack_PT", {"n_iter": attack.steps, "targeted": True}
                more |= {"n_target_classes": task.targets_of(attack)}
            case Square():
                module, name = "square", "SquareAttack"
                more = {"n_queries": attack.queries, "resc_schedule": False}
        return getattr(import_module(f"pyautoattack.{module}"), name)(task.model, **more, **rest)

    if len(attacks) == 1:
        return task.each(stage(attacks[0]).perturb)
    whole = import_module("pyautoattack").AutoAttack(task.model, **rest)
    whole.apgd, whole.apgd_targeted, whole.fab, whole.square = map(stage, attacks)
    x_adv: Tensor = whole.run_standard_evaluation(task.x, task.y, batch_size=task.batch_size)[0]
    return x_adv


LIBRARIES: dict[str, Callable[..., Tensor]] = {
    **{"plain loop": plain_loop, "torchattacks": torchattacks, "foolbox": foolbox, "ART": art},
    **{"adv-lib": adv_lib, "pyautoattack": pyautoattack},
}
RESTARTS, TARGETS = "fooled images skip later restarts", "fooled images skip later targets"
EVERY, LEAVE, ORIGINAL = "CE; every restart on every image", "fooled images leave at once", "the original"
PEERS: dict[str, dict[str, str]] = {
    "pgd": {
        **{"plain loop": "as written in a notebook", "torchattacks": "", "foolbox": "", "ART": ""},
        "adv-lib": "keeps any point that fools on the way",
    },
    "un-t": {
        **{"torchattacks": f"CE; {RESTARTS}", "foolbox": EVERY, "ART": EVERY},
        "adv-lib": f"margin; {RESTARTS}",
    },
    "apgd": {
        **{"pyautoattack": ORIGINAL, "torchattacks": "", "ART": "one more forward pass per step"},
        "adv-lib": "",
    },
    "apgd-t": {"pyautoattack": f"{ORIGINAL}; {TARGETS}", "torchattacks": TARGETS, "adv-lib": TARGETS},
    "fab-t": {
        **{"pyautoattack": f"{ORIGINAL}; {TARGETS}", "torchattacks": TARGETS},
        "adv-lib": "every target on every image",
    },
    "square": {
        **{"pyautoattack": f"{ORIGINAL}; {LEAVE}", "torchattacks": LEAVE},
        "ART": "three passes per query; its own schedule",
    },
    "autoattack": {"pyautoattack": ORIGINAL, "torchattacks": "its four stages, with the same budgets"},
}
"""By the attack's name: the libraries that have it, with a note on where they differ."""
