"""The other tables: the ablation, TradesJac, RayS and AutoAttack, and the comparison with five-step ADV."""

from __future__ import annotations

from atlas.report.comparison import CLEAN, WORST
from atlas.reproduce.artefact import Artefact, Row
from atlas.reproduce.artefacts.table1 import NAMES
from atlas.reproduce.figures import dots
from atlas.reproduce.paired import PairedTests
from atlas.reproduce.paper import TIME

CIFAR = ("cifar10", "cifar100")
STRONGEST = {"cifar10": "Multi-T", "cifar100": "Un-T"}
"""The attack that App. C calls the strongest: Multi-T has too many classes to go through on CIFAR-100."""


def _ablation(task: str) -> Artefact:
    presets = ("adv-1", "trades-1", "atlas-l-1", "atlas-g-1", "atlas-1")
    return Artefact(
        name=f"ablation-{task}",
        of=f"Table 2 (App. C), {NAMES[task]}",
        about="ATLAS without its global part (ATLAS-l) and without its local part (ATLAS-g)",
        rows=tuple(Row(task, preset) for preset in presets),
        columns=(CLEAN, STRONGEST[task], TIME),
        figure=dots,
        tables={"paired": PairedTests("atlas-1", presets[:-1])},
    )


def _of_both(presets: tuple[str, ...]) -> tuple[Row, ...]:
    """The presets on CIFAR-10, then on CIFAR-100."""
    return tuple(Row(task, preset, key=f"{task}-{preset}") for task in CIFAR for preset in presets)


TRADESJAC = Artefact(
    name="tradesjac",
    of="App. D.1",
    about="a loss of the same parts that is centred on clean images",
    rows=_of_both(("adv-1", "trades-1", "atlas-1", "trades-jac-1")),
    columns=(CLEAN, "black box", "PGD-20", "PGD-1000", "Un-T", "Multi-T", WORST, TIME),
    figure=dots,
    tables={f"paired-{t}": PairedTests(f"{t}-atlas-1", (f"{t}-trades-jac-1",)) for t in CIFAR},
)

RAYS_AUTOATTACK = Artefact(
    name="rays-autoattack",
    of="App. D.2",
    about="RayS and AutoAttack on all methods",
    rows=_of_both(("jac", "adv-1", "trades-1", "atlas-1", "trades-jac-1", "adv-10", "trades-10", "atlas-10")),
    columns=(CLEAN, "RayS", "AutoAttack", WORST),
    figure=dots,
    tables={
        f"paired-{t}": PairedTests(f"{t}-atlas-1", (f"{t}-adv-1", f"{t}-trades-1", f"{t}-trades-jac-1"))
        for t in CIFAR
    },
)

FIVE_STEP_ADV = Artefact(
    name="five-step-adv",
    of="Section 4",
    about="one-step ATLAS against ADV with as much time a batch, and against ten-step ADV",
    rows=tuple(Row("cifar10", preset) for preset in ("adv-1", "adv-5", "adv-10", "atlas-1")),
    columns=(CLEAN, "Multi-T", TIME),
    figure=dots,
    tables={"paired": PairedTests("atlas-1", ("adv-1", "adv-5", "adv-10"))},
)

ARTEFACTS = (*(_ablation(task) for task in CIFAR), TRADESJAC, RAYS_AUTOATTACK, FIVE_STEP_ADV)
