"""Histogram: every output says how often its input occurs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Int
from pydantic import Field
from torch import Tensor

from mechplateau.tasks.base import register_task
from mechplateau.tasks.presets import small
from mechplateau.tasks.sequence import (
    OneOutputPerInput,
    Target,
    mask_of,
    pairs_among,
    sample_numbers,
    sequences,
)


@register_task
class Histogram(OneOutputPerInput):
    """x₀ … x₍ₙ₋₁₎, SEP, y₀ … y₍ₙ₋₁₎ with x uniform on 1 … alphabet and y_i the number of times x_i occurs in x.

    The separator is the token 0; the same tokens are used for values and for counts. Ω, at layer 0: row r attends to
    its input r, which the second layer can then compare with all others.

    Source: arXiv 2506.13688, appendix (figures 15, 16).
    """

    name: Literal["histogram"] = "histogram"
    alphabet: int = Field(12, ge=1, le=2**20)
    """Number of different inputs."""

    words: ClassVar = "Histogram"
    title_fields: ClassVar = ("n", "alphabet")
    default_model: ClassVar = {"n_layers": 2}
    default_training: ClassVar = {"steps": 5000, "clip_norm": 1.0}
    presets: ClassVar = {"small": small(steps=1500, task={"n": 5, "alphabet": 3}, batch_size=128, lr=2e-3)}

    @property
    def prompt_entropy(self) -> float:
        return (self.n - 1) * math.log(self.alphabet)

    @property
    def vocab_size(self) -> int:
        return max(self.alphabet, self.n) + 1

    @property
    def token_labels(self) -> tuple[str, ...]:
        return ("SEP", *(str(token) for token in range(1, self.vocab_size)))

    def _sample(
        self, batch: int, generator: torch.Generator, device: torch.device
    ) -> Int[Tensor, "batch seq"]:
        x = sample_numbers(batch, self.n, self.alphabet, generator, device)
        counts = torch.zeros(batch, self.alphabet + 1, dtype=x.dtype, device=device)
        counts.scatter_add_(1, x, torch.ones_like(x))
        return sequences(x, 0, counts.gather(1, x))

    def attention_targets(self, tokens: Int[Tensor, "batch seq"]) -> tuple[Target, ...]:
        mask = mask_of([[r] for r in range(self.n)], self.n_input, tokens.device)
        return (Target("input", 0, self.output_rows, mask),)

    @property
    def collapse_pairs(self) -> Mapping[str, Bool[Tensor, "n_outputs n_outputs"]]:
        return {"": pairs_among(range(self.n), self.n)}

    @property
    def number_tokens(self) -> range:
        return range(1, self.vocab_size)

    @property
    def separator(self) -> int:
        return 0
