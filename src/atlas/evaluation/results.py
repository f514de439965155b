"""What an evaluation found: verdicts per example, accuracies with their intervals, the worst case, flags.

Of each example and attack, the engine's `Outcome` says what became of it, an `AttackResult` keeps that beside
the examples that the attack did not get, a `Report` takes the worst case, and a `Score` counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atlas.attacks.attack_log import BROKEN, CLEAN, SURVIVED, Outcome
from atlas.errors import choose
from atlas.evaluation.flags import Flag
from atlas.evaluation.score import ON_CLEAN, SPOIL_ANSWERS, WORST_CASE, Score
from atlas.threat import eps_text

SKIPPED = -4
"""The attempt that is noted for an example that an earlier attack of the suite had fooled."""
NOT_TRIED = {"attempt": SKIPPED, "step": -1, "margin": torch.nan, "queries": 0}
COLUMNS = tuple(NOT_TRIED)
"""What is kept of each attack for each example."""
LAST_PART = 0.25
"""Of the steps or attempts. A search that has converged finds next to nothing there."""
FEWEST_STEPS = 8
"""Below that a quarter of the steps is one step, and says nothing of convergence."""


def columns_of(outcome: Outcome, tried: Tensor) -> dict[str, Tensor]:
    """The columns of all examples, by the outcome of an attack on those of the mask `tried`, bool [N]."""
    whole = {}
    for name, value in NOT_TRIED.items():
        known = getattr(outcome, name).cpu()
        empty = torch.full(tried.shape, value, dtype=known.dtype, device=tried.device)
        whole[name] = empty.masked_scatter(tried, known)
    return whole


@dataclass(frozen=True)
class AttackResult:
    """One attack on the N examples; tensors are [N], on the CPU."""

    label: str
    table: Mapping[str, Any]
    """The attack as in a configuration."""
    white_box: bool
    steps: int
    """0 where they say nothing."""
    attempts: int
    attempt: Tensor
    """Which attempt fooled the example, from 0; or CLEAN, SURVIVED, BROKEN or SKIPPED."""
    step: Tensor
    """At which step of it, from 0; else -1."""
    margin: Tensor
    """max_{i != y} f_i - f_y at the image that fools, else the largest at the end of an attempt."""
    queries: Tensor
    """Forward passes spent on the example."""

    @property
    def survived(self) -> Tensor:
        """Right on the clean image and under every attempt of this attack, bool [N]."""
        return self.attempt == SURVIVED

    @property
    def fooled(self) -> Tensor:
        """Fooled by this attack, bool [N]."""
        return self.attempt >= 0

    @property
    def tried(self) -> Tensor:
        """Which examples it was run on, bool [N]: an attack of a cascade gets only those that are left."""
        return self.attempt != SKIPPED

    @property
    def broken(self) -> Tensor:
        """Where the model gave NaN or infinity, bool [N]."""
        return self.attempt == BROKEN

    @property
    def late(self) -> Tensor:
        """Fooled by the last quarter of the attempts, or in the last quarter of the steps of the only one."""
        if self.attempts > 1:
            return self.fooled & (self.attempt >= self.attempts - max(1, int(LAST_PART * self.attempts)))
        return self.fooled & (self.step > (1 - LAST_PART) * self.steps) & (self.steps >= FEWEST_STEPS)

    def possible(self, right: Tensor, tried: Tensor) -> bool:
        """Whether these can be the verdicts of this evaluation.

        right: on the clean images, bool [N]; tried: the images that the attack was given, bool [N].
        """
        whole = (self.attempt, self.step, self.queries)
        if any(column.shape != right.shape for column in (*whole, self.margin)):
            return False
        if any(column.dtype != torch.int64 for column in whole) or not self.margin.is_floating_point():
            return False
        impossible = (self.attempt < SKIPPED) | (self.attempt >= self.attempts) | (self.step < -1)
        impossible |= (self.queries < 0) | (self.fooled & ~(self.margin >= 0)) | (self.tried != tried)
        impossible |= (self.attempt == CLEAN) != (tried & ~right & ~self.broken)
        return not impossible.any()

    def columns(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in COLUMNS}

    def plain(self) -> dict[str, Any]:
        """What it did and found, as JSON."""
        return {
            "attack": dict(self.table),
            "white_box": self.white_box,
            "steps": self.steps,
            "attempts": self.attempts,
            "tried": int(self.tried.sum()),
            "fooled": int(self.fooled.sum()),
            "wrong_before": int((self.attempt == CLEAN).sum()),
            "broken": int(self.broken.sum()),
            "queries": int(self.queries.sum()),
        }


@dataclass(frozen=True, repr=False)
class Report:
    """The whole evaluation of one model; printed, its table."""

    about: Mapping[str, Any]
    """Model, data, threat, attacks, seed: all that decides the outcome."""
    ids: Tensor
    """The identity of each example, int64 [N]."""
    y: Tensor
    clean_right: Tensor
    """Right on the clean image, bool [N]."""
    results: Mapping[str, AttackResult]
    flags: Sequence[Flag]
    seconds: Mapping[str, float]
    """Time that each attack took here, over all interruptions."""
    class_names: Sequence[str] = ()
    folder: Path | None = None
    """Where the evaluation was kept, if it was."""

    @property
    def n(self) -> int:
        return len(self.y)

    def named(self, label: int) -> str:
        """The name of a class, or its number where it has none."""
        return self.class_names[label] if label < len(self.class_names) else str(label)

    @property
    def threat(self) -> str:
        """Norm and radius in words: no accuracy means anything without them."""
        table = self.about["threat"]
        return f"{table['name']}, eps {eps_text(table['eps'])}"

    @property
    def valid(self) -> bool:
        """Whether the accuracies mean anything: no flag is fatal."""
        return not self.reasons

    @property
    def reasons(self) -> tuple[str, ...]:
        """The fatal flags."""
        return tuple(dict.fromkeys(flag.name for flag in self.flags if flag.fatal))

    @property
    def queries_only(self) -> bool:
        """Whether no white-box attack was run, so that the worst case is an upper bound."""
        return any(flag.name == "queries-only" for flag in self.flags)

    @property
    def robust(self) -> Tensor:
        """Right on the clean image and under every attack, bool [N]: the worst case of each example."""
        right = self.clean_right
        for result in self.results.values():
            right = right & (result.survived | ~result.tried)
        return right

    def right_under(self, label: str) -> Tensor:
        """Right under this attack, "clean" or in the "worst case", bool [N].

        What an earlier attack of a cascade had fooled counts as wrong under the later ones.
        """
        if label in (ON_CLEAN, WORST_CASE):
            return self.clean_right if label == ON_CLEAN else self.robust
        return choose("attack", label, self.results).survived

    def score(self, label: str) -> Score:
        """The accuracy under one attack, "clean", or in the "worst case"."""
        # Masked gradients leave the accuracy on clean images true.
        reasons = [name for name in self.reasons if label != ON_CLEAN or name in SPOIL_ANSWERS]
        return Score(int(self.right_under(label).sum()), self.n, tuple(reasons))

    @property
    def scores(self) -> dict[str, Score]:
        """All accuracies: clean, under each attack, in the worst case."""
        return {label: self.score(label) for label in (ON_CLEAN, *self.results, WORST_CASE)}

    @property
    def clean(self) -> Score:
        """The accuracy on the clean images."""
        return self.score(ON_CLEAN)

    @property
    def worst(self) -> Score:
        """The accuracy in the worst case over all attacks, taken for each example."""
        return self.score(WORST_CASE)

    @property
    def classes(self) -> dict[int, Score]:
        """The accuracy in the worst case of each class that has images."""
        robust = self.robust
        masks = {label: self.y == label for label in sorted(set(self.y.tolist()))}
        return {k: Score(int(robust[mask].sum()), int(mask.sum()), self.reasons) for k, mask in masks.items()}

    @property
    def worst_class(self) -> tuple[int, Score] | None:
        """The class with the lowest accuracy in the worst case, and that.

        None where there is one class, or where the result is invalid.
        """
        classes = self.classes if self.valid else {}
        return min(classes.items(), key=lambda item: item[1].rate) if len(classes) > 1 else None

    def __repr__(self) -> str:
        rows = [(f"{self.n} images, {self.threat}", "accuracy", "fooled", "queries", "time"), *self.lines()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, *self.warnings()])

    def lines(self) -> list[tuple[str, ...]]:
        """The table of a terminal or a page: what, accuracy with interval, images fooled, queries, time."""
        scores = {label: score.short for label, score in self.scores.items()}
        scores[WORST_CASE] += " by queries only" if self.queries_only else ""
        if self.worst_class is not None:
            number, score = self.worst_class
            scores[f"worst class: {self.named(number)}"] = str(score)
        return [(label, text, *self._effort(label)) for label, text in scores.items()]

    def _effort(self, label: str) -> tuple[str, str, str]:
        """Images fooled, mean queries and time of an attack; nothing for other rows."""
        if label not in self.results:
            return "", "", ""
        result = self.results[label]
        queries = result.queries[result.tried].double()
        mean = f"{queries.mean():,.0f}" if len(queries) else "-"
        seconds = f"{self.seconds[label]:.0f} s" if label in self.seconds else "-"
        return f"{int(result.fooled.sum())}", mean, seconds

    def warnings(self) -> list[str]:
        """What is said below the table: the upper bound that an invalid result leaves, and every flag."""
        bound = [f"INVALID: the worst case is {self.worst}"] if self.worst.is_bound else []
        return bound + [f"{flag.word}: {flag.name}: {flag.message}" for flag in self.flags]

    def save(self, path: str | Path, *, name: str = "model") -> None:
        """Write the report to a file: .html, .md, .tex, .csv or .json, by its suffix.

            report.save("report.html", name="ResNet-18")

        The page has the table, the warnings and the accuracy of each class, and some of the images that fool
        the model where `save_images` kept them in a folder. `name` is what it calls the model. `atlas report`
        puts several models side by side.
        """
        # The one import of a higher layer, at the time of the call: who has a report wants to keep it.
        from atlas.reports.write import save_report

        save_report(self, Path(path), name)

    def summary(self) -> dict[str, Any]:
        """A JSON-able table: the same numbers for the same inputs, whatever happened on the way."""
        table: dict[str, Any] = {
            "n": self.n,
            "valid": self.valid,
            "accuracy": {label: score.plain() for label, score in self.scores.items()},
        }
        if self.worst_class is not None:
            label, score = self.worst_class
            table["worst_class"] = {"label": label, "name": self.named(label), **score.plain()}
        table |= {
            "attacks": {label: result.plain() for label, result in self.results.items()},
            "flags": [asdict(flag) for flag in self.flags],
            "about": dict(self.about),
        }
        return table | ({"class_names": list(self.class_names)} if self.class_names else {})
