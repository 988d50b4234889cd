"""Prefix sum: every output is the sum, modulo p, of all inputs up to its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal, Self

import torch
from jaxtyping import Bool, Int
from pydantic import Field, model_validator
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
class PrefixSum(OneOutputPerInput):
    """x₀ … x₍ₙ₋₁₎, SEP, y₀ … y₍ₙ₋₁₎ with x uniform on 1 … max_num and y_i = (x₀ + … + x_i) mod p.

    The separator is the token p. Ω of output row r: its input r and the model's last output y_{r−1}, the token
    at that row; {0} for r = 0, whose output is a copy and learnt early.

    Source: arXiv 2506.13688, appendix (figures 6, 11, 12).
    """

    name: Literal["prefix"] = "prefix"
    p: int = Field(17, ge=2, le=2**20)
    """Modulus, and the separator's token; larger than max_num."""
    max_num: int = Field(16, ge=1)
    """Largest input token."""
    no_repeat: bool = False
    """Inputs of a sequence all differ (with n = max_num: a permutation of 1 … n)."""

    words: ClassVar = "Prefix sum"
    title_fields: ClassVar = ("n", "p")
    default_training: ClassVar = {"steps": 1000}
    presets: ClassVar = {
        "small": small(steps=1200, task={"n": 8, "p": 11, "max_num": 10}, batch_size=128, lr=2e-3)
    }

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.p <= self.max_num:
            raise ValueError(
                f"p: expected a modulus above the largest input token (max_num = {self.max_num}), got {self.p}"
            )
        if self.no_repeat and self.max_num < self.n:
            raise ValueError(
                f"max_num: expected at least n = {self.n} different numbers with no_repeat, got {self.max_num}"
            )
        return self

    @property
    def prompt_entropy(self) -> float:
        return sum(math.log(self.max_num - (taken if self.no_repeat else 0)) for taken in range(1, self.n))

    @property
    def vocab_size(self) -> int:
        return self.p + 1

    @property
    def token_labels(self) -> tuple[str, ...]:
        return (*(str(token) for token in range(self.p)), "SEP")

    def _sample(
        self, batch: int, generator: torch.Generator, device: torch.device
    ) -> Int[Tensor, "batch seq"]:
        x = sample_numbers(batch, self.n, self.max_num, generator, device, repeats=not self.no_repeat)
        return sequences(x, self.p, x.cumsum(dim=1) % self.p)

    def attention_targets(self, tokens: Int[Tensor, "batch seq"]) -> tuple[Target, ...]:
        sources = [[0], *([r, self.n + r] for r in range(1, self.n))]
        mask = mask_of(sources, self.n_input, tokens.device)
        return (Target("prefix", None, self.output_rows, mask),)

    @property
    def collapse_pairs(self) -> Mapping[str, Bool[Tensor, "n_outputs n_outputs"]]:
        return {"": pairs_among(range(1, self.n), self.n)}

    @property
    def partial_outputs(self) -> tuple[int, ...]:
        return (0,)

    @property
    def number_tokens(self) -> range:
        return range(self.p)

    @property
    def separator(self) -> int:
        return self.p
