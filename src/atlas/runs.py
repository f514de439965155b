"""A training run on disk: its configuration, metrics, saved states and weights.

config.json             the whole configuration and its hash
metrics.jsonl           one line per probe and per epoch, with a checksum; the same after a resume
timing.jsonl            starts and seconds, which are not; nothing depends on it
tensorboard/            the metrics as TensorBoard events
state.safetensors       all that resuming needs, and state.previous.safetensors, the one before
best.safetensors        the weights of the best epoch
last.safetensors        the weights at the end
not-finite.json         what was not finite, if that ended the training
"""

from __future__ import annotations

import json
import math
import shlex
import sys
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from atlas import models
from atlas.checkpoint import load_tensors, same_tensors, save_tensors
from atlas.config import ConfigDict, check_arguments, differences, fingerprint
from atlas.distributed.launch import checked_device
from atlas.errors import CheckpointError, DamagedError, UsageError
from atlas.files import disk_errors, in_use, require_empty_dir, require_room, write_atomic

Record = dict[str, Any]
"""A line of the metrics: "kind" ("probe" or "epoch"), "epoch", "step" and numbers."""
RunState = Literal["finished", "unfinished", "in use", "failed", "not begun"]
DAMAGED = ".damaged"
"""The suffix of a state that was set aside because its checksum was wrong."""
CHECKSUM = "crc"
"""The last value of a line of metrics: the CRC-32 of the line without it."""


class Run:
    """The folder of a run. Nothing is read before it is asked for, and nothing is cached.

    Example:
        >>> run = Run.open("runs/demo-atlas-1")  # doctest: +SKIP
        >>> run.state, run.best["val_robust"], run.seconds  # doctest: +SKIP
        ('finished', 0.72, 41.5)
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_path = self.path / "config.json"
        self.metrics_path = self.path / "metrics.jsonl"
        self.timing_path = self.path / "timing.jsonl"
        self.tensorboard = self.path / "tensorboard"
        self.state_path = self.path / "state.safetensors"
        self.previous_path = self.path / "state.previous.safetensors"
        self.best_path = self.path / "best.safetensors"
        self.last_path = self.path / "last.safetensors"
        self.not_finite_path = self.path / "not-finite.json"

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """The run in this folder, which must have a configuration that was not altered."""
        run = cls(path)
        run.config  # noqa: B018  # which checks it
        return run

    # --- the configuration ---

    @property
    def config(self) -> ConfigDict:
        """The configuration as a plain table, checked against its hash."""
        try:
            whole = json.loads(self.config_path.read_text())
            config, expected = dict(whole["config"]), whole["hash"]
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise CheckpointError(
                f"{self.path} is not the folder of a run: {self.config_path.name} cannot be read: {error}"
            ) from error
        if fingerprint(config) != expected:
            raise CheckpointError(
                f"{self.config_path} was altered after it was written: expected hash {expected}, found "
                f"{fingerprint(config)}. Undo that, and change settings with --set and --allow-changes."
            )
        return config

    def noted(self, key: str) -> Any:
        """What `config.json` holds beside the configuration ("hash", "command", "run"), or None."""
        with suppress(OSError, ValueError, AttributeError, RecursionError):
            return json.loads(self.config_path.read_text()).get(key)
        return None

    @property
    def changed_from(self) -> list[str]:
        """The hashes of earlier configurations, if settings were changed on the way."""
        earlier = self.noted("changed_from")
        return [str(known) for known in earlier] if isinstance(earlier, list) else []

    def check_config(self, table: Mapping[str, Any], allow_changes: bool) -> None:
        """Refuse another configuration than the one that is there, unless changes are allowed."""
        if not self.config_path.exists():
            if not self.begun:
                require_empty_dir(self.path, [self.metrics_path.name, self.timing_path.name])
        elif (found := differences(self.config, table)) and not allow_changes:
            raise UsageError(
                f"{self.path} was made with another configuration: {'; '.join(found)}. Choose another "
                "folder, or allow changes (--allow-changes) to continue with the new values."
            )

    def write_config(self, table: Mapping[str, Any], run: str) -> None:
        """Write the configuration and the id of the run, unless it is there already."""
        if self.config_path.exists() and not differences(self.config, table):
            return
        whole = {"config": table, "hash": fingerprint(table), "command": _command(), "run": run}
        if self.begun:
            whole["changed_from"] = [*self.changed_from, fingerprint(self.config)]
        write_atomic(self.config_path, (json.dumps(whole, indent=2, sort_keys=True) + "\n").encode())

    # --- the course of training ---

    @property
    def begun(self) -> bool:
        """Whether there is a state to resume from: while a new one is written, the one before."""
        return self.state_path.exists() or self.previous_path.exists()

    @property
    def state(self) -> RunState:
        """How far training has come; "failed": it ended because numbers were not finite."""
        if self.last_path.exists() and self.best_path.exists():
            return "finished"
        if self.not_finite_path.exists():
            return "failed"
        if self.begun:
            return "in use" if in_use(self.path) else "unfinished"
        return "not begun"

    @property
    def records(self) -> list[Record]:
        """All lines of the metrics, checked, without a last one that is still being written."""
        path = self.metrics_path
        try:
            data = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
        return checked_records(path, data[: data.rfind(b"\n") + 1])

    @property
    def epochs(self) -> list[Record]:
        """The record of each epoch so far."""
        return [record for record in self.records if record["kind"] == "epoch"]

    @property
    def best(self) -> Record | None:
        """The record of the best epoch, whose weights were kept."""
        return next((record for record in reversed(self.epochs) if record.get("best")), None)

    @property
    def collapses(self) -> list[int]:
        """The epochs, from 0, in which a collapse was detected."""
        return [record["epoch"] for record in self.epochs if record.get("collapse")]

    @property
    def times(self) -> list[Record]:
        """The lines of `timing.jsonl` that can be read."""
        records = []
        with suppress(OSError):
            for line in self.timing_path.read_bytes().splitlines():
                with suppress(ValueError, TypeError, RecursionError):
                    records.append(dict(json.loads(line)))
        return records

    @property
    def seconds(self) -> float:
        """Time spent in epochs, over all starts of the run."""
        times = (record.get("seconds", 0.0) for record in self.times)
        return sum(t for t in times if isinstance(t, int | float) and 0 <= t < math.inf)

    # --- what it left ---

    def model(self, model: nn.Module | None = None, device: torch.device | str | None = None) -> nn.Module:
        """The model with the weights of the best epoch, in eval mode: see `load_model`."""
        return load_model(self.path, model, device)

    def evaluations(self) -> list[Path]:
        """The folders of its evaluations, finished or not."""
        found = {*self.path.glob("*/config.json"), *self.path.glob("evaluations/*/config.json")}
        # A run within a run, such as a surrogate, has metrics.
        return [path.parent for path in sorted(found) if not (path.parent / "metrics.jsonl").exists()]

    def check_weights(self, path: Path, about: Mapping[str, Any]) -> None:
        """Refuse weights that another run has written. Older versions did not note which did."""
        written_by, run = about.get("run"), self.noted("run")
        if None not in (written_by, run) and written_by != run:
            raise CheckpointError(
                f"{path} was written by another run than that of {self.path}. Copy the right file back, or "
                f"resume the run (atlas train --resume {self.path}), which exports it again"
            )

    def has_best(self, weights: Mapping[str, Tensor]) -> bool:
        """Whether the file of the best weights is there and holds these."""
        with suppress(CheckpointError):
            return same_tensors(load_tensors(self.best_path)[0], weights)
        return False

    # --- states ---

    def require_space(self, weights: int) -> None:
        """Refuse a disk that cannot hold a run whose weights have this size in bytes.

        A state holds them, their best, their average, and two numbers for each by the optimiser. Two states
        are there at a time, the best and the last weights, and a third while one is replaced.
        """
        files = (self.state_path, self.previous_path, self.best_path, self.last_path)
        there = sum(path.stat().st_size for path in files if path.exists())
        require_room(self.path, max(weights, (2 * 5 + 3) * weights - there))

    def save_state(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Write a new state. The one before stays, and is all there is while the new one is written."""
        with disk_errors(self.previous_path):
            if self.state_path.exists():
                self.state_path.replace(self.previous_path)
        save_tensors(self.state_path, tensors, about)

    def load_state(
        self, warn: Callable[[str], None] = lambda text: None
    ) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest good state, with a warning of damaged ones; None if none was ever saved."""
        for path in (self.state_path, self.previous_path):
            try:
                if path.exists():
                    return load_tensors(path)
            except DamagedError as error:
                # Moved away, so that the next save does not put it in the place of the good one.
                path.replace(path.with_suffix(DAMAGED))
                warn(f"{error}; resuming from the state before it")
        if set_aside := sorted(path.name for path in self.path.glob(f"state*{DAMAGED}")):
            raise CheckpointError(
                f"{self.path} holds no good state, only {', '.join(set_aside)}. Copy a good state back, or "
                "start the run again in another folder"
            )
        return None


def checksum(record: Record) -> str:
    """The checksum of a line of the metrics."""
    return f"{zlib.crc32(json.dumps(record).encode()):08x}"


def checked_records(path: Path, data: bytes) -> list[Record]:
    """The records of these lines. Lines of versions before 0.2 have no checksum, and none comes after one."""
    records, checksums = list[Record](), False
    for number, line in enumerate(data.splitlines(), 1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError(f"expected a table, got {str(record)[:50]}")
            found = record.pop(CHECKSUM, None)
            checksums = checksums or found is not None
            if checksums and found != checksum(record):
                raise ValueError("its checksum does not match")
        except (ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{path} is damaged in line {number}: {error}. Restore the file from a copy, or start again "
                "in another folder"
            ) from error
        records.append(record)
    return records


@check_arguments()
def load_model(
    weights: str | Path, model: nn.Module | None = None, device: torch.device | str | None = None
) -> nn.Module:
    """Load the model of a run's folder (its best epoch) or of a weights file, in eval mode.

    Args:
        weights: A run's folder, or a file of weights that a run wrote.
        model: A custom model to be filled. From a run's folder its factory is called; a weights file alone is
            never a reason to import and call what it names.
        device: Where to put the model; default: a GPU if there is one.

    Returns:
        The model.

    Raises:
        CheckpointError: if the file is damaged, of another run, or does not fit the model.

    Example:
        >>> model = atlas.load_model("runs/demo-atlas-1")  # doctest: +SKIP
    """
    weights = Path(weights)
    path = Run(weights).best_path if weights.is_dir() else weights
    tensors, about = load_tensors(path)
    if weights.is_dir():
        Run(weights).check_weights(path, about)
    if model is None:
        if "model" not in about or (":" in str(about["model"]) and not weights.is_dir()):
            raise CheckpointError(f"{path} is of a custom model: pass it as load_model(..., model=...)")
        model = _built_for(path, tensors, about)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise CheckpointError(f"{path} does not fit the model: {error}") from error
    return model.to(checked_device(device)).eval()


def build_model(about: Mapping[str, Any], seed: int = 0, device: str = "cpu") -> nn.Module:
    """The model that weights say they are of."""
    return models.build(
        about["model"],
        num_classes=about["num_classes"],
        shape=tuple(about["shape"]),
        normalize=about["normalize"],
        seed=seed,
        device=device,
    )


def _built_for(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> nn.Module:
    """The model that the file is of, unless it would take more memory than the file's tensors."""
    try:
        if ":" not in about["model"]:
            expected = {k: v.shape for k, v in build_model(about, device="meta").state_dict().items()}
            if expected != {k: v.shape for k, v in tensors.items()}:
                raise CheckpointError(
                    f"{path} does not fit the model {about['model']!r} that it says it is of"
                )
        return build_model(about)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not say what model it is of: {error}") from error


def _command() -> str:
    """The atlas command that this process is; of another program nothing is written down."""
    program = Path(sys.argv[0])
    ours = program.name == "atlas" or program.parts[-2:] == ("atlas", "__main__.py")
    return shlex.join(["atlas", *sys.argv[1:]]) if ours else ""
