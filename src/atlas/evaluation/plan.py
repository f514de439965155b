"""What an evaluation is to do: which attacks, on which images, by which seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from atlas.attacks import ATTACKS, PGD, Attack, Model, Transfer, engine
from atlas.attacks.suites import TRANSFER, suite
from atlas.config import Registries, build, check_fields, integer, table_of
from atlas.data import Images
from atlas.errors import unknown
from atlas.models import source
from atlas.models.code import user_code
from atlas.rng import Rng
from atlas.threat import THREATS, Threat, check_threat

FIRST = "1.1"
"""The version of the engine and of an attack before either was changed."""
REGISTRIES: Registries = {Attack: ATTACKS, Threat: THREATS}


@dataclass(frozen=True)
class Plan:
    """All that decides the outcome beside the model and the images."""

    threat: Threat
    attacks: Mapping[str, Attack]
    """By label, in the order in which they run."""
    cascade: bool = False
    """Whether each attack runs only on the images that those before it have left."""
    seed: int = 0
    attack_dtype: str = "float32"
    eot: int = 1
    """Looks at an image whose mean is taken for the model's answer."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Attacks of the suite that cannot run, each with the reason."""

    def __post_init__(self) -> None:
        check_threat(self.threat)
        check_fields(self, where="")

    def table(self) -> dict[str, Any]:
        table = {
            "threat": table_of(self.threat, {}) | {"name": type(self.threat).__name__.lower()},
            "attacks": {label: attack_table(attack) for label, attack in self.attacks.items()},
            "standing": self.cascade,
            "seed": self.seed,
            "attack_dtype": self.attack_dtype,
            "eot": self.eot,
            "left_out": list(self.left_out),
        }
        # Keys have no order, and in a chain the images that an attack is given depend on those before it.
        return table | ({"order": list(self.attacks)} if self.cascade else {})


def attack_table(attack: Attack) -> dict[str, Any]:
    """The attack as plain data; one that is made of objects is known by its name and their fingerprints.

    The first version is left out, so that results from before there were versions are still found.
    """
    if isinstance(attack, Transfer):
        surrogates = [fingerprint(model) for model in attack.surrogates]
        table = {"name": TRANSFER, "surrogates": surrogates, "attack": attack_table(attack.attack)}
    elif type(attack) in ATTACKS.values():
        table = table_of(attack, REGISTRIES)
    else:
        table = {"name": type(attack).__name__, "value": str(attack)}
        table |= {"code": code} if (code := user_code(type(attack))) else {}
    version = f"{engine.VERSION}.{attack.version}"
    return table | ({} if version == FIRST else {"version": version})


def fingerprint(model: Model) -> str:
    """What tells one model from another: weights and layers, or the name of a function."""
    if isinstance(model, nn.Module):
        return source.fingerprint(model)
    return f"{type(model).__module__}.{getattr(model, '__qualname__', type(model).__qualname__)}"


def planned(
    threat: Threat,
    name: str,
    data: str,
    *,
    only: Sequence[str] = (),
    alone: bool = False,
    surrogates: Sequence[Model] = (),
    **rest: Any,
) -> Plan:
    """The plan of a suite for a data set, or of those of its attacks whose labels or names are in `only`.

    `alone` runs each attack on every image, also where the suite has it on what those before it left.
    """
    chosen = suite(name, data, norm=type(threat).__name__.lower())
    attacks, left_out = dict[str, Attack](), dict[str, str]()
    for label, table in (_only(chosen.attacks, only) if only else chosen.attacks).items():
        if table["name"] == TRANSFER and not surrogates:
            left_out[label] = "needs surrogate models (surrogates=..., --surrogate RUN)"
            continue
        attack = build_attack(table, surrogates)
        if only or isinstance(threat, attack.threats):
            attacks[label] = attack
        else:
            left_out[label] = f"is not defined for {threat}"
    return Plan(threat, attacks, chosen.cascade and not alone, left_out=left_out, **rest)


def build_attack(table: Mapping[str, Any], surrogates: Sequence[Model] = ()) -> Attack:
    """An attack from its table."""
    if table["name"] != TRANSFER:
        return build(Attack, table, REGISTRIES)
    return Transfer(tuple(surrogates), build(PGD, table.get("attack", {}), {}, "attack"))


def _only(tables: Mapping[str, Mapping[str, Any]], words: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Those of these labels or names, and other attacks by name."""
    picked: dict[str, Mapping[str, Any]] = {}
    for word in words:
        found = {k: t for k, t in tables.items() if word.lower() in (k.lower(), t["name"])}
        if not found and ":" in word:
            label = word.rpartition(":")[2]
            found = {word if label in picked else label: {"name": word}}
        if not found and word not in ATTACKS:
            names = [name for label, table in tables.items() for name in (label.lower(), table["name"])]
            raise unknown("attack", word, {*names, *ATTACKS})
        picked |= found or {word: {"name": word}}
    return picked


def chosen_images(images: Images, n: int | None, random: bool, seed: int) -> Images:
    """The first n images, or n random ones by the seed; all where n is None."""
    if n is None or integer(n, "n", least=1) >= len(images):
        return images
    if not random:
        return images.subset(slice(n))
    keys = Rng.lanes(seed, images.ids).fold("sample").bits(())
    return images.subset(keys.argsort(stable=True)[:n].sort().values)
