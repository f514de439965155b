"""Evaluation: accuracies that carry their n and interval."""

from atlas.evaluation.score import Score, score

__all__ = ["Score", "score"]
