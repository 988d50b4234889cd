"""The first layer's table gives what the rows themselves give, and steps aside where somebody looks upstream."""

from __future__ import annotations

import pytest
import torch
from transformer_lens.cache.key_value_cache import TransformerLensKeyValueCache
from transformer_lens.components import Attention, Embed, LayerNorm

from mechplateau.errors import UserError
from mechplateau.models import generate, observe, table
from mechplateau.models.transformer import load_weights, parameters_of
from mechplateau.objectives import NextToken, TokenBatch

from .conftest import make_model

UPSTREAM = (
    "hook_embed",
    "hook_pos_embed",
    "blocks.0.hook_resid_pre",
    "blocks.0.ln1.hook_scale",
    "blocks.0.ln1.hook_normalized",
)
AFTER = ("blocks.0.attn.hook_q", "blocks.0.attn.hook_k", "blocks.0.attn.hook_v", "blocks.0.attn.hook_z")


@pytest.fixture(params=[("linear", 1, 1), ("linear", 2, 2), ("softmax", 2, 1)], ids=str)
def model(request):
    attention, n_heads, n_layers = request.param
    return make_model(attention, n_layers=n_layers, n_heads=n_heads)


@pytest.fixture
def many(generator):
    """As many sequences as make the table pay, with one more token for the last target."""
    return torch.randint(0, 11, (table.PAYS_FROM * 11, 9), generator=generator)


@pytest.fixture
def rows_only(monkeypatch):
    """Call it: from then on every row is computed by itself."""
    return lambda: monkeypatch.setattr(table, "PAYS_FROM", float("inf"))


def looked_up(model):
    return [block.attn.looked_up for block in model.blocks]


def gradients(model, tokens, precision=None):
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        logits = model(tokens[:, :-1])
    loss = NextToken().loss(logits.float(), TokenBatch(tokens))
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return logits, dict(zip(trained, torch.autograd.grad(loss, list(trained.values())), strict=True))


def assert_close(one, other, within=1e-6):
    for name, gradient in one.items():
        scale = other[name].abs().max().clamp_min(1e-3)
        torch.testing.assert_close(gradient / scale, other[name] / scale, rtol=0, atol=within, msg=name)


def test_logits_and_gradients_are_those_of_the_rows(model, many, rows_only):
    logits, ours = gradients(model, many)
    assert looked_up(model) == [True] + [False] * (model.cfg.n_layers - 1)
    rows_only()
    expected, theirs = gradients(model, many)
    assert not any(looked_up(model))
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6)
    assert_close(ours, theirs, 5e-6)


def test_it_is_used_exactly_where_it_pays(linear_model, many):
    linear_model(many[:, :-1])
    assert linear_model.blocks[0].attn.looked_up
    linear_model(many[:-1, :-1])
    assert not linear_model.blocks[0].attn.looked_up


@pytest.mark.parametrize("name", UPSTREAM)
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_hook_upstream_turns_it_off_and_acts(linear_model, many, name, direction):
    inputs = many[:, :-1]
    plain = linear_model(inputs)
    seen = []

    def hook(value, hook):
        seen.append(value.shape)
        return value * 2 if direction == "fwd" else None

    given = {"fwd_hooks": [(name, hook)]} if direction == "fwd" else {"bwd_hooks": [(name, hook)]}
    with linear_model.hooks(**given):
        hooked = linear_model(inputs)
        hooked.sum().backward()
    assert not linear_model.blocks[0].attn.looked_up
    assert len(seen) == 1
    assert torch.allclose(hooked, plain, atol=1e-6) == (direction == "bwd")
    linear_model(inputs)
    assert linear_model.blocks[0].attn.looked_up


@pytest.mark.parametrize("name", ["embed", "pos_embed", "blocks.0", "blocks.0.ln1", "blocks.0.attn"])
def test_a_hook_of_pytorchs_own_turns_it_off(linear_model, many, name):
    calls = []
    handle = linear_model.get_submodule(name).register_forward_pre_hook(lambda *_: calls.append(1))
    linear_model(many[:, :-1])
    handle.remove()
    assert not linear_model.blocks[0].attn.looked_up
    assert calls == [1]


@pytest.mark.parametrize("name", AFTER)
def test_a_hook_after_the_lookup_sees_the_values_and_its_edit_acts(model, many, rows_only, name):
    seen = []

    def halve(value, hook):
        seen.append(value.detach().clone())
        return value * 0.5

    def run():
        with model.hooks(fwd_hooks=[(name, halve)]):
            return model(many[:, :-1]), generate(model, many[:, :4], 5), model.blocks[0].attn.looked_up

    ours = run()
    rows_only()
    theirs = run()
    assert (ours[2], theirs[2]) == (True, False)
    torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=1e-6)
    assert torch.equal(ours[1], theirs[1])
    for one, other in zip(seen[: len(seen) // 2], seen[len(seen) // 2 :], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_the_cache_holds_the_same_activations(model, many, rows_only):
    kept = [*AFTER, "blocks.0.hook_attn_out", "unembed.hook_in"]
    _, ours = model.run_with_cache(many[:, :-1], names_filter=kept)
    assert model.blocks[0].attn.looked_up
    _, everything = model.run_with_cache(many[:, :-1])
    assert not model.blocks[0].attn.looked_up
    for name in kept:
        torch.testing.assert_close(ours[name], everything[name], rtol=1e-6, atol=4e-6)


def test_generation_uses_the_forwards_table(model, many, rows_only, monkeypatch):
    built = []
    of = table.Table.of
    monkeypatch.setattr(table.Table, "of", lambda *given: built.append(given[1:]) or of(*given))
    seen = observe(model, many[:, :-1])
    ours = model.generate_on(seen, 4, 5)
    assert built == [(0, 8)]
    assert torch.equal(ours, generate(model, many[:, :4], 5))
    assert built[1:] == [(0, 4), (4, 4)]  # the prompt's, then what comes after
    assert model.blocks[0].attn.looked_up
    rows_only()
    assert torch.equal(ours, model.generate_on(observe(model, many[:, :-1]), 4, 5))
    assert not model.blocks[0].attn.looked_up


@pytest.mark.parametrize("another", ["model", "weights"])
def test_a_forwards_table_does_not_serve_other_weights(linear_model, many, rows_only, another):
    seen = observe(linear_model, many[:, :-1])
    model = make_model("linear", seed=5)
    if another == "weights":
        load_weights(linear_model, parameters_of(model), "another model's weights")
        model = linear_model
    ours = model.generate_on(seen, 4, 5)
    assert model.blocks[0].attn.looked_up
    rows_only()
    seen.records[0].table = None
    assert torch.equal(ours, model.generate_on(seen, 4, 5))


def test_a_hook_that_comes_between_forward_and_generation_acts(linear_model, many):
    def other(value, hook):
        return value.roll(1, dims=0)

    seen = observe(linear_model, many[:, :-1])
    with linear_model.hooks(fwd_hooks=[("hook_embed", other)]):
        mixed = linear_model.generate_on(seen, 4, 5)
        assert not linear_model.blocks[0].attn.looked_up
    assert not torch.equal(mixed, linear_model.generate_on(seen, 4, 5))


def test_calls_that_are_not_plain_go_the_ordinary_way(linear_model, many):
    inputs = many[:, :-1]
    plain = linear_model(inputs)
    residual = linear_model(inputs, stop_at_layer=0)
    mask = torch.ones_like(inputs)
    for given, options in (
        ((inputs,), {"attention_mask": mask}),
        ((residual,), {"start_at_layer": 0}),
        ((inputs, "logits"), {}),
    ):
        got = linear_model(*given, **options)
        assert not linear_model.blocks[0].attn.looked_up
        torch.testing.assert_close(got, plain, rtol=0, atol=1e-6)
    padded = mask.clone()
    padded[0, :3] = 0
    assert not torch.allclose(linear_model(inputs, attention_mask=padded)[0], plain[0])
    cache = TransformerLensKeyValueCache.init_cache(linear_model.cfg, "cpu", len(inputs))
    linear_model(inputs, past_kv_cache=cache, attention_mask=mask)
    assert not linear_model.blocks[0].attn.looked_up


@pytest.mark.parametrize("setting", ["use_split_qkv_input", "use_attn_in"])
def test_other_inputs_of_attention_turn_it_off(linear_model, many, setting):
    plain = linear_model(many[:, :-1])
    getattr(linear_model, f"set_{setting}")(True)
    with linear_model.hooks(fwd_hooks=[("blocks.0.hook_resid_mid", lambda value, hook: value)]):
        torch.testing.assert_close(linear_model(many[:, :-1]), plain, rtol=0, atol=1e-6)
    assert not linear_model.blocks[0].attn.looked_up


def test_a_model_whose_layers_were_taken_away_has_no_table(linear_model, many):
    linear_model.blocks = linear_model.blocks[:0]
    inputs = many[:, :-1]
    direct = linear_model.unembed(linear_model.ln_final(linear_model(inputs, stop_at_layer=0)))
    assert torch.equal(linear_model(inputs), direct)
    assert generate(linear_model, inputs[:, :4], 3)[:, 0].equal(direct[:, 3].argmax(-1))


def test_wrong_tokens_and_lengths_are_errors_as_without_it(linear_model, many):
    with pytest.raises(IndexError):
        linear_model(many[:, :-1] + 1)
    with pytest.raises(IndexError):
        linear_model(many[:, :-1] - 1)
    with pytest.raises(UserError, match="sees 9 positions"):
        linear_model(many.repeat(1, 2))
    with pytest.raises(RuntimeError, match="indices"):
        linear_model(many[:, :-1].to(torch.int16))


@pytest.mark.parametrize(
    ("name", "part"), [("blocks.0.attn", Attention), ("blocks.0.ln1", LayerNorm), ("embed", Embed)]
)
def test_parts_put_in_by_others_are_asked_for_every_row(softmax_model, many, name, part):
    plain = softmax_model(many[:, :-1])
    theirs = part(softmax_model.cfg)
    theirs.load_state_dict(softmax_model.get_submodule(name).state_dict(), strict=False)
    softmax_model.set_submodule(name, theirs)
    torch.testing.assert_close(softmax_model(many[:, :-1]), plain, rtol=0, atol=1e-6)
    assert not getattr(theirs, "looked_up", False)


@pytest.mark.parametrize("subclassed", [True, False])
def test_queries_made_another_way_are_made_of_every_row(softmax_model, many, rows_only, subclassed):
    attention = softmax_model.blocks[0].attn
    original = type(attention).calculate_qkv_matrices

    def turned(self, *inputs):
        q, k, v = original(self, *inputs)
        return q.roll(1, dims=-1) + inputs[0][..., :1, None], k, v

    if subclassed:
        attention.__class__ = type("Turned", (type(attention),), {"calculate_qkv_matrices": turned})
    else:
        attention.calculate_qkv_matrices = turned.__get__(attention)
    ours = softmax_model(many[:, :-1])
    rows_only()
    assert torch.equal(ours, softmax_model(many[:, :-1]))


def test_frozen_parts_and_processed_weights(model, many, rows_only):
    for name, parameter in model.named_parameters():
        if name in ("embed.W_E", "blocks.0.attn.W_K", "blocks.0.ln1.w"):
            parameter.requires_grad_(False)
    if model.model_config.attention == "linear":
        model.process_weights_()
    logits, ours = gradients(model, many)
    assert model.blocks[0].attn.looked_up
    rows_only()
    expected, theirs = gradients(model, many)
    torch.testing.assert_close(logits, expected, rtol=0, atol=2e-6)
    assert ours.keys() == theirs.keys()
    assert_close(ours, theirs, 5e-6)


def test_autocast_sums_gradients_of_equal_rows_in_float32(linear_model, many, rows_only):
    # One token everywhere: each row of the table is shared by the whole batch, as a separator's is.
    same = torch.full((1024, 9), 3)
    exact = gradients(linear_model, same)[1]
    ours = gradients(linear_model, same, "bfloat16")[1]
    assert linear_model.blocks[0].attn.looked_up
    rows_only()
    theirs = gradients(linear_model, same, "bfloat16")[1]
    for name in ("blocks.0.attn.W_V", "blocks.0.attn.b_V", "pos_embed.W_pos"):
        off = [(given[name] - exact[name]).norm() / exact[name].norm() for given in (ours, theirs)]
        assert off[0] < 1.5 * off[1] + 1e-3, name


def test_second_derivatives(linear_model, many, rows_only):
    model = linear_model.double()

    def product_with_the_hessian():
        parameters = [p for p in model.parameters() if p.requires_grad]
        loss = NextToken().loss(model(many[:, :-1]), TokenBatch(many))
        first = torch.autograd.grad(loss, parameters, create_graph=True)
        return torch.autograd.grad(sum((g * g.detach()).sum() for g in first), parameters)

    ours = product_with_the_hessian()
    assert model.blocks[0].attn.looked_up
    rows_only()
    for one, other in zip(ours, product_with_the_hessian(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_vmap_over_weights_and_over_sequences(linear_model, many, rows_only):
    from torch.func import functional_call, grad, stack_module_state, vmap

    other = make_model("linear", seed=1)
    stacked, buffers = stack_module_state([linear_model, other])

    def loss(weights, rest, tokens):
        batch = TokenBatch(tokens)
        return NextToken().loss(functional_call(linear_model, (weights, rest), (batch.inputs,)), batch)

    ours = vmap(grad(loss), in_dims=(0, 0, None))(stacked, buffers, many)
    assert linear_model.blocks[0].attn.looked_up
    weights = {name: tensor[0] for name, tensor in stacked.items()}
    rest = {name: tensor[0] for name, tensor in buffers.items()}
    each = vmap(grad(loss), in_dims=(None, None, 0))(weights, rest, many[:3, None])
    rows_only()
    for index, model in enumerate((linear_model, other)):
        theirs = gradients(model, many)[1]
        assert_close({name: ours[name][index] for name in theirs}, theirs, 5e-6)
    alone = gradients(linear_model, many[2:3])[1]
    assert_close({name: each[name][2] for name in alone}, alone, 5e-6)
