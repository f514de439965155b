"""`fit` on a small task: what it learns, writes, refuses and gives back."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import atlas
from atlas.attacks import FGSM, PGD
from atlas.checkpoint import load_tensors, save_tensors
from atlas.errors import CheckpointError, Interrupted, NumericError, UsageError
from atlas.methods import Adv, Atlas, Natural
from atlas.runs import Run
from atlas.training import Optimizer, Schedule, StopTraining, Training, Validation, fit, load_model
from atlas.training.trainer import Trainer

THREAT = atlas.Linf(0.1)
SHORT = Training(
    batch_size=32,
    optimizer=Optimizer(lr=0.1),
    schedule=Schedule(kind="constant", epochs=3, ramp_epochs=1),
    validation=Validation(size=0.25, attack=PGD(steps=3)),
)


def task(n: int = 256) -> tuple[Tensor, Tensor]:
    """Two classes by which half of the image is brighter."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(2, (n,), generator=generator)
    x = torch.rand(n, 1, 6, 6, generator=generator) * 0.5
    x[y == 0, :, :3] += 0.5
    x[y == 1, :, 3:] += 0.5
    return x, y


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 2))


def run(
    method: atlas.methods.Method = Adv(),
    training: Training = SHORT,
    model: nn.Module | None = None,
    progress: bool = False,
    **more: Any,
) -> atlas.training.Result:
    model = model or network()
    return fit(model, task(), method, threat=THREAT, training=training, progress=progress, **more)


def test_it_learns_and_returns_the_weights_of_the_best_epoch(tmp_path: Path) -> None:
    result = run(folder=tmp_path)
    assert result.best_robust > 0.8
    assert result.best_robust == max(r["val_robust"] for r in result.epochs)
    best = load_file(tmp_path / "best.safetensors")
    assert all(torch.equal(best[k], v) for k, v in result.model.state_dict().items())


def test_a_loader_a_data_set_and_tensors_train_alike() -> None:
    x, y = task()
    sets = [(x, y), TensorDataset(x, y), DataLoader(TensorDataset(x, y), batch_size=50)]
    losses = [
        [r["loss"] for r in fit(network(), s, Adv(), threat=THREAT, training=SHORT, progress=False).epochs]
        for s in sets
    ]
    assert losses[0] == losses[1] == losses[2]


def test_epochs_lr_and_batch_size_are_keywords() -> None:
    explicit = Training(
        batch_size=64,
        optimizer=Optimizer(lr=0.1),
        schedule=Schedule(epochs=3, ramp_epochs=1),  # at most half of the epochs
        validation=SHORT.validation,
    )
    usual = Training(validation=SHORT.validation)
    short = run(training=usual, epochs=3, lr=0.1, batch_size=64)
    assert short.epochs == run(training=explicit).epochs
    assert run(training=usual, epochs=1).epochs[0]["eps"] == pytest.approx(THREAT.eps), "no ramp is left"
    for wrong in ({"epochs": 0}, {"epochs": 1.5}, {"epochs": "3"}, {"lr": -1.0}, {"batch_size": 1}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            run(**wrong)


def test_how_long_it_may_take_is_said_after_the_first_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    def stop(records: Any) -> None:
        raise StopTraining

    for more, told in (({}, True), ({"epochs": 40}, False)):
        training: Any = {"training": Training(validation=SHORT.validation), **more}
        fit(network(), task(), Adv(), threat=THREAT, on_epoch=stop, **training)
        words = r"ends after 10 epochs without gain, and after 100 epochs \(.*\) at the latest"
        assert bool(re.search(words, " ".join(capsys.readouterr().err.split()))) == told


def test_a_validation_set_of_ones_own_is_used() -> None:
    x, y = task()
    result = run(validation_set=(x[:40], 1 - y[:40]))
    assert result.epochs[-1]["val_clean"] < 0.2, "labels were swapped, so accuracy must be low"


def test_the_global_generator_is_left_alone_and_does_not_matter() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = run()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert [r["loss"] for r in run().epochs] == [r["loss"] for r in first.epochs]


def test_another_seed_is_another_run() -> None:
    other = Training(**{**vars(SHORT), "seed": 1})
    assert run().epochs[0]["loss"] != run(training=other).epochs[0]["loss"]


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_every_optimiser_learns_and_resumes(kind: str, tmp_path: Path) -> None:
    rates = {"sgd": 0.1, "adam": 0.01, "adamw": 0.01}
    optimizer = Optimizer(kind=kind, lr=rates[kind], weight_decay=1e-4)
    long = Training(**{**vars(SHORT), "optimizer": optimizer})
    whole = run(training=long, folder=tmp_path / "whole")
    assert whole.best_robust > 0.8
    interrupted(long, tmp_path / "broken", after=5)
    again = run(training=long, folder=tmp_path / "broken")
    assert again.epochs == whole.epochs
    assert all(map(torch.equal, again.model.state_dict().values(), whole.model.state_dict().values()))


def interrupted(training: Training, folder: Path, after: int, model: nn.Module | None = None) -> None:
    """A run that a signal ends after this many steps."""

    def step(self: Trainer, batch: object) -> None:
        original(self, batch)
        if self.progress.step == after:
            self.requests.caught = 15

    original = Trainer.step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", step)
        with pytest.raises(Interrupted):
            run(training=training, folder=folder, model=model)


def test_callbacks_see_every_step_and_every_epoch() -> None:
    steps: list[dict[str, Any]] = []
    seen: list[int] = []
    result = run(on_step=steps.append, on_epoch=lambda records: seen.append(len(records)))
    assert seen == [1, 2, 3]
    assert [record["step"] for record in steps] == list(range(1, 19))
    assert {"epoch", "lr", "loss", "gradient", "train_adv", "seconds"} <= steps[0].keys()
    assert steps[-1]["lr"] == result.epochs[-1]["lr"]
    losses = [record["loss"] for record in steps if record["epoch"] == 0]
    assert sum(losses) / 6 == pytest.approx(result.epochs[0]["loss"]), (
        "the mean over an epoch of equal batches"
    )
    assert result.epochs == run().epochs, "watching changes nothing"


@pytest.mark.parametrize(("when", "after"), [("on_step", 8), ("on_step", 3), ("on_epoch", 2)])
def test_a_callback_stops_training_and_the_run_resumes(tmp_path: Path, when: str, after: int) -> None:
    calls = []

    def stop(record: Any) -> None:
        calls.append(record)
        if len(calls) == after:
            raise StopTraining("enough")

    first = run(folder=tmp_path, **{when: stop})
    assert (first.ended, len(calls)) == ("enough", after)
    assert len(first.epochs) == {8: 1, 3: 0, 2: 2}[after]
    assert Run.open(tmp_path).state == "unfinished"
    if first.epochs:
        best = load_file(tmp_path / "best.safetensors")
        assert all(torch.equal(best[k], v) for k, v in first.model.state_dict().items())
    again = run(folder=tmp_path)
    assert again.epochs == run().epochs
    assert Run.open(tmp_path).state == "finished"


def test_a_run_is_read_from_its_folder(tmp_path: Path) -> None:
    result = run(folder=tmp_path)
    found = Run.open(tmp_path)
    assert found.epochs == result.epochs
    assert found.best == result.epochs[result.best_epoch]
    assert found.seconds == pytest.approx(result.seconds, abs=0.01)
    assert found.config["method"]["name"] == "adv"
    assert found.collapses == [r["epoch"] for r in result.epochs if r["collapse"]]
    x, _ = task()
    assert torch.equal(found.model(network(1), "cpu")(x), result.model(x))
    (tmp_path / "evaluations/quick").mkdir(parents=True)
    (tmp_path / "evaluations/quick/config.json").write_text("{}")
    assert found.evaluations() == [tmp_path / "evaluations/quick"]
    assert Run(tmp_path / "none").state == "not begun"
    with pytest.raises(CheckpointError, match="is not the folder of a run"):
        Run.open(tmp_path / "none")


def test_the_average_of_weights_is_what_is_evaluated(tmp_path: Path) -> None:
    averaged = Training(**{**vars(SHORT), "ema": 0.9})
    result = run(training=averaged, folder=tmp_path)
    state = load_file(tmp_path / "state.safetensors")
    last = load_file(tmp_path / "last.safetensors")
    assert all(torch.equal(last[k], state[f"ema.module.{k}"]) for k in last)
    assert not torch.equal(last["1.weight"], state["model.1.weight"])
    assert result.best_robust > 0.8


def test_metrics_and_events_are_written(tmp_path: Path) -> None:
    result = run(Atlas(alpha=1e-3, beta=0.5), folder=tmp_path)
    records = Run(tmp_path).records
    assert [r for r in records if r["kind"] == "epoch"] == result.epochs
    assert {"loss", "ce", "jac", "kl", "gradient", "train_adv", "jacobian"} <= set(result.epochs[0])
    assert any(r["kind"] == "probe" for r in records)
    assert list((tmp_path / "tensorboard").glob("events*"))
    assert result.seconds > 0
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["config"]["method"]["alpha"] == 1e-3


def test_eps_and_the_weights_of_terms_grow_together(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    weigh = Atlas.weigh

    def spy(self: Atlas, losses: dict[str, Tensor], ramp: float = 1.0) -> Tensor:
        seen.append(ramp)
        return weigh(self, losses, ramp)

    monkeypatch.setattr(Atlas, "weigh", spy)
    slow = Training(**{**vars(SHORT), "schedule": Schedule(kind="constant", epochs=3, ramp_epochs=2)})
    run(Atlas(alpha=1e-3, beta=0.5), training=slow)
    assert seen[0] == 0
    assert seen == sorted(seen)
    assert seen[6] == pytest.approx(0.5)
    assert seen[12:] == [1.0] * 6


class Explodes(nn.Module):
    """Finite for a while, then NaN: in the forward pass, or only in the backward pass."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.net, self.where, self.calls = network(), where, 0

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        self.calls += self.training
        if self.where == "attack":
            return logits * math.nan if self.calls == 4 and not self.training else logits
        if self.training and self.calls > 4:
            if self.where == "loss":
                return logits * math.nan
            logits.register_hook(lambda g: g * math.inf)
        return logits


@pytest.mark.parametrize("where", ["loss", "gradient", "attack"])
def test_what_is_not_finite_stops_before_the_update(where: str, tmp_path: Path) -> None:
    model, method = Explodes(where), Adv() if where == "attack" else Natural()
    updates = []
    with pytest.MonkeyPatch.context() as patch:
        step = torch.optim.SGD.step
        patch.setattr(torch.optim.SGD, "step", lambda self: (updates.append(1), step(self))[1])
        with pytest.raises(NumericError, match="before the next update") as caught:
            run(method, model=model, folder=tmp_path)
    assert caught.value.exit_code == 5
    assert len(updates) == 4
    assert all(p.isfinite().all() for p in model.parameters())
    report = json.loads((tmp_path / "not-finite.json").read_text())
    assert len(report["examples"]) == 32
    assert report["terms"][where] in ("nan", "inf")
    assert not (tmp_path / "best.safetensors").exists()


def test_weights_come_back_as_the_model_they_were(tmp_path: Path) -> None:
    about = {"model": "cnn-small", "num_classes": 2, "shape": [1, 6, 6], "normalize": None}
    model = atlas.models.build("cnn-small", 2, (1, 6, 6))
    result = run(model=model, folder=tmp_path, about=about)
    again = load_model(tmp_path)
    x, _ = task()
    assert torch.equal(again(x), result.model.eval()(x))
    assert not again.training


# --- collapse ---

GUIDED = Training(**{**vars(SHORT), "schedule": Schedule(kind="guided", epochs=12, ramp_epochs=0)})


def collapsing(monkeypatch: pytest.MonkeyPatch, accuracies: list[float]) -> None:
    """Let validation tell this story, with a Jacobian that rises as accuracy falls."""
    story = iter(accuracies)

    def validate(self: Trainer) -> dict[str, float]:
        robust = next(story)
        self.progress.jacobian = 10 / robust**2
        return {"val_clean": 1.0, "val_robust": robust}

    monkeypatch.setattr(Trainer, "validate", validate)


def with_action(action: str) -> Training:
    return Training(**{**vars(GUIDED), "on_collapse": action})


def test_a_collapse_is_announced_and_training_continues(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    collapsing(monkeypatch, [0.5, 0.8, 0.3, 0.3, 0.75, 0.2] + [0.1] * 6)
    result = run(training=with_action("continue"), progress=True)
    assert [r["collapse"] for r in result.epochs[:6]] == [False, False, True, False, False, True]
    assert "catastrophic overfitting" in capsys.readouterr().err
    assert result.best_robust == 0.8
    assert result.ended == "no gain for 10 epochs"


@pytest.mark.filterwarnings("ignore:collapse")
def test_stop_ends_at_the_collapse_with_the_best_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    collapsing(monkeypatch, [0.5, 0.8, 0.3])
    result = run(training=with_action("stop"), folder=tmp_path)
    assert (result.ended, result.best_epoch, len(result.epochs)) == ("collapse", 1, 3)


@pytest.mark.filterwarnings("ignore:collapse", "ignore:rolled back")
def test_rollback_returns_to_the_best_weights_twice_and_then_stops(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    collapsing(monkeypatch, [0.8, 0.3, 0.3, 0.3])
    weights, alphas, rates = [], [], []
    epoch = Trainer.train_epoch

    def spy(self: Trainer, *callbacks: Any) -> None:
        weights.append({k: v.clone() for k, v in self.state.model.state_dict().items()})
        alphas.append(self.method.alpha)  # type: ignore[attr-defined]
        rates.append(self.lr)
        epoch(self, *callbacks)

    monkeypatch.setattr(Trainer, "train_epoch", spy)
    result = run(Atlas(alpha=1e-3, beta=0.1), training=with_action("rollback"), folder=tmp_path)
    assert result.ended == "collapse"
    assert len(result.epochs) == 4
    assert alphas == pytest.approx([1e-3, 1e-3, 4e-3, 1.6e-2])
    assert rates == pytest.approx([0.1, 0.1, 0.02, 0.004])
    best = result.model.state_dict()
    for start in weights[2:]:
        assert all(torch.equal(start[k], best[k]) for k in best)


def test_settings_that_make_no_sense_are_refused() -> None:
    for make in (
        lambda: Training(batch_size=1),
        lambda: Training(ema=1.0),
        lambda: Training(augment="mirror"),
        lambda: Optimizer(lr=0.0),
        lambda: Optimizer(momentum=0.0, nesterov=True),
        lambda: Validation(size=1.5),
        lambda: Schedule(kind="piecewise"),
        lambda: FGSM(relative_step=-1.0),
    ):
        with pytest.raises(UsageError):
            make()


# --- what must not pass for robust, and runs that go on ---


def test_a_model_that_diverges_at_an_epochs_end_is_never_the_best(tmp_path: Path) -> None:
    wild = Training(**{**vars(SHORT), "batch_size": 192, "optimizer": Optimizer(lr=1e30)})
    with pytest.raises(NumericError):
        run(training=wild, folder=tmp_path)
    assert not (tmp_path / "best.safetensors").exists()


def test_every_epoch_has_a_fresh_look_at_the_jacobian() -> None:
    jacobians = [r["jacobian"] for r in run().epochs]
    assert len(set(jacobians)) == len(jacobians), "six batches an epoch, fewer than between two probes"


def test_eps_and_lr_are_recorded_as_the_last_step_had_them() -> None:
    cycle = Training(**{**vars(SHORT), "schedule": Schedule(kind="one-cycle", epochs=3, ramp_epochs=3)})
    last = run(training=cycle).epochs[-1]
    assert last["lr"] == pytest.approx(0.1 * (1 / 18) / 0.6)
    assert last["eps"] == pytest.approx(0.1 * 17 / 18)


def test_training_without_adversaries_claims_none() -> None:
    assert "train_adv" not in run(Natural()).epochs[0]
    assert run(Natural()).epochs[-1]["train_clean"] > 0.9


def test_a_finished_run_continues_when_it_is_given_more_epochs(tmp_path: Path) -> None:
    longer = Training(**{**vars(SHORT), "schedule": Schedule(kind="constant", epochs=5, ramp_epochs=1)})
    run(folder=tmp_path / "run")
    more = run(training=longer, folder=tmp_path / "run", allow_changes=True)
    assert more.epochs == run(training=longer, folder=tmp_path / "whole").epochs


WEAK = Validation(size=0.25, attack=PGD(steps=1, step_size=1e-3, start_at="clean"))


@pytest.mark.filterwarnings("ignore:the steps of training.validation.attack go", "ignore:collapse")
@pytest.mark.parametrize(
    ("weak", "strong", "change"),
    [
        (
            (atlas.Linf(0.01), SHORT.validation),
            (atlas.Linf(0.4), SHORT.validation),
            "threat.eps: 0.01 -> 0.4",
        ),
        ((atlas.Linf(0.3), WEAK), (atlas.Linf(0.3), SHORT.validation), "attack.steps: 1 -> 3"),
    ],
    ids=["threat", "validation attack"],
)
def test_another_threat_or_validation_attack_starts_the_choice_of_the_best_epoch_anew(
    tmp_path: Path,
    weak: tuple[atlas.Linf, Validation],
    strong: tuple[atlas.Linf, Validation],
    change: str,
) -> None:
    """What the first epochs reached under a weak attack says nothing of those under a strong one."""

    def trained(under: tuple[atlas.Linf, Validation], epochs: int) -> atlas.training.Result:
        schedule = Schedule(kind="guided", epochs=epochs, ramp_epochs=0, plateau=1)
        training = replace(SHORT, schedule=schedule, validation=under[1])
        where = {"folder": tmp_path, "allow_changes": True, "progress": False}
        return fit(network(), task(), Adv(), threat=under[0], training=training, **where)

    first = trained(weak, 3)
    with pytest.raises(
        UsageError, match=f"{change}.*all 3 epochs done.*Set a larger training.schedule.epochs"
    ):
        trained(strong, 3)
    with pytest.warns(
        UserWarning, match=f"{change}.*best epoch, the plateau tracker and the collapse detector"
    ):
        second = trained(strong, 5)
    assert second.best_robust < first.best_robust, "or this would test nothing"
    assert second.best_robust == max(e["val_robust"] for e in second.epochs[3:])
    assert second.best_epoch >= 3
    assert not second.epochs[3]["collapse"]
    assert second.epochs[4]["lr"] == second.epochs[3]["lr"], "a false plateau would have cut it"
    best = load_file(tmp_path / "best.safetensors")
    assert all(torch.equal(best[k], v) for k, v in second.model.state_dict().items())


def test_a_change_that_does_not_fit_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    interrupted(SHORT, tmp_path, after=5)
    adam = Training(**{**vars(SHORT), "optimizer": Optimizer(kind="adam")})
    wide = nn.Sequential(nn.Flatten(), nn.Linear(36, 17), nn.ReLU(), nn.Linear(17, 2))
    with pytest.raises(CheckpointError):
        run(training=adam, model=wide, folder=tmp_path, allow_changes=True)
    assert run(folder=tmp_path).epochs == run().epochs


def changed(layer: int, change: Callable[[nn.Module], nn.Module]) -> nn.Module:
    layers = list(network().children())
    layers[layer] = change(layers[layer])
    return nn.Sequential(*layers)


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (
            network,
            lambda: changed(2, lambda relu: nn.Sigmoid()),
            "its layers differ",
        ),
        (
            network,
            lambda: changed(1, lambda part: part.requires_grad_(False)),
            "its frozen parameters differ",
        ),
        (network, lambda: network(1), "its initial weights differ"),
    ],
    ids=["layers", "frozen", "weights"],
)
def test_the_run_of_another_model_is_not_continued(
    tmp_path: Path, first: Callable[[], nn.Module], second: Callable[[], nn.Module], reason: str
) -> None:
    def go(model: nn.Module, **more: Any) -> atlas.training.Result:
        return run(model=model, folder=tmp_path, **more)

    result, other = go(first()), second()
    given = {k: v.clone() for k, v in other.state_dict().items()}
    files = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(CheckpointError, match=f"holds the run of another model: .*{reason}.*allow changes"):
        go(other)
    assert all(torch.equal(v, given[k]) for k, v in other.state_dict().items())
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == files
    assert go(first()).epochs == go(other, allow_changes=True).epochs == result.epochs


def test_the_model_that_a_run_has_trained_is_taken_again(tmp_path: Path) -> None:
    """Running a cell of a notebook again gives the same object, whose weights are not the first ones."""
    model = network()
    interrupted(SHORT, tmp_path, after=5, model=model)
    for _ in ("after a signal", "at the end"):
        again = run(model=model, folder=tmp_path)
        assert again.epochs == run().epochs


def test_a_state_that_does_not_describe_its_model_is_resumed(tmp_path: Path) -> None:
    """As those of older versions."""
    interrupted(SHORT, tmp_path, after=5)
    state = Run(tmp_path).state_path
    tensors, about = load_tensors(state)
    del about["model"], about["run"], about["validated_with"]
    save_tensors(state, tensors, about)
    assert run(folder=tmp_path).epochs == run().epochs


# --- the file of the best weights ---


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def with_a_bit_flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)


def of_another_run(path: Path) -> None:
    run(training=replace(SHORT, seed=1), folder=path.parent / "other")
    shutil.copy(path.parent / "other" / path.name, path)


@pytest.mark.parametrize("harm", [Path.unlink, truncated, with_a_bit_flipped, of_another_run])
def test_the_best_weights_are_exported_again_from_the_state(
    tmp_path: Path, harm: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    run(folder=tmp_path)
    best = tmp_path / "best.safetensors"
    before = best.read_bytes()
    harm(best)
    run(folder=tmp_path, progress=True)
    assert best.read_bytes() == before
    assert re.search(r"best.safetensors .*: exported it again", capsys.readouterr().err)


def test_the_weights_of_another_run_are_refused(tmp_path: Path) -> None:
    """Also those of one with the same settings, by `fit`, whose model started elsewhere."""
    run(folder=tmp_path / "run")
    run(training=replace(SHORT, seed=1), folder=tmp_path / "seed")
    run(model=network(1), folder=tmp_path / "model")
    best = tmp_path / "run/best.safetensors"
    assert load_model(tmp_path / "run", network())
    for other in ("seed", "model"):
        shutil.copy(tmp_path / other / best.name, best)
        with pytest.raises(
            CheckpointError, match=r"best.safetensors was written by another run than that of"
        ):
            load_model(tmp_path / "run", network())
        assert load_model(best, network()), "a file alone says nothing of a run"


def test_weights_from_before_a_change_of_settings_are_the_runs_own(tmp_path: Path) -> None:
    run(folder=tmp_path)
    longer = replace(SHORT, schedule=replace(SHORT.schedule, epochs=4), optimizer=Optimizer(lr=1e-9))
    result = run(training=longer, folder=tmp_path, allow_changes=True)
    assert result.best_epoch < 3, "or the weights would be new"
    assert load_model(tmp_path, network())


def test_a_configuration_altered_by_hand_is_refused(tmp_path: Path) -> None:
    run(folder=tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"epochs": 3', '"epochs": 4'))
    with pytest.raises(CheckpointError, match="altered"):
        run(folder=tmp_path)


def test_a_torn_line_of_times_is_no_hindrance(tmp_path: Path) -> None:
    interrupted(SHORT, tmp_path, after=5)
    with (tmp_path / "timing.jsonl").open("a") as file:
        file.write('{"at": 17')
    assert run(folder=tmp_path).epochs == run().epochs
    events = [line["event"] for line in Run(tmp_path).times]
    assert events == ["epoch", "interrupted", "epoch done", *["epoch", "epoch done"] * 2], "no more is lost"


def test_a_damaged_state_never_takes_the_place_of_the_good_one(tmp_path: Path) -> None:
    interrupted(SHORT, tmp_path, after=8)
    place = Run(tmp_path)
    place.state_path.write_bytes(place.state_path.read_bytes()[:-10])
    assert place.load_state() is not None
    place.save_state({"x": torch.zeros(1)}, {})
    assert load_tensors(place.previous_path)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(35, 2)), "the model failed on images"),
        (nn.Sequential(nn.Flatten(), nn.Linear(36, 1)), r"gives float32 \[2, 1\]"),
        (nn.Flatten(), "no weights"),
        (nn.Linear(6, 2), r"gives float32 \[2, 1, 6, 2\]"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_before_anything_is_written(
    model: nn.Module, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        run(model=model, folder=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_weights_that_name_somebodys_code_do_not_run_it(tmp_path: Path) -> None:
    run(
        folder=tmp_path, about={"model": "os:getcwd", "num_classes": 2, "shape": [1, 6, 6], "normalize": None}
    )
    with pytest.raises(CheckpointError, match="model="):
        load_model(str(tmp_path / "best.safetensors"))
    assert load_model(tmp_path / "best.safetensors", network(1))(task()[0]).shape == (256, 2)
