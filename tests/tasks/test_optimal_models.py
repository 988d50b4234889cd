"""Ω is what an optimal model needs: one built by hand attends uniformly to Ω, nowhere else, and solves the task.

Every position's embedding is a sum of ± pairs, so that LayerNorm only multiplies it by a constant. Queries and keys are
positions: q_i = e_i, k_j = the sum of e_i over the rows i whose Ω holds j. The value is the token's number; attention
adds up the numbers in Ω, small beside the embedding, so that LN2 is a constant too; the MLP is one hat function for
each possible sum, which votes for that sum's residue.
"""

from __future__ import annotations

import math

import pytest
import torch

from mechplateau import metrics
from mechplateau.models import ModelConfig, build_model, generate
from mechplateau.models.transformer import load_weights, parameters_of
from mechplateau.tasks import Copy, MovingWindowSum, Reverse

SMALL, STEEP = 1e-3, 20.0
# Reads a ± pair; what rounding leaves of the mean that LayerNorm subtracts cancels exactly.
PAIR = torch.tensor([0.5, -0.5])


def hand_made(task, largest_sum: int, modulus: int):
    n_ctx, vocab = task.n_ctx, task.vocab_size
    token, total, out = 2 * n_ctx, 2 * n_ctx + 2 * vocab, 2 * n_ctx + 2 * vocab + 2
    d_model, d_head = out + vocab, n_ctx
    d_mlp = 3 * largest_sum
    config = ModelConfig(d_model=d_model, d_head=d_head, d_mlp=d_mlp)
    model = build_model(config, vocab_size=vocab, n_ctx=n_ctx)
    weights = {name: torch.zeros_like(tensor) for name, tensor in parameters_of(model).items()}
    for norm in ("blocks.0.ln1", "blocks.0.ln2", "ln_final"):
        weights[f"{norm}.w"].fill_(1.0)
    for i in range(n_ctx):
        weights["pos_embed.W_pos"][i, 2 * i : 2 * i + 2] = torch.tensor([1.0, -1.0])
    for t in range(vocab):
        weights["embed.W_E"][t, token + 2 * t : token + 2 * t + 2] = torch.tensor([1.0, -1.0])
    normed = 1 / math.sqrt(4 / d_model + 1e-5)  # what LayerNorm multiplies by: four entries of ±1

    (target,) = task.attention_targets(task.sample(1, seed=0))
    for row, sources in zip(target.rows, target.mask[0], strict=True):
        weights["blocks.0.attn.W_Q"][0, 2 * row : 2 * row + 2, row] = PAIR
        for source in sources.nonzero().flatten().tolist():
            weights["blocks.0.attn.W_K"][0, 2 * source : 2 * source + 2, row] = PAIR
    score = normed**2 / math.sqrt(d_head)
    for t in range(vocab):
        weights["blocks.0.attn.W_V"][0, token + 2 * t : token + 2 * t + 2, 0] = PAIR * t / normed / score
    weights["blocks.0.attn.W_O"][0, 0, total : total + 2] = SMALL * torch.tensor([1.0, -1.0])

    # Hidden unit 3m + s is GELU(STEEP · (sum − m − s + 1)), s = 0, 1, 2, for the sums m = 1 … largest_sum.
    for m in range(1, largest_sum + 1):
        for s, sign in enumerate((1.0, -2.0, 1.0)):
            unit = 3 * (m - 1) + s
            weights["blocks.0.mlp.W_in"][total : total + 2, unit] = PAIR * STEEP / normed / SMALL
            weights["blocks.0.mlp.b_in"][unit] = -STEEP * (m + s - 1)
            weights["blocks.0.mlp.W_out"][unit, out + m % modulus] += sign
    for t in range(vocab):
        weights["unembed.W_U"][out + t, t] = 1.0
    load_weights(model, weights, "the hand-made model")
    return model.eval(), target


@pytest.mark.parametrize(
    ("task", "largest_sum", "modulus"),
    [
        (MovingWindowSum(n=6, k=2, p=7, max_num=6), 12, 7),
        (MovingWindowSum(n=6, k=3, p=7, max_num=6), 18, 7),
        (Copy(n=6, max_num=6), 6, 7),
        (Reverse(n=6, max_num=6), 6, 7),
    ],
    ids=["mws-2", "mws-3", "copy", "reverse"],
)
def test_attention_uniform_on_omega_solves_the_task(task, largest_sum, modulus):
    model, target = hand_made(task, largest_sum, modulus)
    tokens = task.sample(64, seed=0)
    with torch.no_grad():
        seen = model.observe(tokens[:, :-1], keep_patterns=True)
        generated = generate(model, tokens[:, : task.prompt_length], task.n_outputs)
    pattern = seen.records[0].map()[:, 0, list(target.rows)]
    on = target.mask.expand_as(pattern)
    assert (pattern[~on] == 0).all()
    torch.testing.assert_close(pattern[on], pattern[on][0].expand_as(pattern[on]), rtol=1e-5, atol=0)
    assert torch.equal(generated, tokens[:, task.prompt_length :])

    rows = torch.zeros(task.n_input, task.n_input, dtype=torch.bool)
    rows[list(target.rows)] = target.mask[0]
    with torch.no_grad():
        record = model.observe(tokens[:, :-1], metric_sets={0: [rows]}).records[0]
    progress, silent = metrics.attention_progress(*record.masses(), target.rows)
    assert progress.item() == pytest.approx(1.0, abs=1e-6)
    assert silent == 0
