"""Flags after an evaluation: from tables written by hand, and from real attacks on real models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from atlas.attacks import ATTACKS, FGSM, PGD, Attack, Transfer, engine
from atlas.attacks.attack_log import BROKEN
from atlas.attacks.model_variants import Model
from atlas.data import load
from atlas.evaluation.flags import MEANINGS, Flag, after, before
from atlas.evaluation.results import COLUMNS, SKIPPED, AttackResult, columns_of
from atlas.models import build
from atlas.rng import Rng
from atlas.threat import L2, Linf, Threat

WONG = Path(__file__).parents[4] / "shared" / "models" / "wong_mnist_fgsm.safetensors"
N = 400
LEAST = 4
"""1% of N."""
STANDS = -2
"""As the lanes engine notes an example that is not fooled."""


def record(
    name: str,
    fooled: range | list[int],
    *,
    attempt: int = 0,
    step: int = 0,
    white_box: bool = True,
    steps: int = 100,
    attempts: int = 1,
    tried: range = range(N),
    broken: int = 0,
) -> AttackResult:
    """An attack that fools these examples, all in the same attempt and step."""
    attempted, at = torch.full((N,), STANDS), torch.full((N,), -1)
    attempted[list(fooled)], at[list(fooled)] = attempt, step
    attempted[:broken] = BROKEN
    attempted[[k for k in range(N) if k not in tried]] = SKIPPED
    return AttackResult(name, {}, white_box, steps, attempts, attempted, at, at.float(), at)


def names(flags: list[Flag]) -> list[str]:
    return [flag.name for flag in flags]


def square(fooled: range, **rest: int) -> AttackResult:
    return record("square", fooled, white_box=False, steps=5000, **rest)


def test_the_evidence_is_what_comes_before_the_meaning_also_of_older_versions() -> None:
    (flag,) = after([square([3])])
    assert flag.evidence == "no white-box attack was run; the worst case is by queries only (square)"
    older = Flag("random", True, "3 of 9 images change: an older meaning: in other words")
    assert older.evidence == "3 of 9 images change"
    assert Flag("unknown", False, "a: b").evidence == "a: b"


PGD_100, LATE = record("pgd", range(100)), {"steps": 20, "step": 19}
MANY = [PGD_100, record("apgd", range(90))]
RIVALS = [record("apgd", range(N // 2)), record("apgd-t", range(N // 2))]
WHITE = [PGD_100, record("apgd", range(50, 120))]
ONE, SOME = record("fgsm", range(50), steps=1, step=1), record("pgd", range(100), step=20)
CASES: dict[str, tuple[list[AttackResult], list[str]]] = {
    "no attack": ([], []),
    "no surprise": ([ONE, SOME, square(range(90), step=300)], []),
    "black box stronger": ([*WHITE, square(range(20, 120 + LEAST))], ["black-box-stronger"]),
    "by less than 1% of all": ([*WHITE, square(range(20, 119 + LEAST))], []),
    "only a black box": ([square(range(200))], ["queries-only"]),
    "white box that did not try these": ([square(range(200)), record("pgd", [], tried=range(200, N))], []),
    "white box that found nothing": ([record("pgd", []), square(range(10, 20))], ["black-box-stronger"]),
    "both kinds": ([square([3]), record("pgd", range(9))], []),
    # As FAB-T under L2, which alone finds most of what both APGDs left.
    "far ahead": ([*RIVALS, record("fab-t", range(N // 2, 9 * N // 10))], ["far-ahead"]),
    "a little ahead": ([*RIVALS, record("fab-t", range(N // 2, 11 * N // 20))], []),
    "late, but another attack was early": (
        [record("pgd-20", range(50), **LATE), record("pgd-1000", range(60), steps=1000, step=100)],
        [],
    ),
    "late, and so was the other": (
        [record("pgd-20", range(50), **LATE), record("pgd-1000", range(60), steps=1000, step=990)],
        ["still-gaining"] * 2,
    ),
    "one step says nothing of convergence": ([ONE], []),
    "nor do four": ([record("pgd-4", range(50), steps=4, step=4)], []),
    "late, of too few images": ([record("pgd", range(LEAST - 1), step=100)], []),
    "one step better": ([record("fgsm", range(100 + LEAST), steps=1), *MANY], ["one-step"]),
    "one step hardly better": ([record("fgsm", range(99 + LEAST), steps=1), *MANY], []),
    "one step on other images, as in a chain": (
        [record("fgsm", range(100), steps=1), record("pgd", range(100, 120), tried=range(100, N))],
        [],
    ),
    "one step alone": ([record("fgsm", range(100), steps=1)], []),
    "NaN": ([record("pgd", []), record("apgd", [], broken=1)], ["non-finite"]),
}
EVIDENCE = {
    "black box stronger": f"square fools {LEAST} of {N} images that every white-box attack left",
    "only a black box": "no white-box attack was run; the worst case is by queries only (square)",
    "far ahead": "of 400 images, fab-t alone fools 160 of the 200 that apgd and apgd-t left",
    "one step better": f"fgsm fools {100 + LEAST} of {N} images in one step, pgd 100",
    "NaN": f"NaN or infinity found for 1 of {N} images under apgd",
}


@pytest.mark.parametrize("case", CASES)
def test_the_flags_of_what_attacks_found(case: str) -> None:
    records, wanted = CASES[case]
    flags = after(records)
    assert names(flags) == wanted
    assert [flag.fatal for flag in flags] == [flag.name == "non-finite" for flag in flags]
    if case in EVIDENCE:
        assert flags[0].message == f"{EVIDENCE[case]}: {MEANINGS[wanted[0]]}"


def test_one_image_is_never_enough() -> None:
    few = slice(0, 50)

    def cut(r: AttackResult) -> AttackResult:
        return replace(r, **{name: getattr(r, name)[few] for name in COLUMNS})

    assert after([cut(record("pgd", [])), cut(square(range(1)))]) == []
    assert names(after([cut(record("pgd", [])), cut(square(range(2)))])) == ["black-box-stronger"]


@pytest.mark.parametrize(
    ("attempts", "attempt", "step", "late"),
    [
        *[(1, 0, 0, False), (1, 0, 75, False), (1, 0, 76, True), (1, 0, 100, True)],
        # Early or late in the attempt does not matter then: another attempt is another chance.
        *[(2, 0, 99, False), (2, 1, 1, True), (9, 6, 99, False), (9, 7, 1, True)],
        *[(20, 14, 99, False), (20, 15, 1, True)],
    ],
)
def test_still_gaining(attempts: int, attempt: int, step: int, late: bool) -> None:
    flags = after([record("pgd", range(LEAST), step=step, attempt=attempt, attempts=attempts)])
    assert names(flags) == ["still-gaining"] * late
    if late:
        of = f"{attempts} attempts" if attempts > 1 else "100 steps"
        assert f"pgd fools {LEAST} of {N} images only in the last quarter of its {of}:" in flags[0].message


def run(model: Model, x: Tensor, y: Tensor, attacks: dict[str, Attack], eps: float) -> list[AttackResult]:
    records = []
    for name, attack in attacks.items():
        found = engine.run(attack, model, x, y, Linf(eps), Rng.batch(len(x)))
        columns = columns_of(found, torch.ones(len(x), dtype=torch.bool))
        attempts = attack.attempts(10)
        records.append(AttackResult(name, {}, attack.white_box, attack.steps, attempts, **columns))
    return records


def linear() -> tuple[Model, Tensor, Tensor]:
    """A linear model, and images at known distances from its boundary."""
    x = torch.rand(300, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    w = torch.randn(16, 10, generator=torch.Generator().manual_seed(1))

    def model(images: Tensor) -> Tensor:
        return images.flatten(1) @ w

    return model, x, model(x).argmax(1)


def test_real_attacks_on_an_honest_model_raise_nothing() -> None:
    attacks = {"fgsm": FGSM(), "pgd": PGD(steps=40), "margin": PGD(steps=40, objective="margin", restarts=4)}
    records = run(*linear(), attacks, eps=0.05)
    assert 100 < int(records[-1].fooled.sum()) < 290
    assert after(records) == []


@pytest.mark.parametrize("threat", [Linf(0.3), L2(2.0)], ids=str)
@pytest.mark.parametrize("decay", [False, True])
def test_how_far_steps_go_in_all(threat: Threat, decay: bool) -> None:
    """Up a slope that is the same everywhere, each step adds its whole length."""
    weight = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))

    def slope(images: Tensor) -> Tensor:
        up = (images * weight).sum((1, 2, 3))
        return torch.stack([1000 - up, up], 1)

    attack = PGD(steps=5, step_size=0.02, start_at="clean", decay=decay, objective="margin")
    x, y = torch.full((3, 1, 8, 8), 0.5), torch.zeros(3, dtype=torch.int64)
    gone = threat.distance(attack(slope, x, y, threat), x)
    assert torch.allclose(gone, torch.full((3,), attack.reach(threat)))


def test_steps_for_another_ball_raise_short_reach() -> None:
    """PGD-20 of the paper's MNIST goes 0.2: enough for its eps of 0.3, and not for an L2 ball of 2."""
    weak = PGD(steps=20, step_size=0.01)
    attacks: dict[str, Attack] = {
        "PGD-20": weak,
        "PGD": PGD(steps=20),
        "FGSM": FGSM(),
        "black box": Transfer((torch.nn.Identity(),), weak),
        "Square": ATTACKS["square"](),
    }
    assert before(attacks, Linf(0.3)) == []
    flags = before(attacks, L2(2.0))
    assert names(flags) == ["short-reach", "short-reach"]
    assert flags[0].message.startswith("the steps of PGD-20 go 0.2 in all, and eps is 2: most of the ball")
    assert not any(flag.fatal for flag in flags)


def test_real_attacks_on_a_masked_model_raise_one_step() -> None:
    """Fine waves make PGD walk at random inside the ball, where FGSM jumps to a corner of it."""
    model, x, y = linear()

    def masked(images: Tensor) -> Tensor:
        return model(images + 0.02 * torch.sin(2000 * images))

    right = masked(x).argmax(1) == y
    attacks: dict[str, Attack] = {"fgsm": FGSM(objective="margin"), "pgd": PGD(steps=40, objective="margin")}
    assert "one-step" in names(after(run(masked, x[right], y[right], attacks, eps=0.2)))


def test_too_few_steps_raise_still_gaining() -> None:
    """40 steps of eps / 40 arrive at the edge of the ball in the last step, and not before."""
    attacks: dict[str, Attack] = {"pgd": PGD(steps=40, relative_step=1 / 40, start_at="clean")}
    assert names(after(run(*linear(), attacks, eps=0.05))) == ["still-gaining"]


@pytest.mark.slow
@pytest.mark.skipif(not WONG.exists(), reason=f"the published weights {WONG.name} are not here")
def test_square_beats_the_white_box_attacks_on_published_weights(data_root: Path) -> None:
    """A true case of masked gradients: the original AutoAttack's Square gains 2.8 points there."""
    test = load("mnist", train=False, root=data_root)
    model = build("cnn-small").eval()
    model.load_state_dict(load_file(WONG))
    attacks = {"pgd": PGD(steps=100, objective="margin", restarts=4), "square": ATTACKS["square"]()}
    records = run(model, test.pixels(slice(0, 300)), test.y[:300], attacks, eps=0.3)
    assert "black-box-stronger" in names(after(records))
