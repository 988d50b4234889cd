"""Which path the kernels take on this machine, for the record of a run."""

import torch

from ._dispatch import device_obstacle, paths_used, requested_backend
from ._selfcheck import results, toolchain
from .attention import choose

__all__ = ["backend_report", "report"]


def backend_report(device: torch.device | None = None) -> dict[str, object]:
    """What would run on `device` (None: the current CUDA device, or the CPU) and what has run in this process.

    Plain JSON values. Keys: `requested` (what `MECHPLATEAU_KERNELS` requests), `default` (the path of
    `backend="auto"`), `why_not_triton` (None where it can run), `interpreter`, `device`, `toolchain`
    (triton and ptxas versions; None without CUDA), `self_checks` (verdict of each configuration tested on
    the card) and `used` (paths run so far, by operation).
    """
    if device is None:
        cuda = torch.cuda.is_available()
        device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    cuda = device.type == "cuda"
    wanted, _ = requested_backend("auto")
    obstacle = device_obstacle(device)
    return {
        "requested": wanted,
        "default": "torch" if wanted == "torch" or obstacle else "triton",
        "why_not_triton": obstacle,
        "interpreter": device.type == "cpu" and obstacle is None,
        "device": torch.cuda.get_device_name(device) if cuda else device.type,
        "toolchain": toolchain() if cuda and obstacle is None else None,
        "self_checks": results(),
        "used": paths_used(),
    }


def report(device: torch.device | None = None) -> str:
    """Which algorithm attention takes and why, in words: the table, what this machine runs, and what has run."""
    known = backend_report(device)
    lines = ["attention algorithms:"]
    width = max(len(name) for name in choose.TABLE)
    for name, (backend, positions, what) in choose.TABLE.items():
        lines.append(f"  {name:<{width}}  {backend:<6}  positions {positions:<9}  {what}")
    why = f" ({known['why_not_triton']})" if known["why_not_triton"] else ""
    lines.append(f"on {known['device']}: {known['default']}{why}")
    lines += [f"{op} has run: {', '.join(names)}" for op, names in choose.used().items()]
    return "\n".join(lines)
