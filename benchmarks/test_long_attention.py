"""Attention of any length with the masses of four sets, beside the ways people have.

Against building the map and summing it over masks (what a hook on the pattern does), and against torch's
`scaled_dot_product_attention`, which gives no masses at all. Then every head of the demonstration's model, against
`run_with_cache` on the patterns: time, and the peak memory of a fresh process each. Nothing is asserted about time.

Its page has a part for each number of threads, and one of the demonstration's model:

    OMP_NUM_THREADS=1 pytest benchmarks/test_long_attention.py -k "not heads" --table FILE --part "1 thread"
    OMP_NUM_THREADS=2 pytest benchmarks/test_long_attention.py -k "not heads" --table FILE --part "2 threads"
    OMP_NUM_THREADS=1 pytest benchmarks/test_long_attention.py -k heads --table FILE --part "every head"
"""

from __future__ import annotations

import functools
import subprocess
import sys
import time

import pytest
import torch
from side_by_side import TABLE, alternate
from torch.nn import functional as F

import mechplateau_kernels as mk

THREADS = torch.get_num_threads()
HEADS = {512: 4, 2048: 4, 8192: 1}
D = 64


def in_turns(theirs, ours, rounds):
    """Processor seconds on one thread, which others that share the machine leave as they are; wall seconds on more."""
    return alternate(
        theirs, ours, rounds=rounds, clock=time.process_time if THREADS == 1 else time.perf_counter
    )


def inputs(pos):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, pos, HEADS[pos], D, generator=generator) for _ in range(3)]


def four_sets(pos):
    """Previous token, first token, same token, induction, on repeated random tokens."""
    half = torch.randint(0, 1000, (1, pos // 2), generator=torch.Generator().manual_seed(1))
    tokens = half.repeat(1, 2)
    before = torch.cat([torch.full((1, 1), -1), tokens[:, :-1]], dim=1)
    earlier = mk.Codes(tokens, tokens) & mk.Offsets(1, None)
    return [mk.Offsets(1, 1), mk.First(1), earlier, mk.Codes(tokens, before)]


def by_map(q, k, v, masks, causal, kind):
    """The map, and its sums over masks, all of them made beforehand."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(-2, -1) * D**-0.5
    attn = (
        scores.masked_fill(~causal, 0.0)
        if kind == "linear"
        else scores.masked_fill(~causal, -torch.inf).softmax(-1)
    )
    size = attn.abs()
    return (attn @ v).transpose(1, 2), torch.stack([(size * mask).sum(-1) for mask in masks], dim=2)


@functools.cache
def prepared(pos):
    sets = four_sets(pos)
    masks = [one.dense(pos)[0] for one in sets]
    return inputs(pos), sets, masks, torch.ones(pos, pos, dtype=torch.bool).tril()


def label(kind, pos):
    return f"{kind} attention + masses of 4 sets, T{pos} H{HEADS[pos]} d{D}, {THREADS} threads"


@pytest.mark.parametrize("pos", HEADS)
@pytest.mark.parametrize("kind", ["linear", "softmax"])
def test_forward(benchmark, kind, pos):
    (q, k, v), sets, masks, causal = prepared(pos)
    operation = mk.linear_attention if kind == "linear" else mk.softmax_attention

    def ours():
        return operation(q, k, v, metric_sets=sets)

    def theirs():
        return by_map(q, k, v, masks, causal, kind)

    with torch.no_grad():
        out, (output, mass) = ours(), theirs()
        # As in `test_chunks`: of the size of the largest outputs. At 8,192 positions ours is the nearer one to float64.
        torch.testing.assert_close(out.output, output, rtol=1e-4, atol=1e-5 * float(output.abs().max()))
        torch.testing.assert_close(out.set_mass, mass, rtol=1e-4, atol=1e-4)
        rounds = {512: 20, 2048: 7, 8192: 3}[pos]
        wanted = 3 if pos >= 2048 else 1
        TABLE.faster(label(kind, pos), "map and masks", in_turns(theirs, ours, rounds), wanted)
        turned = [x.transpose(1, 2) for x in (q, k, v)]
        plain = functools.partial(F.scaled_dot_product_attention, *turned, is_causal=True)
        TABLE.costs(label(kind, pos), "SDPA, no masses", in_turns(plain, ours, rounds), 2.2)
        benchmark.pedantic(ours, rounds=2)


@pytest.mark.parametrize("kind", ["linear", "softmax"])
def test_forward_and_backward(benchmark, kind):
    """Through output and masses, beside `scaled_dot_product_attention`'s output alone."""
    inputs_, sets, _, _ = prepared(2048)
    leaves = [x.detach().clone().requires_grad_() for x in inputs_]
    operation = mk.linear_attention if kind == "linear" else mk.softmax_attention

    def ours():
        out = operation(*leaves, metric_sets=sets)
        return torch.autograd.grad(out.output.sum() + out.set_mass.sum(), leaves)

    def plain():
        output = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in leaves), is_causal=True)
        return torch.autograd.grad(output.sum(), leaves)

    name = f"{label(kind, 2048)}, forward and backward"
    TABLE.costs(name, "SDPA, no masses", in_turns(plain, ours, 5))
    benchmark.pedantic(ours, rounds=1)


@pytest.mark.parametrize("pos", HEADS)
def test_chunks(benchmark, pos):
    """Linear attention with the masses of the sets and no row mass: running sums, against blocks."""
    (q, k, v), sets, _, _ = prepared(pos)

    def by(algorithm):
        return mk.linear_attention(q, k, v, metric_sets=sets, row_mass=False, algorithm=algorithm)

    with torch.no_grad():
        chunks, blocks = by("chunk").output, by("blocked").output
        # A sum of thousands of products of both signs: rounding is of the size of the largest outputs, not of its own.
        torch.testing.assert_close(chunks, blocks, rtol=1e-4, atol=1e-5 * float(blocks.abs().max()))
        times = in_turns(lambda: by("blocked"), lambda: by("chunk"), 5)
        TABLE.faster(f"{label('linear', pos)}, in chunks, no row mass", "in blocks", times, 1)
        benchmark.pedantic(lambda: by("chunk"), rounds=1)


def test_short_sequences_are_as_fast_as_ever(benchmark):
    """T 32, the paper's size: the map in one go, as before."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(256, 32, 1, 256, generator=generator) for _ in range(3))
    mask = torch.ones(32, 32, dtype=torch.bool).tril(-1)
    causal = torch.ones(32, 32, dtype=torch.bool).tril()

    def theirs():
        a, b, c = (x.transpose(1, 2) for x in (q, k, v))
        attn = (a @ b.transpose(-2, -1) * 256**-0.5).masked_fill(~causal, 0.0)
        size = attn.abs()
        return (attn @ c).transpose(1, 2), size.sum(-1), (size * mask).sum(-1)

    with torch.no_grad():
        times = in_turns(theirs, lambda: mk.linear_attention(q, k, v, metric_sets=[mask]), 20)
        TABLE.faster(
            f"linear attention + APM's sums, B256 T32 d256, {THREADS} threads", "map and mask", times, 0.9
        )
        benchmark.pedantic(lambda: mk.linear_attention(q, k, v, metric_sets=[mask]), rounds=2)


MODEL = """
import re, sys, torch, warnings
warnings.simplefilter("ignore")
from transformer_lens import HookedTransformer, HookedTransformerConfig
from mechplateau.circuits import attention_scores, attention_sets, repeated_tokens
from mechplateau.llm import DemoConfig
demo = DemoConfig()
sizes = dict(n_layers=demo.n_layers, d_model=demo.d_model, n_heads=demo.n_heads, d_head=demo.d_model // demo.n_heads)
cfg = HookedTransformerConfig(
    n_ctx=1024, d_vocab=demo.vocab_size, act_fn="gelu", positional_embedding_type="rotary", rotary_dim=8,
    parallel_attn_mlp=True, seed=0, device="cpu", **sizes,
)
model = HookedTransformer(cfg)
tokens = repeated_tokens(demo.vocab_size, length=512, batch=4)
sets = attention_sets(tokens[:, :-1])
masks = {name: one.dense(1024) for name, one in sets.items()}

def ours():
    return attention_scores(model, tokens)

@torch.no_grad()
def theirs():
    names = lambda name: name.endswith("hook_pattern")
    _, cache = model.run_with_cache(tokens[:, :-1], names_filter=names, return_type=None)
    found = []
    for layer in range(cfg.n_layers):
        pattern = cache[f"blocks.{layer}.attn.hook_pattern"]
        found += [(pattern * mask[:, None]).sum(-1).mean((0, 2)) for mask in masks.values()]
        found.append(-torch.special.xlogy(pattern, pattern).sum(-1).mean((0, 2)))
    return found
"""
PEAK = """
def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1])
before = peak()
{which}()
print((peak() - before) / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of a process from /proc")
def test_all_heads_of_the_demo_model(benchmark):
    space: dict = {}
    exec(MODEL, space)
    times = in_turns(space["theirs"], space["ours"], 3)
    name = f"every head of the demo's model, 4 x 1,024 tokens, 5 sets and entropy, {THREADS} threads"
    TABLE.faster(name, "run_with_cache on patterns", times, 3)
    peaks = []
    for which in ("theirs", "ours"):
        code = MODEL + PEAK.format(which=which)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        peaks.append(float(done.stdout))
    TABLE.faster(f"{name}: peak memory, MB", "run_with_cache on patterns", (peaks[0], peaks[1]), 4)
    benchmark.pedantic(space["ours"], rounds=1)
