"""What validation found, class by class: an accuracy over all images can hide a class never learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

IMBALANCED = 0.1
"""Classes are imbalanced where the largest has this much more of the images than an equal share."""


@dataclass(frozen=True)
class Validated:
    """How many validation images of each class are classified right; classes without images are left out."""

    labels: Sequence[int]
    sizes: Sequence[int]
    """Images of each class."""
    right_clean: Sequence[int]
    right_robust: Sequence[int]
    """Under the validation attack."""

    @classmethod
    def of(cls, sizes: Sequence[int], clean: Sequence[int], robust: Sequence[int]) -> Validated:
        """From counts for every class."""
        there = [label for label, size in enumerate(sizes) if size]
        return cls(there, *([counts[label] for label in there] for counts in (sizes, clean, robust)))

    @property
    def clean(self) -> float:
        return sum(self.right_clean) / sum(self.sizes)

    @property
    def robust(self) -> float:
        return sum(self.right_robust) / sum(self.sizes)

    @property
    def majority(self) -> float:
        """The share of the largest class: what a model with one answer reaches."""
        return max(self.sizes) / sum(self.sizes)

    @property
    def balanced(self) -> float:
        """The mean over the classes of their robust accuracies."""
        rates = [right / size for right, size in zip(self.right_robust, self.sizes, strict=True)]
        return sum(rates) / len(rates)

    @property
    def imbalanced(self) -> bool:
        return len(self.sizes) > 1 and self.majority > 1 / len(self.sizes) + IMBALANCED

    @property
    def one_answer(self) -> int | None:
        """The class that every image is taken for: all of its images are right, and no other."""
        right = [k for k, count in enumerate(self.right_clean) if count]
        if len(self.sizes) > 1 and len(right) == 1 and self.right_clean[right[0]] == self.sizes[right[0]]:
            return self.labels[right[0]]
        return None
