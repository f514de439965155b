"""Robust accuracy class by class, and predictions under attack."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from atlas.evaluation import Score
from atlas.reports.comparison import Comparison
from atlas.reports.quick_attack import Study, valid
from atlas.reports.tables import Cell, Table

MOST_CLASSES = 20
"""Of more classes, a table has the weakest, and the most frequent errors take the place of a matrix."""
MOST_ERRORS = 10


def by_class(
    what: str,
    y: Tensor,
    right: Mapping[str, Tensor],
    invalid: Mapping[str, str],
    named: Callable[[int], str] = str,
) -> Table:
    """Robust accuracy of each model in each class, and in the last row the images of each class.

    Args:
        what: of which attacks and images it is.
        y: the labels, int64 [N].
        right: by model, whether each image is classified correctly, bool [N].
        invalid: by model, why there are no numbers.
        named: the name of a class.
    """
    sizes = {label: int((y == label).sum()) for label in sorted(set(y.tolist()))}
    scores = {
        name: {label: Score(int(mask[y == label].sum()), size) for label, size in sizes.items()}
        for name, mask in right.items()
    }
    classes = list(sizes)
    if len(classes) > MOST_CLASSES and scores:
        sums = {label: round(sum(row[label].rate for row in scores.values()), 9) for label in classes}
        order = sorted(classes, key=lambda label: sums[label])
        classes, left_out = order[:MOST_CLASSES], order[MOST_CLASSES:]
        mean = " in the mean of the models" if len({*right, *invalid}) > 1 else ""
        what += f"; the {len(classes)} weakest of {len(sizes)} classes{mean}, the weakest first"
        ties = sum(sums[label] == sums[classes[-1]] for label in left_out)
        if ties:
            what += f"; {ties} more {'is' if ties == 1 else 'are'} as weak as the last of these"
    rows: list[list[Cell | str]] = [
        [name, *(Cell.of(row[label], "{:.0f}") for label in classes)] for name, row in scores.items()
    ]
    rows += [[name, reason, *[""] * (len(classes) - 1)] for name, reason in invalid.items()]
    rows.append(["images", *(Cell.number(sizes[label], "{:d}") for label in classes)])
    columns = ["class", *map(named, classes)]
    return Table.of("Robust accuracy (%) per class", columns, rows, notes=(what,))


def of_comparison(comparison: Comparison, named: Callable[[int], str] = str) -> Table:
    """The worst case over the attacks of an evaluation; `named` is for classes that it has no names of."""
    named = next((e.report.named for e in comparison.entries if e.report.class_names), named)
    right = {e.name: e.report.robust for e in comparison.entries if e.report.valid}
    invalid = {e.name: str(e.report.worst) for e in comparison.entries if not e.report.valid}
    what = f"Worst case over {', '.join(comparison.columns[1:-1])}; {comparison.title}"
    return by_class(what, comparison.entries[0].report.y, right, invalid, named)


def of_studies(studies: Mapping[str, Study]) -> Table:
    """Under the quick attack of the report."""
    first = next(iter(studies.values()))
    right = {name: study.stands for name, study in valid(studies).items()}
    invalid = {name: f"invalid ({', '.join(s.reasons)})" for name, s in studies.items() if s.reasons}
    return by_class(
        f"Under the quick attack of this report, n = {first.n}", first.y, right, invalid, first.named
    )


def confusion(name: str, study: Study) -> Table:
    """Predictions under attack by true class, in percent; of many classes the most frequent errors.

    The values of the cells are counts of images.
    """
    size = study.logits.shape[1]
    counts = torch.bincount(study.y * size + study.logits_adv.argmax(1), minlength=size * size)
    counts = counts.view(size, size)
    total = counts.sum(1).tolist()
    if size <= MOST_CLASSES:
        matrix: list[list[Cell | str]] = [
            [study.named(k), *(Cell(f"{100 * c / total[k]:.0f}" if c else "", c) for c in row)]
            for k, row in enumerate(counts.tolist())
        ]
        return Table.of(name, ["", *map(study.named, range(size))], matrix)
    wrong = counts.clone().fill_diagonal_(0).flatten()
    order = wrong.argsort(descending=True, stable=True)[:MOST_ERRORS].tolist()
    errors: list[list[Cell | str]] = [
        [
            study.named(k // size),
            study.named(k % size),
            *(Cell.number(c, "{:d}") for c in (n, total[k // size])),
        ]
        for k, n in zip(order, wrong[order].tolist(), strict=True)
        if n
    ]
    return Table.of(name, ["class", "classified as", "images", "of"], errors)
