"""Tables: methods under attacks, and the time per batch (Table 1, Table 2, App. D, Section 4)."""

from __future__ import annotations

from atlas.evaluation.score import ON_CLEAN, WORST_CASE
from atlas_paper.artefact import Artefact, ModelRow
from atlas_paper.figures import dots
from atlas_paper.paper import TIME
from atlas_paper.write import PairedTests

NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
ATTACKS = ("black box", "PGD-20", "PGD-1000", "Un-T", "Multi-T", "AutoAttack", "RayS")
"""The paper has the last two in App. D.2, for CIFAR only."""


def _table1(task: str, steps: int) -> Artefact:
    presets = ["jac", *(f"{method}-{k}" for k in (1, steps) for method in ("adv", "trades", "atlas"))]
    attacks = [attack for attack in ATTACKS if (task, attack) != ("cifar100", "Multi-T")]
    return Artefact(
        name=f"table1-{task}",
        of=f"Table 1, {NAMES[task]}",
        rows=tuple(ModelRow(task, preset) for preset in presets),
        columns=(ON_CLEAN, *attacks, WORST_CASE, TIME),
        figure=dots,
        tables={
            name: PairedTests(f"atlas-{k}", (f"adv-{k}", f"trades-{k}"))
            for name, k in {"paired": 1, "paired-multi-step": steps}.items()
        },
    )


TABLE_1 = (_table1("mnist", 20), _table1("cifar10", 10), _table1("cifar100", 10))


CIFAR = ("cifar10", "cifar100")
STRONGEST = {"cifar10": "Multi-T", "cifar100": "Un-T"}
"""The attack that App. C calls the strongest: Multi-T has too many classes to go through on CIFAR-100."""


def _ablation(task: str) -> Artefact:
    presets = ("adv-1", "trades-1", "atlas-l-1", "atlas-g-1", "atlas-1")
    return Artefact(
        name=f"ablation-{task}",
        of=f"Table 2 (App. C), {NAMES[task]}",
        rows=tuple(ModelRow(task, preset) for preset in presets),
        columns=(ON_CLEAN, STRONGEST[task], TIME),
        figure=dots,
        tables={"paired": PairedTests("atlas-1", presets[:-1])},
    )


def _of_both(presets: tuple[str, ...]) -> tuple[ModelRow, ...]:
    """The presets on CIFAR-10, then on CIFAR-100."""
    return tuple(ModelRow(task, preset, key=f"{task}-{preset}") for task in CIFAR for preset in presets)


TRADESJAC = Artefact(
    name="tradesjac",
    of="App. D.1",
    rows=_of_both(("adv-1", "trades-1", "atlas-1", "trades-jac-1")),
    columns=(ON_CLEAN, "black box", "PGD-20", "PGD-1000", "Un-T", "Multi-T", WORST_CASE, TIME),
    figure=dots,
    tables={f"paired-{t}": PairedTests(f"{t}-atlas-1", (f"{t}-trades-jac-1",)) for t in CIFAR},
)

RAYS_AUTOATTACK = Artefact(
    name="rays-autoattack",
    of="App. D.2",
    rows=_of_both(("jac", "adv-1", "trades-1", "atlas-1", "trades-jac-1", "adv-10", "trades-10", "atlas-10")),
    columns=(ON_CLEAN, "RayS", "AutoAttack", WORST_CASE),
    figure=dots,
    tables={
        f"paired-{t}": PairedTests(f"{t}-atlas-1", (f"{t}-adv-1", f"{t}-trades-1", f"{t}-trades-jac-1"))
        for t in CIFAR
    },
)

FIVE_STEP_ADV = Artefact(
    name="five-step-adv",
    of="Section 4",
    rows=tuple(ModelRow("cifar10", preset) for preset in ("adv-1", "adv-5", "adv-10", "atlas-1")),
    columns=(ON_CLEAN, "Multi-T", TIME),
    figure=dots,
    tables={"paired": PairedTests("atlas-1", ("adv-1", "adv-5", "adv-10"))},
)

ARTEFACTS = (*TABLE_1, *(_ablation(task) for task in CIFAR), TRADESJAC, RAYS_AUTOATTACK, FIVE_STEP_ADV)
