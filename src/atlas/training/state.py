"""The state of a run: its tensors, how far it has come, and which model it was started with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from atlas.checkpoint import digest, same_tensors
from atlas.config import ConfigDict
from atlas.distributed.process_group import ProcessGroup
from atlas.errors import CheckpointError
from atlas.methods import Method
from atlas.training.precision import puts_channels_last
from atlas.training.schedule import CollapseDetector, PlateauTracker
from atlas.training.settings import Training


class TrainState:
    """All tensors of a run: the model, its optimiser, its average and its best weights."""

    def __init__(self, model: nn.Module, method: Method, training: Training, group: ProcessGroup) -> None:
        self.model, self.group = model, group
        self.channels_last = puts_channels_last(training.channels_last, model, method)
        if self.channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in the stubs
        self.device = next(model.parameters()).device
        self.optimizer = training.optimizer.build(model.parameters())
        average = get_ema_multi_avg_fn(training.ema)  # type: ignore[no-untyped-call]
        with torch.device("cpu"):  # where its counter goes, whatever the default device is
            self.ema = AveragedModel(model, multi_avg_fn=average, use_buffers=True) if training.ema else None
        self.best: dict[str, Tensor] = {}

    @property
    def evaluated(self) -> nn.Module:
        """The model that is validated and kept: the average of the weights if there is one."""
        return self.ema.module if self.ema is not None else self.model

    def backward(self, loss: Tensor, weight: float = 1.0) -> Tensor:
        """Fresh gradients of the loss, of this weight among the ranks'; returns their norm, a scalar."""
        self.optimizer.zero_grad()
        weights = [p for p in self.model.parameters() if p.requires_grad]
        # Not into x', of which the Jacobian term has made a leaf that wants a gradient too.
        loss.backward(inputs=weights)  # type: ignore[no-untyped-call]
        self.group.mean_gradients(self.model, weight)
        self.group.mean_buffers(self.model, weight)
        gradients = [p.grad for p in weights if p.grad is not None]
        return torch.nn.utils.get_total_norm(gradients, foreach=True)

    def update(self, lr: float) -> None:
        """One step of the optimiser, and of the average."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        with torch.device("cpu"):  # where Adam counts its steps, whatever the default device is
            self.optimizer.step()
        if self.ema is not None:
            self.ema.update_parameters(self.model)

    def keep_best(self) -> None:
        self.best = {k: v.detach().clone() for k, v in self.evaluated.state_dict().items()}

    def return_to_best(self) -> None:
        """Load the best weights and reset the optimiser."""
        self.model.load_state_dict(self.best)
        if self.ema is not None:
            self.ema.module.load_state_dict(self.best)
        self.optimizer.state.clear()

    def tensors(self) -> dict[str, Tensor]:
        """The whole state, by dotted names."""
        parts: dict[str, Mapping[str, Tensor]] = {"model": self.model.state_dict(), "best": self.best}
        if self.ema is not None:
            parts["ema"] = self.ema.state_dict()
        for number, slots in self.optimizer.state_dict()["state"].items():
            parts[f"optimizer.{number}"] = {k: v for k, v in slots.items() if isinstance(v, Tensor)}
        named = {f"{part}.{k}": v for part, tensors in parts.items() for k, v in tensors.items()}
        # Dropout draws from torch's own generators.
        if self.device.type == "cuda":
            named["cuda_rng"] = torch.cuda.get_rng_state(self.device)
        return named | {"torch_rng": torch.get_rng_state()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load a state made by `tensors`."""
        try:
            self.model.load_state_dict(_under(tensors, "model"))
            if self.ema is not None:
                self.ema.load_state_dict(_under(tensors, "ema"))
            slots: dict[int, dict[str, Tensor]] = {}
            for key, tensor in _under(tensors, "optimizer").items():
                number, name = key.split(".", 1)
                slots.setdefault(int(number), {})[name] = tensor
            self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": slots})
            torch.set_rng_state(tensors["torch_rng"])
            if self.device.type == "cuda" and "cuda_rng" in tensors:  # not in the state of a CPU
                torch.cuda.set_rng_state(tensors["cuda_rng"], self.device)
        except (RuntimeError, KeyError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"the saved state does not fit this model and optimiser: {error}"
            ) from error
        self.best = {k: v.to(self.device) for k, v in _under(tensors, "best").items()}

    def was_trained_to(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether the model has the newest or the best weights of a state, because it was trained there."""
        return any(same_tensors(self.model.state_dict(), _under(tensors, part)) for part in ("model", "best"))


def _under(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """The tensors whose names start with ``part.``, without it."""
    return {k.removeprefix(part + "."): v for k, v in tensors.items() if k.startswith(part + ".")}


@dataclass
class Progress:
    """Counters, the sums of the current epoch, and the plateau tracker and collapse detector."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    rollbacks: int = 0
    ended: str | None = None
    seen: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    """Sums over the `seen` images of this epoch."""
    probes: int = 0
    probed: float = 0.0
    """Sum of the squared Jacobian norms that were probed in this epoch."""
    jacobian: float = 0.0
    """Their mean in the last epoch that had any."""
    plateau: PlateauTracker = field(default_factory=PlateauTracker)
    collapse: CollapseDetector = field(default_factory=CollapseDetector)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Progress:
        """From what `dataclasses.asdict` made; older versions wrote "guide" and "watch"."""
        rest = dict(table)
        plateau = rest.pop("guide" if "guide" in rest else "plateau")
        collapse = rest.pop("watch" if "watch" in rest else "collapse")
        return cls(**rest, plateau=PlateauTracker(**plateau), collapse=CollapseDetector(**collapse))

    def add(self, means: Mapping[str, float], count: int) -> None:
        """Add the means over a batch of `count` images."""
        self.seen += count
        for name, mean in means.items():
            self.sums[name] = self.sums.get(name, 0.0) + mean * count

    def add_probe(self, jacobian: float) -> None:
        self.probes += 1
        self.probed += jacobian
        self.jacobian = self.probed / self.probes

    def means(self) -> dict[str, float]:
        return {name: total / self.seen for name, total in self.sums.items()}

    def next_epoch(self) -> None:
        self.epoch += 1
        self.batch = self.seen = self.probes = 0
        self.probed = 0.0
        self.sums = {}


def describe_model(model: nn.Module, *, built_from_config: bool) -> ConfigDict:
    """What is known of a model before it is trained, as a plain table.

    If a configuration says how to build the model, its initial weights follow from that, up to rounding on
    another machine, and only its structure is described.
    """
    layers = re.sub("0x[0-9a-fA-F]+", "", str(model))
    structure = {"layers": layers, "frozen": [k for k, p in model.named_parameters() if not p.requires_grad]}
    return structure if built_from_config else {**structure, "weights": digest(model.state_dict())}
