"""Make a study by attacking a run's model, or take it from the run's folder, where it is kept once made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atlas.attacks import frozen, lanes
from atlas.attacks.ledger import Outcome
from atlas.attacks.margin import Untargeted
from atlas.checkpoint import load_tensors, save_tensors
from atlas.config import fingerprint
from atlas.data import Images
from atlas.errors import CheckpointError, DiskError
from atlas.evaluation import Flag
from atlas.evaluation.inputs import check_inputs
from atlas.evaluation.plan import attack_table
from atlas.evaluation.probes import probe
from atlas.report.collect import Run
from atlas.report.display import Display
from atlas.report.study import RADII, SHOWN, STEPS, Settings, Study, wider
from atlas.rng import Rng
from atlas.threat import Threat

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
        logits = lanes.ask(model, x, 256)
        under = _Under(run, x, y, rng, tell)
        main = under.attack(settings.attack, threat, "answers under attack")
        held = [
            main.robust
            if steps == settings.steps
            else under.attack(Untargeted(steps=steps, restarts=1), threat, f"{steps} steps").robust
            for steps in STEPS
        ]
        radius = under.first_radius(settings.attack, threat, logits.argmax(1) == y, main.robust)
        logits_adv = lanes.ask(model, main.x_adv, 256)
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
        engine = lanes.Engine(attack, self.run.model, x, y, threat, rng)
        while not engine.finished:
            engine.step()
            self.tell.step(f"{self.run.name}: {what}", engine.share_done)
        return engine.outcome()

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
