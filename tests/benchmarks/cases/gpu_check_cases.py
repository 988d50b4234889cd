"""The pieces of benchmarks/gpu_check.py that can run without a GPU, in the interpreter."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

import gpu_correctness
import gpu_long
import gpu_step
import gpu_timings
import kernel_peers as peers
import paper_baseline as baseline
from gpu_report import Section
from kernel_timing import Times

import mechplateau_kernels as mk
from mechplateau_kernels.attention import chunk, launch, lse, tiled_launch
from mechplateau_kernels.attention import ops as attention_ops
from mechplateau_kernels.cosine import ops as cosine_ops

pytestmark = [
    pytest.mark.skipif(not launch.INTERPRETED, reason="on a GPU, gpu_check.py itself runs them"),
    pytest.mark.usefixtures("poisoned"),
]
MODES = [(torch.float32, "tf32x3"), (torch.float16, "tf32")]


def filled(work, *arguments, **keywords):
    section = Section("")
    work(section, *arguments, **keywords)
    assert section.rows
    return section.rows


def test_correct_kernels_pass():
    rows = filled(gpu_correctness.exact_integers, "cpu", [(5, 16, 24)], MODES)
    rows += filled(gpu_correctness.tolerances, "cpu", [(2, 5, 1, 16, 3)], MODES)
    rows += filled(gpu_correctness.cosine_tolerances, "cpu", [(2, 5, 20), (1, 1, 16)])
    rows += filled(gpu_correctness.second_derivatives, "cpu", 1, 5, 8)
    rows += filled(gpu_correctness.determinism, "cpu", runs=2, batch=1, positions=(5,))
    assert all(row["ok"] for row in rows), rows


def test_attention_of_any_length_is_checked_and_timed(monkeypatch):
    shape = [(1, 3, 1, 4, 4)]
    rows = filled(gpu_long.correctness, "cpu", shape, (torch.float32,))
    assert all(row["ok"] for row in rows)
    assert [row["algorithm"] for row in rows] == ["tiled", "tiled", "chunk", "lse"]
    monkeypatch.setattr(
        gpu_long, "device_microseconds", lambda calls: (calls[0](), Times(10.0, 9.0, 11.0))[1]
    )
    case = gpu_long.LongCase(1, 1, 3, 4, torch.float32)
    rows = filled(gpu_long.times, {"tf32": 1e9}, lambda: 100.0, "cpu", [case])
    providers = [
        [row["provider"] for row in rows if row["attention"] == kind] for kind in gpu_long.OPERATIONS
    ]
    assert providers[0][:3] == ["ours", "eager map and masks", "ours in chunks, no row mass"]
    assert providers[1] == ["ours", "eager map and masks", "ours by LSE", "SDPA, no masses"]
    for module in (tiled_launch, lse, chunk):
        right = module.forward
        monkeypatch.setattr(module, "forward", lambda *a, right=right: (right(*a)[0] + 1.0, *right(*a)[1:]))
    assert not any(row["ok"] for row in filled(gpu_long.correctness, "cpu", shape, (torch.float32,)))


def test_a_wrong_kernel_fails_every_check(monkeypatch):
    from mechplateau_kernels.cosine import launch as cosine_launch

    right = launch.forward, cosine_launch.pairwise_cosine

    def wrong(*arguments):
        output, row_mass, set_mass = right[0](*arguments)
        output.view(-1)[0] += 1.0
        return output, row_mass, set_mass

    monkeypatch.setattr(launch, "forward", wrong)
    monkeypatch.setattr(cosine_launch, "pairwise_cosine", lambda *a: right[1](*a) + 1e-4)
    rows = filled(gpu_correctness.exact_integers, "cpu", [(5, 16, 24)], MODES[:1])
    rows += filled(gpu_correctness.tolerances, "cpu", [(2, 5, 1, 16, 3)], MODES[:1])
    rows += filled(gpu_correctness.cosine_tolerances, "cpu", [(2, 5, 20)])
    assert not any(row["ok"] for row in rows), rows


def test_a_second_derivative_without_the_kernels_part_fails(monkeypatch):
    def one_derivative_only(operation):
        return lambda *arguments: operation(
            *(x.detach() if isinstance(x, torch.Tensor) else x for x in arguments)
        )

    operations = torch.ops.mechplateau
    for module, name, operation in (
        (attention_ops, "_differentiable_backward", operations.linear_attention_backward),
        (cosine_ops, "_differentiable_pairwise_backward", operations.pairwise_cosine_backward),
    ):
        monkeypatch.setattr(module, name, one_derivative_only(operation))
    rows = filled(gpu_correctness.second_derivatives, "cpu", 1, 5, 8)
    assert [row["ok"] for row in rows] == [False, False], rows


def test_unwritten_output_fails(monkeypatch):
    right = launch.forward

    def forgetful(q, k, v, *rest):
        output, row_mass, set_mass = right(q, k, v, *rest)
        return launch.allocate(tuple(output.shape), output.dtype, output.device), row_mass, set_mass

    monkeypatch.setattr(launch, "forward", forgetful)
    (row,) = filled(gpu_correctness.tolerances, "cpu", [(1, 5, 1, 16, 3)], MODES[:1])
    assert row["output"] == float("inf")
    assert not row["ok"]


def test_a_wrong_kernel_gets_no_time():
    case = peers.AttentionCase(2, 6, 1, 8)
    q, k, v, _ = case.inputs("cpu")
    chosen = case.chosen("cpu")
    output, progress = peers.our_attention("tf32x3", "triton")(q, k, v, chosen)
    exact = peers.exact_attention(q, k, v, chosen)
    error = peers.relative_error(output, exact[0])
    peers.require(error, peers.attention_gate(case), "ours")
    assert progress.item() == pytest.approx(exact[1].item(), abs=1e-6)
    with pytest.raises(peers.WrongNumbersError, match="no time is reported"):
        peers.require(peers.relative_error(output * 1.001, exact[0]), peers.attention_gate(case), "ours")
    with pytest.raises(peers.WrongNumbersError):
        peers.require(
            peers.relative_error(output * float("nan"), exact[0]), peers.attention_gate(case), "ours"
        )


def test_trajectory():
    sizes = baseline.Sizes(n=3, d_model=8, batch=2)
    (row,) = filled(gpu_step.trajectory, "cpu", sizes, 5)
    assert row["ok"]
    assert "linear_attention" in mk.backend_report()["used"]


@pytest.fixture
def a_clock_that_counts(monkeypatch):
    """In place of the device's and the host's: every call is made once and takes 10 µs."""

    def once(calls, **keywords):
        for call in [calls] if callable(calls) else calls:
            call()
        return Times(10.0, 9.0, 11.0)

    monkeypatch.setattr(gpu_timings, "device_microseconds", once)
    monkeypatch.setattr(gpu_timings, "wall_microseconds", once)
    monkeypatch.setattr(gpu_timings, "peak_memory_bytes", lambda call: 2**20)
    # Inductor wants a C++ compiler here, and is nothing of ours.
    monkeypatch.setattr(torch, "compile", lambda function, **keywords: function)
    monkeypatch.setattr(gpu_step, "_milliseconds", lambda step, rounds, warmup: step() and 2.0)


CEILINGS = {"copy": 1e12, "bf16": 1e15, "tf32": 5e14, "fp32": 5e13}


def test_tables_of_times(monkeypatch, a_clock_that_counts):
    cases = [peers.AttentionCase(2, 6, 1, 8), peers.AttentionCase(2, 6, 1, 8, torch.bfloat16, "tf32")]
    monkeypatch.setattr(gpu_timings, "ATTENTION", cases)
    monkeypatch.setattr(gpu_timings, "COMPILED", {cases[0].name})
    monkeypatch.setattr(gpu_timings, "COSINES", [peers.CosineCase(2, 6, 8)])
    section = Section("")
    gpu_timings.attention(section, CEILINGS, lambda: 1000.0, "cpu")
    providers = {(row["case"], row["provider"]) for row in section.rows}
    for name in ("ours", "eager", "torch.compile", "torch.compile, max-autotune"):
        assert (cases[0].name, name) in providers, section.notes
    assert len(section.rows) == 2 * len(providers)
    forward = section.rows[0]
    assert forward["floor us"] == pytest.approx(1e6 * cases[0].forward_bytes() / 1e12)
    assert forward["% of roofline"] == pytest.approx(100 * forward["floor us"] / 10)
    assert {"p20", "p80", "warm us", "wall us", "peak MB", "MB", "GFLOP", "error"} <= set(forward)

    cosines = filled(gpu_timings.cosine, CEILINGS, lambda: 1000.0, "cpu")
    matrix = {row["provider"] for row in cosines if row["what"] == "matrix"}
    assert {"ours", "vectorized torch", "one GEMM", "the double loop", "torch.compile"} <= matrix
    assert {row["provider"] for row in cosines if row["what"] == "mean"} == {"ours", "vectorized torch"}
    assert all(row["error"] < 1e-5 and row["its time / ours"] == 1 for row in cosines)

    late = Section("")
    gpu_timings.attention(late, CEILINGS, lambda: 0.0, "cpu")
    gpu_timings.cosine(late, CEILINGS, lambda: 0.0, "cpu")
    assert not late.rows
    assert sum("out of time" in note for note in late.notes) == 2


def test_times_of_the_whole_step(a_clock_that_counts):
    paper = {}
    sizes = baseline.Sizes(n=3, d_model=8, batch=2, test_samples=2)
    rows = filled(gpu_step.times, paper, "cpu", sizes)
    assert paper == {"ms": 2.0}
    assert [row["measured on"] for row in rows] == ["2 + 2", "2 + 2", "2 + 2", "2", "2"]
    assert {row["model"] for row in rows} == {"plain torch"}
