"""Whatever a file of weights or of a state holds: tensors that were written so, or an error of ours."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import strategies as st
from safetensors.torch import save

from atlas import checkpoint
from atlas.checkpoint import load_tensors, save_tensors
from atlas.errors import AtlasError, CheckpointError
from atlas.evaluation.evaluation_folder import EvaluationFolder
from atlas.models import build, source
from atlas.models.weights import read_weights
from atlas.runs import Run
from atlas.training import load_model
from tests.fuzz.fuzzing import Changes, changed, changes, each_size, fuzz, little_memory

TENSORS = {"a.weight": torch.arange(6.0).view(2, 3), "b": torch.tensor(3), "torch_rng": torch.zeros(8).byte()}
ABOUT = {"model": "cnn-small", "num_classes": 2, "shape": [1, 8, 8], "normalize": None, "seconds": 1.5}


def whole(tmp_path: Path) -> bytes:
    save_tensors(tmp_path / "whole", TENSORS, ABOUT)
    return (tmp_path / "whole").read_bytes()


def sealed(about: str, more: object = None) -> bytes:
    """A file with this text beside its tensors, and the checksum that belongs to it."""
    label = {
        "about": about,
        "sha256": checkpoint.digest(TENSORS, about),
        "format": 1 if more is None else more,
    }
    return save(TENSORS, metadata={checkpoint.LABEL: json.dumps(label)})


@each_size
def test_damaged_files(tmp_path: Path, count: int) -> None:
    good, path = whole(tmp_path), tmp_path / "state.safetensors"

    def check(how: Changes) -> None:
        data = changed(good, how)
        path.write_bytes(data)
        with suppress(CheckpointError):
            tensors, about = load_tensors(path)
            assert about == ABOUT
            assert all(torch.equal(tensors[k], v) for k, v in TENSORS.items()), "damage went unseen"

    fuzz(changes, check, count)


@each_size
def test_text_of_any_kind_under_a_good_checksum(tmp_path: Path, count: int) -> None:
    """Who means harm can write a checksum too."""
    path, text = tmp_path / "weights.safetensors", json.dumps(ABOUT).encode()

    def check(how: Changes) -> None:
        path.write_bytes(sealed(changed(text, how).decode(errors="replace")))
        with suppress(AtlasError):
            load_model(path)

    fuzz(changes, check, count)


@each_size
def test_files_of_an_evaluation(tmp_path: Path, count: int) -> None:
    place, states = EvaluationFolder(tmp_path), tmp_path / "state-x.safetensors"
    good = {"attempt": torch.arange(5), "margin": torch.rand(5), "tried": torch.ones(5) > 0}
    place.claim({"model": "x", "attacks": {}})
    place.save("attack-x.npz", good)
    place.save("state-x.safetensors", TENSORS)
    columns, state = (tmp_path / "attack-x.npz").read_bytes(), states.read_bytes()

    def check(case: tuple[Changes, Changes]) -> None:
        (tmp_path / "attack-x.npz").write_bytes(changed(columns, case[0]))
        states.write_bytes(changed(state, case[1]))
        with suppress(CheckpointError):
            found = place.load("attack-x.npz")
            assert found is not None
            assert all(torch.equal(found[k], v) for k, v in good.items()), "damage went unseen"
        if (kept := place.reuse("state-x.safetensors")) is not None:
            assert all(torch.equal(kept[k], v) for k, v in TENSORS.items()), "damage went unseen"

    fuzz(st.tuples(changes, changes), check, count)


@each_size
def test_weights_of_somebody_elses(tmp_path: Path, count: int) -> None:
    """Plain safetensors have no checksum: they fit the model, or are refused."""
    path = tmp_path / "theirs.safetensors"
    good = save(build("cnn-small", num_classes=2, shape=(1, 4, 4)).state_dict())

    def check(how: Changes) -> None:
        # The header, where all that can be misread is, is a small part of the file.
        path.write_bytes(changed(good[:700], how) + good[700:])
        with suppress(AtlasError):
            source.load(path, name="cnn-small", num_classes=2, shape=(1, 4, 4))

    fuzz(changes, check, count)


@each_size
def test_state_dicts_of_torch_save(tmp_path: Path, count: int) -> None:
    """Pickles from anywhere: tensors by name, or refused; nothing in them is called."""
    path = tmp_path / "theirs.pth"
    torch.save({"state_dict": {"module.w": torch.arange(6.0)}, "epoch": 3}, path)
    zipped = path.read_bytes()
    torch.save({"module.w": torch.arange(6.0)}, path, _use_new_zipfile_serialization=False)
    forms = zipped, path.read_bytes()

    def check(case: tuple[int, Changes]) -> None:
        path.write_bytes(changed(forms[case[0]], case[1]))
        with suppress(CheckpointError):
            assert all(isinstance(tensor, torch.Tensor) for tensor in read_weights(path).values())

    fuzz(st.tuples(st.integers(0, 1), changes), check, count)


@pytest.mark.parametrize(
    ("about", "kind", "words"),
    [
        ("[1]", 1, "its table is none"),
        ("[" * 100_000, 1, "cannot be read"),
        ("{", 1, "cannot be read"),
        (json.dumps(ABOUT), 2, "is of format 2, and this version of atlas reads format 1"),
        (json.dumps(ABOUT), [[]], "is of format"),
    ],
)
def test_files_of_another_version(tmp_path: Path, about: str, kind: object, words: str) -> None:
    path = tmp_path / "state.safetensors"
    path.write_bytes(sealed(about, kind))
    with pytest.raises(CheckpointError, match=words):
        load_tensors(path)
    of_another_version = "format" in words
    left = words if of_another_version else "holds no good state"
    with pytest.raises(CheckpointError, match=left):
        Run(tmp_path).load_state()
    assert path.exists() == of_another_version, "only what is damaged is put aside"


@pytest.mark.parametrize(
    "change",
    [
        {"num_classes": 10**6},
        {"shape": [1, 2000, 2000]},
        {"model": "wrn-994-999", "shape": [3, 8, 8]},
        {"normalize": [[0.5], [0.1], [1]]},
        {"normalize": [["a"], ["b"]]},
        {"model": 3},
        {"shape": None},
        {"num_classes": "2"},
    ],
    ids=str,
)
def test_weights_that_claim_to_be_more_than_they_are(tmp_path: Path, change: dict[str, object]) -> None:
    """Nothing is made that the file's own tensors would not fill."""
    path = tmp_path / "weights.safetensors"
    save_tensors(path, build("cnn-small", num_classes=2, shape=(1, 8, 8)).state_dict(), ABOUT)
    load_model(path)
    save_tensors(path, build("cnn-small", num_classes=2, shape=(1, 8, 8)).state_dict(), ABOUT | change)
    said = "that it says it is of|does not say what model it is of"
    with pytest.raises(CheckpointError, match=said), little_memory():
        load_model(path)


def test_files_without_a_format_are_of_the_first(tmp_path: Path) -> None:
    path, text = tmp_path / "old.safetensors", json.dumps(ABOUT)
    label = {"about": text, "sha256": checkpoint.digest(TENSORS, text)}
    path.write_bytes(save(TENSORS, metadata={checkpoint.LABEL: json.dumps(label)}))
    assert load_tensors(path)[1] == ABOUT
