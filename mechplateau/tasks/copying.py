"""Copy and reverse: the outputs are the inputs, in the same or the opposite order."""

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


class _Copying(OneOutputPerInput):
    """x₀ … x₍ₙ₋₁₎, SEP, y₀ … y₍ₙ₋₁₎ with x uniform on 1 … max_num; the separator is the token 0."""

    max_num: int = Field(16, ge=1, le=2**20)
    """Largest input token."""

    title_fields: ClassVar = ("n",)
    default_training: ClassVar = {"steps": 100}
    presets: ClassVar = {"small": small(steps=150, task={"n": 8, "max_num": 10})}

    @property
    def prompt_entropy(self) -> float:
        return (self.n - 1) * math.log(self.max_num)

    @property
    def vocab_size(self) -> int:
        return self.max_num + 1

    @property
    def token_labels(self) -> tuple[str, ...]:
        return ("SEP", *(str(token) for token in range(1, self.vocab_size)))

    def _order(self, x: Int[Tensor, "batch n"]) -> Int[Tensor, "batch n"]:
        """The outputs of these inputs."""
        raise NotImplementedError

    def _sample(
        self, batch: int, generator: torch.Generator, device: torch.device
    ) -> Int[Tensor, "batch seq"]:
        x = sample_numbers(batch, self.n, self.max_num, generator, device)
        return sequences(x, 0, self._order(x))

    def attention_targets(self, tokens: Int[Tensor, "batch seq"]) -> tuple[Target, ...]:
        sources = self._order(torch.arange(self.n)[None])[0].tolist()
        mask = mask_of([[source] for source in sources], self.n_input, tokens.device)
        return (Target("input", None, self.output_rows, mask),)

    @property
    def collapse_pairs(self) -> Mapping[str, Bool[Tensor, "n_outputs n_outputs"]]:
        return {"": pairs_among(range(self.n), self.n)}

    @property
    def number_tokens(self) -> range:
        return range(1, self.vocab_size)

    @property
    def separator(self) -> int:
        return 0


@register_task
class Copy(_Copying):
    """x₀ … x₍ₙ₋₁₎, SEP, x₀ … x₍ₙ₋₁₎ with x uniform on 1 … max_num. Ω of output row r: {r}.

    Source: arXiv 2506.13688, appendix (figure 18).
    """

    name: Literal["copy"] = "copy"

    def _order(self, x: Int[Tensor, "batch n"]) -> Int[Tensor, "batch n"]:
        return x


@register_task
class Reverse(_Copying):
    """x₀ … x₍ₙ₋₁₎, SEP, x₍ₙ₋₁₎ … x₀ with x uniform on 1 … max_num. Ω of output row r: {n − 1 − r}.

    Source: arXiv 2506.13688, appendix (figure 17).
    """

    name: Literal["reverse"] = "reverse"

    def _order(self, x: Int[Tensor, "batch n"]) -> Int[Tensor, "batch n"]:
        return x.flip(1)
