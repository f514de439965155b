"""Two models on the same images: a paired test, which sees differences that two intervals would hide."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from atlas.data.images import describe
from atlas.errors import UsageError
from atlas.evaluation.results import Report
from atlas.evaluation.score import ON_CLEAN, WORST_CASE, Z_95, Score


@dataclass(frozen=True)
class Paired:
    """How often one model is right where the other is wrong, among n images that both were shown."""

    n: int
    only_a: int
    """Images that only the first model gets right."""
    only_b: int
    """Images that only the second model gets right."""

    @property
    def difference(self) -> float:
        """Accuracy of the first model minus that of the second."""
        return (self.only_a - self.only_b) / self.n

    @property
    def interval(self) -> tuple[float, float]:
        """95% for the difference: Wald's interval with one image added to each kind of disagreement.

        p = (only_a + 1) / (n + 2), q = (only_b + 1) / (n + 2); p - q +- z sqrt((p + q - (p - q)^2) / (n + 2))
        (Bonett and Price 2012). It keeps its level in small samples, and has a width where no image differs.
        """
        p, q = (self.only_a + 1) / (self.n + 2), (self.only_b + 1) / (self.n + 2)
        half = Z_95 * math.sqrt((p + q - (p - q) ** 2) / (self.n + 2))
        return max(-1.0, p - q - half), min(1.0, p - q + half)

    @property
    def p_value(self) -> float:
        """McNemar's exact test, two-sided: twice P(Binomial(only_a + only_b, 1/2) <= the smaller), at most 1.

        In whole numbers, so that it is right to the last digit for any n.
        """
        disagreements, fewer = self.only_a + self.only_b, min(self.only_a, self.only_b)
        term = tail = 1
        for k in range(fewer):
            term = term * (disagreements - k) // (k + 1)
            tail += term
        return min(1.0, 2 * tail / (1 << disagreements))

    def __str__(self) -> str:
        low, high = self.interval
        points = f"{100 * self.difference:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}]"
        return f"{points}, p = {self.p_value:.2g}, n = {self.n}"


COMPARED = {
    "threat": "the threat",
    "standing": "whether each attack gets only what those before it left (it does not with --alone)",
    "attack_dtype": "the precision of the search (--attack-dtype)",
    "eot": "the number of looks at each image (--eot)",
}
"""What has to be the same in two evaluations, in words."""


def compared(a: Report, b: Report) -> dict[str, tuple[Score, Score, Paired]]:
    """Two evaluations of the same images: "clean", each attack that both ran, and the worst case.

    The worst case is compared only where both ran the same attacks.
    """
    if a.about["data_hash"] != b.about["data_hash"] or a.ids.tolist() != b.ids.tolist():
        raise UsageError(
            f"the first evaluation is of {a.n} images of {a.about['data']}, the second of {b.n} of "
            f"{b.about['data']}; a paired test needs the same images: evaluate both models on one set"
        )
    for key, words in COMPARED.items():
        if a.about[key] != b.about[key]:
            raise UsageError(
                f"{words} is {a.about[key]} in one evaluation and {b.about[key]} in the other; evaluate both "
                "in one way"
            )
    for which, report in {"first": a, "second": b}.items():
        if not report.valid:
            raise UsageError(
                f"the {which} evaluation is invalid, and so is a comparison with it; its worst case is "
                f"{report.worst}"
            )
    tables = [{label: result.table for label, result in report.results.items()} for report in (a, b)]
    same = [label for label, table in tables[0].items() if tables[1].get(label) == table]
    pairs = {ON_CLEAN: (a.clean_right, b.clean_right)}
    # In a cascade, what an attack leaves depends on those before it.
    if not a.about["standing"] or list(tables[0].items()) == list(tables[1].items()):
        pairs |= {label: (a.right_under(label), b.right_under(label)) for label in same}
    if tables[0] == tables[1]:
        pairs |= {WORST_CASE: (a.robust, b.robust)}
    return {k: (_score(one), _score(other), paired(one, other)) for k, (one, other) in pairs.items()}


def _score(right: Tensor) -> Score:
    return Score(int(right.sum()), len(right))


def paired(robust_a: Tensor, robust_b: Tensor) -> Paired:
    """Compare two models by which of the same images each gets right: bool [N], in the same order."""
    for name, robust in {"robust_a": robust_a, "robust_b": robust_b}.items():
        if robust.dtype != torch.bool or robust.ndim != 1 or not len(robust):
            raise UsageError(
                f"{name} must be bool [N], right or wrong for each image, got {describe(robust)}"
            )
    if len(robust_a) != len(robust_b):
        raise UsageError(
            f"got verdicts on {len(robust_a)} and {len(robust_b)} images; a paired test needs the same "
            "images, in the same order: evaluate both models on one set"
        )
    a, b = robust_a.cpu(), robust_b.cpu()
    return Paired(len(a), int((a & ~b).sum()), int((b & ~a).sum()))
