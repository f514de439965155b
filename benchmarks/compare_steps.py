"""A training step in other libraries, and in a textbook loop, against ours.

All train the same network on the same batch by the same method, one step at a time. A ratio above 1 means
that ours is faster; the note says where a step computes something else. Other libraries run in a process of
their own, without our memory settings; those that are not installed are listed.

  python -m benchmarks peers --model cnn-small --repeats 3      # half a minute
  python -m benchmarks peers --precision auto --json peers.json      # ours plain, and as fast as possible
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atlas import models
from atlas.data import Batch
from atlas.distributed.launch import checked_device
from atlas.errors import UsageError
from atlas.machine import machine
from benchmarks.attack_peers import PACKAGES, art_classifier, installed, signed_steps, versions
from benchmarks.command import add_shared, settings_of, shape_of
from benchmarks.equations import ALPHA, BETA, REFERENCE, Case, Equation, LossPoints, case, cases
from benchmarks.processes import silence, worker_process
from benchmarks.step import CLASSES, MODELS, OPTIMIZER, THREAT, Settings, random_batch, step_of, training_with
from benchmarks.tables import (
    NOTE,
    Blocks,
    TextTable,
    facts,
    milliseconds,
    model_heading,
    note_of,
    over,
    ratio,
)
from benchmarks.timing import NOT_INSTALLED, OURS, Contestant, interleave, seconds_of, timed

METHODS = ("jac", "adv-1", "adv-10", "trades-1", "trades-10", "atlas-1", "atlas-10")
PLAIN = f"{OURS}, plain"
"""With the default settings of training."""
HEADINGS = ("who", "ms per step", f"time / {OURS}", NOTE)
OWN_HEADINGS = (f"step / {REFERENCE}", "both plain", f"{OURS} / plain", f"both {OURS}")


@dataclass(frozen=True)
class StepTask:
    """What every trainer gets: a network, a batch, a radius in L-inf, an equation and the attack's steps."""

    model: nn.Module
    x: Tensor
    y: Tensor
    eps: float
    equation: Equation
    steps: int
    classes: int = CLASSES
    alpha: float = ALPHA
    beta: float = BETA

    @property
    def step_size(self) -> float:
        """That of our attacks: 1.25 eps for a single step, 2.5 eps / steps for several."""
        return (1.25 if self.steps == 1 else 2.5 / self.steps) * self.eps

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), OPTIMIZER.lr, OPTIMIZER.momentum)

    def start(self) -> Tensor:
        """Uniform in the ball; close to x for several steps of KL."""
        near = self.steps > 1 and self.equation.objective == "kl"
        noise = torch.randn_like(self.x).mul_(0.001) if near else torch.empty_like(self.x)
        return (self.x + (noise if near else noise.uniform_(-self.eps, self.eps))).clamp(0, 1)

    def craft(self, x_adv: Tensor) -> Tensor:
        """Signed gradient steps from x_adv."""
        if self.equation.objective is None:
            return self.x
        loss, rest = self.equation.attack_loss(self.model, self.x, self.y), (self.eps, self.step_size)
        return signed_steps(lambda at: loss(self.model(at)), self.x, x_adv, *rest, self.steps)


def textbook(task: StepTask, attack: Callable[[], Tensor] | None = None) -> Callable[[], None]:
    """The method as one writes it in a notebook, float32; optionally with another library's attack.

    It is plain but not wasteful: its attack asks for the gradient of the images only. (Many published loops
    call `backward()` and discard the gradients of the weights.)
    """
    optimizer = task.optimizer()

    def step() -> None:
        task.model.eval()
        x_adv = attack() if attack else task.craft(task.start())
        task.model.train()
        v = F.normalize(torch.randn(len(task.x), task.classes).to(task.x))
        points = LossPoints(task.model, task.x, x_adv, task.y, v, task.alpha, task.beta)
        optimizer.zero_grad()
        task.equation.loss(points).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def torchattacks(task: StepTask) -> Callable[[], None]:
    """It has no trainers: its attack in the textbook loop. FFGSM is its FGSM from a random start."""
    library, settings = import_module("torchattacks"), (task.model, task.eps, task.step_size)
    kl, one = task.equation.objective == "kl", task.steps == 1
    make = library.TPGD if kl else library.FFGSM if one else library.PGD
    attack = make(*settings) if one and not kl else make(*settings, task.steps)
    return textbook(task, lambda: attack(task.x, task.y))


class OneLayer(nn.Module):
    """A network as one layer: FBF and TRADES of ART take an `nn.Sequential`'s first layer for its output."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x)
        return logits


def art(task: StepTask) -> Callable[[], None]:
    """Its trainers, each asked to fit one batch for one epoch: TRADES, FBF, or MadryPGD."""
    trainers = import_module("art.defences.trainer")
    classifier = art_classifier(OneLayer(task.model), task.x, task.classes, optimizer=task.optimizer())
    settings: dict[str, Any] = {"eps": task.eps, "eps_step": task.step_size, "max_iter": task.steps}
    if task.equation.objective == "kl":
        settings |= {"num_random_init": 1, "batch_size": len(task.x), "verbose": False}
        attack = import_module("art.attacks.evasion").ProjectedGradientDescent(classifier, **settings)
        trainer = trainers.AdversarialTrainerTRADESPyTorch(classifier, attack, task.beta)
    elif task.steps == 1:
        trainer = trainers.AdversarialTrainerFBFPyTorch(classifier, eps=task.eps)
    else:
        trainer = trainers.AdversarialTrainerMadryPGD(classifier, **settings)
    x, y = task.x.cpu().numpy(), np.eye(task.classes, dtype=np.float32)[task.y.cpu().numpy()]
    return lambda: trainer.fit(x, y, batch_size=len(x), nb_epochs=1)


TEXTBOOK = "textbook loop"
TRAINERS: dict[str, Callable[[StepTask], Callable[[], None]]] = {
    **{TEXTBOOK: textbook, "torchattacks": torchattacks, "ART": art},
}
FFGSM = {"torchattacks": ("FFGSM in that loop", "PGD in that loop")}
NOTES: dict[str, dict[str, tuple[str, str]]] = {
    "adv": FFGSM | {"ART": ("FBF; in eval mode, gradients clipped", "MadryPGD; 2 more passes, 32 at a time")},
    "trades": {
        "torchattacks": ("TPGD in that loop; starts near x", "TPGD in that loop"),
        "ART": ("TRADES; attack climbs CE, 1 more pass",) * 2,
    },
    "atlas": FFGSM,
}
"""By method: the libraries that have it, and where they differ with an attack of one step and of several."""


def peers_of(found: Case) -> dict[str, str]:
    """Those who have the method, with their notes."""
    if found.equation is None:
        raise UsageError(f"method {found.name!r} has no equation in benchmarks/equations.py to compare with")
    notes = {TEXTBOOK: ("as written in a notebook, float32",) * 2, **NOTES.get(found.name, {})}
    return {who: both[found.steps > 1] for who, both in notes.items()}


class PeerSteps:
    """Times steps of other trainers on one batch, by method and trainer; made in the worker process."""

    def __init__(self, name: str, size: int, shape: tuple[int, ...], device: str) -> None:
        self.model = models.build(name, shape=shape).to(device)  # one for all: the weights hardly move
        self.batch = random_batch(size, shape, device)
        self.made: dict[tuple[str, str], Callable[[], None]] = {}

    def __call__(self, label: str, who: str, repeat: int = 0) -> tuple[float, None]:
        with silence():
            if (label, who) not in self.made:
                found = case(label)
                assert found.equation is not None
                rest = (self.batch.x, self.batch.y, THREAT.eps, found.equation, found.steps)
                self.made[label, who] = TRAINERS[who](StepTask(self.model, *rest))
            return seconds_of(self.made[label, who], self.batch.x.device)[0], None


def add_options(parser: ArgumentParser) -> None:
    add_shared(parser, model=MODELS, method=METHODS, batch=128, repeats=20)
    add_shared(parser, shape=None, device="cpu", precision=None, set=())


def run(options: Namespace) -> dict[str, Any]:
    chosen, settings = cases(options.method), settings_of(options)
    training_with(2, settings)  # a wrong setting or method is refused before anything is measured
    for each in chosen:
        peers_of(each)
    report: dict[str, Any] = {"machine": machine(checked_device(options.device))}
    report |= {
        "peers": {name: versions()[name] for name in map(PACKAGES.__getitem__, ("torchattacks", "ART"))}
    }
    report |= {"batch": options.batch, "repeats": options.repeats, "settings": settings, "models": []}
    for name in options.model:
        shape = shape_of(name, options.shape)
        batch = random_batch(options.batch, shape, options.device)
        network = models.build(name, shape=shape).to(options.device)
        with worker_process(PeerSteps, name, options.batch, shape, options.device) as theirs:
            groups = {each.label: contestants(network, each, batch, settings, theirs) for each in chosen}
            interleave(groups, options.repeats, name, keep_going=True)
        sides = {label: [c.record(group[0]) for c in group] for label, group in groups.items()}
        methods = [{"method": label, "sides": found} for label, found in sides.items()]
        about = {"model": name, "shape": shape, "parameters": models.count_parameters(network)}
        report["models"].append({**about, "methods": methods})
    return report


def contestants(
    model: nn.Module, found: Case, batch: Batch, settings: Settings, theirs: Callable[..., tuple[float, None]]
) -> list[Contestant]:
    """Ours with the settings, ours without if there are any, and the others."""
    note = ", ".join(f"{key.removeprefix('training.')} {value}" for key, value in settings.items())
    group = [timed(OURS, step_of(model, found, batch, settings), batch.x.device, note)]
    if settings:
        group.append(timed(PLAIN, step_of(model, found, batch, {}), batch.x.device))
    for who, differs in peers_of(found).items():
        error = None if installed(who) else NOT_INSTALLED
        group.append(Contestant(who, partial(theirs, found.label, who), differs, error=error))
    return group


def blocks(report: Mapping[str, Any]) -> Blocks:
    page: Blocks = [f"Measured on {facts(report)}."]
    for model in report["models"]:
        page.append(model_heading(model))
        for method in model["methods"]:
            sides = method["sides"]
            rows = [(s["who"], milliseconds(s["seconds"]), ratio(s["over_ours"]), note_of(s)) for s in sides]
            page += [method["method"], TextTable(HEADINGS, rows)]
        if own := own_rows(model["methods"]):
            page.append(TextTable(OWN_HEADINGS, own))
    return page


def own_rows(methods: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Our steps over one-step ADV's of the same repeats, with the settings and without.

    Empty without settings or without one-step ADV; a method that failed on the way is left out.
    """
    seconds = {(m["method"], s["who"]): s["seconds"] for m in methods for s in m["sides"]}
    plain, ours = seconds.get((REFERENCE, PLAIN), []), seconds.get((REFERENCE, OURS), [])
    rows = []
    for label in (m["method"] for m in methods):
        mine = [seconds.get((label, who), []) for who in (PLAIN, OURS, OURS)]
        if plain and len({len(each) for each in (*mine, plain, ours)}) == 1:
            pairs = zip(mine, (plain, plain, ours), strict=True)
            rows.append((label, *(ratio(over(each, reference)) for each, reference in pairs)))
    return rows
