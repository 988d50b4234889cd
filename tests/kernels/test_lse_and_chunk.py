"""Attention by torch's flash kernel (softmax) and in chunks (linear), against the whole map in float64."""

import math

import pytest
import torch

import mechplateau_kernels as mk
from mechplateau_kernels.attention import any_length, chunk, gathered
from mechplateau_kernels.attention.kind import Kind, Sets, encode

WAYS = {"lse": mk.softmax_attention, "chunk": mk.linear_attention}
OPTIONS = {"lse": {"row_statistics": "entropy"}, "chunk": {"row_mass": False}}


def tensors(seed, batch, pos, heads, d_head, d_v, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, pos, heads, d, generator=generator).to(dtype) for d in (d_head, d_head, d_v)]


def some_sets(batch, pos):
    """One of each kind, among them an empty one and one that differs between samples."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, max(2, pos // 4), (batch, pos), generator=generator)
    before = torch.cat([torch.full((batch, 1), -1), tokens[:, :-1]], dim=1)
    listed = torch.stack([torch.arange(pos), torch.full((pos,), -1)], dim=1)
    return [
        mk.Offsets(1, 1), mk.Offsets(-2, 3), mk.First(2), mk.First(0), mk.Codes(tokens, before),
        mk.Codes(tokens, tokens) & mk.Offsets(1, None), mk.Codes(tokens[:1], tokens[:1]) & mk.First(9),
        mk.Listed(listed), mk.Offsets(pos + 1, pos + 2),
    ]  # fmt: skip


def everything(way, inputs, algorithm, **options):
    """Results and gradients by name; of the map, what the other way leaves out is empty as well."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = WAYS[way](*leaves, algorithm=algorithm, **OPTIONS[way] | options)._asdict()
    generator = torch.Generator().manual_seed(5)
    smooth = [x for x in out.values() if x.requires_grad and x.numel()]
    weights = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype) for x in smooth]
    total = sum((x * w).sum() for x, w in zip(smooth, weights, strict=True))
    return out | dict(zip(("dq", "dk", "dv"), torch.autograd.grad(total, leaves), strict=True))


def same(got, want, tolerance=1e-10):
    assert got.keys() == want.keys()
    for name, x in got.items():
        assert x.shape == want[name].shape, name
        error = (x.double() - want[name].double()).norm()
        assert error <= tolerance * (1 + want[name].double().norm()), (name, error)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pos", [1, 63, 64, 65, 127, 130, 257, 1024])
def test_it_equals_the_map(way, pos, monkeypatch):
    # Small parts, so that samples and queries fall into several of them.
    monkeypatch.setattr(gathered, "PART", 40 * 3 * 7 * 10)
    monkeypatch.setattr(gathered, "LISTS", 100 * 40)
    batch = 1 if pos == 1024 else 2
    inputs = tensors(pos, batch, pos, 3, 7, 5)
    sets = some_sets(batch, pos)
    same(*(everything(way, inputs, algorithm, metric_sets=sets) for algorithm in (way, "map")))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "options",
    [{"causal": False}, {"scale": -0.3}, {"scale": 0.0}, {"metric_sets": []}, {"row_statistics": False}],
    ids=str,
)
@pytest.mark.parametrize("widths", [(5, 80), (80, 5), (1, 1)], ids=str)
def test_requests(way, options, widths):
    options = {"metric_sets": some_sets(2, 70)} | options
    inputs = tensors(1, 2, 70, 2, *widths)
    same(*(everything(way, inputs, algorithm, **options) for algorithm in (way, "map")))


@pytest.mark.parametrize("way", WAYS)
def test_float32_has_its_accuracy(way):
    inputs = tensors(2, 1, 300, 2, 64, 64, torch.float32)
    sets = some_sets(1, 300)
    got = everything(way, inputs, way, metric_sets=sets)
    want = everything(way, [x.double() for x in inputs], "map", metric_sets=sets)
    assert got["output"].dtype == got["set_mass"].dtype == torch.float32
    same(got, want, 2e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_chunks_compute_lower_precision_in_float32(dtype):
    inputs = tensors(2, 1, 130, 2, 16, 16, dtype)
    got = everything("chunk", inputs, "chunk", metric_sets=some_sets(1, 130))
    want = everything("chunk", [x.float() for x in inputs], "chunk", metric_sets=some_sets(1, 130))
    assert torch.equal(got["output"], want["output"].to(dtype))
    assert torch.equal(got["set_mass"], want["set_mass"])
    q = torch.full((1, 80, 1, 128), 30.0, dtype=torch.float16)  # raw scores 115200 > 65504
    out = mk.linear_attention(
        q, q, q / 1000, algorithm="chunk", row_mass=False, metric_sets=[mk.Offsets(0, 0)]
    )
    assert out.output.isfinite().all()
    torch.testing.assert_close(out.set_mass.flatten(), torch.full((80,), 115200 / math.sqrt(128)))


def test_integers_come_out_of_chunks_to_the_bit():
    """Factors of 13 bits, which tf32 would cut off; every sum stays below 24."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randint(-1, 2, (2, 130, 2, 16), generator=generator).float() for _ in range(3))
    wide = 2 * torch.randint(2048, 4096, q.shape, generator=generator) + 1
    q *= wide * (torch.rand(q.shape, generator=generator) < 0.1)
    options = {"scale": 0.125, "metric_sets": some_sets(2, 130), "row_mass": False}
    got = mk.linear_attention(q, k, v, algorithm="chunk", **options)
    want = mk.linear_attention(q.double(), k.double(), v.double(), algorithm="map", **options)
    for x, y in zip(got, want, strict=True):
        assert torch.equal(x, y.float())


@pytest.mark.parametrize("way", WAYS)
def test_a_call_in_any_layout_gives_the_same(way):
    inputs = tensors(4, 2, 70, 2, 8, 8)
    changes = [
        lambda x: x.transpose(1, 3).contiguous().transpose(1, 3),  # no stride of 1 where it is looked for
        lambda x: torch.stack([x, x], dim=-1)[..., 0],
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    ]
    plain = everything(way, inputs, way, metric_sets=some_sets(2, 70))
    for change in changes:
        same(everything(way, [change(x) for x in inputs], way, metric_sets=some_sets(2, 70)), plain)
    again = everything(way, inputs, way, metric_sets=some_sets(2, 70))
    assert all(torch.equal(x, y) for x, y in zip(plain.values(), again.values(), strict=True))
    one = [x[:1].expand(3, -1, -1, -1) for x in inputs]
    same(everything(way, one, way), everything(way, one, "map"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_where_a_bad_number_goes(way, bad):
    """In a query: to its row. In a key: to later rows, of softmax as with the map. In a value: not to other columns."""
    inputs = tensors(3, 1, 140, 1, 4, 4)
    sets = [mk.Offsets(1, 1)]
    clean = WAYS[way](*inputs, algorithm=way, metric_sets=sets, **OPTIONS[way])
    for which in (0, 1, 2):
        changed = [x.clone() for x in inputs]
        changed[which][0, 70, 0, 1] = bad
        got = WAYS[way](*changed, algorithm=way, metric_sets=sets, **OPTIONS[way])
        want = WAYS[way](*changed, algorithm="map", metric_sets=sets, **OPTIONS[way])
        torch.testing.assert_close(got.set_mass, want.set_mass, equal_nan=True)
        torch.testing.assert_close(got.row_mass, want.row_mass, equal_nan=True)
        assert not want.output[0, 70:].isfinite().all()
        if which == 0 or (which == 1 and way == "lse"):
            torch.testing.assert_close(got.output, want.output, equal_nan=True)
        elif which == 1:
            assert torch.equal(got.output[:, :64], clean.output[:, :64])
            assert not got.output[:, 70:].isfinite().any()
        else:
            assert torch.equal(got.output[..., [0, 2, 3]], clean.output[..., [0, 2, 3]])
            assert not got.output[0, 70:, 0, 1].isfinite().any()


@pytest.mark.parametrize("way", WAYS)
def test_gradients_by_finite_differences(way):
    inputs = [x.requires_grad_() for x in tensors(5, 1, 4, 1, 2, 1)]

    def smooth(*inputs):
        out = WAYS[way](*inputs, metric_sets=[mk.Offsets(1, 2), mk.First(1)], algorithm=way, **OPTIONS[way])
        return [x for x in out if x.requires_grad and x.numel()]

    assert len(smooth(*inputs)) == (4 if way == "lse" else 2)
    assert torch.autograd.gradcheck(smooth, inputs)
    assert torch.autograd.gradgradcheck(smooth, inputs, atol=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_only_what_asks_for_a_gradient_gets_one(way):
    q, k, v = tensors(6, 1, 70, 1, 4, 4)
    out = WAYS[way](q, k, v.requires_grad_(), algorithm=way, metric_sets=[mk.First(1)], **OPTIONS[way])
    assert out.output.requires_grad
    assert not any(x.requires_grad for x in out[1:])
    q.requires_grad_()
    out = WAYS[way](q, k, v, algorithm=way, metric_sets=[mk.First(1)], **OPTIONS[way])
    (of_mass,) = torch.autograd.grad(out.set_mass.sum(), q)
    want = WAYS[way](q, k, v, algorithm="map", metric_sets=[mk.First(1)], **OPTIONS[way])
    torch.testing.assert_close(of_mass, torch.autograd.grad(want.set_mass.sum(), q)[0])


@pytest.mark.parametrize("algorithm", ["map", "blocked", *WAYS])
@pytest.mark.parametrize("pos", [3, 128])
def test_results_can_be_changed_in_place_as_hooks_do(algorithm, pos):
    """One sample, head and set: transposed or not, a tensor then lies the same in memory."""
    for way in [algorithm] if algorithm in WAYS else WAYS:
        q = torch.ones(1, pos, 1, 4, requires_grad=True)
        out = WAYS[way](q, q, q, algorithm=algorithm, metric_sets=[mk.First(1)], **OPTIONS[way])
        (out.output.mul_(2.0).sum() + out.set_mass.mul_(2.0).sum()).backward()
        assert q.grad.isfinite().all()


def attend(way, q):
    sets = [mk.Offsets(1, 1), CODES]
    out = WAYS[way](q, q, q, metric_sets=sets, algorithm=way, **OPTIONS[way])
    total = out.output.sum() + (out.set_mass**2).sum()
    return total + out.entropy.sum() if way == "lse" else total


CODES = mk.Codes(torch.arange(70) % 9, torch.arange(70) % 7)


@pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)  # torch.compile's own doing
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_it_compiles_without_a_graph_break(way, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(lambda q: attend(way, q), fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for batch in (2, 3):
        q = torch.randn(batch, 70, 1, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
        torch.testing.assert_close(compiled(q), attend(way, q))
        torch.testing.assert_close(
            torch.autograd.grad(compiled(q), q), torch.autograd.grad(attend(way, q), q)
        )


@pytest.mark.parametrize("way", WAYS)
def test_it_maps(way):
    q = torch.randn(3, 2, 70, 1, 4, generator=torch.Generator().manual_seed(0))
    one = lambda q: attend(way, q)  # noqa: E731
    torch.testing.assert_close(torch.func.vmap(one)(q), torch.stack([one(x) for x in q]))
    got = torch.func.vmap(torch.func.grad(one))(q)
    torch.testing.assert_close(got, torch.stack([torch.func.grad(one)(x) for x in q]))


@pytest.mark.parametrize("way", WAYS)
def test_the_operation_keeps_its_promises(way):
    q, k, v = tensors(7, 2, 70, 1, 4, 3, torch.float32)
    held, numbers = encode(Sets([mk.Offsets(1, 1), CODES], None, None))
    asked = ("entropy", True) if way == "lse" else ("", False)
    kind = Kind(way == "lse", 0.5, 0.0, True, 1.0, 0.0, 2, False, False, *asked, way, "auto")
    arguments = (q, k, v, None, held, numbers, *kind)
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_static", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.mechplateau.attention.default, arguments, test_utils=tests)
    results = torch.ops.mechplateau.attention(*arguments)
    mass = torch.ones(2, 1, 2, 70)
    kept = results[6:] if way == "lse" else (None, None)
    for of_set, of_entropy in ((mass, results[5]), (None, None)):
        grads = (v, None, of_set, of_entropy if way == "lse" else None)
        torch.library.opcheck(
            torch.ops.mechplateau.attention_backward.default, (*grads, *kept, *arguments), test_utils=tests
        )


@pytest.mark.parametrize("way", WAYS)
def test_autocast_changes_the_dtype_and_not_the_sums(way):
    inputs = tensors(8, 1, 70, 1, 8, 8, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = WAYS[way](*inputs, **OPTIONS[way])
    want = WAYS[way](*(x.bfloat16() for x in inputs), **OPTIONS[way])
    assert out.output.dtype == torch.bfloat16
    assert torch.equal(out.output, want.output)


@pytest.mark.parametrize("way", WAYS)
def test_an_empty_batch(way):
    q = torch.zeros(0, 70, 2, 4, requires_grad=True)
    out = WAYS[way](q, q, q, metric_sets=[mk.First(1)], algorithm=way, **OPTIONS[way])
    assert list(out.output.shape) == [0, 70, 2, 4]
    assert list(out.set_mass.shape) == [0, 2, 1, 70]
    (out.output.sum() + out.set_mass.sum()).backward()
    assert q.grad.shape == q.shape


LONG = torch.zeros(2, 70, 1, 3)
MANY = mk.Codes(torch.zeros(70).long(), torch.zeros(70).long())


@pytest.mark.parametrize(
    ("way", "options", "message"),
    [
        ("lse", {"row_statistics": True}, "cannot give the largest weight"),
        ("lse", {"soft_cap": 2.0}, "no soft cap"),
        ("lse", {"allowed": mk.Offsets(0, 9)}, "no allowed set and no intervention"),
        ("lse", {"intervene": mk.First(1), "c": 0.0}, "no allowed set and no intervention"),
        ("lse", {"metric_sets": [MANY]}, "up to 32 keys a query, and Codes"),
        ("lse", {"metric_sets": [torch.ones(70, 70).bool()]}, "up to 32 keys a query, and Entries"),
        ("lse", {"metric_sets": [mk.Offsets(0, 32)]}, "up to 32 keys"),
        ("lse", {"half": True}, "float32 and float64 there, and q is torch.float16"),
        ("chunk", {"row_mass": True}, "sums over whole rows"),
        ("chunk", {"row_statistics": "entropy"}, "sums over whole rows"),
        ("chunk", {"intervene": mk.First(1), "c": 0.0}, "exactly 0"),
        ("chunk", {"allowed": mk.Offsets(0, 9)}, "exactly 0"),
        ("chunk", {"metric_sets": [mk.Offsets(0, None)]}, "up to 32 keys"),
    ],
    ids=str,
)
def test_forcing_what_it_cannot_do_is_an_error_and_auto_finds_a_way(way, options, message):
    options = OPTIONS[way] | options
    q = LONG.half() if options.pop("half", False) else LONG
    with pytest.raises(ValueError, match=f'algorithm="{way}" cannot do this: .*{message}') as caught:
        WAYS[way](q, q, q, algorithm=way, **options)
    assert "\n" not in str(caught.value)
    assert WAYS[way](q, q, q, **options).output.shape == q.shape


@pytest.mark.parametrize("way", WAYS)
def test_each_is_for_its_own_kind_of_attention(way):
    other = WAYS["chunk" if way == "lse" else "lse"]
    with pytest.raises(ValueError, match=f'"{way}" cannot do this: it is for '):
        other(LONG, LONG, LONG, algorithm=way)


@pytest.fixture
def ran(monkeypatch):
    """Which algorithms ran, in order."""
    seen = []
    for module, name in (
        (any_length.lse, "lse"),
        (any_length.chunk, "chunk"),
        (any_length.blocked, "blocked"),
    ):
        real = module.forward
        monkeypatch.setattr(module, "forward", lambda *a, real=real, name=name: seen.append(name) or real(*a))
    return seen


@pytest.mark.skipif(torch.cuda.is_available(), reason="of the CPU's choice")
def test_what_is_chosen_on_the_cpu(ran):
    long, short = torch.zeros(1, 300, 1, 4), torch.zeros(1, 64, 1, 4)
    mk.softmax_attention(long, long, long, metric_sets=[mk.First(4)])
    mk.softmax_attention(long, long, long, row_statistics=True)
    mk.softmax_attention(long, long, long, metric_sets=[mk.First(32)])  # more than is worth gathering
    mk.softmax_attention(short, short, short)
    mk.linear_attention(long, long, long, metric_sets=[mk.First(4)], row_mass=False)
    mk.linear_attention(long, long, long, metric_sets=[mk.First(4)])
    mk.linear_attention(long[:, :255], long[:, :255], long[:, :255], row_mass=False)
    assert ran == ["lse", "blocked", "blocked", "blocked", "chunk", "blocked", "blocked"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="of the CPU's path")
@pytest.mark.parametrize("pos", [1, 32, 64])
def test_short_linear_attention_on_the_cpu_stays_as_it_was_to_the_bit(pos):
    """The map in one go, written out as it was before there was any other way: recorded runs rest on it."""
    leaves = [x.requires_grad_() for x in tensors(9, 2, pos, 3, 8, 5, torch.float32)]
    chosen = torch.rand(pos, pos, generator=torch.Generator().manual_seed(0)) < 0.5
    results = []
    for row_mass in (True, False):
        out = mk.linear_attention(
            *leaves, metric_sets=[chosen, mk.Offsets(0, 1)], intervene=chosen, c=3.0, row_mass=row_mass
        )
        total = out.output.square().sum() + out.set_mass.sum()
        results.append((out.output, out.set_mass, *torch.autograd.grad(total, leaves)))
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in leaves)
    attn = torch.bmm(q, k.transpose(1, 2)).mul(1 / math.sqrt(8)).tril().view(2, 3, pos, pos)
    attn = torch.where(chosen, attn * 3.0, attn).view(6, pos, pos)
    output = torch.bmm(attn, v).view(2, 3, pos, 5).transpose(1, 2)
    size = attn.abs().view(2, 3, pos, pos)
    before = torch.ones(pos, pos).bool().tril().triu(-1)
    mass = torch.stack([torch.where(mask, size, 0.0).sum(-1) for mask in (chosen, before)], dim=2)
    wanted = (output, mass, *torch.autograd.grad(output.square().sum() + mass.sum(), leaves))
    for got in results:
        assert all(torch.equal(x, y) for x, y in zip(got, wanted, strict=True))


def test_wide_heads_take_longer_chunks():
    inputs = tensors(10, 1, 300, 1, 100, 70)
    assert chunk.CHUNK < 100
    same(*(everything("chunk", inputs, algorithm) for algorithm in ("chunk", "map")))
