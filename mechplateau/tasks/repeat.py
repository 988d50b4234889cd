"""Repeat: the outputs are the first input over and over, counted up from block to block."""

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
class Repeat(OneOutputPerInput):
    """x₀ … x₍ₙ₋₁₎, SEP, then `blocks` blocks of n / blocks outputs each, all (x₀ + j) mod p in block j = 0, 1, ….

    x is uniform on 1 … p − 1; the separator is the token p. Ω of every output row: {0}. With one block a
    model that merely repeats tokens is right, and there is no plateau. Hidden states are compared within
    blocks, without each block's first output.

    Source: arXiv 2506.13688, section 3 and appendix (figures 7, 21, 22).
    """

    name: Literal["repeat"] = "repeat"
    blocks: int = Field(1, ge=1)
    """Number of blocks, a divisor of n; 1, 2 and 4 in the paper."""
    p: int = Field(17, ge=2, le=2**20)
    """Modulus, and the separator's token."""

    words: ClassVar = "Repeat"
    title_fields: ClassVar = ("n", "blocks", "p")
    default_training: ClassVar = {"steps": 200}
    presets: ClassVar = {"small": small(steps=150, task={"n": 8, "p": 11})}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.n % self.blocks:
            raise ValueError(f"blocks: expected a divisor of n = {self.n}, got {self.blocks}")
        return self

    @property
    def prompt_entropy(self) -> float:
        return (self.n - 1) * math.log(self.p - 1)

    @property
    def vocab_size(self) -> int:
        return self.p + 1

    @property
    def token_labels(self) -> tuple[str, ...]:
        return (*(str(token) for token in range(self.p)), "SEP")

    @property
    def _length(self) -> int:
        """Outputs of a block."""
        return self.n // self.blocks

    def _sample(
        self, batch: int, generator: torch.Generator, device: torch.device
    ) -> Int[Tensor, "batch seq"]:
        x = sample_numbers(batch, self.n, self.p - 1, generator, device)
        block = torch.arange(self.n, device=device) // self._length
        return sequences(x, self.p, (x[:, :1] + block) % self.p)

    def attention_targets(self, tokens: Int[Tensor, "batch seq"]) -> tuple[Target, ...]:
        mask = mask_of([[0]] * self.n, self.n_input, tokens.device)
        return (Target("first", None, self.output_rows, mask),)

    @property
    def collapse_pairs(self) -> Mapping[str, Bool[Tensor, "n_outputs n_outputs"]]:
        pairs = torch.zeros(self.n, self.n, dtype=torch.bool)
        for first in range(0, self.n, self._length):
            pairs |= pairs_among(range(first + 1, first + self._length), self.n)
        return {"": pairs}

    @property
    def output_parts(self) -> Mapping[str, int]:
        return {name: parts for name, parts in (("half", 2), ("quarter", 4)) if self.n % parts == 0}

    @property
    def number_tokens(self) -> range:
        return range(self.p)

    @property
    def separator(self) -> int:
        return self.p
