"""Masked linear attention that also returns the sums attention progress is made of."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .._dispatch import DTYPES, autocast_dtype, choose_backend, full_precision
from . import reference
from .configs import MAX_POSITIONS, MAX_WIDTH, Options
from .ops import fused_linear_attention
from .sets import MAX_PLANES, pack

__all__ = ["LinearAttentionOutput", "linear_attention"]

PRECISIONS = ("auto", "tf32x3", "ieee", "tf32")


class LinearAttentionOutput(NamedTuple):
    """What `linear_attention` returns."""

    output: Tensor
    """`[batch, pos, head, d_v]`, dtype of v."""
    row_mass: Tensor
    """`[batch, head, pos]`, Σ_j |A_ij| after the intervention; float32 (float64 for float64 inputs)."""
    set_mass: Tensor
    """`[batch, head, set, pos]`, the part of it on each metric set; set dimension 0 without sets."""


def _check_inputs(q: Tensor, k: Tensor, v: Tensor) -> None:
    if not all(isinstance(x, Tensor) for x in (q, k, v)):
        raise TypeError(
            "linear_attention: expected tensors q, k, v; got "
            f"{', '.join(type(x).__name__ for x in (q, k, v))}"
        )
    if not (q.dim() == k.dim() == v.dim() == 4) or q.shape != k.shape or q.shape[:3] != v.shape[:3]:
        raise ValueError(
            "linear_attention: expected q, k [batch, pos, head, d_head] and v [batch, pos, head, d_v]; "
            f"got {list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
        )
    if not (q.dtype == k.dtype == v.dtype) or q.dtype not in DTYPES:
        raise ValueError(
            "linear_attention: expected one floating dtype of 16 to 64 bits for q, k, v; "
            f"got {q.dtype}, {k.dtype}, {v.dtype}"
        )
    if not (q.device == k.device == v.device):
        raise ValueError(
            "linear_attention: expected q, k, v on one device; "
            f"got {q.device}, {k.device}, {v.device}: move them with .to()"
        )
    if 0 in q.shape[1:] or v.shape[3] == 0:
        raise ValueError(
            "linear_attention: expected no empty dimension but the batch; "
            f"got {list(q.shape)}, v {list(v.shape)}"
        )


def _checked_set(name: str, mask: Tensor, q: Tensor) -> Tensor:
    """The set as bool `[1 or batch, pos, pos]`."""
    batch, pos = q.shape[:2]
    if not isinstance(mask, Tensor):
        raise TypeError(f"linear_attention: {name}: expected a bool tensor; got {type(mask).__name__}")
    shaped = mask.unsqueeze(0) if mask.dim() == 2 else mask
    # Compared one by one: torch.compile with dynamic shapes cannot look a shape up in a tuple of shapes.
    fits = shaped.dim() == 3 and shaped.shape[1] == pos and shaped.shape[2] == pos
    if mask.dtype != torch.bool or not fits or (shaped.shape[0] != 1 and shaped.shape[0] != batch):
        raise ValueError(
            f"linear_attention: {name}: expected bool [{pos}, {pos}] or [{batch}, {pos}, {pos}] "
            f"(query, key); got {mask.dtype} {list(mask.shape)}"
        )
    if mask.device != q.device:
        raise ValueError(
            f"linear_attention: {name} is on {mask.device} and q on {q.device}; move it there with .to()"
        )
    return shaped


def _obstacle(q: Tensor, v: Tensor, c: float | Tensor, n_planes: int) -> str | None:
    """Why the tile kernels cannot take this call, or None."""
    if q.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"the kernels take float32, float16 and bfloat16, and q is {q.dtype}"
    if q.shape[1] > MAX_POSITIONS:
        return f"the kernels take up to {MAX_POSITIONS} positions, and there are {q.shape[1]}"
    if max(q.shape[3], v.shape[3]) > MAX_WIDTH:
        return f"the kernels take heads up to {MAX_WIDTH} wide; got {q.shape[3]} and {v.shape[3]}"
    if n_planes > MAX_PLANES:
        return f"the kernels take {MAX_PLANES} sets, the intervention's included, and there are {n_planes}"
    if isinstance(c, Tensor) and c.requires_grad:
        return "the kernels give no gradient of c"
    return None


def _autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What autocast does to the inputs of a matrix product, where it is on."""
    dtype = autocast_dtype(q.device)
    if dtype is None or q.dtype == torch.float64:
        return q, k, v
    return q.to(dtype), k.to(dtype), v.to(dtype)


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    causal: bool = True,
    intervene: Tensor | None = None,
    c: float | Tensor = 1.0,
    metric_sets: Sequence[Tensor] = (),
    backend: Literal["auto", "triton", "torch"] = "auto",
    precision: Literal["auto", "tf32x3", "ieee", "tf32"] = "auto",
) -> LinearAttentionOutput:
    """Linear attention `O = A V`, `A = scale·QKᵀ` with zeros above the diagonal and no softmax.

    After masking, A is multiplied by `c` on `intervene` (the paper's attention scaling), and the masses
    that attention progress is made of are taken from the result.

    Args:
        q, k: `[batch, pos, head, d_head]`, any strides; one dtype for q, k and v. The batch may be empty.
        v: `[batch, pos, head, d_v]`; d_v may differ from d_head.
        scale: factor of QKᵀ; None: 1/√d_head.
        causal: zero A above the diagonal.
        intervene: bool `[pos, pos]` or `[batch, pos, pos]` (query, key): where A is multiplied by c.
        c: a float, or a 0-d tensor (which may change without a new compilation or graph capture).
        metric_sets: sets to sum |A| over, each as `intervene`.
        backend: `"auto"`, `"torch"` or `"triton"`.
        precision: how Triton multiplies float32: `"tf32x3"` and `"ieee"` keep float32 accuracy, `"tf32"`
            does not; `"auto"` is tf32x3, or tf32 where `torch.get_float32_matmul_precision()` is not
            `"highest"`. The torch path always follows torch's own setting.

    Returns:
        `LinearAttentionOutput(output, row_mass, set_mass)`; differentiable in q, k, v, also through the
        masses. A NaN or infinity in v may reach every row, as with a matrix product of zeros.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit, each named.
        TypeError: something that should be a tensor is none.
        BackendUnavailable: Triton was asked for where it cannot run.
    """
    _check_inputs(q, k, v)
    if precision not in PRECISIONS:
        raise ValueError(
            f"linear_attention: precision: expected one of {', '.join(PRECISIONS)}; got {precision!r}"
        )
    if isinstance(c, Tensor) and c.dim() != 0:
        raise ValueError(f"linear_attention: c: expected a float or a 0-d tensor; got shape {list(c.shape)}")
    if intervene is not None:
        intervene = _checked_set("intervene", intervene, q)
    sets = [_checked_set(f"metric_sets[{i}]", mask, q) for i, mask in enumerate(metric_sets)]
    scale = 1.0 / math.sqrt(q.shape[3]) if scale is None else float(scale)
    if not isinstance(c, Tensor):
        c = float(c)
        if c == 1.0:
            intervene = None
    elif intervene is None:
        c = 1.0
    elif c.device != q.device and c.device.type != "cpu":
        raise ValueError(
            f"linear_attention: c is on {c.device} and q on {q.device}; move it there with .to()"
        )

    q, k, v = _autocast(q, k, v)
    obstacle = _obstacle(q, v, c, len(sets) + (intervene is not None))
    if choose_backend("linear_attention", backend, q.device, obstacle) == "triton":
        c_tensor = None
        if isinstance(c, Tensor):
            # A factor on the host is read now; one on the device when the kernel runs.
            c_tensor = c.float() if c.device == q.device else None
            c = 1.0 if c_tensor is not None else float(c)
        options = Options(c, scale, causal, intervene is not None, len(sets), precision)
        bits = pack(intervene, sets)
        return LinearAttentionOutput(*fused_linear_attention(q, k, v, bits, c_tensor, options))
    with full_precision(q.device):
        return LinearAttentionOutput(*reference.linear_attention(q, k, v, scale, causal, intervene, c, sets))
