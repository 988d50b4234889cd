"""Which device is meant, and whether it is there: checked here, before anything is put on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechplateau.errors import ConfigError

if TYPE_CHECKING:
    import torch

TRAINABLE = ("cpu", "cuda")
"""Kinds of device that training runs on."""
KNOWN = ("cpu", "cuda", "mps")
"""Kinds of device that a model can be looked at on; Apple's (mps) computes in float32 at most."""


def device_named(device: str | torch.device, kinds: tuple[str, ...] = KNOWN) -> torch.device:
    """The device of this name, known to be there.

    Args:
        device: "cpu", "cuda", "cuda:1" or "mps".
        kinds: the kinds of device that are allowed.

    Raises:
        ConfigError: it is no such name, or this machine has no such device.
    """
    import torch

    expected = ", ".join(kinds) + " or cuda:N"
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise ConfigError(f"device: expected {expected}, got {device!r}") from None
    if found.type not in kinds:
        raise ConfigError(f"device: expected {expected}, got {str(device)!r}")
    if found.type == "cuda":
        number = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (found.index or 0) >= number:
            there = f"cuda:0 to cuda:{number - 1}" if number else "none; use cpu"
            raise ConfigError(f"device: {found} is not there (CUDA devices of this machine: {there})")
    if found.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device: mps is not there (only a Mac with Apple's own processor has it); use cpu")
    return found
