"""Warnings: named flags that say why an accuracy may be higher than the model deserves.

`atlas.evaluation.probes` raises flags before an evaluation, from a few passes of the model; `before` from the
attacks' settings; `after` from what they found. A fatal flag makes the result invalid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atlas.attacks import Attack
from atlas.evaluation.score import Score
from atlas.threat import Threat, eps_text

if TYPE_CHECKING:
    from atlas.evaluation.results import AttackResult

MEANINGS = {
    "probabilities": "attacks need logits: a softmax rounds small gradients to 0, so robust accuracy can be "
    "too high; pass the model without its softmax",
    "random": "the model gives another answer each time, and one lucky answer is not robustness; attack the "
    "mean of many (--eot 30, eot=30), and check that more of them change nothing",
    "changing": "verdicts from different times are about different models; does it count its calls, or adapt "
    "to its inputs?",
    "batch-dependent": "the answer for an image depends on the other images of its batch, so no verdict "
    "belongs to one image; is BatchNorm in training mode?",
    "unnormalized": "the model seems to expect normalised images, so these accuracies are not those of the "
    "model as it is used; evaluate it again with that normalisation",
    "constant": "the accuracy is the share of one class among the images, which a model that has learned "
    "nothing reaches too; look at the accuracy per class",
    "class-at-zero": "the accuracy over all classes hides this; look at the accuracy per class",
    "non-finite": "NaN and infinity look like robustness, because no attack can follow them, so no accuracy "
    "can be given",
    "zero-gradients": "where the gradient is 0, a gradient attack cannot start, whatever its budget",
    "not-uphill": "the gradient does not point to where the model errs, as if it were masked; gradient "
    "attacks then find too little",
    "misleading": "near the images the outputs do not change as the gradient says, as if it were masked, "
    "shattered or noise; gradient attacks then find too little, and the worst case may be far lower: try "
    "--suite autoattack, and attack the model without the layer that causes it",
    "large-eps": "if every pixel may take any value, every image can become one of another class; an attack "
    "that fails even then is broken, and so is the accuracy that it reports",
    "one-step": "many small steps can do all that one large step does; that they find less is a sign of "
    "masked gradients",
    "black-box-stronger": "an attack that sees the gradients can do all that a black-box attack does; that "
    "they find less is a sign of masked gradients or of too small a budget; the worst case is likely lower",
    "far-ahead": "attacks with gradients and similar budgets should find about the same; where the others "
    "stall, this one may have stalled too, and the worst case may be lower: try --suite autoattack",
    "queries-only": "attacks with gradients find more, often far more; read the worst case as an upper "
    "bound, and evaluate the model in a form that has gradients if there is one",
    "short-reach": "most of the ball is out of its reach, so it says little about the rest; was the step "
    "size chosen for another radius or norm? relative_step follows eps",
    "still-gaining": "the search had not converged; more steps or restarts are likely to fool more",
}
"""What each flag means."""

GRAVE = ("constant", "unnormalized")
"""Not fatal, because the numbers are true, but nobody must miss them."""
LEAST_IMAGES = 2
"""One image can fall to chance: a random start, or a rounding error next to the boundary."""
LEAST_SHARE = 0.01
"""What a referee would call a difference: a point of accuracy."""
MOST_CLASSES = 5
"""Classes that a message names."""
LEAD_SHARE, LEAD_PART = 0.1, 0.5
"""An attack is far ahead if it alone fools this share of all images, and this part of what the rest left."""
RIVAL_BUDGET = 0.25
"""Of its budget, steps times attempts, is the least with which another attack is compared with it."""


@dataclass(frozen=True)
class Flag:
    """Why a result is in doubt."""

    name: str
    """One of `MEANINGS`."""
    fatal: bool
    """Whether the result is invalid."""
    message: str
    """The evidence in numbers, and what it means."""

    @property
    def grave(self) -> bool:
        """Whether the result is valid but must not be read without it."""
        return self.name in GRAVE

    @property
    def word(self) -> str:
        """The prefix with which it is printed."""
        return "INVALID" if self.fatal else "WARNING" if self.grave else "note"

    @property
    def evidence(self) -> str:
        """The message without its meaning, for lists of many. Older versions had other words for it."""
        meaning = f": {MEANINGS.get(self.name)}"
        if self.name in MEANINGS and not self.message.endswith(meaning):
            return self.message.partition(": ")[0]
        return self.message.removesuffix(meaning)


def raised(name: str, evidence: str, *, fatal: bool = False) -> Flag:
    """The flag of this name, with its meaning after the evidence."""
    return Flag(name, fatal, f"{evidence}: {MEANINGS[name]}")


def after(results: Sequence[AttackResult]) -> list[Flag]:
    """The flags that the outcomes of all attacks of an evaluation raise."""
    checks = (_non_finite, _queries_only, _black_box_stronger, _far_ahead, _one_step, _still_gaining)
    return [flag for check in checks for flag in check(results)] if results else []


def before(attacks: Mapping[str, Attack], threat: Threat) -> list[Flag]:
    """The flags that attacks raise by their settings alone."""
    eps = eps_text(threat.eps)
    return [
        raised("short-reach", f"the steps of {label} go {attack.reach(threat):.3g} in all, and eps is {eps}")
        for label, attack in attacks.items()
        if attack.falls_short(threat)
    ]


def of_classes(scores: Mapping[str, Score], whole: Score) -> list[Flag]:
    """The flag of classes of which no image is right, by their accuracies in the worst case and that of all.

    A few images can all be wrong by chance, so a class counts where its interval is below the mean of all.
    """
    low = [
        f"{name} (0 of {score.n})"
        for name, score in scores.items()
        if score.right == 0 and score.interval[1] < whole.rate
    ]
    if not low:
        return []
    more = f" and {len(low) - MOST_CLASSES} more" if len(low) > MOST_CLASSES else ""
    named = ", ".join(low[:MOST_CLASSES]) + more
    text = f"no image is right under attack in class {named}, where {whole.rate:.1%} of all are"
    return [raised("class-at-zero", text)]


def noticeable(count: int, n: int) -> bool:
    return count >= max(LEAST_IMAGES, LEAST_SHARE * n)


def _any(masks: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(masks)).any(0)


def _non_finite(results: Sequence[AttackResult]) -> Iterator[Flag]:
    n = len(results[0].tried)
    broken = [f"{int(r.broken.sum())} of {n} images under {r.label}" for r in results if r.broken.any()]
    if broken:
        yield raised("non-finite", f"NaN or infinity found for {', '.join(broken)}", fatal=True)


def _queries_only(results: Sequence[AttackResult]) -> Iterator[Flag]:
    if not any(r.white_box for r in results):
        by = f"the worst case is by queries only ({', '.join(r.label for r in results)})"
        yield raised("queries-only", f"no white-box attack was run; {by}")


def _black_box_stronger(results: Sequence[AttackResult]) -> Iterator[Flag]:
    white = [r for r in results if r.white_box]
    if not white:
        return
    left = _any(r.tried for r in white) & ~_any(r.fooled for r in white)
    for result in results:
        more, n = int((result.fooled & left).sum()), len(left)
        if not result.white_box and noticeable(more, n):
            text = f"{result.label} fools {more} of {n} images that every white-box attack left"
            yield raised("black-box-stronger", text)


def _far_ahead(results: Sequence[AttackResult]) -> Iterator[Flag]:
    white = [r for r in results if r.white_box]
    for result in white:
        least = RIVAL_BUDGET * result.steps * result.attempts
        rivals = [r for r in white if r is not result and r.steps * r.attempts >= least]
        if not rivals:
            continue
        left = ~_any(~r.survived for r in rivals)
        alone, n = int((result.fooled & left).sum()), len(left)
        if alone >= max(LEAST_IMAGES, LEAD_SHARE * n, LEAD_PART * int(left.sum())):
            others, count = " and ".join(r.label for r in rivals), f"{alone} of the {int(left.sum())}"
            text = f"of {n} images, {result.label} alone fools {count} that {others} left"
            yield raised("far-ahead", text)


def _one_step(results: Sequence[AttackResult]) -> Iterator[Flag]:
    white = [r for r in results if r.white_box]
    many = [r for r in white if r.steps > 1]
    for one in (r for r in white if r.steps == 1 and many):
        pairs = [(int((one.fooled & m.tried).sum()), int((m.fooled & one.tried).sum()), m) for m in many]
        fooled, best, rival = min(pairs, key=lambda pair: pair[0] - pair[1])
        if noticeable(fooled - best, len(one.tried)):
            text = f"{one.label} fools {fooled} of {len(one.tried)} images in one step, {rival.label} {best}"
            yield raised("one-step", text)


def _still_gaining(results: Sequence[AttackResult]) -> Iterator[Flag]:
    """Late successes count where no other attack had its success early.

    In a cascade, a later attack of the same kind continued on what this one left.
    """
    early = _any(r.fooled & ~r.late for r in results)
    for k, result in enumerate(results):
        later = [r for r in results[k + 1 :] if r.white_box == result.white_box]
        if result.fooled.any() and any(not (r.tried & result.fooled).any() for r in later):
            continue
        late, n = int((result.late & ~early).sum()), len(result.tried)
        if noticeable(late, n):
            of = f"{result.attempts} attempts" if result.attempts > 1 else f"{result.steps} steps"
            text = f"{result.label} fools {late} of {n} images only in the last quarter of its {of}"
            yield raised("still-gaining", text)
