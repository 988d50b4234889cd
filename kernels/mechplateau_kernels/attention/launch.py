"""Launches of the tile kernels: shapes and strides in, fresh tensors out. Imports triton.

Tensors come as `_launch.regular` makes them, the masses' gradients contiguous.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from .._launch import LAUNCH_OPTIONS, allocate
from . import tile
from .configs import Options, TileConfig, backward_config, effective_precision, forward_config

__all__ = ["backward", "forward"]

INTERPRETED = not isinstance(tile.forward_kernel, triton.JITFunction)


def _strides(x: Tensor) -> tuple[int, int, int]:
    """Strides of batch, position and head."""
    return x.stride(0), x.stride(1), x.stride(2)


def _settled(q: Tensor, v: Tensor, options: Options) -> tuple[Options, str]:
    """The options as the kernel takes them, and the name its block sizes are found under."""
    if q.dtype != torch.float32:
        return options, str(q.dtype).removeprefix("torch.")
    precision = effective_precision(options.precision, q.shape[3], v.shape[3])
    return options._replace(precision=precision), precision


def _constants(config: TileConfig, q: Tensor, v: Tensor, options: Options) -> dict[str, Any]:
    return {
        "D": q.shape[3],
        "DV": v.shape[3],
        "BM": config.BM,
        "BT": config.BT,
        "BD": config.BD,
        "BV": config.BV,
        "CAUSAL": options.causal,
        "N_SETS": options.n_sets,
        "INTERVENE": options.intervene,
        "PRECISION": options.precision,
        # The interpreter multiplies bfloat16 by its raw bit patterns.
        "WIDEN": INTERPRETED and q.dtype != torch.float32,
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
        **LAUNCH_OPTIONS,
    }


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bits: Tensor | None,
    c_tensor: Tensor | None,
    options: Options,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output `[batch, pos, head, d_v]`, row mass `[batch, head, pos]`, set mass `[batch, head, set, pos]`."""
    batch, pos, heads, _ = q.shape
    output = allocate((batch, pos, heads, v.shape[3]), v.dtype, v.device)
    row_mass = allocate((batch, heads, pos), torch.float32, q.device)
    set_mass = allocate((batch, heads, options.n_sets, pos), torch.float32, q.device)
    if batch == 0:
        return output, row_mass, set_mass
    options, mode = _settled(q, v, options)
    config = forward_config(mode, pos, q.shape[3], v.shape[3])
    tile.forward_kernel[(batch * heads * (config.BT // config.BM),)](
        q, k, v, q if bits is None else bits, row_mass if c_tensor is None else c_tensor,
        output, row_mass, set_mass, options.scale, options.c, pos, heads,
        *_strides(q), *_strides(k), *_strides(v), *_strides(output), _bits_stride(bits),
        C_POINTER=c_tensor is not None,
        **_constants(config, q, v, options),
    )  # fmt: skip
    return output, row_mass, set_mass


def backward(
    grad_output: Tensor,
    grad_row: Tensor | None,
    grad_set: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bits: Tensor | None,
    c_tensor: Tensor | None,
    options: Options,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, each `[batch, pos, head, d]`."""
    batch, pos, heads, d_head = q.shape
    grad_q = allocate((batch, pos, heads, d_head), q.dtype, q.device)
    grad_k = allocate((batch, pos, heads, d_head), q.dtype, q.device)
    grad_v = allocate((batch, pos, heads, v.shape[3]), v.dtype, v.device)
    if batch == 0:
        return grad_q, grad_k, grad_v
    options, mode = _settled(q, v, options)
    config = backward_config(mode, pos, d_head, v.shape[3])
    blocks = config.BT // config.BM
    kernels = (
        (tile.backward_kernel,) if blocks == 1 else (tile.backward_rows_kernel, tile.backward_columns_kernel)
    )
    for kernel in kernels:
        kernel[(batch * heads * blocks,)](
            q, k, v, grad_output,
            q if grad_row is None else grad_row, q if grad_set is None else grad_set,
            q if bits is None else bits, q if c_tensor is None else c_tensor,
            grad_q, grad_k, grad_v, options.scale, options.c, pos, heads,
            *_strides(q), *_strides(k), *_strides(v), *_strides(grad_output),
            *_strides(grad_q), *_strides(grad_v), _bits_stride(bits),
            C_POINTER=c_tensor is not None, GRAD_ROW=grad_row is not None, GRAD_SET=grad_set is not None,
            **_constants(config, q, v, options),
        )  # fmt: skip
    return grad_q, grad_k, grad_v


def _bits_stride(bits: Tensor | None) -> int:
    """0 where all samples share their sets."""
    return 0 if bits is None or bits.shape[0] == 1 else bits.stride(0)
