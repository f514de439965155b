"""Each method's equation in plain torch: its loss, its bare passes, and their FLOPs and saved activations.

A training step of ours is compared with the bare passes of its equation. Those leave out everything that is
neither a pass through the network nor an update of its weights: random starts, the attack's moves and
projections, logging, checks for non-finite numbers. x, x' and the projection v are therefore given.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from atlas import models
from atlas.attacks import FGSM, PGD
from atlas.errors import UsageError, choose
from atlas.methods import METHODS, Method

ALPHA, BETA = 1e-5, 0.3
"""The weights of the terms: the paper's for MNIST. No time depends on them."""
REFERENCE = "adv-1"
"""The step that all others are compared with."""
MEASURED = (
    *("natural", "jac", "adv-1", "trades-1", "atlas_l-1", "atlas_g-1", "atlas-1", "trades_jac-1"),
    *("adv-10", "trades-10", "atlas-10"),
)
"""The paper's rows, measured by default."""


@dataclass(frozen=True)
class LossPoints:
    """A model and the points at which a loss is taken."""

    model: nn.Module
    x: Tensor
    x_adv: Tensor
    y: Tensor
    v: Tensor
    """Unit vectors [B, C] that project the Jacobian."""
    alpha: float = ALPHA
    beta: float = BETA

    def ce(self, logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, self.y)

    def with_jacobian(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """f(x) and alpha ||J(x)||_F^2, by one projection: C ||v^T J||^2."""
        x = x.detach().requires_grad_()
        logits = self.model(x)
        (row,) = torch.autograd.grad(logits, x, self.v, create_graph=True)
        return logits, self.alpha * logits.shape[1] * row.square().sum() / len(x)


def kl(logits_p: Tensor, logits_q: Tensor) -> Tensor:
    """KL(p || q), the mean over the batch."""
    log_p, log_q = F.log_softmax(logits_p, 1), F.log_softmax(logits_q, 1)
    return F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)


def natural(at: LossPoints) -> Tensor:
    """CE(x)."""
    return at.ce(at.model(at.x))


def jac(at: LossPoints) -> Tensor:
    """CE(x) + alpha ||J(x)||^2."""
    logits, jacobian = at.with_jacobian(at.x)
    return at.ce(logits) + jacobian


def adv(at: LossPoints) -> Tensor:
    """CE(x')."""
    return at.ce(at.model(at.x_adv))


def trades(at: LossPoints) -> Tensor:
    """CE(x) + beta KL(p(x) || p(x'))."""
    logits, logits_adv = at.model(at.x), at.model(at.x_adv)
    return at.ce(logits) + at.beta * kl(logits, logits_adv)


def atlas(at: LossPoints) -> Tensor:
    """Eq. (2): CE(x') + alpha ||J(x')||^2 + beta KL(p(x') || p(x))."""
    logits_adv, jacobian = at.with_jacobian(at.x_adv)
    return at.ce(logits_adv) + jacobian + at.beta * kl(logits_adv, at.model(at.x))


def atlas_l(at: LossPoints) -> Tensor:
    """Eq. (18): CE(x') + alpha ||J(x')||^2."""
    logits_adv, jacobian = at.with_jacobian(at.x_adv)
    return at.ce(logits_adv) + jacobian


def atlas_g(at: LossPoints) -> Tensor:
    """Eq. (19): CE(x') + beta KL(p(x') || p(x))."""
    logits_adv, logits = at.model(at.x_adv), at.model(at.x)
    return at.ce(logits_adv) + at.beta * kl(logits_adv, logits)


def trades_jac(at: LossPoints) -> Tensor:
    """CE(x) + alpha ||J(x)||^2 + beta KL(p(x) || p(x'))."""
    logits, jacobian = at.with_jacobian(at.x)
    return at.ce(logits) + jacobian + at.beta * kl(logits, at.model(at.x_adv))


@dataclass(frozen=True)
class Equation:
    loss: Callable[[LossPoints], Tensor]
    cost: int
    """FLOPs in forward passes, without the attack: a forward pass 1, a backward pass to the weights 2,
    v^T J(x) 1, the backward pass through it 2, and for an attack on KL the clean pass 1."""
    objective: str | None = "ce"
    """What its attack maximises: "ce", "kl", or None if it has no attack."""

    def attack_loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        """The attack's objective as a function of f(x'); KL(p(x) || p(x')) needs f(x) first."""
        if self.objective == "ce":
            return lambda logits: F.cross_entropy(logits, y)
        with torch.no_grad():
            clean = model(x)
        return lambda logits: kl(clean, logits)


EQUATIONS = {
    "natural": Equation(natural, 3, None),
    "jac": Equation(jac, 6, None),
    "adv": Equation(adv, 3),
    "trades": Equation(trades, 7, "kl"),
    "atlas": Equation(atlas, 9),
    "atlas_l": Equation(atlas_l, 6),
    "atlas_g": Equation(atlas_g, 6),
    "trades_jac": Equation(trades_jac, 10, "kl"),
}
"""By the method's name. A method without an entry is timed, but compared with nothing."""


def bare_step(equation: Equation, steps: int, at: LossPoints, optimizer: torch.optim.Optimizer) -> None:
    """The input gradients of `steps` attack steps through a frozen model, then an update of the weights."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    if equation.objective:
        at.model.eval()
        for weight in weights:
            weight.requires_grad_(False)
        loss = equation.attack_loss(at.model, at.x, at.y)
        for _ in range(steps):
            x_adv = at.x_adv.detach().requires_grad_()
            torch.autograd.grad(loss(at.model(x_adv)), x_adv)
    at.model.train()
    for weight in weights:
        weight.requires_grad_(True)
    total = equation.loss(at)
    optimizer.zero_grad()
    total.backward(inputs=weights)  # type: ignore[no-untyped-call]
    optimizer.step()


@dataclass(frozen=True)
class Case:
    """A method with all its settings, and its equation."""

    label: str
    """Such as `atlas-10`: the method's name, and the steps of its attack if it has one."""
    method: Method
    steps: int
    equation: Equation | None

    @property
    def name(self) -> str:
        return self.label.rpartition("-")[0] if self.steps else self.label

    @property
    def cost(self) -> int | None:
        """FLOPs in forward passes; an attack's step is a forward pass and an input gradient, 1 each."""
        return self.equation.cost + 2 * self.steps if self.equation else None


def case(label: str) -> Case:
    """The case of a label: a method's name, then for a method with an attack its steps (default: 1)."""
    found = re.fullmatch(r"(\w+)(?:-([1-9]\d{0,3}))?", label)
    name, steps = (found[1], found[2]) if found else (label, None)
    make = choose("method", name, METHODS)
    fields = inspect.signature(make).parameters
    if steps is not None and "attack" not in fields:
        raise UsageError(f"method {label!r}: {name} has no attack and takes no steps; write {name!r}")
    count = int(steps or 1) if "attack" in fields else 0
    near = getattr(make, "objective", "ce") == "kl"  # then presets start close to x
    attack = FGSM() if count <= 1 else PGD(steps=count, start_at="gaussian" if near else "uniform")
    settings = {"alpha": ALPHA, "beta": BETA, "attack": attack}
    method = make(**{key: value for key, value in settings.items() if key in fields})
    return Case(f"{name}-{count}" if count else name, method, count, EQUATIONS.get(name))


def cases(labels: Sequence[str]) -> list[Case]:
    """Those of the labels, each once."""
    return list({found.label: found for found in map(case, labels)}.values())


class StepCounts(NamedTuple):
    flops: int
    saved: int
    """The most bytes that autograd keeps for backward passes at one time."""


def count_step(name: str, case: Case, shape: Sequence[int], classes: int, images: int) -> StepCounts:
    """Count a step of a method on `images` images, by the model's name.

    It runs on the device meta, where tensors have shapes and no values: any model at any image size takes
    seconds and no memory. FLOPs are those of torch's formulas for convolutions and matrix products, two per
    multiplication with its addition; elementwise work is not counted.
    """
    model = models.build(name, classes, shape, device="meta")
    return counts_of(model, case, torch.empty(images, *shape, device="meta"), classes)


def counts_of(model: nn.Module, case: Case, x: Tensor, classes: int) -> StepCounts:
    """Count a step on images x [B, C, H, W], on their device."""
    if case.equation is None:
        raise UsageError(
            f"method {case.label!r} has no equation to count: add one to benchmarks/equations.py"
        )
    y, v = x.new_zeros(len(x), dtype=torch.int64), x.new_ones(len(x), classes)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.0, 0.9)
    flops, saved = Flops(), SavedActivations(model)  # type: ignore[no-untyped-call]
    with flops, saved:
        points = LossPoints(model, x, x.clone(), y, v)
        bare_step(case.equation, case.steps, points, optimizer)
    return StepCounts(flops.total, saved.peak)


class Flops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sums torch's formulas over all operations, including those in gradients of gradients."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func.overloadpacket)
        self.total += formula(*args, **(kwargs or {}), out_val=out) if formula else 0
        return out


class SavedActivations(saved_tensors_hooks):
    """Bytes that autograd keeps beside the model's tensors and those given: each storage once."""

    def __init__(self, model: nn.Module, *others: Tensor) -> None:
        self.known = {_storage(tensor) for tensor in (*model.parameters(), *model.buffers(), *others)}
        self.holders: Counter[int] = Counter()
        self.bytes = self.peak = 0
        super().__init__(lambda tensor: _Saved(tensor, self), lambda saved: saved.tensor)

    def hold(self, tensor: Tensor, change: int) -> None:
        """Note that one more (1) or one fewer (-1) node of the graph holds the tensor."""
        key = _storage(tensor)
        before, after = self.holders[key], self.holders[key] + change
        self.holders[key] = after
        if key not in self.known and not (before and after):
            self.bytes += change * tensor.untyped_storage().nbytes()
            self.peak = max(self.peak, self.bytes)


class _Saved:
    """A tensor for as long as the graph holds it."""

    def __init__(self, tensor: Tensor, by: SavedActivations) -> None:
        self.tensor, self.by = tensor, by
        by.hold(tensor, 1)

    def __del__(self) -> None:
        self.by.hold(self.tensor, -1)


def _storage(tensor: Tensor) -> int:
    """Identifies a tensor's memory; tensors on meta have no address."""
    return int(tensor.untyped_storage()._cdata)
