"""The quick attack of a report: accuracy by radius and by steps, and predictions under attack.

One cheap attack (Un-T, one start) on the first n test images, stored in the run's folder under the hash of
everything it depends on. It shows shapes and examples; the numbers to quote are those of `atlas evaluate`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
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
from atlas.evaluation.run_attack import check_model
from atlas.reports.collect import ReportedModel, load_test_images
from atlas.reports.comparison import MOST_CLASSES, by_class
from atlas.reports.tables import Cell, Table
from atlas.rng import Rng
from atlas.terminal import Terminal, share_bars
from atlas.threat import Threat

RADII = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
"""In units of the run's eps. Far beyond it a working attack leaves no accuracy."""
STEPS = (1, 2, 5, 10, 20, 50)
SHOWN = 10
"""Classes in the gallery: of each the first image that is right."""
MOST_ERRORS = 10
"""Of many classes, what a table of errors has in place of a matrix of all."""
SEED, FORM = 0, 2
"""Of the random starts; the version of the stored file."""


@dataclass(frozen=True, eq=False)
class Study:
    """The results of the quick attack on N images; tensors on the CPU."""

    threat: Threat
    steps: int
    images: Images
    flags: tuple[Flag, ...]
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

    def named(self, label: int) -> str:
        """The name of a class."""
        names = self.images.class_names
        return names[label] if label < len(names) else str(label)

    @property
    def y(self) -> Tensor:
        return self.images.y

    @property
    def n(self) -> int:
        return len(self.images)

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


def by_class_of(studies: Mapping[str, Study]) -> Table:
    """Robust accuracy in each class under the quick attack."""
    first = next(iter(studies.values()))
    right = {name: study.stands for name, study in valid(studies).items()}
    invalid = {name: f"invalid ({', '.join(s.reasons)})" for name, s in studies.items() if s.reasons}
    what = f"Under the quick attack of this report, n = {first.n}"
    return by_class(what, first.y, right, invalid, first.named)


def confusion(name: str, study: Study) -> Table:
    """Predictions under attack by true class, in percent; of many classes the most frequent errors.

    The values of the cells are counts of images.
    """
    size = study.logits.shape[1]
    flat = torch.bincount(study.y * size + study.logits_adv.argmax(1), minlength=size * size)
    counts = flat.view(size, size)
    total = counts.sum(1).tolist()
    rows: list[list[Cell | str]]
    if size <= MOST_CLASSES:
        rows = [
            [study.named(k), *(Cell(f"{100 * c / total[k]:.0f}" if c else "", c) for c in row)]
            for k, row in enumerate(counts.tolist())
        ]
        return Table.of(name, ["", *map(study.named, range(size))], rows)
    wrong = counts.clone().fill_diagonal_(0).flatten()
    order = wrong.argsort(descending=True, stable=True)[:MOST_ERRORS].tolist()
    pairs = [(int(wrong[at]), *divmod(at, size)) for at in order if wrong[at]]
    rows = [
        [study.named(k), study.named(other), Cell.number(n, "{:d}"), Cell.number(total[k], "{:d}")]
        for n, k, other in pairs
    ]
    return Table.of(name, ["class", "classified as", "images", "of"], rows)


def wider(threat: Threat, share: float) -> Threat:
    """The threat with `share` times its radius, at most the largest possible one."""
    return threat.at(min(share * threat.eps, threat.largest_eps))


def grouped(studies: Mapping[str, Study]) -> list[dict[str, Study]]:
    """Studies of the same images under the same threat together."""
    groups: dict[tuple[object, ...], dict[str, Study]] = {}
    for name, each in studies.items():
        groups.setdefault((each.images.fingerprint(), each.threat), {})[name] = each
    return list(groups.values())


def valid(studies: Mapping[str, Study]) -> dict[str, Study]:
    """Without those that fatal warnings make meaningless."""
    return {name: study for name, study in studies.items() if not study.reasons}


def studied(
    runs: Sequence[ReportedModel],
    n: int = 200,
    steps: int = 20,
    *,
    root: Path | None = None,
    progress: bool = True,
) -> dict[str, Study]:
    """The quick attacks in `steps` steps on n images of all runs with weights, read from folders or made."""
    check_counts(n=n, steps=steps)
    images: dict[str, Images] = {}
    found = {}
    with share_bars(Terminal(stderr=True, quiet=not progress)) as bars:
        for run in runs:
            if run.model is not None and run.threat and run.data:
                if run.data not in images:
                    images[run.data] = load_test_images(run.data, root)
                found[run.name] = study(run, images[run.data], n, steps, bars)
    return found


def study(run: ReportedModel, images: Images, n: int, steps: int, bars: Progress) -> Study:
    """Read from the run's folder if it is there, else made by attacking the run's model."""
    assert run.threat is not None
    data = images.subset(slice(n))
    key: dict[str, Any] = {"model": run.weights, "data": data.fingerprint(), "n": n, "steps": steps}
    key |= {"threat": [type(run.threat).__name__, run.threat.eps], "attack": attack_table(_attack(steps))}
    key |= {"seed": SEED, "radii": RADII, "counts": STEPS, "shown": SHOWN, "form": FORM}
    key = json.loads(json.dumps(key))  # as the file gives it back
    path = run.path / "report" / f"study-{fingerprint(key)}.safetensors"
    about: dict[str, Any] = {}
    with suppress(CheckpointError):  # there is none, or it is damaged
        tensors, about = load_tensors(path)
    if about.get("key") != key:  # or it was copied from another run
        tensors, flags = _made(run, data, steps, bars)
        about = {"flags": [asdict(flag) for flag in flags], "key": key}
        try:
            save_tensors(path, tensors, about)
        except DiskError as error:  # such as a folder without write permission
            bars.console.print(f"the quick attack was not stored: {error}", style="yellow", soft_wrap=True)
    # Evaluations see more than a quick attack does.
    fatal = [flag for report in run.evaluations.values() for flag in report.flags if flag.fatal]
    flags = list(dict.fromkeys([*(Flag(**flag) for flag in about["flags"]), *fatal]))
    return Study(run.threat, steps, data, tuple(flags), **tensors)


def _attack(steps: int) -> Untargeted:
    return Untargeted(steps=steps, restarts=1)


def _made(
    run: ReportedModel, data: Images, steps: int, bars: Progress
) -> tuple[dict[str, Tensor], list[Flag]]:
    """The tensors of a study, and the warnings that the model raises."""
    model, threat = run.model, run.threat
    assert model is not None
    assert threat is not None
    device = next(model.parameters()).device
    x, y = data.pixels(slice(None), device), data.y.to(device)
    check_model(model, x, data)
    rng = Rng.lanes(SEED, data.ids.to(device)).fold("report")
    task = bars.add_task(run.name, total=len(STEPS) + len(RADII))

    def attacked(what: str, attack: Untargeted, which: Tensor, ball: Threat) -> Outcome:
        bars.update(task, description=f"{run.name}: {what}")
        outcome = engine.run(attack, model, x[which], y[which], ball, rng[which])
        bars.advance(task)
        return outcome

    with frozen(model):
        flags = probe(model, x, y, threat, rng=rng, eot=False)
        logits = engine.predict(model, x, 256)
        right, everything = logits.argmax(1) == y, torch.arange(len(y), device=device)
        main = attacked("predictions under attack", _attack(steps), everything, threat)
        held = [
            main.robust if k == steps else attacked(f"{k} steps", _attack(k), everything, threat).robust
            for k in STEPS
        ]
        radius = torch.where(right, len(RADII), -1)
        for index, share in enumerate(RADII):  # from the smallest, on the images that are still right
            which = (radius == len(RADII)).nonzero()[:, 0]
            if not len(which):
                break
            if share == 1.0:
                robust = main.robust[which]
            else:
                robust = attacked(f"{share:g} eps", _attack(steps), which, wider(threat, share)).robust
            radius[which[~robust]] = index
        logits_adv = engine.predict(model, main.x_adv, 256)
    shown = first_of_each_class(data.y, right.cpu())
    tensors = {"logits": logits, "logits_adv": logits_adv, "radius": radius, "held": torch.stack(held)}
    tensors |= {"shown": shown, "x": x[shown.to(device)], "x_adv": main.x_adv[shown.to(device)]}
    return {k: v.cpu() for k, v in tensors.items()}, flags


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
