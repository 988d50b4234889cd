"""What every attention operation checks about its arguments; only shapes, dtypes and devices are looked at."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._dispatch import DTYPES, autocast_dtype
from .sets import PositionSet, as_set

__all__ = [
    "autocast",
    "check_factor",
    "check_inputs",
    "check_precision",
    "checked_set",
    "checked_sets",
    "checked_statistics",
]

PRECISIONS = ("auto", "tf32x3", "ieee", "tf32")


def check_inputs(op: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        raise TypeError(
            f"{op}: expected tensors q, k, v; got {', '.join(type(x).__name__ for x in (q, k, v))}"
        )
    if not (q.dim() == k.dim() == v.dim() == 4) or q.shape != k.shape or q.shape[:3] != v.shape[:3]:
        raise ValueError(
            f"{op}: expected q, k [batch, pos, head, d_head] and v [batch, pos, head, d_v]; "
            f"got {list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
        )
    if not (q.dtype == k.dtype == v.dtype) or q.dtype not in DTYPES:
        raise ValueError(
            f"{op}: expected one floating dtype of 16 to 64 bits for q, k, v; "
            f"got {q.dtype}, {k.dtype}, {v.dtype}"
        )
    if not (q.device == k.device == v.device):
        raise ValueError(
            f"{op}: expected q, k, v on one device; "
            f"got {q.device}, {k.device}, {v.device}: move them with .to()"
        )
    if 0 in q.shape[1:] or v.shape[3] == 0:
        raise ValueError(
            f"{op}: expected no empty dimension but the batch; got {list(q.shape)}, v {list(v.shape)}"
        )


def checked_set(op: str, name: str, chosen: PositionSet | Tensor, q: Tensor) -> PositionSet:
    """The set, after a check that it fits q."""
    batch, pos = q.shape[:2]
    if isinstance(chosen, Tensor):
        shaped = chosen.unsqueeze(0) if chosen.dim() == 2 else chosen
        # Compared one by one: torch.compile with dynamic shapes cannot look a shape up in a tuple of shapes.
        fits = shaped.dim() == 3 and shaped.shape[1] == pos and shaped.shape[2] == pos
        if chosen.dtype != torch.bool or not fits or (shaped.shape[0] != 1 and shaped.shape[0] != batch):
            raise ValueError(
                f"{op}: {name}: expected bool [{pos}, {pos}] or [{batch}, {pos}, {pos}] "
                f"(query, key); got {chosen.dtype} {list(chosen.shape)}"
            )
    elif not isinstance(chosen, PositionSet):
        raise TypeError(f"{op}: {name}: expected a bool tensor or a set; got {type(chosen).__name__}")
    found = as_set(chosen)
    for held in (found.entries, found.indices, found.query_codes, found.key_codes):
        if held is None:
            continue
        if held.shape[1] != pos or (held.shape[0] != 1 and held.shape[0] != batch):
            raise ValueError(
                f"{op}: {name}: {found.name} was made for {held.shape[0]} samples of {held.shape[1]} positions; "
                f"q has {batch} of {pos}"
            )
        if held.device != q.device:
            raise ValueError(
                f"{op}: {name} is on {held.device} and q on {q.device}; move it there with .to()"
            )
    return found


def checked_sets(op: str, name: str, sets: Sequence[PositionSet | Tensor], q: Tensor) -> list[PositionSet]:
    if isinstance(sets, (PositionSet, Tensor, str)):
        raise TypeError(
            f"{op}: {name}: expected a list of sets; got one {type(sets).__name__}: put it into a list"
        )
    return [checked_set(op, f"{name}[{i}]", chosen, q) for i, chosen in enumerate(sets)]


def checked_statistics(op: str, row_statistics: bool | str) -> str:
    """As `Kind` has them."""
    if row_statistics not in (True, False, "entropy"):
        raise ValueError(f'{op}: row_statistics: expected True, False or "entropy"; got {row_statistics!r}')
    return "entropy" if row_statistics == "entropy" else "all" if row_statistics else ""


def check_precision(op: str, precision: str) -> None:
    if precision not in PRECISIONS:
        raise ValueError(f"{op}: precision: expected one of {', '.join(PRECISIONS)}; got {precision!r}")


def check_factor(op: str, c: float | Tensor, q: Tensor) -> None:
    if isinstance(c, (int, float)):  # asked first: while tracing, a number has no attributes to ask for
        return
    if not isinstance(c, Tensor):
        if isinstance(c, (str, bytes)) or not hasattr(c, "__float__"):
            raise TypeError(f"{op}: c: expected a float or a 0-d tensor; got {type(c).__name__}")
        return
    if c.dim() != 0:
        raise ValueError(f"{op}: c: expected a float or a 0-d tensor; got shape {list(c.shape)}")
    if c.device != q.device and c.device.type != "cpu":
        raise ValueError(f"{op}: c is on {c.device} and q on {q.device}; move it there with .to()")


def autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What autocast does to the inputs of a matrix product, where it is on."""
    dtype = autocast_dtype(q.device)
    if dtype is None or q.dtype == torch.float64:
        return q, k, v
    return q.to(dtype), k.to(dtype), v.to(dtype)
