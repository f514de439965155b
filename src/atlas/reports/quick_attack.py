"""What a page shows and no evaluation keeps: accuracy by radius and by steps, and answers under attack.

One cheap attack (Un-T, one start) on the first n test images, kept in the run's folder under the hash of all
that decides it, so that it is made once. It shows shapes and examples; the numbers to quote are those of
`atlas evaluate`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atlas.attacks import engine, frozen
from atlas.attacks.attack_log import Outcome
from atlas.attacks.margin import Untargeted
from atlas.checkpoint import load_tensors, save_tensors
from atlas.config import check_counts, fingerprint
from atlas.data import Images
from atlas.errors import CheckpointError, DiskError
from atlas.evaluation import Flag, Score
from atlas.evaluation.plan import attack_table
from atlas.evaluation.probes import probe
from atlas.evaluation.run_attack import check_inputs
from atlas.reports.collect import Run
from atlas.rng import Rng
from atlas.terminal import Terminal, share_bars
from atlas.threat import Threat

RADII = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
"""In units of the run's eps. Beyond it the accuracy has to fall to nothing, or the attack is blind."""
STEPS = (1, 2, 5, 10, 20, 50)
SHOWN = 10
"""Images in the gallery: of each class the first that is right, so that nobody picks them."""
FORM = 2
"""Counted up when what is kept changes."""


@dataclass(frozen=True)
class Settings:
    """What a reader can choose."""

    n: int = 200
    steps: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(n=self.n, steps=self.steps)

    @property
    def attack(self) -> Untargeted:
        return Untargeted(steps=self.steps, restarts=1)

    def table(self) -> dict[str, Any]:
        return {**asdict(self), "radii": RADII, "counts": STEPS, "shown": SHOWN, "form": FORM}


@dataclass(frozen=True, eq=False)
class Study:
    """Of N images; tensors on the CPU."""

    threat: Threat
    settings: Settings
    data: str
    data_hash: str
    ids: Tensor
    y: Tensor
    logits: Tensor
    """f(x), [N, C]."""
    logits_adv: Tensor
    """f(x') at the full radius, [N, C]; f(x) where x itself is wrong."""
    radius: Tensor
    """At which of RADII each image first falls, int64 [N]; -1 if wrong as it is, len(RADII) if never."""
    held: Tensor
    """Whether it stands after each of STEPS at the full radius, bool [len(STEPS), N]."""
    shown: Tensor
    """Which of the images are in the gallery, int64 [G]."""
    x: Tensor
    x_adv: Tensor
    """Those images, [G, C, H, W]."""
    flags: tuple[Flag, ...]
    class_names: tuple[str, ...] = ()

    def named(self, label: int) -> str:
        """What a class is called."""
        return self.class_names[label] if label < len(self.class_names) else str(label)

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Fatal flags, for which none of it must be shown as robustness."""
        return tuple(dict.fromkeys(flag.name for flag in self.flags if flag.fatal))

    @cached_property
    def by_radius(self) -> list[tuple[float, Score]]:
        """(eps, accuracy). An image that falls within some radius has fallen within every larger one."""
        scores = [self._score(self.radius > index) for index in range(-1, len(RADII))]
        return list(zip([0.0, *(wider(self.threat, r).eps for r in RADII)], scores, strict=True))

    @cached_property
    def by_steps(self) -> list[tuple[int, Score]]:
        return list(zip(STEPS, map(self._score, self.held), strict=True))

    @property
    def stands(self) -> Tensor:
        """Right at the image that the attack ended with at the full radius, bool [N]."""
        return self.logits_adv.argmax(1) == self.y

    def _score(self, right: Tensor) -> Score:
        return Score(int(right.sum()), self.n, self.reasons)


def wider(threat: Threat, share: float) -> Threat:
    """The threat with so many times its radius, as far as it can have that."""
    return threat.at(min(share * threat.eps, threat.largest_eps))


def grouped(studies: Mapping[str, Study]) -> list[dict[str, Study]]:
    """Studies of the same images under the same threat together."""
    groups: dict[tuple[object, ...], dict[str, Study]] = {}
    for name, each in studies.items():
        key = (each.data_hash, type(each.threat), each.threat.eps)
        groups.setdefault(key, {})[name] = each
    return list(groups.values())


def valid(studies: Mapping[str, Study]) -> dict[str, Study]:
    """Without those that fatal warnings make meaningless."""
    return {name: study for name, study in studies.items() if not study.reasons}


class Display:
    """A bar over the parts of all studies, on a terminal; nothing of a run's name is taken for markup."""

    def __init__(self, parts: int, *, shown: bool = True) -> None:
        self.console = Terminal(stderr=True, quiet=not shown)
        self.bars = share_bars(self.console)
        self.task = self.bars.add_task("", total=parts)
        self.what, self.over = "", -1

    def step(self, what: str, share: float) -> None:
        if what != self.what:
            self.what, self.over = what, self.over + 1
        self.bars.update(self.task, description=what, completed=self.over + share)

    def say(self, text: str) -> None:
        self.console.say(text, "yellow")


PARTS = len(STEPS) + len(RADII)
"""Attacks on each model, at most."""


def study(run: Run, images: Images, settings: Settings, tell: Display) -> Study:
    """From the run's folder where it is known, else by attacking the run's model."""
    assert run.threat is not None
    data, threat = images.subset(slice(settings.n)), run.threat
    data_hash = data.fingerprint()
    key = {"model": run.weights, "data": data_hash, **settings.table()}
    key |= {"threat": [type(threat).__name__, threat.eps], "attack": attack_table(settings.attack)}
    path = run.path / "report" / f"study-{fingerprint(key)}.safetensors"
    found = _known(path, key)
    if found is None:
        tensors, about = _made(run, data, settings, tell)
        found = tensors, {**about, "key": _plain(key)}
        try:
            save_tensors(path, *found)
        except DiskError as error:  # such as a folder of somebody else's
            tell.say(f"not kept for the next time: {error}")
    tensors, about = found
    flags = tuple(Flag(**flag) for flag in about["flags"])
    names = data.class_names
    return Study(
        threat, settings, data.name, data_hash, data.ids, data.y, flags=flags, class_names=names, **tensors
    )


def _known(path: Path, key: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """What is kept under the key. A damaged file, or one copied from elsewhere, is made again."""
    if path.exists():
        with suppress(CheckpointError):
            tensors, about = load_tensors(path)
            return (tensors, about) if about.get("key") == _plain(key) else None
    return None


def _plain(key: Mapping[str, Any]) -> Any:
    """As JSON gives it back."""
    return json.loads(json.dumps(key))


def _made(
    run: Run, data: Images, settings: Settings, tell: Display
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    assert run.model is not None
    assert run.threat is not None
    model, threat = run.model, run.threat
    device = next(model.parameters()).device
    x, y = data.pixels(slice(None), device), data.y.to(device)
    check_inputs(model, x, y, threat)
    rng = Rng.lanes(settings.seed, data.ids.to(device)).fold("report")
    with frozen(model):
        flags = probe(model, x, y, threat, rng=rng, eot=False)
        logits = engine.predict(model, x, 256)
        under = _Under(run, x, y, rng, tell)
        main = under.attack(settings.attack, threat, "answers under attack")
        held = [
            main.robust
            if steps == settings.steps
            else under.attack(Untargeted(steps=steps, restarts=1), threat, f"{steps} steps").robust
            for steps in STEPS
        ]
        radius = under.first_radius(settings.attack, threat, logits.argmax(1) == y, main.robust)
        logits_adv = engine.predict(model, main.x_adv, 256)
    shown = first_of_each_class(data.y, (logits.argmax(1) == y).cpu())
    tensors = {"logits": logits, "logits_adv": logits_adv, "radius": radius, "held": torch.stack(held)}
    tensors |= {"shown": shown, "x": x[shown.to(device)], "x_adv": main.x_adv[shown.to(device)]}
    return {k: v.cpu() for k, v in tensors.items()}, {"flags": [asdict(flag) for flag in flags]}


@dataclass(frozen=True, eq=False)
class _Under:
    """The images of a run under one attack after the other."""

    run: Run
    x: Tensor
    y: Tensor
    rng: Rng
    tell: Display

    def attack(self, attack: Untargeted, threat: Threat, what: str, which: Tensor | None = None) -> Outcome:
        assert self.run.model is not None
        which = torch.arange(len(self.y), device=self.y.device) if which is None else which
        x, y, rng = self.x[which], self.y[which], self.rng[which]
        search = engine.Engine(attack, self.run.model, x, y, threat, rng)
        while not search.finished:
            search.step()
            self.tell.step(f"{self.run.name}: {what}", search.share_done)
        return search.outcome()

    def first_radius(self, attack: Untargeted, threat: Threat, right: Tensor, robust: Tensor) -> Tensor:
        """At which of RADII each image falls, from the smallest up, those that have fallen left out.

        right, robust: on the images themselves, and under this attack at the full radius.
        """
        radius = torch.full_like(self.y, len(RADII))
        radius[~right] = -1
        for index, share in enumerate(RADII):
            which = (radius == len(RADII)).nonzero()[:, 0]
            if not len(which):
                break
            ball = wider(threat, share)
            known = share == 1.0
            held = robust[which] if known else self.attack(attack, ball, f"{share:g} eps", which).robust
            radius[which[~held]] = index
        return radius


def first_of_each_class(y: Tensor, right: Tensor) -> Tensor:
    """The places of the first image of each class that is right, else of its first; int64 [G], by class.

    Of the SHOWN classes that come first, whatever the model, so that galleries of several can be joined.
    """
    labels = list(dict.fromkeys(y.tolist()))[:SHOWN]
    return torch.tensor([_first(y == label, right) for label in sorted(labels)], device="cpu")


def _first(its: Tensor, right: Tensor) -> int:
    """The first of a class's images that is right, else the first."""
    wanted = its & right
    return int((wanted if wanted.any() else its).nonzero()[0, 0])
