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
    one, other = ({label: result.table for label, result in report.results.items()} for report in (a, b))
    labels = [ON_CLEAN]
    # In a cascade, what an attack leaves depends on those before it.
    if not a.about["standing"] or list(one.items()) == list(other.items()):
        labels += [label for label, table in one.items() if other.get(label) == table]
    if one == other:
        labels.append(WORST_CASE)
    return {k: (a.scores[k], b.scores[k], paired(a.right_under(k), b.right_under(k))) for k in labels}


def paired(robust_a: Tensor, robust_b: Tensor) -> Paired:
    """Compare two models by which of the same images each gets right: bool [N], in the same order."""
    known = robust_a.dtype == torch.bool and robust_a.ndim == 1 and len(robust_a) > 0
    if not known or (robust_b.dtype, robust_b.shape) != (robust_a.dtype, robust_a.shape):
        raise UsageError(
            "a paired test needs two verdicts bool [N] on the same images, in the same order, got "
            f"{describe(robust_a)} and {describe(robust_b)}: evaluate both models on one set"
        )
    a, b = robust_a.cpu(), robust_b.cpu()
    return Paired(len(a), int((a & ~b).sum()), int((b & ~a).sum()))
