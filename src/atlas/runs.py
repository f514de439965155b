"""The folder of a run: who works in it, its configuration, its states, its weights.

config.json             the whole configuration and its hash
metrics.jsonl           one line per probe and per epoch, with a checksum; the same after a resume
timing.jsonl            starts and seconds, which are not; nothing depends on it
tensorboard/            the metrics as TensorBoard events
state.safetensors       all that resuming needs, and state.previous.safetensors, the one before
best.safetensors        the weights of the best epoch
last.safetensors        the weights at the end
not-finite.json         what was not finite, where training broke off for that
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from atlas.checkpoint import load_tensors, same_tensors, save_tensors
from atlas.config import ConfigDict, differences, fingerprint
from atlas.errors import CheckpointError, DamagedError, UsageError
from atlas.files import disk_error, require_empty_dir, require_room, write_atomic

DAMAGED = ".damaged"
"""The ending of a state that was set aside because its checksum was wrong."""


class RunFolder:
    """Paths and files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.metrics = path / "metrics.jsonl"
        self.timing = path / "timing.jsonl"
        self.tensorboard = path / "tensorboard"
        self.state = path / "state.safetensors"
        self.previous = path / "state.previous.safetensors"
        self.best = path / "best.safetensors"
        self.last = path / "last.safetensors"
        self.not_finite = path / "not-finite.json"

    @property
    def begun(self) -> bool:
        """Whether there is a state to go on from: while a new one is written, the one before."""
        return self.state.exists() or self.previous.exists()

    def check_config(self, table: Mapping[str, Any], allow_changes: bool) -> None:
        """Refuse another configuration than the one that is there, unless changes are allowed."""
        if not self.config.exists() and not self.begun:
            require_empty_dir(self.path, [self.metrics.name, self.timing.name])
            return
        found = differences(self.read_config(), table) if self.config.exists() else []
        if found and not allow_changes:
            raise UsageError(
                f"{self.path} was made with another configuration: {'; '.join(found)}. Choose another "
                "folder, or allow changes (--allow-changes) to go on with the new values."
            )

    def write_config(self, table: Mapping[str, Any], run: str) -> None:
        """Write the configuration and the id of the run, unless it is there already."""
        if self.config.exists() and not differences(self.read_config(), table):
            return
        earlier = [*self.changed_from, fingerprint(self.read_config())] if self.begun else []
        whole = {"config": table, "hash": fingerprint(table), "command": _command(), "run": run}
        whole |= {"changed_from": earlier} if earlier else {}
        write_atomic(self.config, (json.dumps(whole, indent=2, sort_keys=True) + "\n").encode())

    @property
    def changed_from(self) -> list[str]:
        """The hashes of configurations that the run had before, if it was changed on the way."""
        earlier = self._noted("changed_from")
        return [str(known) for known in earlier] if isinstance(earlier, list) else []

    def _noted(self, key: str) -> Any:
        """What `config.json` says beside the configuration; None where it does not."""
        try:
            return json.loads(self.config.read_text()).get(key)
        except (OSError, ValueError, AttributeError, RecursionError):
            return None

    def read_config(self) -> ConfigDict:
        try:
            whole = json.loads(self.config.read_text())
            config, noted = whole["config"], whole["hash"]
        except (FileNotFoundError, NotADirectoryError) as error:
            raise CheckpointError(f"{self.path} is not the folder of a run: no {self.config.name}") from error
        except OSError as error:
            raise CheckpointError(f"{self.config} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(
                f"{self.path} is not the folder of a run: {self.config.name}: {error}"
            ) from error
        if not isinstance(config, dict):
            raise CheckpointError(f"{self.config} holds {type(config).__name__}; wanted a table")
        if fingerprint(config) != noted:
            raise CheckpointError(
                f"{self.config} was altered after it was written: expected hash {noted}, found "
                f"{fingerprint(config)}. Undo that, and change settings with --set and --allow-changes."
            )
        return config

    def validated_with(self) -> ConfigDict | None:
        """The threat and the validation attack of the configuration: states of older versions do not say."""
        config = self.read_config() if self.config.exists() else {}
        try:
            attack = config["training"]["validation"]["attack"]
            return {"threat": config["threat"], "training.validation.attack": attack}
        except (KeyError, TypeError):  # a configuration of the caller's own
            return None

    def require_room(self, weights: int, state: int) -> None:
        """Refuse a disk without room for the files of a run whose weights and states are so large, in bytes.

        Two states are there at a time, the best and the last weights, and a third while one is replaced.
        """
        files = (self.state, self.previous, self.best, self.last)
        there = sum(path.stat().st_size for path in files if path.exists())
        require_room(self.path, max(weights, 2 * state + 3 * weights - there))

    def save_weights(self, which: str, weights: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        save_tensors({"best": self.best, "last": self.last}[which], weights, about)

    def check_weights(self, path: Path, about: Mapping[str, Any]) -> None:
        """Refuse weights that another run has written, by what is noted in their file.

        Older versions noted the configuration alone, or nothing of a run by `fit`.
        """
        if "run" in about and self._noted("run") is not None:
            own = about["run"] == self._noted("run")
        else:
            known = [self._noted("hash"), *self.changed_from]
            own = known == [None] or about.get("config") in (None, *known)
        if not own:
            raise CheckpointError(
                f"{path} was written by another run than that of {self.path}. Copy the right file back, or "
                f"resume the run (atlas train --resume {self.path}), which exports it again"
            )

    def problem_with_best(self, weights: Mapping[str, Tensor]) -> str | None:
        """What is wrong with the file of the best weights, which should be these; None if nothing is."""
        if not self.best.exists():
            return f"{self.best} is missing"
        try:
            found, _ = load_tensors(self.best)
        except CheckpointError as error:
            return str(error)
        return (
            None if same_tensors(found, weights) else f"{self.best} holds other weights than the saved state"
        )

    def save_state(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Write a new state. The one before stays, and is all there is while the new one is written."""
        try:
            if self.state.exists():
                self.state.replace(self.previous)
        except OSError as error:
            raise disk_error(self.previous, 0, error) from error
        save_tensors(self.state, tensors, about)

    def load_state(self) -> tuple[dict[str, Tensor], dict[str, Any], list[str]] | None:
        """The newest good state, and what was said of damaged ones; None where none was ever saved."""
        complaints: list[str] = []
        for path in (self.state, self.previous):
            if not path.exists():
                continue
            try:
                return *load_tensors(path), complaints
            except DamagedError as error:
                complaints.append(str(error))
                # Out of the way, so that the next save does not put it in the place of the good one.
                path.replace(path.with_suffix(DAMAGED))
        if set_aside := sorted(path.name for path in self.path.glob(f"state*{DAMAGED}")):
            raise CheckpointError(
                "; ".join([*complaints, f"{self.path} holds no good state, only {', '.join(set_aside)}"])
                + ". Copy a good state back, or start the run again in another folder"
            )
        return None


def _command() -> str:
    """The command of ours that this process is; of somebody's own program nothing is written down."""
    program = Path(sys.argv[0])
    ours = program.name == "atlas" or program.parts[-2:] == ("atlas", "__main__.py")
    return shlex.join(["atlas", *sys.argv[1:]]) if ours else ""
