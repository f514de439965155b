"""The measured matches as plain data, as rows of text, and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atlas.bench.attack import NOT_INSTALLED, OURS
from atlas.bench.cases import REFERENCE
from atlas.bench.matches import PLAIN, Match, Side
from atlas.bench.report import facts, grid, model_heading, over, quartiles, ratio

MATCH_HEADINGS = ("who", "ms a step", f"time / {OURS}", "note")
OWN_HEADINGS = (f"step / {REFERENCE}", "both plain", f"{OURS} / plain", f"both {OURS}")
LONGEST_NOTE = 60


def match_summary(matches: Sequence[Match]) -> list[dict[str, Any]]:
    """For each method and side: all seconds, and the quartiles of their ratios to ours."""
    return [
        {"method": m.case.label, "sides": [_record(side, m.sides[0].seconds) for side in m.sides]}
        for m in matches
    ]


def _record(side: Side, ours: Sequence[float]) -> dict[str, Any]:
    return {
        "who": side.name,
        "note": side.note,
        "seconds": side.seconds,
        "over_ours": over(side.seconds, ours),
        "error": side.error,
    }


def match_rows(sides: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Text under `MATCH_HEADINGS`: medians, with the quartiles of the ratios in brackets."""
    return [
        (
            side["who"],
            f"{1e3 * np.median(side['seconds']):.1f}" if side["seconds"] else "-",
            ratio(side["over_ours"]),
            _note(side),
        )
        for side in sides
    ]


def own_rows(methods: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Text under `OWN_HEADINGS`: our steps over one-step ADV's of the same repeat, each with the settings and
    without. Empty where there are no settings, or no one-step ADV; who failed on the way is left out.
    """
    seconds = {(m["method"], s["who"]): np.array(s["seconds"]) for m in methods for s in m["sides"]}
    plain, ours = seconds.get((REFERENCE, PLAIN)), seconds.get((REFERENCE, OURS))
    if plain is None or ours is None:
        return []
    return [
        (
            label,
            *(
                ratio(quartiles(seconds[label, who] / over))
                for who, over in ((PLAIN, plain), (OURS, plain), (OURS, ours))
            ),
        )
        for label in (m["method"] for m in methods)
        if len(seconds[label, PLAIN]) == len(seconds[label, OURS]) == len(plain) == len(ours)
    ]


def _note(side: Mapping[str, Any]) -> str:
    if (error := side["error"]) is None:
        return str(side["note"])
    text = error if error == NOT_INSTALLED else f"failed: {' '.join(error.split())}"
    return text if len(text) <= LONGEST_NOTE else f"{text[: LONGEST_NOTE - 3]}..."


def match_facts(report: Mapping[str, Any]) -> str:
    """The circumstances of a measurement."""
    versions = ", ".join(f"{name} {version or 'absent'}" for name, version in report["peers"].items())
    return f"{facts(report)}; {versions}"


def match_markdown(report: Mapping[str, Any]) -> str:
    """All models of a report, a table for each method."""
    parts = [f"Measured on {match_facts(report)}."]
    for model in report["models"]:
        parts.append(model_heading(model))
        for found in model["methods"]:
            parts.append(f"{found['method']}\n\n{grid(MATCH_HEADINGS, match_rows(found['sides']))}")
        if own := own_rows(model["methods"]):
            parts.append(grid(OWN_HEADINGS, own))
    return "\n\n".join(parts)
