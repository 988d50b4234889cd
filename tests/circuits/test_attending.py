"""What heads attend to, without a map: equal to the sums over the map, in every kind of model."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import mechplateau_kernels as mk
from mechplateau.circuits import attention_scores, attention_sets, over_run, repeated_tokens
from mechplateau.circuits.token_sets import READY_MADE
from mechplateau.errors import UserError

from .conftest import VOCAB, make_model, plain_model

LONG = 70
"""More positions than the map is built for in models of ours."""
FAMILIES = {
    "GPT-2": lambda: plain_model(n_ctx=LONG),
    "NeoX": lambda: plain_model(
        n_ctx=LONG, positional_embedding_type="rotary", rotary_dim=4, parallel_attn_mlp=True
    ),
    "Llama": lambda: plain_model(
        n_ctx=LONG, n_heads=4, d_head=4, n_key_value_heads=2, positional_embedding_type="rotary", rotary_dim=4,
        normalization_type="RMS", gated_mlp=True, act_fn="silu",
    ),
    "Gemma-2": lambda: plain_model(
        n_ctx=LONG, n_heads=4, d_head=4, n_key_value_heads=2, positional_embedding_type="rotary", rotary_dim=4,
        normalization_type="RMS", gated_mlp=True, attn_scores_soft_cap=0.5, attn_scale=3.0, use_local_attn=True,
        attn_types=["global", "local"], window_size=6, use_normalization_before_and_after=True,
    ),
    "OLMo-2": lambda: plain_model(
        n_ctx=LONG, positional_embedding_type="rotary", rotary_dim=8, normalization_type="RMS",
        original_architecture="Olmo2ForCausalLM",
    ),
    "head results": lambda: plain_model(n_ctx=LONG, use_attn_result=True, use_split_qkv_input=True),
    "bidirectional": lambda: plain_model(n_ctx=LONG, attention_dir="bidirectional"),
    "ours, linear": lambda: make_model("linear", n_ctx=LONG),
    "ours, softmax": lambda: make_model("softmax", n_ctx=LONG),
}  # fmt: skip


def by_pattern(model, tokens, rows=None):
    """The same table from the maps of `run_with_cache`."""
    inputs = tokens[:, :-1]
    batch, pos = inputs.shape
    rows = list(range(pos)) if rows is None else list(rows)
    _, cache = model.run_with_cache(inputs)
    lines = []
    for layer in range(model.cfg.n_layers):
        pattern = cache[f"blocks.{layer}.attn.hook_pattern"].double().abs()
        share = pattern / pattern.sum(-1, keepdim=True)
        reach = torch.ones(pos, pos).bool()
        if model.cfg.attention_dir == "causal":
            reach = reach.tril()
        if model.blocks[layer].attn.attn_type == "local":
            reach = reach.triu(1 - model.cfg.window_size)
        entropy = -torch.special.xlogy(share, share).sum(-1)[:, :, rows].mean((0, 2))
        for name, chosen in attention_sets(inputs).items():
            inside = (chosen.dense(pos) & reach).expand(batch, pos, pos)
            there = inside.any(-1)[:, rows]
            uniform = (inside.sum(-1) / reach.sum(-1))[:, rows][there].mean()
            for head in range(model.cfg.n_heads):
                on_set = torch.where(inside, share[:, head], 0.0).sum(-1)[:, rows][there].mean().item()
                lines.append(
                    (layer, head, name, on_set, uniform.item(), int(there.sum()), entropy[head].item())
                )
    table = pd.DataFrame(lines, columns=["layer", "head", "set", "mass", "uniform", "queries", "entropy"])
    return table.sort_values(["layer", "head"], kind="stable", ignore_index=True)


@pytest.fixture
def long_tokens():
    return torch.randint(0, VOCAB, (3, LONG + 1), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_is_that_of_the_maps(family, long_tokens):
    model = FAMILIES[family]()
    got, want = attention_scores(model, long_tokens, batch_size=2), by_pattern(model, long_tokens)
    keys = ["layer", "head", "set"]
    assert got[keys].to_numpy().tolist() == want[keys].to_numpy().tolist()
    for name in ("mass", "uniform", "queries", "entropy"):
        assert got[name].tolist() == pytest.approx(want[name].tolist(), abs=1e-5), name
    assert got["lift"].tolist() == pytest.approx((want["mass"] / want["uniform"]).tolist(), rel=1e-4)


@pytest.mark.parametrize("family", ["NeoX", "ours, linear"])
def test_the_model_computes_the_same_and_is_as_it_was(family, long_tokens):
    model, seen = FAMILIES[family](), {}
    before = model(long_tokens[:, :-1])
    attributes = [set(block.attn.__dict__) for block in model.blocks]

    def keep(x, hook):
        seen[hook.name] = x.clone()

    with model.hooks(fwd_hooks=[("blocks.1.hook_resid_post", keep), ("blocks.0.attn.hook_z", keep)]):
        model(long_tokens[:, :-1])
        plain = dict(seen)
        attention_scores(model, long_tokens)
    for name, x in plain.items():
        torch.testing.assert_close(seen[name], x, rtol=1e-5, atol=1e-5)
    assert [set(block.attn.__dict__) for block in model.blocks] == attributes
    assert torch.equal(model(long_tokens[:, :-1]), before)


def test_hooks_before_and_after_attention_act(long_tokens):
    model = FAMILIES["NeoX"]()
    plain = attention_scores(model, long_tokens)

    def rotated(x, hook):
        return x.roll(1, dims=1)

    def silenced(x, hook):
        return x * 0

    with model.hooks(fwd_hooks=[("blocks.0.attn.hook_rot_q", rotated)]):
        edited = attention_scores(model, long_tokens)
    assert (edited["mass"] - plain["mass"])[plain["layer"] == 0].abs().max() > 1e-3
    with model.hooks(fwd_hooks=[("blocks.0.attn.hook_z", silenced)]):
        edited = attention_scores(model, long_tokens)
    change = (edited["mass"] - plain["mass"]).abs()
    assert change[plain["layer"] == 0].max() == 0
    assert change[plain["layer"] == 1].max() > 1e-4


def test_sets_of_ones_own_and_rows_that_count(long_tokens):
    model = FAMILIES["GPT-2"]()
    mask = torch.zeros(3, LONG, LONG, dtype=torch.bool)
    mask[0, 5, 2] = mask[2, 9, 9] = True
    sets = {"one": mk.Offsets(1, 1), "entries": mask, "never": mk.First(0)}
    table = attention_scores(model, long_tokens, sets=sets, rows=[5, 9], batch_size=2).set_index("set")
    _, cache = model.run_with_cache(long_tokens[:, :-1])
    pattern = cache["blocks.0.attn.hook_pattern"][:, 0]
    first = table[(table["layer"] == 0) & (table["head"] == 0)]
    assert first.loc["one", "mass"] == pytest.approx((pattern[:, 5, 4] + pattern[:, 9, 8]).mean().item() / 2)
    assert first.loc["entries", "mass"] == pytest.approx(((pattern[0, 5, 2] + pattern[2, 9, 9]) / 2).item())
    assert first["queries"].tolist() == [6, 2, 0]
    assert first.loc["never", ["mass", "uniform", "lift"]].isna().all()


def test_repeated_tokens_are_copies_as_the_model_sees_them():
    tokens = repeated_tokens(50, length=6, copies=3, batch=2, seed=1, first=7)
    assert tokens.shape == (2, 20)
    seen = tokens[:, :-1]
    assert (seen[:, 0] == 7).all()
    assert torch.equal(seen[:, 1:7], seen[:, 7:13])
    assert torch.equal(seen[:, 1:7], seen[:, 13:])
    assert torch.equal(tokens, repeated_tokens(50, length=6, copies=3, batch=2, seed=1, first=7))
    sets = attention_sets(torch.tensor([[4, 5, 6, 4, 5]]))
    assert sets["induction"].dense(5)[0].nonzero().tolist() == [[3, 1], [4, 2]]
    assert sets["same_token"].dense(5)[0].nonzero().tolist() == [[3, 0], [4, 1]]


def test_over_a_run(toy_run):
    tokens = toy_run.task.sample(4, seed=0)
    table = over_run(
        toy_run, attention_scores, tokens, rows=toy_run.task.output_rows, steps=toy_run.steps[-2:]
    )
    assert table["step"].unique().tolist() == list(toy_run.steps[-2:])
    last = attention_scores(toy_run.model(toy_run.steps[-1]), tokens, rows=toy_run.task.output_rows)
    assert table["mass"].tail(len(last)).tolist() == last["mass"].tolist()
    assert set(last["set"]) == set(READY_MADE)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: plain_model(n_ctx=LONG, positional_embedding_type="alibi"), "ALiBi positions"),
        (lambda: plain_model(n_ctx=LONG, use_attention_sinks=True), "learned sinks"),
        (lambda: torch.nn.Linear(2, 2), "expected a HookedTransformer, got Linear"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(make, message, long_tokens):
    with pytest.raises(UserError, match=message) as caught:
        attention_scores(make(), long_tokens)
    assert "\n" not in str(caught.value)


def test_a_hook_on_the_map_is_refused(long_tokens):
    model = FAMILIES["GPT-2"]()
    with (
        model.hooks(fwd_hooks=[("blocks.1.attn.hook_pattern", lambda x, hook: x)]),
        pytest.raises(UserError, match=r"blocks\.1\.attn\.hook_pattern: a hook here needs the map"),
    ):
        attention_scores(model, long_tokens)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sets": ["induktion"]}, "expected some of previous_token"),
        ({"sets": "induction"}, "expected some of"),
        ({"sets": {}}, "at least one"),
        ({"sets": []}, "at least one"),
        ({"sets": None}, "at least one"),
        ({"sets": 3}, "expected some of"),
        ({"sets": torch.ones(70, 70).bool()}, "expected names, or a dict of names to sets, got Tensor"),
        (
            {"sets": np.array(["self", "induction"])},
            "expected names, or a dict of names to sets, got ndarray",
        ),
        ({"sets": ["self", "self"]}, "expected each name once"),
        ({"batch_size": True}, "batch_size: expected a whole number, got True"),
        ({"sets": {"mine": torch.zeros(3, 4).bool()}}, "sets: mine: expected bool"),
        ({"sets": {"mine": torch.zeros(3, 3).bool()}}, "the model sees 3 of 70"),
        ({"sets": {1: torch.zeros(70, 70).bool(), "1": torch.zeros(70, 70).bool()}}, "got 1 twice"),
        ({"rows": [70]}, "rows: expected different positions"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.0}, "batch_size: expected a whole number, got 2.0"),
    ],
)
def test_odd_requests(options, message, long_tokens):
    with pytest.raises(UserError, match=message) as caught:
        attention_scores(FAMILIES["GPT-2"](), long_tokens, **options)
    assert "\n" not in str(caught.value)


class Largest(TorchDispatchMode):
    """Notes the largest tensor that is made."""

    entries = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor):
                self.entries = max(self.entries, x.numel())
        return result


def test_nothing_as_large_as_a_map_is_made():
    """Besides the operation itself, whose memory `tests/kernels/test_any_length.py` bounds."""
    length = 1024
    model = plain_model(n_ctx=length, n_heads=1, d_vocab=50)
    tokens = repeated_tokens(50, length=length // 2, batch=1)
    with Largest() as largest:
        attention_scores(model, tokens)
    assert 0 < largest.entries < length**2 / 4
    with Largest() as largest:
        model.run_with_cache(tokens[:, :-1])
    assert largest.entries >= length**2
