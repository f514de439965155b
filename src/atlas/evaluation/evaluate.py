"""`evaluate`: put a model under attacks, keep what they find of every example, say how far to trust it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atlas.attacks import Attack, Model, NotFinite, Transfer, frozen
from atlas.attacks.engine import predict
from atlas.attacks.gradients import has_gradients, input_gradients
from atlas.attacks.model_variants import channels_last
from atlas.config import check_arguments, check_counts, check_fields
from atlas.data import Images, as_images
from atlas.distributed.process_group import ProcessGroup
from atlas.errors import ModelError, UsageError, model_errors
from atlas.evaluation.evaluation_folder import EvaluationFolder, far_apart, slug
from atlas.evaluation.flags import Flag, after, before, of_classes
from atlas.evaluation.plan import Plan, attack_table, chosen_images, fingerprint, planned
from atlas.evaluation.probes import probe
from atlas.evaluation.results import COLUMNS, AttackResult, Report, columns_of
from atlas.evaluation.run_attack import AttackedModel, AttackProgress, finish, interruptible
from atlas.evaluation.score import ON_CLEAN, WORST_CASE
from atlas.evaluation.shards import Shard, merge
from atlas.files import locked
from atlas.models.code import user_code
from atlas.models.normalize import normalized
from atlas.objectives import margin
from atlas.signals import Requests, caught_signals
from atlas.threat import Threat

Known = tuple[str, Attack, Mapping[str, Any], int]
"""Of an attack before it runs: label, attack, its table, attempts."""
GRADIENTS = 8
"""Images whose gradients are kept, to know the model again by."""


@check_arguments("model", "threat", "attacks")
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
    normalize: str | tuple[Sequence[float], Sequence[float]] | None = None,
    seed: int = 0,
    surrogates: Sequence[Model] = (),
    folder: Path | str | None = None,
    batch_size: int = 256,
    attack_dtype: str = "float32",
    eot: int = 1,
    save_images: bool = False,
    shard: Shard | None = None,
    model_key: str | None = None,
    save_seconds: float = 30.0,
    progress: bool = True,
) -> Report:
    """Measure how robust a model is against the attacks of a suite.

    Every success is verified in float32. Warnings say where an accuracy may be too high.

    Args:
        model: any callable from images [B, C, H, W] in [0, 1] to logits [B, classes]. It is left as it was.
        images: whatever `atlas.data.as_images` takes: (x, y), a data set, a DataLoader, a folder.
        threat: where perturbations may go, such as `atlas.Linf(8 / 255)`.
        suite: a suite by name (`atlas suites`) or a .toml file.
        attacks: attacks by label, in place of a suite.
        only: run only these attacks of the suite, by label or name.
        alone: run each attack on every image, also where the suite is a cascade.
        n: evaluate the first n images; with `random`, n images drawn by `seed`.
        normalize: put a normalisation before the model: (mean, std), one number per channel each, or a name
            such as "imagenet" (`atlas.models.normalize.STANDARDS`).
        seed: seed of random starts and of `random`.
        surrogates: models for the black-box attack of the suite `paper`.
        folder: keep results here; a killed evaluation resumes when it is called again.
        batch_size: images per batch. It changes no verdict.
        attack_dtype: "bfloat16" searches faster; successes are verified in float32 all the same.
        eot: for a random model: attack the mean of this many answers.
        save_images: keep the images that fool the model in the folder.
        shard: evaluate one part of the images, without warnings; `atlas.evaluation.merge` joins the parts.
        model_key: the model's name in the folder, in place of a hash of its layers, weights and code.
        save_seconds: save an attack in progress this often.
        progress: show progress bars.

    Returns:
        A `Report`: accuracies with intervals, the worst case, warnings, and verdicts per image.

    Raises:
        UsageError: for arguments that do not fit, or a folder of another evaluation.
        DataError: for images or labels that do not fit.
        ModelError: if the model raises.

    Example:
        >>> import atlas, torch
        >>> x, y = torch.rand(20, 1, 4, 4), torch.arange(20) % 2
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
        >>> report = atlas.evaluate(model, (x, y), atlas.Linf(0.1), n=10, progress=False)
        >>> report.worst.n
        10
    """
    if save_images and folder is None:
        raise UsageError("save_images needs a folder to write to: add folder=...")
    data = chosen_images(as_images(images), n, random, seed)
    if normalize is not None:
        model = normalized(model, normalize, data.shape[0])
    rest: dict[str, Any] = {"seed": seed, "attack_dtype": attack_dtype, "eot": eot}
    if attacks is None:
        names = [only] if isinstance(only, str) else only
        plan = planned(threat, suite, data.name, only=names, alone=alone, surrogates=surrogates, **rest)
    elif not isinstance(attacks, Mapping):
        raise UsageError(
            f"attacks must be a dictionary such as {{'PGD': PGD()}}, got a {type(attacks).__name__}; "
            "names of the suite's attacks are given as only=['PGD-20']"
        )
    else:
        plan = Plan(threat, dict(attacks), **rest)
    evaluation = Evaluation(model, data, plan, batch_size, save_images, model_key, save_seconds)
    return evaluation.run(None if folder is None else Path(folder), shard=shard, progress=progress)


@dataclass(frozen=True)
class Evaluation:
    """A model, images and a plan, ready to run."""

    model: Model
    data: Images
    plan: Plan
    batch_size: int = 256
    save_images: bool = False
    model_key: str | None = None
    save_seconds: float = 30.0
    """An attack under way is saved this often."""

    def __post_init__(self) -> None:
        files = [slug(label) for label in self.plan.attacks]
        if not files:
            why = [f"{label} {reason}" for label, reason in self.plan.left_out.items()]
            raise UsageError(
                f"there is no attack to run; {'; '.join(why) or 'choose a suite or give attacks'}"
            )
        labels = list(self.plan.attacks)
        if len(set(files)) < len(files):
            raise UsageError(f"labels {labels} would share files: they must differ in letters or digits")
        if taken := {ON_CLEAN, WORST_CASE} & set(labels):
            raise UsageError(f"{sorted(taken)} are rows of every table: choose other labels")
        for label, attack in self.plan.attacks.items():
            if not isinstance(attack, Attack):
                raise UsageError(
                    f"{label} must be an attack, got a {type(attack).__name__}: see atlas.attacks.adapt"
                )
        if isinstance(self.model, nn.Module) and any(value.is_meta for value in self.model.parameters()):
            raise UsageError(
                "the model has weights on the device meta, which holds no values: load them first"
            )
        check_fields(self, where="")
        check_counts(batch_size=self.batch_size)

    @cached_property
    def about(self) -> dict[str, Any]:
        """All that decides the outcome, as plain data."""
        data = {"data": self.data.name, "data_hash": self.data.fingerprint(), "n": len(self.data)}
        return {"model": self.model_key or fingerprint(self.model), **data, **self.plan.table()}

    @cached_property
    def code(self) -> dict[str, str]:
        """What the model runs of the user's own code, to tell what has changed where it is not as before."""
        return user_code(self.model)

    def run(self, folder: Path | None = None, *, shard: Shard | None = None, progress: bool = True) -> Report:
        place = None
        if folder is not None:
            place = EvaluationFolder(shard.folder(folder) if shard else folder, self.code)
        display = AttackProgress(shown=progress)
        if place:
            place.say = display.say
        for label, reason in self.plan.left_out.items():
            display.say(f"{label} is left out: it {reason}")
        with ExitStack() as stack:
            stack.enter_context(display.bars)
            if place:
                stack.enter_context(locked(place.path, partial(place.check, self.about)))
            stack.enter_context(frozen(self.model))
            stack.enter_context(channels_last(self.model, self.data.pixels(slice(0, 1))))
            requests = stack.enter_context(caught_signals() if place else nullcontext(Requests()))
            return _Work(self, place, display, requests, place.times() if place else {}).run(shard)

    def run_share(self, folder: Path, group: ProcessGroup) -> None:
        """Evaluate this process's share of the images; the first process merges all shares in the folder.

        The folder must be on a disk that all processes see.
        """
        if any(group.total([int(group.first and self._finished(folder))])):
            return
        of = min(group.size, len(self.data))
        if group.rank < of:
            self.run(folder, shard=Shard(group.rank, of), progress=group.first)
        group.wait()
        if group.first:
            merge(folder, of, list(self.plan.attacks))
        group.wait()

    def _finished(self, folder: Path) -> bool:
        """Take the folder for this evaluation; whether all its attacks are over."""
        place = EvaluationFolder(folder, self.code)
        with locked(folder, partial(place.check, self.about)):
            place.claim(self.about)
        return all(place.holds(label, images=self.save_images) for label in self.plan.attacks)


@dataclass(frozen=True)
class _Work:
    """An evaluation under way, in its folder if it has one."""

    evaluation: Evaluation
    place: EvaluationFolder | None
    display: AttackProgress
    requests: Requests
    seconds: dict[str, float]
    """Of each attack that is over."""
    changes: list[Flag] = field(default_factory=list)
    """What has changed in the model since the start."""

    def run(self, shard: Shard | None) -> Report:
        task, plan = self.evaluation, self.evaluation.plan
        images = task.data.subset(shard.part) if shard else task.data
        with self._asking("on the clean images"):
            attacked = AttackedModel.of(task.model, images, plan, task.batch_size, self.requests)
            right = attacked.logits.argmax(1).eq(attacked.y).cpu()
            if self.place:
                self.place.claim(task.about)
                clean = {"ids": images.ids, "y": images.y, "right": right, "logits": attacked.logits.cpu()}
                known = self.place.answers(clean, random=plan.eot > 1)
                self._check_same(attacked)
                attacked, right = (
                    replace(attacked, logits=known["logits"].to(attacked.logits)),
                    known["right"],
                )
        flags = [] if shard else self._probed(attacked)
        results = self._results(attacked, images.ids, right)
        if shard and self.changes:  # a part has no flags of its own
            raise ModelError(f"the model has changed: {self.changes[0].message}")
        if shard is None:
            flags += self.changes
            flags += before(plan.attacks, plan.threat)
            flags += after(list(results.values()))
        where = (images.class_names, self.place.path if self.place else None)
        report = Report(task.about, images.ids, images.y, right, results, flags, self.seconds, *where)
        if report.valid and shard is None:
            scores = {report.named(label): score for label, score in report.classes.items()}
            report = replace(report, flags=[*flags, *of_classes(scores, report.worst)])
        if self.place and shard is None and not self.changes:  # not without verdicts, which were not kept
            self.place.save_summary(report.summary())
        return report

    def _asking(self, where: str) -> AbstractContextManager[None]:
        """Errors of the model and of memory, in words."""
        then = "run the same command again: what was saved before is intact" if self.place else "start again"
        return model_errors(where, f"Free memory or set a smaller batch_size (--batch-size), then {then}")

    def _check_same(self, attacked: AttackedModel) -> None:
        """Refuse a model with other gradients than that of the folder, and other surrogates."""
        assert self.place is not None
        if (gradients := _gradients(attacked)) is not None:
            self.place.check_gradients(gradients)
        for label, attack in attacked.plan.attacks.items():
            if isinstance(attack, Transfer):
                self.place.check_surrogates(label, partial(self._surrogates_at, attacked.x, attack))

    def _surrogates_at(self, x: Tensor, attack: Transfer) -> Tensor:
        """The answers of all its surrogates, side by side: [N, classes]."""
        answers = []
        for surrogate in attack.surrogates:
            with frozen(surrogate):
                asked = predict(interruptible(surrogate, self.requests), x, self.evaluation.batch_size)
                answers.append(asked.float().cpu())
        return torch.cat(answers, 1)

    def _probed(self, attacked: AttackedModel) -> list[Flag]:
        """The flags before any attack; what nobody must miss is said at once, because attacks take long."""
        plan = attacked.plan
        model = interruptible(attacked.model, self.requests)
        with self._asking("in the probes"):
            flags = probe(
                model,
                attacked.x,
                attacked.y,
                plan.threat,
                rng=attacked.rng,
                eot=plan.eot > 1,
                batch_size=attacked.batch_size,
            )
        self._warn(flags)
        return flags

    def _warn(self, flags: Sequence[Flag]) -> None:
        for flag in flags:
            if flag.fatal:
                self.display.say(f"the result will be invalid: {flag.name}: {flag.message}", style="bold red")
            elif flag.grave:
                self.display.warn(f"{flag.word}: {flag.name}: {flag.message}")

    def _results(self, attacked: AttackedModel, ids: Tensor, right: Tensor) -> dict[str, AttackResult]:
        results: dict[str, AttackResult] = {}
        tried = torch.ones_like(right)
        for label, attack in attacked.plan.attacks.items():
            with self._asking(f"under {label}"):
                results[label] = result = self._result(label, attack, attacked, ids, right, tried)
            if attacked.plan.cascade:
                tried = tried & result.survived
        return results

    def _kept(self, known: Known, right: Tensor, tried: Tensor) -> AttackResult | None:
        """An attack that is over, where the folder has its verdicts and the images that are needed."""
        label, name = known[0], f"attack-{slug(known[0])}"
        if not self.place or not self.place.holds(label, images=self.evaluation.save_images):
            return None
        found = self.place.kept_columns(name)
        if found is None:
            return None
        result = AttackResult.of(*known, found) if set(found) == set(COLUMNS) else None
        problem = result.problem(right, tried) if result else "does not have the columns of an attack"
        if problem:
            path = self.place.path / f"{name}.npz"
            self.place.put_aside(path, f"{path} {problem}")
            return None
        self.place.drop_state(label)  # still there if the process died just before it would have gone
        return result

    def _result(
        self, label: str, attack: Attack, attacked: AttackedModel, ids: Tensor, right: Tensor, tried: Tensor
    ) -> AttackResult:
        """What the attack does to the images of the mask `tried`: from the folder, or by running it."""
        name, attempts = f"attack-{slug(label)}", attack.attempts(attacked.logits.shape[1])
        known = (label, attack, attack_table(attack), attempts)
        if kept := self._kept(known, right, tried):
            return kept
        engine = attacked.under(attack, tried)
        self.seconds[label] = finish(
            label, engine, self.place, self.display, self.requests, self.evaluation.save_seconds
        )
        outcome = engine.outcome()
        result = AttackResult.of(*known, columns_of(outcome)).spread(tried)
        if changes := attacked.changes(f"after {label}"):
            self._warn(changes)
            self.changes.extend(changes)
            if self.place:  # the verdicts are not of one model: they are not kept
                self.place.drop_state(label)
        elif self.place:
            if self.evaluation.save_images:
                fooled = outcome.attempt.cpu() >= 0
                self.place.save_images(label, ids[tried][fooled], outcome.x_adv.cpu()[fooled])
            self.place.note_time(label, self.seconds[label])
            self.place.save_columns(name, result.columns())
            self.place.drop_state(label)
        return result


def _gradients(attacked: AttackedModel) -> Tensor | None:
    """The margin's at the first images, [K, ...]; None where there are none, or others each time."""
    x, y = attacked.x[:GRADIENTS], attacked.y[:GRADIENTS]
    if not has_gradients(attacked.model, x[:1]):
        return None
    with suppress(NotFinite):
        one, two = (input_gradients(attacked.model, x, y, margin, attacked.batch_size) for _ in range(2))
        return None if far_apart(one, two) else one.cpu()
    return None
