"""GELU and its slope in one pass: torch's own values to rounding, extremes too, and torch's own where more is asked."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

from mechplateau.models import gelu
from mechplateau.models.gelu import gelu_layers, gelu_new

from .conftest import make_model

EXTREMES = [
    *(float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 1e-45, -1e-45, 1e-40, 1e4, -1e4, 1e13, -1e13),
    *(1e18, -1e18, 1e30, -1e30, 88.0, -88.0, 9.0, -9.0, 5.0, -5.0, -0.7517916),
]


def layers(rows=37, width=8, hidden=20, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((rows, width), (width, hidden), (hidden,), (hidden, width), (width,))
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in shapes
    ]


def by_torch(x, w_in, b_in, w_out, b_out):
    return F.gelu(x @ w_in + b_in, approximate="tanh") @ w_out + b_out


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 8 rows of the 20 elements between the layers, 3 rows at once: neither divides 37 rows."""
    monkeypatch.setattr(gelu, "_ELEMENTS_A_BLOCK", 160)
    monkeypatch.setattr(gelu, "_ELEMENTS_AT_ONCE", 60)


def value_and_slope(u):
    value, slope, used = torch.empty_like(u), torch.empty_like(u), u.clone()
    gelu._gelu(used, value, slope)
    alone = u.clone()
    gelu._gelu(alone, alone, None)
    assert torch.equal(alone.nan_to_num(), value.nan_to_num())
    return value, slope


def test_values_and_slopes_are_as_near_to_the_truth_as_torchs():
    u = torch.linspace(-12, 12, 100_001)
    exact = u.double().requires_grad_()
    truth = F.gelu(exact, approximate="tanh")
    (slope,) = torch.autograd.grad(truth.sum(), exact)
    ours = value_and_slope(u)
    assert (ours[0] - truth).abs().max() < 1e-6
    assert (
        ours[1] - slope
    ).abs().max() < 2.5e-6  # at u ≈ 5, where 1 − σ has few digits left; torch's: 1.1e-6
    torch.testing.assert_close(ours[0], gelu_new(u), rtol=1e-6, atol=1e-6)


def test_extremes_are_torchs():
    u = torch.tensor(EXTREMES)
    value, slope = value_and_slope(u)
    leaf = u.clone().requires_grad_()
    expected = gelu_new(leaf)
    (expected_slope,) = torch.autograd.grad(expected, leaf, torch.ones_like(u))
    torch.testing.assert_close(value, expected.detach(), rtol=1e-6, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(slope, expected_slope, rtol=1e-6, atol=2.5e-6, equal_nan=True)


@pytest.mark.parametrize("held", [(), (0,), (1, 2), (3,), (0, 1, 2), (4,)])
def test_both_layers_and_their_gradients_are_torchs(small_blocks, held):
    given = layers()
    for index in held:
        given[index].requires_grad_(False)
    trained = [tensor for tensor in given if tensor.requires_grad]
    weight = torch.randn(37, 8, generator=torch.Generator().manual_seed(1))
    outs = [f(*given) for f in (gelu_layers, by_torch)]
    torch.testing.assert_close(outs[0], outs[1], rtol=2e-6, atol=1e-5)
    ours, theirs = (torch.autograd.grad((out * weight).sum(), trained) for out in outs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        assert torch.equal(gelu_layers(*given), outs[0])


def test_a_graph_that_is_kept_gives_the_same_gradient_again(small_blocks):
    given = layers()
    out = gelu_layers(*given).sum()  # its gradient is one number, spread without memory of its own
    first = torch.autograd.grad(out, given, retain_graph=True)
    again = torch.autograd.grad(out, given)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_a_backward_pass_within_autocast_is_that_outside(small_blocks):
    given = layers()
    out = gelu_layers(*given).square().sum()
    expected = torch.autograd.grad(out, given, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(out, given)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_many_gradients_at_once(small_blocks):
    from torch.func import vmap

    given = layers()
    out = gelu_layers(*given)
    gradients = torch.randn(3, 37, 8, generator=torch.Generator().manual_seed(1))

    def of(gradient, **how):
        return torch.autograd.grad(out, given, gradient, retain_graph=True, **how)

    for together in (of(gradients, is_grads_batched=True), vmap(of)(gradients)):
        for index, gradient in enumerate(gradients):
            for one, other in zip(together, of(gradient), strict=True):
                torch.testing.assert_close(one[index], other, rtol=1e-5, atol=5e-5)


def test_second_derivatives(small_blocks):
    def second(f):
        given = layers()
        first = torch.autograd.grad(f(*given).square().sum(), given, create_graph=True)
        return torch.autograd.grad(sum(g.sin().sum() for g in first), given)

    # Float64 never runs in blocks: the truth.
    exact = layers(dtype=torch.float64)
    first = torch.autograd.grad(by_torch(*exact).square().sum(), exact, create_graph=True)
    truth = torch.autograd.grad(sum(g.sin().sum() for g in first), exact)
    ours, theirs = second(gelu_layers), second(by_torch)
    for one, other, true in zip(ours, theirs, truth, strict=True):
        assert (one - true).norm() <= 3 * (other - true).norm() + 1e-5 * true.norm()


def test_no_rows_are_no_error():
    given = layers(rows=0)
    out = gelu_layers(*given)
    assert out.shape == (0, 8)
    assert all((g == 0).all() for g in torch.autograd.grad(out.sum(), given))


@pytest.fixture
def mlp():
    return make_model("linear").blocks[0].mlp


def test_an_mlp_runs_in_blocks_unless_its_inside_is_observed(mlp):
    x = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0))
    plain = mlp(x)
    assert mlp.in_blocks
    for hook, same in ((mlp.hook_pre, False), (mlp.hook_post, False)):
        handle = hook.register_forward_hook(lambda module, inputs, output: output * 2)
        edited = mlp(x)
        handle.remove()
        assert not mlp.in_blocks
        assert torch.allclose(edited, plain) == same
    with_hook = mlp.hook_pre.register_forward_hook(lambda *_: None)
    torch.testing.assert_close(mlp(x), plain, rtol=0, atol=1e-6)
    with_hook.remove()
    mlp.act_fn = torch.relu
    assert not torch.allclose(mlp(x), plain)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # of torch's own forward mode
def test_torchs_own_runs_where_more_than_ordinary_autograd_is_asked(mlp):
    from torch.func import jvp, vmap

    x = torch.randn(4, 3, 16, generator=torch.Generator().manual_seed(0))
    tangent = torch.ones_like(x)
    plain = mlp(x)
    torch.testing.assert_close(vmap(mlp)(x), plain, rtol=0, atol=1e-6)
    assert not mlp.in_blocks
    _, ours = jvp(mlp, (x,), (tangent,))
    assert not mlp.in_blocks
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(mlp(forward_ad.make_dual(x, tangent)))
        assert not mlp.in_blocks
    step = 1e-2
    difference = (mlp(x + step * tangent) - mlp(x - step * tangent)) / (2 * step)
    torch.testing.assert_close(ours, difference, rtol=0, atol=1e-3)
    torch.testing.assert_close(dual.tangent, ours, rtol=0, atol=1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        assert mlp(x).dtype == torch.bfloat16
        assert not mlp.in_blocks
    assert mlp.double()(x.double()).dtype == torch.float64
    assert not mlp.in_blocks
