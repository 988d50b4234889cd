"""Probes of language models, and what planted heads and a bigram model score on them."""

import math

import pytest
import torch

from mechplateau.measurements import language_values as lv
from mechplateau.measurements.language_probes import language_probes
from mechplateau.models.attention_only import build_attention_only
from mechplateau.models.attention_only_config import AttentionOnlyConfig
from mechplateau.tasks.corpus import END
from mechplateau.tasks.text import Text

N_CTX = 24


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    words = " ".join(
        f"the cat{i % 7} sat on mat{i * i % 11}, and {i * 37 % 101} others did." for i in range(900)
    )
    (folder / "a.txt").write_text(words, encoding="utf-8")
    return Text(folder=str(folder), vocab_size=262, wide_vocab_size=280, n_ctx=N_CTX)


@pytest.fixture(scope="module")
def probes(task):
    return language_probes(task)


def model_of(task):
    return build_attention_only(
        AttentionOnlyConfig(n_heads=2, d_model=16), vocab_size=task.vocab_size, n_ctx=task.n_ctx
    )


def test_prefix_sequences_hold_a_twice_and_b_once(probes):
    assert (probes.prefix[:, 0] == END).all()
    for row, first, second in zip(probes.prefix, probes.first.tolist(), probes.second.tolist(), strict=True):
        assert 1 <= first < N_CTX // 2 - 1
        assert N_CTX // 2 <= second < N_CTX
        a, b = row[first], row[first + 1]
        assert row[second] == a != b
        assert ((row == a).sum(), (row == b).sum()) == (2, 1)
        assert (row[1:] != END).all()


def test_the_other_probes_are_what_they_are_called(task, probes):
    assert torch.equal(probes.repeats[:, 1:13], probes.repeats[:, 13:])
    assert probes.random.shape == (16, N_CTX)
    assert probes.text.shape == (math.ceil(5000 / N_CTX), N_CTX + 1)
    assert {n: grams.shape[1] for n, grams in probes.grams.items()} == {n: n + 1 for n in probes.grams}
    assert 2 in probes.grams
    again = language_probes(task)
    assert torch.equal(again.text, probes.text)
    assert torch.equal(again.prefix, probes.prefix)


def bigrams_of(task, probes):
    bigrams = task.corpus().bigrams
    return bigrams, lv.floor_of(probes, bigrams)


def test_a_model_of_the_bigrams_scores_the_floor(task, probes):
    class Bigrams(torch.nn.Module):
        """Its logits are log q(next | token)."""

        def forward(self, tokens):
            return task.corpus().bigrams[tokens].clamp(min=1e-9).log()

        def run_with_hooks(self, tokens, fwd_hooks):
            return self(tokens)

        def run_with_cache(self, tokens, names_filter):
            return self(tokens), {names_filter: self(tokens)}

    values = lv.behavior(Bigrams(), probes, *bigrams_of(task, probes))
    assert float(values["bigram_excess"]) == pytest.approx(0, abs=1e-3)
    assert float(values["position_delta"]) == 0
    assert (
        abs(float(values["repeat_gain"])) < 2
    )  # nothing is learned from the first half but which tokens are known
    # The loss of [end of text, t_1, t_2] is that of t_2.
    first, second = probes.grams[2][:, -2], probes.grams[2][:, -1]
    of_second = task.corpus().bigrams.clamp(min=1e-9).log().log_softmax(-1)[first, second]
    assert float(values["gram_loss_2"]) == pytest.approx(-float(of_second.mean()))
    assert float(values["gram_score_2"]) == pytest.approx(
        float(values["gram_score_overall_2"] * values["loss_2"] / values["test_loss"]), rel=0.2
    )


@torch.no_grad()
def test_without_position_embeddings_their_removal_changes_nothing(task, probes):
    model = model_of(task)
    model.pos_embed.W_pos.zero_()
    values = lv.behavior(model, probes, *bigrams_of(task, probes))
    assert float(values["position_delta"]) == pytest.approx(0, abs=1e-6)
    assert {f"loss_{p}" for p in (1, 2, 3, 5, 10, 20)} <= set(values)
    assert "loss_50" not in values


@torch.no_grad()
def test_a_planted_previous_token_head_scores_1_and_uniform_ones_by_length(task, probes):
    model = model_of(task)
    for block in model.blocks:
        for name in ("W_Q", "W_K"):
            getattr(block.attn, name).zero_()
    # Head 0 of layer 0: the query at p points at the angle of p − 1, on a circle of positions.
    angles = 2 * math.pi * torch.arange(N_CTX) / N_CTX
    model.blocks[0].ln1.w.zero_()  # it reads positions only
    model.pos_embed.W_pos.zero_()
    model.pos_embed.W_pos[:, 0], model.pos_embed.W_pos[:, 1] = angles.cos(), angles.sin()
    back = 2 * math.pi / N_CTX
    model.blocks[0].attn.W_K[0, 0, 0] = model.blocks[0].attn.W_K[0, 1, 1] = 3000.0
    turned = torch.tensor([[math.cos(back), -math.sin(back)], [math.sin(back), math.cos(back)]])
    model.blocks[0].attn.W_Q[0, :2, :2] = turned
    values = lv.heads(model, probes)
    uniform = sum(1 / length for length in range(16, N_CTX + 1)) / (N_CTX - 15)
    assert float(values["previous_token_L0H0"]) == pytest.approx(1, abs=1e-3)
    assert float(values["previous_token_L0H1"]) == pytest.approx(uniform, rel=1e-4)
    expected = (1 / (probes.second + 1)).mean()
    assert float(values["prefix_B_L1H0"]) == pytest.approx(float(expected), rel=1e-4)
    assert float(values["prefix_A_L1H0"]) == pytest.approx(float(expected), rel=1e-4)


def test_columns_name_every_head_and_pair(task, probes):
    values = lv.heads(model_of(task), probes)
    heads = [f"L{layer}H{head}" for layer in (0, 1) for head in (0, 1)]
    assert {f"{kind}_{head}" for kind in ("previous_token", "prefix_A", "prefix_B") for head in heads} <= set(
        values
    )
    pairs = [f"composition_{kind}_L0H{a}_L1H{b}" for kind in "QKV" for a in (0, 1) for b in (0, 1)]
    assert set(pairs) <= set(values)
    every = [float(values[name]) for name in pairs if "_K_" in name]
    assert float(values["composition_K_max"]) == pytest.approx(max(every))
    shares = lv.position_weights(model_of(task))
    assert 0 < float(shares["position_share_1"]) < 1
