"""Sweeps whose runs take no time: the curves of their epochs are given."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atlas import presets
from atlas.runs import Run
from atlas.sweeps import Sweep, work
from atlas.sweeps.results import TrialResult
from atlas.sweeps.study import space_from_options
from atlas.training import RunConfig, StopTraining

PRESET = "demo-atlas-1"
Curve = Callable[[RunConfig], Sequence[float]]
"""Validation robust accuracy by epoch, or an error that ends the run there."""


def fake_training(monkeypatch: pytest.MonkeyPatch, curve: Curve, *, drawn: bool = False) -> list[RunConfig]:
    """Let trials follow the curve; the configurations that were trained, in their order.

    drawn: whether the figure is drawn, which takes longer than all else.
    """
    trained: list[RunConfig] = []

    def train(config: RunConfig, folder: Path, *, on_epoch: Any, **rest: Any) -> Any:
        trained.append(config)
        place = Run(folder)
        place.path.mkdir(parents=True, exist_ok=True)
        place.write_config(config.table(), "run")
        records: list[dict[str, Any]] = []
        for epoch, robust in enumerate(curve(config)):
            if isinstance(robust, BaseException):
                raise robust
            is_best = robust > max((r["val_robust"] for r in records), default=-1.0)
            fell = bool(records) and robust < records[-1]["val_robust"] - 0.5
            record = {"kind": "epoch", "epoch": epoch, "val_robust": robust, "val_clean": 0.9}
            records.append({**record, "best": is_best, "collapse": fell})
            place.metrics_path.write_text("".join(json.dumps(r) + "\n" for r in records))
            try:
                on_epoch(records)
            except StopTraining:
                break
        best = max(r["val_robust"] for r in records)
        return SimpleNamespace(best_robust=best, model=None, epochs=records)

    monkeypatch.setattr("atlas.sweeps.worker.train", train)
    monkeypatch.setattr("atlas.sweeps.worker.held_out", lambda config, root: range(100))
    if not drawn:
        monkeypatch.setattr("atlas.sweeps.results.draw", lambda *arguments: None)
    return trained


def small_sweep(**rest: Any) -> Sweep:
    """A sweep of the preset; `space` as words of the command line, `ranges` and `choices`."""
    _, table = presets.load_preset(PRESET)
    words = [rest.pop(name, ()) for name in ("grid", "ranges", "choices")]
    asked = space_from_options(RunConfig.of(table), *words)
    return Sweep(PRESET, table, asked, grid=bool(words[0]), **rest)


def run(sweep: Sweep, folder: Path, trials: int | None = None) -> tuple[list[TrialResult], list[str]]:
    """The outcomes, and what was said."""
    said: list[str] = []
    found = work(sweep, trials, folder, None, said.append, progress=False)
    return found, said
