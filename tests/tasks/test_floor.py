"""What tasks are called, and the loss that is left to chance."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from mechplateau.tasks import task_class

SMALL = {
    "mws": {"n": 3, "p": 5, "max_num": 4},
    "copy": {"n": 3, "max_num": 4},
    "reverse": {"n": 2, "max_num": 5},
    "histogram": {"n": 3, "alphabet": 4},
    "repeat": {"n": 2, "p": 5},
    "prefix": {"n": 3, "p": 5, "max_num": 4, "no_repeat": True},
    "permutation": {"n": 3},
    "addition": {"digits": 1},
}


def entropy(rows):
    counts = Counter(rows)
    return -sum(count / len(rows) * math.log(count / len(rows)) for count in counts.values())


@pytest.mark.parametrize("name", SMALL)
def test_the_floor_is_the_entropy_of_prompts_after_their_first_token(name):
    task = task_class(name)(**SMALL[name])
    prompts = [tuple(row) for row in task.sample(40_000, seed=0)[:, : task.prompt_length].tolist()]
    counted = entropy(prompts) - entropy([prompt[0] for prompt in prompts])
    assert task.prompt_entropy == pytest.approx(counted, abs=0.01)
    assert task.loss_floor == pytest.approx(task.prompt_entropy / (task.prompt_length + task.n_outputs - 1))


def test_by_hand():
    """16 inputs of which 15 are predicted, each one of 16 numbers, in 32 predicted positions."""
    task = task_class("mws")()
    assert task.loss_floor == pytest.approx(15 * math.log(16) / 32)
    assert task.title == "Moving window sum, n = 16, k = 2, p = 17"
    assert task_class("matrix_completion")().loss_floor is None
    assert task_class("matrix_completion")().title == "Matrix completion, m = 7, n = 7, rank = 2"
