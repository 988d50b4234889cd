"""The tools that take a model apart, on any model: against plain loops, and on odd ones."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from mechplateau.circuits.ablation import target_entries
from mechplateau.circuits.contributions import (
    balance_over_rows,
    mean_contributions,
    place_symmetry,
    token_contributions,
    token_entries,
)
from mechplateau.circuits.frequency_ablation import ablate_frequencies
from mechplateau.circuits.positional_map import evenness, fixed_map, same_sign, window_weights
from mechplateau.circuits.sum_terms import summands
from mechplateau.circuits.tuning import (
    chance_share,
    logits_of_the_sum,
    neuron_tuning,
    phase_lock,
    token_spectrum,
)
from mechplateau.errors import UserError
from mechplateau.tasks import Copy, Histogram, MovingWindowSum, PrefixSum

from .conftest import make_model, plain_model

TASK = MovingWindowSum(n=4, k=3, p=11, max_num=10)
ROWS = TASK.output_rows


def model_of(task=TASK, **settings):
    return make_model(vocab_size=task.vocab_size, n_ctx=task.n_ctx, **settings)


@pytest.fixture(params=["linear", "softmax", "grouped"])
def model(request):
    if request.param == "grouped":
        return plain_model(d_vocab=TASK.vocab_size, n_ctx=TASK.n_ctx, n_key_value_heads=1)
    return model_of(attention=request.param)


@pytest.fixture
def sequences():
    return TASK.sample(12, seed=0)


def cached(model, tokens):
    with torch.no_grad():
        return model.run_with_cache(tokens[:, :-1])[1]


def test_r2_against_loops(model, sequences):
    cache, table = cached(model, sequences), fixed_map(model, sequences, rows=ROWS)
    assert table["layer"].tolist() == [0, 0, 1, 1, pd.NA]
    for line in table.head(4).itertuples():
        pattern = cache[f"blocks.{line.layer}.attn.hook_pattern"][:, line.head].double()
        entries = torch.stack([pattern[:, i, j] for i in ROWS for j in range(i + 1)])
        around = (entries - entries.mean(dim=1, keepdim=True)).square().sum()
        assert line.r2 == pytest.approx(float(1 - around / (entries - entries.mean()).square().sum()))
    assert (table["n"] == 12).all()
    assert table["loss_se"].notna().all()


def test_weights_against_loops(model, sequences):
    cache, table = cached(model, sequences), window_weights(model, sequences, TASK)
    assert len(table) == 4 * (1 + 1 + 3 + 3)
    for line in table.itertuples():
        seen = cache[f"blocks.{line.layer}.attn.hook_pattern"][:, line.head, line.row, line.key]
        assert (line.weight, line.sd) == pytest.approx((float(seen.mean()), float(seen.std())), rel=1e-4)


def test_contributions_against_loops(model, sequences):
    cache = cached(model, sequences)
    windows, separators = target_entries(TASK, sequences, 2), token_entries(model, sequences, TASK.separator)
    table = mean_contributions(model, sequences, windows, separators, rows=ROWS)
    first = table[table["layer"] == 1].iloc[-1]
    pattern = cache["blocks.1.attn.hook_pattern"]
    values = cache["blocks.1.attn.hook_v"].expand(-1, -1, 2, -1)
    written = torch.einsum("bkhd,hdm->bhkm", values, model.blocks[1].attn.W_O.detach())
    one = sum((pattern[:, :, ROWS[-1], j, None] * written[:, :, j]).sum(1).mean(0) for j in (1, 2, 3))
    other = (pattern[:, :, ROWS[-1], 4, None] * written[:, :, 4]).sum(1).mean(0)
    expected = torch.corrcoef(torch.stack([one, other]))[0, 1]
    assert first["correlation"] == pytest.approx(float(expected), abs=1e-4)
    assert first["ratio"] == pytest.approx(float(other.norm() / one.norm()), rel=1e-4)
    added = token_contributions(model, sequences, TASK, layer=1)
    terms, rows = summands(TASK, sequences), ROWS[2:]

    def mean_of(token):
        """What attention adds at the second place of a window where this token stands there."""
        found = []
        for b, r in ((b, r) for b in range(12) for r in range(2) if terms.terms[b, r, 1] == token):
            place = terms.places[b, r, 1]
            found.append((pattern[b, :, rows[r], place, None] * written[b, :, place]).sum(0))
        return torch.stack(found).mean(0).double()

    one, other = terms.terms[:, :, 1].unique()[:2].tolist()
    assert torch.allclose(added[1, one] - added[1, other], mean_of(one) - mean_of(other), atol=1e-5)
    assert added[1].nansum(dim=0).abs().max() < 1e-6  # centered


def test_the_balance_over_rows_against_loops(model, sequences):
    cache = cached(model, sequences)
    seen = torch.zeros(1, TASK.n_input, TASK.n_input, dtype=torch.bool)
    seen[:, :, : TASK.n] = True
    separators = token_entries(model, sequences, TASK.separator)
    line = balance_over_rows(model, sequences, {0: seen}, separators, rows=ROWS).iloc[0]
    pattern = cache["blocks.0.attn.hook_pattern"].double()
    values = cache["blocks.0.attn.hook_v"].double().expand(-1, -1, 2, -1)
    written = torch.einsum("bkhd,hdm->bhkm", values, model.blocks[0].attn.W_O.detach().double())

    def added(keys):
        return torch.stack(
            [sum((pattern[:, :, i, j, None] * written[:, :, j]).sum(1).mean(0) for j in keys) for i in ROWS]
        )

    one, other = added(range(TASK.n)), added([TASK.n])
    along = torch.linalg.eigh(other.T @ other).eigenvectors[:, -1]
    x, y = (one @ along).numpy(), (other @ along).numpy()
    covariance = np.cov(x, y)
    assert line["correlation"] == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-6)
    assert line["slope"] == pytest.approx(covariance[0, 1] / covariance[0, 0], rel=1e-5)
    assert line["left"] == pytest.approx(np.var(x + y) / np.var(x), rel=1e-5)
    assert line["rows"] == len(ROWS)


def test_terms_of_windows_and_prefixes(sequences):
    found = summands(TASK, sequences)
    assert found.rows == ROWS[2:]
    assert found.places[0].tolist() == [[0, 1, 2], [1, 2, 3]]
    assert torch.equal(found.terms[:, 1], sequences[:, 1:4])
    assert torch.equal(found.sums, sequences[:, -2:])
    renamed = found.permuted(0)
    names = {(int(a), int(b)) for a, b in zip(found.terms.flatten(), renamed.terms.flatten(), strict=True)}
    assert len(names) == len({a for a, _ in names}) == len({b for _, b in names})  # one name each
    assert not torch.equal(renamed.terms, found.terms)
    prefix = PrefixSum(n=3, p=5, max_num=4)
    made = prefix.sample(4, seed=0)
    terms = summands(prefix, made)
    assert (terms.rows, terms.places[0].tolist()) == (prefix.output_rows[1:], [[1, 4], [2, 5]])


def test_a_model_with_random_weights_is_at_chance():
    task = MovingWindowSum(n=4, k=2, p=17, max_num=16)
    table = neuron_tuning(model_of(task, d_model=32), task.sample(400, seed=0), task, layer=0)
    assert len(table) == 128
    assert (
        table["chance"].iloc[0]
        == chance_share(17)
        == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5 + 1 / 6 + 1 / 7 + 1 / 8) / 8)
    )
    for name in ("share", "control_share"):
        assert abs(table[name].astype(float).mean() - chance_share(17)) < 0.1


def test_weights_that_are_not_numbers_give_null_everywhere(sequences):
    model = model_of()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    table = fixed_map(model, sequences, rows=ROWS)
    assert table[["r2", "loss", "accuracy_fixed"]].isna().all(axis=None)
    weights = window_weights(model, sequences, TASK)
    assert weights["weight"].isna().all()
    assert (evenness(weights), same_sign(weights)) == (None, (None, None))
    entries = target_entries(TASK, sequences, 2), token_entries(model, sequences, TASK.separator)
    balance = mean_contributions(model, sequences, *entries, rows=ROWS)
    assert balance[["correlation", "ratio", "cancelled"]].isna().all(axis=None)
    over_rows = balance_over_rows(model, sequences, *entries, rows=ROWS)
    assert over_rows[["correlation", "slope", "left"]].isna().all(axis=None)
    assert place_symmetry(token_contributions(model, sequences, TASK)) is None
    tuning = neuron_tuning(model, sequences, TASK)
    assert tuning[["frequency", "share", "control_share", "in_phase", "out_phase"]].isna().all(axis=None)
    assert phase_lock(tuning) == (None, None)
    assert logits_of_the_sum(model, sequences, TASK) is None
    for of in ("sum", "terms"):
        few = sequences if of == "sum" else TASK.sample(60, seed=0)
        assert ablate_frequencies(model, few, TASK, of=of)["accuracy"].isna().all()
    assert token_spectrum(model.W_E[:11])["share"].isna().all()


def test_a_model_that_does_nothing_has_nothing_defined(sequences):
    model = model_of()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert fixed_map(model, sequences)["r2"].isna().all()
    assert same_sign(window_weights(model, sequences, TASK)) == (None, None)
    assert neuron_tuning(model, sequences, TASK)["frequency"].isna().all()
    assert logits_of_the_sum(model, sequences, TASK) is None


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (Histogram(n=4, alphabet=3), "this task has no modulus p"),
        (Copy(n=4, max_num=5), "this task has no modulus p"),
        (MovingWindowSum(n=4, k=1, p=11, max_num=10), "its Ω has a single token"),
        (MovingWindowSum(n=4, k=2, p=3, max_num=2), "p: expected at least 4 numbers"),
    ],
)
def test_other_tasks_are_one_line(task, said):
    model, tokens = model_of(task), task.sample(4, seed=0)
    for tool in (neuron_tuning, ablate_frequencies, logits_of_the_sum, token_contributions):
        with pytest.raises(UserError, match=said) as raised:
            tool(model, tokens, task)
        assert "\n" not in str(raised.value)


def test_odd_requests_are_one_line(sequences):
    model, alone = model_of(), plain_model(d_vocab=TASK.vocab_size, n_ctx=TASK.n_ctx, attn_only=True)
    windows = target_entries(TASK, sequences, 2)
    wrong = sequences.clone()
    wrong[0, -1] = (wrong[0, -1] + 1) % 11
    for call, said in (
        (lambda: neuron_tuning(alone, sequences, TASK), "this one has attention only"),
        (lambda: ablate_frequencies(alone, sequences, TASK), "this one has attention only"),
        (lambda: neuron_tuning(model, sequences, TASK, layer=2), "layer: expected one below 2, got 2"),
        (
            lambda: neuron_tuning(model, sequences, TASK, permutations=0),
            "permutations: expected at least 1, got 0",
        ),
        (
            lambda: token_contributions(model, sequences, TASK, layer=-1),
            "layer: expected one below 2, got -1",
        ),
        (lambda: ablate_frequencies(model, sequences[:1], TASK), "first half has sums of at least 4 values"),
        (lambda: ablate_frequencies(model, sequences, TASK, draws=0), "draws: expected at least 1, got 0"),
        (lambda: ablate_frequencies(model, sequences, TASK, of="x"), "of: expected sum or terms, got 'x'"),
        (
            lambda: ablate_frequencies(model, sequences, TASK, of="terms"),
            "at least 54 sums in the first half for waves of 3 terms, got 12",
        ),
        (
            lambda: balance_over_rows(model, sequences, windows, windows, rows=[4, 5]),
            "rows: expected at least 3 to see how they differ, got 2",
        ),
        (lambda: fixed_map(model, sequences[:1]), "expected at least 2 different sequences, got 1"),
        (lambda: summands(TASK, wrong), "expected outputs that are sums modulo p .* these are others"),
        (lambda: window_weights(model, sequences[:, :-1], TASK), "sequences of mws have 9 tokens, got 8"),
        (lambda: token_entries(model, sequences, 12), "token: expected one that the model sees"),
        (
            lambda: token_spectrum(torch.ones(2, 3)),
            r"expected \[p, unit\] with p of at least 3, got \[2, 3\]",
        ),
        (
            lambda: mean_contributions(model, sequences, [1], windows),
            "expected layer → bool tensor, got list",
        ),
        (
            lambda: balance_over_rows(model, sequences, windows, {0: windows[0].float()}),
            r"in layer 0, got torch.float32 \[1, 8, 8\]",
        ),
        (lambda: mean_contributions(model, sequences, windows, {}), "a layer below 2 in both sets"),
        (
            lambda: mean_contributions(model, sequences, windows, {0: torch.ones(1, 2, 2, dtype=torch.bool)}),
            r"expected a bool mask \[1 or 12, 8, 8\] in layer 0, got torch.bool \[1, 2, 2\]",
        ),
    ):
        with pytest.raises(UserError, match=said) as raised:
            call()
        assert "\n" not in str(raised.value)


def test_one_sequence_has_no_spread():
    model, tokens = model_of(), TASK.sample(1, seed=0)
    assert window_weights(model, tokens, TASK)["sd"].isna().all()
    assert neuron_tuning(model, tokens, TASK)["share"].isna().all()
