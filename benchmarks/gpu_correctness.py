"""Are the compiled kernels right? Exact integers, float64 tolerances, second derivatives, determinism, graphs, waiting.

Every function fills a section of the report with rows whose `ok` says so. They also run in Triton's
interpreter (`device="cpu"`), which is how they are tested themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from gpu_report import Section
from torch import Tensor

import mechplateau_kernels as mk
from mechplateau_kernels.attention import check as attention_check
from mechplateau_kernels.attention import launch as attention_launch
from mechplateau_kernels.attention import reference
from mechplateau_kernels.attention.configs import Call
from mechplateau_kernels.cosine import check as cosine_check
from mechplateau_kernels.cosine import launch as cosine_launch

# batch, pos, heads, d_head, d_v
SHAPES = [
    (8, 1, 1, 16, 16), (3, 33, 2, 48, 48), (2, 32, 1, 256, 256), (2, 64, 2, 64, 128), (1, 17, 1, 40, 24),
    (4, 16, 1, 80, 80), (8, 2, 3, 1, 1), (2, 15, 3, 3, 8), (2, 33, 1, 20, 1), (1, 64, 1, 256, 3),
    (256, 32, 1, 256, 256), (2048, 64, 1, 256, 256), (2048, 2, 32, 16, 16),
]  # fmt: skip
COSINE_SHAPES = [
    (1, 1, 16),
    (4, 33, 48),
    (2, 64, 80),
    (5, 16, 256),
    (300, 2, 3),
    (256, 16, 256),
    (64, 16, 256),
]
MODES = [
    (torch.float32, "tf32x3"), (torch.float32, "ieee"), (torch.float32, "tf32"),
    (torch.float16, "tf32"), (torch.bfloat16, "tf32"),
]  # fmt: skip

# Relative Frobenius error against float64 of the same inputs; the largest single error may be 8 times that.
# tf32 is what Triton gives: the tensor core cuts operands off instead of rounding them.
OUTPUT_GATE = {"tf32x3": 5e-6, "ieee": 2e-6, "tf32": 4e-3, "float16": 1e-3, "bfloat16": 6e-3}
MASS_GATE = {"tf32x3": 3e-6, "ieee": 1e-6, "tf32": 2e-3, "float16": 1e-6, "bfloat16": 1e-6}
APM_GATE = {"tf32x3": 2e-6, "ieee": 1e-6, "tf32": 5e-4, "float16": 1e-6, "bfloat16": 1e-6}
COSINE_GATE = 4e-6
SECOND_GATE = 2e-5


def mode_name(dtype: torch.dtype, precision: str) -> str:
    return precision if dtype == torch.float32 else str(dtype).removeprefix("torch.")


@contextmanager
def poisoned() -> Iterator[None]:
    """Fresh memory of the kernels holds NaN, so that whatever they leave unwritten shows."""

    def allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.full(shape, math.nan, dtype=dtype, device=device)

    before = attention_launch.allocate, cosine_launch.allocate
    attention_launch.allocate = cosine_launch.allocate = allocate
    try:
        yield
    finally:
        attention_launch.allocate, cosine_launch.allocate = before


def exact_integers(section: Section, device: str, shapes=None, modes=MODES) -> None:
    """Bit-equality on small integers: what a miscompilation cannot pass by luck."""
    torch_device = torch.device(device)
    shapes = shapes or [(1, 16, 16), (16, 64, 64), (17, 40, 24), (32, 256, 256), (33, 48, 48), (64, 256, 256)]
    with poisoned():
        for pos, d_head, d_v in shapes:
            for dtype, precision in modes:
                for flags in ((True, False, 0), (True, True, 2), (False, True, 1)):
                    arguments = (torch_device, pos, d_head, d_v, dtype, *flags, precision)
                    masses = "aligned" if flags[2] > 0 else None
                    call = Call(grad_row=masses, grad_set=masses)
                    section.rows.append({
                        "op": "linear_attention", "shape": f"T{pos} d{d_head} dv{d_v}",
                        "mode": mode_name(dtype, precision),
                        "flags": f"causal={flags[0]} intervene={flags[1]} sets={flags[2]}",
                        "ok": attention_check.forward_is_exact(*arguments)
                        and attention_check.backward_is_exact(*arguments, call),
                    })  # fmt: skip
        for pos, d, _ in shapes:
            for dtype in dict.fromkeys(dtype for dtype, _ in modes):
                ok = cosine_check.mean_is_exact(torch_device, pos, d, dtype) and all(
                    cosine_check.pairwise_is_exact(torch_device, pos, d, dtype, each)
                    for each in (True, False)
                )
                name = str(dtype).removeprefix("torch.")
                section.rows.append({"op": "cosine", "shape": f"T{pos} d{d}", "mode": name, "ok": ok})


def _errors(got: Tensor, want: Tensor) -> tuple[float, float]:
    """Relative Frobenius error, and the largest error relative to the largest value; NaN counts as infinite."""
    if want.numel() == 0:
        return 0.0, 0.0
    difference = (got.detach().double() - want.detach()).abs()
    norm, largest = difference.norm() / want.norm().clamp_min(1e-30), difference.max() / want.abs().max()
    return tuple(x.item() if math.isfinite(x.item()) else math.inf for x in (norm, largest))  # type: ignore[return-value]


def tolerances(section: Section, device: str, shapes=None, modes=MODES) -> None:
    """Everything against float64 of the same inputs, with an intervention and two metric sets."""
    for batch, pos, heads, d_head, d_v in shapes or SHAPES:
        for dtype, precision in modes:
            generator = torch.Generator().manual_seed(pos)
            sizes = [(batch, pos, heads, width) for width in (d_head, d_head, d_v, d_v)]
            q, k, v, g = (torch.randn(size, generator=generator).to(device, dtype) for size in sizes)
            shared = (torch.rand(pos, pos, generator=generator) < 0.4).to(device)
            own = (torch.rand(batch, pos, pos, generator=generator) < 0.4).to(device)
            c = torch.tensor(2.5, device=device)
            with poisoned():
                leaves = [x.requires_grad_() for x in (q, k, v)]
                out = mk.linear_attention(
                    *leaves,
                    intervene=own,
                    c=c,
                    metric_sets=[shared, own],
                    backend="triton",
                    precision=precision,
                )
                grads = torch.autograd.grad(out.output, leaves, g)
            exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
            want = reference.linear_attention(
                *exact, 1 / math.sqrt(d_head), True, own, c.double(), [shared[None], own]
            )
            want_grads = torch.autograd.grad(want[0], exact, g.double())
            mode, row = mode_name(dtype, precision), {"shape": f"B{batch} T{pos} H{heads} d{d_head} dv{d_v}"}
            row["mode"] = mode
            ok = True
            parts = (("output", out.output, want[0]), ("row_mass", out.row_mass, want[1]),
                     ("set_mass", out.set_mass, want[2]),
                     *zip(("dq", "dk", "dv"), grads, want_grads, strict=True))  # fmt: skip
            for name, x, y in parts:
                gate = (MASS_GATE if "mass" in name else OUTPUT_GATE)[mode]
                norm, largest = _errors(x, y)
                row[name] = norm
                ok = ok and norm <= gate and largest <= 8 * gate
            progress = (mk.apm(out.row_mass, out.set_mass).double() - mk.apm(want[1], want[2])).abs().item()
            row["apm"] = progress
            section.rows.append({**row, "ok": ok and progress <= APM_GATE[mode]})


def cosine_tolerances(section: Section, device: str, shapes=None) -> None:
    for batch, pos, d in shapes or COSINE_SHAPES:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            h = torch.randn(batch, pos, d, generator=torch.Generator().manual_seed(pos)).to(device, dtype)
            row = {"shape": f"B{batch} T{pos} d{d}", "dtype": str(dtype).removeprefix("torch.")}
            with poisoned():
                for reduce in ("none", "batch_mean"):
                    got = mk.pairwise_cosine(h, reduce=reduce, backend="triton")
                    want = mk.pairwise_cosine(h.double(), reduce=reduce, backend="torch")
                    row[f"matrix {reduce}"] = (got.double() - want).abs().max().item()
                if pos > 1:
                    got = mk.mean_pairwise_cosine(h, backend="triton")
                    want = mk.mean_pairwise_cosine(h.double(), backend="torch")
                    row["mean"] = (got.double() - want).abs().item()
            errors = [value for value in row.values() if isinstance(value, float)]
            section.rows.append({**row, "ok": all(error <= COSINE_GATE for error in errors)})


def second_derivatives(section: Section, device: str, batch: int = 8, pos: int = 32, width: int = 64) -> None:
    """Hessian-vector products through Triton against float64 torch: of attention with its masses, and of cosines."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(batch, pos, 1, width, generator=generator).to(device) for _ in range(3))
    mask = torch.eye(pos, dtype=torch.bool, device=device)

    def attention(q: Tensor, k: Tensor, v: Tensor, backend: str) -> Tensor:
        out = mk.linear_attention(q, k, v, metric_sets=[mask], backend=backend)
        return out.output.pow(3).mean() + mk.apm(out.row_mass, out.set_mass)

    def cosines(q: Tensor, k: Tensor, v: Tensor, backend: str) -> Tensor:
        matrix = mk.pairwise_cosine((q * k).squeeze(2), backend=backend)
        return matrix.pow(3).sum() + mk.mean_pairwise_cosine((k * v).squeeze(2), backend=backend)

    for name, measure in (("linear_attention", attention), ("cosines", cosines)):
        products = []
        for inputs, backend in (((q, k, v), "triton"), ((q.double(), k.double(), v.double()), "torch")):
            vectors = tuple(x.cos() for x in inputs)
            _, product = torch.autograd.functional.hvp(
                lambda *x, m=measure, b=backend: m(*x, b), inputs, vectors
            )
            products.append(torch.stack(product))
        error, _ = _errors(*products)
        shape = f"B{batch} T{pos} d{width}"
        section.rows.append({
            "op": name, "what": "Hessian-vector product", "shape": shape, "error": error, "ok": error <= SECOND_GATE,
        })  # fmt: skip


def determinism(section: Section, device: str, runs: int = 20, batch: int = 256, positions=(32, 64)) -> None:
    """The same bits every time."""
    generator = torch.Generator().manual_seed(0)
    for pos in positions:
        q, k, v, g = (torch.randn(batch, pos, 1, 64, generator=generator).to(device) for _ in range(4))
        leaves = [x.requires_grad_() for x in (q, k, v)]
        mask = torch.eye(pos, dtype=torch.bool, device=device)

        def attention(leaves=leaves, mask=mask, g=g):
            out = mk.linear_attention(*leaves, metric_sets=[mask], backend="triton")
            return (*out, *torch.autograd.grad(out.output, leaves, g))

        def cosines(q=q):
            h = q.detach().squeeze(2)
            return mk.pairwise_cosine(h, backend="triton"), mk.mean_pairwise_cosine(h, backend="triton")

        for name, run in (("linear_attention", attention), ("cosines", cosines)):
            first = run()
            same = all(torch.equal(x, y) for _ in range(runs - 1) for x, y in zip(first, run(), strict=True))
            section.rows.append({"op": name, "shape": f"B{batch} T{pos}", "runs": runs, "ok": same})


def graphs_and_waiting(section: Section) -> None:
    """Replays follow changed inputs and a changed factor; calls never wait for the device (CUDA only)."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, g = (torch.randn(64, 32, 1, 256, generator=generator).cuda() for _ in range(4))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    mask, c = torch.eye(32, dtype=torch.bool, device="cuda"), torch.tensor(2.0, device="cuda")

    def run():
        out = mk.linear_attention(*leaves, intervene=mask, c=c, metric_sets=[mask], backend="triton")
        h = out.output.detach().squeeze(2)
        cosines = mk.pairwise_cosine(h, backend="triton"), mk.mean_pairwise_cosine(h, backend="triton")
        return (*(x.detach() for x in out), *torch.autograd.grad(out.output, leaves, g), *cosines)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    for step in range(3):
        with torch.no_grad():
            c.fill_(0.5 * step)
            for x in (q, k, v):
                x.copy_(torch.randn(x.shape, generator=generator).cuda())
        graph.replay()
        replayed = [x.clone() for x in captured]
        ok = all(torch.equal(x, y) for x, y in zip(replayed, run(), strict=True))
        section.rows.append({"what": f"graph replay {step} equals eager, bitwise", "ok": ok})

    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
        waited = None
    except RuntimeError as error:
        waited = str(error).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    section.rows.append({"what": "no call waits for the device", "ok": waited is None, "why": waited})
