"""torchattacks: its attacks inside the textbook's loop, for it has no trainers."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from atlas.bench.trainers import textbook
from atlas.bench.trainers.task import Task


def adv(task: Task) -> Callable[[], None]:
    return _loop(task, _climb(task), textbook.adv_loss)


def trades(task: Task) -> Callable[[], None]:
    attack = import_module("torchattacks").TPGD(task.model, task.eps, task.step_size, task.steps)
    return _loop(task, attack, textbook.trades_loss)


def atlas(task: Task) -> Callable[[], None]:
    return _loop(task, _climb(task), textbook.atlas_loss)


def _climb(task: Task) -> Any:
    """FFGSM is its FGSM from a random start."""
    library = import_module("torchattacks")
    if task.steps == 1:
        return library.FFGSM(task.model, task.eps, task.step_size)
    return library.PGD(task.model, task.eps, task.step_size, task.steps)


def _loop(task: Task, attack: Any, loss: textbook.Loss) -> Callable[[], None]:
    return textbook.loop(task, lambda: attack(task.x, task.y), loss)
