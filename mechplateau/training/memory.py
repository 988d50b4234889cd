"""Memory: freed memory is kept for the next step, and running out of it is a one-line error.

Activations of tens of megabytes are otherwise handed back to the system at every step and come back as fresh pages
that must be zeroed: about an eighth of the paper's step (on CPUs with glibc).
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from mechplateau.config import RunConfig
from mechplateau.errors import RunError, UserError
from mechplateau.models.kinds import kind_of

# Parameters of glibc's mallopt and their default values.
_M_TRIM_THRESHOLD, _TRIM_DEFAULT = -1, 128 * 1024
_M_MMAP_MAX, _MMAP_DEFAULT = -4, 65536


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Inside the context, freed memory stays with the process; afterwards it is returned to the system."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallopt"):
        yield
        return
    libc.mallopt(_M_MMAP_MAX, 0)
    libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        libc.mallopt(_M_MMAP_MAX, _MMAP_DEFAULT)
        libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_DEFAULT)
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)


def check_memory(config: RunConfig, device: torch.device) -> None:
    """Raise UserError where weights and their gradients alone are larger than the memory there is.

    Without this, Linux would promise the memory and then kill the process, or another one.
    """
    parameters = sum(
        math.prod(shape) for shape in kind_of(config.model).shapes(config.model, config.task).values()
    )
    least, there = 2 * 4 * parameters, _memory(device)
    if there is not None and least > there:
        raise UserError(
            f"model: {parameters:,} weights and their gradients take {_gib(least)}, and {device} has {_gib(there)}; "
            "make the model smaller (its width or its number of layers)"
        )


@contextmanager
def too_little_explained() -> Iterator[None]:
    """Turn what is raised where memory runs out into a RunError that says what to do."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and not _TOO_LITTLE.search(str(error)):
            raise
        asked = re.search(r"allocate (\d+ bytes|[\d.]+ \w+)", str(error))
        what = f" ({asked[1]} more were needed)" if asked else ""
        raise RunError(
            f"out of memory{what}; make training.batch_size, evaluation.samples or model.d_model smaller; "
            "what was saved is still there"
        ) from None


_TOO_LITTLE = re.compile("(?i)can't allocate memory|not enough memory|out of memory")


def _memory(device: torch.device) -> int | None:
    """Bytes of a device's memory; on a CPU those that this process may use; None if it is unknown."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            there = min(there, int(Path(limit).read_text()))
        except (OSError, ValueError):  # another kind of group, or no limit
            continue
    return there


def _gib(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"
