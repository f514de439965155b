"""What each way of making a training step faster pays by itself: the time without it over the time with it.

python -m scripts.levers measure [REPEATS]     # writes results/levers.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vjp

from atlas import models
from atlas.attacks import frozen
from atlas.cli.process import keep_memory
from atlas.data import AUGMENTS
from atlas.machine import machine
from atlas.rng import Rng
from atlas_paper.workspace import commit
from benchmarks.equations import ALPHA, case, kl
from benchmarks.step import CLASSES, THREAT, random_batch, trainer
from benchmarks.tables import facts, grid, over, ratio, save
from benchmarks.timing import interleave, timed

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "levers.json"
NETWORKS = {"cnn": ((1, 28, 28), 128), "wrn-16-2": ((3, 32, 32), 64)}
Work = Callable[[], object]
Lever = tuple[str, Work, Work]
"""Its name, the work without it and the work with it."""


class Network:
    """One network and a batch; each lever is given both anew, so that none meets what another has left."""

    def __init__(self, name: str) -> None:
        self.name, (self.shape, size) = name, NETWORKS[name]
        self.batch = random_batch(size, self.shape)
        self.x, self.y = self.batch.x, self.batch.y

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return models.build(self.name, CLASSES, self.shape)

    def levers(self) -> Iterator[Lever]:
        yield from self.gradients()
        yield from self.forward_passes()
        yield from self.settings()
        yield from self.updates()
        yield self.augmentation()
        yield self.compiled_step()

    def gradients(self) -> Iterator[Lever]:
        """Of an attack's loss with respect to the image."""
        model = self.model().eval()

        def with_weights() -> None:
            F.cross_entropy(model(self.x.detach().requires_grad_()), self.y).backward()

        @torch.no_grad()
        def predict(answer: Callable[[Tensor], Tensor]) -> Tensor:
            return answer(self.x)

        def plain(answer: Callable[[Tensor], Tensor]) -> Tensor:
            x = self.x.detach().requires_grad_()
            return torch.autograd.grad(F.cross_entropy(answer(x), self.y), x)[0]

        def still(fold: bool, answer: Callable[[Tensor], Tensor] = model) -> Tensor:
            with frozen(model, fast_conv_grad=fold):
                return plain(answer)

        yield "attack gradient: weights stand still", with_weights, lambda: still(False)
        if self.shape[0] == 1:
            yield (
                "attack gradient: the first layer's own way back",
                lambda: still(False),
                lambda: still(True),
            )
        last = self.model().eval().requires_grad_(False).to(memory_format=torch.channels_last)

        def arranged() -> Tensor:
            with frozen(last):
                return plain(last)

        yield "attack gradient: channels last", lambda: still(True), arranged
        yield "attack's look: channels last", lambda: predict(model), lambda: predict(last)
        compiled = torch.compile(model)
        yield "attack gradient: torch.compile", lambda: still(True), lambda: still(False, compiled)

    def forward_passes(self) -> Iterator[Lever]:
        model = self.model().train()
        x_adv = THREAT.random_start(self.x, Rng.lanes(0, self.batch.ids))

        def apart() -> None:
            logits_adv, logits = model(x_adv), model(self.x)
            (F.cross_entropy(logits_adv, self.y) + kl(logits_adv, logits)).backward()

        def together() -> None:
            logits_adv, logits = model(torch.cat([x_adv, self.x])).chunk(2)
            (F.cross_entropy(logits_adv, self.y) + kl(logits_adv, logits)).backward()

        if not any(isinstance(m, nn.BatchNorm2d) for m in model.modules()):
            yield "clean and adversarial images in one pass", apart, together

        def local(share: bool) -> None:
            x = self.x.detach().requires_grad_()
            logits = model(x)
            (row,) = torch.autograd.grad(logits, x, self.directions, create_graph=True)
            ce = F.cross_entropy(logits if share else model(self.x), self.y)
            (ce + ALPHA * row.square().sum()).backward()

        yield "Jacobian and cross-entropy share a pass", lambda: local(False), lambda: local(True)

    @property
    def directions(self) -> Tensor:
        return Rng.lanes(0, self.batch.ids).sphere(CLASSES)

    def settings(self) -> Iterator[Lever]:
        """Those of `training`, on whole steps."""
        for method in ("adv-1", "atlas-1"):
            for key, value in (
                ("channels_last", True),
                ("precision", "craft"),
                ("precision", "bfloat16"),
                ("precision", "bfloat16-all"),
            ):
                if not (method == "adv-1" and value == "bfloat16-all"):
                    step = self.step(method, {f"training.{key}": value})
                    yield f"{method} step: {key} = {json.dumps(value)}", self.step(method), step

    def step(self, method: str, settings: dict[str, object] | None = None) -> Work:
        steps = trainer(self.model(), case(method), self.batch, settings=settings)
        return lambda: steps.step(self.batch)

    def updates(self) -> Iterator[Lever]:
        """A step of ADV's passes with the optimiser's loop over all weights, against its other forms."""
        for name in ("foreach", "fused"):
            works = []
            for option in ({"foreach": False}, {name: True}):
                model = self.model()
                works.append(self.plain_step(model, torch.optim.SGD(model.parameters(), 1e-5, 0.9, **option)))
            yield f"SGD: {name}", works[0], works[1]

    def plain_step(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Work:
        def step() -> None:
            optimizer.zero_grad()
            F.cross_entropy(model(self.x), self.y).backward()
            optimizer.step()

        return step

    def augmentation(self) -> Lever:
        """The most that a background thread could save: all of its time."""
        augment, plain = AUGMENTS["pad-crop-flip"], self.step("adv-1")
        assert augment is not None
        rng = Rng.lanes(0, self.batch.ids)

        def both() -> None:
            augment(self.x, rng)
            plain()

        return "adv-1 step: augmentation that takes no time", both, plain

    def compiled_step(self) -> Lever:
        """CE(x) + alpha ||J(x)||^2 with its backward pass."""
        model = self.model().train()
        weights, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        v = self.directions

        def answer(x: Tensor) -> Tensor:
            """BatchNorm may only change what was made in here."""
            own = {name: buffer.clone() for name, buffer in buffers.items()}
            return functional_call(model, weights | own, (x,))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            logits, back = vjp(answer, x)
            return F.cross_entropy(logits, y) + ALPHA * back(v)[0].square().sum()

        compiled = torch.compile(loss)
        return (
            "JAC's passes: torch.compile",
            lambda: loss(self.x, self.y).backward(),
            lambda: compiled(self.x, self.y).backward(),
        )


def measure(repeats: int) -> None:
    keep_memory()
    about = {"commit": commit(), "repeats": repeats, "machine": machine()}
    found = []
    for name in NETWORKS:
        for lever, without, with_it in Network(name).levers():
            pair = [timed("without", without), timed("with", with_it)]
            interleave({lever: pair}, repeats, name, warm_up=1)  # which fills caches, and compiles
            pays = over(*(each.seconds for each in pair))
            print(f"{name}: {lever}: {ratio(pays)}", flush=True)
            found.append({"network": name, "lever": lever, "without_over_with": pays})
    save(about | {"levers": found}, RESULTS)


def table() -> str:
    report = json.loads(RESULTS.read_text())
    names = list(dict.fromkeys(row["lever"] for row in report["levers"]))
    known = {(row["network"], row["lever"]): ratio(row["without_over_with"]) for row in report["levers"]}
    lines = [[name, *(known.get((network, name), "-") for network in NETWORKS)] for name in names]
    sizes = ", ".join(f"{name} with batches of {size}" for name, (_, size) in NETWORKS.items())
    return f"Measured on {facts(report)}; {sizes}.\n\n" + grid(["lever", *NETWORKS], lines)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["measure", *repeats]:
            measure(int(repeats[0]) if repeats else 5)
        case _:
            sys.exit(__doc__)
