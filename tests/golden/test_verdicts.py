"""What every attack finds on a small problem, as it was when its version was last raised.

Kept verdicts are reused by evaluations and reports, so a change of an attack that may change a verdict has to
raise `version` of the attack, or `VERSION` of `atlas.attacks.engine` where all attacks change. Then
``python tests/golden/test_verdicts.py`` writes `verdicts.json` anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atlas.attacks import ATTACKS, PGD, Attack, Transfer, engine
from atlas.rng import Rng
from atlas.threat import L2, Linf, Threat
from tests.unit.evaluation.runs import net, noise

STORED = Path(__file__).with_name("verdicts.json")
SETTINGS: dict[str, dict[str, Any]] = {
    "pgd": {"steps": 5, "restarts": 2},
    "apgd": {"steps": 10},
    "apgd-t": {"steps": 10, "targets": 2},
    "fab-t": {"steps": 10, "targets": 2},
    "square": {"queries": 60},
    "un-t": {"steps": 5, "restarts": 2},
    "multi-t": {"steps": 5, "restarts": 1},
    "rays": {"queries": 200},
}
MOST = 3
"""Verdicts of 97 that may differ: another processor sums in another order."""


def cases() -> dict[str, tuple[Attack, Threat]]:
    found: dict[str, tuple[Attack, Threat]] = {}
    for name, kind in ATTACKS.items():
        attack = kind(**SETTINGS.get(name, {}))
        for threat in (Linf(0.04), L2(0.1)):
            if isinstance(threat, attack.threats):
                found[f"{name} {type(threat).__name__}"] = attack, threat
    return found | {"transfer Linf": (Transfer((lambda x: net()(0.9 * x),), PGD(steps=20)), Linf(0.04))}


def verdicts(attack: Attack, threat: Threat) -> dict[str, Any]:
    images = noise()
    outcome = engine.run(attack, net(), images.x, images.y, threat, Rng.lanes(0, images.ids))
    version = f"{engine.VERSION}.{attack.version}"
    return {"version": version, "attempt": outcome.attempt.tolist(), "step": outcome.step.tolist()}


def differing(one: dict[str, Any], other: dict[str, Any]) -> int:
    both = [list(zip(case["attempt"], case["step"], strict=True)) for case in (one, other)]
    return sum(a != b for a, b in zip(*both, strict=True))


@pytest.mark.parametrize("name", cases())
def test_verdicts_change_with_the_version_only(name: str) -> None:
    found, stored = verdicts(*cases()[name]), json.loads(STORED.read_text())[name]
    assert len(set(found["attempt"])) > 2, "the case has images of every kind"
    assert found["version"] == stored["version"], f"write {STORED.name} anew"
    assert differing(found, stored) <= MOST, "raise the version of the attack, and write the file anew"


if __name__ == "__main__":
    known = json.loads(STORED.read_text()) if STORED.exists() else {}
    found = {name: verdicts(*case) for name, case in cases().items()}
    for name, case in found.items():
        if (
            name in known
            and case["version"] == known[name]["version"]
            and differing(case, known[name]) > MOST
        ):
            raise SystemExit(f"{name} finds something else and has the same version: raise that first")
    STORED.write_text(
        "{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()) + "\n}\n"
    )
