"""The measured times as a plain table, as rows of text, and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from atlas.bench.cases import REFERENCE
from atlas.bench.memory import Memory
from atlas.bench.passes import EQUATIONS
from atlas.bench.step import Timing
from atlas.disk import write_atomic
from atlas.errors import UsageError


def markers_of(name: str) -> tuple[str, str]:
    """The lines of a page between which the table of this name goes."""
    return f"<!-- begin: {name} -->", f"<!-- end: {name} -->"


def markers(command: str, part: str = "") -> tuple[str, str]:
    """Those of the tables of a command of `atlas bench`; a page may have several parts, by name."""
    return markers_of(f"atlas bench {command} {part}".strip())


BEGIN, END = markers("step")
HEADINGS = ("method", "step ms", "bare ms", "step / bare", f"step / {REFERENCE}", "passes", "bound")
MEMORY_HEADINGS = ("method", "saved MB", "peak MB", "peak / saved", f"peak / {REFERENCE}")
REFERENCE_COST = EQUATIONS["adv"].passes.attacked(1).cost


def summary(timings: Sequence[Timing], memories: Mapping[str, Memory] | None = None) -> list[dict[str, Any]]:
    """For each method: quartiles of times and of ratios within a repeat, the passes, and every second.

    `memories`, by the methods' labels, where they were measured.
    """
    known = {label: asdict(memory) for label, memory in (memories or {}).items()}
    reference = np.array(next(t.step for t in timings if t.case.label == REFERENCE))
    return [
        {
            "method": t.case.label,
            "passes": t.case.passes.cost if t.case.passes else None,
            "step_ms": quartiles(1e3 * np.array(t.step)),
            "bare_ms": quartiles(1e3 * np.array(t.bare)) if t.bare else None,
            "step_over_bare": quartiles(np.array(t.step) / np.array(t.bare)) if t.bare else None,
            "step_over_reference": quartiles(np.array(t.step) / reference),
            "memory": known.get(t.case.label),
            "seconds": {"step": t.step, "bare": t.bare},
        }
        for t in timings
    ]


def quartiles(values: np.ndarray[Any, Any]) -> list[float]:
    """[25%, median, 75%]."""
    return [float(q) for q in np.quantile(values, (0.25, 0.5, 0.75))]


def over(seconds: Sequence[float], others: Sequence[float]) -> list[float] | None:
    """Quartiles of the ratios of the same repeats, as far as both have them; None where there is none."""
    both = min(len(seconds), len(others))
    return quartiles(np.array(seconds[:both]) / np.array(others[:both])) if both else None


def rows(methods: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """A summary as text under `HEADINGS`: medians, with the quartiles of the ratios in brackets."""
    return [
        (
            m["method"],
            f"{m['step_ms'][1]:.1f}",
            f"{m['bare_ms'][1]:.1f}" if m["bare_ms"] else "-",
            ratio(m["step_over_bare"]),
            ratio(m["step_over_reference"]),
            str(m["passes"] or "-"),
            f"{m['passes'] / REFERENCE_COST:.2f}" if m["passes"] else "-",
        )
        for m in methods
    ]


def memory_rows(methods: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """A summary as text under `MEMORY_HEADINGS`; empty where memory was not measured."""
    found = {m["method"]: m["memory"] for m in methods if m.get("memory")}
    return [
        (
            label,
            f"{memory['saved'] / 1e6:.1f}",
            f"{memory['peak'] / 1e6:.1f}",
            f"{memory['peak'] / memory['saved']:.2f}",
            f"{memory['peak'] / found[REFERENCE]['peak']:.2f}",
        )
        for label, memory in found.items()
    ]


def ratio(found: Sequence[float] | None) -> str:
    """Quartiles of ratios as text; a dash for none."""
    if found is None:
        return "-"
    low, median, high = found
    return f"{median:.2f} [{low:.2f}, {high:.2f}]"


def facts(report: Mapping[str, Any]) -> str:
    """One line on the circumstances of a measurement."""
    m = report["machine"]
    batch = f"batch {report['batch']}, " if "batch" in report else ""
    return (
        f"{m['device']} ({m['cpu']}, {m['cores']} cores, {m['threads']} threads), torch {m['torch']}, "
        f"{batch}median [quartiles] of {report['repeats']} repeats, "
        f"load average before the start {m['load_before']}{_set(report.get('settings'))}"
    )


def _set(settings: Mapping[str, Any] | None) -> str:
    return "".join(f", {key} = {value}" for key, value in (settings or {}).items())


def markdown(report: Mapping[str, Any]) -> str:
    """All models of a report, a table each."""
    parts = [f"Measured on {facts(report)}."]
    for model in report["models"]:
        parts += [model_heading(model), grid(HEADINGS, rows(model["methods"]))]
        if memory := memory_rows(model["methods"]):
            parts.append(grid(MEMORY_HEADINGS, memory))
    return "\n\n".join(parts)


def model_heading(model: Mapping[str, Any]) -> str:
    return f"**{model['model']}**, {'x'.join(map(str, model['shape']))}"


def grid(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (headings, ("---",) * len(headings), *lines))


def check_markers(path: Path, begin: str = BEGIN, end: str = END) -> None:
    """Refuse a file that has no place for the table, before an hour is spent on measuring."""
    text = path.read_text() if path.is_file() else ""
    if not (text.count(begin) == text.count(end) == 1 and text.index(begin) < text.index(end)):
        raise UsageError(f"{path} has no place for the table; wanted a file with the lines {begin} and {end}")


def put_between_markers(path: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Replace what the file has between the two marker lines."""
    check_markers(path, begin, end)
    before, _, rest = path.read_text().partition(begin)
    after = rest.partition(end)[2]
    write_atomic(path, f"{before}{begin}\n{text}\n{end}{after}".encode())
