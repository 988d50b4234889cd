"""Sampling: new data at each call, the same for the same seed, and errors of one line."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch

from mechplateau.config import RunConfig
from mechplateau.errors import ConfigError
from mechplateau.measurements.targets import AttentionTargets
from mechplateau.tasks import MovingWindowSum, SequenceTask, register_task, targets_of, task_class, task_names

TASK = MovingWindowSum()


@pytest.mark.parametrize("name", [n for n in task_names() if issubclass(task_class(n), SequenceTask)])
def test_each_call_gives_new_sequences(name):
    task = task_class(name)()
    torch.manual_seed(0)
    clean, corrupted = task.sample(4), task.sample(4)
    assert not (clean == corrupted).all(dim=1).any()


def test_torchs_seed_makes_them_repeat():
    torch.manual_seed(5)
    first, second = TASK.sample(3), TASK.sample(3)
    torch.manual_seed(5)
    assert torch.equal(TASK.sample(3), first)
    assert torch.equal(TASK.sample(3), second)


def test_a_seed_gives_what_a_generator_of_that_seed_gives():
    for seed in (0, np.int64(7)):
        expected = TASK.sample(3, torch.Generator().manual_seed(int(seed)))
        assert torch.equal(TASK.sample(3, seed=seed), expected)
    assert not torch.equal(TASK.sample(3, seed=0), TASK.sample(3, seed=1))


def test_a_generator_goes_on_from_call_to_call():
    generator = torch.Generator().manual_seed(0)
    first, second = TASK.sample(3, generator), TASK.sample(3, generator)
    assert torch.equal(first, TASK.sample(3, seed=0))
    assert not torch.equal(first, second)


def test_torchs_generator_is_left_alone_where_data_is_asked_for_by_seed():
    state = torch.get_rng_state()
    TASK.sample(3, seed=0)
    TASK.sample(3, torch.Generator())
    # Neither does a configuration, nor what measures attention.
    config = RunConfig.for_task("mws", interventions=[{"kind": "attention_scale", "c": 2.0}])
    AttentionTargets(config.task, 1, torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((3, torch.Generator()), {"seed": 0}, "seed: expected a generator or a seed, got both; leave one"),
        ((3, 0), {}, "generator: expected a torch.Generator, got 0; a seed is given by name, as in seed=0"),
        ((3,), {"seed": 0.5}, "seed: expected a whole number, got 0.5"),
        ((3,), {"seed": 2**70}, "seed: expected a number of 64 bits, got"),
        ((0,), {}, "batch: expected at least 1 sequence, got 0"),
        ((2.0,), {}, "batch: expected a whole number, got 2.0"),
    ],
)
def test_what_does_not_fit_is_one_line(arguments, options, message):
    with pytest.raises(ConfigError) as caught:
        TASK.sample(*arguments, **options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_the_generator_must_be_where_the_data_is_made():
    with pytest.raises(ConfigError, match=r"generator: expected one on meta, .* got one on cpu"):
        TASK.sample(3, torch.Generator(), torch.device("meta"))


class Shorter(MovingWindowSum):
    def _sample(self, batch, generator, device):
        return super()._sample(batch, generator, device)[:, 1:]


class Halves(MovingWindowSum):
    def _sample(self, batch, generator, device):
        return super()._sample(batch, generator, device) / 2


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            Shorter(n=2),
            r"Shorter._sample: expected integers \[3, 5\] \(batch, n_ctx\), got torch.int64 \[3, 4\]",
        ),
        (Halves(n=2), r"Halves._sample: expected integers .* got torch.float32 \[3, 5\]"),
    ],
)
def test_a_task_of_ones_own_makes_sequences_of_its_length(task, message):
    for given in ({"seed": 0}, {"generator": torch.Generator()}):
        with pytest.raises(ConfigError, match=message):
            task.sample(3, **given)


class Older(MovingWindowSum):
    """Written when `sample` took no seed."""

    def sample(self, batch, generator=None, device="cpu"):
        return super().sample(batch, generator, device).flip(0)


def test_a_sample_of_ones_own_without_a_seed_takes_one():
    task = Older(n=4)
    expected = MovingWindowSum(n=4).sample(3, seed=5).flip(0)
    assert torch.equal(task.sample(3, seed=5), expected)
    assert torch.equal(task.sample(3, torch.Generator().manual_seed(5)), expected)
    assert not torch.equal(task.sample(3), task.sample(3))
    assert targets_of(task)[0].name == targets_of(MovingWindowSum(n=4))[0].name


@pytest.mark.parametrize("name", ["../outside", "a/b", "two\nlines", ".hidden", "a b", "x" * 101, "漢" * 34])
def test_a_name_that_is_no_folders_is_refused(name):
    """Runs of the first one would lie outside the folder of runs."""
    odd = {"__module__": "__main__", "__annotations__": {"name": Literal[name]}, "name": name}
    with pytest.raises(
        ConfigError, match=r"^Odd\.name: expected letters, digits, .*, at most 100 bytes, got '"
    ):
        register_task(type("Odd", (MovingWindowSum,), odd))
    assert name not in task_names()
