"""The torch path of linear attention against numbers worked out by hand and float64 formulas."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import mechplateau_kernels as mk


def by_definition(q, k, v, scale, causal, intervene, c, sets):
    """The formula in float64, one query row and one head at a time."""
    q, k, v = (x.double() for x in (q, k, v))
    batch, pos, heads, _ = q.shape
    output = torch.zeros(batch, pos, heads, v.shape[3], dtype=torch.float64)
    row_mass = torch.zeros(batch, heads, pos, dtype=torch.float64)
    set_mass = torch.zeros(batch, heads, len(sets), pos, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for i in range(pos):
                for j in range(i + 1 if causal else pos):
                    a = scale * torch.dot(q[b, i, h], k[b, j, h])
                    if intervene is not None and intervene.expand(batch, pos, pos)[b, i, j]:
                        a = c * a
                    output[b, i, h] += a * v[b, j, h]
                    row_mass[b, h, i] += a.abs()
                    for s, chosen in enumerate(sets):
                        if chosen.expand(batch, pos, pos)[b, i, j]:
                            set_mass[b, h, s, i] += a.abs()
    return output, row_mass, set_mass


def test_by_hand():
    # Two positions, d_head 1: A = [[1·3, 0], [2·3, 2·(-4)]] = [[3, 0], [6, -8]], V = [1, 10].
    q = torch.tensor([1.0, 2.0]).view(1, 2, 1, 1)
    k = torch.tensor([3.0, -4.0]).view(1, 2, 1, 1)
    v = torch.tensor([1.0, 10.0]).view(1, 2, 1, 1)
    diagonal = torch.eye(2, dtype=torch.bool)
    result = mk.linear_attention(q, k, v, scale=1.0, metric_sets=[diagonal])
    assert result.output.flatten().tolist() == [3.0, 6.0 - 80.0]
    assert result.row_mass.flatten().tolist() == [3.0, 14.0]
    assert result.set_mass.flatten().tolist() == [3.0, 8.0]

    doubled = mk.linear_attention(q, k, v, scale=1.0, intervene=diagonal, c=-2.0, metric_sets=[diagonal])
    assert doubled.output.flatten().tolist() == [-6.0, 6.0 + 160.0]
    assert doubled.row_mass.flatten().tolist() == [6.0, 22.0]
    assert doubled.set_mass.flatten().tolist() == [6.0, 16.0]

    both_ways = mk.linear_attention(q, k, v, scale=1.0, causal=False)
    assert both_ways.output.flatten().tolist() == [3.0 - 40.0, 6.0 - 80.0]


def test_one_set_alone_is_what_it_is_beside_another():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, 32, 2, 8, generator=generator) for _ in range(3))
    masks = [torch.rand(3, 32, 32, generator=generator) < 0.4 for _ in range(2)]
    both = mk.linear_attention(q, k, v, metric_sets=masks)
    for s, mask in enumerate(masks):
        alone = mk.linear_attention(q, k, v, metric_sets=[mask])
        assert torch.equal(alone.set_mass[:, :, 0], both.set_mass[:, :, s])
        assert torch.equal(alone.output, both.output)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize(("pos", "d_head", "d_v"), [(1, 1, 1), (2, 3, 5), (7, 8, 4)])
@pytest.mark.parametrize("causal", [True, False])
def test_matches_the_definition(batch, heads, pos, d_head, d_v, causal):
    generator = torch.Generator().manual_seed(batch * 100 + pos)
    q, k = (torch.randn(batch, pos, heads, d_head, generator=generator) for _ in range(2))
    v = torch.randn(batch, pos, heads, d_v, generator=generator)
    shared = torch.rand(pos, pos, generator=generator) < 0.5
    own = torch.rand(batch, pos, pos, generator=generator) < 0.5
    result = mk.linear_attention(
        q, k, v, causal=causal, intervene=own, c=0.5, metric_sets=[shared, own], backend="torch"
    )
    expected = by_definition(q, k, v, 1 / math.sqrt(d_head), causal, own, 0.5, [shared, own])
    for got, want in zip(result, expected, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)


def test_factor_one_is_bitwise_the_baseline():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 9, 2, 8, generator=generator) for _ in range(3))
    chosen = torch.rand(9, 9, generator=generator) < 0.5
    plain = mk.linear_attention(q, k, v)
    for one in (1.0, torch.tensor(1.0)):
        scaled = mk.linear_attention(q, k, v, intervene=chosen, c=one)
        assert torch.equal(plain.output, scaled.output)
        assert torch.equal(plain.row_mass, scaled.row_mass)


def test_factor_zero_removes_the_scores():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 6, 1, 8, generator=generator) for _ in range(3))
    chosen = torch.ones(6, 6, dtype=torch.bool).triu()
    result = mk.linear_attention(q, k, v, intervene=chosen, c=0.0, metric_sets=[chosen])
    assert result.set_mass.abs().max() == 0
    assert result.output[:, 0].abs().max() == 0
    assert result.output[:, 1:].abs().min() > 0


def test_half_precision_scores_beyond_its_range_survive():
    q = torch.full((1, 4, 1, 128), 30.0, dtype=torch.float16)  # raw scores 115200 > 65504
    result = mk.linear_attention(q, q, torch.full_like(q, 0.001))
    assert result.output.dtype == torch.float16
    torch.testing.assert_close(
        result.row_mass.flatten(), torch.arange(1, 5) * 115200 / math.sqrt(128), rtol=1e-6, atol=0
    )
    assert result.output.isfinite().all()


@pytest.mark.parametrize("causal", [True, False])
def test_gradients(causal):
    generator = torch.Generator().manual_seed(1)
    q, k = (
        torch.randn(2, 4, 2, 3, generator=generator, dtype=torch.float64, requires_grad=True)
        for _ in range(2)
    )
    v = torch.randn(2, 4, 2, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    chosen = torch.rand(2, 4, 4, generator=generator) < 0.5

    def everything(q, k, v):
        return tuple(
            mk.linear_attention(q, k, v, causal=causal, intervene=chosen, c=2.5, metric_sets=[chosen])
        )

    assert torch.autograd.gradcheck(everything, (q, k, v))


def test_apm_is_a_training_signal():
    q = torch.randn(2, 5, 1, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    chosen = torch.eye(5, dtype=torch.bool)
    result = mk.linear_attention(q, q, q, metric_sets=[chosen])
    (gradient,) = torch.autograd.grad(mk.apm(result.row_mass, result.set_mass), q)
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.zeros(2, 4, 1, 3)}, r"q, k \[batch, pos, head, d_head\]"),
        ({"v": torch.zeros(2, 5, 1, 3, dtype=torch.float64)}, "one floating dtype"),
        ({"q": torch.zeros(2, 0, 1, 3), "k": torch.zeros(2, 0, 1, 3), "v": torch.zeros(2, 0, 1, 3)}, "empty"),
        ({"intervene": torch.zeros(5, 4, dtype=torch.bool)}, "intervene: expected bool"),
        ({"metric_sets": [torch.zeros(5, 5)]}, r"metric_sets\[0\]: expected bool"),
        ({"metric_sets": [torch.zeros(3, 5, 5, dtype=torch.bool)]}, r"metric_sets\[0\]: expected bool"),
        ({"c": torch.ones(2)}, "0-d tensor"),
        ({"precision": "fp8"}, "precision: expected one of"),
        ({"backend": "cuda"}, "backend: expected one of"),
        # Uncaught, the product of a tensor on one device with one elsewhere is memory nobody wrote.
        ({"k": torch.zeros(2, 5, 1, 3, device="meta")}, "one device; got cpu, meta, cpu"),
        ({"metric_sets": [torch.zeros(5, 5, dtype=torch.bool, device="meta")]}, r"is on meta and q on cpu"),
        (dict.fromkeys("qkv", torch.zeros(2, 5, 1, 3).to(torch.float8_e5m2)), "of 16 to 64 bits"),
        (dict.fromkeys("qkv", torch.zeros(2, 5, 1, 3, dtype=torch.complex64)), "of 16 to 64 bits"),
        ({"v": None}, "expected tensors q, k, v; got Tensor, Tensor, NoneType"),
        ({"intervene": [[True]]}, "intervene: expected a bool tensor or a set; got list"),
    ],
)
def test_bad_input_names_what_was_expected(change, message):
    arguments = {name: torch.zeros(2, 5, 1, 3) for name in "qkv"} | change
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        mk.linear_attention(**arguments)
    assert "\n" not in str(caught.value)


def test_shapes_can_be_had_without_computing():
    q = torch.empty(2, 5, 3, 4, device="meta")
    out = mk.linear_attention(
        q, q, q[..., :2], metric_sets=[torch.ones(5, 5, dtype=torch.bool, device="meta")]
    )
    assert [list(x.shape) for x in out] == [[2, 5, 3, 2], [2, 3, 5], [2, 3, 1, 5]]


@pytest.mark.parametrize("wanted", ["q", "k", "v", "qk", "kv"])
def test_only_what_asks_for_a_gradient_gets_one(wanted):
    generator = torch.Generator().manual_seed(0)
    inputs = {name: torch.randn(2, 4, 1, 3, generator=generator) for name in "qkv"}
    for name in wanted:
        inputs[name].requires_grad_()
    out = mk.linear_attention(**inputs, metric_sets=[torch.eye(4, dtype=torch.bool)])
    (out.output.sum() + out.row_mass.sum() + out.set_mass.sum()).backward()
    assert {name for name, x in inputs.items() if x.grad is not None} == set(wanted)


def test_second_derivatives():
    q = torch.randn(
        1, 3, 1, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda q: mk.linear_attention(q, q, q, backend="torch").output, q)


def test_threads_do_not_disturb_each_other():
    q = torch.randn(2, 9, 1, 8, generator=torch.Generator().manual_seed(0))
    pairs = torch.ones(9, 9, dtype=torch.bool)

    def work(_):
        mean = mk.mean_pairwise_cosine(q.squeeze(2), pairs=pairs.clone())
        return mk.linear_attention(q, q, q).output, mean

    first = work(None)
    with ThreadPoolExecutor(4) as pool:
        for results in pool.map(work, range(20)):
            assert all(torch.equal(x, y) for x, y in zip(results, first, strict=True))
