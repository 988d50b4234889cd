"""The kernels side by side with other ways to the same numbers, at equal precision.

On a CUDA device times are the device's, by graph replay over inputs larger than the L2 cache; without one
the vectorized torch paths are compared with the paper's loop and with plain torch. Nothing is asserted about
time; a kernel whose numbers are off fails and gets no row. `gpu_check.py` does more, and records it.
"""

from __future__ import annotations

import functools

import kernel_peers as peers
import paper_baseline as baseline
import pytest
import torch
from kernel_timing import best_in_turns, copy_bytes_per_second, device_microseconds, device_name
from side_by_side import TABLE, alternate

import mechplateau_kernels as mk

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
PAPER = peers.AttentionCase(256, 32, 1, 256)
ROWS_16, ROWS_256 = peers.CosineCase(256, 16, 256), peers.CosineCase(256, 256, 256)


@functools.cache
def bandwidth():
    """Bytes a second of a large copy on this card."""
    return copy_bytes_per_second()


def compare(benchmark, name, reference, theirs, ours, inputs, wanted, errors, moved):
    """Time `theirs` and `ours`, called as `f(*inputs[i])`, and add a row; `errors` of (ours, theirs), and the
    bytes that must be `moved` at least."""
    label = f"{name} (error {errors[0]:.1e}, theirs {errors[1]:.1e}; {device_name(DEVICE)})"
    if CUDA:
        times = tuple(
            device_microseconds([lambda f=f, x=x: f(*x) for x in inputs]).median / 1e6 for f in (theirs, ours)
        )
        label = f"{label}, {100 * moved / bandwidth() / times[1]:.0f} % of the memory roofline"
    else:
        times = best_in_turns(lambda: theirs(*inputs[0]), lambda: ours(*inputs[0]), rounds=30)
        label = f"{label}, best of 30"
    benchmark.extra_info["ratio"] = TABLE.faster(label, reference, times, wanted)
    benchmark.pedantic(
        lambda: (ours(*inputs[0]), CUDA and torch.cuda.synchronize()), rounds=5, warmup_rounds=1
    )


def attention_inputs(case):
    return [(*case.inputs(DEVICE, seed)[:3], case.chosen(DEVICE)) for seed in range(4 if CUDA else 1)]


def attention_errors(case, ours, theirs, inputs):
    exact = peers.exact_attention(*inputs[0])
    errors = []
    for attend in (ours, theirs):
        output, progress = attend(*inputs[0])
        errors.append(peers.relative_error(output, exact[0]))
        if progress is not None:
            assert abs(progress.item() - exact[1].item()) < 1e-3
    peers.require(errors[0], peers.attention_gate(case), f"linear_attention {case.name}")
    return errors


def with_gradients(attend):
    def both(q, k, v, chosen, g):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(attend(*leaves, chosen)[0], leaves, g)

    return both


@pytest.fixture(scope="module")
def compiled():
    return peers.compiled_attention()


def test_attention_forward_against_eager(benchmark):
    ours, inputs = peers.our_attention("auto"), attention_inputs(PAPER)
    errors = attention_errors(PAPER, ours, peers.eager_attention, inputs)
    wanted = 3 if CUDA else 0.9  # on a CPU: as fast as plain torch, no faster
    with torch.no_grad():
        compare(benchmark, f"attention forward + APM, {PAPER.name}", "eager", peers.eager_attention, ours,
                inputs, wanted, errors, PAPER.forward_bytes())  # fmt: skip


def test_attention_forward_and_backward_against_eager(benchmark):
    ours, inputs = peers.our_attention("auto"), attention_inputs(PAPER)
    errors = attention_errors(PAPER, ours, peers.eager_attention, inputs)
    inputs = [(*x, PAPER.inputs(DEVICE, seed)[3]) for seed, x in enumerate(inputs)]
    theirs, ours = with_gradients(peers.eager_attention), with_gradients(ours)
    exact = with_gradients(peers.eager_attention)(
        *(x if x.dtype == torch.bool else x.double() for x in inputs[0])
    )
    for ours_grad, exact_grad in zip(ours(*inputs[0]), exact, strict=True):
        peers.require(peers.relative_error(ours_grad, exact_grad), peers.attention_gate(PAPER), "gradients")
    wanted = 1.8 if CUDA else 0.9
    compare(benchmark, f"attention forward + backward, {PAPER.name}", "eager", theirs, ours, inputs, wanted,
            errors, PAPER.forward_bytes() + PAPER.backward_bytes())  # fmt: skip


@pytest.mark.skipif(
    not CUDA, reason="on a CPU, torch.compile needs a C++ compiler and says nothing about Triton"
)
def test_attention_forward_against_compile(benchmark, compiled):
    ours, inputs = peers.our_attention("auto"), attention_inputs(PAPER)
    with torch.no_grad():
        errors = attention_errors(PAPER, ours, compiled, inputs)
        compare(benchmark, f"attention forward + APM, {PAPER.name}", "torch.compile", compiled, ours, inputs,
                1.3, errors, PAPER.forward_bytes())  # fmt: skip


def test_attention_forward_against_fla(benchmark):
    forms = peers.fla_attention()
    if isinstance(forms, str):
        pytest.skip(forms)
    if not CUDA:
        pytest.skip("flash-linear-attention runs on a GPU")
    # Its float32 is tf32, so ours is as well.
    case = peers.AttentionCase(256, 32, 1, 256, precision="tf32")
    theirs = forms["fla chunk (no APM)"]
    ours, inputs = peers.our_attention("tf32"), attention_inputs(case)
    with torch.no_grad():
        errors = attention_errors(case, ours, theirs, inputs)
        compare(benchmark, f"attention forward (theirs without APM), {case.name}", "fla chunk", theirs, ours,
                inputs, 1, errors, case.forward_bytes())  # fmt: skip


def cosine_inputs(case):
    return [(case.input(DEVICE, seed),) for seed in range(4 if CUDA else 1)]


def matrix_peers():
    return {
        "the double loop": baseline.cosine_double_loop,
        "vectorized torch": peers.vectorized_cosine,
        "one GEMM": peers.one_gemm_cosine,
        "torchmetrics": peers.torchmetrics_cosine(),
    }


def lower(matrix):
    """What the double loop fills."""
    return matrix.tril(-1)


@pytest.mark.parametrize("peer", list(matrix_peers()))
def test_cosine_matrix(benchmark, peer):
    theirs = matrix_peers()[peer]
    if isinstance(theirs, str):
        pytest.skip(theirs)
    inputs = cosine_inputs(ROWS_16)
    exact = lower(peers.exact_cosine(*inputs[0]))
    errors = [
        peers.relative_error(lower(f(*inputs[0])).to(DEVICE), exact) for f in (mk.pairwise_cosine, theirs)
    ]
    peers.require(errors[0], peers.COSINE_GATE, "pairwise_cosine")
    wanted = {"the double loop": 300 if CUDA else 8, "vectorized torch": 3 if CUDA else 1}.get(peer, 1)
    if CUDA and peer in ("the double loop", "torchmetrics"):
        # These wait for the device or launch thousands of kernels: the host's clock is the fair one.
        times = alternate(
            lambda: (theirs(*inputs[0]), torch.cuda.synchronize()),
            lambda: (mk.pairwise_cosine(*inputs[0]), torch.cuda.synchronize()),
            rounds=5, inner=20,
        )  # fmt: skip
        TABLE.faster(f"cosine matrix, {ROWS_16.name}, wall clock", peer, times, wanted)
        benchmark.pedantic(lambda: (mk.pairwise_cosine(*inputs[0]), torch.cuda.synchronize()), rounds=5)
        return
    compare(benchmark, f"cosine matrix, {ROWS_16.name}", peer, theirs, mk.pairwise_cosine, inputs, wanted,
            errors, ROWS_16.bytes())  # fmt: skip


@pytest.mark.parametrize(
    ("case", "peer", "wanted"),
    [
        (ROWS_16, "the double loop", 15),
        (ROWS_16, "vectorized torch", 1.5),
        (ROWS_256, "vectorized torch", 3),
    ],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_cosine_mean(benchmark, case, peer, wanted):
    if CUDA and peer == "the double loop":
        pytest.skip("compared as a matrix, by the host's clock")
    matrix = matrix_peers()[peer]
    inputs = cosine_inputs(case)
    exact = peers.mean_of_matrix(peers.exact_cosine(*inputs[0]))

    def theirs(h):
        return peers.mean_of_matrix(matrix(h))

    errors = [peers.relative_error(f(*inputs[0]), exact) for f in (mk.mean_pairwise_cosine, theirs)]
    peers.require(errors[0], peers.COSINE_GATE, "mean_pairwise_cosine")
    compare(benchmark, f"cosine mean, {case.name}", peer, theirs, mk.mean_pairwise_cosine, inputs, wanted,
            errors, case.bytes())  # fmt: skip
