"""`evaluate`: put a model under attacks, keep what they find of every example, say how far to trust it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atlas.attacks import Attack, Model, Transfer, frozen
from atlas.attacks.engine import Engine
from atlas.attacks.model_variants import channels_last
from atlas.config import check_arguments, check_counts, check_fields
from atlas.data import Images, as_images
from atlas.distributed.process_group import ProcessGroup
from atlas.errors import Interrupted, ModelError, UsageError, model_errors
from atlas.evaluation.evaluation_folder import CLEAN, GRADIENTS, EvaluationFolder, file_of, slug
from atlas.evaluation.flags import Flag, after, before, of_classes
from atlas.evaluation.plan import Plan, attack_table, chosen_images, fingerprint, planned
from atlas.evaluation.results import COLUMNS, AttackResult, Report, columns_of
from atlas.evaluation.run_attack import AttackedModel, AttackProgress, far_apart
from atlas.evaluation.score import ON_CLEAN, WORST_CASE
from atlas.evaluation.shards import Shard, merge
from atlas.files import locked
from atlas.models.code import user_code
from atlas.models.normalize import normalized
from atlas.signals import Requests, caught_signals
from atlas.threat import Threat

SAME = 1e-3
"""Logits of one model may differ by this share: other batches and other machines round otherwise."""
SAVE_SHARE = 0.05
"""Saving takes at most this share of the time: large states are saved less often."""


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
    if not isinstance(attacks, Mapping | None):
        raise UsageError(
            f"attacks must be a dictionary such as {{'PGD': PGD()}}, got a {type(attacks).__name__}; "
            "names of the suite's attacks are given as only=['PGD-20']"
        )
    rest: dict[str, Any] = {"seed": seed, "attack_dtype": attack_dtype, "eot": eot}
    if attacks is None:
        names = [only] if isinstance(only, str) else only
        plan = planned(threat, suite, data.name, only=names, alone=alone, surrogates=surrogates, **rest)
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
        labels = list(self.plan.attacks)
        if not labels:
            why = "; ".join(f"{label} {reason}" for label, reason in self.plan.left_out.items())
            raise UsageError(f"there is no attack to run; {why or 'choose a suite or give attacks'}")
        if len(set(map(slug, labels))) < len(labels) or {ON_CLEAN, WORST_CASE} & set(labels):
            raise UsageError(
                f"labels of attacks must differ in letters or digits, because they name files, and not be "
                f"{ON_CLEAN!r} or {WORST_CASE!r}, which are rows of every table; got {labels}"
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
        """Attack the images, or those of the shard; what the folder has already is not done again."""
        display, place = AttackProgress(shown=progress), None
        if folder is not None:
            path = shard.folder(folder) if shard else folder
            place = EvaluationFolder(path, self.code, display.say)
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
        done = False
        if group.first:
            place = EvaluationFolder(folder, self.code)
            with locked(folder, partial(place.check, self.about)):
                place.claim(self.about)
            done = all(place.verdicts(label, images=self.save_images) for label in self.plan.attacks)
        if any(group.total([int(done)])):
            return
        of = min(group.size, len(self.data))
        if group.rank < of:
            self.run(folder, shard=Shard(group.rank, of), progress=group.first)
        group.wait()
        if group.first:
            merge(folder, of, list(self.plan.attacks))
        group.wait()


@dataclass(frozen=True)
class _Work:
    """An evaluation under way, in its folder if it has one."""

    task: Evaluation
    place: EvaluationFolder | None
    display: AttackProgress
    requests: Requests
    seconds: dict[str, float]
    """Of each attack that is over."""
    changes: list[Flag] = field(default_factory=list)
    """What has changed in the model since the start."""

    def run(self, shard: Shard | None) -> Report:
        task, plan, place = self.task, self.task.plan, self.place
        images = task.data.subset(shard.part) if shard else task.data
        with self._errors("on the clean images"):
            attacked = AttackedModel(task.model, images, plan, task.batch_size, self.requests)
            right = attacked.logits.argmax(1).eq(attacked.y).cpu()
            if place:
                place.claim(task.about)
                clean = {"ids": images.ids, "y": images.y, "right": right, "logits": attacked.logits.cpu()}
                known = self._as_before(place, clean, attacked)
                attacked.logits, right = known["logits"].to(attacked.logits), known["right"]
        flags = [] if shard else self._probed(attacked)
        results, tried = dict[str, AttackResult](), torch.ones_like(right)
        for label, attack in plan.attacks.items():
            with self._errors(f"under {label}"):
                results[label] = self._result(label, attack, attacked, images.ids, right, tried)
            if plan.cascade:
                tried = tried & results[label].survived
        if shard and self.changes:  # a part has no flags of its own
            raise ModelError(f"the model has changed: {self.changes[0].message}")
        if shard is None:
            flags += [*self.changes, *before(plan.attacks, plan.threat), *after(list(results.values()))]
        where = (images.class_names, place.path if place else None)
        report = Report(task.about, images.ids, images.y, right, results, flags, self.seconds, *where)
        if report.valid and shard is None:
            scores = {report.named(label): score for label, score in report.classes.items()}
            report = replace(report, flags=[*flags, *of_classes(scores, report.worst)])
        if place and shard is None and not self.changes:  # not without verdicts, which were not kept
            place.save_summary(report.summary())
        return report

    def _probed(self, attacked: AttackedModel) -> list[Flag]:
        with self._errors("in the probes"):
            flags = attacked.probe()
        self.display.warn(flags)
        return flags

    def _errors(self, where: str) -> AbstractContextManager[None]:
        """Errors of the model and of memory, in words."""
        then = "run the same command again: what was saved before is intact" if self.place else "start again"
        return model_errors(where, f"Free memory or set a smaller batch_size (--batch-size), then {then}")

    def _as_before(
        self, place: EvaluationFolder, clean: Mapping[str, Tensor], attacked: AttackedModel
    ) -> Mapping[str, Tensor]:
        """The clean answers of the first time, by which attacks that are over went.

        A model that answers otherwise than then is another, unless it is random; so are one with other
        gradients, and other surrogates. A fingerprint cannot see what a function or a plain attribute of a
        module does; its answers can.
        """

        def refuse(whose: str, how: str) -> UsageError:
            return UsageError(f"{place.path} holds {whose}: {how}; choose another folder")

        known = place.reuse_or_save(CLEAN, clean)
        random, logits = attacked.plan.eot > 1, (known["logits"], clean["logits"])
        same = logits[0].shape == logits[1].shape if random else alike(*logits)
        if not same or not torch.equal(known["ids"], clean["ids"]):
            raise refuse("the evaluation of another model", "it answered the clean images differently")
        if (gradients := attacked.gradients()) is not None:
            kept = place.reuse_or_save(GRADIENTS, {"gradients": gradients})["gradients"]
            if far_apart(kept, gradients):
                raise refuse("the evaluation of another model", "its gradients were others")
        for label, attack in attacked.plan.attacks.items():
            if isinstance(attack, Transfer):
                answers = attacked.surrogate_answers(attack)
                kept = place.reuse_or_save(file_of("surrogates", label), {"logits": answers})["logits"]
                # Random surrogates are not compared.
                if not alike(kept, answers) and alike(answers, attacked.surrogate_answers(attack)):
                    how = f"those of {label} answered the clean images differently"
                    raise refuse("an evaluation with other surrogates", how)
        return known

    def _result(
        self, label: str, attack: Attack, attacked: AttackedModel, ids: Tensor, right: Tensor, tried: Tensor
    ) -> AttackResult:
        """What the attack does to the images of the mask `tried`: from the folder, or by running it."""
        table, attempts = attack_table(attack), attack.attempts(attacked.logits.shape[1])
        steps = attack.steps if attack.counts_steps else 0
        result = partial(AttackResult, label, table, attack.white_box, steps, attempts)
        place, file = self.place, file_of("attack", label)
        kept = place.verdicts(label, images=self.task.save_images) if place else None
        if place and kept and kept.keys() == set(COLUMNS):
            if (found := result(**kept)).possible(right, tried):
                place.drop_state(label)  # still there if the process died just before it would have gone
                return found
            place.put_aside(file, f"{place.path / file} has verdicts that are impossible or of other images")
        engine = attacked.under(attack, tried)
        self.seconds[label] = self._finish(label, engine)
        outcome = engine.outcome()
        columns = columns_of(outcome, tried)
        if changes := attacked.changes(f"after {label}"):  # the verdicts are not of one model: not kept
            self.display.warn(changes)
            self.changes.extend(changes)
        elif place:
            if self.task.save_images:
                fooled = outcome.attempt.cpu() >= 0
                images = {"ids": ids[tried][fooled], "x_adv": outcome.x_adv.cpu()[fooled]}
                place.save(file_of("images", label), images)
            place.note_time(label, self.seconds[label])
            place.save(file, columns)
        if place:
            place.drop_state(label)
        return result(**columns)

    def _finish(self, label: str, engine: Engine) -> float:
        """Run the engine to its end, saved now and then; the seconds over all interruptions."""
        place, file, before = self.place, file_of("state", label), 0.0
        if place and (state := place.reuse(file)):
            before = float(state.pop("seconds", 0.0))
            engine.restore(state)
        began = saved = time.monotonic()
        pause = self.task.save_seconds
        self.display.begin(label)
        while not engine.finished:
            engine.step()
            self.display.show(engine)
            now = time.monotonic()
            if place and (self.requests.caught is not None or now - saved >= pause):
                spent = torch.tensor(before + now - began, dtype=torch.float64, device="cpu")
                place.save(file, {**engine.snapshot(), "seconds": spent})
                saved = time.monotonic()
                pause = max(self.task.save_seconds, (saved - now) / SAVE_SHARE)
            if self.requests.caught is not None:
                raise Interrupted(self.requests.caught)
        seconds = before + time.monotonic() - began
        self.display.end(engine, seconds)
        return seconds


def alike(a: Tensor, b: Tensor) -> bool:
    """Whether logits differ by no more than rounding; NaN and infinity have to be at the same places."""
    if a.shape != b.shape:
        return False
    b = b.to(a.dtype)
    largest = float(b[b.isfinite()].abs().max()) if b.isfinite().any() else 0.0
    return torch.allclose(a, b, SAME, SAME * largest, equal_nan=True)
