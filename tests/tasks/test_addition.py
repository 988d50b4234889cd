"""Addition against Python's own, digit by digit."""

from __future__ import annotations

import pytest

from mechplateau.errors import ConfigError
from mechplateau.tasks import Addition


def number(digits: list[int]) -> int:
    return int("".join(str(digit) for digit in digits))


@pytest.mark.parametrize("digits", [1, 2, 4, 17])
@pytest.mark.parametrize("reverse", [True, False])
def test_sequences_are_those_of_the_definition(digits, reverse):
    tokens = Addition(digits=digits, reverse=reverse).sample(300, seed=0)
    assert tokens.shape == (300, 3 * digits + 3)
    for row in tokens.tolist():
        a, plus, b = row[:digits], row[digits], row[digits + 1 : 2 * digits + 1]
        equals, total = row[2 * digits + 1], row[2 * digits + 2 :]
        assert (plus, equals) == (10, 11)
        if reverse:
            total = total[::-1]
        assert number(a) + number(b) == number(total)
        assert 1 <= number(a) < 10**digits
        assert 1 <= number(b) < 10**digits


def test_omega_is_the_place_and_the_one_before():
    task = Addition(digits=3)
    (target,) = task.attention_targets(task.sample(1, seed=0))
    # Positions: a 0 1 2, + 3, b 4 5 6, = 7; the sum's digits are predicted at rows 7 … 10.
    assert target.rows == (7, 8, 9, 10)
    sources = [row.nonzero().flatten().tolist() for row in target.mask[0]]
    assert sources == [[2, 6], [1, 2, 5, 6], [0, 1, 4, 5], [0, 4]]
    plain = Addition(digits=3, reverse=False)
    (target,) = plain.attention_targets(plain.sample(1, seed=0))
    assert [row.nonzero().flatten().tolist() for row in target.mask[0]] == sources[::-1]


def test_omega_holds_what_each_digit_needs():
    """A digit is decided by its place's two digits and the carry, which the place before decides up to a 9."""
    task = Addition(digits=3)
    for row in task.sample(200, seed=0).tolist():
        a, b, total = row[:3], row[4:7], row[8:]
        assert total[0] == (a[2] + b[2]) % 10
        if a[2] + b[2] != 9:
            assert total[1] == (a[1] + b[1] + (a[2] + b[2] > 9)) % 10
        if a[0] + b[0] != 9:
            assert total[3] == (a[0] + b[0] > 9)


def test_the_carry_is_left_out():
    assert Addition().partial_outputs == (4,)
    assert Addition(reverse=False).partial_outputs == (0,)
    assert Addition(digits=2).collapse_pairs[""].int().tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 0]]
    assert Addition(digits=2, reverse=False).collapse_pairs[""].int().tolist() == [
        [0, 0, 0],
        [0, 0, 0],
        [0, 1, 0],
    ]


def test_sizes():
    task = Addition()
    assert (task.vocab_size, task.prompt_length, task.n_outputs, task.n_ctx) == (12, 10, 5, 15)
    assert task.token_labels[10:] == ("+", "=")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"digits": 0}, "digits: input should be greater than or equal to 1, got 0"),
        ({"digits": 18}, "digits: input should be less than or equal to 17, got 18"),
    ],
)
def test_wrong_values_name_the_field(values, message):
    with pytest.raises(ConfigError) as caught:
        Addition.parse(values)
    assert str(caught.value) == message
