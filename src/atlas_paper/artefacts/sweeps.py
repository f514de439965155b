"""The figures of App. B.1, C and F: clean and robust accuracy over a parameter.

The paper's figures are pictures: its text names the parameters that it chose, not all that it tried. The
values here lie around those, each a factor of about two from the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atlas.evaluation.score import ON_CLEAN
from atlas_paper import paper
from atlas_paper.artefact import Artefact, ModelRow
from atlas_paper.artefacts.tables import CIFAR, STRONGEST
from atlas_paper.figures import Lines

LOCAL_ALPHAS = (5e-5, 1e-4, 2e-4, 4e-4, 8e-4)
BETAS = (1.0, 2.0, 4.0, 5.0, 8.0)
JAC_ALPHAS = (0.1, 0.2, 0.5, 1.0, 2.0)
GRID_ALPHAS, GRID_BETAS = (1e-4, 2e-4, 4e-4), (2.0, 5.0, 8.0)
ROBUST = tuple(dict.fromkeys(STRONGEST.values()))


def _row(task: str, preset: str, values: Mapping[str, Any], *, known: Sequence[Any], brief: bool) -> ModelRow:
    """A point of a sweep. `known`: the values at which the paper's tables have the preset's row."""
    changes = {f"method.{name}": value for name, value in values.items()}
    words = ", ".join(f"{name}={value:g}" for name, value in values.items())
    return ModelRow(
        task,
        preset,
        changes,
        key=f"{task}-{preset.removesuffix('-1')}-{words.replace(', ', '-')}",
        label=f"{paper.label(preset)}, {words}",
        columns=(ON_CLEAN, STRONGEST[task]),
        paper=preset if list(values.values()) == list(known) else "",
        smoke=brief,
    )


def _sweep(preset: str, name: str, grid: Sequence[float], known: float | None) -> tuple[ModelRow, ...]:
    """One parameter, on both data sets; at scale smoke its ends only."""
    return tuple(
        _row(task, preset, {name: value}, known=[known], brief=value in (grid[0], grid[-1]))
        for task in CIFAR
        for value in grid
    )


LOCAL, GLOBAL = _sweep("atlas-l-1", "alpha", LOCAL_ALPHAS, None), _sweep("atlas-g-1", "beta", BETAS, None)
TRADES, JAC = _sweep("trades-1", "beta", BETAS, 2.0), _sweep("jac", "alpha", JAC_ALPHAS, 0.5)
GRID = tuple(
    _row(task, "atlas-1", {"alpha": a, "beta": b}, known=[2e-4, 5.0], brief=a != 2e-4 and b == 5.0)
    for task in CIFAR
    for b in GRID_BETAS
    for a in GRID_ALPHAS
)


def _step_row(step: float, plateau: int) -> ModelRow:
    first = (step, plateau) == (1.25, 2)
    return ModelRow(
        "cifar10",
        "adv-1",
        {"method.attack.relative_step": step, "training.schedule.plateau": plateau},
        key=f"step={step:g}-plateau={plateau}",
        label=f"step {step:g} eps, plateau {plateau}",
        paper="adv-1" if first else "",
        smoke=step != 1.5,
    )


PLATEAUS = paper.text("plateaus")
STEPS = tuple(_step_row(step, plateau) for plateau in PLATEAUS for step in paper.text("step_sizes"))


def _figure(name: str, of: str, rows: tuple[ModelRow, ...], lines: Lines) -> Artefact:
    columns = (ON_CLEAN, *(c for c in ROBUST if any(c in (row.columns or ()) for row in rows)))
    return Artefact(name, of, rows, columns, lines)


def _by(key: str, **names: str) -> Lines:
    """A line for each preset, over a setting of the method."""
    curves: dict[str, tuple[str, dict[str, Any]]] = {
        label: (preset.replace("_", "-"), {}) for preset, label in names.items()
    }
    return Lines(f"method.{key}", key, curves)


ARTEFACTS = (
    Artefact(
        name="step-size",
        of="App. B.1",
        rows=STEPS,
        columns=(ON_CLEAN, "Multi-T"),
        figure=Lines(
            "method.attack.relative_step",
            "step, in units of eps",
            {f"plateau {k}": ("adv-1", {"training.schedule.plateau": k}) for k in PLATEAUS},
            log=False,
        ),
    ),
    _figure("alpha-sweep", "App. C", LOCAL, _by("alpha", atlas_l_1="ATLAS-l")),
    _figure("beta-sweep", "App. C", GLOBAL, _by("beta", atlas_g_1="ATLAS-g")),
    _figure(
        "atlasg-vs-trades",
        "App. C.1",
        (*GLOBAL, *TRADES),
        _by("beta", atlas_g_1="ATLAS-g", trades_1="TRADES"),
    ),
    _figure("jac-sweep", "App. F.1", JAC, _by("alpha", jac="JAC")),
    _figure("trades-sweep", "App. F.2", TRADES, _by("beta", trades_1="TRADES")),
    _figure(
        "atlas-grid",
        "App. F.3",
        GRID,
        Lines(
            "method.alpha",
            "alpha",
            {f"beta = {b:g}": ("atlas-1", {"method.beta": b}) for b in GRID_BETAS},
        ),
    ),
)
