"""Which model a run started with, so that `fit` does not continue it with another one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from atlas.checkpoint import digest
from atlas.config import ConfigDict

TOLERANCE = 0.02
"""Relative to the largest logit: devices and TF32 differ by less, another activation function by more."""
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


def description(model: nn.Module, logits: Tensor, *, built_from_config: bool) -> ConfigDict:
    """What is known of a model before it is trained, as a JSON-able table.

    `logits` are its answers to the same image twice. Where a configuration says how to build the model, its
    initial weights follow from that, up to rounding on another machine, and only its structure is described.
    """
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    structure = {"layers": _ADDRESS.sub("", str(model)), "frozen": frozen}
    if built_from_config:
        return structure
    random = not _alike(logits[0], logits[1])
    answers = {} if random else {"answers": logits[0].tolist()}
    return structure | answers | {"weights": digest(model.state_dict())}


def difference(run: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """Why the given model is not the one that the run started with, both as described; None if it is."""
    if run["layers"] != given["layers"]:
        pairs = zip_longest(run["layers"].splitlines(), given["layers"].splitlines(), fillvalue="nothing")
        before, now = next(pair for pair in pairs if pair[0] != pair[1])
        return f"its layers differ: {before.strip()} in the run, {now.strip()} in the given model"
    if run["frozen"] != given["frozen"]:
        changed = sorted({*run["frozen"]} ^ {*given["frozen"]})
        return f"other parameters are frozen: {', '.join(changed[:3])}{', ...' if len(changed) > 3 else ''}"
    if "weights" not in run or "weights" not in given:
        return None
    if run["weights"] != given["weights"]:
        return "its initial weights differ from those that the run started with"
    if "answers" in run and "answers" in given:
        before, now = torch.tensor(run["answers"], device="cpu"), torch.tensor(given["answers"], device="cpu")
        if not _alike(before, now):
            return "it gives other logits with the same weights, so its forward pass differs"
    return None


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() <= TOLERANCE * one.abs().max())
