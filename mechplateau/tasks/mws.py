"""Moving window sum: every output is the sum, modulo p, of the last k inputs."""

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
    pairs_among,
    sample_numbers,
    sequences,
)


@register_task
class MovingWindowSum(OneOutputPerInput):
    """x₀ … x₍ₙ₋₁₎, SEP, y₀ … y₍ₙ₋₁₎ with x uniform on 1 … max_num.

    y_i = x_i for i < k − 1 (the copies, learnt early), else (x_{i−k+1} + … + x_i) mod p. The separator is the
    token p, unless `sep` says another. Ω of output row r: the inputs r − k + 1 … r, or {r} where output r is a copy.

    Source: arXiv 2506.13688, section 2.
    """

    later: ClassVar[frozenset[str]] = frozenset({"sep"})

    name: Literal["mws"] = "mws"
    k: int = Field(2, ge=1)
    """Length of the window, at most n."""
    p: int = Field(17, ge=2, le=2**20)
    """Modulus, and the separator's token; larger than max_num."""
    max_num: int = Field(16, ge=1)
    """Largest input token."""
    sep: int | None = Field(None, ge=1)
    """The separator's token, above max_num and at most p; null: p. Below p it is also a value of the sums, as in the
    authors' code, which leaves it at 17 for every p; the token p is then not used."""

    words: ClassVar = "Moving window sum"
    title_fields: ClassVar = ("n", "k", "p")
    presets: ClassVar = {"small": small(steps=400, task={"n": 8, "p": 11, "max_num": 10})}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.k > self.n:
            raise ValueError(f"k: expected a window of at most n = {self.n} inputs, got {self.k}")
        if self.p <= self.max_num:
            raise ValueError(
                f"p: expected a modulus above the largest input token (max_num = {self.max_num}), got {self.p}"
            )
        if self.sep is not None and not self.max_num < self.sep <= self.p:
            raise ValueError(
                f"sep: expected a token above the largest input token (max_num = {self.max_num}) and at most "
                f"p = {self.p}, got {self.sep}"
            )
        return self

    @property
    def prompt_entropy(self) -> float:
        return (self.n - 1) * math.log(self.max_num)

    @property
    def vocab_size(self) -> int:
        return self.p + 1

    @property
    def token_labels(self) -> tuple[str, ...]:
        if not self._shares_separator:
            return (*(str(token) for token in range(self.p)), "SEP")
        numbers = (f"{token}|SEP" if token == self._sep else str(token) for token in range(self.p))
        return (*numbers, "unused")

    def _sample(
        self, batch: int, generator: torch.Generator, device: torch.device
    ) -> Int[Tensor, "batch seq"]:
        x = sample_numbers(batch, self.n, self.max_num, generator, device)
        # A window's sum is the difference of two running sums.
        running = torch.nn.functional.pad(x.cumsum(dim=1), (1, 0))
        windows = running[:, self.k :] - running[:, : self.n + 1 - self.k]
        return sequences(x, self._sep, x[:, : self.k - 1], windows % self.p)

    def attention_targets(self, tokens: Int[Tensor, "batch seq"]) -> tuple[Target, ...]:
        row = torch.arange(self.n, device=tokens.device)[:, None]
        source = torch.arange(self.n_input, device=tokens.device)[None, :]
        window = (source <= row) & (source > row - self.k)
        copy = source == row
        mask = torch.where(row < self.k - 1, copy, window)
        return (Target("window", None, self.output_rows, mask[None]),)

    @property
    def collapse_pairs(self) -> Mapping[str, Bool[Tensor, "n_outputs n_outputs"]]:
        return {"": pairs_among(range(self.k - 1, self.n), self.n)}

    @property
    def partial_outputs(self) -> tuple[int, ...]:
        return tuple(range(self.k - 1))

    @property
    def number_tokens(self) -> range:
        return range(self.p)

    @property
    def separator(self) -> int | None:
        return None if self._shares_separator else self.p

    @property
    def _sep(self) -> int:
        return self.p if self.sep is None else self.sep

    @property
    def _shares_separator(self) -> bool:
        """Whether the separator is also a value of the sums."""
        return self._sep < self.p
