"""What the kernels are compared with: the same results, computed by other means, and the exact ones.

Needs torch only; other libraries are peers where they are installed. Every attention peer takes
`(q, k, v, chosen)` and returns the output and the attention progress of the batch; every cosine peer
takes `h` and returns a matrix or a mean. Errors are against float64 of the same inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import mechplateau_kernels as mk

BYTES = {torch.float32: 4, torch.float16: 2, torch.bfloat16: 2}


@dataclass(frozen=True)
class AttentionCase:
    """Linear attention with attention progress over the last half of the rows."""

    batch: int
    pos: int
    heads: int
    d_head: int
    dtype: torch.dtype = torch.float32
    precision: str = "tf32x3"

    @property
    def name(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"B{self.batch} T{self.pos} H{self.heads} d{self.d_head} {dtype} {self.precision}"

    def inputs(self, device: str, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, v and a gradient of the output, all `[batch, pos, head, d_head]`."""
        generator = torch.Generator().manual_seed(seed)
        shape = (self.batch, self.pos, self.heads, self.d_head)
        q, k, v, g = (torch.randn(shape, generator=generator).to(device, self.dtype) for _ in range(4))
        return q, k, v, g

    def chosen(self, device: str) -> Tensor:
        """A band of two positions a row, as the optimal attention of moving window sum with k = 2."""
        half = self.pos // 2
        mask = torch.zeros(self.pos, self.pos, dtype=torch.bool)
        for row in range(half, self.pos):
            mask[row, max(0, row - half - 1) : row - half + 1] = True
        return mask.to(device)

    @property
    def rows(self) -> slice:
        return slice(self.pos // 2, None)

    def forward_bytes(self) -> int:
        """What must be read and written at least: q, k, v, output and masses."""
        elements = self.batch * self.pos * self.heads * self.d_head
        return 4 * elements * BYTES[self.dtype] + 2 * 4 * self.batch * self.heads * self.pos

    def backward_bytes(self) -> int:
        """q, k, v, dO read; dq, dk, dv written."""
        return 7 * self.batch * self.pos * self.heads * self.d_head * BYTES[self.dtype]

    def forward_flops(self) -> int:
        """Both products as full squares."""
        return 4 * self.batch * self.heads * self.pos**2 * self.d_head


def apm_of_map(attn: Tensor, chosen: Tensor, rows: slice) -> Tensor:
    """Mean over samples of the share of |A| on the chosen positions, heads summed; `attn [b, h, t, t]`."""
    mass = attn[:, :, rows].abs().float()
    return ((mass * chosen[rows]).sum(dim=(1, 2, 3)) / mass.sum(dim=(1, 2, 3))).mean()


@lru_cache
def future_positions(pos: int, device: torch.device) -> Tensor:
    """bool `[pos, pos]`, above the diagonal: made once, as the paper's model keeps its mask in a buffer."""
    return torch.ones(pos, pos, dtype=torch.bool, device=device).triu(1)


def eager_attention(q: Tensor, k: Tensor, v: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The paper's formula, one torch operation after the other."""
    return masked_attention(q, k, v, chosen, future_positions(q.shape[1], q.device))


def masked_attention(
    q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, masked: Tensor
) -> tuple[Tensor, Tensor]:
    pos = q.shape[1]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    attn = scores.masked_fill(masked, 0.0)
    return (attn @ v).transpose(1, 2), apm_of_map(attn, chosen, slice(pos // 2, None))


def compiled_attention(**options: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    """`eager_attention` through torch.compile, which gets the mask as an argument."""
    compiled = torch.compile(masked_attention, dynamic=False, **options)

    def attend(q: Tensor, k: Tensor, v: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        return compiled(q, k, v, chosen, future_positions(q.shape[1], q.device))

    return attend


def our_attention(precision: str, backend: str = "auto") -> Callable[..., tuple[Tensor, Tensor]]:
    def attend(q: Tensor, k: Tensor, v: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        out = mk.linear_attention(q, k, v, metric_sets=[chosen], precision=precision, backend=backend)  # type: ignore[arg-type]
        return out.output, mk.apm(out.row_mass, out.set_mass, rows=slice(q.shape[1] // 2, None))

    return attend


def fla_attention() -> dict[str, Callable[..., tuple[Tensor, Tensor | None]]] | str:
    """flash-linear-attention's forms by name, or why they are left out; only the last has attention progress."""
    try:
        from fla.ops.linear_attn import chunk_linear_attn, fused_chunk_linear_attn
        from fla.ops.simple_gla.parallel import parallel_simple_gla
    except Exception as error:
        return f"flash-linear-attention is left out: {type(error).__name__}: {error}".splitlines()[0]

    def chunk(q: Tensor, k: Tensor, v: Tensor, chosen: Tensor) -> tuple[Tensor, None]:
        return chunk_linear_attn(q, k, v, normalize=False)[0], None

    def fused_chunk(q: Tensor, k: Tensor, v: Tensor, chosen: Tensor) -> tuple[Tensor, None]:
        return fused_chunk_linear_attn(q, k, v, normalize=False)[0], None

    def parallel(q: Tensor, k: Tensor, v: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        output, attn = parallel_simple_gla(q, k, v, output_attentions=True)
        return output, apm_of_map(attn, chosen, slice(q.shape[1] // 2, None))

    return {
        "fla chunk (no APM)": chunk,
        "fla fused chunk (no APM)": fused_chunk,
        "fla parallel, map written out": parallel,
    }


@dataclass(frozen=True)
class CosineCase:
    """Hidden states of `pos` output rows."""

    batch: int
    pos: int
    d: int
    dtype: torch.dtype = torch.float32

    @property
    def name(self) -> str:
        return f"B{self.batch} T{self.pos} d{self.d} {str(self.dtype).removeprefix('torch.')}"

    def input(self, device: str, seed: int = 0) -> Tensor:
        """`[batch, pos, d]`, with a shared direction, so that cosines are not all near 0."""
        generator = torch.Generator().manual_seed(seed)
        own = torch.randn(self.batch, self.pos, self.d, generator=generator)
        return (own + torch.randn(self.batch, 1, self.d, generator=generator)).to(device, self.dtype)

    def bytes(self) -> int:
        return self.batch * self.pos * self.d * BYTES[self.dtype]


def vectorized_cosine(h: Tensor) -> Tensor:
    """Normalize, one batched product, mean: `[pos, pos]`."""
    unit = F.normalize(h.float(), dim=-1, eps=1e-8)
    return torch.bmm(unit, unit.transpose(1, 2)).mean(dim=0)


def one_gemm_cosine(h: Tensor) -> Tensor:
    """Normalize, then a single product with batch and width as one long inner dimension."""
    unit = F.normalize(h.float(), dim=-1, eps=1e-8).transpose(0, 1).flatten(1)
    return unit @ unit.T / h.shape[0]


def torchmetrics_cosine() -> Callable[[Tensor], Tensor] | str:
    """torchmetrics' pairwise similarity, which takes one sample at a time, or why it is left out."""
    try:
        from torchmetrics.functional import pairwise_cosine_similarity
    except Exception as error:
        return f"torchmetrics is left out: {type(error).__name__}: {error}".splitlines()[0]

    def matrix(h: Tensor) -> Tensor:
        return torch.stack([pairwise_cosine_similarity(x.float(), zero_diagonal=False) for x in h]).mean(
            dim=0
        )

    return matrix


def mean_of_matrix(matrix: Tensor) -> Tensor:
    """Mean of the entries below the diagonal."""
    pos = matrix.shape[0]
    return matrix.tril(-1).sum() / (pos * (pos - 1) / 2)


def exact_attention(q: Tensor, k: Tensor, v: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The results in float64."""
    return eager_attention(q.double(), k.double(), v.double(), chosen)


def exact_cosine(h: Tensor) -> Tensor:
    unit = F.normalize(h.double(), dim=-1, eps=1e-8)
    return torch.bmm(unit, unit.transpose(1, 2)).mean(dim=0)


def relative_error(got: Tensor, exact: Tensor) -> float:
    """‖got − exact‖ / ‖exact‖ in float64; NaN anywhere gives infinity."""
    difference = (got.double() - exact.double()).norm() / exact.double().norm()
    return difference.item() if math.isfinite(difference.item()) else math.inf


# Largest relative errors at which a kernel's time is worth reporting (kernels/README.md).
ATTENTION_GATE = {"tf32x3": 5e-6, "ieee": 2e-6, "tf32": 4e-3, "float16": 1e-3, "bfloat16": 6e-3}
COSINE_GATE = 4e-6


def attention_gate(case: AttentionCase) -> float:
    return ATTENTION_GATE[
        case.precision if case.dtype == torch.float32 else str(case.dtype).removeprefix("torch.")
    ]


class WrongNumbersError(AssertionError):
    """A kernel's results are off; its time is not reported."""


def require(error: float, gate: float, what: str) -> None:
    if not error <= gate:
        raise WrongNumbersError(
            f"{what}: relative error {error:.2g} is above {gate:.2g}; no time is reported"
        )
