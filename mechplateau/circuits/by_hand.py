"""A window sum solved by hand: a model with given weights, so that the right result of every tool is known.

Moving windows of two, one layer of linear attention. With θ_q(t) = 2π q t / p at (p − 1) / 2 frequencies q, and the
stream in parts (each vector beside its negative, so that its mean is 0):

    embedding of t    cos θ_q(t), sin θ_q(t) for all q, all of one size: a flat spectrum; and 1 where t is an input
    separator         minus the inputs' mean
    attention         fixed by position: w on both inputs of the window, 2 w on the separator, which cancels the inputs'
                      mean; on a copied input −w, and −w on the separator
    OV                Σ_j w (cos θ_q(t_j), sin θ_q(t_j)), the same at both places
    neuron (q, φ)     GELU of (cos(θ_q(a) − φ) + cos(θ_q(b) − φ)) / 2 = cos(θ_q(a − b) / 2) cos(θ_q(a + b) / 2 − φ)
    its output        cos(θ_q(c) − 2 φ) to the logit of c: over 8 phases φ, what a square makes of the neuron's input,
                      cos² (θ_q(a − b) / 2) cos θ_q(a + b − c), is left
    past the MLP      minus what attention wrote, cos θ_q(c − t_j): it is the answer of the copied input, whose weight
                      has the other sign; elsewhere it lowers the logits of c = a and c = b, which are never right

LayerNorms hardly act: a large constant, which attention's bias writes, makes their scale about the same everywhere.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from mechplateau.errors import UserError
from mechplateau.models.config import ModelConfig
from mechplateau.tasks.mws import MovingWindowSum

if TYPE_CHECKING:
    from mechplateau.models.transformer import HookedGPT

PHASES = 8
"""Neurons a frequency."""
_CONSTANT = 300.0
_OUT, _PAST, _LOGITS = 2.5, 1.0, 4.0
"""Sizes of a neuron's output, of what goes past the MLP, and of the logits."""


def model_by_hand(task: MovingWindowSum, *, weight: float = 1.0) -> HookedGPT:
    """The model, with an accuracy of 1.

    Args:
        task: moving windows of k = 2 with an odd p of at least 5.
        weight: w, of either sign, 0.5 to 2 in size.

    Returns:
        an ordinary model of the gpt kind with linear attention, as wide as its parts need.

    Raises:
        UserError: another task, k or p, or a weight out of range.
    """
    if not isinstance(task, MovingWindowSum) or task.k != 2 or task.p < 5 or task.p % 2 == 0:
        raise UserError(
            f"task: expected mws with k = 2 and an odd p of at least 5, got {getattr(task, 'name', task)} with "
            f"k = {getattr(task, 'k', None)} and p = {getattr(task, 'p', None)}"
        )
    if not 0.5 <= abs(weight) <= 2:
        raise UserError(f"weight: expected one of size 0.5 to 2, got {weight}")
    return _Written(task, weight).model


class _Written:
    """Where each part of the stream lies, and the weights."""

    def __init__(self, task: MovingWindowSum, weight: float) -> None:
        from mechplateau.models.transformer import build_model  # TransformerLens: seconds

        self.task, self.weight = task, weight
        waves = task.p - 1
        sizes = {"token": waves, "input": 1, "pad": 1, "place": task.n_ctx, "sum": waves + 1, "constant": 1}
        sizes["answer"] = waves
        self.at, begin = {}, 0
        for name, size in sizes.items():
            self.at[name] = slice(begin, begin + size)
            begin += size
        self.half = begin
        config = ModelConfig(
            d_model=2 * begin, d_head=max(task.n_ctx, waves + 1), d_mlp=PHASES * (task.p - 1) // 2
        )
        self.model = build_model(config, vocab_size=task.vocab_size, n_ctx=task.n_ctx)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.zero_()
            self._embeddings()
            self._attention()
            self._mlp()
            self._readout()

    def _embeddings(self) -> None:
        task = self.task
        waves = _waves(task.p)
        self.mean = waves[1 : task.max_num + 1].mean(dim=0)
        embeddings = torch.zeros(task.vocab_size, self.half)
        embeddings[: task.p, self.at["token"]] = waves
        embeddings[: task.p, self.at["input"]] = 1.0
        embeddings[task.p, self.at["token"]] = -self.mean
        embeddings[task.p, self.at["input"]] = -1.0
        # As long as the others, so that the first norm is the same everywhere.
        embeddings[task.p, self.at["pad"]] = (waves[0].square().sum() - self.mean.square().sum()).sqrt()
        self.model.embed.W_E.copy_(_mirrored(embeddings))
        places = torch.zeros(task.n_ctx, self.half)
        places[:, self.at["place"]] = torch.eye(task.n_ctx)
        self.model.pos_embed.W_pos.copy_(_mirrored(places))
        block = self.model.blocks[0]
        length = float(embeddings[0].square().sum()) + 1
        for norm, square in (
            (block.ln1, length),
            (block.ln2, length + _CONSTANT**2),
            (self.model.ln_final, length + _CONSTANT**2),
        ):
            # Divided by the deviation and multiplied by it again.
            norm.w.fill_(math.sqrt(square / self.half + self.model.cfg.eps))

    def _attention(self) -> None:
        task, attention = self.task, self.model.blocks[0].attn
        wanted = torch.zeros(task.n_ctx, task.n_ctx)
        wanted[task.n, 0] = wanted[task.n, task.n] = -self.weight
        for row in range(1, task.n):
            wanted[task.n + row, [row - 1, row]] = self.weight
            wanted[task.n + row, task.n] = 2 * self.weight
        attention.W_Q[0, self.at["place"], : task.n_ctx] = wanted * attention.attn_scale
        attention.W_K[0, self.at["place"], : task.n_ctx] = torch.eye(task.n_ctx)
        read = torch.cat([torch.arange(self.half)[self.at[name]] for name in ("token", "input")])
        width = len(read)
        attention.W_V[0, read, :width] = torch.eye(width)
        written = torch.zeros(width, self.half)
        written[:, self.at["sum"]] = torch.eye(width)
        attention.W_O[0, :width] = _mirrored(written)
        bias = torch.zeros(self.half)
        bias[self.at["constant"]] = _CONSTANT
        attention.b_O.copy_(_mirrored(bias))

    def _mlp(self) -> None:
        mlp, sums, answers = self.model.blocks[0].mlp, self.at["sum"], self.at["answer"]
        for q in range((self.task.p - 1) // 2):
            pair = slice(2 * q, 2 * q + 2)
            for i in range(PHASES):
                neuron, phase = PHASES * q + i, 2 * math.pi * i / PHASES
                direction = torch.tensor([math.cos(phase), math.sin(phase)]) / 2
                mlp.W_in[sums, neuron][pair] = direction / self.weight
                # The separator took the mean of two inputs away.
                mlp.b_in[neuron] = 2 * direction @ self.mean[pair]
                out = torch.zeros(self.half)
                out[answers][pair] = _OUT * torch.tensor([math.cos(2 * phase), math.sin(2 * phase)])
                mlp.W_out[neuron] = _mirrored(out)

    def _readout(self) -> None:
        p, unembed = self.task.p, self.model.unembed.W_U
        unembed[self.at["answer"], :p] = _LOGITS * _waves(p).T
        sums = unembed[self.at["sum"]]
        sums[: p - 1, :p] = -_LOGITS * _PAST / self.weight * _waves(p).T


def _waves(p: int) -> Float[Tensor, "residue wave"]:
    """cos θ_1, sin θ_1, cos θ_2, … of each number."""
    q, t = torch.arange(1, (p - 1) // 2 + 1), torch.arange(p)[:, None]
    angles = 2 * math.pi * q * t / p
    return torch.stack([angles.cos(), angles.sin()], dim=2).flatten(1)


def _mirrored(vectors: Tensor) -> Tensor:
    return torch.cat([vectors, -vectors], dim=-1)


__all__ = ["PHASES", "model_by_hand"]
