"""Files of an evaluation that are not what was written, or not of this evaluation, make no numbers."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atlas.attacks import PGD, Square
from atlas.data import Images
from atlas.errors import CheckpointError, DamagedError, Interrupted
from atlas.evaluation import evaluate
from atlas.evaluation.evaluate import Evaluation
from atlas.evaluation.evaluation_folder import EvaluationFolder, file_of, load_report
from atlas.evaluation.plan import Plan
from tests.unit.evaluation.runs import ATTACKS, THREAT, columns, net, noise, of_older_version, run
from tests.unit.evaluation.test_evaluate import stop_after

FLIPS = 60


@pytest.fixture(scope="module")
def images() -> Images:
    return noise()


@pytest.fixture(scope="module")
def made(images: Images, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An evaluation, and another one of the same form: of the same images, by another seed and model."""
    one, other = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("other")
    run(images, folder=one, save_images=True)
    shifted = net()
    with torch.no_grad():
        shifted[3].bias[0] += 0.3
    run(images, shifted, folder=other, save_images=True, seed=1)
    return one, other


@pytest.fixture
def folder(made: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(made[0], tmp_path / "evaluation"))


def everything(folder: Path) -> Any:
    """All that a report may show of an evaluation."""
    report, place = load_report(folder), EvaluationFolder(folder)
    pictures = [place.load(file_of("images", label)) or {} for label in ATTACKS]
    return [report.summary(), columns(report), [[t.tolist() for t in kept.values()] for kept in pictures]]


def attempted(folder: Path) -> tuple[Any, str]:
    """All of it, or why not."""
    try:
        return everything(folder), ""
    except CheckpointError as error:
        return None, str(error)


PARTS = [
    "config.json",
    "summary.json",
    "clean.npz",
    "attack-fgsm.npz",
    "attack-pgd-2x6.npz",
    "images-fgsm.safetensors",
]


@pytest.mark.parametrize("name", PARTS)
def test_a_flipped_bit_is_refused_and_the_file_named(name: str, folder: Path) -> None:
    good, whole, path = everything(folder), (folder / name).read_bytes(), folder / name
    noticed = 0
    draws = random.Random(name)
    for _ in range(FLIPS):
        place = draws.randrange(len(whole))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << draws.randrange(8)]) + whole[place + 1 :])
        found, error = attempted(folder)
        assert found in (good, None), "a date in the archive, say, is nothing that a report shows"
        assert found or str(folder) in error
        noticed += name in error
    assert noticed > FLIPS / 2
    path.write_bytes(whole)
    assert everything(folder) == good


@pytest.mark.parametrize("name", PARTS[1:5])
@pytest.mark.parametrize("old", [False, True], ids=["with checksums", "of an older version"])
def test_a_file_of_another_evaluation_is_refused(
    name: str, old: bool, folder: Path, made: tuple[Path, Path], tmp_path: Path
) -> None:
    other = Path(shutil.copytree(made[1], tmp_path / "other"))
    if old:
        of_older_version(folder)
        of_older_version(other)
    shutil.copy(other / name, folder / name)
    told = f"{name} (belongs to another evaluation|does not match config.json)"
    told = "run the evaluation there again" if old else told
    with pytest.raises(CheckpointError, match=told):
        everything(folder)


def test_images_of_another_evaluation_are_refused(folder: Path, made: tuple[Path, Path]) -> None:
    shutil.copy(made[1] / "images-fgsm.safetensors", folder)
    with pytest.raises(DamagedError, match=r"images-fgsm\.safetensors belongs to another evaluation"):
        EvaluationFolder(folder).load("images-fgsm.safetensors")


def test_a_file_without_checksum_in_a_folder_with_checksums_is_refused(folder: Path, tmp_path: Path) -> None:
    old = Path(shutil.copytree(folder, tmp_path / "old"))
    of_older_version(old)
    for name in PARTS[1:]:
        kept = (folder / name).read_bytes()
        shutil.copy(old / name, folder / name)
        with pytest.raises(DamagedError, match=f"{name} has no checksum, unlike the rest of this evaluation"):
            everything(folder)
        (folder / name).write_bytes(kept)


def test_an_older_folder_opens_and_continues(folder: Path, images: Images) -> None:
    good = everything(folder)
    of_older_version(folder)
    assert everything(folder) == good
    (folder / "attack-fgsm.npz").unlink()
    (folder / "summary.json").unlink()
    run(images, folder=folder, save_images=True)
    assert everything(folder) == good


def test_a_summary_has_to_match_its_configuration(folder: Path) -> None:
    of_older_version(folder)
    text = (folder / "summary.json").read_text()
    (folder / "summary.json").write_text(text.replace('"eps": 0.06', '"eps": 0.02'))
    with pytest.raises(
        DamagedError, match=r"summary.json does not match config.json: threat.eps: 0.06 -> 0.02"
    ):
        load_report(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["accuracy"]["FGSM"].update(right=96),
        lambda s: s["accuracy"]["worst case"].update(n=970),
        lambda s: s["attacks"]["FGSM"].update(fooled=1),
        lambda s: s.update(n=96),
    ],
)
def test_a_summary_has_to_follow_from_the_verdicts(change: Callable[[Any], None], folder: Path) -> None:
    of_older_version(folder)
    summary = json.loads((folder / "summary.json").read_text())
    change(summary)
    (folder / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(DamagedError, match=r"summary\.json has counts that do not follow from the verd"):
        load_report(folder)


def put(column: str, place: int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(arrays: dict[str, Any]) -> None:
        arrays[column][place] = value

    return change


WRONG, RIGHT = 0, 1
"""Of the images, one that is wrong as it is, and one that is right."""
IMPOSSIBLE = "impossible labels or ids, or verdicts that do not follow from its logits"
OF_OTHERS = "verdicts that are impossible or of other images"


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("attack-pgd-2x6", put("attempt", RIGHT, 2), OF_OTHERS),
        ("attack-pgd-2x6", put("attempt", RIGHT, -9), OF_OTHERS),
        ("attack-pgd-2x6", put("queries", RIGHT, -1), OF_OTHERS),
        ("attack-pgd-2x6", put("step", RIGHT, -5), OF_OTHERS),
        ("attack-pgd-2x6", put("attempt", RIGHT, -4), OF_OTHERS),
        ("attack-pgd-2x6", put("attempt", RIGHT, -1), OF_OTHERS),
        ("attack-pgd-2x6", put("attempt", WRONG, -2), OF_OTHERS),
        ("attack-pgd-2x6", lambda a: a.update(step=a["step"][:-1]), OF_OTHERS),
        ("attack-pgd-2x6", lambda a: a.update(step=a["step"] * 1.0), OF_OTHERS),
        ("clean", put("right", WRONG, True), IMPOSSIBLE),
        ("clean", put("y", RIGHT, -1), IMPOSSIBLE),
        ("clean", put("ids", RIGHT, 500), IMPOSSIBLE),
        ("clean", lambda a: a.update(y=a["y"] * 1.0), IMPOSSIBLE),
    ],
)
def test_impossible_values_are_refused(
    name: str, change: Callable[[dict[str, Any]], None], words: str, folder: Path
) -> None:
    of_older_version(folder)
    with np.load(folder / f"{name}.npz") as file:
        arrays = {key: file[key].copy() for key in file.files}
    change(arrays)
    np.savez(folder / f"{name}.npz", **arrays)
    with pytest.raises(DamagedError, match=rf"{name}\.npz .*{words}.*; run the evaluation there again"):
        load_report(folder)


def test_in_a_chain_each_attack_has_the_images_that_the_others_left(images: Images, tmp_path: Path) -> None:
    """Verdicts of both orders, put together: each is possible by itself."""
    attacks: Any = {"Square": Square(queries=30), "PGD": PGD(steps=5)}
    for name, order in {"one": attacks, "other": dict(reversed(attacks.items()))}.items():
        Evaluation(net(), images, Plan(THREAT, order, cascade=True)).run(tmp_path / name, progress=False)
        of_older_version(tmp_path / name)
    shutil.copy(tmp_path / "other" / "attack-square.npz", tmp_path / "one" / "attack-square.npz")
    with pytest.raises(DamagedError, match=r"attack-square\.npz has verdicts that are .* of other images"):
        load_report(tmp_path / "one")


# --- where an evaluation continues ---


@pytest.mark.parametrize("name", PARTS[2:])
@pytest.mark.parametrize("how", ["damaged", "of another evaluation"])
def test_it_is_made_again_where_the_evaluation_runs_again(
    how: str, name: str, folder: Path, made: tuple[Path, Path], images: Images, capfd: Any
) -> None:
    good, path = everything(folder), folder / name
    if how == "damaged":
        path.write_bytes(path.read_bytes()[:-40])
    else:
        shutil.copy(made[1] / name, path)
    bad = path.read_bytes()
    evaluate(net(), images, THREAT, attacks=ATTACKS, folder=folder, save_images=True)
    assert everything(folder) == good
    assert path.with_suffix(".damaged").read_bytes() == bad, "nothing is lost"
    said = " ".join(capfd.readouterr().err.split())
    assert name in said
    assert f"it was renamed to {path.stem}.damaged and is made again" in said


def test_a_state_of_another_evaluation_is_not_continued(
    images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = columns(run(images))
    for name, seed in {"one": 0, "other": 1}.items():
        with monkeypatch.context() as patch:
            stop_after(3, patch)
            with pytest.raises(Interrupted):
                run(images, folder=tmp_path / name, seed=seed)
    (state,) = (tmp_path / "other").glob("state-*")
    assert (tmp_path / "one" / state.name).exists()
    shutil.copy(state, tmp_path / "one" / state.name)
    assert columns(run(images, folder=tmp_path / "one")) == good
    assert (tmp_path / "one" / state.name).with_suffix(".damaged").exists()


def test_what_cannot_be_read_now_is_not_called_damaged(folder: Path, images: Images) -> None:
    path = folder / "attack-fgsm.npz"
    path.rename(folder / "kept")
    path.mkdir()
    for read in (lambda: load_report(folder), lambda: run(images, folder=folder)):
        with pytest.raises(CheckpointError, match=r"attack-fgsm\.npz cannot be read now"):
            read()
    assert path.is_dir()
