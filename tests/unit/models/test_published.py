"""Published robust weights load into `cnn-small` by their own names and give their known accuracy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from atlas.data import load
from atlas.models import build

WEIGHTS = Path(__file__).parents[4] / "shared" / "models" / "wong_mnist_fgsm.safetensors"


@pytest.mark.skipif(not WEIGHTS.exists(), reason=f"the published weights {WEIGHTS.name} are not here")
def test_wong_fgsm_model_is_98_50_percent_accurate(data_root: Path) -> None:
    test = load("mnist", train=False, root=data_root)
    model = build("cnn-small").eval()
    model.load_state_dict(load_file(WEIGHTS))
    with torch.no_grad():
        logits = model(test.x / 255)
    assert (logits.argmax(1) == test.y).sum().item() == 9850
