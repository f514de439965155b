"""Numbers, names and settings as text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup, escape

from atlas.config import table_of
from atlas.methods import Method
from atlas.terminal import one_line
from atlas.threat import Threat, eps_text
from atlas.training import Training
from atlas.training.settings import REGISTRIES

NORMS = {"linf": "L∞", "l2": "L2"}
LEAST_P = 0.001
"""Smaller p-values are written as "p < 0.001"."""


def threat_text(table: Mapping[str, Any]) -> str:
    """From a threat's table: L∞, ε = 0.3."""
    name = str(table["name"])
    return f"{NORMS.get(name, name)}, ε = {eps_text(float(table['eps']))}"


def p_text(p: float) -> str:
    """A p-value."""
    return f"p = {p:.2g}" if p >= LEAST_P else f"p < {LEAST_P}"


def settings(table: Mapping[str, Any]) -> str:
    """A table in one line, without unset values, but an attack's default step size is mentioned."""
    parts = [
        f"{key} {f'({settings(value)})' if isinstance(value, Mapping) else value}"
        for key, value in table.items()
        if key != "name" and value is not None
    ]
    unset = "step_size" in table and table["step_size"] is None and table.get("relative_step") is None
    parts += ["step size: the default"] * unset
    return one_line(", ".join([*filter(None, [str(table.get("name", ""))]), *parts]))


def settings_json(table: Mapping[str, Any]) -> str:
    """All settings, as `config.json` has them."""
    return json.dumps(table, indent=2, sort_keys=True, ensure_ascii=False)


def method_text(method: object) -> str:
    """The method's name and its weights."""
    table = table_of(method, REGISTRIES)
    return settings({k: v for k, v in table.items() if k in ("name", "alpha", "beta", "gamma")})


def trained_on(method: Method, threat: Threat) -> str:
    """The attack of the training and its radius."""
    if method.attack is None:
        return "clean images, without an attack"
    attack = settings(table_of(method.attack, REGISTRIES))
    return f"{attack}; {threat_text(table_of(threat, REGISTRIES))}"


def training_text(training: Training) -> str:
    """Epochs, optimizer, schedule and batch size."""
    schedule, optimizer = training.schedule, training.optimizer
    most = "at most " if schedule.kind == "guided" else ""
    epochs = f"{most}{schedule.epochs} epoch{'s' if schedule.epochs != 1 else ''}"
    rate = f"{optimizer.kind} with lr {optimizer.lr:g}, {schedule.kind}"
    return f"{epochs}, {rate}, batches of {training.batch_size}"


def identity(model: str) -> str:
    """What identifies a model; of a digest the first 16 digits."""
    return model[:16] if re.fullmatch("[0-9a-f]{64}", model) else model


def coded(text: str) -> Markup:
    """Escaped, with what stands in backticks as code."""
    parts = re.split("`([^`]+)`", text)
    made = [Markup("<code>{}</code>").format(part) if k % 2 else escape(part) for k, part in enumerate(parts)]
    return Markup("").join(made)
