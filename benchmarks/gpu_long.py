"""Attention of any length on a GPU: right against float64, the same from run to run, and timed beside other ways.

Peers: the map and its sums over masks (eager), flash-linear-attention's form that writes the map out (linear), and
torch's `scaled_dot_product_attention`, which gives no masses (softmax).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kernel_peers as peers
import torch
from gpu_report import Section
from kernel_timing import device_microseconds, peak_memory_bytes
from torch import Tensor
from torch.nn import functional as F

import mechplateau_kernels as mk
from mechplateau_kernels.attention import lse

GATES = {torch.float32: (5e-6, 3e-6), torch.float16: (1e-3, 3e-6), torch.bfloat16: (8e-3, 3e-6)}
"""Largest relative error (Frobenius) of output and gradients, and of masses; float32 as tf32x3."""
SHAPES = [
    (1, 1, 1, 16, 16),
    (2, 65, 2, 40, 24),
    (1, 130, 2, 48, 48),
    (2, 257, 1, 128, 128),
    (1, 1024, 2, 64, 64),
]
WAYS = [("linear", "tiled"), ("softmax", "tiled"), ("linear", "chunk"), ("softmax", "lse")]
MASS_BY_SUMS = 2e-5
"""Of masses by `lse`: scores are made twice, by torch's kernel and key by key."""
OPERATIONS: dict[str, Callable[..., Any]] = {"linear": mk.linear_attention, "softmax": mk.softmax_attention}


def four_sets(batch: int, pos: int, device: str) -> list[mk.PositionSet]:
    """Previous token, first token, same token and induction on random tokens."""
    tokens = torch.randint(0, max(2, pos // 4), (batch, pos), generator=torch.Generator().manual_seed(1))
    before = torch.cat([torch.full((batch, 1), -1), tokens[:, :-1]], dim=1)
    sets = [
        mk.Offsets(1, 1),
        mk.First(1),
        mk.Codes(tokens, tokens) & mk.Offsets(1, None),
        mk.Codes(tokens, before),
    ]
    return [one.to(device) for one in sets]


def correctness(section: Section, device: str, shapes=None, dtypes=tuple(GATES)) -> None:
    """Output, masses and gradients of every algorithm against the map in float64; twice, to the bit."""
    for batch, pos, heads, d_head, d_v in shapes or SHAPES:
        for dtype in dtypes:
            for kind, way in WAYS:
                if way == "lse" and dtype not in lse.DTYPES[torch.device(device).type]:
                    continue
                operation = OPERATIONS[kind]
                generator = torch.Generator().manual_seed(pos)
                sizes = [(batch, pos, heads, d) for d in (d_head, d_head, d_v, d_v)]
                q, k, v, g = (torch.randn(size, generator=generator).to(device, dtype) for size in sizes)
                sets = four_sets(batch, pos, device)
                rows = {"row_mass": way != "chunk"}
                found, wanted = (
                    _everything(operation, [x.to(t) for x in (q, k, v)], g.to(t), sets, algorithm, rows)
                    for algorithm, t in ((way, dtype), ("map", torch.float64))
                )
                again = _everything(operation, [q, k, v], g, sets, way, rows)
                row: dict[str, Any] = {
                    "attention": kind, "algorithm": way,
                    "shape": f"B{batch} T{pos} H{heads} d{d_head} dv{d_v}", "dtype": str(dtype)[6:],
                }  # fmt: skip
                ok = all(torch.equal(x, y) for x, y in zip(found.values(), again.values(), strict=True))
                for name, x in found.items():
                    row[name] = peers.relative_error(x, wanted[name]) if wanted[name].norm() else 0.0
                    gate = MASS_BY_SUMS if way == "lse" and "mass" in name else GATES[dtype]["mass" in name]
                    ok = ok and row[name] <= gate
                section.rows.append({**row, "ok": ok})


def _everything(
    operation: Callable[..., Any],
    inputs: list[Tensor],
    g: Tensor,
    sets: list[mk.PositionSet],
    algorithm: str,
    options: dict[str, bool],
) -> dict[str, Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = operation(*leaves, metric_sets=sets, algorithm=algorithm, precision="tf32x3", **options)
    grads = torch.autograd.grad(out.output, leaves, g)
    named = {"output": out.output, "row mass": out.row_mass, "set mass": out.set_mass}
    return {
        name: x.detach() for name, x in (named | dict(zip(("dq", "dk", "dv"), grads, strict=True))).items()
    }


@dataclass(frozen=True)
class LongCase:
    batch: int
    heads: int
    pos: int
    d: int
    dtype: torch.dtype

    @property
    def name(self) -> str:
        return f"B{self.batch} H{self.heads} T{self.pos} d{self.d} {str(self.dtype)[6:]}"


CASES = [
    LongCase(8, 16, 4096, 64, torch.bfloat16),
    LongCase(1, 16, 8192, 128, torch.bfloat16),
    LongCase(4, 8, 1024, 64, torch.float32),
]


def times(
    section: Section, ceilings: dict[str, float], left: Callable[[], float], device: str = "cuda", cases=None
) -> None:
    """Forward with the masses of four sets; of each peer the same, or what it gives."""
    for case in cases or CASES:
        if left() < 20:
            section.notes.append(f"{case.name} and what follows: out of time")
            return
        generator = torch.Generator().manual_seed(0)
        shape = (case.batch, case.pos, case.heads, case.d)
        q, k, v = (torch.randn(shape, generator=generator).to(device, case.dtype) for _ in range(3))
        sets = four_sets(case.batch, case.pos, device)
        # The causal half of both products, at the card's own rate.
        flops = 2 * case.batch * case.heads * case.pos**2 * case.d
        floor = 1e6 * flops / ceilings["bf16" if case.dtype == torch.bfloat16 else "tf32"]
        for kind, operation in OPERATIONS.items():
            ours = None
            for name, call in _providers(kind, operation, q, k, v, sets).items():
                try:
                    with torch.no_grad():
                        median = device_microseconds([call]).median
                        peak = peak_memory_bytes(call) / 2**20 if device == "cuda" else None
                except torch.OutOfMemoryError:
                    section.notes.append(f"{case.name}, {kind}, {name}: out of memory")
                    continue
                ours = median if ours is None else ours
                section.rows.append({
                    "case": case.name, "attention": kind, "provider": name, "us": median, "peak MB": peak,
                    "floor us": floor, "% of floor": 100 * floor / median, "its time / ours": median / ours,
                })  # fmt: skip


def _providers(
    kind: str, operation: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, sets: list[mk.PositionSet]
) -> dict[str, Callable[[], object]]:
    masks = [one.dense(q.shape[1]) for one in sets]
    causal = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).tril()
    turned = [x.transpose(1, 2) for x in (q, k, v)]

    def eager() -> object:
        scores = turned[0] @ turned[1].transpose(-2, -1) * q.shape[3] ** -0.5
        fill = 0.0 if kind == "linear" else -torch.inf
        attn = scores.masked_fill(~causal, fill)
        attn = attn if kind == "linear" else attn.softmax(-1)
        size = attn.abs()
        return attn @ turned[2], [(size * mask[:, None]).sum(-1) for mask in masks]

    providers: dict[str, Callable[[], object]] = {
        "ours": lambda: operation(q, k, v, metric_sets=sets, algorithm="tiled"),
        "eager map and masks": eager,
    }
    if kind == "softmax":
        if q.dtype in lse.DTYPES[q.device.type]:
            providers["ours by LSE"] = lambda: operation(q, k, v, metric_sets=sets, algorithm="lse")
        providers["SDPA, no masses"] = lambda: F.scaled_dot_product_attention(*turned, is_causal=True)
        return providers
    providers["ours in chunks, no row mass"] = lambda: operation(
        q, k, v, metric_sets=sets, algorithm="chunk", row_mass=False
    )
    fla = peers.fla_attention()
    if not isinstance(fla, str):
        parallel = fla["fla parallel, map written out"]
        providers["fla, map written out"] = lambda: parallel(q, k, v, masks[0][0])
    return providers
