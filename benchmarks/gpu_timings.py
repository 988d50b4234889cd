"""Device and host times of the kernels and their peers, at equal precision, with both sides' errors.

"cold" times take turns over inputs larger together than the L2 cache; "warm" ones repeat one input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import kernel_peers as peers
import paper_baseline as baseline
import torch
from gpu_report import Section
from kernel_timing import device_microseconds, peak_memory_bytes, wall_microseconds

import mechplateau_kernels as mk

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
ATTENTION = [
    peers.AttentionCase(256, 32, 1, 256, F32, "tf32x3"),
    peers.AttentionCase(256, 32, 1, 256, F32, "tf32"),
    peers.AttentionCase(256, 32, 1, 256, BF16, "tf32"),
    peers.AttentionCase(64, 32, 1, 256, F32, "tf32x3"),
    peers.AttentionCase(1024, 32, 4, 64, F32, "tf32x3"),
    peers.AttentionCase(2048, 64, 1, 256, F32, "tf32x3"),
    peers.AttentionCase(2048, 64, 1, 256, BF16, "tf32"),
]
# torch.compile takes its time: only where it matters most.
COMPILED = {ATTENTION[0].name, ATTENTION[2].name, ATTENTION[5].name}
COSINES = [
    peers.CosineCase(256, 16, 256), peers.CosineCase(64, 16, 256), peers.CosineCase(256, 16, 256, BF16),
    peers.CosineCase(256, 64, 256),
]  # fmt: skip
SETS = 4
Ceilings = dict[str, float]


def _with_gradients(attend: Callable[..., Any]) -> Callable[..., Any]:
    def both(q: Any, k: Any, v: Any, chosen: Any, g: Any) -> Any:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(attend(*leaves, chosen)[0], leaves, g)

    return both


def _floor(bytes_: int, flops: int, case: peers.AttentionCase, ceilings: Ceilings) -> float:
    """Microseconds that moving the bytes or doing the products takes at the measured ceilings."""
    mode = case.precision if case.dtype == F32 else "bfloat16"
    rate = {"tf32x3": ceilings["tf32"] / 3, "tf32": ceilings["tf32"], "ieee": ceilings["fp32"]}.get(
        mode, ceilings["bf16"]
    )
    return 1e6 * max(bytes_ / ceilings["copy"], flops / rate)


def _providers(case: peers.AttentionCase, section: Section) -> dict[str, Callable[..., Any]]:
    providers: dict[str, Callable[..., Any]] = {
        "ours": peers.our_attention(case.precision, "triton"),
        "eager": peers.eager_attention,
    }
    if case.name in COMPILED:
        providers["torch.compile"] = peers.compiled_attention()
    if case.name == ATTENTION[0].name:
        providers["torch.compile, max-autotune"] = peers.compiled_attention(mode="max-autotune-no-cudagraphs")
    fla = peers.fla_attention()
    if isinstance(fla, str):
        if fla not in section.notes:
            section.notes.append(fla)
    elif case.precision == "tf32":  # its float32 is tf32
        providers |= fla
    return providers


def attention(section: Section, ceilings: Ceilings, left: Callable[[], float], device: str = "cuda") -> None:
    """Forward with APM, and forward with backward, for every case and provider while time is left."""
    section.notes.append(
        "Peers multiply float32 at the case's precision: true float32 beside tf32x3, tf32 beside tf32."
    )
    for case in ATTENTION:
        if left() < 20:
            section.notes.append(f"{case.name} and what follows: out of time")
            return
        drawn, chosen = [case.inputs(device, seed) for seed in range(SETS)], case.chosen(device)
        inputs = [(q, k, v, chosen) for q, k, v, _ in drawn]
        gradients = [g for *_, g in drawn]
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if case.precision == "tf32" else "highest")
        try:
            _attention_case(section, case, inputs, gradients, ceilings, left)
        finally:
            torch.set_float32_matmul_precision(before)
        torch.cuda.empty_cache()


def _attention_case(section, case, inputs, gradients, ceilings, left) -> None:
    exact = peers.exact_attention(*inputs[0])
    medians: dict[tuple[str, str], float] = {}
    for name, attend in _providers(case, section).items():
        if left() < 15:
            section.notes.append(f"{case.name}, {name}: out of time")
            continue
        try:
            with torch.no_grad():
                output, progress = attend(*inputs[0])
                error = peers.relative_error(output, exact[0])
                if name == "ours":
                    peers.require(error, peers.attention_gate(case), f"linear_attention {case.name}")
                forward = [lambda x=x: attend(*x) for x in inputs]  # noqa: B023 - called within this turn
                row = {
                    "case": case.name, "what": "forward + APM", "provider": name,
                    "error": error,
                    "apm error": None if progress is None else abs(progress.item() - exact[1].item()),
                    **_times(forward),
                }  # fmt: skip
            _finish(section, row, medians, case, case.forward_bytes(), case.forward_flops(), ceilings)
            both = _with_gradients(attend)
            calls = [lambda x=x, g=g: both(*x, g) for x, g in zip(inputs, gradients, strict=True)]  # noqa: B023
            row = {"case": case.name, "what": "forward + backward", "provider": name, **_times(calls)}
            total = case.forward_bytes() + case.backward_bytes()
            _finish(section, row, medians, case, total, 7 * case.forward_flops() // 2, ceilings)
        except Exception as problem:
            section.notes.append(f"{case.name}, {name}: {type(problem).__name__}: {str(problem)[:300]}")
            if name == "ours":
                raise


def _times(calls: Sequence[Callable[[], object]]) -> dict[str, float]:
    """The columns of one provider's times and memory."""
    cold = device_microseconds(calls)
    return {
        "cold us": cold.median, "p20": cold.p20, "p80": cold.p80, "warm us": device_microseconds(calls[:1]).median,
        "wall us": wall_microseconds(calls[0]).median, "peak MB": peak_memory_bytes(calls[0]) / 2**20,
    }  # fmt: skip


def _finish(
    section: Section,
    row: dict[str, Any],
    medians: dict[tuple[str, str], float],
    case: peers.AttentionCase,
    bytes_: int,
    flops: int,
    ceilings: Ceilings,
) -> None:
    """Add what must be moved and computed, the roofline, and the ratio to ours (above 1: ours is faster)."""
    floor = _floor(bytes_, flops, case, ceilings)
    row |= {"MB": bytes_ / 1e6, "GFLOP": flops / 1e9}
    row["floor us"] = floor
    row["% of roofline"] = 100 * floor / row["cold us"]
    medians[row["what"], row["provider"]] = row["cold us"]
    row["its time / ours"] = row["cold us"] / medians[row["what"], "ours"]
    section.rows.append(row)


def cosine(section: Section, ceilings: Ceilings, left: Callable[[], float], device: str = "cuda") -> None:
    """The batch-mean matrix and the mean over pairs."""
    for case in COSINES:
        if left() < 10:
            section.notes.append(f"{case.name} and what follows: out of time")
            return
        inputs = [case.input(device, seed) for seed in range(SETS)]
        exact = peers.exact_cosine(inputs[0])
        _cosine_provider(section, case, "matrix", "ours", lambda h: mk.pairwise_cosine(h, backend="triton"),
                         inputs, exact, ceilings)  # fmt: skip
        for name, matrix in (
            ("vectorized torch", peers.vectorized_cosine),
            ("one GEMM", peers.one_gemm_cosine),
        ):
            _cosine_provider(section, case, "matrix", name, matrix, inputs, exact, ceilings)
        _cosine_provider(
            section, case, "mean", "ours", lambda h: mk.mean_pairwise_cosine(h, backend="triton"), inputs,
            peers.mean_of_matrix(exact), ceilings,
        )  # fmt: skip
        _cosine_provider(
            section, case, "mean", "vectorized torch",
            lambda h: peers.mean_of_matrix(peers.vectorized_cosine(h)), inputs, peers.mean_of_matrix(exact), ceilings,
        )  # fmt: skip
        if case is COSINES[0]:
            _host_bound_peers(section, case, inputs[0], exact)
            try:
                compiled = torch.compile(peers.vectorized_cosine, dynamic=False)
                _cosine_provider(section, case, "matrix", "torch.compile", compiled, inputs, exact, ceilings)
            except Exception as problem:
                section.notes.append(
                    f"{case.name}, torch.compile: {type(problem).__name__}: {str(problem)[:300]}"
                )


def _cosine_provider(section, case, what, name, compute, inputs, exact, ceilings) -> None:
    error = peers.relative_error(compute(inputs[0]), exact)
    if name == "ours":
        peers.require(error, peers.COSINE_GATE, f"cosine {what} {case.name}")
    calls = [lambda h=h: compute(h) for h in inputs]
    times = _times(calls)
    floor = 1e6 * case.bytes() / ceilings["copy"]
    ours = next(
        (
            r["cold us"]
            for r in section.rows
            if (r["case"], r["what"], r["provider"]) == (case.name, what, "ours")
        ),
        times["cold us"],
    )
    section.rows.append({
        "case": case.name, "what": what, "provider": name, "error": error,
        **times, "MB": case.bytes() / 1e6, "floor us": floor, "% of roofline": 100 * floor / times["cold us"],
        "its time / ours": times["cold us"] / ours,
    })  # fmt: skip


def _host_bound_peers(section: Section, case: peers.CosineCase, h: torch.Tensor, exact: torch.Tensor) -> None:
    """Ways that launch thousands of kernels or wait for each number: by the host's clock, against ours by it."""
    ours = next(r["wall us"] for r in section.rows if r["case"] == case.name and r["what"] == "matrix")
    loops: dict[str, Any] = {
        "the double loop": baseline.cosine_double_loop,
        "torchmetrics": peers.torchmetrics_cosine(),
    }
    for name, loop in loops.items():
        if isinstance(loop, str):
            section.notes.append(loop)
            continue
        wall = wall_microseconds(lambda loop=loop: loop(h), rounds=5, calls_a_round=1).median
        error = peers.relative_error(loop(h).tril(-1).to(h.device), exact.tril(-1))
        section.rows.append({
            "case": case.name, "what": "matrix", "provider": name, "error": error, "wall us": wall,
            "its time / ours": wall / ours,
        })  # fmt: skip
