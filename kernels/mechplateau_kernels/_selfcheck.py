"""Trust in a compiled kernel: the first use of a configuration on a card runs a small exact test.

Some ptxas versions silently miscompile tensor-core kernels for Hopper. The test data are small
integers and powers of two, on which every intermediate is exact in the precision that was requested, so that
a right kernel gives the reference's bits and any other bit is a fault of the compiler or the card. Where float32
accuracy is promised they have more bits than tf32. A configuration is all that Triton compiles a kernel anew for,
the arguments' places in memory included (see `_launch`). A kernel that fails is not used again in the process: the
reference runs instead, and one line says so.
"""

from collections.abc import Callable
from typing import Any

import torch

from ._dispatch import say_once

__all__ = ["results", "toolchain", "trusted"]

_verdicts: dict[tuple[Any, ...], bool] = {}


def toolchain() -> str:
    """Triton's version and the ptxas that assembles its kernels."""
    import triton

    ptxas = triton.knobs.nvidia.ptxas
    return f"triton {triton.__version__}, ptxas {ptxas.version} ({ptxas.path})"


def trusted(
    op: str, device: torch.device, configuration: tuple[Any, ...], is_exact: Callable[..., bool]
) -> bool:
    """Whether this configuration's kernel may run on `device`; `is_exact(device, *configuration)` tests it.

    Always on the CPU (the interpreter compiles nothing). A configuration first met inside a CUDA graph
    capture cannot be tested there (the test reads results back) and is not trusted.
    """
    if device.type != "cuda":
        return True
    key = (op, device.index, *configuration)
    verdict = _verdicts.get(key)
    if verdict is None:
        if torch.cuda.is_current_stream_capturing():
            say_once(
                f"{op}: {configuration} is first met inside a graph capture, so the torch reference is "
                "captured; run it once before"
            )
            return False
        verdict = _verdicts[key] = is_exact(device, *configuration)
        if not verdict:
            card = torch.cuda.get_device_name(device)
            say_once(
                f"{op}: THE KERNEL COMPILED FOR {configuration} GIVES WRONG NUMBERS on {card} ({toolchain()}); "
                "the torch reference runs instead. A newer ptxas may help: set TRITON_PTXAS_PATH to one"
            )
    return verdict


def results() -> dict[str, str]:
    """Verdict of each configuration tested so far, for the record of a run."""
    return {
        f"{op} {' '.join(str(part) for part in configuration)}": "exact" if verdict else "WRONG"
        for (op, _, *configuration), verdict in _verdicts.items()
    }
