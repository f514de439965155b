"""The measured attacks as plain data, as rows of text, and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atlas.bench.attack import NOT_INSTALLED, OURS, Contest, Entry
from atlas.bench.report import facts, grid, over, ratio
from atlas.threat import eps_text

ATTACK_HEADINGS = ("who", "seconds", f"time / {OURS}", "robust %", "how")
LONGEST_NOTE = 46
"""Letters, so that a row fits a terminal of 100 columns."""


def attack_summary(contests: Sequence[Contest], n: int) -> list[dict[str, Any]]:
    """For each attack and contestant: all seconds, their ratios to ours, and what was left of n images."""
    return [
        {
            "attack": contest.case.label,
            "settings": contest.case.settings,
            "contestants": [_record(entry, _seconds_of_ours(contest), n) for entry in contest.entries],
        }
        for contest in contests
    ]


def _seconds_of_ours(contest: Contest) -> list[float]:
    return next(entry.seconds for entry in contest.entries if entry.name == OURS)


def _record(entry: Entry, ours: Sequence[float], n: int) -> dict[str, Any]:
    return {
        "who": entry.name,
        "how": entry.note,
        "seconds": entry.seconds,
        "over_ours": over(entry.seconds, ours),
        "robust": [100 * count / n for count in entry.robust],
        "outside": entry.outside,
        "error": entry.error,
    }


def attack_rows(contestants: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Text under `ATTACK_HEADINGS`: medians, the ratios' quartiles in brackets, the mean of what is left."""
    return [
        (
            c["who"],
            f"{np.median(c['seconds']):.1f}" if c["seconds"] else "-",
            ratio(c["over_ours"]),
            f"{np.mean(c['robust']):.1f}" if c["robust"] else "-",
            _how(c),
        )
        for c in contestants
    ]


def _how(contestant: Mapping[str, Any]) -> str:
    text = contestant["how"]
    if error := contestant["error"]:
        text = error if error == NOT_INSTALLED else f"failed: {' '.join(error.split())}"
    return text if len(text) <= LONGEST_NOTE else f"{text[: LONGEST_NOTE - 3]}..."


def attack_facts(report: Mapping[str, Any]) -> str:
    """The circumstances of a measurement."""
    versions = ", ".join(f"{name} {version or 'absent'}" for name, version in report["peers"].items())
    budget = "the full budget" if report["budget"] == 1 else f"{100 * report['budget']:g}% of the budget"
    return f"{facts(report)}; {budget}; {versions}"


def model_title(model: Mapping[str, Any]) -> str:
    return (
        f"{model['model']}: the first {model['n']} test images of {model['data']}, "
        f"eps {eps_text(model['eps'])}, {model['clean']:.1f}% right"
    )


def attack_markdown(report: Mapping[str, Any]) -> str:
    """All models of a report, a table for each attack."""
    parts = [f"Measured on {attack_facts(report)}."]
    for model in report["models"]:
        parts.append(f"**{model_title(model)}**")
        for attack in model["attacks"]:
            table = grid(ATTACK_HEADINGS, attack_rows(attack["contestants"]))
            parts.append(f"{attack['attack']} ({attack['settings']})\n\n{table}")
    return "\n\n".join(parts)
