"""Weights that other programs saved: what is read, what is refused, and that nothing in a file is run."""

from __future__ import annotations

import argparse
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atlas.errors import CheckpointError, UsageError
from atlas.models import build
from atlas.models.source import load
from atlas.models.weights import load_weights, normalization_of, read_weights

X = torch.rand(3, 1, 28, 28)
Weights = dict[str, Tensor]


def wrapped(prefix: str) -> Callable[[Weights], Weights]:
    return lambda weights: {f"{prefix}{key}": tensor for key, tensor in weights.items()}


FORMS: dict[str, Callable[[Weights], Any]] = {
    "plain": lambda weights: weights,
    "state_dict": lambda weights: {"epoch": 3, "state_dict": weights, "optimizer": {"lr": 0.1}},
    "model": lambda weights: {"model": weights, "best_acc": 0.9},
    "data parallel": wrapped("module."),
    "compiled, data parallel": wrapped("_orig_mod.module."),
    "lightning": lambda weights: {"state_dict": wrapped("model.")(weights), "pytorch-lightning_version": "2"},
    "half": lambda weights: {key: tensor.half() for key, tensor in weights.items()},
}


@pytest.mark.parametrize("suffix", ["pth", "pt", "ckpt", "pth.tar"])
@pytest.mark.parametrize("form", FORMS)
def test_a_state_dict_of_torch_save(form: str, suffix: str, tmp_path: Path) -> None:
    net = build("cnn-small", seed=3)
    torch.save(FORMS[form](net.state_dict()), tmp_path / f"old.{suffix}")
    loaded = load(tmp_path / f"old.{suffix}", name="cnn-small")
    tolerance = 1e-2 if form == "half" else 0.0
    torch.testing.assert_close(loaded(X), net(X), rtol=tolerance, atol=tolerance)


def test_a_model_may_be_called_as_a_wrapper_is(tmp_path: Path) -> None:
    """Prefixes are dropped until the keys are the model's, and no further."""

    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(2, 3)

    torch.save(wrapped("module.")(Mine().state_dict()), tmp_path / "old.pth")
    load_weights(Mine(), read_weights(tmp_path / "old.pth"), tmp_path / "old.pth", "mine")


@pytest.mark.parametrize("prefix", ["", "module."])
def test_the_normalisation_of_a_run_is_found(prefix: str, tmp_path: Path) -> None:
    net = build("cnn-small", normalize=((0.13,), (0.31,)), seed=3)
    torch.save(wrapped(prefix)(net.state_dict()), tmp_path / "old.pth")
    mean, std = normalization_of(read_weights(tmp_path / "old.pth")) or ((), ())
    assert (*mean, *std) == pytest.approx((0.13, 0.31))
    torch.testing.assert_close(load(tmp_path / "old.pth", name="cnn-small")(X), net(X))


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (self.mark,)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_would_run_something_is_refused_and_runs_nothing(zipped: bool, tmp_path: Path) -> None:
    path, mark = tmp_path / "old.pth", tmp_path / "mark"
    torch.save({"a.weight": torch.ones(2), "b": Evil(str(mark))}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match=r"old\.pth holds posix\.mkdir beside .*could run code"):
        read_weights(path)
    assert not mark.exists()


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (saved(nn.Linear(2, 2)), r"holds torch\.nn\.modules\.linear\.Linear beside tensors"),
        (saved({"state_dict": {}, "args": argparse.Namespace()}), r"argparse\.Namespace.*save only its"),
        (saved(torch.ones(3)), "holds a Tensor, expected a state dict"),
        (saved({}), "holds an empty dict, expected a state dict"),
        (
            saved(dict.fromkeys("abcde", 1)),
            "holds keys a, b, c and 2 more, expected a state dict, or one under",
        ),
        (saved({"state_dict": {"w": torch.ones(1), "name": "x"}}), "holds keys state_dict, expected"),
        (saved({"w": torch.ones(100)})[:-300], r"old\.pth cannot be read: RuntimeError"),
        (b"not a pickle" * 10, "damaged, or was not written by torch.save"),
        (b"", r"old\.pth cannot be read: EOFError"),
    ],
    ids=["module", "namespace", "tensor", "empty dict", "numbers", "mixed", "cut", "text", "empty"],
)
def test_what_holds_no_weights_says_what_it_holds(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "old.pth").write_bytes(data)
    with pytest.raises(CheckpointError, match=words):
        read_weights(tmp_path / "old.pth")


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_torchscript_archive_is_told_how_to_be_exported(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), tmp_path / "old.pt")
    with pytest.raises(CheckpointError, match=r"is a TorchScript archive, expected weights.*torch\.export"):
        read_weights(tmp_path / "old.pt")


def test_no_such_file_and_no_such_kind(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no weights file .*old\.pth"):
        read_weights(tmp_path / "old.pth")
    with pytest.raises(UsageError, match=r"weights must be in a file called \*\.safetensors, .*got old\.pkl"):
        read_weights(Path("old.pkl"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: {k: v for k, v in w.items() if "bias" not in k}, r"missing keys: .*\.bias.* and 1 more"),
        (lambda w: {**w, "extra": torch.ones(1)}, "unexpected keys: extra"),
        (
            lambda w: {k: torch.ones(7) if v.shape == (10,) else v for k, v in w.items()},
            r"shapes differ: [\w.]+bias is \[7\] in the file, \[10\] in the model\. Name the model",
        ),
        (
            lambda w: {"other.weight": torch.ones(1)},
            "missing keys: .* and 5 more; unexpected keys: other.weight",
        ),
    ],
    ids=["missing", "unexpected", "shapes", "another model"],
)
def test_weights_that_do_not_fit_say_where(
    change: Callable[[Weights], Weights], words: str, tmp_path: Path
) -> None:
    torch.save(change(build("cnn-small").state_dict()), tmp_path / "old.pth")
    with pytest.raises(CheckpointError, match=rf"old\.pth does not fit the model 'cnn-small': {words}"):
        load(tmp_path / "old.pth", name="cnn-small")
