"""A configuration as a TOML file in which every setting is explained."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

from atlas.config import ConfigDict
from atlas.terminal import one_line
from atlas.training import Optimizer, RunConfig, Schedule, Training, Validation

WIDTH = 80
SECTIONS: dict[str, type | None] = {
    "": RunConfig,
    "threat": None,
    "method": None,
    "method.attack": None,
    "training": Training,
    "training.optimizer": Optimizer,
    "training.schedule": Schedule,
    "training.validation": Validation,
    "training.validation.attack": None,
}
"""The tables of a configuration in the order in which they are written, with the class that they build; None
where that depends on their name."""
COMMENTS = {
    "data": "a data set's name, an .npz file or a folder",
    "model": "a name (`atlas models`) or module.path:factory",
    "normalize": "first layer, by the data's mean and std or yours",
    "weights": "to start from: a weights file or a run's folder",
    "threat": "Which perturbations the model is to withstand.",
    "threat.name": "linf or l2",
    "threat.eps": "radius in pixel units of [0, 1], such as 8/255",
    "method": "The training loss; `atlas methods` lists them.",
    "method.attack": "It makes the images to train on. Without step_size its steps follow eps.",
    "training.batch_size": "images per step",
    "training.seed": "of weights, order, augmentation and noise",
    "training.augment": "none or pad-crop-flip",
    "training.crafting_mode": "BatchNorm during attacks: eval or train",
    "training.precision": "float32, craft, bfloat16 or bfloat16-all",
    "training.channels_last": "memory order: true, false or auto",
    "training.ema": "decay of a weight average, as 0.999; 0: none",
    "training.on_collapse": "continue, stop or rollback",
    "training.deterministic": "only deterministic operations, on a GPU too",
    "training.checkpoint_minutes": "between saved states within an epoch",
    "training.optimizer.kind": "sgd, adam or adamw",
    "training.optimizer.lr": "highest learning rate",
    "training.optimizer.momentum": "for sgd",
    "training.optimizer.nesterov": "for sgd",
    "training.optimizer.weight_decay": "L2 penalty",
    "training.schedule.kind": "guided, constant, piecewise, cosine, one-cycle",
    "training.schedule.epochs": "for guided the most, else all",
    "training.schedule.ramp_epochs": "epochs in which eps grows from 0",
    "training.schedule.plateau": "guided: epochs without gain before lr is cut",
    "training.schedule.patience": "guided: epochs without gain before the end",
    "training.schedule.factor": "of each cut of lr",
    "training.schedule.milestones": "piecewise: epochs of the cuts",
    "training.validation": "Training images set apart; their robust accuracy chooses the best epoch.",
    "training.validation.size": "how many, or a share below 1",
    "training.validation.batch_size": "images attacked at a time",
    "training.validation.attack": "The attack on them, at the full eps; `atlas attacks` lists them.",
}
"""What settings and tables are, in a line each."""
PARAMETERS = {
    "alpha": "weight of the Jacobian term",
    "beta": "weight of the KL term",
    "steps": "gradient steps",
    "step_size": "in pixel units",
    "relative_step": "in units of eps",
    "start_at": "uniform, gaussian or clean",
    "clip_start": "whether the start is clipped to [0, 1]",
    "decay": "whether steps shrink to 0",
    "objective": "what the steps climb",
    "restarts": "random starts",
}
"""What parameters of methods and attacks are."""


def commented(table: ConfigDict, head: Sequence[str]) -> str:
    """The table as TOML with a comment on each setting, and below them those that are left at their defaults.

    Args:
        head: lines of text to put on top, as comments.
    """
    lines = [line for text in head for line in _comment(text)]
    for section, kind in SECTIONS.items():
        values = _at(table, section)
        if values is None and kind is None:
            continue
        lines += ["", *_comment(COMMENTS.get(section, "")), f"[{section}]"] if section else [""]
        for key, value in (values or {}).items():
            path = _path(section, key)
            if path not in SECTIONS:
                comment = COMMENTS.get(path) or (PARAMETERS.get(key, "") if kind is None else "")
                lines += _line(f"{_key(key)} = {_value(value)}", comment)
        for field in fields(kind) if kind else ():
            path = _path(section, field.name)
            if path not in SECTIONS and field.name not in (values or {}):
                known = field.default not in (None, MISSING)
                setting = (
                    f"# {field.name} = {_value(field.default)}" if known else f"# {field.name} is not set"
                )
                lines += _line(setting, COMMENTS.get(path, ""))
    return "\n".join(lines) + "\n"


def _at(table: ConfigDict, section: str) -> ConfigDict | None:
    here: Any = table
    for part in filter(None, section.split(".")):
        here = here.get(part)
        if not isinstance(here, dict):
            return None
    return here  # type: ignore[no-any-return]


def _path(section: str, key: str) -> str:
    return f"{section}.{key}" if section else key


def _line(setting: str, comment: str) -> list[str]:
    """With the comment behind the setting if it fits, else above."""
    if not comment:
        return [setting]
    line = f"{setting:<27}  # {comment}"
    return [line] if len(line) <= WIDTH else [*_comment(comment), setting]


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(one_line(text), WIDTH - 2)]


def _key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key, re.ASCII) else json.dumps(key)


def _value(value: Any) -> str:
    """As TOML on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str | bool):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # which JSON leaves as it is
    return str(value)
