"""Evaluation: every verdict kept, accuracies that carry their n and interval, and flags on what they hide."""

from atlas.evaluation.evaluate import evaluate
from atlas.evaluation.flags import Flag
from atlas.evaluation.results import AttackResult, Report
from atlas.evaluation.score import Score
from atlas.evaluation.shards import Shard, merge

__all__ = ["AttackResult", "Flag", "Report", "Score", "Shard", "evaluate", "merge"]
