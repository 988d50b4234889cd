"""The torch path of the cosine operations against hand-made vectors and a plain double loop."""

import pytest
import torch
from torch.nn.functional import cosine_similarity

import mechplateau_kernels as mk


def double_loop(h):
    """`[batch, pos, d]` -> `[batch, pos, pos]`, one pair at a time in float64."""
    pos = h.shape[1]
    result = torch.zeros(h.shape[0], pos, pos, dtype=torch.float64)
    for i in range(pos):
        for j in range(pos):
            result[:, i, j] = cosine_similarity(h[:, i].double(), h[:, j].double(), dim=-1, eps=1e-8)
    return result


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_by_hand():
    h = torch.tensor([[[1.0, 0.0], [3.0, 4.0], [0.0, -2.0]]])
    expected = torch.tensor([[1.0, 0.6, 0.0], [0.6, 1.0, -0.8], [0.0, -0.8, 1.0]])
    torch.testing.assert_close(mk.pairwise_cosine(h), expected)
    assert mk.mean_pairwise_cosine(h).item() == pytest.approx((0.6 + 0.0 - 0.8) / 3, abs=1e-6)
    assert mk.mean_pairwise_cosine(h, exclude=[2]).item() == pytest.approx(0.6, abs=1e-6)
    assert mk.mean_pairwise_cosine(h, per_position=True).tolist() == pytest.approx([0.3, -0.8], abs=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float16, 1e-3)])
def test_edge_vectors(dtype, tolerance):
    v = random(32, seed=3) / 2
    h = torch.stack([0 * v, v, v, -v, 1e-4 * v, 1e4 * v]).to(dtype).unsqueeze(0).requires_grad_()
    cosine = mk.pairwise_cosine(h)
    assert cosine.abs().max() <= 1
    assert cosine[0].abs().max() == 0
    expected = torch.tensor([1.0, 1.0, -1.0, 1.0, 1.0])
    torch.testing.assert_close(cosine[1, 1:], expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(cosine[4, 1:], expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(cosine.double(), double_loop(h.detach())[0], rtol=0, atol=2e-6)
    for value in (
        cosine.sum(),
        mk.mean_pairwise_cosine(h),
        mk.mean_pairwise_cosine(h, per_position=True).sum(),
    ):
        (gradient,) = torch.autograd.grad(value, h, retain_graph=True)
        assert gradient.isfinite().all()


def test_below_the_floor_is_finite():
    v = torch.ones(1, 1, 8)
    h = torch.cat([v, 1e-30 * v], dim=1).requires_grad_()
    value = mk.pairwise_cosine(h)[0, 1]
    assert 0 <= value.item() <= 1
    (gradient,) = torch.autograd.grad(mk.mean_pairwise_cosine(h), h)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (4, 2, 16), (2, 3, 5, 6, 8)])
def test_matches_a_double_loop(shape):
    h = random(*shape)
    each = double_loop(h.reshape(-1, *shape[-2:])).view(*shape[:-1], shape[-2])
    torch.testing.assert_close(mk.pairwise_cosine(h, reduce="none").double(), each, rtol=0, atol=2e-6)
    torch.testing.assert_close(mk.pairwise_cosine(h).double(), each.mean(-3), rtol=0, atol=2e-6)
    rows = mk.pairwise_cosine(h, rows=slice(0, 1), reduce="none")
    torch.testing.assert_close(rows.double(), each[..., :1, :1], rtol=0, atol=2e-6)


def test_batch_mean_in_pieces_equals_the_whole(monkeypatch):
    from mechplateau_kernels.cosine import reference

    h = random(7, 4, 8)
    whole = mk.pairwise_cosine(h)
    monkeypatch.setattr(reference, "CHUNK_ELEMENTS", 3 * 16)
    torch.testing.assert_close(mk.pairwise_cosine(h), whole, rtol=0, atol=1e-7)


def mean_over(each, kept):
    pairs = [each[..., i, j].mean(-1) for i in kept for j in kept if j < i]
    return torch.stack(pairs).mean(0)


@pytest.mark.parametrize("exclude", [(), (0,), (-1,), (0, 3), (1, 1)])
def test_mean_with_positions_left_out(exclude):
    h = random(2, 3, 6, 5)
    each = double_loop(h.view(6, 6, 5)).view(2, 3, 6, 6)
    kept = [i for i in range(6) if i not in {e % 6 for e in exclude}]
    got = mk.mean_pairwise_cosine(h, exclude=exclude)
    torch.testing.assert_close(got.double(), mean_over(each, kept), rtol=0, atol=2e-6)
    curve = mk.mean_pairwise_cosine(h, exclude=exclude, per_position=True)
    assert curve.shape == (2, len(kept) - 1)
    for p, i in enumerate(kept[:-1]):
        later = torch.stack([each[..., i, j].mean(-1) for j in kept[p + 1 :]]).mean(0)
        torch.testing.assert_close(curve[:, p].double(), later, rtol=0, atol=2e-6)


def blocks(*sizes):
    return torch.block_diag(*[torch.ones(n, n) for n in sizes]).bool()


@pytest.mark.parametrize(
    "pairs",
    [
        blocks(3, 3),
        blocks(3, 3).tril(-1),
        blocks(3, 3).triu(1),
        blocks(1, 4, 1),
        torch.ones(6, 6, dtype=torch.bool).tril(1).triu(-1),  # neighbors only: not cliques
    ],
    ids=["blocks", "lower", "upper", "with singles", "band"],
)
@pytest.mark.parametrize("exclude", [(), (1,)])
def test_mean_over_chosen_pairs(pairs, exclude):
    h = random(4, 6, 5)
    each = double_loop(h).mean(0)
    both = pairs | pairs.T
    chosen = [each[i, j] for i in range(6) for j in range(i) if both[i, j] and not {i, j} & set(exclude)]
    got = mk.mean_pairwise_cosine(h, exclude=exclude, pairs=pairs)
    assert got.item() == pytest.approx(torch.stack(chosen).mean().item(), abs=2e-6)


def test_pairs_changed_in_place_are_read_again():
    h = random(4, 3, 5)
    pairs = torch.zeros(3, 3, dtype=torch.bool)
    pairs[0, 1] = True
    first = mk.mean_pairwise_cosine(h, pairs=pairs)
    pairs[0, 1] = False
    pairs[1, 2] = True
    each = double_loop(h).mean(0)
    assert first.item() == pytest.approx(each[0, 1].item(), abs=2e-6)
    assert mk.mean_pairwise_cosine(h, pairs=pairs).item() == pytest.approx(each[1, 2].item(), abs=2e-6)


def test_gradients():
    h = random(3, 4, 5, dtype=torch.float64).requires_grad_()
    band = torch.ones(4, 4, dtype=torch.bool).tril(1).triu(-1)
    assert torch.autograd.gradcheck(lambda h: mk.pairwise_cosine(h, reduce="none"), h)
    assert torch.autograd.gradcheck(mk.pairwise_cosine, h)
    assert torch.autograd.gradcheck(lambda h: mk.mean_pairwise_cosine(h, exclude=[1]), h)
    assert torch.autograd.gradcheck(lambda h: mk.mean_pairwise_cosine(h, pairs=band), h)
    assert torch.autograd.gradcheck(lambda h: mk.mean_pairwise_cosine(h, per_position=True), h)


def test_undefined_means_are_refused():
    h = random(2, 3, 4)
    with pytest.raises(ValueError, match="no pair is left"):
        mk.mean_pairwise_cosine(h, exclude=[0, 1])
    with pytest.raises(ValueError, match="no pair is left"):
        mk.mean_pairwise_cosine(h, pairs=torch.eye(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="no pair is left"):
        mk.mean_pairwise_cosine(h[:, :1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda h: mk.pairwise_cosine(h[0]), "batch, pos, d"),
        (lambda h: mk.pairwise_cosine(h.int()), "floating-point"),
        (lambda h: mk.pairwise_cosine(h[:0]), "empty"),
        (lambda h: mk.pairwise_cosine(h, rows=[]), "empty"),
        (lambda h: mk.pairwise_cosine(h, reduce="sum"), "batch_mean"),
        (lambda h: mk.mean_pairwise_cosine(h, exclude=[3]), "exclude: expected positions"),
        (lambda h: mk.mean_pairwise_cosine(h, pairs=torch.ones(2, 2, dtype=torch.bool)), "pairs: expected"),
        (
            lambda h: mk.mean_pairwise_cosine(h, pairs=torch.ones(3, 3, dtype=torch.bool), per_position=True),
            "not with pairs",
        ),
        (lambda h: mk.pairwise_cosine([1.0]), "expected a tensor h .*; got list"),
        (lambda h: mk.pairwise_cosine(h.to(torch.float8_e5m2)), "of 16 to 64 bits"),
        (lambda h: mk.pairwise_cosine(h, rows=2), "rows: expected a slice, .*; got 2"),
        (lambda h: mk.pairwise_cosine(h, rows=torch.tensor([[0, 1]])), "rows: expected a slice"),
        (lambda h: mk.mean_pairwise_cosine(h, exclude=0), "exclude: expected a sequence of ints; got 0"),
        (lambda h: mk.mean_pairwise_cosine(h, exclude=[0.5]), "exclude: expected a sequence of ints"),
        (
            lambda h: mk.mean_pairwise_cosine(h, exclude=[True, False, False]),
            "exclude: expected a sequence of ints",
        ),
        (
            lambda h: mk.mean_pairwise_cosine(h, exclude=torch.tensor([True, False, False])),
            "exclude: expected a sequence of ints",
        ),
        (lambda h: mk.mean_pairwise_cosine(h, pairs=[[True]]), "pairs: expected a bool tensor; got list"),
        (lambda h: mk.mean_pairwise_cosine(h, pairs=torch.ones(3, 3)), "pairs: expected a bool tensor"),
    ],
)
def test_bad_input_names_what_was_expected(call, message):
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        call(random(2, 3, 4))
    assert "\n" not in str(caught.value)


def test_positions_to_exclude_may_be_a_tensor():
    h = random(2, 4, 5)
    assert torch.equal(
        mk.mean_pairwise_cosine(h, exclude=torch.tensor([0, -1])), mk.mean_pairwise_cosine(h, [0, 3])
    )


def test_second_derivatives():
    h = random(2, 3, 4, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradgradcheck(mk.pairwise_cosine, h)
    assert torch.autograd.gradgradcheck(mk.mean_pairwise_cosine, h)


MEASURES = {
    "matrix": mk.pairwise_cosine,
    "matrices": lambda h: mk.pairwise_cosine(h, reduce="none"),
    "mean": mk.mean_pairwise_cosine,
    "by position": lambda h: mk.mean_pairwise_cosine(h, per_position=True),
}


@pytest.mark.parametrize("name", MEASURES)
def test_gradients_are_float32_inside_autocast(name):
    h = random(2, 3, 5, 16).requires_grad_()
    plain = MEASURES[name](h)
    weights = random(*plain.shape, seed=1)
    (expected,) = torch.autograd.grad(plain, h, weights)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        measured = MEASURES[name](h)
        (gradient,) = torch.autograd.grad(measured, h, weights)
    assert torch.equal(measured, plain)
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own forward mode
@pytest.mark.parametrize("name", MEASURES)
def test_second_derivatives_beside_a_zero_vector(name):
    h = random(3, 4, dtype=torch.float64)
    h[1] = 0

    def measured(x):
        return MEASURES[name](x.view(1, 3, 4)).square().sum()

    def by_hand(rest):
        """The other two vectors' cosine, wherever it stands."""
        first, last = rest.view(2, 4)
        cosine = first @ last / (first.norm() * last.norm())
        places = {"matrix": 2, "matrices": 2, "mean": 1 / 9, "by position": 1 / 4}[name]
        return places * cosine.square()

    rest = [0, 1, 2, 3, 8, 9, 10, 11]
    expected = torch.zeros(12, 12, dtype=torch.float64)
    expected[torch.meshgrid(*[torch.tensor(rest)] * 2, indexing="ij")] = torch.autograd.functional.hessian(
        by_hand, h.flatten()[rest]
    )
    for hessian in (torch.autograd.functional.hessian, lambda f, x: torch.func.hessian(f)(x)):
        torch.testing.assert_close(hessian(measured, h.flatten()), expected, rtol=1e-9, atol=1e-12)
