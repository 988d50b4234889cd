"""The regression model's block by hand: torch's own values and gradients, and torch's own where more is asked."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from mechplateau.models import regressor_block
from mechplateau.models.regressor_block import BlockWeights, Rows, block_outputs, by_torch

BATCH, POS, WIDTH, HEADS, D_HEAD, HIDDEN = 3, 6, 8, 2, 4, 12


def drawn(shape, generator, dtype, scale=1.0):
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()


def given(dtype=torch.float32, batch=BATCH, scale=0.5, seed=0):
    """x and weights; the norms' scales are near 1."""
    generator = torch.Generator().manual_seed(seed)
    projection = (HEADS, WIDTH, D_HEAD)
    shapes = BlockWeights(
        *((WIDTH,), (WIDTH,), projection, projection, projection, (HEADS, D_HEAD, WIDTH), (WIDTH,), (WIDTH,)),
        *((WIDTH, HIDDEN), (HIDDEN,), (HIDDEN, WIDTH), (WIDTH,)),
    )
    x = drawn((batch, POS, WIDTH), generator, dtype)
    return x, BlockWeights(*(drawn(shape, generator, dtype, scale) for shape in shapes))


def both_ways(asked, x, weights, upstream):
    """Outputs and gradients of all inputs, by hand and by torch."""
    made = []
    for way in (block_outputs, by_torch):
        out = way(x, weights, asked)
        wanted = [tensor for tensor in (x, *weights) if tensor.requires_grad]
        made.append((out, torch.autograd.grad(out, wanted, upstream)))
    return made


@pytest.fixture
def by_hand(monkeypatch):
    """Fails where the way by hand was not taken."""
    taken = []
    forward = regressor_block._forward
    monkeypatch.setattr(regressor_block, "_forward", lambda *what: taken.append(1) or forward(*what))
    yield taken
    assert taken


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("gain", [1, 2, 3])
def test_outputs_and_gradients_are_torchs(by_hand, every, gain):
    x, weights = given()
    upstream = torch.randn(BATCH, POS // every, WIDTH, generator=torch.Generator().manual_seed(1))
    (out, grads), (expected, expected_grads) = both_ways(Rows(every, gain, 1e-5), x, weights, upstream)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=2e-6)
    for name, one, other in zip(("x", *BlockWeights._fields), grads, expected_grads, strict=True):
        torch.testing.assert_close(
            one, other, rtol=1e-5, atol=1e-5, msg=lambda told, name=name: f"{name}: {told}"
        )


@pytest.mark.parametrize("every", [1, 2])
def test_both_ways_are_equally_near_the_truth(by_hand, every):
    x, weights = given()
    exact = tuple(tensor.detach().double().requires_grad_() for tensor in (x, *weights))
    upstream = torch.randn(BATCH, POS // every, WIDTH, generator=torch.Generator().manual_seed(1))
    asked = Rows(every, 2, 1e-5)
    truth = torch.autograd.grad(by_torch(exact[0], BlockWeights(*exact[1:]), asked), exact, upstream.double())
    (_, ours), (_, torchs) = both_ways(asked, x, weights, upstream)
    for one, other, true in zip(ours, torchs, truth, strict=True):
        assert (one - true).norm() <= 3 * (other - true).norm() + 1e-6 * true.norm()


def test_a_later_token_has_no_say(by_hand):
    x, weights = given()
    out = block_outputs(x, weights, Rows(1, 2, 1e-5))
    (grad_x,) = torch.autograd.grad(out[:, 2].sum(), x)
    assert grad_x[:, :3].abs().sum(-1).min() > 0
    assert not grad_x[:, 3:].any()


@pytest.mark.parametrize("held", [("x",), ("w_q", "b_in"), BlockWeights._fields])
def test_what_is_held_gets_no_gradient(by_hand, held):
    x, weights = given()
    for name, tensor in zip(("x", *BlockWeights._fields), (x, *weights), strict=True):
        tensor.requires_grad_(name not in held)
    upstream = torch.ones(BATCH, POS // 2, WIDTH)
    (_, grads), (_, expected) = both_ways(Rows(2, 2, 1e-5), x, weights, upstream)
    for one, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    block_outputs(x, weights, Rows(2, 2, 1e-5)).sum().backward()
    assert all((tensor.grad is None) == (not tensor.requires_grad) for tensor in (x, *weights))


def test_second_derivatives(by_hand):
    def second(way, dtype=torch.float32):
        x, weights = given(dtype)
        leaves = (x, *weights)
        first = torch.autograd.grad(
            way(x, weights, Rows(2, 2, 1e-5)).square().sum(), leaves, create_graph=True
        )
        return torch.autograd.grad(sum(g.sin().sum() for g in first), leaves)

    ours = second(block_outputs)
    with sdpa_kernel(SDPBackend.MATH):  # torch's fused attention has none
        truth, torchs = second(by_torch, torch.float64), second(by_torch)
    for one, other, true in zip(ours, torchs, truth, strict=True):
        assert (one - true).norm() <= 3 * (other - true).norm() + 1e-5 * true.norm()


def test_many_gradients_at_once(by_hand):
    x, weights = given()
    out = block_outputs(x, weights, Rows(2, 2, 1e-5))
    gradients = torch.randn(4, *out.shape, generator=torch.Generator().manual_seed(1))

    def of(gradient, **how):
        return torch.autograd.grad(out, (x, *weights), gradient, retain_graph=True, **how)

    for together in (of(gradients, is_grads_batched=True), vmap(of)(gradients)):
        for index, gradient in enumerate(gradients):
            for one, other in zip(together, of(gradient), strict=True):
                torch.testing.assert_close(one[index], other, rtol=1e-5, atol=5e-5)


def tied(weights):
    """Weights of which one stands in two places and one is made of another."""
    return weights._replace(w_k=weights.w_q, w_v=2 * weights.w_q)


@pytest.mark.parametrize("how", ["create_graph", "is_grads_batched"])
def test_what_stands_in_two_places_counts_once_in_each(by_hand, how):
    x, weights = given()
    moved = x + weights.w_ln1  # made of a weight, too
    leaves = (x, weights.w_q, weights.w_ln1)
    out = block_outputs(moved, tied(weights), Rows(2, 2, 1e-5))
    upstream = torch.randn(2, *out.shape, generator=torch.Generator().manual_seed(1))
    expected = [torch.autograd.grad(out, leaves, one, retain_graph=True) for one in upstream]
    if how == "create_graph":
        found = [torch.autograd.grad(out, leaves, one, create_graph=True) for one in upstream]
    else:
        together = torch.autograd.grad(out, leaves, upstream, retain_graph=True, is_grads_batched=True)
        found = [tuple(grads[index] for grads in together) for index in range(2)]
    for one, other in zip(found, expected, strict=True):
        for ours, plain in zip(one, other, strict=True):
            torch.testing.assert_close(ours, plain, rtol=1e-4, atol=5e-5)


def test_a_hook_on_a_weight_acts_once_where_a_graph_is_kept(by_hand):
    x, weights = given()
    out = block_outputs(x, weights, Rows(2, 2, 1e-5)).square().sum()
    (plain,) = torch.autograd.grad(out, weights.w_q, retain_graph=True)
    with_hook = weights.w_q.register_hook(lambda grad: grad / 2)
    (halved,) = torch.autograd.grad(out, weights.w_q, create_graph=True)
    with_hook.remove()
    torch.testing.assert_close(halved, plain / 2, rtol=1e-4, atol=1e-5)


def test_a_backward_pass_within_autocast_is_that_outside(by_hand):
    x, weights = given()
    out = block_outputs(x, weights, Rows(2, 2, 1e-5)).square().sum()
    expected = torch.autograd.grad(out, (x, *weights), retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(out, (x, *weights))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_an_output_may_be_changed_in_place(by_hand):
    x, weights = given()
    out = block_outputs(x, weights, Rows(2, 2, 1e-5))
    (expected,) = torch.autograd.grad(out.sum() * 2, x, retain_graph=True)
    (found,) = torch.autograd.grad(out.mul_(2).sum(), x)
    torch.testing.assert_close(found, expected)


def test_a_graph_that_is_kept_gives_the_same_gradient_again(by_hand):
    x, weights = given()
    out = block_outputs(x, weights, Rows(1, 2, 1e-5)).sum()
    first = torch.autograd.grad(out, (x, *weights), retain_graph=True)
    again = torch.autograd.grad(out, (x, *weights))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_no_contexts_are_no_error(by_hand):
    x, weights = given(batch=0)
    out = block_outputs(x, weights, Rows(2, 2, 1e-5))
    assert out.shape == (0, POS // 2, WIDTH)
    assert all((g == 0).all() for g in torch.autograd.grad(out.sum(), (x, *weights)))


@pytest.mark.parametrize("case", ["evaluation", "float64", "autocast", "long", "wide", "functorch"])
def test_elsewhere_torchs_own_functions_are_used(monkeypatch, case):
    def refuse(*what):
        raise AssertionError("by hand")

    monkeypatch.setattr(regressor_block, "_forward", refuse)
    x, weights = given(torch.float64 if case == "float64" else torch.float32)
    asked = Rows(2, 2, 1e-5)
    if case in ("long", "wide"):
        monkeypatch.setattr(regressor_block, "_LONGEST" if case == "long" else "_WIDEST", 5)
    if case == "functorch":
        weighed = grad(lambda w_o: block_outputs(x, weights._replace(w_o=w_o), asked).sum())(weights.w_o)
        (expected,) = torch.autograd.grad(by_torch(x, weights, asked).sum(), weights.w_o)
        torch.testing.assert_close(weighed, expected)
        return
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast")
    with torch.set_grad_enabled(case != "evaluation"), autocast:
        assert block_outputs(x, weights, asked).shape == (BATCH, POS // 2, WIDTH)


def test_a_model_trains_by_hand_and_evaluates_by_torch(by_hand):
    from mechplateau.models.regressor import build_regressor
    from mechplateau.models.regressor_config import RegressorConfig

    model = build_regressor(RegressorConfig(n_layers=2, n_heads=2, d_model=8), d_token=3, n_pairs=3)
    tokens = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0))
    trained = model(tokens)
    assert len(by_hand) == 2
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), trained, atol=1e-6, rtol=1e-6)
    # Chains of weights at once, as the learning coefficient evaluates them.
    stacked = {name: torch.stack((p, p)) for name, p in model.named_parameters()}
    with sdpa_kernel(SDPBackend.MATH):  # torch's fused attention warns that it is slow here
        chains = vmap(lambda w: functional_call(model, w, (tokens,)))(stacked)
    torch.testing.assert_close(chains[1], trained, atol=1e-6, rtol=1e-6)
    assert len(by_hand) == 2
