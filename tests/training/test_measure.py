"""One row of the table against the definitions, computed slowly from TransformerLens's own cache."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from mechplateau.measurements import Setting
from mechplateau.measurements.inside import pictures
from mechplateau.models import ModelConfig, build_model
from mechplateau.tasks import MovingWindowSum
from mechplateau.training.measure import Measurer

TASK = MovingWindowSum(n=5, k=2, p=7, max_num=6)
CPU = torch.device("cpu")


@pytest.fixture(params=[("linear", 1), ("linear", 2), ("softmax", 1)], ids=lambda p: f"{p[0]}-{p[1]}")
def model(request):
    attention, n_layers = request.param
    config = ModelConfig(attention=attention, n_layers=n_layers, n_heads=2, d_model=12)
    model = build_model(config, vocab_size=TASK.vocab_size, n_ctx=TASK.n_ctx)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()


def slow_row(model, tokens):
    """Everything by loops over samples, positions and pairs, as the definitions read."""
    n, prompt = TASK.n, TASK.prompt_length
    batch = len(tokens)
    with torch.no_grad():
        logits, cache = model.run_with_cache(tokens[:, :-1])
        grown = tokens[:, :prompt]
        for _ in range(n):
            grown = torch.cat([grown, model(grown)[:, -1:].argmax(-1)], dim=1)
    made, true = grown[:, prompt:].tolist(), tokens[:, prompt:].tolist()
    log_probabilities = logits.log_softmax(-1)

    def loss_at(sample, position):
        return -log_probabilities[sample, position, tokens[sample, position + 1]].item()

    row = {"loss": sum(loss_at(b, i) for b in range(batch) for i in range(2 * n)) / (batch * 2 * n)}
    row["accuracy"] = sum(made[b][r] == true[b][r] for b in range(batch) for r in range(n)) / (batch * n)
    for r in range(n):
        row[f"accuracy_out_{r}"] = sum(made[b][r] == true[b][r] for b in range(batch)) / batch
        row[f"loss_out_{r}"] = sum(loss_at(b, n + r) for b in range(batch)) / batch
    for name, outputs in (("", made), ("_data", true)):
        pairs = [y[i] == y[i + 1] for y in outputs for i in range(n - 1)]
        row[f"repetition{name}"] = sum(pairs) / len(pairs)
        row[f"entropy{name}"] = sum(
            -sum(c / n * math.log(c / n) for c in Counter(y).values()) for y in outputs
        ) / len(outputs)
    row["alpha_1"] = sum(y[i] == y[0] for y in made for i in range(n)) / (batch * n)
    for layer in range(model.cfg.n_layers):
        name = "apm_window" if model.cfg.n_layers == 1 else f"apm_window_L{layer}"
        ratios = []
        for b in range(batch):
            on = every = 0.0
            for r in range(n):
                omega = {0} if r == 0 else {r - 1, r}
                for j in range(2 * n):
                    size = cache["pattern", layer][b, :, n + r, j].abs().sum().item()
                    every += size
                    on += size if j in omega else 0.0
            ratios.append(on / every)
        row[name] = sum(ratios) / batch
    row["apm_zero_count"] = 0
    hidden = cache["unembed.hook_in"].double()

    def cosine(i, j):
        values = [
            torch.dot(hidden[b, n + i], hidden[b, n + j]) / hidden[b, n + i].norm() / hidden[b, n + j].norm()
            for b in range(batch)
        ]
        return sum(values).item() / batch

    pairs = [(i, j) for i in range(1, n) for j in range(1, i)]
    row["cos_final"] = sum(cosine(i, j) for i, j in pairs) / len(pairs)
    for r in range(n - 1):
        row[f"cos_out_{r}"] = sum(cosine(i, r) for i in range(r + 1, n)) / (n - 1 - r)
    row[f"cos_out_{n - 1}"] = None
    return row


def test_a_row_is_the_definitions(model):
    batch = TASK.batch(7, seed=0)
    measurer = Measurer(Setting(TASK, model.model_config))
    row = measurer.row(model, 3, batch)
    expected = {"step": 3, **slow_row(model, batch.tokens)}
    assert set(row) == set(expected)
    assert tuple(row) == measurer.columns()
    for name, value in expected.items():
        assert row[name] == (None if value is None else pytest.approx(value, rel=2e-5, abs=2e-6)), name


def test_the_papers_way_takes_generation_from_fresh_sequences(model):
    batch, fresh = TASK.batch(7, seed=0), TASK.batch(5, seed=3)
    row = Measurer(Setting(TASK, model.model_config)).row(model, 3, batch, fresh)
    of_batch, of_fresh = slow_row(model, batch.tokens), slow_row(model, fresh.tokens)
    from_fresh = {"accuracy", "repetition", "repetition_data", "entropy", "entropy_data"}
    for name in of_batch:
        value = (of_fresh if name in from_fresh else of_batch)[name]
        assert row[name] == (None if value is None else pytest.approx(value, rel=2e-5, abs=2e-6)), name


def test_all_locations_add_their_columns(model):
    batch = TASK.batch(4, seed=0)
    n_layers = model.cfg.n_layers
    row = Measurer(Setting(TASK, model.model_config, "all")).row(model, 0, batch)
    _, cache = model.run_with_cache(batch.inputs)
    for layer in range(n_layers):
        hidden = cache[f"blocks.{layer}.hook_resid_mid"][:, TASK.n : 2 * TASK.n]
        assert row[f"norm_L{layer}_resid_mid"] == pytest.approx(hidden.norm(dim=-1).mean().item(), rel=1e-5)
        singular = torch.linalg.svdvals(hidden)
        rank = ((singular**2).sum(-1) / singular[:, 0] ** 2).mean().item()
        assert row[f"stable_rank_L{layer}_resid_mid"] == pytest.approx(rank, rel=1e-4)
        assert -1 <= row[f"cos_L{layer}_resid_post"] <= 1


def test_silent_attention_counts_as_zero_and_is_counted():
    model = build_model(ModelConfig(d_model=8), vocab_size=TASK.vocab_size, n_ctx=TASK.n_ctx)
    with torch.no_grad():
        model.blocks[0].attn.W_Q.zero_()
    row = Measurer(Setting(TASK, model.model_config)).row(model, 0, TASK.batch(6, seed=0))
    assert row["apm_window"] == 0
    assert row["apm_zero_count"] == 6


def test_no_pair_is_null():
    task = MovingWindowSum(n=2, k=2, p=7, max_num=6)
    model = build_model(ModelConfig(d_model=8), vocab_size=8, n_ctx=5)
    assert (
        Measurer(Setting(task, model.model_config)).row(model, 0, task.batch(6, seed=0))["cos_final"] is None
    )


@pytest.mark.parametrize("weight", ["unembed.W_U", "blocks.0.attn.W_V", "blocks.0.attn.W_Q", "embed.W_E"])
def test_a_diverged_model_has_null_where_its_numbers_are_broken(weight):
    model = build_model(ModelConfig(d_model=8), vocab_size=TASK.vocab_size, n_ctx=TASK.n_ctx)
    with torch.no_grad():
        dict(model.named_parameters())[weight].fill_(float("nan"))
    row = Measurer(Setting(TASK, model.model_config, "all")).row(model, 0, TASK.batch(6, seed=0))
    of_model = ["loss", "accuracy", "accuracy_out_1", "loss_out_1", "repetition", "entropy", "alpha_1"]
    assert [row[name] for name in of_model] == [None] * len(of_model)
    assert row["repetition_data"] is not None
    if weight in ("blocks.0.attn.W_Q", "embed.W_E"):
        assert row["apm_window"] is None
        assert row["norm_L0_resid_post"] is None


def test_maps_are_batch_means(model):
    batch = TASK.batch(5, seed=0)
    maps = pictures(model, batch, Setting(TASK, model.model_config))
    _, cache = model.run_with_cache(batch.inputs)
    for layer in range(model.cfg.n_layers):
        torch.testing.assert_close(
            maps[f"pattern.L{layer}"], cache["pattern", layer].mean(0), rtol=1e-4, atol=1e-6
        )
    assert maps["cosine.final"].shape == (5, 5)
    torch.testing.assert_close(maps["cosine.final"].diagonal(), torch.ones(5))
