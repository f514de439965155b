"""Images of the gallery as data URIs: x, x' and what was added, enlarged until it can be seen."""

from __future__ import annotations

import base64
import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from atlas.threat import Linf, Threat

LESS, MORE = (33, 102, 172), (178, 24, 43)
"""Blue where the attack darkened a gray pixel, red where it brightened it."""


def png(x: Tensor) -> str:
    """An image [C, H, W] in [0, 1] as a data URI; the first channel alone unless there are three."""
    levels = (x.clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    return _uri(levels[0] if len(levels) != 3 else np.moveaxis(levels, 0, 2))


def difference(x: Tensor, x_adv: Tensor, scale: float) -> str:
    """x' - x, `scale` times as large: around middle gray, and of gray images in blue and red on white."""
    change = ((x_adv - x) * scale).clamp(-1, 1)
    if len(change) == 3:
        return png(0.5 + change / 2)
    share = change[:1].abs().permute(1, 2, 0).numpy()
    end = np.where(change[:1].permute(1, 2, 0).numpy() < 0, np.array(LESS), np.array(MORE))
    return _uri((255 * (1 - share) + end * share).round().astype(np.uint8))


def enlarged(threat: Threat, x: Tensor, x_adv: Tensor) -> float:
    """By how much a perturbation is enlarged: its largest possible value (L-inf), or its own, becomes 1."""
    largest = threat.eps if isinstance(threat, Linf) else float((x_adv - x).abs().max())
    return 1 / largest if largest > 0 else 1.0


def _uri(pixels: np.ndarray) -> str:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
