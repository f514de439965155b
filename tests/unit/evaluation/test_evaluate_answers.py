"""`evaluate` and models whose answers are random, rounded, broken, or of another precision."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atlas.attacks import Square
from atlas.attacks.attack_log import BROKEN
from atlas.data import Images
from atlas.errors import UsageError
from atlas.evaluation import Shard, evaluate, merge
from atlas.evaluation.compare import compared
from atlas.threat import Linf
from tests.unit.evaluation.runs import ATTACKS, COUNT, columns, net, noise, run


@pytest.fixture(scope="module")
def images() -> Images:
    return noise()


def test_bfloat16_claims_nothing_that_float32_does_not_bear_out(images: Images) -> None:
    report = run(images, attack_dtype="bfloat16")
    exact = run(images)
    assert abs(report.worst.right - exact.worst.right) <= 3
    assert report.clean.right == exact.clean.right
    for result in report.results.values():
        assert (result.margin[result.fooled] > 0).all()


def test_a_random_model_is_invalid_unless_it_is_averaged(images: Images) -> None:
    steady = net()
    generator = torch.Generator().manual_seed(0)

    def shaky(x: Tensor) -> Tensor:
        logits = steady(x)
        return logits + 0.5 * torch.randn(logits.shape, generator=generator)  # type: ignore[no-any-return]

    report = run(images, shaky)
    assert "random" in [flag.name for flag in report.flags if flag.fatal]
    assert not report.valid
    assert [line[1] for line in report.lines()] == ["invalid"] * 4
    assert report.summary()["accuracy"]["worst case"] == {"valid": False, "reasons": ["random"]}
    assert str(report.worst) == str(report.clean) == "invalid (random)"
    assert run(images, shaky, eot=30).valid


def noisy(seed: int = 0) -> Callable[[Tensor], Tensor]:
    """Another answer at every look."""
    steady, generator = net(), torch.Generator().manual_seed(seed)
    return lambda x: steady(x) + torch.randn(len(x), 4, generator=generator)


def test_a_random_model_is_judged_by_the_answers_of_the_first_time(images: Images, tmp_path: Path) -> None:
    first = run(images, noisy(), folder=tmp_path, eot=2, model_key="noisy")
    again = run(images, noisy(1), folder=tmp_path, eot=2, model_key="noisy")
    assert columns(again) == columns(first)
    assert (again.clean, again.worst) == (first.clean, first.worst)


def test_no_worst_case_is_above_an_attack_s_accuracy(images: Images, tmp_path: Path) -> None:
    """Not even of a random model, part by part: what was wrong when it had its turn is not robust."""
    for index in range(2):
        run(images, noisy(), folder=tmp_path, shard=Shard(index, 2), eot=2, model_key="noisy")
    merge(tmp_path, 2, list(ATTACKS))
    report = run(images, noisy(), folder=tmp_path, eot=2, model_key="noisy")
    assert report.worst.right <= min(report.score(label).right for label in ATTACKS)
    everywhere = replace(report, clean_right=torch.ones(COUNT, dtype=torch.bool))
    assert torch.equal(everywhere.robust, report.robust)


def test_answers_that_round_otherwise_are_those_of_the_first_time(images: Images, tmp_path: Path) -> None:
    def tied(label: int) -> Callable[[Tensor], Tensor]:
        ahead = 2e-7 * F.one_hot(torch.tensor(label), 4)
        return lambda x: 1 + ahead + 0 * x.flatten(1)[:, :1]

    first, other = (run(images, tied(label)) for label in (0, 1))
    assert first.clean.right != other.clean.right
    for label in (0, 1):
        report = run(images, tied(label), folder=tmp_path, model_key="mine")
        assert report.clean_right.tolist() == first.clean_right.tolist()


def test_a_mended_gradient_is_another_model_s(images: Images, tmp_path: Path) -> None:
    """Straight through a rounding, or not: the same answers under the same key."""
    steady, mended = net(), [False]

    def rounding(x: Tensor) -> Tensor:
        rounded = (x * 16).round() / 16
        logits: Tensor = steady(x + (rounded - x).detach() if mended[0] else rounded + 0 * x)
        return logits

    run(images, rounding, folder=tmp_path, model_key="mine")
    run(images, rounding, folder=tmp_path, model_key="mine")
    mended[0] = True
    with pytest.raises(UsageError, match="another model: its gradients were others"):
        run(images, rounding, folder=tmp_path, model_key="mine")


def test_gradients_that_differ_each_time_are_no_sign_of_another_model(images: Images, tmp_path: Path) -> None:
    steady, generator = net(), torch.Generator().manual_seed(0)

    def shaky(x: Tensor) -> Tensor:
        way = x * torch.randn(x.shape, generator=generator)
        logits: Tensor = steady(x.detach() + way - way.detach())
        return logits

    one = run(images, shaky, folder=tmp_path, model_key="mine")
    other = run(images, shaky, folder=tmp_path, model_key="mine")
    assert one.worst == other.worst


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_logits_of_any_precision(dtype: torch.dtype, images: Images, tmp_path: Path) -> None:
    model = net().to(dtype)

    def answer(x: Tensor) -> Tensor:
        return model(x.to(dtype))  # type: ignore[no-any-return]

    options = {"suite": "autoattack", "attacks": None, "n": 12, "model_key": "any"}
    first = run(images, answer, folder=tmp_path, **options)
    assert columns(run(images, answer, folder=tmp_path, **options)) == columns(first)
    assert 0 < first.worst.right < first.clean.right


def test_a_model_with_a_length_of_its_own_is_asked(images: Images) -> None:
    """As that of `torch.compile` has, which may raise."""

    class Long(nn.Sequential):
        def __len__(self) -> int:
            raise TypeError("no length")

    assert columns(run(images, Long(net()))) == columns(run(images))


def test_without_a_folder_ctrl_c_is_python_s(images: Images) -> None:
    model = net()

    def interrupted(x: Tensor) -> Tensor:
        signal.raise_signal(signal.SIGINT)
        return model(x)  # type: ignore[no-any-return]

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background has none
    try:
        with pytest.raises(KeyboardInterrupt):
            run(images, interrupted)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_number_is_no_threat(images: Images, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"threat must be atlas\.Linf\(eps\) .*got 0\.1"):
        evaluate(net(), images, 0.1, folder=tmp_path, progress=False)  # type: ignore[arg-type]


def test_a_model_that_breaks_is_invalid_and_its_examples_are_marked(images: Images) -> None:
    steady = net()

    def breaks(x: Tensor) -> Tensor:
        logits = steady(x)
        return logits / (x.flatten(1)[:, :1] < 0.97)  # type: ignore[no-any-return]

    report = run(images, breaks)
    assert not report.valid
    assert (report.results["PGD 2x6"].attempt == BROKEN).any()
    assert not report.robust[report.results["PGD 2x6"].attempt == BROKEN].any()
    assert not report.worst.is_bound  # a broken image is no verified success


def test_masked_gradients_leave_the_bound_of_verified_successes(images: Images) -> None:
    steady = net()

    def masked(x: Tensor) -> Tensor:
        return steady(x + ((8 * x).round() / 8 - x).detach() - x + x.detach())  # type: ignore[no-any-return]

    attacks = {**ATTACKS, "Square": Square(queries=50)}
    report = evaluate(masked, images, Linf(0.1), attacks=attacks, progress=False)
    assert "zero-gradients" in report.reasons
    fooled = torch.stack([result.fooled for result in report.results.values()]).any(0)
    assert fooled.any()
    at_most = int((report.clean_right & ~fooled).sum()) / report.n
    bound = f"at most {at_most:.1%} (upper bound; likely lower, because of {', '.join(report.reasons)})"
    assert f"INVALID: the worst case is {bound}" in str(report)
    with pytest.raises(UsageError, match=f"first evaluation is invalid.*{re.escape(bound)}"):
        compared(report, report)


def test_attacks_that_are_no_table_of_them(images: Images) -> None:
    with pytest.raises(UsageError, match=r"attacks must be a dictionary.*got a list.*only="):
        evaluate(net(), images, Linf(0.1), attacks=["pgd"])  # type: ignore[arg-type]
    report = evaluate(net(), images, Linf(0.1), only="PGD-20", progress=False)
    assert list(report.results) == ["PGD-20"]


def test_a_report_is_printed_as_its_table(images: Images) -> None:
    report = run(images)
    text = str(report)
    assert repr(report) == text
    assert len(text) < 2000
    for label, score in report.scores.items():
        assert any(line.startswith(label) and str(score) in line for line in text.splitlines())


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_not_finite_are_known_again(value: float, images: Images, tmp_path: Path) -> None:
    steady = net()

    def broken(x: Tensor, shift: float = 0.0) -> Tensor:
        bright = x.flatten(1)[:, :1] > 0.9
        return steady(x).masked_fill(bright, value) + shift  # type: ignore[no-any-return]

    first = run(images, broken, folder=tmp_path, model_key="mine")
    assert not first.valid
    again = run(images, broken, folder=tmp_path, model_key="mine")
    assert columns(again) == columns(first)
    with pytest.raises(UsageError, match="answered the clean images differently"):
        run(images, lambda x: broken(x, 1.0), folder=tmp_path, model_key="mine")


def test_logits_that_are_all_nan_are_known_again(images: Images, tmp_path: Path) -> None:
    for _ in range(2):
        report = run(images, lambda x: net()(x) * torch.nan, folder=tmp_path, model_key="mine")
        assert not report.valid
