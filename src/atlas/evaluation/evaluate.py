"""`evaluate`: put a model under attacks, keep what they find of every example, say how far to trust it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atlas.attacks import Attack, Model, frozen
from atlas.data import Images, as_images
from atlas.disk import locked
from atlas.errors import UsageError
from atlas.evaluation.course import Subject, finish
from atlas.evaluation.display import Display
from atlas.evaluation.flags import after
from atlas.evaluation.folder import EvaluationFolder, slug
from atlas.evaluation.plan import Plan, attack_table, chosen_images, fingerprint, planned
from atlas.evaluation.probes import probe
from atlas.evaluation.results import AttackResult, Report, columns_of
from atlas.evaluation.shards import Shard
from atlas.signals import Requests, caught_signals
from atlas.threat import Threat


def evaluate(
    model: Model,
    images: object,
    threat: Threat,
    suite: str = "quick",
    *,
    attacks: Mapping[str, Attack] | None = None,
    only: Sequence[str] = (),
    alone: bool = False,
    n: int | None = None,
    random: bool = False,
    seed: int = 0,
    surrogates: Sequence[Model] = (),
    folder: Path | str | None = None,
    batch_size: int = 256,
    attack_dtype: str = "float32",
    eot: int = 1,
    save_images: bool = False,
    shard: Shard | None = None,
    model_key: str | None = None,
    progress: bool = True,
) -> Report:
    """How robust the model is against the attacks of a suite (`atlas suites`), or against `attacks` by label.

        report = atlas.evaluate(model, (x, y), atlas.Linf(8 / 255), suite="autoattack", n=1000)
        print(report.worst)                                  # 45.3% [42.2, 48.4]

    model: any callable from images [B, C, H, W] in [0, 1] to logits [B, C]; it comes back as it was. images:
    whatever `atlas.data.as_images` takes; of them the first `n`, or `n` by chance (`random`). With a `folder`
    what is found is kept there, and an evaluation that was killed goes on. A `shard` of several evaluates
    its part of the images only, without the honesty checks; `atlas.evaluation.merge` joins the parts.
    `model_key` names the model in the folder where its weights cannot.
    """
    data = chosen_images(as_images(images), n, random, seed)
    rest: dict[str, Any] = {"seed": seed, "attack_dtype": attack_dtype, "eot": eot}
    if attacks is None:
        plan = planned(threat, suite, data.name, only=only, alone=alone, surrogates=surrogates, **rest)
    else:
        plan = Plan(threat, dict(attacks), **rest)
    _check_labels(plan.attacks)
    display = Display(shown=progress)
    for label in plan.left_out:
        display.say(f"{label} is left out: it needs surrogate models (surrogates=..., --surrogate RUN)")
    about = {"model": model_key or fingerprint(model), **about_data(data), **plan.table()}
    place = None
    if folder is not None:
        place = EvaluationFolder(shard.folder(Path(folder)) if shard else Path(folder))
    with ExitStack() as stack:
        stack.enter_context(display)
        stack.enter_context(locked(place.path) if place else nullcontext())
        stack.enter_context(frozen(model))
        if place:
            place.claim(about)
        requests, seconds = stack.enter_context(caught_signals()), place.times() if place else {}
        work = _Work(plan, about, place, display, requests, save_images, seconds)
        return work.run(model, data, batch_size, shard)


def about_data(data: Images) -> dict[str, Any]:
    return {"data": data.name, "data_hash": data.fingerprint(), "n": len(data)}


def _check_labels(attacks: Mapping[str, Attack]) -> None:
    if not attacks:
        raise UsageError("there is no attack to run; choose a suite or give attacks")
    files = [slug(label) for label in attacks]
    if len(set(files)) < len(files):
        raise UsageError(f"labels {list(attacks)} would share files; wanted different letters or digits")


@dataclass(frozen=True)
class _Work:
    """An evaluation in its folder, if it has one."""

    plan: Plan
    about: Mapping[str, Any]
    place: EvaluationFolder | None
    display: Display
    requests: Requests
    save_images: bool
    seconds: dict[str, float]
    """Of each attack that is over."""

    def run(self, model: Model, data: Images, batch_size: int, shard: Shard | None) -> Report:
        images = data.subset(shard.part) if shard else data
        subject = Subject.of(model, images, self.plan, batch_size)
        right = subject.logits.argmax(1).eq(subject.y).cpu()
        results = self._attacked(subject, images.ids, right)
        flags = []
        if shard is None:
            eot = self.plan.eot > 1
            flags = probe(subject.model, subject.x, subject.y, self.plan.threat, rng=subject.rng, eot=eot)
            flags += after([result.record() for result in results.values()])
        report = Report(self.about, images.ids, images.y, right, results, flags, self.seconds)
        if self.place:
            self.place.save_columns("clean", {"ids": images.ids, "y": images.y, "right": right})
            if shard is None:
                self.place.save_summary(report.summary())
        return report

    def _attacked(self, subject: Subject, ids: Tensor, right: Tensor) -> dict[str, AttackResult]:
        results: dict[str, AttackResult] = {}
        tried = torch.ones_like(right)
        for label, attack in self.plan.attacks.items():
            results[label] = result = self._result(label, attack, subject, ids, tried)
            if self.plan.standing:
                tried = tried & result.survived
        return results

    def _result(
        self, label: str, attack: Attack, subject: Subject, ids: Tensor, tried: Tensor
    ) -> AttackResult:
        """What the attack does to the images of the mask `tried`: from the folder, or by running it."""
        name, attempts = f"attack-{slug(label)}", attack.attempts(subject.logits.shape[1])
        known = (label, attack_table(attack), attack.white_box, attack.steps, attempts)
        found = self.place.load_columns(name) if self.place else None
        if found is not None:
            return AttackResult(*known, **found)
        engine = subject.under(attack, tried)
        self.seconds[label] = finish(label, engine, self.place, self.display, self.requests)
        outcome = engine.outcome()
        result = AttackResult(*known, **columns_of(outcome)).spread(tried)
        if self.place:
            if self.save_images:
                fooled = outcome.attempt.cpu() >= 0
                self.place.save_images(label, ids[tried][fooled], outcome.x_adv.cpu()[fooled])
            self.place.note_time(label, self.seconds[label])
            self.place.save_columns(name, result.columns())
            self.place.drop_state(label)
        return result
