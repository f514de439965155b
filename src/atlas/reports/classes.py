"""Class by class: how many images of each hold, and for what the others are taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atlas.evaluation import Score
from atlas.reports.comparison import Comparison
from atlas.reports.quick_attack import Study

MOST_CLASSES = 20
"""Beyond that a table shows the weakest classes, and a matrix the commonest confusions."""
MOST_PAIRS = 10


@dataclass(frozen=True)
class ByClass:
    """Robust accuracy of each model in each class."""

    what: str
    classes: tuple[str, ...]
    """What those that are shown are called."""
    sizes: tuple[int, ...]
    """Images of each."""
    rows: Mapping[str, tuple[Score, ...] | str]
    """By model; text where there are no numbers to give."""
    total: int
    """Classes that there are; where fewer are shown, they are the weakest, the weakest first."""
    ties: int = 0
    """Classes left out that are as weak as the last one shown."""

    @property
    def weakest(self) -> str:
        """Which classes are shown, where that is not all."""
        if self.total == len(self.classes):
            return ""
        mean = " in the mean of the models" if len(self.rows) > 1 else ""
        more = f"; {self.ties} more {'is' if self.ties == 1 else 'are'} as weak as the last of these"
        first = f"the {len(self.classes)} weakest of {self.total} classes{mean}, the weakest first"
        return first + (more if self.ties else "")


def by_class(
    what: str,
    y: Tensor,
    right: Mapping[str, Tensor],
    invalid: Mapping[str, str],
    named: Callable[[int], str] = str,
) -> ByClass:
    """From who is right: bool [N] a model. `invalid` models have words instead of numbers."""
    sizes = {label: int((y == label).sum()) for label in sorted(set(y.tolist()))}
    classes = list(sizes)
    scores = {
        name: {label: Score(int(mask[y == label].sum()), size) for label, size in sizes.items()}
        for name, mask in right.items()
    }
    ties = 0
    if len(classes) > MOST_CLASSES and scores:
        sums = {label: round(sum(row[label].rate for row in scores.values()), 9) for label in classes}
        order = sorted(classes, key=lambda label: sums[label])
        classes = order[:MOST_CLASSES]
        ties = sum(sums[label] == sums[classes[-1]] for label in order[MOST_CLASSES:])
    rows: dict[str, tuple[Score, ...] | str] = {
        name: tuple(row[label] for label in classes) for name, row in scores.items()
    }
    shown = tuple(sizes[label] for label in classes)
    return ByClass(what, tuple(map(named, classes)), shown, {**rows, **invalid}, len(sizes), ties)


def of_comparison(comparison: Comparison, named: Callable[[int], str] = str) -> ByClass:
    """The worst case over the attacks of an evaluation; `named` is for classes that it has no names of."""
    named = next((e.report.named for e in comparison.entries if e.report.class_names), named)
    right = {e.name: e.report.robust for e in comparison.entries if e.report.valid}
    invalid = {e.name: str(e.report.worst) for e in comparison.entries if not e.report.valid}
    what = f"Worst case over {', '.join(comparison.columns[1:-1])}; {comparison.title}"
    return by_class(what, comparison.entries[0].report.y, right, invalid, named)


def of_studies(studies: Mapping[str, Study]) -> ByClass:
    """Under the report's own attack."""
    first = next(iter(studies.values()))
    right = {name: study.stands for name, study in studies.items() if not study.reasons}
    invalid = {name: f"invalid ({', '.join(s.reasons)})" for name, s in studies.items() if s.reasons}
    return by_class(f"Under the report's own attack, n = {first.n}", first.y, right, invalid, first.named)


@dataclass(frozen=True)
class Confusion:
    """What a model answers under attack."""

    name: str
    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    """[true class, answer]."""
    pairs: tuple[tuple[str, str, int, int], ...]
    """(true class, answer, how often, of how many), the commonest errors first."""

    @property
    def small(self) -> bool:
        """Whether the whole matrix can be shown."""
        return len(self.classes) <= MOST_CLASSES

    def share(self, row: Sequence[int], count: int) -> float:
        return count / sum(row) if sum(row) else 0.0


def confusion(name: str, study: Study) -> Confusion:
    size = study.logits.shape[1]
    answers = study.logits_adv.argmax(1)
    counts = torch.bincount(study.y * size + answers, minlength=size * size).view(size, size)
    wrong = counts.clone().fill_diagonal_(0)
    order = wrong.flatten().argsort(descending=True, stable=True)[:MOST_PAIRS].tolist()
    pairs = [(k // size, k % size, int(wrong.flatten()[k]), int(counts[k // size].sum())) for k in order]
    return Confusion(
        name,
        tuple(map(study.named, range(size))),
        tuple(tuple(row) for row in counts.tolist()),
        tuple((study.named(y), study.named(answer), often, of) for y, answer, often, of in pairs if often),
    )
