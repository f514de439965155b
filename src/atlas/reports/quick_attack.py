"""The quick attack of a report: accuracy by radius and by steps, and predictions under attack.

One cheap attack (Un-T, one start) on the first n test images, stored in the run's folder under the hash of
everything it depends on. It shows shapes and examples; the numbers to quote are those of `atlas evaluate`.
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
from atlas.reports.collect import ReportedModel
from atlas.rng import Rng
from atlas.terminal import Terminal, share_bars
from atlas.threat import Threat

RADII = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
"""In units of the run's eps. Far beyond it a working attack leaves no accuracy."""
STEPS = (1, 2, 5, 10, 20, 50)
SHOWN = 10
"""Classes in the gallery: of each the first image that is right."""
FORM = 2
"""The version of the stored file."""


@dataclass(frozen=True)
class Settings:
    """The settings of the quick attack."""

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
    """The results of the quick attack on N images; tensors on the CPU."""

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
    """At which of RADII each image is first fooled, int64 [N]; -1 if wrong before, len(RADII) if never."""
    held: Tensor
    """Whether it is right after each of STEPS at the full radius, bool [len(STEPS), N]."""
    shown: Tensor
    """Which of the images are in the gallery, int64 [G]."""
    x: Tensor
    x_adv: Tensor
    """Those images, [G, C, H, W]."""
    flags: tuple[Flag, ...]
    class_names: tuple[str, ...] = ()

    def named(self, label: int) -> str:
        """The name of a class."""
        return self.class_names[label] if label < len(self.class_names) else str(label)

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The names of fatal warnings: none of it may be shown as robustness."""
        return tuple(dict.fromkeys(flag.name for flag in self.flags if flag.fatal))

    @cached_property
    def by_radius(self) -> list[tuple[float, Score]]:
        """(eps, accuracy). An image that is fooled within a radius counts as fooled within larger ones."""
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
    """The threat with `share` times its radius, at most the largest possible one."""
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


class StudyProgress:
    """A progress bar over the attacks of all studies, on a terminal."""

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


def study(run: ReportedModel, images: Images, settings: Settings, display: StudyProgress) -> Study:
    """Read from the run's folder if it is there, else made by attacking the run's model."""
    assert run.threat is not None
    data, threat = images.subset(slice(settings.n)), run.threat
    data_hash = data.fingerprint()
    key = {"model": run.weights, "data": data_hash, **settings.table()}
    key |= {"threat": [type(threat).__name__, threat.eps], "attack": attack_table(settings.attack)}
    path = run.path / "report" / f"study-{fingerprint(key)}.safetensors"
    found = _known(path, key)
    if found is None:
        tensors, about = _made(run, data, settings, display)
        found = tensors, {**about, "key": _plain(key)}
        try:
            save_tensors(path, *found)
        except DiskError as error:  # such as a folder without write permission
            display.say(f"the quick attack was not stored: {error}")
    tensors, about = found
    flags = tuple(Flag(**flag) for flag in about["flags"])
    names = data.class_names
    return Study(
        threat, settings, data.name, data_hash, data.ids, data.y, flags=flags, class_names=names, **tensors
    )


def _known(path: Path, key: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """What is stored under the key. A damaged file, or one copied from another run, is made again."""
    if path.exists():
        with suppress(CheckpointError):
            tensors, about = load_tensors(path)
            return (tensors, about) if about.get("key") == _plain(key) else None
    return None


def _plain(key: Mapping[str, Any]) -> Any:
    """As JSON gives it back."""
    return json.loads(json.dumps(key))


def _made(
    run: ReportedModel, data: Images, settings: Settings, display: StudyProgress
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    assert run.model is not None
    assert run.threat is not None
    model, threat, chosen = run.model, run.threat, settings.attack
    device = next(model.parameters()).device
    x, y = data.pixels(slice(None), device), data.y.to(device)
    check_inputs(model, x, y, threat)
    rng = Rng.lanes(settings.seed, data.ids.to(device)).fold("report")

    def attacked(attack: Untargeted, ball: Threat, what: str, which: Tensor) -> Outcome:
        search = engine.Engine(attack, model, x[which], y[which], ball, rng[which])
        while not search.finished:
            search.step()
            display.step(f"{run.name}: {what}", search.share_done)
        return search.outcome()

    with frozen(model):
        flags = probe(model, x, y, threat, rng=rng, eot=False)
        logits = engine.predict(model, x, 256)
        right, everything = logits.argmax(1) == y, torch.arange(len(y), device=device)
        main = attacked(chosen, threat, "predictions under attack", everything)
        held = [
            main.robust
            if steps == settings.steps
            else attacked(Untargeted(steps=steps, restarts=1), threat, f"{steps} steps", everything).robust
            for steps in STEPS
        ]
        radius = torch.where(right, len(RADII), -1)
        for index, share in enumerate(RADII):  # from the smallest, on the images that are still right
            which = (radius == len(RADII)).nonzero()[:, 0]
            if not len(which):
                break
            at_eps, ball = share == 1.0, wider(threat, share)
            robust = main.robust[which] if at_eps else attacked(chosen, ball, f"{share:g} eps", which).robust
            radius[which[~robust]] = index
        logits_adv = engine.predict(model, main.x_adv, 256)
    shown = first_of_each_class(data.y, right.cpu())
    tensors = {"logits": logits, "logits_adv": logits_adv, "radius": radius, "held": torch.stack(held)}
    tensors |= {"shown": shown, "x": x[shown.to(device)], "x_adv": main.x_adv[shown.to(device)]}
    return {k: v.cpu() for k, v in tensors.items()}, {"flags": [asdict(flag) for flag in flags]}


def first_of_each_class(y: Tensor, right: Tensor) -> Tensor:
    """The indices of the first image of each class that is right, else of its first; int64 [G], by class.

    Of the first SHOWN classes to appear, whatever the model, so that galleries of several can be joined.
    """
    found = []
    for label in sorted(list(dict.fromkeys(y.tolist()))[:SHOWN]):
        of_class = y == label
        known = of_class & right
        found.append(int((known if known.any() else of_class).nonzero()[0, 0]))
    return torch.tensor(found, device="cpu")
