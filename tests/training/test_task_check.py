"""A task of the user's own whose data do not fit is one line, before anything is written."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch

from mechplateau import RunConfig, register_task, train
from mechplateau.errors import UserError
from mechplateau.objectives import Batch
from mechplateau.tasks import Copy
from mechplateau.tasks import base as tasks
from mechplateau.tasks.in_context_regression import InContextRegression


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(tasks, "_REGISTRY", dict(tasks._REGISTRY))


def config(name, **task):
    return RunConfig.for_task(
        name, task=task, model={"d_model": 8, "n_heads": 1}, training={"steps": 2, "batch_size": 4}
    )


def test_tokens_that_the_model_does_not_have(tmp_path):
    @register_task
    class Beyond(Copy):
        name: Literal["beyond-for-tests"] = "beyond-for-tests"

        def _sample(self, batch, generator, device):
            return super()._sample(batch, generator, device) + self.vocab_size

    with pytest.raises(UserError, match=r"task\.name: beyond-for-tests does not work .*; check its _batch"):
        train(config("beyond-for-tests", n=3), runs_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_targets_of_another_shape(tmp_path):
    @register_task
    class Short(InContextRegression):
        name: Literal["short-for-tests"] = "short-for-tests"

        def _batch(self, n, generator, device):
            made = super()._batch(n, generator, device)
            return replace(made, targets=made.targets[:, :-1])

        def evaluation_batch(self, n, generator=None, device="cpu"):
            return self.batch(n, torch.Generator().manual_seed(0))

    with pytest.raises(UserError, match=r"outputs in the targets' shape \[2, 7\]"):
        train(config("short-for-tests"), runs_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_batch_that_is_none(tmp_path):
    @register_task
    class Nothing(InContextRegression):
        name: Literal["nothing-for-tests"] = "nothing-for-tests"

        def _batch(self, n, generator, device) -> Batch:
            return torch.zeros(n, 3)

    with pytest.raises(UserError, match=r"Nothing\._batch: expected a Batch of 2, got Tensor"):
        train(config("nothing-for-tests"), runs_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
