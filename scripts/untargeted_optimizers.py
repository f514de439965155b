"""With which optimiser, step and schedule Un-T finds most, and in which order Multi-T finds soonest.

python -m scripts.untargeted_optimizers measure MODEL [--n 500]   # a run's folder, or weights of cnn-small

`measure` attacks MNIST test images and puts what it finds into results/attacks/untargeted-optimizers.json.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from safetensors.torch import load_file
from torch import Tensor, nn

from atlas import data
from atlas.attacks import Attack, Model, MultiTargeted, NewAttempts, Outcome, Untargeted, engine
from atlas.attacks.margin import MarginState
from atlas.attacks.model_variants import searched
from atlas.evaluation import Score
from atlas.models import build
from atlas.rng import Rng
from atlas.threat import L2, Linf, Threat
from atlas.training import load_model
from atlas_paper.workspace import commit
from benchmarks.tables import grid

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "attacks" / "untargeted-optimizers.json"
STEPS, RESTARTS, SEED = 50, 5, 0
Case = tuple[str, str, float]
"""Optimiser, schedule, step in pixels."""


@dataclass(frozen=True)
class Cosine(Untargeted):
    """The step falls to 0 as half a wave of the cosine."""

    def _step_length(self, state: MarginState, threat: Threat) -> Tensor:
        whole = super()._step_length(state, threat)
        return whole * (1 + torch.cos(math.pi * state.step / self.steps)) / 2


@dataclass(frozen=True)
class Stairs(Untargeted):
    """A tenth of the step after half of the steps, a hundredth after three quarters."""

    def _step_length(self, state: MarginState, threat: Threat) -> Tensor:
        whole = super()._step_length(state, threat)
        return whole * 0.1 ** (4 * state.step // self.steps - 1).clamp_min(0)


@dataclass(frozen=True)
class ByClass(MultiTargeted):
    """The wrong classes in the order of their numbers."""

    def start(self, model: Model, fresh: NewAttempts, threat: Threat) -> MarginState:
        number = fresh.attempt % (fresh.clean_logits(model).shape[1] - 1)
        return replace(super().start(model, fresh, threat), target=number + (number >= fresh.y))


SCHEDULES: dict[str, Callable[..., Untargeted]] = {
    "constant": Untargeted,
    "linear": Untargeted,
    "cosine": Cosine,
    "stairs": Stairs,
}
GRID: dict[str, list[Case]] = {
    "linf": [
        *(("steepest", "constant", size) for size in (0.1, 0.3)),
        *(("steepest", "linear", size) for size in (0.1, 0.15, 0.3, 0.6)),
        *(("steepest", schedule, 0.3) for schedule in ("cosine", "stairs")),
        *(("adam", schedule, size) for schedule in ("constant", "linear") for size in (0.1, 0.3, 0.6)),
    ],
    "l2": [
        *(("steepest", "linear", size) for size in (1.0, 2.0, 4.0)),
        *(("adam", "constant", size) for size in (0.03, 0.1)),
        ("adam", "linear", 0.1),
    ],
}
THREATS: dict[str, Threat] = {"linf": Linf(0.3), "l2": L2(2.0)}
ORDERS = {"by clean logits": MultiTargeted, "by number": ByClass}


def un_t(optimizer: Any, schedule: str, size: float) -> Untargeted:
    return SCHEDULES[schedule](
        steps=STEPS, restarts=RESTARTS, optimizer=optimizer, step_size=size, decay=schedule == "linear"
    )


def run(attack: Attack, threat: Threat, model: Model, images: data.Images) -> Outcome:
    rng = Rng.lanes(SEED, images.ids).fold("evaluation")
    return engine.run(attack, model, images.pixels(slice(None)), images.y, threat, rng)


def measure(path: Path, n: int) -> None:
    model = searched(load_model(path) if path.is_dir() else published(path), "float32")
    images = data.load("mnist", train=False).subset(slice(n))
    found: dict[str, Any] = {
        "command": f"python -m scripts.untargeted_optimizers measure {named(path)} --n {n}",
        **{"commit": commit(), "seed": SEED, "n": n, "steps": STEPS, "restarts": RESTARTS},
    }
    for kind, points in GRID.items():
        found[kind] = [
            [*case, int(run(un_t(*case), THREATS[kind], model, images).robust.sum())]
            for case in track(points, f"{path.name}, {THREATS[kind]}")
        ]
    found["orders"] = {
        name: order(run(kind(steps=STEPS, restarts=1), THREATS["linf"], model, images))
        for name, kind in track(ORDERS.items(), f"{path.name}, targets")
    }
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(kept | {path.stem: found}, indent=1) + "\n")


def published(path: Path) -> nn.Module:
    """Weights that somebody else has written, and so without a checksum of ours."""
    model = build("cnn-small").eval()
    model.load_state_dict(load_file(path))
    return model


def named(path: Path) -> str:
    """A file of the repository by its place in it, any other by its name."""
    path = path.resolve()
    return str(path.relative_to(ROOT.resolve()) if path.is_relative_to(ROOT.resolve()) else path.name)


def order(outcome: Outcome) -> dict[str, float]:
    fooled = outcome.attempt >= 0
    spent = outcome.queries.double()
    return {"right": int(outcome.robust.sum()), "until_fooled": round(float(spent[fooled].mean()), 1)}


def table(kind: str) -> str:
    """A measurement as Markdown: the grid of a threat, or "orders"."""
    models = json.loads(RESULTS.read_text())
    if kind == "orders":
        head = ["order of targets", *(f"`{name}`, queries until fooled" for name in models)]
        rows = [[name, *(sooner(m, **m[kind][name]) for m in models.values())] for name in ORDERS]
    else:
        head = ["optimiser", "schedule", "step", *(f"`{name}`" for name in models), "fooled in all"]
        rows = [
            [optimizer, schedule, f"{size:g}", *(score(m, right) for m, right in each), fooled(each)]
            for (optimizer, schedule, size), each in cases(models, kind)
        ]
    return f"{caption(models, kind)}:\n\n{grid(head, rows)}"


def caption(models: dict[str, Any], kind: str) -> str:
    """The settings, which are the same for all models, or this is an error."""
    ((n, seed, steps, restarts),) = {
        tuple(m[k] for k in ("n", "seed", "steps", "restarts")) for m in models.values()
    }
    budget = (
        f"1 restart of {steps} steps a class" if kind == "orders" else f"{restarts} restarts of {steps} steps"
    )
    return f"{THREATS.get(kind, THREATS['linf'])}, {budget}, first {n} test images, seed {seed}"


def score(model: dict[str, Any], right: int) -> str:
    return str(Score(right, model["n"]))


def sooner(model: dict[str, Any], right: int, until_fooled: float) -> str:
    return f"{score(model, right)}, {until_fooled}"


def cases(models: dict[str, Any], kind: str) -> list[tuple[Case, list[tuple[dict[str, Any], int]]]]:
    """Each case of the grid with (model, how many of its images stay right)."""
    columns = [{tuple(row[:3]): row[3] for row in model[kind]} for model in models.values()]
    return [
        (case, [(model, column[case]) for model, column in zip(models.values(), columns, strict=True)])
        for case in GRID[kind]
    ]


def fooled(each: list[tuple[dict[str, Any], int]]) -> str:
    return str(sum(model["n"] - right for model, right in each))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["measure"])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--n", type=int, default=500, help="test images")
    options = parser.parse_args()
    for model in options.models:
        measure(model, options.n)


if __name__ == "__main__":
    main()
