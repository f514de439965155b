"""The Adversarial Robustness Toolbox: its trainers, each asked to fit one batch for one epoch.

They take numpy arrays. The network is put into a module of its own, because their FBF and TRADES take the
first layer of an `nn.Sequential` for its output.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from torch import Tensor, nn

from atlas.bench.trainers.task import Task

TRAINERS = "art.defences.trainer"


class Whole(nn.Module):
    """A network of one piece."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x)
        return logits


def adv(task: Task) -> Callable[[], None]:
    """Fast Is Better than Free for one step, Madry's protocol for several."""
    classifier, trainers = _classifier(task), import_module(TRAINERS)
    if task.steps == 1:
        return _fit(task, trainers.AdversarialTrainerFBFPyTorch(classifier, eps=task.eps))
    settings = {"eps": task.eps, "eps_step": task.step_size, "max_iter": task.steps}
    return _fit(task, trainers.AdversarialTrainerMadryPGD(classifier, **settings))


def trades(task: Task) -> Callable[[], None]:
    classifier, trainers = _classifier(task), import_module(TRAINERS)
    attack = import_module("art.attacks.evasion").ProjectedGradientDescent(
        classifier,
        eps=task.eps,
        eps_step=task.step_size,
        max_iter=task.steps,
        num_random_init=1,
        batch_size=len(task.x),
        verbose=False,
    )
    return _fit(task, trainers.AdversarialTrainerTRADESPyTorch(classifier, attack, task.beta))


def _classifier(task: Task) -> Any:
    return import_module("art.estimators.classification").PyTorchClassifier(
        Whole(task.model),
        loss=nn.CrossEntropyLoss(),
        optimizer=task.optimizer(),
        input_shape=tuple(task.x.shape[1:]),
        nb_classes=task.classes,
        clip_values=(0.0, 1.0),
        device_type="gpu" if task.x.is_cuda else "cpu",
    )


def _fit(task: Task, trainer: Any) -> Callable[[], None]:
    x, y = task.x.cpu().numpy(), np.eye(task.classes, dtype=np.float32)[task.y.cpu().numpy()]
    return lambda: trainer.fit(x, y, batch_size=len(x), nb_epochs=1)
