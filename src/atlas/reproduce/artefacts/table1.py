"""Table 1: seven methods, clean and under every attack, and the time a batch."""

from __future__ import annotations

from atlas.report.comparison import CLEAN, WORST
from atlas.reproduce.artefact import Artefact, Row
from atlas.reproduce.figures import dots
from atlas.reproduce.paired import PairedTests
from atlas.reproduce.paper import TIME

NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
ATTACKS = ("black box", "PGD-20", "PGD-1000", "Un-T", "Multi-T", "AutoAttack", "RayS")
"""The paper has the last two in App. D.2, for CIFAR only."""


def _table1(task: str, steps: int) -> Artefact:
    presets = ["jac", *(f"{method}-{k}" for k in (1, steps) for method in ("adv", "trades", "atlas"))]
    attacks = [attack for attack in ATTACKS if (task, attack) != ("cifar100", "Multi-T")]
    return Artefact(
        name=f"table1-{task}",
        of=f"Table 1, {NAMES[task]}",
        about="seven methods under every attack, and the time a batch",
        rows=tuple(Row(task, preset) for preset in presets),
        columns=(CLEAN, *attacks, WORST, TIME),
        figure=dots,
        tables={
            name: PairedTests(f"atlas-{k}", (f"adv-{k}", f"trades-{k}"))
            for name, k in {"paired": 1, "paired-multi-step": steps}.items()
        },
    )


ARTEFACTS = (_table1("mnist", 20), _table1("cifar10", 10), _table1("cifar100", 10))
