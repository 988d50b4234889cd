"""Attention of any length in blocks: against the whole map in float64, and what it takes of memory."""

import math
import os
import subprocess
import sys

import pytest
import torch

import mechplateau_kernels as mk
from mechplateau_kernels.attention import blocked, blocks
from mechplateau_kernels.attention.kind import Kind, Sets, encode

OPERATIONS = {"linear": mk.linear_attention, "softmax": mk.softmax_attention}
FIELDS = ("output", "row_mass", "set_mass", "largest", "largest_at", "entropy")


def tensors(seed, batch, pos, heads, d_head, d_v, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, pos, heads, d, generator=generator).to(dtype) for d in (d_head, d_head, d_v)]


def some_sets(batch, pos, seed=0):
    """One of each kind, among them an empty one and one that differs between samples."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 7, (batch, pos), generator=generator)
    before = torch.cat([torch.full((batch, 1), -1), tokens[:, :-1]], dim=1)
    rare = torch.randint(0, 5 * pos, (batch, pos), generator=generator)
    listed = torch.stack([torch.arange(pos), torch.full((pos,), -1)], dim=1)
    return [
        mk.Offsets(1, 1), mk.Offsets(3, None), mk.First(2), mk.Codes(tokens, tokens) & mk.Offsets(1, None),
        mk.Codes(tokens, before), mk.Codes(rare, rare), mk.Listed(listed), mk.First(0),
        torch.rand(batch, pos, pos, generator=generator) < 0.3,
    ]  # fmt: skip


def both_ways(operation, inputs, gradients=True, **options):
    """Results and gradients in blocks and with the whole map, by name."""
    found = []
    for algorithm in ("blocked", "map"):
        leaves = [x.detach().requires_grad_() for x in inputs]
        out = operation(*leaves, algorithm=algorithm, **options)._asdict()
        if gradients:
            generator = torch.Generator().manual_seed(5)
            smooth = [x for name, x in out.items() if x.requires_grad and x.numel() and name != "largest"]
            weights = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in smooth]
            total = sum((torch.nan_to_num(x) * w).sum() for x, w in zip(smooth, weights, strict=True))
            out |= dict(zip(("dq", "dk", "dv"), torch.autograd.grad(total, leaves), strict=True))
        found.append(out)
    return found


def same(got, want, rtol=1e-10):
    assert got.keys() == want.keys()
    for name, x in got.items():
        torch.testing.assert_close(
            x, want[name], rtol=rtol, atol=rtol, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("pos", [1, 63, 64, 65, 127, 130, 257])
def test_blocks_equal_the_map(operation, pos, monkeypatch):
    # Small tiles, so that samples and heads fall into several of them.
    monkeypatch.setattr(blocks, "TILE", 3 * 128 * 128)
    # Weights on listed keys are summed at the end, or block by block where they would be too many.
    monkeypatch.setattr(blocked, "WHOLE", blocked.WHOLE if pos % 2 == 0 else 0)
    inputs = tensors(pos, 2, pos, 3, 7, 5)
    same(*both_ways(OPERATIONS[operation], inputs, metric_sets=some_sets(2, pos), row_statistics=True))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_blocks_equal_the_map_at_a_thousand(operation):
    inputs = tensors(0, 1, 1024, 1, 16, 16)
    same(*both_ways(OPERATIONS[operation], inputs, metric_sets=some_sets(1, 1024), row_statistics=True))


REQUESTS = {
    "not causal": {"causal": False},
    "a factor": {"intervene": "codes", "c": -2.5},
    "a factor in a tensor": {"intervene": "codes", "c": torch.tensor(0.5)},
    "a knock-out": {"intervene": mk.Offsets(0, 3), "c": 0.0},
    "a window": {"allowed": mk.Offsets(0, 9)},
    "a window, and a factor": {"allowed": mk.Offsets(0, 140), "intervene": mk.First(3), "c": 3.0},
    "rows without keys": {"allowed": mk.Offsets(2, 40)},
    "rows without keys, not causal": {"allowed": mk.Offsets(2, 4), "causal": False},
    "far keys only": {"allowed": mk.First(3)},
    "a mask": {"allowed": "mask"},
    "another scale": {"scale": -0.3},
}
SOFTMAX_REQUESTS = {
    "a bias": {"intervene": "codes", "bias": 1.5},
    "a bias and a factor": {"intervene": "codes", "bias": -0.5, "c": 2.0},
    "all keys knocked out": {"intervene": mk.Offsets(0, None), "bias": -math.inf},
    "some keys knocked out": {"intervene": mk.Offsets(0, 3), "bias": -math.inf},
    "soft cap": {"soft_cap": 0.7},
    "soft cap, bias and window": {
        "soft_cap": 2.0, "intervene": mk.First(2), "bias": 1.0, "allowed": mk.Offsets(0, 100)
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("operation", "request_"),
    [(o, r) for o in OPERATIONS for r in REQUESTS] + [("softmax", r) for r in SOFTMAX_REQUESTS],
)
def test_requests(operation, request_):
    pos = 150
    options = dict((REQUESTS | SOFTMAX_REQUESTS)[request_])
    sets = some_sets(2, pos)
    named = {"codes": sets[3], "mask": sets[-1]}
    options = {key: named.get(x, x) if isinstance(x, str) else x for key, x in options.items()}
    inputs = tensors(1, 2, pos, 2, 6, 4)
    same(*both_ways(OPERATIONS[operation], inputs, metric_sets=sets[::2], row_statistics=True, **options))


def test_what_a_factor_and_a_bias_do_to_a_row():
    """Three keys of equal scores: a third each."""
    q = torch.zeros(1, 3, 1, 2)
    v = torch.tensor([1.0, 10.0, 100.0]).view(1, 3, 1, 1)
    first = mk.First(1)
    for sets in ([first], [first.dense(3)[0]]):
        scaled = mk.softmax_attention(q, q, v, intervene=first, c=0.0, metric_sets=sets)
        assert scaled.output[0, 2].item() == pytest.approx(110 / 3)
        assert scaled.row_mass[0, 0].tolist() == pytest.approx([0.0, 1 / 2, 2 / 3])
        assert scaled.set_mass[0, 0, 0].tolist() == [0.0, 0.0, 0.0]
        biased = mk.softmax_attention(q, q, v, intervene=first, bias=math.log(2.0), metric_sets=sets)
        assert biased.row_mass[0, 0].tolist() == pytest.approx([1.0, 1.0, 1.0])
        assert biased.set_mass[0, 0, 0].tolist() == pytest.approx([1.0, 2 / 3, 1 / 2])
        gone = mk.softmax_attention(q, q, v, intervene=first, bias=-math.inf, row_statistics=True)
        assert gone.output.flatten().tolist() == pytest.approx([0.0, 10.0, 55.0])
        assert gone.largest_at.flatten().tolist()[:2] == [-1, 1]
        assert gone.entropy[0, 0, 0].isnan()
        assert gone.entropy[0, 0, 1:].tolist() == pytest.approx([0.0, math.log(2.0)])


def test_uniform_attention_has_the_closed_form():
    pos = 200
    q = torch.zeros(1, pos, 2, 4)
    sets = some_sets(1, pos)
    out = mk.softmax_attention(q, q, torch.ones(1, pos, 2, 1), metric_sets=sets, row_statistics=True)
    keys = torch.arange(1, pos + 1)
    for s, chosen in enumerate(sets):
        count = chosen.count(pos) if isinstance(chosen, mk.PositionSet) else chosen.tril().sum(-1)
        torch.testing.assert_close(out.set_mass[0, 0, s], count[0] / keys)
    torch.testing.assert_close(out.entropy[0, 0], keys.log())
    torch.testing.assert_close(out.largest[0, 0], 1 / keys)


def test_induction_and_previous_token_heads_have_all_their_mass_there():
    """Queries and keys as codes: one head looks for its token's successor, one for the position before."""
    pos, vocab = 96, 48
    tokens = torch.randperm(vocab, generator=torch.Generator().manual_seed(0)).repeat(2)[None]
    before = torch.cat([torch.full((1, 1), -1), tokens[:, :-1]], dim=1)
    width = max(vocab, pos)

    def one_hot(codes):
        return torch.nn.functional.one_hot(codes.clamp(min=0), width) * (codes >= 0)[..., None] * 60.0

    place = torch.arange(pos)[None]
    q = torch.stack([one_hot(tokens), one_hot(place - 1)], dim=2)
    k = torch.stack([one_hot(before), one_hot(place)], dim=2)
    induction, previous = mk.Codes(tokens, before), mk.Offsets(1, 1)
    out = mk.softmax_attention(q, k, q, metric_sets=[induction, previous])
    torch.testing.assert_close(out.set_mass[0, 0, 0, vocab:], torch.ones(pos - vocab))
    torch.testing.assert_close(out.set_mass[0, 1, 1, 1:], torch.ones(pos - 1))
    assert out.set_mass[0, 1, 0, vocab:].max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_lower_precision_computes_in_float32(operation, dtype):
    inputs = tensors(2, 1, 130, 2, 16, 16, dtype)
    sets = some_sets(1, 130)
    out = OPERATIONS[operation](*inputs, metric_sets=sets)
    want = OPERATIONS[operation](*(x.double() for x in inputs), metric_sets=sets)
    assert out.output.dtype == dtype
    assert out.row_mass.dtype == torch.float32
    tolerance = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}[dtype]
    assert (out.output.double() - want.output).norm() <= tolerance * want.output.norm()
    assert (out.set_mass.double() - want.set_mass).norm() <= 1e-6 * want.set_mass.norm()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_raw_scores_beyond_float16_survive(operation):
    q = torch.full((1, 80, 1, 128), 30.0, dtype=torch.float16)  # raw scores 115200 > 65504
    out = OPERATIONS[operation](q, q, torch.full_like(q, 0.001))
    assert out.output.isfinite().all()
    each = 1 / torch.arange(1, 81) if operation == "softmax" else torch.full((80,), 115200 / math.sqrt(128))
    torch.testing.assert_close(out.row_mass.flatten(), each * torch.arange(1, 81), rtol=1e-6, atol=0)


def test_integers_come_out_to_the_bit():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randint(-1, 2, (2, 130, 2, 16), generator=generator).float() for _ in range(3))
    q *= torch.randint(0, 2**12, q.shape, generator=generator) * (
        torch.rand(q.shape, generator=generator) < 0.2
    )
    sets = some_sets(2, 130)
    options = {"scale": 0.125, "intervene": sets[3], "c": 4.0, "metric_sets": sets}
    got = mk.linear_attention(q, k, v, **options)
    want = mk.linear_attention(q.double(), k.double(), v.double(), algorithm="map", **options)
    # And with running sums: narrow heads, no intervention.
    narrow = [x[..., :8] for x in (q, k, v)]
    got += mk.linear_attention(*narrow, scale=0.125, metric_sets=sets)
    want += mk.linear_attention(*(x.double() for x in narrow), scale=0.125, metric_sets=sets, algorithm="map")
    for x, y in zip(got, want, strict=True):
        assert torch.equal(x, y.float())


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_where_a_bad_number_goes(operation, bad):
    """In a query: to its row. In a key: to the rows that see it."""
    clean = OPERATIONS[operation](*tensors(3, 1, 140, 1, 4, 4))
    for which, row in ((0, 70), (1, 70)):
        inputs = tensors(3, 1, 140, 1, 4, 4)
        inputs[which][0, row] = bad
        out = OPERATIONS[operation](*inputs)
        same = (out.output == clean.output).all(-1).flatten()
        assert same[:row].all()
        assert not same[row]
        assert same[row + 1 :].all() if which == 0 else True


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_call_in_any_layout_gives_the_same_bits(operation):
    inputs = tensors(4, 2, 70, 2, 8, 8, torch.float32)
    plain = OPERATIONS[operation](*inputs)
    other = OPERATIONS[operation](*(x.transpose(1, 3).contiguous().transpose(1, 3) for x in inputs))
    assert all(torch.equal(x, y) for x, y in zip(plain, other, strict=True))
    again = OPERATIONS[operation](*inputs)
    assert all(torch.equal(x, y) for x, y in zip(plain, again, strict=True))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_empty_batch(operation):
    q = torch.zeros(0, 70, 2, 4, requires_grad=True)
    codes = torch.zeros(0, 70, dtype=torch.long)
    sets = [mk.Offsets(1, 1), mk.First(1), mk.Codes(codes, codes), mk.Listed(codes[..., None])]
    out = OPERATIONS[operation](q, q, q, metric_sets=sets, row_statistics=True)
    assert [list(x.shape) for x in out] == [[0, 70, 2, 4], [0, 2, 70], [0, 2, 4, 70], *[[0, 2, 70]] * 3]
    out.output.sum().backward()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_gradients_by_finite_differences(operation):
    inputs = [x.requires_grad_() for x in tensors(5, 1, 4, 1, 2, 1)]
    sets = [mk.Offsets(1, 2), mk.First(1)]

    def smooth(*inputs):
        out = OPERATIONS[operation](
            *inputs, metric_sets=sets, intervene=mk.First(2), c=1.5, row_statistics=True, algorithm="blocked"
        )
        return out.output, out.row_mass, out.set_mass, out.entropy

    assert torch.autograd.gradcheck(smooth, inputs)
    assert torch.autograd.gradgradcheck(smooth, inputs, atol=1e-4)


def test_the_largest_weight_gives_no_gradient():
    q = torch.ones(1, 3, 1, 2, requires_grad=True)
    out = mk.softmax_attention(q, q, q, row_statistics=True)
    assert not out.largest.requires_grad
    assert out.entropy.requires_grad


def test_a_learned_factor_gets_its_gradient():
    q, k, v = tensors(6, 1, 70, 1, 4, 4)
    for operation in OPERATIONS.values():
        c = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
        operation(q, k, v, intervene=mk.First(1), c=c).output.sum().backward()
        slope = [
            operation(q, k, v, intervene=mk.First(1), c=x).output.sum().item() for x in (2.0, 3.0)
        ]  # linear in c
        assert c.grad.item() == pytest.approx(slope[1] - slope[0])
        with pytest.raises(ValueError, match="no gradient of c"):
            operation(q, k, v, intervene=mk.First(1), c=c, algorithm="blocked")


def attend(q):
    sets = [mk.Offsets(1, 1), CODES]
    out = mk.softmax_attention(q, q, q, metric_sets=sets, row_statistics=True)
    linear = mk.linear_attention(q, q, q, metric_sets=sets, intervene=CODES, c=2.0)
    return out.output.sum() + out.entropy.sum() + (out.set_mass**2).sum() + (linear.set_mass**2).sum()


CODES_OF_66 = mk.Codes(torch.arange(66) % 5, torch.arange(66) % 3)
CODES = mk.Codes(torch.arange(70) % 5, torch.arange(70) % 3)


@pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)  # torch.compile's own doing
@pytest.mark.parametrize("dynamic", [False, True])
def test_it_compiles_without_a_graph_break(dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(attend, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for batch in (2, 3):
        q = torch.randn(batch, 70, 1, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
        torch.testing.assert_close(compiled(q), attend(q))
        torch.testing.assert_close(torch.autograd.grad(compiled(q), q), torch.autograd.grad(attend(q), q))


def test_it_maps():
    q = torch.randn(3, 2, 70, 1, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.func.vmap(attend)(q), torch.stack([attend(x) for x in q]))
    got = torch.func.vmap(torch.func.grad(attend))(q)
    torch.testing.assert_close(got, torch.stack([torch.func.grad(attend)(x) for x in q]))


def test_the_operation_keeps_its_promises():
    q, k, v = tensors(7, 2, 66, 1, 4, 4, torch.float32)
    held, numbers = encode(Sets([mk.Offsets(1, 1), CODES_OF_66], None, None))
    kind = Kind(True, 0.5, 0.0, True, 1.0, 0.0, 2, False, False, "all", True, "blocked", "auto")
    arguments = (q, k, v, None, held, numbers, *kind)
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_static", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.mechplateau.attention.default, arguments, test_utils=tests)
    mass = torch.ones(2, 1, 66)
    for grads in ((v, mass, mass[:, :, None].expand(-1, -1, 2, -1), mass), (v, None, None, None)):
        torch.library.opcheck(
            torch.ops.mechplateau.attention_backward.default,
            (*grads, None, None, *arguments),
            test_utils=tests,
        )


def test_autocast_multiplies_in_its_dtype_and_sums_in_float32():
    q, k, v = tensors(8, 1, 70, 1, 8, 8, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = mk.softmax_attention(q, k, v)
    assert out.output.dtype == torch.bfloat16
    assert out.row_mass.dtype == torch.float32
    assert torch.equal(out.output, mk.softmax_attention(q.bfloat16(), k.bfloat16(), v.bfloat16()).output)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "fast"}, "algorithm: expected one of"),
        ({"algorithm": "tile", "backend": "torch"}, 'runs on triton, and backend="torch"'),
        ({"soft_cap": -1.0}, "soft_cap"),
        ({"bias": math.nan}, "bias"),
        ({"allowed": mk.Listed(torch.tensor([[0], [1]]))}, "was made for 1 samples of 2 positions"),
        ({"metric_sets": ["first"]}, "a bool tensor or a set; got str"),
        ({"metric_sets": mk.First(1)}, "metric_sets: expected a list of sets; got one PositionSet"),
        ({"metric_sets": torch.ones(5, 5).bool()}, "metric_sets: expected a list of sets; got one Tensor"),
        ({"intervene": mk.First(1), "c": "half"}, "c: expected a float or a 0-d tensor; got str"),
        (
            {"metric_sets": [mk.Codes(torch.zeros(3, 5).long(), torch.zeros(3, 5).long())]},
            "made for 3 samples",
        ),
    ],
)
def test_what_cannot_be_done_is_said(options, message):
    q = torch.zeros(2, 5, 1, 3)
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        mk.softmax_attention(q, q, q, **options)
    assert "\n" not in str(caught.value)


MEMORY = r"""
import re, sys, torch, mechplateau_kernels as mk
torch.set_num_threads(1)
operations = [getattr(mk, sys.argv[1])] if sys.argv[1] != "both" else []
def run(pos):
    q, k, v = (torch.randn(1, pos, 1, 64, requires_grad=True) for _ in range(3))
    sets = [mk.Offsets(1, 1), mk.First(1)]
    for operation in operations:
        out = operation(q, k, v, metric_sets=sets, row_statistics=True)
        (out.output.sum() + out.set_mass.sum() + out.entropy.sum()).backward()
    if not operations:
        out = mk.softmax_attention(q, k, v, metric_sets=sets, row_statistics="entropy", algorithm="lse")
        (out.output.sum() + out.set_mass.sum() + out.entropy.sum()).backward()
        out = mk.linear_attention(q, k, v, metric_sets=sets, row_mass=False, algorithm="chunk")
        (out.output.sum() + out.set_mass.sum()).backward()
def peak():
    return int(re.search(r"VmHWM:\s*(\d+) kB", open("/proc/self/status").read())[1])
run(256)
before = peak()
for pos in (2048, 8192):
    run(pos)
    print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of a process from /proc")
@pytest.mark.parametrize("operation", ["linear_attention", "softmax_attention", "both"])
def test_memory_grows_with_the_length_and_not_with_its_square(operation):
    """Forward and backward, first of the shorter length; a map would grow 16 times. "both": softmax by sums of
    exponentials, and linear in chunks."""
    # What is freed goes back to the system at once: tensors are measured, not the allocator's heap.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, "-c", MEMORY, operation]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    peaks = [int(line) / 1024 for line in done.stdout.split()]
    assert 1 < peaks[1] <= 4.5 * peaks[0], peaks
