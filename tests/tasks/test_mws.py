"""Moving window sum: sampler, Ω, pairs and checks against a slow, obviously right version."""

from __future__ import annotations

import pytest
import torch

from mechplateau.errors import ConfigError, UserError
from mechplateau.tasks import MovingWindowSum, task_class


def slow_outputs(x: list[int], k: int, p: int) -> list[int]:
    outputs = []
    for i in range(len(x)):
        if i < k - 1:
            outputs.append(x[i])
        else:
            total = 0
            for j in range(i - k + 1, i + 1):
                total += x[j]
            outputs.append(total % p)
    return outputs


@pytest.mark.parametrize(
    ("n", "k", "p", "max_num"), [(16, 2, 17, 16), (8, 1, 17, 16), (5, 5, 7, 3), (12, 4, 23, 16), (1, 1, 5, 4)]
)
def test_sequences_are_those_of_the_definition(n, k, p, max_num):
    task = MovingWindowSum(n=n, k=k, p=p, max_num=max_num)
    tokens = task.sample(200, seed=0)
    assert tokens.shape == (200, 2 * n + 1)
    assert tokens.dtype == torch.int64
    for row in tokens.tolist():
        x, separator, y = row[:n], row[n], row[n + 1 :]
        assert separator == p
        assert all(1 <= token <= max_num for token in x)
        assert y == slow_outputs(x, k, p)


def test_the_separator_may_be_a_value_too_as_in_the_authors_code():
    task = MovingWindowSum(p=19, sep=17)
    tokens, own = task.sample(200, seed=0), MovingWindowSum(p=19).sample(200, seed=0)
    assert (tokens[:, 16] == 17).all()
    assert (own[:, 16] == 19).all()
    assert torch.equal(tokens[:, :16], own[:, :16])
    assert torch.equal(tokens[:, 17:], own[:, 17:])
    assert (tokens[:, 17:] == 17).any()
    assert task.vocab_size == 20
    assert task.token_labels[16:] == ("16", "17|SEP", "18", "unused")
    # A separator that says something else is none that another task's could stand for.
    assert (task.separator, MovingWindowSum(p=19).separator) == (None, 19)
    assert task.content_hash() != MovingWindowSum(p=19).content_hash()
    assert MovingWindowSum(p=17, sep=17).token_labels == MovingWindowSum().token_labels


def test_inputs_are_uniform():
    counts = torch.bincount(MovingWindowSum().sample(5000, seed=0)[:, :16].flatten(), minlength=17)
    assert counts[0] == 0
    # 5,000 expected of each; 5 standard deviations of a binomial count.
    assert (counts[1:] - 5000).abs().max() < 5 * 5000**0.5


def test_sizes():
    task = MovingWindowSum()
    assert (task.vocab_size, task.prompt_length, task.n_outputs, task.n_ctx, task.n_input) == (
        18,
        17,
        16,
        33,
        32,
    )
    assert task.output_rows == tuple(range(16, 32))
    assert task.partial_outputs == (0,)
    assert MovingWindowSum(k=4).partial_outputs == (0, 1, 2)
    assert MovingWindowSum(k=1).partial_outputs == ()
    assert task.token_labels[16:] == ("16", "SEP")


def test_omega_is_the_window_or_the_copied_input():
    (target,) = MovingWindowSum(n=4, k=3).attention_targets(MovingWindowSum(n=4, k=3).sample(2, seed=0))
    assert target.rows == (4, 5, 6, 7)
    assert target.layer is None
    assert target.mask.int().tolist() == [
        [
            [1, 0, 0, 0, 0, 0, 0, 0],
            [0, 1, 0, 0, 0, 0, 0, 0],
            [1, 1, 1, 0, 0, 0, 0, 0],
            [0, 1, 1, 1, 0, 0, 0, 0],
        ]
    ]


def test_collapse_pairs_leave_the_copies_out():
    pairs = MovingWindowSum(n=4, k=2).collapse_pairs[""]
    assert pairs.int().tolist() == [[0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0]]
    assert MovingWindowSum(n=4, k=1).collapse_pairs[""].sum() == 6
    assert MovingWindowSum(n=4, k=4).collapse_pairs[""].sum() == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"k": 17}, "k: expected a window of at most n = 16 inputs, got 17"),
        ({"p": 16}, "p: expected a modulus above the largest input token (max_num = 16), got 16"),
        (
            {"sep": 16},
            "sep: expected a token above the largest input token (max_num = 16) and at most p = 17, got 16",
        ),
        ({"n": 0}, "n: input should be greater than or equal to 1, got 0"),
        ({"k": 0}, "k: input should be greater than or equal to 1, got 0"),
        ({"window": 3}, "window: unknown field; allowed here: name, n, k, p, max_num, sep"),
    ],
)
def test_wrong_values_name_the_field(values, message):
    with pytest.raises(ConfigError) as caught:
        MovingWindowSum.parse(values)
    assert str(caught.value) == message


def test_undefined_tokens_have_no_label():
    task = MovingWindowSum(n=4, p=11, max_num=10)
    assert task.labels_of([0, 11, -1]) == ("0", "SEP", None)
    for token in (12, -2):
        with pytest.raises(
            UserError, match=f"expected tokens from 0 to 11, or -1 for undefined; got {token}"
        ):
            task.labels_of([0, token])


def test_no_sequences_is_an_error():
    with pytest.raises(ConfigError, match="at least 1"):
        MovingWindowSum().sample(0, seed=0)


def test_unknown_task_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"unknown task 'mvs'; known: .*mws"):
        task_class("mvs")


def test_tokens_of_another_window_mean_the_same():
    task = MovingWindowSum(n=4, k=2, p=7, max_num=6)
    assert task.token_map(MovingWindowSum(n=4, k=3, p=7, max_num=6)) == {token: token for token in range(8)}
    larger = MovingWindowSum(n=4, k=2, p=9, max_num=6)
    assert larger.token_map(task) == {**{number: number for number in range(7)}, 9: 7}
    assert task.token_map(larger) == {**{number: number for number in range(7)}, 7: 9}
