"""Honesty checks before an evaluation: what a few passes of the model tell of its outputs and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from atlas.attacks import FGSM, PGD, Attack, Model, NotFinite, engine, frozen
from atlas.attacks.gradients import has_gradients, input_gradients
from atlas.errors import AtlasError, is_out_of_memory
from atlas.evaluation.compare import paired
from atlas.evaluation.flags import Flag, noticeable, raised
from atlas.models.normalize import STANDARDS, Normalization, Normalize
from atlas.objectives import cross_entropy, margin
from atlas.rng import Rng
from atlas.threat import Linf, Threat

POOL = 500
"""Images among which those that the model gets right are looked for."""
PROBES = 100
"""Images that are probed: enough to see a tenth of them, and cheap next to any attack on a test set."""
SUMS_TO_ONE = 1e-2
"""How far from 1 probabilities may sum: bfloat16 keeps 8 bits. No logits do so at every image by chance."""
SURE = 0.9
"""The middle one of the largest outputs, above which outputs in [0, 1] look like sigmoids."""
NORMALIZED_GAIN, NORMALIZED_LEVEL = 0.2, 1e-3
"""How many more clean images have to be right behind a normalisation, as a share, and the level of the paired
test: several are tried, and on a few images one of them gains a fifth by chance."""
SAME_STATISTICS = 0.03
"""How far the mean and std of a few hundred images may be from those of their data set."""
RANDOM = 1e-4
"""Two passes of a batch may differ by this share of the spread of the logits. The same arithmetic gives the
same bits on a CPU; sums in another order, as some kernels of a GPU have them, give 1e-6."""
COMPANY = 0.02
"""The same for an image in less company, for which other kernels may be chosen: bfloat16 keeps 8 bits."""
ALONE = 8
"""Images that are asked one by one: whose company is large hardly notices half of it."""
ZERO_SHARE = 0.1
"""Images whose gradient is exactly 0. Honest models have none, and a tenth moves any accuracy."""
DOWN_SHARE, DOWN_SHARE_FATAL = 0.1, 0.5
"""Images at which the gradient is no better than chance: none of honest models, 2 in 3 if it is noise."""
LENGTHS = (1 / 3, 1 / 10, 1 / 30, 1 / 100)
"""Of the steps that are to go up, in units of eps: any of them will do. At a kink a long step can fail where
a short one goes up, and a quantiser with a straight-through gradient swallows short ones only."""
CHANCES = 3
"""Random steps that a step along the gradient has to beat at its length."""
FLOAT_NOISE = 1e-5
"""A rise below this share of the largest logit may be rounding."""
WAYS, WAY_LENGTHS, WAY_PIXELS = 6, (1.0, 1 / 3, 1 / 10), 1 / 16
"""Random steps there and back by which gradients are checked, their lengths in units of eps, and the share of
pixels that one moves: all of them would move by next to nothing in L2, where an attack moves a few a lot."""
MISSED, MISSED_SHARE = 0.25, 0.25
"""The part of what such steps do that the gradient may miss, at the best length, and the share of images at
which it may miss more. Honest models had up to 0.18 such images."""
LONG, LONG_SHARE = 0.3, 0.6
"""The same share for steps of LONG eps or more alone. Fine waves look smooth at eps / 10, and mislead every
attack that moves further at all images. Honest models had up to 0.43 such images."""
LARGE_SHARE = 0.05
"""Images that may stand with the whole pixel box to move in; of honest models' images none did."""
LARGE_EPS = PGD(steps=20, relative_step=0.1, objective="margin", start_at="clean")
"""From the image itself, because at this radius a random start alone fools."""
ONE_STEP, MANY_STEPS = FGSM(objective="margin"), PGD(steps=20, objective="margin")


@dataclass(frozen=True)
class _Right:
    """A model and images [B, ...] that it gets right, at most `batch_size` of them in memory at a time."""

    model: Model
    x: Tensor
    y: Tensor
    threat: Threat
    rng: Rng
    batch_size: int

    def __len__(self) -> int:
        return len(self.x)

    def predict(self, x: Tensor) -> Tensor:
        return engine.predict(self.model, x, self.batch_size)

    def fooled(self, attack: Attack, threat: Threat) -> int:
        outcome = engine.run(attack, self.model, self.x, self.y, threat, self.rng, batch_size=self.batch_size)
        return len(self) - int(outcome.robust.sum())


def probe(
    model: Model,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    *,
    rng: Rng | None = None,
    eot: bool = False,
    batch_size: int = PROBES,
) -> list[Flag]:
    """The flags that the model raises on these images before any attack.

    Probed are up to 100 images that it gets right, at most `batch_size` at a time. With `eot` its randomness
    is averaged over and is no fatal flaw. Of a model without gradients only the outputs are probed.
    """
    batch_size = min(batch_size, PROBES)
    with frozen(model):
        logits = engine.predict(model, x[:POOL], batch_size)
        finite, answers = logits.isfinite().all(1), logits.argmax(1)
        flags = list(_outputs(logits[finite], int((~finite).sum())))
        same = bool(finite.any()) and _alike(answers[finite]) and not _alike(y[:POOL])
        which = (finite & (answers == y[:POOL])).nonzero()[:PROBES, 0]
        unnormalized = partial(_unnormalized, model, x[:POOL], y[:POOL], answers == y[:POOL], batch_size)
        if not len(which):
            return [*flags, *unnormalized(), *([_constant(answers[finite], False)] if same else [])]
        rng = (rng or Rng.batch(len(x), device=x.device))[which].fold("probe")
        right = _Right(model, x[which], y[which], threat, rng, batch_size)
        unsteady = list(_unsteady(right, eot))
        if not unsteady:  # noise inside a model is drowned by images of a larger range
            flags += unnormalized()
        if same:
            flags.append(_constant(answers[finite], everywhere := not _moves(right)))
            if everywhere:  # there is nothing that an attack could change
                return flags + unsteady
        gradients = _gradients(right, bool(unsteady)) if has_gradients(model, x[:1]) else []
        return flags + unsteady + gradients


def _unnormalized(model: Model, x: Tensor, y: Tensor, right: Tensor, batch_size: int) -> Iterator[Flag]:
    """Whether far more clean images are right behind a usual normalisation; x [B, C, H, W]."""
    n = min(len(x), PROBES)
    before = best = right[:n]
    if x.ndim != 4 or int((~before).sum()) < NORMALIZED_GAIN * n:
        return
    advice = ""
    for words, normalization in _normalizations(x).items():
        normalized = Normalize(*normalization).to(x.device)(x[:n])
        try:
            answers = engine.predict(model, normalized, batch_size).argmax(1)
        except Exception as error:  # a model may refuse pixels outside [0, 1]
            if isinstance(error, AtlasError) or is_out_of_memory(error):
                raise
            continue
        if (answers == y[:n]).sum() > best.sum():
            best, advice = answers == y[:n], words
    pair = paired(best, before)
    if pair.difference >= NORMALIZED_GAIN and pair.p_value <= NORMALIZED_LEVEL:
        text = (
            f"{int(before.sum())} of {n} clean images are right, and {int(best.sum())} of {n} with {advice}"
        )
        yield raised("unnormalized", text)


def _normalizations(x: Tensor) -> dict[str, Normalization]:
    """Those to try, by the option that asks for each: that of the images themselves, and usual ones."""
    std, mean = (
        list[float](value.tolist()) for value in torch.std_mean(x.double(), dim=(0, 2, 3), correction=0)
    )

    def distance(name: str) -> float:
        known = STANDARDS[name]
        pairs = [*zip(known[0], mean, strict=True), *zip(known[1], std, strict=True)]
        return max(abs(a - b) for a, b in pairs)

    fitting = {name: known for name, known in STANDARDS.items() if len(known[0]) in (1, len(mean))}
    nearest = min((name for name in fitting if len(fitting[name][0]) == len(mean)), key=distance, default="")
    own = [nearest] if nearest and distance(nearest) < SAME_STATISTICS else []
    tried = [name for name in fitting if name in (*own, "imagenet", "-1..1", "0..255")]
    found = {f'--normalize {name} (in Python normalize="{name}")': fitting[name] for name in tried}
    if not own and min(std) > 0:
        means, stds = ([round(value, 4) for value in values] for values in (mean, std))
        options = f"--mean {','.join(map(str, means))} --std {','.join(map(str, stds))}"
        found[f"{options} (in Python normalize=({means}, {stds}))"] = means, stds
    return found


def _constant(answers: Tensor, everywhere: bool) -> Flag:
    more = ", and so do noise, black and white" if everywhere else ""
    return raised("constant", f"all {len(answers)} images get the same answer, class {int(answers[0])}{more}")


def changed(first: Tensor, again: Tensor, since: str) -> list[Flag]:
    """The flag that a model raises whose outputs [B, C] at the same images are no longer what they were."""
    spread = (first.amax(1) - first.amin(1)).nan_to_num(posinf=0).mean()
    moved = (again - first).abs().masked_fill(~(first.isfinite() & again.isfinite()), 0).amax(1)
    different = (moved > RANDOM * spread) | (first.isfinite() != again.isfinite()).any(1)
    if not different.any():
        return []
    count = f"{int(different.sum())} of {len(first)} clean images"
    return [raised("changing", f"{since} the outputs at {count} are not those of the start", fatal=True)]


def _alike(classes: Tensor) -> bool:
    return bool((classes == classes[0]).all())


@torch.no_grad()
def _moves(right: _Right) -> bool:
    """Whether anything in the pixel box gets another answer: steps without a gradient look constant."""
    noise = right.rng.fold("noise").uniform(right.x.shape[1:], dtype=right.x.dtype)
    tried = torch.cat([noise, 1 - right.x, torch.zeros_like(right.x[:1]), torch.ones_like(right.x[:1])])
    return not _alike(torch.cat([right.y[:1], right.predict(tried).argmax(1)]))


def _outputs(logits: Tensor, broken: int) -> Iterator[Flag]:
    n = len(logits)
    if broken:
        text = f"the outputs are NaN or infinite at {broken} of {n + broken} clean images"
        yield raised("non-finite", text, fatal=True)
    if n and logits.amin() >= 0 and logits.amax() <= 1 + SUMS_TO_ONE:
        sums = bool((logits.sum(1) - 1).abs().amax() < SUMS_TO_ONE)
        if sums or logits.amax(1).median() > SURE:
            more = " and sum to 1" if sums else ""
            text = f"the {logits.shape[1]} outputs at each of {n} images are in [0, 1]{more}"
            yield raised("probabilities", text)


@torch.no_grad()
def _unsteady(right: _Right, eot: bool) -> list[Flag]:
    """Whether an image's outputs change from pass to pass or with its company."""
    first, second = right.predict(right.x), right.predict(right.x)
    spread = float((first.amax(1) - first.amin(1)).mean())
    moved = float((second - first).abs().amax())
    if moved > RANDOM * spread:
        text = f"a second pass moves the outputs by up to {moved:.3g}, where classes are {spread:.3g} apart"
        return [raised("random", text, fatal=not eot)]
    batch = min(right.batch_size, len(right))
    for size, words in (((batch + 1) // 2, "half the batch"), (1, "to be asked alone")):
        apart = torch.cat([right.model(part) for part in torch.split(right.x, size)[:ALONE]])
        moved = float((apart - first[: len(apart)]).abs().amax())
        if moved > COMPANY * spread:
            text = f"{words} moves the outputs by up to {moved:.3g}, where classes are {spread:.3g} apart"
            return [raised("batch-dependent", text, fatal=True)]
    return []


def _gradients(right: _Right, unsteady: bool) -> list[Flag]:
    """What the gradients are good for. Outputs that are not steady would drown small differences."""
    try:
        uphill, of_ce = (
            input_gradients(right.model, right.x, right.y, objective, right.batch_size)
            for objective in (margin, cross_entropy)
        )
        flags = [*_zero_gradients(uphill, of_ce), *_large_eps(right)]
        if unsteady or right.threat.eps == 0:
            return flags
        return [*flags, *_not_uphill(right, uphill), *_misleading(right), *_one_step(right)]
    except NotFinite as error:
        text = f"gradients are NaN or infinite at {int(error.lanes.sum())} of {len(error.lanes)} images"
        return [raised("non-finite", text, fatal=True)]


def _zero_gradients(of_margin: Tensor, of_ce: Tensor) -> list[Flag]:
    for gradient, of, fatal in ((of_margin, "margin", True), (of_ce, "cross-entropy", False)):
        zero, n = int((gradient.flatten(1) == 0).all(1).sum()), len(gradient)
        if zero >= ZERO_SHARE * n:
            text = f"the {of} has no gradient at all at {zero} of {n} images"
            return [raised("zero-gradients", text, fatal=fatal)]
    return []


def _large_eps(right: _Right) -> Iterator[Flag]:
    """Balls of L-inf radius 1 and of L2 radius sqrt(pixels) both hold the whole pixel box.

    So signs serve for either norm: a step of steepest L2 ascent is spent on pixels that are at the edge of
    the box already, and stalls on honest models too.
    """
    left = len(right) - right.fooled(LARGE_EPS, Linf(1.0))
    if left > LARGE_SHARE * len(right):
        text = (
            f"PGD on the margin leaves {left} of {len(right)} images right with an eps of the whole pixel box"
        )
        yield raised("large-eps", text, fatal=True)


@torch.no_grad()
def _not_uphill(right: _Right, gradient: Tensor) -> list[Flag]:
    """Steps along the gradient have to raise the margin, and by more than random steps do."""
    x, y, n = right.x, right.y, len(right)
    logits = right.predict(x)
    noise = FLOAT_NOISE * logits.abs().amax(1)

    def rise(direction: Tensor, length: float) -> Tensor:
        ball = right.threat.at(length * right.threat.eps)
        moved = ball.project(ball.ascend(x, direction, ball.eps), x)
        return margin(right.predict(moved), y) - margin(logits, y)

    up = (gradient.flatten(1) == 0).all(1)  # these are another flag's
    directions = [right.rng.fold("chance", k).normal(x.shape[1:], x.dtype) for k in range(CHANCES)]
    for length in LENGTHS:
        chance = torch.stack([rise(direction, length) for direction in directions]).amax(0)
        up = up | (rise(gradient, length) > chance.clamp_min(0) + noise)
    down = n - int(up.sum())
    if not (noticeable(down, n) and down >= DOWN_SHARE * n):
        return []
    text = f"at {down} of {n} images no step along the margin's gradient does better than random steps"
    return [raised("not-uphill", text, fatal=down >= DOWN_SHARE_FATAL * n)]


def _misleading(right: _Right) -> Iterator[Flag]:
    """Whether the gradient foretells what random steps do, from a point near the image.

    Steps go both ways from the point: so the curvature of an honest model cancels, and a mask, waves, noise
    or a gradient from elsewhere do not. Any length will do, as for `_not_uphill`.
    """
    threat, y, n = right.threat, right.y, len(right)
    x = threat.at(threat.eps / 2).random_start(right.x, right.rng.fold("near"))
    gradient = input_gradients(right.model, x, y, margin, right.batch_size)
    noise = FLOAT_NOISE * right.predict(x).abs().amax(1)
    least, of_long = torch.full_like(noise, torch.inf), torch.full_like(noise, torch.inf)
    for length in WAY_LENGTHS:
        missed, whole = torch.zeros_like(noise), torch.zeros_like(noise)
        for k in range(WAYS):
            rng = right.rng.fold("way", k)
            few = rng.fold("pixels").uniform(x.shape[1:], dtype=x.dtype) < WAY_PIXELS
            way = rng.normal(x.shape[1:], x.dtype) * few
            ends = [threat.ascend(x, way * sign, length * threat.eps).clamp_(0, 1) for sign in (1, -1)]
            there, back = (margin(right.predict(end), y) for end in ends)
            rise, foretold = there - back, (gradient * (ends[0] - ends[1])).flatten(1).sum(1)
            missed += ((rise - foretold).abs() - noise).clamp_min(0).square()
            whole += torch.maximum(rise.square(), foretold.square())
        share = missed / whole.clamp_min(torch.finfo(whole.dtype).tiny)
        least = torch.minimum(least, share)
        if length >= LONG:
            of_long = torch.minimum(of_long, share)
    wrong, wrong_far = int((least > MISSED).sum()), int((of_long > MISSED).sum())
    if wrong > MISSED_SHARE * n or wrong_far > LONG_SHARE * n:
        count = wrong if wrong > MISSED_SHARE * n else wrong_far
        text = (
            f"at {count} of {n} images the gradient misses over a quarter of what random steps near them do"
        )
        yield raised("misleading", text)


def _one_step(right: _Right) -> Iterator[Flag]:
    one, many = right.fooled(ONE_STEP, right.threat), right.fooled(MANY_STEPS, right.threat)
    if noticeable(one - many, len(right)):
        text = f"one step fools {one} of {len(right)} images, PGD with {MANY_STEPS.steps} steps {many}"
        yield raised("one-step", text)
