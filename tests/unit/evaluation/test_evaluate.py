"""`evaluate`: the right verdicts, kept per example, the same however the work is divided or interrupted."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from atlas.attacks import FGSM, PGD, RayS, engine
from atlas.checkpoint import load_tensors
from atlas.data import Images
from atlas.errors import Interrupted, LockError, UsageError
from atlas.evaluation import Shard, evaluate, merge, run_attack
from atlas.evaluation.compare import compared
from atlas.evaluation.evaluation_folder import EvaluationFolder, load_report
from atlas.evaluation.results import SKIPPED
from atlas.rng import Rng
from atlas.threat import L2, Linf
from tests.unit.evaluation.runs import ATTACKS, COUNT, THREAT, columns, net, noise, run


@pytest.fixture(scope="module")
def images() -> Images:
    return noise()


def test_it_agrees_with_the_engine_and_takes_the_worst_case_of_each_example(images: Images) -> None:
    report = run(images)
    rng = Rng.lanes(0, images.ids).fold("evaluation")
    worst = torch.ones(COUNT, dtype=torch.bool)
    for label, attack in ATTACKS.items():
        outcome = engine.run(attack, net(), images.x, images.y, THREAT, rng)
        assert torch.equal(report.results[label].attempt, outcome.attempt)
        assert torch.equal(report.right_under(label), outcome.robust)
        assert report.score(label).right == int(outcome.robust.sum())
        worst &= outcome.robust
    assert torch.equal(report.robust, worst)
    assert report.worst.right == int(worst.sum())
    assert report.worst.right < min(report.score(label).right for label in ATTACKS), "the case separates them"
    assert report.clean.right == COUNT - len(range(0, COUNT, 9))
    assert list(report.scores) == ["clean", *ATTACKS, "worst case"]


def test_a_worst_case_by_queries_only_says_so(images: Images, tmp_path: Path) -> None:
    only = evaluate(net(), images, THREAT, attacks={"RayS": RayS(queries=20)}, progress=False)
    rows = {row[0]: row[1] for row in only.lines()}
    assert rows["worst case"] == f"{only.worst} by queries only"
    assert "queries-only" in [flag["name"] for flag in only.summary()["flags"]]
    only.save(tmp_path / "page.html")
    assert (
        "no white-box attack was run: the worst case is by queries only"
        in (tmp_path / "page.html").read_text()
    )
    assert {row[0]: row[1] for row in run(images).lines()}["worst case"] == str(run(images).worst)


def test_robust_accuracy_of_a_linear_model_is_what_its_margins_say() -> None:
    x = torch.linspace(0.2, 0.8, 40).view(40, 1, 1, 1)
    y = (x.flatten() > 0.5).long()
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[-1.0], [1.0]]))
        model[1].bias.copy_(torch.tensor([0.52, -0.52]))  # the boundary is at 0.52: some are wrong at once
    attacks = {"PGD": PGD(steps=10, restarts=2)}
    report = evaluate(model, (x, y), Linf(0.1), attacks=attacks, progress=False)
    distance = (x.flatten() - 0.52) * (2 * y - 1)
    assert report.clean.right == int((distance > 0).sum())
    assert report.worst.right == int((distance > 0.1).sum())
    assert report.clean.n == report.worst.n == 40


def test_a_chain_attacks_only_what_stands_and_ends_where_all_alone_end(images: Images) -> None:
    both: Any = {"suite": "autoattack", "attacks": None, "only": ["apgd", "square"]}
    chained = run(images, **both)
    alone = run(images, alone=True, **both)
    first, second = chained.results.values()
    assert torch.equal(second.attempt == SKIPPED, ~first.survived)
    assert second.margin[~first.survived].isnan().all()
    assert torch.equal(chained.robust, alone.robust)
    assert chained.score("Square").right == chained.worst.right
    assert not (alone.results["Square"].attempt == SKIPPED).any()


# --- the folder ---


def test_the_folder_keeps_everything_per_example(images: Images, tmp_path: Path) -> None:
    report = run(images, folder=tmp_path, save_images=True)
    with np.load(tmp_path / "attack-pgd-2x6.npz", allow_pickle=False) as file:
        found = {name: torch.from_numpy(file[name]) for name in file.files}
    assert set(found) == {"attempt", "step", "margin", "queries"}
    result = report.results["PGD 2x6"]
    assert all(torch.equal(found[name], column) for name, column in result.columns().items())
    tensors, _ = load_tensors(tmp_path / "images-pgd-2x6.safetensors")
    assert torch.equal(tensors["ids"], images.ids[result.fooled])
    assert (net()(tensors["x_adv"]).argmax(1) != images.y[result.fooled]).all()
    assert THREAT.contains(tensors["x_adv"], images.x[result.fooled]).all()
    with np.load(tmp_path / "clean.npz") as file:
        assert file["ids"].tolist() == images.ids.tolist()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert len(summary.pop("sha256")) == 64
    assert summary == json.loads(json.dumps(report.summary()))
    worst = summary["accuracy"]["worst case"]
    assert (worst["n"], worst["right"]) == (COUNT, report.worst.right)
    assert worst["interval"][0] < worst["rate"] < worst["interval"][1]
    assert not list(tmp_path.glob("state-*"))


def test_a_finished_attack_is_not_run_again(images: Images, tmp_path: Path) -> None:
    first = run(images, folder=tmp_path)
    model, asked = net(), list[int]()
    model.register_forward_hook(lambda *_: asked.append(1))
    assert columns(run(images, model, folder=tmp_path)) == columns(first)
    again = len(asked)
    asked.clear()
    run(images, model)
    assert again < len(asked), "the probes alone"


def stop_after(steps: int, monkeypatch: pytest.MonkeyPatch, number: int = signal.SIGTERM) -> None:
    """A signal during the step of this number, counted over all attacks, but not over the honesty checks."""
    count = 0

    class Signalled(engine.Engine):
        def step(self) -> None:
            nonlocal count
            super().step()
            count += 1
            if count == steps:
                signal.raise_signal(number)

    monkeypatch.setattr(run_attack, "Engine", Signalled)


@pytest.mark.parametrize("steps", [1, 2, 4, 6])
@pytest.mark.parametrize("batch_size", [16, 256])
def test_stopped_by_a_signal_it_continues_and_ends_the_same(
    steps: int, batch_size: int, images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(images, folder=whole, batch_size=batch_size)
    with monkeypatch.context() as patch:
        stop_after(steps, patch)
        with pytest.raises(Interrupted) as stopped:
            run(images, folder=parts, batch_size=batch_size)
    assert stopped.value.exit_code == 143
    assert list(parts.glob("state-*"))
    run(images, folder=parts, batch_size=batch_size)
    for path in whole.glob("*"):
        if path.name not in ("timing.jsonl", "lock"):
            assert (parts / path.name).read_bytes() == path.read_bytes(), path.name


def test_killed_between_the_result_and_the_end_of_its_state_it_leaves_no_state(
    images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(images, folder=tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(EvaluationFolder, "drop_state", lambda *_: None)
        stop_after(2, patch)
        with pytest.raises(Interrupted):
            run(images, folder=tmp_path / "parts")
        run(images, folder=tmp_path / "parts")
    assert list((tmp_path / "parts").glob("state-*")), "as a process leaves it that dies at that moment"
    run(images, folder=tmp_path / "parts")
    names = [{path.name for path in (tmp_path / place).iterdir()} for place in ("whole", "parts")]
    assert names[0] == names[1]


def test_it_saves_now_and_then(images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["atlas.evaluation.evaluate"], "SAVE_SHARE", 1e9)
    seen = list[int]()
    real = engine.Engine.step

    def step(engine: engine.Engine) -> None:
        seen.append(len(list(tmp_path.glob("state-*"))))
        real(engine)

    monkeypatch.setattr(engine.Engine, "step", step)
    run(images, folder=tmp_path, save_seconds=0.0)
    assert max(seen) == 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda b: b[: len(b) // 2],
        lambda b: b"no",
        lambda b: b[:-200] + b"x" * 9 + b[-191:],  # in the pixels: the flags at the end hold True as x too
    ],
)
def test_a_damaged_state_is_made_again(
    spoil: Callable[[bytes], bytes], images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_after(1, patch)
        with pytest.raises(Interrupted):
            run(images, folder=tmp_path, batch_size=16)
    path = tmp_path / "state-fgsm.safetensors"
    path.write_bytes(spoil(path.read_bytes()))
    assert columns(run(images, folder=tmp_path)) == columns(run(images))
    assert path.with_suffix(".damaged").exists()


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"n": 50}, {"attack_dtype": "bfloat16"}, {"attacks": {"FGSM": FGSM()}}]
)
def test_another_evaluation_in_the_folder_is_refused(change: Any, images: Images, tmp_path: Path) -> None:
    run(images, folder=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UsageError, match="holds another evaluation"):
        run(images, folder=tmp_path, **change)
    other = net()
    with torch.no_grad():
        other[3].bias.add_(1e-3)
    with pytest.raises(UsageError, match="model"):
        run(images, other, folder=tmp_path)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {k: v for k, v in after.items() if k != "lock"} == {k: v for k, v in before.items() if k != "lock"}


def test_what_cannot_be_attacked_leaves_no_folder(images: Images, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with pytest.raises(UsageError, match="is defined for Linf"):
        evaluate(net(), images, L2(1.0), attacks={"RayS": RayS()}, folder=folder)
    assert not folder.exists()


def test_a_run_or_somebody_else_s_folder_is_refused(images: Images, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"config": {}, "hash": ""}')
    with pytest.raises(UsageError, match="is the folder of a run; choose another for the evaluation"):
        run(images, folder=tmp_path)
    (tmp_path / "config.json").rename(tmp_path / "thesis.tex")
    with pytest.raises(UsageError, match=r"holds other files \(thesis.tex\); choose a new or an empty one"):
        run(images, folder=tmp_path)


def test_another_function_of_the_same_name_is_not_taken_for_the_first(images: Images, tmp_path: Path) -> None:
    model = net()
    first = run(images, lambda x: model(x), folder=tmp_path)
    assert columns(run(images, lambda x: model(x), folder=tmp_path)) == columns(first)
    with pytest.raises(UsageError, match="answered the clean images differently"):
        run(images, lambda x: -model(x), folder=tmp_path)


def test_images_are_made_when_they_are_first_wanted(images: Images, tmp_path: Path) -> None:
    first = run(images, folder=tmp_path)
    assert not list(tmp_path.glob("images-*"))
    assert columns(run(images, folder=tmp_path, save_images=True)) == columns(first)
    assert len(list(tmp_path.glob("images-*"))) == len(ATTACKS)


BAD_TIMES = [
    b'{"attack": "FG',
    b"\xff\xfe\x80",
    b"\x00" * 50,
    b'{"attack": "FGSM", "seconds": NaN}\n{"attack": "FGSM", "seconds": -1}',
    b'{"attack": [], "seconds": 1}\n[1]\n3\nnull\n' + b"[" * 100_000,
    b'{"attack": "FGSM", "seconds": 1' + b"0" * 400 + b"}",
]


def test_damaged_times_stop_nobody(images: Images, tmp_path: Path) -> None:
    first = run(images, folder=tmp_path)
    times = tmp_path / "timing.jsonl"
    times.write_bytes(times.read_bytes() + b"\n".join(BAD_TIMES) + b"\n")
    again = run(images, folder=tmp_path)
    assert again.seconds == pytest.approx(first.seconds, abs=1e-3)
    (tmp_path / "attack-fgsm.npz").unlink()
    assert columns(run(images, folder=tmp_path)) == columns(first)
    assert all(0 <= seconds < 1e6 for seconds in load_report(tmp_path).seconds.values())


def test_times_that_cannot_be_read_or_written_stop_nobody(images: Images, tmp_path: Path) -> None:
    (tmp_path / "timing.jsonl").mkdir()
    first = run(images, folder=tmp_path)
    assert columns(load_report(tmp_path)) == columns(first)
    times = {line[0]: line[-1] for line in load_report(tmp_path).lines()}
    assert {times[label] for label in ATTACKS} == {"-"}


def test_shards_of_another_evaluation_are_not_merged(images: Images, tmp_path: Path) -> None:
    first = run(images, folder=tmp_path)
    other = net()
    with torch.no_grad():
        other[3].bias.add_(1.0)
    for index in range(2):
        run(images, other, folder=tmp_path, shard=Shard(index, 2))
    with pytest.raises(UsageError, match="holds another evaluation"):
        merge(tmp_path, 2, list(ATTACKS))
    assert columns(run(images, folder=tmp_path)) == columns(first)


def test_merging_deletes_the_folders_of_this_evaluation_only(images: Images, tmp_path: Path) -> None:
    (tmp_path / "shard-0-of-4").mkdir(parents=True)
    (tmp_path / "shard-0-of-4/train.tar").write_text("a user's data")
    for index in range(2):
        run(images, folder=tmp_path, shard=Shard(index, 2))
    merge(tmp_path, 2, list(ATTACKS))
    assert [path.name for path in tmp_path.glob("shard-*")] == ["shard-0-of-4"]
    assert (tmp_path / "shard-0-of-4/train.tar").exists()


def test_two_at_a_time_in_one_folder_are_refused(images: Images, tmp_path: Path) -> None:
    def model(x: Tensor) -> Tensor:
        with pytest.raises(LockError):
            run(images, folder=tmp_path)
        return net()(x)  # type: ignore[no-any-return]

    run(images.subset(slice(3)), model, folder=tmp_path, attacks={"FGSM": FGSM()})


# --- the same, however the work is divided ---


@pytest.mark.parametrize("options", [{"batch_size": 7}, {"batch_size": 64}, {"batch_size": 500}])
def test_batches_change_no_verdict(options: Any, images: Images) -> None:
    assert columns(run(images, **options)) == columns(run(images))


@pytest.mark.parametrize("of", [2, 3])
def test_shards_make_the_whole(of: int, images: Images, tmp_path: Path) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    run(images, folder=one)
    for index in range(of):
        report = run(images, folder=many, shard=Shard(index, of))
        assert report.ids.tolist() == images.ids[index::of].tolist()
    merge(many, of, list(ATTACKS))
    joined = run(images, folder=many)
    assert columns(joined) == columns(run(images))
    assert (many / "summary.json").read_bytes() == (one / "summary.json").read_bytes()


def test_a_random_sample_is_by_the_seed(images: Images) -> None:
    one, same, other = (run(images, n=20, random=True, seed=s, attacks={"a": FGSM()}).ids for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert run(images, n=20, attacks={"a": FGSM()}).ids.tolist() == images.ids[:20].tolist()


def test_worst_cases_of_different_attacks_are_not_compared(images: Images) -> None:
    """One model against itself: no row may show a difference that only the attacks make."""
    one, more = run(images, attacks={"FGSM": ATTACKS["FGSM"]}), run(images)
    assert one.worst.right > more.worst.right
    assert list(compared(one, more)) == ["clean", "FGSM"]
    assert all(pair.difference == 0 for *_, pair in compared(one, more).values())
    assert list(compared(more, more)) == ["clean", *ATTACKS, "worst case"]
    with pytest.raises(UsageError, match="eot"):
        compared(more, run(images, eot=2))


# --- manners ---


def test_the_model_and_the_images_come_back_as_they_were() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4))
    model[1].bias.requires_grad_(False)
    model[2].eval()
    x, y = torch.rand(12, 1, 3, 3), torch.randint(4, (12,))
    model(x).sum().backward()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    modes, pixels = [m.training for m in model.modules()], x.clone()
    evaluate(model, (x, y), L2(0.3), attacks=ATTACKS, progress=False)
    assert [m.training for m in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == [True, False, True, True, True, True]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    for p, grad in zip(model.parameters(), grads, strict=True):
        assert (p.grad is None) == (grad is None)
        assert grad is None or torch.equal(p.grad, grad)  # type: ignore[arg-type]
    assert torch.equal(x, pixels)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attacks": {}}, "no attack"),
        ({"attacks": {"a b": FGSM(), "a-b": PGD()}}, "must differ in letters or digits"),
        ({"n": 0}, "n must be an integer >= 1, got 0"),
        ({"attacks": {"clean": FGSM()}}, "which are rows of every table; got .'clean'"),
        ({"attacks": {"a": object()}}, "adapt"),
        ({"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
        ({"eot": 0}, "eot must be an integer >= 1, got 0"),
        ({"attack_dtype": "float8"}, "unknown attack dtype"),
        ({"attacks": None, "suite": "quik"}, "did you mean 'quick'"),
        ({"attacks": None, "only": ["pdg"]}, "did you mean 'pgd'"),
    ],
)
def test_wrong_wishes_are_refused(options: Any, words: str, images: Images) -> None:
    with pytest.raises(UsageError, match=words):
        run(images, **options)


def test_no_batch_is_larger_than_batch_size(images: Images, tmp_path: Path) -> None:
    model, sizes = net(), list[int]()
    model.register_forward_pre_hook(lambda _, x: sizes.append(len(x[0])))
    run(images, model, batch_size=5, folder=tmp_path)
    assert max(sizes) == 5
