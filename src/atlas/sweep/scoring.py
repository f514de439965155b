"""The attack that chooses between trials, where the preset's validation attack is not to."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from atlas import data
from atlas.attacks import ATTACKS, Attack
from atlas.attacks import suites as attack_suites
from atlas.attacks.suites import TRANSFER
from atlas.data import Images
from atlas.errors import NumericError, unknown
from atlas.evaluation.evaluate import Evaluation
from atlas.evaluation.plan import Plan, build_attack
from atlas.training import RunConfig


def named_attack(word: str, data_name: str) -> tuple[str, Attack]:
    """(label, attack): an attack of any suite by its label, in the form for the data, or of the registry."""
    labels: dict[str, tuple[str, Attack]] = {}
    for name in attack_suites.names():
        for label, table in attack_suites.suite(name, data_name).attacks.items():
            if table["name"] != TRANSFER:
                labels.setdefault(label.lower(), (label, build_attack(table)))
    if word.lower() in labels:
        return labels[word.lower()]
    if word not in ATTACKS:
        raise unknown("attack", word, {*labels, *ATTACKS})
    return word, build_attack({"name": word})


def held_out(config: RunConfig, root: Path | None) -> Images:
    """The validation images of a run."""
    images = data.load(config.data, train=True, root=root)
    return data.split(images, config.training.validation.size, config.training.seed)[1]


def score(
    model: nn.Module,
    images: Images,
    config: RunConfig,
    attack: tuple[str, Attack],
    folder: Path,
    progress: bool,
) -> float:
    """The share of the images that the model still gets right; resumable in its folder."""
    plan = Plan(config.threat, dict([attack]), seed=config.training.seed)
    report = Evaluation(model, images, plan).run(folder, progress=progress)
    if report.worst.reasons:
        raise NumericError(f"the score is invalid: {', '.join(report.worst.reasons)}")
    return report.worst.rate
