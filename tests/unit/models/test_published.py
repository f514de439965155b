"""Published robust weights load into `cnn-small` by their own names and give their known accuracy."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from atlas.models import build

WEIGHTS = Path(__file__).parents[4] / "shared" / "models" / "wong_mnist_fgsm.safetensors"
RAW = Path(os.environ.get("ATLAS_DATA", "data")) / "MNIST" / "raw"


@pytest.mark.skipif(not WEIGHTS.exists(), reason=f"the published weights {WEIGHTS.name} are not here")
@pytest.mark.skipif(not RAW.exists(), reason="the full MNIST is not in $ATLAS_DATA")
def test_wong_fgsm_model_is_98_50_percent_accurate() -> None:
    images = np.frombuffer((RAW / "t10k-images-idx3-ubyte").read_bytes(), np.uint8, offset=16)
    labels = np.frombuffer((RAW / "t10k-labels-idx1-ubyte").read_bytes(), np.uint8, offset=8)
    model = build("cnn-small").eval()
    model.load_state_dict(load_file(WEIGHTS))
    with torch.no_grad():
        logits = model(torch.tensor(images).view(-1, 1, 28, 28) / 255)
    correct = logits.argmax(1) == torch.tensor(labels)
    assert correct.sum().item() == 9850
