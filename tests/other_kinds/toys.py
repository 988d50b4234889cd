"""Two tasks that are not of a prompt and outputs, each with a kind of model of its own.

Entries of which some are hidden, on a bidirectional encoder that reads out one number an entry; and windows of text, on
an attention-only model that is not asked to generate. Run as a script, this file is what a notebook would be: its
classes belong to `__main__`, and have to travel to other processes.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from mechplateau import RunConfig, train
from mechplateau.measurements import Column, Measurement, register_measurement
from mechplateau.models import ModelConfigBase, ModelKind, register_model_kind
from mechplateau.objectives import Batch, NextToken, SquaredError, TokenBatch
from mechplateau.tasks import TaskBase, register_task

STEPS, KILLED_AT = 12, 7


@dataclass(frozen=True, eq=False)
class Entries(Batch):
    """Entries, of which the hidden ones are to be filled in."""

    hidden: Tensor


class FillIn(TaskBase):
    """Entries near one level a row: a hidden one is told by the others."""

    name: Literal["toy_fill_in"] = "toy_fill_in"
    n: int = Field(5, ge=2)
    model_kinds: ClassVar = ("toy_encoder",)
    default_training: ClassVar = {"lr": 0.01, "batch_size": 32}

    @property
    def objective(self):
        return SquaredError(on="hidden")

    @property
    def measurement_names(self):
        return ("loss", "toy_shown_loss")

    @property
    def trivial_loss(self):
        return 1.01

    def _batch(self, n, generator, device):
        def drawn(*shape):
            return torch.randn(*shape, generator=generator, device=device)

        values = drawn(n, 1) + 0.1 * drawn(n, self.n)
        hidden = drawn(n, self.n) > 0.5
        hidden[:, 0] |= ~hidden.any(dim=1)
        return Entries(torch.stack([values.where(~hidden, 0), hidden.float()], -1), values, hidden)


class Windows(TaskBase):
    """Windows of a text, a token a letter."""

    name: Literal["toy_windows"] = "toy_windows"
    length: int = Field(8, ge=2)
    model_kinds: ClassVar = ("toy_attention_only",)
    default_training: ClassVar = {"lr": 0.01, "batch_size": 32}
    text: ClassVar = "how much wood would a woodchuck chuck if a woodchuck could chuck wood"

    @property
    def objective(self):
        return NextToken()

    def _batch(self, n, generator, device):
        letters = sorted(set(self.text))
        tokens = torch.tensor([letters.index(letter) for letter in self.text], device=device)
        last = len(tokens) - self.length
        start = torch.randint(last, (n, 1), generator=generator, device=device)
        return TokenBatch(tokens[start + torch.arange(self.length + 1, device=device)])


class Attention(nn.Module):
    """One head, in one direction or both."""

    def __init__(self, width, causal):
        super().__init__()
        self.W_Q, self.W_K, self.W_V, self.W_O = (nn.Parameter(torch.zeros(width, width)) for _ in range(4))
        self.hook_pattern, self.causal = HookPoint(), causal

    def forward(self, x):
        scores = (x @ self.W_Q) @ (x @ self.W_K).mT / x.shape[-1] ** 0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones_like(scores[0]).triu(1).bool(), -torch.inf)
        pattern = self.hook_pattern(scores.softmax(-1)[:, None])[:, 0]
        return pattern @ (x @ self.W_V) @ self.W_O


class Model(HookedRootModule):
    """Embeddings, one layer of attention, a read-out."""

    def __init__(self, width, length, inputs, outputs, causal):
        super().__init__()
        self.W_E, self.W_pos = (
            nn.Parameter(torch.zeros(inputs, width)),
            nn.Parameter(torch.zeros(length, width)),
        )
        self.attn, self.W_U = Attention(width, causal), nn.Parameter(torch.zeros(width, outputs))
        self.hook_embed, self.hook_resid_post = HookPoint(), HookPoint()
        self.setup()

    def forward(self, inputs):
        embedded = inputs @ self.W_E if inputs.is_floating_point() else self.W_E[inputs]
        x = self.hook_embed(embedded + self.W_pos)
        out = self.hook_resid_post(x + self.attn(x)) @ self.W_U
        return out[..., 0] if out.shape[-1] == 1 else out


class EncoderConfig(ModelConfigBase):
    kind: Literal["toy_encoder"] = "toy_encoder"
    width: int = 8


class AttentionOnlyConfig(ModelConfigBase):
    kind: Literal["toy_attention_only"] = "toy_attention_only"
    width: int = 8


def initialized(model, generator, device):
    generator = generator or torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    return model.to(device)


class EncoderKind(ModelKind[EncoderConfig]):
    config_class: ClassVar = EncoderConfig
    patterns: ClassVar = {"attention": ("attn.*",), "embeddings": ("W_E", "W_pos"), "read-out": ("W_U",)}

    def build(self, config, task, *, generator=None, device="cpu"):
        return initialized(Model(config.width, task.n, 2, 1, causal=False), generator, device)


class AttentionOnlyKind(ModelKind[AttentionOnlyConfig]):
    config_class: ClassVar = AttentionOnlyConfig

    def build(self, config, task, *, generator=None, device="cpu"):
        letters = len(set(task.text))
        return initialized(Model(config.width, task.length, letters, letters, causal=True), generator, device)


class ShownLoss(Measurement):
    """The error at the entries that are not hidden, which are not trained on."""

    name: ClassVar[str] = "toy_shown_loss"

    def columns(self):
        return (Column("shown_loss", "squared", "squared error of the shown entries", "all are hidden"),)

    def measure(self, seen, batch):
        return {"shown_loss": SquaredError().losses(seen.outputs, batch)[~batch.hidden].mean()}


TOYS = ("toy_fill_in", "toy_windows")


def register():
    for task in (FillIn, Windows):
        register_task(task)
    for kind in (EncoderKind, AttentionOnlyKind):
        register_model_kind(kind)
    register_measurement(ShownLoss)


def config_of(name, **sections):
    given = {"training": {"steps": STEPS}, "evaluation": {"samples": 16}, "checkpoints": {"every": 3}}
    return RunConfig.for_task(name, **{**given, **sections})


def encoder_config():
    """The package's own encoder, small: a kind of its own too."""
    return config_of(
        "matrix_completion",
        task={"m": 3, "n": 4, "rank": 1},
        model={"n_layers": 1, "n_heads": 2, "d_model": 8},
        training={"steps": STEPS, "batch_size": 4},
        evaluation={"every": 1, "samples": 16},
    )


class Killer:
    """Kills its own process, as `kill -9` would."""

    def on_step(self, step, row):
        if step == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder):
    import mechplateau.models.encoder  # noqa: F401 once, not in every process that is forked below
    from mechplateau.training.sweep import sweep

    torch.set_num_threads(1)
    configs = [config_of(name) for name in TOYS]
    for config in (*configs, encoder_config()):
        child = os.fork()
        if not child:
            train(config, runs_dir=folder / "killed", threads=1, listeners=[Killer()])
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    for result in sweep(configs, runs_dir=folder / "swept", jobs=2, threads=1, device="cpu"):
        print(result.config.task.name, result.outcome, result.message)


if __name__ == "__main__":
    register()
    main(Path(sys.argv[1]))
