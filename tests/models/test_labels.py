"""Tokens as text: by the labels of the task that a model was trained on."""

from __future__ import annotations

import pytest
import torch

from mechplateau import RunConfig, load_run, train
from mechplateau.errors import UserError
from mechplateau.models import ModelConfig, build_model
from mechplateau.tasks import MovingWindowSum

TASK = MovingWindowSum(n=2, p=5, max_num=4)


def model(labels=TASK.token_labels):
    sizes = {"vocab_size": TASK.vocab_size, "n_ctx": TASK.n_ctx}
    return build_model(ModelConfig(d_model=8), token_labels=labels, **sizes)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (torch.tensor([4, 5, 0]), ["4", "SEP", "0"]),
        (torch.tensor([[4, 5]]), ["4", "SEP"]),
        (torch.tensor([[4, 5], [0, -1]]), [["4", "SEP"], ["0", "undefined"]]),
        (torch.tensor(5), ["SEP"]),
        (torch.zeros(0, dtype=torch.int64), []),
        (torch.tensor([[4, 5]]).numpy(), ["4", "SEP"]),
        ([4, 5], ["4", "SEP"]),
        ([torch.tensor([4, 5]), [0]], [["4", "SEP"], ["0"]]),
        (5, ["SEP"]),
    ],
)
def test_each_token_is_shown_by_its_label(tokens, expected):
    assert model().to_str_tokens(tokens) == expected


def test_single_tokens_too():
    assert model().to_single_str_token(5) == "SEP"


@pytest.mark.parametrize(
    "wrong", [torch.tensor([6]), torch.tensor([-2]), torch.tensor([0.5]), "4", ["4"], None]
)
def test_what_has_no_label_is_one_line(wrong):
    with pytest.raises(UserError, match=r"expected tokens from 0 to 5 \(or -1, undefined\), got"):
        model().to_str_tokens(wrong)


def test_without_labels_it_says_where_to_get_them():
    with pytest.raises(UserError, match=r"set model\.token_labels to its task's token_labels"):
        model(None).to_str_tokens(torch.tensor([0]))


def test_a_runs_model_has_its_tasks_labels(tmp_path):
    config = RunConfig.for_task(
        "mws",
        task={"n": 2, "p": 5, "max_num": 4},
        model={"d_model": 8},
        training={"steps": 1, "batch_size": 2},
        evaluation={"samples": 2},
    )
    run = load_run(train(config, runs_dir=tmp_path, threads=1).path)
    assert run.model(0).to_str_tokens(torch.tensor([4, 5])) == ["4", "SEP"]
