"""On the full MNIST, with the presets: minutes each."""

from __future__ import annotations

from pathlib import Path

import pytest

from atlas import data
from atlas.attacks import PGD
from atlas.evaluation import score
from atlas.presets import load_preset
from atlas.threat import Linf
from atlas.training import RunConfig, train

STRONG = PGD(steps=50, step_size=0.1, decay=True, objective="margin", restarts=5)


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "pgd_20", "strong"), [("adv", 0.953, 0.75), ("atlas", 0.958, 0.80)])
def test_the_quick_presets_reach_the_papers_pgd_20(
    preset: str, pgd_20: float, strong: float, data_root: Path, tmp_path: Path
) -> None:
    """Within one point of Table 1 (96.29 and 96.84), and not by masked gradients: a margin attack agrees."""
    config = RunConfig.of(load_preset(f"mnist-quick-{preset}-1")[1])
    model = train(config, tmp_path / "run", data_root=data_root, progress=False).model
    test = data.load("mnist", train=False, root=data_root)
    _, weak = score(model, test, PGD(steps=20, step_size=0.01), Linf(0.3))
    _, robust = score(model, test.subset(slice(1000)), STRONG, Linf(0.3))
    assert weak.rate >= pgd_20
    assert robust.rate >= strong
