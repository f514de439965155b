"""What comparisons say, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from atlas.report.comparison import LEVEL, WORST, Comparison, Entry
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
    """The comparison in a few words: who is best in the worst case, whether by chance, and who is invalid."""
    valid = [entry for entry in comparison.entries if not comparison.score(entry, WORST).reasons]
    if comparison.leaders[WORST]:
        said = _lead(comparison, comparison.leaders[WORST])
    elif len(valid) == 1:
        score = comparison.score(valid[0], WORST)
        said = f"{valid[0].name} has an accuracy of {score} {comparison.worst_words}, n = {comparison.n:,}."
    else:
        said = f"These evaluations cannot be compared {comparison.worst_words}." if valid else ""
    return " ".join(filter(None, [said, _invalid(comparison)]))


def _lead(comparison: Comparison, leaders: Sequence[Entry]) -> str:
    """Who leads, and over whom that may be chance."""
    others = [(e, comparison.to_the_best(e, WORST)) for e in comparison.entries if e not in leaders]
    tied = [f"{e.name} ({p_words(pair.p_value)})" for e, pair in others if pair and pair.p_value >= LEVEL]
    have = "share" if len(leaders) > 1 else "has"
    start = f"{_listed([entry.name for entry in leaders])} {have} the highest accuracy "
    start += f"{comparison.worst_words}, {comparison.score(leaders[0], WORST)}, n = {comparison.n:,}"
    if tied:
        return f"{start}; the lead over {_listed(tied)} may be chance."
    largest = max((pair.p_value for _, pair in others if pair), default=1.0)
    if largest >= LEVEL:  # nobody is behind
        return f"{start}."
    return f"{start}; on these images that is more than chance ({p_words(largest)}; one training of each)."


def _invalid(comparison: Comparison) -> str:
    """Whose results mean nothing, each with the reason."""
    scores = [(entry.name, comparison.score(entry, WORST)) for entry in comparison.entries]
    said = [
        f"that of {name} is {'invalid: ' * score.is_bound}{score}" for name, score in scores if score.reasons
    ]
    if not said:
        return ""
    first = said[0].removeprefix("that")
    return f"The result{_listed([first, *said[1:]])}."


def _listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
