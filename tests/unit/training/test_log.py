"""What a run writes down: damaged metrics are refused, damaged times stop nothing."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import atlas
from atlas.errors import CheckpointError, DiskError
from atlas.runs import Run
from atlas.training import Schedule, Training, Validation, fit
from atlas.training.log import Log

TRAINING = Training(
    batch_size=4,
    schedule=Schedule(epochs=2, ramp_epochs=1),
    validation=Validation(size=3, attack=atlas.attacks.PGD(steps=2)),
)


def trained(folder: Path) -> Any:
    torch.manual_seed(0)
    x, y = torch.rand(12, 1, 4, 4), torch.arange(12) % 3
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    method = atlas.methods.Adv()
    return fit(
        model, (x, y), method, threat=atlas.Linf(0.1), training=TRAINING, folder=folder, progress=False
    )


def test_a_changed_number_in_the_metrics_is_refused(tmp_path: Path) -> None:
    trained(tmp_path)
    path = tmp_path / "metrics.jsonl"
    assert Run(tmp_path).records[-1].keys() >= {"val_clean", "val_robust"}
    path.write_text(path.read_text().replace('"lr": 0', '"lr": 1', 1))
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is damaged in line \d+: its checksum"):
        _ = Run(tmp_path).records
    with pytest.raises(CheckpointError, match="its checksum does not match"):
        trained(tmp_path)


def test_metrics_of_older_versions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    record = {"kind": "epoch", "epoch": 0, "step": 4, "val_clean": 0.5, "val_robust": 0.25}
    path.write_text(json.dumps(record) + "\n" + '{"kind": "ep')
    assert Run(tmp_path).records == [record]


@pytest.mark.parametrize("content", [b"\xff\xfe{", b"[1]\n", b'{"seconds": "long"}\n', b'{"seconds": NaN}\n'])
def test_damaged_times_stop_nothing(tmp_path: Path, content: bytes) -> None:
    trained(tmp_path)
    timing = tmp_path / "timing.jsonl"
    timing.write_bytes(timing.read_bytes() + content)
    before = Run(tmp_path).seconds
    assert before > 0
    again = trained(tmp_path)
    assert again.seconds == before
    timing.unlink()
    timing.mkdir()
    assert trained(tmp_path).seconds == 0.0


def test_metrics_that_cannot_be_synced_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    log = Log(Run(tmp_path))
    log.open(0, 0)
    log.add({"kind": "probe", "epoch": 0, "step": 1, "jacobian": 1.0})
    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(DiskError, match=r"metrics\.jsonl: Input/output error"):
        log.flush()
