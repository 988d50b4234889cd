"""Which implementation runs: argument first, then `MECHPLATEAU_KERNELS`, then the device.

`auto` takes Triton for CUDA tensors wherever the kernel can run, and otherwise the torch reference,
saying why once. Requesting Triton (by argument or variable) where it cannot run is an error, never a
silent change of path.
"""

import importlib.util
import logging
import os
import sys
from contextlib import AbstractContextManager, nullcontext

import torch

__all__ = [
    "DTYPES",
    "BackendUnavailable",
    "autocast_dtype",
    "choose_backend",
    "device_obstacle",
    "full_precision",
    "paths_used",
    "requested_backend",
    "say_once",
]

ENVIRONMENT_VARIABLE = "MECHPLATEAU_KERNELS"
BACKENDS = ("auto", "triton", "torch")
MINIMUM_CAPABILITY = (8, 0)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""What the operations take; of these, float64 by the references only."""

logger = logging.getLogger("mechplateau_kernels")

TRITON_INSTALLED = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "y", "yes")
"""Whether kernels run on the CPU, in Triton's interpreter (slow: for tests); settled at import."""

_used: dict[str, set[str]] = {}
_said: set[str] = set()


class BackendUnavailable(RuntimeError):
    """Triton was requested where it cannot run."""


def say_once(message: str) -> None:
    if message not in _said:
        _said.add(message)
        logger.warning(message)


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype of autocast where it is on; some devices (meta) know no autocast."""
    known = device.type in ("cpu", "cuda") or torch.amp.is_autocast_available(device.type)
    if known and torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return None


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Autocast off, where it is on: the references choose their own precision."""
    if autocast_dtype(device) is not None:
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def requested_backend(backend: str) -> tuple[str, str]:
    """The requested backend, and where the request comes from."""
    if backend not in BACKENDS:
        raise ValueError(f"backend: expected one of {', '.join(BACKENDS)}; got {backend!r}")
    if backend != "auto":
        return backend, f'backend="{backend}"'
    from_environment = os.environ.get(ENVIRONMENT_VARIABLE, "").strip().lower() or "auto"
    if from_environment not in BACKENDS:
        raise ValueError(
            f"{ENVIRONMENT_VARIABLE}: expected one of {', '.join(BACKENDS)}; got {from_environment!r}"
        )
    return from_environment, f"{ENVIRONMENT_VARIABLE}={from_environment}"


_capabilities: dict[torch.device, tuple[int, int]] = {}


def _capability(device: torch.device) -> tuple[int, int]:
    if torch.compiler.is_compiling():
        return MINIMUM_CAPABILITY  # a trace cannot know it; an older card then fails at the launch
    if device not in _capabilities:
        _capabilities[device] = torch.cuda.get_device_capability(device)
    return _capabilities[device]


def device_obstacle(device: torch.device) -> str | None:
    """Why Triton cannot run on this device, or None."""
    if not TRITON_INSTALLED:
        return "triton is not installed"
    if device.type == "cuda":
        if torch.version.cuda is None:
            return "the kernels were written for NVIDIA cards only"
        capability = _capability(device)
        if capability < MINIMUM_CAPABILITY:
            return f"the card's compute capability is {capability[0]}.{capability[1]}, and 8.0 is needed"
        return None
    if device.type == "cpu" and INTERPRETED:
        return None
    if device.type == "cpu":
        return (
            "the tensors are on the CPU (TRITON_INTERPRET=1, set before Python starts, runs it there, slowly)"
        )
    return f"the tensors are on a {device.type} device"


def choose_backend(op: str, backend: str, device: torch.device, obstacle: str | None = None) -> str:
    """`"triton"` or `"torch"` for this call of `op`; `obstacle` is why its own kernel cannot take it.

    Raises `BackendUnavailable` where Triton was requested and cannot run, `ValueError` for an unknown
    backend.
    """
    wanted, asker = requested_backend(backend)
    tracing = torch.compiler.is_compiling()
    if wanted == "torch":
        chosen = "torch"
    else:
        obstacle = device_obstacle(device) or obstacle
        if obstacle is None:
            chosen = "triton"
        elif wanted == "triton":
            raise BackendUnavailable(
                f"{op}: {asker} requests Triton, which cannot run here: {obstacle}; "
                f'use backend="auto" or {ENVIRONMENT_VARIABLE}=auto'
            )
        else:
            chosen = "torch"
            # On a CPU nothing else was to be expected, and in a notebook it would be a box of errors.
            quiet = device.type == "cpu" and "ipykernel" in sys.modules
            if not quiet and not tracing:
                what = op if device.type == "cuda" else "CPU tensors"
                say_once(f"{what}: the torch reference runs, not Triton: {obstacle}")
    if not tracing:
        _used.setdefault(op, set()).add(chosen)
    return chosen


def paths_used() -> dict[str, list[str]]:
    """Which implementations each operation has run so far in this process."""
    return {op: sorted(paths) for op, paths in sorted(_used.items())}
