"""What comparisons say, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from atlas.report.comparison import LEVEL, WORST, Comparison
from atlas.report.words import p_words


def at_a_glance(found: Sequence[Comparison]) -> list[Comparison]:
    """Those comparisons with a model that none before them has: a page begins with these."""
    seen, kept = set[str](), []
    for comparison in found:
        names = {entry.run.name for entry in comparison.entries}
        if names - seen:
            kept.append(comparison)
        seen |= names
    return kept


def verdict(comparison: Comparison) -> str:
    """The comparison in a sentence: who is best in the worst case, and whether that is more than chance."""
    leaders, n = comparison.leaders[WORST], f"n = {comparison.n:,}"
    if not leaders:
        alone = comparison.entries[0]
        score = comparison.score(alone, WORST)
        if len(comparison.entries) > 1:
            return f"These evaluations cannot be compared {comparison.worst_words}."
        said = f"is {score}" if score.reasons else f"holds in {score} of cases"
        return f"{alone.name} {said} {comparison.worst_words} ({n})."
    best = leaders[0]
    others = [(e, comparison.to_the_best(e, WORST)) for e in comparison.entries if e not in leaders]
    tied = [f"{e.name} ({p_words(pair.p_value)})" for e, pair in others if pair and pair.p_value >= LEVEL]
    names = _listed([entry.name for entry in leaders])
    have = "share" if len(leaders) > 1 else "has"
    start = f"{names} {have} the highest accuracy {comparison.worst_words}, "
    start += f"{comparison.score(best, WORST)}, {n}"
    if tied:
        return f"{start}; the lead over {', '.join(tied)} is not significant."
    largest = max((pair.p_value for _, pair in others if pair), default=1.0)
    return f"{start}; the lead is significant ({p_words(largest)})." if largest < LEVEL else f"{start}."


def _listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
