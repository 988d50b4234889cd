"""Ablations: against edits written out by hand, and on models where what is lost is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mechplateau.circuits._effects import others
from mechplateau.circuits.ablation import ablate_attention, ablate_heads, target_entries
from mechplateau.circuits.positions import ablate_positions
from mechplateau.circuits.scoring import score
from mechplateau.errors import UserError
from mechplateau.tasks import MovingWindowSum

from .conftest import make_model, plain_model
from .planted import N_POSITIONS, N_TOKENS, copied_tokens, empty_model, plant_previous_token_head

ROWS = tuple(range(1, N_POSITIONS))


@pytest.fixture
def planted():
    """Two heads: head 1 looks at the previous token and copies it, head 0 does nothing."""
    model = empty_model(1, n_heads=2)
    plant_previous_token_head(model, head=1)
    return model


def test_scores_against_numbers_worked_out_by_hand():
    logits = torch.tensor([[[2.0, 0.0, 0.0], [0.0, 1.0, 3.0]], [[0.0, 0.0, 0.0], [0.0, 5.0, 0.0]]])
    tokens = torch.tensor([[0, 0, 1], [2, 0, 1]])
    result = score(logits, tokens)
    assert result.rows == (0, 1)
    e = np.exp
    first = -np.log(e(2) / (e(2) + 2))
    np.testing.assert_allclose(result.loss[0], (first + np.log(3)) / 2)
    np.testing.assert_allclose(result.logit_difference, [(2.0 + 0.0) / 2, ((1 - 1.5) + 5.0) / 2])
    np.testing.assert_allclose(result.accuracy, [1.0, 0.5])  # a tie goes to the smaller token
    with pytest.raises(UserError, match="rows: expected different positions"):
        score(logits, tokens, [2])
    with pytest.raises(UserError, match=r"got \[2, 2, 3\] and \[2, 2\]"):
        score(logits, tokens[:, :2])


def test_only_the_planted_head_is_needed(planted, generator):
    tokens = copied_tokens(generator)
    for method in ("zero", "mean", "resample"):
        table = ablate_heads(planted, tokens, method=method, rows=ROWS)
        assert list(table["head"]) == [0] * 5 + [1] * 5
        idle, needed = table[table["head"] == 0], table[table["head"] == 1]
        assert (table["accuracy"] == 1).all()
        np.testing.assert_array_equal(idle["loss_ablated"], idle["loss"])
        assert (needed["loss_ablated"] > needed["loss"] + 0.1).all()
        assert needed["accuracy_ablated"].max() < 1
    zeroed = ablate_heads(planted, tokens, method="zero", rows=ROWS, heads=[(0, 1)])
    np.testing.assert_allclose(
        zeroed["loss_ablated"], np.log(4), rtol=1e-6
    )  # nothing is left but a uniform guess


@pytest.mark.parametrize("method", ["zero", "mean", "resample"])
def test_heads_are_replaced_by_what_the_method_says(tokens, method):
    model, inputs = make_model(), tokens[:, :-1]

    def by_hand(z, hook):
        z = z.clone()
        own = z[:, :, 1].clone()
        for b in range(3):
            if method == "zero":
                z[b, :, 1] = 0
            elif method == "mean":
                z[b, :, 1] = (own[0] + own[1] + own[2]) / 3
            else:
                z[b, :, 1] = own[others(3, 5)[b]]
        return z

    expected = score(model.run_with_hooks(inputs, fwd_hooks=[("blocks.1.attn.hook_z", by_hand)]), tokens)
    table = ablate_heads(model, tokens, method=method, heads=[(1, 1)], seed=5)
    np.testing.assert_allclose(table["loss_ablated"], expected.loss, rtol=1e-6)
    np.testing.assert_allclose(table["loss"], score(model(inputs), tokens).loss, rtol=1e-6)


def test_resampling_takes_another_sequence_each_once():
    for seed in range(20):
        taken = others(5, seed)
        assert sorted(taken.tolist()) == [0, 1, 2, 3, 4]
        assert (taken != torch.arange(5)).all()
    with pytest.raises(UserError, match="at least 2 sequences"):
        others(1, 0)


def test_the_previous_token_entries_are_needed_and_the_others_are_not(planted, generator):
    tokens = copied_tokens(generator)
    on = torch.diag(torch.ones(N_POSITIONS - 1, dtype=torch.bool), -1)[None]
    off = torch.ones(N_POSITIONS, N_POSITIONS, dtype=torch.bool).tril()[None] & ~on
    off[:, 0] = False
    lost = ablate_attention(planted, tokens, {0: on}, rows=ROWS, label="previous")
    kept = ablate_attention(planted, tokens, {0: off}, rows=ROWS)
    np.testing.assert_allclose(lost["loss_ablated"], np.log(4), rtol=1e-6)
    np.testing.assert_allclose(kept["loss_ablated"], kept["loss"], rtol=1e-6)
    assert set(lost["entries"]) == {"previous"}
    # In the idle head alone, nothing is lost either.
    idle = ablate_attention(planted, tokens, {0: on}, rows=ROWS, heads=[0])
    np.testing.assert_allclose(idle["loss_ablated"], idle["loss"], rtol=1e-6)


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_entries_are_zeroed_without_renormalizing(tokens, attention):
    model, inputs = make_model(attention), tokens[:, :-1]
    mask = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(2)) < 0.3

    def by_hand(pattern, hook):
        return pattern * ~mask[:, None]

    logits = model.run_with_hooks(inputs, fwd_hooks=[("blocks.0.attn.hook_pattern", by_hand)])
    table = ablate_attention(model, tokens, {0: mask})
    np.testing.assert_allclose(table["loss_ablated"], score(logits, tokens).loss, rtol=1e-6)
    assert (table["loss_ablated"] != table["loss"]).any()


def test_on_and_off_omega_are_the_rows_of_omega():
    task = MovingWindowSum(n=3, k=2, p=5, max_num=4)
    tokens = task.sample(2, seed=0)
    on, off = (target_entries(task, tokens, 2, which) for which in ("on", "off"))
    assert on.keys() == off.keys() == {0, 1}
    expected = torch.tensor(
        [[0, 0, 0, 0, 0, 0]] * 3 + [[1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0]],
        dtype=torch.bool,
    )
    assert torch.equal(on[0], expected[None])
    outside = torch.tensor(
        [[0, 0, 0, 0, 0, 0]] * 3 + [[0, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 0], [1, 0, 0, 1, 1, 1]],
        dtype=torch.bool,
    )
    assert torch.equal(off[1], outside[None])
    with pytest.raises(UserError, match='which: expected "on" or "off"'):
        target_entries(task, tokens, 1, "beside")


def test_refusals_of_ablations(tokens):
    model = make_model()
    with pytest.raises(UserError, match=r"masks \[3 or 1, 8, 8\] \(query, key\), got torch.bool \[1, 9, 9\]"):
        ablate_attention(model, tokens, {0: torch.ones(1, 9, 9, dtype=torch.bool)})
    with pytest.raises(UserError, match="nothing to ablate"):
        ablate_attention(model, tokens, {0: torch.zeros(1, 8, 8, dtype=torch.bool)})
    with pytest.raises(UserError, match="layers below 2, got 2"):
        ablate_attention(model, tokens, {2: torch.ones(1, 8, 8, dtype=torch.bool)})
    with pytest.raises(UserError, match="method: expected one of zero, mean, resample"):
        ablate_heads(model, tokens, method="noise")
    with pytest.raises(UserError, match=r"got \(0, 2\)"):
        ablate_heads(model, tokens, heads=[(0, 2)])


def test_without_positions_the_planted_head_is_lost(planted, generator):
    tokens = copied_tokens(generator)
    table = ablate_positions(planted, tokens, rows=ROWS)
    assert (table["accuracy"] == 1).all()
    # All scores are then equal, so attention is uniform over 0 … i: what is copied is their mean.
    for method in ("zero", "mean"):
        lines = table[table["method"] == method]
        assert (lines["loss_ablated"] > lines["loss"] + 0.05).all()
    expected = score(uniform_copy(tokens), tokens, ROWS)
    np.testing.assert_allclose(table.loc[table["method"] == "zero", "loss_ablated"], expected.loss, rtol=1e-5)


def uniform_copy(tokens):
    """Logits of a head that copies the mean of all tokens so far."""
    one_hot = torch.nn.functional.one_hot(tokens[:, :-1], 4).double()
    return one_hot.cumsum(1) / torch.arange(1, tokens.shape[1])[None, :, None]


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_positions_are_replaced_by_what_the_method_says(tokens, attention):
    model, inputs = make_model(attention), tokens[:, :-1]
    own = model.pos_embed.W_pos[:8].detach().clone()
    generator = torch.Generator().manual_seed(3)
    order = torch.randperm(8, generator=generator)
    expected = {"zero": torch.zeros_like(own), "mean": own.mean(0).expand_as(own), "permuted": own[order]}
    table = ablate_positions(model, tokens, permutations=1, seed=3)
    for method, embedding in expected.items():
        with torch.no_grad():
            model.pos_embed.W_pos[:8] = embedding
            by_hand = score(model(inputs), tokens)
            model.pos_embed.W_pos[:8] = own
        lines = table[table["method"] == method]
        np.testing.assert_allclose(lines["loss_ablated"], by_hand.loss, rtol=1e-5)
        np.testing.assert_allclose(lines["accuracy_ablated"], by_hand.accuracy)
        assert list(lines["position"]) == list(range(8))


def test_permuted_positions_are_averaged_over_repeats(tokens):
    model = make_model()
    several = ablate_positions(model, tokens, methods=["permuted"], permutations=2, seed=1)
    generator = torch.Generator().manual_seed(1)
    orders = [torch.randperm(8, generator=generator) for _ in range(2)]
    losses = []
    for order in orders:
        edit = [("hook_pos_embed", lambda embedding, hook, order=order: embedding[:, order])]
        losses.append(score(model.run_with_hooks(tokens[:, :-1], fwd_hooks=edit), tokens).loss)
    np.testing.assert_allclose(several["loss_ablated"], np.mean(losses, axis=0), rtol=1e-6)


def test_a_model_without_positional_embedding_says_so(tokens):
    model = plain_model(positional_embedding_type="rotary", rotary_dim=8)
    with pytest.raises(UserError, match="adds no positional embedding \\(its kind is 'rotary'\\)"):
        ablate_positions(model, tokens)
    with pytest.raises(
        UserError, match="methods: expected a list of some of zero, mean, permuted, got \\['none'\\]"
    ):
        ablate_positions(make_model(), tokens, methods=["none"])


def test_values_are_replaced_at_the_entries_alone(generator):
    """By hand: z plus what the pattern reads of the change in the values at these entries."""
    model = make_model()
    tokens = torch.randint(0, model.cfg.d_vocab, (5, 7), generator=generator)
    inputs = tokens[:, :-1]
    entries = torch.zeros(1, 6, 6, dtype=torch.bool)
    entries[0, 4, [1, 3]] = True
    with torch.no_grad():
        logits, cache = model.run_with_cache(inputs)
        pattern, v, z = (cache[f"blocks.0.attn.hook_{name}"] for name in ("pattern", "v", "z"))
        change = v.mean(0, keepdim=True) - v
        edited = z.clone()
        for key in (1, 3):
            edited[:, 4, 1] += pattern[:, 1, 4, key, None] * change[:, key, 1]
        by_hand = model.run_with_hooks(inputs, fwd_hooks=[("blocks.0.attn.hook_z", lambda z, hook: edited)])
    table = ablate_attention(model, tokens, {0: entries}, method="mean", of="values", heads=[1])
    np.testing.assert_allclose(table["loss_ablated"], score(by_hand, tokens).loss, atol=1e-6)
    p = torch.stack([pattern[:, 1, 4, key] for key in (1, 3)]).double()
    varies = 1 - p.mean(1).square().sum() / p.square().mean(1).sum()
    assert table["pattern_varies"][0] == pytest.approx(float(varies), rel=1e-6)
    rises = score(by_hand, tokens).each[0] - score(logits, tokens).each[0]
    np.testing.assert_allclose(table["loss_se"], rises.std(axis=0, ddof=1) / 5**0.5, atol=1e-6)
    assert set(table["n"]) == {5}
    zero = [ablate_attention(model, tokens, {0: entries}, of=of) for of in ("pattern", "values")]
    np.testing.assert_allclose(zero[0]["loss_ablated"], zero[1]["loss_ablated"], atol=1e-6)


def test_a_fixed_pattern_does_not_vary_and_constant_values_bring_nothing(generator):
    """Attention by position: resampling the pattern does nothing by construction, resampling values does."""
    model = empty_model(1)
    plant_previous_token_head(model)
    tokens = torch.randint(0, N_TOKENS, (12, 7), generator=generator)
    entries = {0: torch.eye(6, dtype=torch.bool).roll(1, 0)[None]}
    of_pattern = ablate_attention(model, tokens, entries, method="resample")
    assert of_pattern["pattern_varies"][0] < 1e-6
    np.testing.assert_allclose(of_pattern["loss_ablated"], of_pattern["loss"], atol=1e-6)
    of_values = ablate_attention(model, tokens, entries, method="resample", of="values")
    assert (of_values["loss_ablated"][1:] != of_values["loss"][1:]).any()
    with torch.no_grad():
        model.blocks[0].attn.W_V.zero_()
        model.blocks[0].attn.b_V[0, 0] = 1.0
    constant = ablate_attention(model, tokens, entries, method="resample", of="values")
    np.testing.assert_allclose(constant["loss_ablated"], constant["loss"], atol=1e-6)
    with pytest.raises(UserError, match="of: expected pattern or values, got 'keys'"):
        ablate_attention(model, tokens, entries, of="keys")
