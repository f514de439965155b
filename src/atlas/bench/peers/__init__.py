"""The same attacks by other libraries, called as their own users would, on the same budget.

One file a library, one function an attack: of a job and our attack, from which it reads the budget, it gives
x_adv [N, ...]. A library is imported when it first runs, so that none of them has to be there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from torch import Tensor

from atlas.bench.peers import adv_lib, art, foolbox, original, plain, torchattacks
from atlas.bench.peers.job import Job

__all__ = ["PEERS", "Job", "Peer", "versions"]


@dataclass(frozen=True)
class Peer:
    """Another implementation of an attack."""

    name: str
    run: Callable[..., Tensor]
    """x_adv of a job and an attack, or the attacks of a chain."""
    note: str = ""
    """Where it differs."""

    @property
    def installed(self) -> bool:
        return self.name not in PACKAGES or versions()[PACKAGES[self.name]] is not None


PACKAGES = {
    "torchattacks": "torchattacks",
    "foolbox": "foolbox",
    "ART": "adversarial-robustness-toolbox",
    "adv-lib": "adv-lib",
    "pyautoattack": "pyautoattack",
}
"""What they are called on PyPI."""
NO_DROPPING = "CE; every restart on every image"

PEERS: dict[str, tuple[Peer, ...]] = {
    "pgd": (
        Peer("plain loop", plain.pgd, "as written in a notebook"),
        Peer("torchattacks", torchattacks.pgd),
        Peer("foolbox", foolbox.pgd),
        Peer("ART", art.pgd),
        Peer("adv-lib", adv_lib.pgd, "keeps what fools on the way"),
    ),
    "un-t": (
        Peer("torchattacks", torchattacks.restarts, "CE; the fooled skip later restarts"),
        Peer("foolbox", foolbox.restarts, NO_DROPPING),
        Peer("ART", art.restarts, NO_DROPPING),
        Peer("adv-lib", adv_lib.restarts, "margin; the fooled skip later restarts"),
    ),
    "apgd": (
        Peer("pyautoattack", original.stage, "the original"),
        Peer("torchattacks", torchattacks.stage),
        Peer("ART", art.apgd, "an extra forward pass a step"),
        Peer("adv-lib", adv_lib.apgd),
    ),
    "apgd-t": (
        Peer("pyautoattack", original.stage, "the original; the fooled skip later targets"),
        Peer("torchattacks", torchattacks.stage, "the fooled skip later targets"),
        Peer("adv-lib", adv_lib.apgd_targeted, "the fooled skip later targets"),
    ),
    "fab-t": (
        Peer("pyautoattack", original.stage, "the original; the fooled skip later targets"),
        Peer("torchattacks", torchattacks.stage, "the fooled skip later targets"),
        Peer("adv-lib", adv_lib.fab_targeted, "every target on every image"),
    ),
    "square": (
        Peer("pyautoattack", original.stage, "the original; the fooled leave at once"),
        Peer("torchattacks", torchattacks.stage, "the fooled leave at once"),
        Peer("ART", art.square, "three passes a query; a schedule of its own"),
    ),
    "autoattack": (
        Peer("pyautoattack", original.autoattack, "the original"),
        Peer("torchattacks", torchattacks.autoattack, "of its four stages, with the same budgets"),
    ),
}
"""By the name of the attack. Who has no such attack is left out."""


def versions() -> dict[str, str | None]:
    """The version of every package; None where it is not installed."""
    return {package: _version(package) for package in PACKAGES.values()}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
