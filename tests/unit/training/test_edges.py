"""Models and data at the edges of what can be trained: it works, or is refused by name."""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import atlas
from atlas import checkpoint
from atlas.errors import CheckpointError, DataError, ModelError, OutOfMemoryError, UsageError
from atlas.methods import Atlas, Natural
from atlas.runs import Run
from atlas.training import Schedule, Training, Validation, fit

TRAINING = Training(
    batch_size=4,
    schedule=Schedule(epochs=2, ramp_epochs=1),
    validation=Validation(size=3, attack=atlas.attacks.PGD(steps=2)),
)


def trained(net: Any, x: Tensor, y: Tensor, **more: Any) -> Any:
    usual = {"method": Atlas(alpha=1e-3, beta=0.5), "training": TRAINING, "progress": False}
    return fit(net, (x, y), threat=atlas.Linf(0.1), **(usual | more))


def images(n: int = 12, classes: int = 3, shape: tuple[int, ...] = (1, 4, 4)) -> tuple[Tensor, Tensor]:
    x = torch.rand(n, *shape, generator=torch.Generator().manual_seed(0))
    return x, torch.arange(n) % classes


def net(classes: int = 3, pixels: int = 16) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.BatchNorm1d(pixels), nn.Linear(pixels, 8), nn.ReLU(), nn.Linear(8, classes)
    )


@pytest.mark.parametrize(
    ("data", "model"),
    [
        (images(12, 2), net(2)),
        (images(12, 1), net(2)),
        (images(12, 12), net(1000)),
        (images(12, 3, (1, 1, 1)), net(3, 1)),
        (images(5, 2), net(2)),
        (images(12, 3, (2, 8)), net(3)),
    ],
    ids=["2 classes", "1 class", "1000 classes", "1 pixel", "2 images beside 3 for validation", "gray"],
)
def test_it_trains(data: tuple[Tensor, Tensor], model: nn.Module) -> None:
    result = trained(model, *data)
    assert len(result.epochs) == 2
    assert all(value.isfinite().all() for value in result.model.state_dict().values())


def test_batches_of_one_never_reach_batchnorm() -> None:
    """13 images in batches of 4 leave one over, of which there are no statistics."""
    trained(net(), *images(16))
    with pytest.raises(DataError, match="one image is left to train on; expected at least 2"):
        trained(net(), *images(4))


@pytest.mark.parametrize("kind", [torch.uint8, torch.float64, torch.float16, torch.float32])
def test_pixels_of_any_kind_in_any_order_of_memory(kind: torch.dtype) -> None:
    x, y = images()
    x = (x * 255).to(kind) if kind == torch.uint8 else x.to(kind)
    turned = x.transpose(2, 3).contiguous().transpose(2, 3)
    assert not turned.is_contiguous()
    results = [trained(net(), pixels, y).epochs for pixels in (x, turned)]
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (torch.full((12,), -100), "labels from -100"),
        (torch.arange(12) - 1, "labels from -1"),
        (torch.arange(12).float(), "must be integer labels"),
        (torch.arange(11), r"must have one label per image, got int64 \[11\] for 12 images"),
    ],
    ids=["ignored by torch", "negative", "floats", "too few"],
)
def test_labels_that_torch_would_take_are_refused(y: Tensor, words: str) -> None:
    with pytest.raises(DataError, match=words):
        trained(net(12), images()[0], y)


def test_labels_from_one_are_named_where_the_model_has_too_few_classes() -> None:
    x, y = images()
    with pytest.raises(
        UsageError, match=r"expected logits \[B, 4\].*class 0 has no image: labels go from 1 to 3"
    ):
        trained(net(3), x, y + 1)


def test_a_class_beyond_the_models_is_refused() -> None:
    with pytest.raises(UsageError, match=r"expected logits \[B, 5\]"):
        trained(net(3), *images(12, 5))
    with pytest.raises(UsageError, match=r"expected logits \[B, 4294967296\]"):  # a -1 read as unsigned
        trained(net(3), images()[0], torch.full((12,), 2**32 - 1))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -0.01, 1.01])
def test_pixels_that_are_none_are_refused(value: float) -> None:
    x, y = images()
    x[3, 0, 1, 2] = value
    with pytest.raises(DataError, match="images must be finite and in"):
        trained(net(), x, y)


def test_no_images_or_one_are_refused() -> None:
    x, y = images()
    with pytest.raises(DataError, match="the data set is empty"):
        trained(net(), x[:0], y[:0])
    with pytest.raises(DataError, match="leaves at least one image on each side"):
        trained(net(), x[:1], y[:1], training=Training(batch_size=2))


def test_what_is_no_module_or_has_no_values_is_refused() -> None:
    with pytest.raises(UsageError, match=r"model must be an nn\.Module with weights to train, got function"):
        trained(lambda x: x.flatten(1), *images())
    with pytest.raises(UsageError, match="on the device meta, which holds no values"):
        trained(net().to("meta"), *images())
    with pytest.raises(UsageError, match="the model gives a tuple"):
        trained(Tells(), *images())


class Tells(nn.Module):
    """Returns a tuple, as many do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor) -> Any:
        return self.net(x), x


def test_frozen_parts_stay_to_the_bit_and_hooks_stay() -> None:
    model, heard = net(), []
    model[2].requires_grad_(False)
    kept = model[2].weight.clone()
    handle = model[2].register_forward_hook(lambda *_: heard.append(1))
    before = dict(model[2]._forward_hooks)
    training = Training(
        batch_size=4,
        optimizer=atlas.training.Optimizer(lr=0.1, weight_decay=0.1),
        schedule=TRAINING.schedule,
        validation=TRAINING.validation,
    )
    trained(model, *images(), training=training)
    assert torch.equal(model[2].weight, kept)
    assert not model[2].weight.requires_grad
    assert dict(model[2]._forward_hooks) == before
    assert heard
    handle.remove()


def test_a_part_in_eval_mode_stays_so_and_a_model_in_eval_mode_is_trained() -> None:
    """A BatchNorm whose statistics are to stay is put into eval mode; a model that was loaded is in it."""
    frozen, loaded = net(), net().eval()
    assert isinstance(frozen[1], nn.BatchNorm1d)
    assert isinstance(loaded[1], nn.BatchNorm1d)
    frozen[1].eval().requires_grad_(False)
    for model in (frozen, loaded):
        trained(model, *images())
    assert torch.equal(frozen[1].running_mean, torch.zeros(16))  # type: ignore[arg-type]
    assert not torch.equal(loaded[1].running_mean, torch.zeros(16))  # type: ignore[arg-type]


def test_a_model_that_changes_its_images_is_refused() -> None:
    class InPlace(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            x -= 0.5
            return super().forward(x)  # type: ignore[no-any-return]

    x, y = images()
    kept = x.clone()
    with pytest.raises(UsageError, match=r"must not change its input in place.*x = x - mean"):
        trained(InPlace(*net()), x, y)
    assert torch.equal(x, kept)


class Fails(nn.Sequential):
    """Raises in its n-th pass."""

    left = -1

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        if self.left == 0:
            raise KeyError("the model's own")
        return super().forward(x)


@pytest.mark.parametrize("left", [4, 9, 20])
def test_a_model_that_fails_in_the_middle_of_training_continues_later(tmp_path: Path, left: int) -> None:
    model = Fails(*net())
    model.left = left
    told = r"the model raised KeyError in .*epoch \d.*: \"the model's own\" \(.*test_edges.py, line \d+, in f"
    with pytest.raises(ModelError, match=told) as caught:
        trained(model, *images(), folder=tmp_path / "run")
    assert caught.value.exit_code == 11
    assert isinstance(caught.value.__cause__, KeyError)
    assert (tmp_path / "run/lock").read_bytes() == b""
    assert not any(isinstance(m, nn.Module) and not p.requires_grad for m in model for p in m.parameters())
    whole, resumed = (trained(Fails(*net()), *images(), folder=tmp_path / name) for name in ("whole", "run"))
    assert resumed.epochs == whole.epochs
    for a, b in zip(resumed.model.state_dict().values(), whole.model.state_dict().values(), strict=True):
        assert torch.equal(a, b)


class Grows(nn.Sequential):
    """Asks for more memory than any machine has, in the n-th step of training or of validation."""

    def __init__(self, *layers: nn.Module, training: bool, left: int = 4) -> None:
        super().__init__(*layers)
        self.at, self.left = training, left

    def forward(self, x: Tensor) -> Tensor:
        if self.training == self.at and self[2].weight.requires_grad == self.at:
            self.left -= 1
            if self.left == 0:
                torch.empty(2**55)
        return super().forward(x)


@pytest.mark.parametrize(
    ("training", "told"),
    [
        (True, r"out of memory in epoch 2, step 4: .*smaller training.batch_size \(with --allow-changes\)"),
        (False, r"out of memory in validation after epoch 1: .*smaller training.validation.batch_size"),
    ],
)
def test_out_of_memory_is_said_with_what_to_do_and_the_run_resumes(
    tmp_path: Path, training: bool, told: str
) -> None:
    method = {"method": Natural()} if training else {}
    with pytest.raises(OutOfMemoryError, match=told) as caught:
        trained(Grows(*net(), training=training), *images(), folder=tmp_path / "run", **method)
    assert caught.value.exit_code == 10
    mended = Grows(*net(), training=training, left=-1)
    resumed = trained(mended, *images(), folder=tmp_path / "run", **method)
    assert resumed.epochs == trained(net(), *images(), **method).epochs


def test_validation_attacks_no_more_images_at_a_time_than_training() -> None:
    class Counts(nn.Sequential):
        most = 0

        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                self.most = max(self.most, len(x))
            return super().forward(x)  # type: ignore[no-any-return]

    x, y = images(60)
    sizes = {}
    for own in (None, 7):
        model = Counts(*net())
        validation = Validation(size=40, attack=TRAINING.validation.attack, batch_size=own)
        trained(model, x, y, training=replace(TRAINING, validation=validation))
        sizes[own] = model.most
    assert sizes == {None: TRAINING.batch_size, 7: 7}


def test_a_state_of_another_version_is_refused_in_words(tmp_path: Path) -> None:
    """One that knows a number more, or less, than this version does."""
    from atlas.checkpoint import load_tensors, save_tensors

    trained(net(), *images(), folder=tmp_path)
    path = tmp_path / "state.safetensors"
    tensors, about = load_tensors(path)
    for progress in ({**about["progress"], "new": 1}, {"epoch": 1}, None):
        save_tensors(path, tensors, {**about, "progress": progress})
        with pytest.raises(CheckpointError, match="another version of atlas"):
            trained(net(), *images(), folder=tmp_path)


def test_a_damaged_file_of_metrics_is_named(tmp_path: Path) -> None:
    trained(net(), *images(), folder=tmp_path)
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_bytes(b"\xff" * metrics.stat().st_size)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is damaged"):
        trained(net(), *images(), folder=tmp_path)


def test_nothing_of_a_program_of_ones_own_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["mine.py", "--token", "secret"])
    trained(net(), *images(), folder=tmp_path)
    assert "secret" not in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_the_default_device_does_not_matter(tmp_path: Path, kind: Any) -> None:
    """Nothing is left to it: on the device meta a tensor has no values, so one that is would show."""
    optimizer = atlas.training.Optimizer(kind=kind)
    training = replace(TRAINING, ema=0.9, augment="pad-crop-flip", optimizer=optimizer)
    more: Any = {"training": training, "validation_set": images(7)}
    whole, model, (x, y) = trained(net(), *images(24), **more), net(), images(24)
    with torch.device("meta"):
        for _ in ("new", "finished"):
            result = trained(model, x, y, folder=tmp_path, **more)
            assert result.epochs == whole.epochs
    for a, b in zip(result.model.state_dict().values(), whole.model.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_a_state_of_another_version_is_left_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is damaged is put aside: the version that wrote it could still go on."""
    folder = Run(tmp_path)
    monkeypatch.setattr(checkpoint, "FORMAT", checkpoint.FORMAT + 1)
    for epoch in range(2):
        folder.save_state({"w": torch.ones(2)}, {"epoch": epoch})
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="use the version that wrote it"):
        folder.load_state()
    assert folder.state_path.exists()
    assert folder.previous_path.exists()


@contextmanager
def memory_limited_to(more: int) -> Iterator[None]:
    """As `ulimit -v` would: what this process has now, and so many bytes more."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory in use is not known here")
@pytest.mark.parametrize("space", [0.5, 1.5], ids=["for no map of it", "for one of two"])
def test_a_state_that_does_not_fit_into_memory_is_not_damaged(tmp_path: Path, space: float) -> None:
    folder = Run(tmp_path)
    for _ in range(2):
        folder.save_state({"w": torch.zeros(2**24)}, {})
    gc.collect()
    with (
        memory_limited_to(int(space * folder.state_path.stat().st_size)),
        pytest.raises(CheckpointError, match=r"state\.safetensors cannot be read now"),
    ):
        folder.load_state()
    assert folder.load_state() is not None
    assert not list(tmp_path.glob("*.damaged"))


def test_steps_that_are_too_short_for_the_ball_are_told_of() -> None:
    """As those of a preset for L-inf are in L2: nothing that they leave would be robust."""
    method = Atlas(alpha=1e-3, beta=0.5, attack=atlas.attacks.PGD(steps=3, step_size=0.01))
    told = r"the steps of method.attack go 0.03 in all, and eps is 2: most of the ball is out of its reach"
    with pytest.warns(UserWarning, match=told):
        fit(net(), images(), method, threat=atlas.L2(2.0), training=TRAINING, progress=False)


def test_a_folder_with_files_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match=r"holds other files \(thesis.tex\); choose a new or an empty one"):
        trained(net(), *images(), folder=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"thesis.tex"}


@pytest.mark.parametrize("left", [1, 4])
def test_a_model_that_ends_the_process_ends_training_with_an_error(left: int) -> None:
    class Ends(nn.Sequential):
        left = -1

        def forward(self, x: Tensor) -> Tensor:
            self.left -= 1
            if self.left == 0:
                raise SystemExit(0)
            return super().forward(x)  # type: ignore[no-any-return]

    model = Ends(*net())
    model.left = left
    with pytest.raises(ModelError, match=r"called sys\.exit"):
        trained(model, *images())
