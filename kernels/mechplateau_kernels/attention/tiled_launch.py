"""Launches of the tiled kernels: the sets as the kernels read them, fresh tensors out. Imports triton."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor

from .._launch import LAUNCH_OPTIONS, allocate
from . import tiled
from .configs import (
    TiledConfig,
    effective_precision,
    tiled_columns_config,
    tiled_forward_config,
    tiled_rows_config,
)
from .kind import Kind, Sets
from .sets import PositionSet

__all__ = ["backward", "forward", "settled"]

INTERPRETED = not isinstance(tiled.forward_kernel, triton.JITFunction)


class _Packed:
    """The sets in the form that the kernels read."""

    def __init__(self, sets: Sets, kind: Kind, like: Tensor) -> None:
        chosen = [*sets.metric, *(x for x in (sets.allowed, sets.intervene) if x is not None)]
        coded = [i for i, one in enumerate(chosen) if one.query_codes is not None]
        listed = [i for i, one in enumerate(chosen) if one.query_codes is None and one.indices is not None]
        rows = tuple(
            (
                one.low,
                one.high,
                one.first,
                coded.index(i) if i in coded else 0,
                listed.index(i) if i in listed else 0,
            )
            for i, one in enumerate(chosen)
        )
        self.bounds = _bounds(rows, like.device)
        self.codes = _stack_codes([chosen[i] for i in coded], like)
        self.lists = _stack_lists([chosen[i] for i in listed], like)
        self.constants = {
            "CODED": sum(1 << i for i in coded),
            "LISTED": sum(1 << i for i in listed),
            "K": self.lists.shape[3] if listed else 1,
        }

    @property
    def pointers(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.bounds, self.codes, self.lists

    @property
    def samples(self) -> tuple[int, int]:
        """Of the codes and of the lists: 1 where all samples share them."""
        return self.codes.shape[2], self.lists.shape[1]


@lru_cache(1024)
def _bounds(rows: tuple[tuple[int, ...], ...], device: torch.device) -> Tensor:
    """Kept: a copy to the device at every call would wait for it, and cannot be captured in a graph."""
    return torch.tensor(rows or ((0,) * 5,), dtype=torch.int32, device=device)


def _stack_codes(sets: Sequence[PositionSet], like: Tensor) -> Tensor:
    pairs = [
        (one.query_codes, one.key_codes)
        for one in sets
        if one.query_codes is not None and one.key_codes is not None
    ]
    if not pairs:
        return torch.empty(1, 2, 1, 1, dtype=torch.int32, device=like.device)
    samples = max(x.shape[0] for pair in pairs for x in pair)
    return torch.stack([torch.stack([x.expand(samples, -1) for x in pair]) for pair in pairs]).int()


def _stack_lists(sets: Sequence[PositionSet], like: Tensor) -> Tensor:
    lists = [one.indices for one in sets if one.indices is not None]
    if not lists:
        return torch.empty(1, 1, 1, 1, dtype=torch.int32, device=like.device)
    samples, longest = max(x.shape[0] for x in lists), max(1, *(x.shape[2] for x in lists))
    padded = [
        torch.nn.functional.pad(x, (0, longest - x.shape[2]), value=-1).expand(samples, -1, -1) for x in lists
    ]
    return torch.stack(padded).int()


def _strides(x: Tensor) -> tuple[int, int, int]:
    """Strides of batch, position and head."""
    return x.stride(0), x.stride(1), x.stride(2)


def settled(q: Tensor, v: Tensor, kind: Kind) -> tuple[str, str]:
    """How products are taken, and the name block sizes are found under."""
    if q.dtype != torch.float32:
        return "tf32", str(q.dtype).removeprefix("torch.")
    precision = kind.precision
    if precision == "auto":
        precision = "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    precision = effective_precision(precision, q.shape[3], v.shape[3])
    return precision, precision


def _constants(
    config: TiledConfig, q: Tensor, v: Tensor, c: Tensor | None, kind: Kind, packed: _Packed
) -> dict[str, Any]:
    return {
        "D": q.shape[3],
        "DV": v.shape[3],
        "BM": config.BM,
        "BN": config.BN,
        "BD": config.BD,
        "SOFTMAX": kind.softmax,
        "CAUSAL": kind.causal,
        "CAP": kind.soft_cap > 0,
        "BIAS": kind.softmax and kind.intervene and kind.bias != 0.0,
        "N_SETS": kind.n_sets,
        "ALLOWED": kind.allowed,
        "INTERVENE": kind.intervene and (c is not None or kind.c != 1.0),
        "C_POINTER": c is not None,
        "PRECISION": settled(q, v, kind)[0],
        # The interpreter multiplies bfloat16 by its raw bit patterns.
        "WIDEN": INTERPRETED and q.dtype != torch.float32,
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
        **packed.constants,
        **LAUNCH_OPTIONS,
    }


def forward(
    q: Tensor, k: Tensor, v: Tensor, c: Tensor | None, sets: Sets, kind: Kind
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `blocked.forward`, and the logarithm of each row's sum of exponentials, `[batch, head, pos]`."""
    batch, pos, heads, _ = q.shape
    per_row = pos if kind.statistics else 0

    def rows(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return allocate((batch, heads, *shape), dtype, q.device)

    output = allocate((batch, pos, heads, v.shape[3]), v.dtype, v.device)
    row_mass, set_mass, lse = rows(pos), rows(kind.n_sets, pos), rows(pos)
    most, entropy, place = rows(per_row), rows(per_row), torch.empty(
        batch, heads, per_row, dtype=torch.int64, device=q.device
    )  # fmt: skip
    results = (output, row_mass, set_mass, most, place, entropy, lse)
    if batch == 0:
        return results
    config = tiled_forward_config(settled(q, v, kind)[1], q.shape[3], v.shape[3])
    packed = _Packed(sets, kind, q)
    tiled.forward_kernel[(batch * heads * triton.cdiv(pos, config.BM),)](
        q, k, v, *packed.pointers, row_mass if c is None else c,
        output, row_mass, set_mass, most, place, entropy, lse,
        kind.scale, kind.soft_cap, kind.bias, kind.c, pos, heads, *packed.samples,
        *_strides(q), *_strides(k), *_strides(v), *_strides(output),
        BV=config.BVALL, BS=max(2, triton.next_power_of_2(max(1, kind.n_sets))), STATISTICS=bool(kind.statistics),
        **_constants(config, q, v, c, kind, packed),
    )  # fmt: skip
    return results


def backward(
    grad_output: Tensor,
    grad_row: Tensor | None,
    grad_set: Tensor | None,
    grad_entropy: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    c: Tensor | None,
    sets: Sets,
    kind: Kind,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v. What they need of the forward pass is made again: nothing was kept of it."""
    batch, pos, heads, d_head = q.shape
    grad_q = allocate((batch, pos, heads, d_head), q.dtype, q.device)
    grad_k = allocate((batch, pos, heads, d_head), k.dtype, k.device)
    grad_v = allocate((batch, pos, heads, v.shape[3]), v.dtype, v.device)
    if batch == 0:
        return grad_q, grad_k, grad_v
    if kind.n_sets == 0:
        grad_set = None
    mass = mean_log = delta = lse = grad_output
    if kind.softmax or grad_entropy is not None:
        # Of the rows' statistics only the entropy is needed, for its own gradient.
        again = kind._replace(statistics="entropy" if grad_entropy is not None else "")
        output, mass, set_mass, _, _, entropy, lse = forward(q, k, v, c, sets, again)
        delta = (grad_output.float() * output.float()).sum(-1).transpose(1, 2)
        if grad_row is not None:
            delta = delta + grad_row * mass
        if grad_set is not None:
            delta = delta + (grad_set * set_mass).sum(2)
        delta = delta.contiguous()
        if grad_entropy is not None:
            # Σ a log a / Σ a
            mean_log = torch.where(mass > 0, torch.where(mass > 0, mass, 1.0).log() - entropy, 0.0)
    packed = _Packed(sets, kind, q)
    mode = settled(q, v, kind)[1]
    shared = (
        lse, delta, *(q if x is None else x.contiguous() for x in (grad_row, grad_set, grad_entropy)), mass, mean_log
    )  # fmt: skip
    numbers = (kind.scale, kind.soft_cap, kind.bias, kind.c, pos, heads, *packed.samples)
    strides = (*_strides(q), *_strides(k), *_strides(v), *_strides(grad_output))
    masses = {
        "GRAD_ROW": grad_row is not None,
        "GRAD_SET": grad_set is not None,
        "GRAD_ENTROPY": grad_entropy is not None,
    }
    factor = q if c is None else c
    config = tiled_rows_config(mode, d_head, v.shape[3])
    tiled.rows_kernel[(batch * heads * triton.cdiv(pos, config.BM),)](
        q, k, v, grad_output, *packed.pointers, factor, *shared, grad_q, *numbers, *strides, *_strides(grad_q),
        BV=config.BV, BDALL=config.BDALL, **masses, **_constants(config, q, v, c, kind, packed),
    )  # fmt: skip
    config = tiled_columns_config(mode, d_head, v.shape[3])
    tiled.columns_kernel[(batch * heads * triton.cdiv(pos, config.BM),)](
        q, k, v, grad_output, *packed.pointers, factor, *shared, grad_k, grad_v, *numbers, *strides,
        *_strides(grad_k), *_strides(grad_v),
        BV=config.BV, BDALL=config.BDALL, BVALL=config.BVALL, **masses,
        **_constants(config, q, v, c, kind, packed),
    )  # fmt: skip
    return grad_q, grad_k, grad_v
