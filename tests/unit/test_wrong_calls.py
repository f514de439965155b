"""The Python interface as a new user calls it: what can be understood works, all else is refused in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atlas
from atlas.attacks import APGD, FGSM, PGD, RayS
from atlas.errors import AtlasError
from atlas.methods import Adv

X, Y = torch.rand(12, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
EPS = atlas.Linf(0.1)
SHORT: dict[str, Any] = {
    "training": atlas.Training(batch_size=4, schedule=atlas.Schedule("constant", epochs=1, ramp_epochs=0)),
    "progress": False,
}
LIGHT: dict[str, Any] = {"attacks": {"PGD": PGD(steps=2)}, "progress": False}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def evaluated(**changes: Any) -> Any:
    call: dict[str, Any] = {"model": net(), "images": (X, Y), "threat": EPS, **LIGHT} | changes
    return atlas.evaluate(**call)


def fitted(**changes: Any) -> Any:
    call: dict[str, Any] = {
        "model": net(),
        "train_set": (X, Y),
        "method": Adv(),
        "threat": EPS,
        **SHORT,
    } | changes
    return atlas.fit(**call)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "float steps": (lambda: PGD(steps=5.0), r"PGD\.steps must be an integer, got 5\.0"),  # type: ignore[arg-type]
    "n 2.5": (lambda: evaluated(n=2.5), r"^n must be an integer >= 1, got 2\.5"),
    "n 0": (lambda: evaluated(n=0), "^n must be an integer >= 1, got 0"),
    "APGD to train on": (
        lambda: Adv(attack=APGD()),
        r"Adv\.attack must be a Climb \(FGSM, PGD.*\), got APGD\(",
    ),  # type: ignore[arg-type]
    "no attack to train on": (
        lambda: Adv(attack=None),
        r"Adv\.attack must be a Climb \(FGSM, PGD.*\), got None",
    ),  # type: ignore[arg-type]
    "a class of attack": (lambda: Adv(attack=FGSM), r"Adv\.attack must be a Climb .*got <class"),  # type: ignore[arg-type]
    "part of an epoch": (
        lambda: atlas.Schedule(epochs=1.5),
        r"Schedule\.epochs must be an integer, got 1\.5",
    ),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("call", "words"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_call_is_refused_in_words(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(AtlasError, match=words):
        call()


def test_numbers_of_numpy_and_fractions_as_text_are_taken(tmp_path: Path) -> None:
    """Also by what is written to a folder, which has to be plain JSON."""
    assert atlas.Linf("8/255") == atlas.Linf(8 / 255)  # type: ignore[arg-type]
    assert PGD(steps=np.int64(5), step_size="2/255") == PGD(steps=5, step_size=2 / 255)  # type: ignore[arg-type]
    threat = atlas.Linf(np.float32(0.3))  # type: ignore[arg-type]
    report = evaluated(threat=threat, seed=np.int64(3), n=np.int64(6), folder=tmp_path / "evaluation")
    assert json.loads((tmp_path / "evaluation" / "summary.json").read_text())["about"]["seed"] == 3
    assert report.n == 6
    again = evaluated(threat=atlas.Linf(float(np.float32(0.3))), seed=3, n=6, folder=tmp_path / "evaluation")
    assert again.summary() == report.summary()
    training = atlas.Training(
        batch_size=np.int32(4),  # type: ignore[arg-type]
        seed=np.int64(3),  # type: ignore[arg-type]
        schedule=atlas.Schedule("constant", epochs=np.int64(1), ramp_epochs=0),  # type: ignore[arg-type]
    )
    fitted(threat=threat, training=training, folder=tmp_path / "run")
    assert '"seed": 3' in (tmp_path / "run" / "config.json").read_text()


def test_eps_is_printed_as_it_was_typed(capsys: pytest.CaptureFixture[str]) -> None:
    threat = atlas.Linf(8 / 255)
    report = evaluated(threat=threat, attacks={"PGD": PGD(steps=1, step_size=1e-3)})
    assert report.threat == "linf, eps 8/255"
    assert "linf, eps 8/255" in repr(report)
    assert any("eps is 8/255" in flag.message for flag in report.flags)
    assert report.summary()["about"]["threat"]["eps"] == 8 / 255
    with pytest.raises(AtlasError, match=r"RayS got L2\(eps=128/255\)"):
        RayS()(net(), X, Y, atlas.L2(128 / 255))
    fitted(threat=threat, progress=True)
    assert "8/255" in capsys.readouterr().err
