"""What a time was measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch


def machine(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Processor, threads and versions; and how busy the machine was, because that decides the spread."""
    place = torch.device(device)
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(place) if place.type == "cuda" else str(place),
        "cpu": _cpu(Path("/proc/cpuinfo")),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished its work: a GPU runs asynchronously."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _cpu(cpuinfo: Path) -> str:
    """The processor's name; Linux tells it in this file."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
