"""Accuracy, loss, repetition and entropy on arrays written out by hand, and against slow obvious loops."""

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch

from mechplateau.metrics import (
    accuracy,
    accuracy_per_output,
    count_check,
    count_check_all,
    loss_per_output,
    match_to_first,
    match_to_first_by_part,
    repetition_frequency,
    sequence_entropy,
)

# Row 0: one adjacent pair equal of two; row 1: none. First token again: 2 of 3, 2 of 3.
OUTPUTS = torch.tensor([[5, 5, 1], [2, 3, 2]])
TARGET = torch.tensor([[5, 1, 5], [2, 2, 3]])


def random_tokens(seed: int, batch: int = 7, n: int = 12, vocab: int = 5) -> torch.Tensor:
    return torch.randint(vocab, (batch, n), generator=torch.Generator().manual_seed(seed))


def test_accuracy_per_output_and_mean():
    assert accuracy_per_output(OUTPUTS, TARGET).tolist() == [1.0, 0.0, 0.0]
    assert accuracy(OUTPUTS, TARGET).item() == pytest.approx(1 / 3)
    assert accuracy(OUTPUTS, OUTPUTS).item() == 1.0


def test_loss_per_output_is_the_mean_of_minus_log_probability():
    log_probabilities = torch.log(
        torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], [[0.25, 0.25, 0.5], [0.1, 0.8, 0.1]]])
    )
    target = torch.tensor([[0, 2], [0, 2]])
    expected = [(math.log(2) + math.log(4)) / 2, (-math.log(0.8) - math.log(0.1)) / 2]
    assert loss_per_output(log_probabilities, target).tolist() == pytest.approx(expected)
    # A constant added to all logits of a position changes nothing.
    assert loss_per_output(log_probabilities + 7, target).tolist() == pytest.approx(expected, rel=1e-5)


def test_loss_of_half_precision_is_computed_in_float32():
    logits = torch.zeros(1, 1, 17, dtype=torch.bfloat16)
    loss = loss_per_output(logits, torch.tensor([[3]]))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(math.log(17), rel=1e-6)


def test_repetition_frequency():
    assert repetition_frequency(OUTPUTS).item() == 0.25
    assert repetition_frequency(torch.tensor([[4, 4]])).item() == 1.0
    assert repetition_frequency(torch.tensor([[4, 3]])).item() == 0.0
    assert repetition_frequency(torch.tensor([[4], [3]])) is None


def test_match_to_first_counts_the_first_output_too():
    assert match_to_first(OUTPUTS).item() == pytest.approx(4 / 6)
    assert match_to_first(torch.tensor([[1, 2]])).item() == 0.5
    assert match_to_first(torch.tensor([[1], [1]])) is None
    assert match_to_first(torch.zeros(2, 0, dtype=torch.int64)) is None


def test_match_to_first_by_part_compares_with_each_parts_own_first():
    outputs = torch.tensor([[1, 1, 2, 1], [3, 4, 4, 4]])
    assert match_to_first_by_part(outputs, 2).tolist() == [0.75, 0.75]
    assert match_to_first_by_part(outputs, 1).tolist() == [0.5]
    assert match_to_first_by_part(outputs, 4) is None
    with pytest.raises(ValueError, match="divide the 4 outputs; got 3"):
        match_to_first_by_part(outputs, 3)
    with pytest.raises(ValueError, match="got 0"):
        match_to_first_by_part(outputs, 0)


def test_count_check():
    # A rearrangement is right whatever its order.
    assert count_check(OUTPUTS, torch.tensor([[1, 5, 5], [3, 2, 2]]), 6).item() == 1.0
    # Row 0: value 1 once in both, right; 5 twice against once, wrong; 4 missing, wrong. Row 1: 2 of 2.
    assert count_check(OUTPUTS, torch.tensor([[1, 5, 4], [3, 2, 2]]), 6).item() == pytest.approx(
        (1 / 3 + 1) / 2
    )
    # Values in neither sequence do not help: nothing of the target is there.
    assert count_check(torch.tensor([[0, 0, 0]]), torch.tensor([[1, 2, 3]]), 33).item() == 0.0


def test_count_check_of_all_values():
    # Of 1 … 5, row 0: 1 right; 5 wrong, 4 missing; 2 and 3 in neither, right. Row 1 is a rearrangement.
    assert count_check_all(
        OUTPUTS, torch.tensor([[1, 5, 4], [3, 2, 2]]), range(1, 6)
    ).item() == pytest.approx(0.8)
    # What is not among the values counts for nothing, and what is absent twice counts as right.
    assert count_check_all(torch.tensor([[0, 0]]), torch.tensor([[1, 2]]), range(1, 5)).item() == 0.5
    assert (
        count_check_all(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(2, 0, dtype=torch.int64), range(3))
        is None
    )
    with pytest.raises(ValueError, match="expected at least one value"):
        count_check_all(OUTPUTS, OUTPUTS, range(0))


def test_entropy():
    mixed = math.log(3) - 2 / 3 * math.log(2)
    assert sequence_entropy(OUTPUTS, 6).item() == pytest.approx(mixed)
    assert sequence_entropy(torch.tensor([[1, 1, 1]]), 6).item() == 0.0
    assert sequence_entropy(torch.tensor([[0, 1, 2], [3, 3, 3]]), 6).item() == pytest.approx(math.log(3) / 2)
    assert sequence_entropy(torch.tensor([[0]]), 6).item() == 0.0
    assert sequence_entropy(torch.zeros(2, 0, dtype=torch.int64), 6) is None


@pytest.mark.parametrize("seed", range(5))
def test_against_plain_loops(seed: int):
    outputs, target = random_tokens(seed), random_tokens(seed + 100)
    rows, wanted = outputs.tolist(), target.tolist()
    n = len(rows[0])

    pairs = [a == b for row in rows for a, b in pairwise(row)]
    assert repetition_frequency(outputs).item() == pytest.approx(sum(pairs) / len(pairs))

    firsts = [token == row[0] for row in rows for token in row]
    assert match_to_first(outputs).item() == pytest.approx(sum(firsts) / len(firsts))

    for part, value in enumerate(match_to_first_by_part(outputs, 3).tolist()):
        pieces = [row[part * n // 3 : (part + 1) * n // 3] for row in rows]
        hits = [token == piece[0] for piece in pieces for token in piece]
        assert value == pytest.approx(sum(hits) / len(hits))

    entropies = [-sum(c / n * math.log(c / n) for c in Counter(row).values()) for row in rows]
    assert sequence_entropy(outputs, 5).item() == pytest.approx(sum(entropies) / len(entropies))

    checks = []
    for row, want in zip(rows, wanted, strict=True):
        got, needed = Counter(row), Counter(want)
        checks.append(sum(got[v] == c for v, c in needed.items()) / len(needed))
    assert count_check(outputs, target, 5).item() == pytest.approx(sum(checks) / len(checks))

    every = [
        row.count(v) == want.count(v) for row, want in zip(rows, wanted, strict=True) for v in range(1, 5)
    ]
    assert count_check_all(outputs, target, range(1, 5)).item() == pytest.approx(sum(every) / len(every))

    for r, value in enumerate(accuracy_per_output(outputs, target).tolist()):
        assert value == pytest.approx(
            sum(a[r] == b[r] for a, b in zip(rows, wanted, strict=True)) / len(rows)
        )


def test_results_do_not_depend_on_layout_or_integer_type():
    outputs = random_tokens(3)
    strided = outputs.T.contiguous().T
    assert not strided.is_contiguous()
    for metric in (repetition_frequency, match_to_first, lambda t: sequence_entropy(t, 5)):
        assert metric(strided).item() == metric(outputs).item() == metric(outputs.to(torch.int32)).item()
    assert match_to_first_by_part(strided, 4).tolist() == match_to_first_by_part(outputs, 4).tolist()


def test_an_empty_batch_is_an_error():
    none = torch.zeros(0, 3, dtype=torch.int64)
    calls = [
        lambda: accuracy(none, none),
        lambda: loss_per_output(torch.zeros(0, 3, 5), none),
        lambda: repetition_frequency(none),
        lambda: match_to_first(none),
        lambda: count_check(none, none, 5),
        lambda: count_check_all(none, none, range(5)),
        lambda: sequence_entropy(none, 5),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="at least one sequence"):
            call()


def test_shapes_that_differ_are_an_error_and_not_broadcast():
    with pytest.raises(ValueError, match=r"got \[2, 3\] and \[2, 1\]"):
        accuracy_per_output(OUTPUTS, TARGET[:, :1])
    with pytest.raises(ValueError, match=r"got \[2, 3\] and \[1, 3\]"):
        count_check(OUTPUTS, TARGET[:1], 6)
    with pytest.raises(ValueError, match=r"got \[2, 4, 6\] and \[2, 3\]"):
        loss_per_output(torch.zeros(2, 4, 6), TARGET)
