"""What a report attacks itself: on a linear model every radius is known, and nothing is made twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from atlas import data
from atlas.attacks.margin import Untargeted
from atlas.data import Images
from atlas.reports import quick_attack
from atlas.reports.collect import ReportedModel, collect
from atlas.reports.quick_attack import RADII, STEPS, Settings, first_of_each_class, study


class Told:
    """Counts what is told."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, float]] = []
        self.said: list[str] = []

    def step(self, what: str, share: float) -> None:
        self.steps.append((what, share))

    def say(self, text: str) -> None:
        self.said.append(text)


class Bright(nn.Module):
    """Class 1 where the mean pixel is above one half: within the L-inf ball every image moves by eps."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        margin = self.scale * (x.mean((1, 2, 3)) - 0.5)
        return torch.stack([-margin, margin], 1)


@pytest.fixture
def bright(two_runs: list[Path], tmp_path: Path) -> tuple[ReportedModel, Images]:
    """Gray images 0.01 to 0.2 away from the boundary, as an eps of 0.1 sees them, and a model that knows."""
    (run,) = collect(two_runs[:1])
    levels = torch.cat([0.5 + torch.linspace(0.01, 0.24, 24), 0.5 - torch.linspace(0.01, 0.24, 24)])
    x = levels.view(-1, 1, 1, 1).expand(-1, 1, 4, 4).contiguous()
    images = Images(x, (levels > 0.5).long(), 2)
    return replace(run, path=tmp_path, model=Bright(), weights="bright"), images


def test_radii_and_steps_of_a_linear_model(bright: tuple[ReportedModel, Images]) -> None:
    run, images = bright
    found = study(run, images, Settings(n=48), Told())
    distance = (images.x[:, 0, 0, 0] - 0.5).abs()
    for eps, score in found.by_radius:
        wanted = int((distance > eps + 1e-6).sum()) if eps else 48
        assert score.right == pytest.approx(wanted, abs=2 * (eps > 0))  # an image at the very radius
    assert [score.right for _, score in found.by_radius] == sorted(
        (score.right for _, score in found.by_radius), reverse=True
    )
    assert found.by_radius[-1][0] == pytest.approx(2 * run.threat.eps)
    assert len(found.by_radius) == len(RADII) + 1
    many = dict(found.by_steps)[50].right
    assert many == pytest.approx(int((distance > run.threat.eps).sum()), abs=2)
    assert torch.equal(found.logits.argmax(1), images.y)
    assert int(found.stands.sum()) == dict(found.by_steps)[20].right


def test_nothing_is_attacked_twice(bright: tuple[ReportedModel, Images]) -> None:
    """The attack at the full radius with the chosen steps gives answers, a point of each curve and images."""
    run, images = bright
    told = Told()
    study(run, images, Settings(n=48), told)
    attacks = list(dict.fromkeys(what for what, _ in told.steps))
    assert len(attacks) == len(STEPS) + len(RADII) - 1


def test_the_gallery_is_the_first_of_each_class_within_the_ball(bright: tuple[ReportedModel, Images]) -> None:
    run, images = bright
    found = study(run, images, Settings(n=48), Told())
    assert found.shown.tolist() == [24, 0]
    assert torch.equal(found.x, images.x[[24, 0]])
    assert ((found.x_adv - found.x).abs() <= run.threat.eps + 1e-6).all()


def test_the_gallery_leaves_out_what_the_model_does_not_know(bright: tuple[ReportedModel, Images]) -> None:
    """The first image is bright and said to be dark."""
    run, images = bright
    y = images.y.clone()
    y[0] = 0
    found = study(run, Images(images.x, y, 2), Settings(n=48), Told())
    assert found.shown.tolist() == [24, 1]


def test_of_each_class_the_first_that_is_right_is_kept() -> None:
    y, none = torch.tensor([3, 3, 1, 0, 1]), torch.zeros(5, dtype=torch.bool)
    assert first_of_each_class(y, none).tolist() == [3, 2, 0]
    assert first_of_each_class(y, torch.tensor([False, True, False, False, True])).tolist() == [3, 4, 1]
    late = torch.arange(11).repeat(2)  # the eleventh class is not among the ten, though it is right
    assert first_of_each_class(late, late == 10).tolist() == list(range(10))


def test_a_second_time_nothing_is_attacked(
    two_runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = collect(two_runs[:1])
    run = replace(run, path=tmp_path)
    images = data.load(run.data, train=False)
    first = study(run, images, Settings(n=20), Told())
    with monkeypatch.context() as patch:
        patch.setattr(quick_attack.engine, "Engine", None)
        told = Told()
        second = study(run, images, Settings(n=20), told)
        assert not told.steps
        assert torch.equal(first.logits_adv, second.logits_adv)
        assert torch.equal(first.x_adv, second.x_adv)
        assert first.flags == second.flags
        for other in (Settings(n=21), Settings(n=20, steps=19), Settings(n=20, seed=1)):
            with pytest.raises(TypeError):  # the engine that is not there
                study(run, images, other, told)
        with pytest.raises(TypeError):
            study(replace(run, weights="others"), images, Settings(n=20), told)
    (kept,) = (tmp_path / "report").glob("study-*.safetensors")
    kept.write_bytes(kept.read_bytes()[:-9])
    again = study(run, images, Settings(n=20), Told())
    assert torch.equal(first.logits_adv, again.logits_adv)
    (other,) = collect(two_runs[1:])
    study(replace(other, path=tmp_path / "other"), images, Settings(n=20), Told())
    (copied,) = (tmp_path / "other/report").glob("study-*.safetensors")
    kept.write_bytes(copied.read_bytes())
    again = study(run, images, Settings(n=20), told := Told())
    assert torch.equal(first.logits_adv, again.logits_adv)
    assert told.steps, "what was kept for other weights is made again"


def test_a_folder_that_cannot_be_written_to_is_no_hindrance(two_runs: list[Path], tmp_path: Path) -> None:
    (run,) = collect(two_runs[:1])
    place = tmp_path / "file"
    place.write_text("no folder")
    told = Told()
    found = study(replace(run, path=place), data.load(run.data, train=False), Settings(n=10), told)
    assert found.n == 10
    assert "not stored" in told.said[0]


def test_a_fatal_flag_takes_the_numbers_away(bright: tuple[ReportedModel, Images]) -> None:
    class Dice(Bright):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + torch.randn(len(x), 2)

    run, images = bright
    found = study(replace(run, model=Dice(), weights="dice"), images, Settings(n=48), Told())
    assert "random" in found.reasons
    assert all(score.reasons for _, score in found.by_radius + found.by_steps)


def test_the_attack_is_the_one_that_is_said() -> None:
    assert Settings(steps=7).attack == Untargeted(steps=7, restarts=1)
