"""Too little memory is one line."""

from __future__ import annotations

import pytest
import torch

from mechplateau.errors import RunError, UserError
from mechplateau.training import memory, train
from mechplateau.training.loop import check_request
from mechplateau.training.memory import too_little_explained

from .conftest import tiny


def test_a_model_larger_than_the_memory_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(
        UserError, match=r"model: [\d,]+ weights and their gradients take \d+\.\d GiB, and cpu"
    ) as caught:
        train(tiny(model={"d_model": 65536, "n_layers": 50}), runs_dir=tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_weights_and_gradients_are_counted(monkeypatch, config):
    from mechplateau.models import build_model

    model = build_model(config.model, vocab_size=config.task.vocab_size, n_ctx=config.task.n_ctx)
    needed = 8 * sum(parameter.numel() for parameter in model.parameters())
    monkeypatch.setattr(memory, "_memory", lambda device: needed)
    check_request(config, "cpu")
    monkeypatch.setattr(memory, "_memory", lambda device: needed - 1)
    with pytest.raises(UserError, match=rf"model: {needed // 8:,} weights"):
        check_request(config, "cpu")


def test_what_torch_and_python_raise_is_one_line():
    for ask in (lambda: torch.empty(2**58), lambda: bytearray(2**62)):
        with (
            pytest.raises(RunError, match=r"out of memory.*make training\.batch_size") as caught,
            too_little_explained(),
        ):
            ask()
        assert "\n" not in str(caught.value)
    with pytest.raises(RunError, match="out of memory"), too_little_explained():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has …")
    with pytest.raises(RuntimeError, match="the power fails"), too_little_explained():
        raise RuntimeError("the power fails")


def test_memory_that_runs_out_while_training_is_one_line(tmp_path, config):
    class Ask:
        def on_step(self, step, row):
            if step == 5:
                torch.empty(2**58)

    with pytest.raises(RunError, match=r"out of memory \(\d+ bytes more were needed\)"):
        train(config, runs_dir=tmp_path, listeners=[Ask()])
    assert train(config, runs_dir=tmp_path).reached == 12
