"""Probes of models: the right activations, the right labels, known answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mechplateau.circuits.by_hand import model_by_hand
from mechplateau.circuits.probing import _features, _inputs_of_label, _labels, probe
from mechplateau.errors import UserError
from mechplateau.tasks import MovingWindowSum

from .conftest import make_model, plain_model
from .planted import copied_tokens, empty_model, plant_previous_token_head

TASK = MovingWindowSum(n=4, k=2, p=10, max_num=9)


def test_labels_are_what_they_say():
    tokens = TASK.sample(50, seed=0)
    rows = TASK.output_rows
    x = tokens[:, :4]
    for label, expected in {
        "input": tokens[:, 4:8],
        "output": tokens[:, 5:9],
        "position": torch.tensor([4, 5, 6, 7]).expand(50, 4),
        "window_sum": torch.stack([x[:, 0], x[:, 0] + x[:, 1], x[:, 1] + x[:, 2], x[:, 2] + x[:, 3]], 1) % 10,
    }.items():
        name, values = _labels(label, tokens, rows, TASK)
        assert name == label
        np.testing.assert_array_equal(values, expected)
    # For this task the window's sum is the output.
    np.testing.assert_array_equal(_labels("window_sum", tokens, rows, TASK)[1], tokens[:, 5:])

    def parity(tokens):
        return tokens[:, 5:] % 2

    name, values = _labels(parity, tokens, rows, TASK)
    assert name == "parity"
    np.testing.assert_array_equal(values, tokens[:, 5:] % 2)


def test_features_are_the_activations_at_the_rows():
    z = torch.randn(3, 8, 2, 5)
    np.testing.assert_array_equal(_features(z, "blocks.0.attn.hook_z", [1, 6], None), z[:, [1, 6]].flatten(2))
    np.testing.assert_array_equal(_features(z, "blocks.0.attn.hook_z", [1, 6], 1), z[:, [1, 6], 1])
    pattern = torch.randn(3, 2, 8, 8)
    np.testing.assert_array_equal(
        _features(pattern, "blocks.0.attn.hook_pattern", [7], 0), pattern[:, 0, [7]]
    )
    resid = torch.randn(3, 8, 16)
    with pytest.raises(UserError, match="expected a head below 0"):
        _features(resid, "blocks.0.hook_resid_pre", [0], 0)


def test_a_planted_head_holds_the_previous_token_and_not_the_present_one(generator):
    model = empty_model(1)
    plant_previous_token_head(model)
    tokens = torch.randint(0, 4, (120, 7), generator=generator)
    rows = range(1, 6)

    def previous(tokens):
        return tokens[:, :5]

    read = probe(model, tokens, previous, hook="blocks.0.attn.hook_z", rows=rows).iloc[0]
    assert read["test_accuracy"] == 1.0
    assert read["label"] == "previous"
    # 300 test rows at chance 1/4: 5 standard deviations are 0.125.
    assert abs(read["shuffled_accuracy"] - 0.25) < 0.13
    other = probe(model, tokens, "input", hook="blocks.0.attn.hook_z", rows=rows).iloc[0]
    assert abs(other["test_accuracy"] - 0.25) < 0.13


def test_positions_are_read_from_the_residual_stream_and_the_control_is_not_fooled(generator):
    """Shuffling within sequences would leave the label of each position as it is."""
    model = empty_model(1)
    tokens = copied_tokens(generator, batch=60)
    read = probe(model, tokens, "position", hook="blocks.0.hook_resid_pre").iloc[0]
    assert read["test_accuracy"] == 1.0
    assert read["shuffled_accuracy"] < 0.4


def test_any_hook_of_any_model_and_the_tasks_rows():
    tokens = TASK.sample(16, seed=0)
    for model in (make_model(n_ctx=9), plain_model(positional_embedding_type="rotary", rotary_dim=8)):
        line = probe(model, tokens, "output", hook="blocks.1.mlp.hook_post", task=TASK, max_iter=20).iloc[0]
        assert line["n_train"] == line["n_test"] == 8 * 4
    line = probe(
        make_model(n_ctx=9), tokens, "output", hook="blocks.1.attn.hook_v", head=1, task=TASK, max_iter=20
    )
    assert line["head"].item() == 1


def test_refusals_of_probes():
    model, tokens = make_model(), TASK.sample(8, seed=0)
    with pytest.raises(UserError, match=r"no hook 'blocks\.0\.hook_z'"):
        probe(model, tokens, "input", hook="blocks.0.hook_z")
    with pytest.raises(UserError, match="label: expected one of input, output"):
        probe(model, tokens, "sum", hook="hook_embed")
    with pytest.raises(UserError, match="give the task"):
        probe(model, tokens, "window_sum", hook="hook_embed")
    with pytest.raises(UserError, match=r"rows: window_sum is defined at the rows of Ω"):
        probe(model, tokens, "window_sum", hook="hook_embed", task=TASK, rows=[0])
    with pytest.raises(UserError, match=r"expected integers \[8, 8\]"):
        probe(model, tokens, lambda tokens: tokens, hook="hook_embed")


def test_the_control_task_is_over_what_the_label_is_a_function_of():
    """Moving window sum: the two tokens of the window, in any order, wherever it stands; its first row has one."""
    tokens = torch.tensor([[1, 2, 1, 2, 0, 1, 3, 3, 3], [2, 1, 5, 5, 0, 2, 3, 6, 0]])
    labels = _labels("output", tokens, TASK.output_rows, TASK)[1]
    found = _inputs_of_label("output", None, tokens, TASK.output_rows, TASK, labels)
    # x0 | x0 x1 | x1 x2 | x2 x3: (1) (1 2) (2 1) (1 2) and (2) (2 1) (1 5) (5 5)
    assert found.shape == (2, 4)
    assert found[0, 1] == found[0, 2] == found[0, 3] == found[1, 1]
    assert len(set(found.ravel())) == 5  # (1), {1 2}, (2), {1 5}, {5 5}
    # A label that tells (1 2) from (2 1) is a function of the pair in order.
    ordered = np.array([[1, 3, 6, 3], [2, 6, 6, 0]])
    found = _inputs_of_label("output", None, tokens, TASK.output_rows, TASK, ordered)
    assert found[0, 1] == found[0, 3] != found[0, 2] == found[1, 1]
    assert len(set(found.ravel())) == 6
    by_input = _inputs_of_label("input", None, tokens, TASK.output_rows, TASK, labels)
    np.testing.assert_array_equal(by_input, labels)
    assert _inputs_of_label("position", None, tokens, TASK.output_rows, TASK, labels) is None
    without_task = _inputs_of_label("output", None, tokens, [0, 1], None, tokens[:, 1:3].numpy())
    assert len(set(without_task.ravel())) == 4  # (1) (1 2) and (2) (2 1)


def test_selectivity_of_a_planted_head(generator):
    """The previous token stands in z; a random function of it is read as well, and what is not there is not."""
    model = empty_model(1)
    plant_previous_token_head(model)
    tokens = torch.randint(0, 4, (160, 7), generator=generator)

    def previous(tokens):
        return tokens[:, :5]

    def parity_of_both(tokens):
        return (tokens[:, :5] + tokens[:, 1:6]) % 2

    def both(tokens):
        return torch.stack([tokens[:, :5], tokens[:, 1:6]], dim=-1)

    hook = "blocks.0.attn.hook_z"
    table = probe(
        model, tokens, previous, hook=hook, rows=range(1, 6), label_of=previous, kind=["linear", "mlp"]
    )
    assert list(table["kind"]) == ["linear", "mlp"]
    assert (table["test_accuracy"] == 1).all()
    assert (table["selectivity"] < 0.1).all()
    line = probe(model, tokens, parity_of_both, hook=hook, rows=range(1, 6), label_of=both).iloc[0]
    assert line["test_accuracy"] < 0.7
    assert probe(model, tokens, previous, hook=hook, rows=range(1, 6))["selectivity"].isna().all()


def test_selectivity_where_only_a_sums_operands_are():
    """The model by hand: attention adds the two operands' waves, in no order."""
    task = MovingWindowSum(n=6, k=2, p=11, max_num=10)
    model, tokens = model_by_hand(task), task.sample(120, seed=0)
    rows = task.output_rows[1:]
    pairs = torch.stack([tokens[:, 0:5], tokens[:, 1:6]], dim=-1)
    names = torch.randint(0, 11, (11, 11), generator=torch.Generator().manual_seed(3))

    def of_the_pair(_):
        """Nothing but a name of the two operands: all that a probe reads of it, it makes itself."""
        low, high = pairs.sort(dim=-1).values.unbind(dim=-1)
        return names[low, high]

    def read(label, hook, **options):
        return probe(
            model,
            tokens,
            label,
            hook=f"blocks.0.{hook}",
            task=task,
            rows=rows,
            draws=1,
            max_iter=100,
            **options,
        ).iloc[0]

    operands = {"kind": "mlp", "hidden": 48}
    made = read(of_the_pair, "hook_attn_out", label_of=lambda _: pairs.sort(dim=-1).values, **operands)
    assert made["test_accuracy"] > 0.8
    assert abs(made["selectivity"]) < 0.1
    # With the order asked for, which is not there, the same finding would look like the model's own.
    ordered = read("output", "hook_attn_out", label_of=lambda _: pairs, **operands)
    assert ordered["selectivity"] > read("output", "hook_attn_out", **operands)["selectivity"] + 0.2


def test_repeated_prompts_are_not_tested_on(generator):
    model = empty_model(1)
    tokens = torch.cat([torch.randint(0, 4, (20, 7), generator=generator)] * 2)
    tokens[30:, 0] = (tokens[30:, 0] + 1) % 4
    line = probe(model, tokens, "input", hook="hook_embed", control=False).iloc[0]
    assert line["n_test"] < line["n_train"]
    assert line["repeated"] >= 0.5
