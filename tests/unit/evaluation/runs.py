"""A small network and images on which every verdict occurs, and an evaluation of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from atlas.attacks import FGSM, PGD
from atlas.checkpoint import load_tensors, save_tensors
from atlas.data import Images
from atlas.evaluation import evaluate
from atlas.threat import Linf

COUNT = 97
ATTACKS = {
    "FGSM": FGSM(relative_step=1.0),
    "PGD 2x6": PGD(steps=6, step_size=0.006, restarts=2, objective="margin"),
}
THREAT = Linf(0.06)


def net() -> nn.Sequential:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 24), nn.ReLU(), nn.Linear(24, 4))
    with torch.no_grad():  # steep enough, and centred, for every verdict to occur
        model[1].weight.mul_(6)
        model[1].bias.copy_(-model[1].weight.sum(1) / 2)
    return model


def noise() -> Images:
    x = torch.rand(COUNT, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    y = net()(x).argmax(1)
    y[::9] = (y[::9] + 1) % 4
    return Images(x, y, 4, "noise", torch.arange(500, 500 + COUNT))


def run(images: Any, model: Any = None, **options: Any) -> Any:
    options.setdefault("attacks", ATTACKS)
    return evaluate(net() if model is None else model, images, THREAT, progress=False, **options)


def of_older_version(folder: Path) -> None:
    """Make a folder what versions left that wrote no checksums."""
    for name in ("config.json", "summary.json"):
        if (folder / name).exists():
            table = json.loads((folder / name).read_text())
            (folder / name).write_text(
                json.dumps({k: v for k, v in table.items() if k not in ("sha256", "code")})
            )
    for path in folder.glob("*.npz"):
        with np.load(path) as file:
            arrays = dict(file)
        np.savez(path, **arrays)
    for path in folder.glob("*.safetensors"):
        save_tensors(path, load_tensors(path)[0], {})


def columns(report: Any) -> dict[str, list[float]]:
    return {
        f"{label} {name}": column.nan_to_num(nan=-99.0).tolist()
        for label, result in report.results.items()
        for name, column in result.columns().items()
        if name != "margin"
    }
