"""What a report attacks itself: on a linear model every radius is known, and nothing is made twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from atlas import data
from atlas.data import Images
from atlas.reports import quick_attack
from atlas.reports.collect import ReportedModel, collect
from atlas.reports.quick_attack import RADII, STEPS, Study, first_of_each_class
from atlas.terminal import Terminal, share_bars


class Bright(nn.Module):
    """Class 1 where the mean pixel is above one half: within the L-inf ball every image moves by eps."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        margin = self.scale * (x.mean((1, 2, 3)) - 0.5)
        return torch.stack([-margin, margin], 1)


def study(run: ReportedModel, images: Images, n: int = 48, steps: int = 20) -> Study:
    return quick_attack.study(run, images, n, steps, share_bars(Terminal(quiet=True)))


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
    found = study(run, images)
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
    bars = share_bars(Terminal(quiet=True))
    quick_attack.study(run, images, 48, 20, bars)
    assert bars.tasks[0].completed == len(STEPS) + len(RADII) - 1


def test_the_gallery_is_the_first_of_each_class_within_the_ball(bright: tuple[ReportedModel, Images]) -> None:
    run, images = bright
    found = study(run, images)
    assert found.shown.tolist() == [24, 0]
    assert torch.equal(found.x, images.x[[24, 0]])
    assert ((found.x_adv - found.x).abs() <= run.threat.eps + 1e-6).all()


def test_the_gallery_leaves_out_what_the_model_does_not_know(bright: tuple[ReportedModel, Images]) -> None:
    """The first image is bright and said to be dark."""
    run, images = bright
    y = images.y.clone()
    y[0] = 0
    found = study(run, Images(images.x, y, 2))
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
    first = study(run, images, 20)
    with monkeypatch.context() as patch:
        patch.setattr(quick_attack.engine, "Engine", None)
        second = study(run, images, 20)
        assert torch.equal(first.logits_adv, second.logits_adv)
        assert torch.equal(first.x_adv, second.x_adv)
        assert first.flags == second.flags
        for other, n, steps in ((run, 21, 20), (run, 20, 19), (replace(run, weights="others"), 20, 20)):
            with pytest.raises(TypeError):  # the engine that is not there
                study(other, images, n, steps)
    (kept,) = (tmp_path / "report").glob("study-*.safetensors")
    kept.write_bytes(kept.read_bytes()[:-9])
    assert torch.equal(first.logits_adv, study(run, images, 20).logits_adv)
    (other,) = collect(two_runs[1:])
    study(replace(other, path=tmp_path / "other"), images, 20)
    (copied,) = (tmp_path / "other/report").glob("study-*.safetensors")
    kept.write_bytes(copied.read_bytes())
    assert torch.equal(first.logits_adv, study(run, images, 20).logits_adv)


def test_a_folder_that_cannot_be_written_to_is_no_hindrance(
    two_runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run,) = collect(two_runs[:1])
    place = tmp_path / "file"
    place.write_text("no folder")
    bars = share_bars(Terminal(stderr=True))
    images = data.load(run.data, train=False)
    assert quick_attack.study(replace(run, path=place), images, 10, 20, bars).n == 10
    assert "not stored" in capsys.readouterr().err


def test_a_fatal_flag_takes_the_numbers_away(bright: tuple[ReportedModel, Images]) -> None:
    class Dice(Bright):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + torch.randn(len(x), 2)

    run, images = bright
    found = study(replace(run, model=Dice(), weights="dice"), images)
    assert "random" in found.reasons
    assert all(score.reasons for _, score in found.by_radius + found.by_steps)
