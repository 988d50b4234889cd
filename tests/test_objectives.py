"""Batches and objectives, on arrays small enough to count by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from mechplateau.errors import ConfigError, UserError
from mechplateau.objectives import Batch, NextToken, SquaredError, TokenBatch, tokens_of
from mechplateau.tasks import MovingWindowSum, SequenceTask, Task, TaskBase

TOKENS = torch.tensor([[0, 2, 1], [1, 1, 0]])


@dataclass(frozen=True, eq=False)
class Seen(Batch):
    """Numbers of which some are seen."""

    seen: Tensor


def test_a_batch_of_tokens_is_views_of_them():
    batch = TokenBatch(TOKENS)
    assert batch.inputs.tolist() == [[0, 2], [1, 1]]
    assert batch.targets.tolist() == [[2, 1], [1, 0]]
    assert batch.inputs.untyped_storage().data_ptr() == TOKENS.untyped_storage().data_ptr()
    assert len(batch) == 2
    assert batch.tensors() == (TOKENS,)
    assert tokens_of(batch) is TOKENS
    assert batch.to("cpu") is batch
    moved = batch.to("meta")
    assert (moved.tokens.device.type, moved.targets.device.type) == ("meta", "meta")


def test_a_batch_with_fields_of_its_own_is_rebuilt_with_all_of_them():
    batch = Seen(torch.zeros(2, 3), torch.ones(2, 3), torch.tensor([[True, False, True]] * 2))
    moved = batch.to("meta")
    assert isinstance(moved, Seen)
    assert moved.seen.device.type == "meta"
    assert batch.of(batch.tensors()).seen is batch.seen
    with pytest.raises(UserError, match=r"expected a batch of tokens \(TokenBatch\), got Seen"):
        tokens_of(batch)


def test_next_token_is_the_cross_entropy_of_each_next_token():
    logits = torch.tensor([[[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]], [[0.0, 0.0, 0.0], [5.0, 1.0, 0.0]]])
    batch = TokenBatch(TOKENS)
    expected = [
        [
            math.log(sum(math.exp(x) for x in logits[i, j].tolist())) - logits[i, j, TOKENS[i, j + 1]].item()
            for j in range(2)
        ]
        for i in range(2)
    ]
    losses = NextToken().losses(logits, batch)
    torch.testing.assert_close(losses, torch.tensor(expected))
    torch.testing.assert_close(NextToken().loss(logits, batch), torch.tensor(expected).mean())
    assert NextToken().weights(batch) is None


def test_squared_error_counts_all_entries_or_the_marked_ones():
    seen = torch.tensor([[True, False], [True, True]])
    batch = Seen(torch.zeros(2, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), seen)
    outputs = torch.tensor([[2.0, 9.0], [3.0, 2.0]], requires_grad=True)
    assert SquaredError().losses(outputs, batch).tolist() == [[1.0, 49.0], [0.0, 4.0]]
    assert SquaredError().loss(outputs, batch).item() == 54 / 4
    # The fused mean is the mean of the losses, and so is its gradient, to the bit.
    many = Seen(torch.zeros(5, 7), torch.randn(5, 7), torch.ones(5, 7, dtype=torch.bool))
    given = torch.randn(5, 7, requires_grad=True)
    slow = SquaredError().losses(given, many).mean()
    fast = SquaredError().loss(given, many)
    assert torch.equal(slow, fast)
    assert torch.equal(*(torch.autograd.grad(one, given)[0] for one in (slow, fast)))
    loss = SquaredError(on="seen").loss(outputs, batch)
    assert loss.item() == pytest.approx(5 / 3)
    loss.backward()
    torch.testing.assert_close(outputs.grad, torch.tensor([[2 / 3, 0.0], [0.0, -4 / 3]]))
    nothing = Seen(batch.inputs, batch.targets, torch.zeros(2, 2, dtype=torch.bool))
    outputs.grad = None
    undefined = SquaredError(on="seen").loss(outputs, nothing)
    assert undefined.isnan()
    undefined.backward()  # a batch without such an entry teaches nothing, and does not spoil the weights
    assert torch.equal(outputs.grad, torch.zeros(2, 2))


def test_what_does_not_fit_is_named():
    batch = Seen(torch.zeros(2, 2), torch.zeros(2, 2), torch.ones(2, 2))
    with pytest.raises(UserError, match=r"targets' shape \[2, 2\] \(batch, entry\), got \[2, 2, 1\]"):
        SquaredError().loss(torch.zeros(2, 2, 1), batch)
    with pytest.raises(UserError, match=r"on='seen'\): expected all, or a bool field of the batch"):
        SquaredError(on="seen").loss(torch.zeros(2, 2), batch)
    with pytest.raises(UserError, match=r"on='masked'\).*it has inputs, targets, seen"):
        SquaredError(on="masked").weights(batch)


class Halves(TaskBase):
    """Numbers and their halves; two things can be wrong with what it makes."""

    name: str = "halves"
    wrong: str = ""

    @property
    def objective(self):
        return SquaredError()

    def _batch(self, n, generator, device):
        numbers = torch.randn(n - (self.wrong == "short"), 4, generator=generator, device=device)
        return numbers if self.wrong == "tensor" else Batch(numbers, numbers / 2)


def test_a_task_need_not_be_of_tokens():
    batch = Halves().batch(3, seed=1)
    assert torch.equal(batch.targets, batch.inputs / 2)
    assert torch.equal(batch.inputs, Halves().batch(3, torch.Generator().manual_seed(1)).inputs)
    assert Halves().trivial_loss is None
    with pytest.raises(ConfigError, match=r"n: expected at least 1, got 0"):
        Halves().batch(0)
    with pytest.raises(ConfigError, match=r"Halves._batch: expected a Batch of 3, got one of 2"):
        Halves(wrong="short").batch(3)
    with pytest.raises(ConfigError, match=r"Halves._batch: expected a Batch of 3, got Tensor"):
        Halves(wrong="tensor").batch(3)


def test_a_task_of_tokens_is_sampled_as_before_and_gives_batches_of_the_same():
    assert Task is SequenceTask
    task = MovingWindowSum(n=4)
    assert torch.equal(task.batch(3, seed=2).tokens, task.sample(3, seed=2))
    assert task.objective == NextToken()
