"""The Python interface as a new user calls it: what can be understood works, all else is refused in words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import atlas
from atlas.attacks import APGD, PGD, RayS, Transfer, distance_curve, run
from atlas.errors import AtlasError
from atlas.methods import Adv, Trades

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


PGD_2 = PGD(steps=2)
IMAGES = atlas.data.as_images((X, Y))


def tuples(x: Tensor) -> Any:
    return net()(x), x


def blind(x: Tensor) -> Tensor:
    return net()(x.detach())


def truncated(x: Tensor) -> Tensor:
    return net()(x)[:3]


def wrong() -> dict[str, tuple[Callable[..., Any], str]]:
    """Calls that cannot mean anything, and what each is told. What it is told begins there."""
    perturb, loss = PGD_2.perturb, Adv().loss
    call: Callable[..., Any] = PGD_2
    build: Callable[..., Any] = atlas.models.build
    rng: Any = atlas.Rng
    train_on = r"attack must be an attack to train on: FGSM\(\) or PGD\(steps=10\), got "
    shape = r"the model failed on images float32 \[12, 1, 5, 5\] on cpu with RuntimeError.*; expected a model"
    large = "labels go from 9 to 11 and the model has 3 classes, expected labels 0 to 2"
    floats = r"images must be floats in \[0, 1\], got uint8 .*: convert them with x / 255"
    pick = r"the model gives a tuple; expected a model .* such as lambda x: model\(x\)\[0\]"
    none = "the attack needs gradients and the model gives none: .* square, rays"
    short = r"the model gives float32 \[3, 3\] for 12 images; expected a model"
    return {
        # values
        "steps as a float": (lambda: made(PGD, steps=5.0), r"PGD\.steps must be an integer, got 5\.0"),
        "an unknown objective": (
            lambda: PGD(objective="cross_entropy"),
            "unknown objective .* choose from: ce",
        ),
        "a function as objective": (lambda: made(PGD, objective=net), r"PGD\.objective must be a string"),
        "an attack of evaluation": (lambda: made(Adv, attack=APGD()), rf"Adv\.{train_on}APGD"),
        "no attack": (lambda: made(Adv, attack=None), rf"Adv\.{train_on}None"),
        "eps in levels": (lambda: atlas.Linf(8), r"Linf: eps must be between 0 and 1, .*8/255, got 8"),
        "part of an epoch": (
            lambda: made(atlas.Schedule, epochs=1.5),
            r"Schedule\.epochs must be an integer",
        ),
        "a share to validate": (
            lambda: made(atlas.Training, validation=0.1),
            "Training.validation must be a V",
        ),
        "an attack to validate by name": (
            lambda: made(atlas.Validation, attack="pgd"),
            r"Validation\.attack must be an attack, such as PGD\(steps=20\)",
        ),
        "a bare model to transfer from": (
            lambda: made(Transfer, surrogates=net()),
            "surrogates must be a tuple of models",
        ),
        # random numbers
        "images for a size": (lambda: rng.batch(X), "size must be an integer >= 0"),
        "a bare number": (lambda: rng(3), r"Rng\.key must be an int64 tensor \[B\], got 3: use Rng\.batch"),
        "examples in a list": (lambda: rng.lanes(0, [1, 2]), "examples must be an integer tensor"),
        # attacks and losses
        "bytes to perturb": (lambda: perturb(net(), (X > 0.5).byte(), Y, EPS), floats),
        "bytes to attack": (lambda: call(net(), (X > 0.5).byte(), Y, EPS), floats),
        "bytes to train on": (lambda: loss(net(), (X > 0.5).byte(), Y, threat=EPS), floats),
        "labels beyond, perturb": (lambda: perturb(net(), X, Y + 9, EPS), large),
        "labels beyond, margin": (lambda: PGD(2, objective="margin").perturb(net(), X, Y + 9, EPS), large),
        "labels beyond, loss": (lambda: Trades().loss(net(), X, Y + 9, threat=EPS), large),
        "no model": (
            lambda: made(perturb, model=None, x=X, y=Y, threat=EPS),
            "the model must be callable, got None",
        ),
        "a model by name": (lambda: call("cnn", X, Y, EPS), "the model must be callable, got 'cnn'"),
        "tuples, perturb": (lambda: perturb(tuples, X, Y, EPS), pick),
        "tuples, call": (lambda: call(tuples, X, Y, EPS), pick),
        "tuples, loss": (lambda: loss(tuples, X, Y, threat=EPS), pick),
        "no gradients, perturb": (lambda: perturb(blind, X, Y, EPS), none),
        "no gradients, call": (lambda: call(blind, X, blind(X).argmax(1), EPS), none),
        "part of the batch, perturb": (lambda: perturb(truncated, X, Y, EPS), short),
        "part of the batch, call": (lambda: call(truncated, X, Y, EPS), short),
        "another size, perturb": (lambda: perturb(net(), torch.rand(12, 1, 5, 5), Y, EPS), shape),
        "another size, call": (lambda: call(net(), torch.rand(12, 1, 5, 5), Y, EPS), shape),
        "another size, loss": (lambda: loss(net(), torch.rand(12, 1, 5, 5), Y, threat=EPS), shape),
        "another type": (
            lambda: call(net(), X.double(), Y, EPS),
            "the model failed on images float64 .*dtype",
        ),
        "a misspelt mode": (
            lambda: made(perturb, model=net(), x=X, y=Y, threat=EPS, mode="trian"),
            "unknown mode 'trian' .did you mean 'train'",
        ),
        "a ramp as a word": (
            lambda: made(loss, model=net(), x=X, y=Y, threat=EPS, ramp="a"),
            "ramp must be a n",
        ),
        "a ramp below 0": (lambda: loss(net(), X, Y, threat=EPS, ramp=-1), r"ramp must be >= 0, got -1\.0"),
        "batches of 0": (
            lambda: run(PGD_2, net(), X, Y, EPS, batch_size=0),
            "batch_size must be an integer >= 1",
        ),
        "a threat as a number": (
            lambda: call(net(), X, Y, 0.1),
            r"threat must be atlas\.Linf\(eps\) or .*got 0\.1",
        ),
        "one count for a curve": (
            lambda: made(distance_curve, model=net(), x=X, y=Y, at=10),
            "at must be a list",
        ),
        # evaluate
        "n of half": (lambda: evaluated(n=2.5), r"n must be an integer, got 2\.5"),
        "n of 0": (lambda: evaluated(n=0), "n must be an integer >= 1, got 0"),
        "evaluate a name": (lambda: evaluated(model="cnn"), "model must be callable, got 'cnn'"),
        "a suite of attacks": (
            lambda: evaluated(attacks=None, suite=PGD()),
            "suite must be a string, got PGD",
        ),
        "attacks in a list": (
            lambda: evaluated(attacks=[PGD()]),
            "attacks must be a dictionary such as {'PGD': PGD.*got a list",
        ),
        "attacks as classes": (
            lambda: evaluated(attacks={"PGD": PGD}),
            r"attacks\['PGD'\] must be an attack, such as PGD\(steps=20\), or atlas\.attacks\.adapt",
        ),
        "attacks by number": (
            lambda: evaluated(attacks={1: PGD()}),
            "the key 1 of attacks must be a string, got 1",
        ),
        "a dtype of torch": (lambda: evaluated(attack_dtype=torch.bfloat16), "attack_dtype must be a string"),
        "one surrogate": (
            lambda: evaluated(surrogates=net()),
            "surrogates must be a list or tuple, got Sequential",
        ),
        "images nowhere": (lambda: evaluated(save_images=True), "save_images needs a folder to write to"),
        "the score of no attack": (
            lambda: evaluated().score("pgd"),
            "unknown attack 'pgd' .did you mean 'PGD'",
        ),
        # fit
        "a schedule for training": (
            lambda: fitted(training=atlas.Schedule()),
            r"training must be a Training, got Schedule\(",
        ),
        "a method by name": (
            lambda: fitted(method="adv"),
            "method must be one of atlas.methods, .*got 'adv'",
        ),
        "a device that is not": (
            lambda: fitted(device="gpu"),
            "device 'gpu' cannot be used here: .*; try cpu",
        ),
        "no callback": (lambda: fitted(on_epoch=3), "on_epoch must be callable, got 3"),
        # data and models
        "data by number": (
            lambda: made(atlas.data.load, name_or_path=3),
            "name_or_path must be a string or a Path",
        ),
        "a split of words": (
            lambda: made(atlas.data.split, images=IMAGES, size="a", seed=0),
            "size must be an int",
        ),
        "a split of a pair": (
            lambda: made(atlas.data.split, images=(X, Y), size=0.5, seed=0),
            r"images must be atlas\.data\.Images, which atlas\.data\.as_images makes of a pair",
        ),
        "arrays": (
            lambda: made(atlas.data.Images, x=X.numpy(), y=Y, num_classes=3),
            r"Images\.x must be a Tensor",
        ),
        "an unknown model": (lambda: build("resnet"), "unknown model 'resnet'.* choose from: cnn"),
        "a shape of one number": (
            lambda: build("cnn-small", shape=28),
            "shape must be a list or tuple, got 28",
        ),
        "normalisation by a number": (
            lambda: build("cnn-small", normalize=0.5),
            "normalize must be a string or",
        ),
    }


def made(what: Callable[..., Any], **values: Any) -> Any:
    """Called past the type checker, as those who have none do."""
    return what(**values)


WRONG = wrong()


@pytest.mark.parametrize(("call", "words"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_call_is_refused_in_words(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(AtlasError) as refused:
        call()
    assert re.match(words, str(refused.value)), refused.value


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
