"""What a run was computed with: versions, machine, threads, kernels."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

import torch

import mechplateau_kernels as mk

ARITHMETIC = 3
"""Counts up with each change after which the same configuration gives numbers that differ by rounding.

1: every row computed by itself, torch's own GELU; 2: the first layer from a table, the MLP in blocks of rows;
3: the regression model's blocks by hand (other models: as 2).
"""

_PACKAGES = ("mechplateau", "torch", "triton", "transformer-lens", "numpy", "safetensors", "pyarrow")


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Versions, arithmetic, platform, threads and the kernels' path, as plain data for `environment.json`."""
    return {
        "arithmetic": ARITHMETIC,
        "packages": {name: _version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "threads": torch.get_num_threads(),
        "kernels": mk.backend_report(device),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """The processor's name; `platform.processor()` is empty on many Linux machines."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
