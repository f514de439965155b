"""The folder of a run: who works in it, its configuration, its states, its weights.

config.json             the whole configuration and its hash
metrics.jsonl           one line a probe and one an epoch; bit for bit the same after a resume
timing.jsonl            starts and seconds, which are not
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

from atlas.checkpoint import load_tensors, save_tensors
from atlas.config import Table, differences, fingerprint
from atlas.disk import refuse_strangers, require_room, write_atomic
from atlas.errors import CheckpointError, DamagedError, UsageError


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
            refuse_strangers(self.path, [self.metrics.name, self.timing.name])
            return
        found = differences(self.read_config(), table) if self.config.exists() else []
        if found and not allow_changes:
            raise UsageError(
                f"{self.path} was made with another configuration: {'; '.join(found)}. Choose another "
                "folder, or allow changes (--allow-changes) to go on with the new values."
            )

    def write_config(self, table: Mapping[str, Any]) -> None:
        """Write the configuration down, unless it is there already."""
        if self.config.exists() and not differences(self.read_config(), table):
            return
        earlier = [*self.changed_from, fingerprint(self.read_config())] if self.begun else []
        whole = {"config": table, "hash": fingerprint(table), "command": _command()}
        whole |= {"changed_from": earlier} if earlier else {}
        write_atomic(self.config, (json.dumps(whole, indent=2, sort_keys=True) + "\n").encode())

    @property
    def changed_from(self) -> list[str]:
        """The hashes of configurations that the run had before, if it was changed on the way."""
        try:
            return list(json.loads(self.config.read_text()).get("changed_from", []))
        except (OSError, ValueError, AttributeError, TypeError, RecursionError):
            return []

    def read_config(self) -> Table:
        try:
            whole = json.loads(self.config.read_text())
            config, noted = whole["config"], whole["hash"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
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

    def validated_with(self) -> Table | None:
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

    def save_state(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Write a new state. The one before stays, and is all there is while the new one is written."""
        if self.state.exists():
            self.state.replace(self.previous)
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
                path.replace(path.with_suffix(".damaged"))
        if complaints:
            raise CheckpointError("; ".join(complaints) + ". No good state is left: start the run anew.")
        return None


def _command() -> str:
    """The command of ours that this process is; of somebody's own program nothing is written down."""
    program = Path(sys.argv[0])
    ours = program.name == "atlas" or program.parts[-2:] == ("atlas", "__main__.py")
    return shlex.join(["atlas", *sys.argv[1:]]) if ours else ""
