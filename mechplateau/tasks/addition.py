"""Addition of two numbers, digit by digit."""

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
from mechplateau.tasks.sequence import SequenceTask, Target, mask_of, pairs_among, sequences

PLUS, EQUALS = 10, 11


@register_task
class Addition(SequenceTask):
    """a (d digits, zero filled), "+", b (d digits), "=", a + b (d + 1 digits), with a, b uniform on 1 … 10^d − 1.

    Reversed, the sum begins with its least significant digit. Ω of output row r (reversed; else row d − r):
    the two digits of that place and the two of the place before, whose carry it takes; only its own two for
    r = 0; for the final carry r = d the two most significant digits. The final carry is learnt early.

    Source: arXiv 2506.13688, appendix (figures 9, 10).
    """

    name: Literal["addition"] = "addition"
    digits: int = Field(4, ge=1, le=17)
    """Digits of each number, few enough for 64-bit arithmetic."""
    reverse: bool = True
    """Give the sum's least significant digit first."""

    words: ClassVar = "Addition"
    title_fields: ClassVar = ("digits", "reverse")
    default_training: ClassVar = {"steps": 10_000}
    presets: ClassVar = {"small": small(steps=3000, task={"digits": 2}, batch_size=128, lr=2e-3)}

    @property
    def prompt_entropy(self) -> float:
        return 2 * math.log(10**self.digits - 1) - self._first_digit_entropy

    @property
    def _first_digit_entropy(self) -> float:
        """Of 10^d − 1 numbers each digit but 0 begins as many, and 0 one fewer."""
        whole, each = 10**self.digits - 1, 10 ** (self.digits - 1)
        shares = [(each - 1) / whole, *9 * [each / whole]]
        return -sum(share * math.log(share) for share in shares if share)

    @property
    def vocab_size(self) -> int:
        return 12

    @property
    def prompt_length(self) -> int:
        return 2 * self.digits + 2

    @property
    def n_outputs(self) -> int:
        return self.digits + 1

    @property
    def token_labels(self) -> tuple[str, ...]:
        return (*(str(token) for token in range(10)), "+", "=")

    def _sample(
        self, batch: int, generator: torch.Generator, device: torch.device
    ) -> Int[Tensor, "batch seq"]:
        numbers = torch.randint(1, 10**self.digits, (2, batch), generator=generator, device=device)
        a, b = numbers
        total = self._digits(a + b, self.n_outputs)
        return sequences(
            self._digits(a, self.digits),
            PLUS,
            self._digits(b, self.digits),
            EQUALS,
            total.flip(1) if self.reverse else total,
        )

    @staticmethod
    def _digits(numbers: Int[Tensor, " batch"], count: int) -> Int[Tensor, "batch count"]:
        """Most significant first, zero filled."""
        powers = 10 ** torch.arange(count - 1, -1, -1, device=numbers.device)
        return numbers[:, None] // powers % 10

    def attention_targets(self, tokens: Int[Tensor, "batch seq"]) -> tuple[Target, ...]:
        d = self.digits
        sources = [[d - 1, 2 * d]]
        sources += [[d - r - 1, d - r, 2 * d - r, 2 * d - r + 1] for r in range(1, d)]
        sources.append([0, d + 1])
        if not self.reverse:
            sources.reverse()
        return (Target("digits", None, self.output_rows, mask_of(sources, self.n_input, tokens.device)),)

    @property
    def collapse_pairs(self) -> Mapping[str, Bool[Tensor, "n_outputs n_outputs"]]:
        (carry,) = self.partial_outputs
        return {"": pairs_among([r for r in range(self.n_outputs) if r != carry], self.n_outputs)}

    @property
    def partial_outputs(self) -> tuple[int, ...]:
        return (self.digits if self.reverse else 0,)

    @property
    def number_tokens(self) -> range:
        return range(10)
