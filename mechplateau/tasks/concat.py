"""Concatenated windows: moving window sums of several lengths, one group of outputs after the other."""

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
    SequenceTask,
    Target,
    mask_of,
    pairs_among,
    sample_numbers,
    sequences,
)

MIXES: Mapping[str, Mapping[int, range]] = {
    "123_disjoint_454": {1: range(4), 2: range(4, 9), 3: range(10, 14)},
    "124_disjoint_444": {1: range(4), 2: range(4, 8), 4: range(9, 13)},
    "124_disjoint_453": {1: range(4), 2: range(4, 9), 4: range(10, 13)},
    "124_stair_653": {1: range(6), 2: range(5), 4: range(3)},
}
"""Mix → window length → the first input of each of the group's windows."""

N = 16


@register_task
class ConcatenatedWindows(SequenceTask):
    """x₀ … x₁₅, SEP, then for each window length of the mix the sums (x_j + … + x_{j+k−1}) mod p of its windows.

    Mixes are named windows_kind_sizes of the groups: `123_disjoint_454` has 4 copies (windows of 1), 5 sums of
    two and 4 of three; in `stair` the windows begin at x₀ in each group. x is uniform on 1 … max_num, the
    separator is the token p. Ω of an output row: its window. The copies are learnt early.

    Mean cosines: of all pairs, and of each group (`w1`, `w2`, …): the pairs i > j whose j belongs to the group, the
    columns of the cosine matrix that the group owns.

    Source: arXiv 2506.13688, appendix (figure 19).
    """

    name: Literal["concat_mws"] = "concat_mws"
    mix: Literal["123_disjoint_454", "124_disjoint_444", "124_disjoint_453", "124_stair_653"] = (
        "123_disjoint_454"
    )
    """Which windows."""
    p: int = Field(17, ge=2, le=2**20)
    """Modulus, and the separator's token; larger than max_num."""
    max_num: int = Field(16, ge=1)
    """Largest input token."""

    words: ClassVar = "Windows of several lengths"
    title_fields: ClassVar = ("mix", "p")
    default_training: ClassVar = {"steps": 5000}
    presets: ClassVar = {"small": small(steps=1200, task={}, batch_size=128, lr=2e-3)}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.p <= self.max_num:
            raise ValueError(
                f"p: expected a modulus above the largest input token (max_num = {self.max_num}), got {self.p}"
            )
        return self

    @property
    def windows(self) -> tuple[tuple[int, int], ...]:
        """(first input, length) of each output's window."""
        return tuple((first, length) for length, firsts in MIXES[self.mix].items() for first in firsts)

    @property
    def prompt_entropy(self) -> float:
        return (N - 1) * math.log(self.max_num)

    @property
    def vocab_size(self) -> int:
        return self.p + 1

    @property
    def prompt_length(self) -> int:
        return N + 1

    @property
    def n_outputs(self) -> int:
        return len(self.windows)

    @property
    def token_labels(self) -> tuple[str, ...]:
        return (*(str(token) for token in range(self.p)), "SEP")

    def _sample(
        self, batch: int, generator: torch.Generator, device: torch.device
    ) -> Int[Tensor, "batch seq"]:
        x = sample_numbers(batch, N, self.max_num, generator, device)
        running = torch.nn.functional.pad(x.cumsum(dim=1), (1, 0))
        first = torch.tensor([first for first, _ in self.windows], device=device)
        end = torch.tensor([first + length for first, length in self.windows], device=device)
        return sequences(x, self.p, (running[:, end] - running[:, first]) % self.p)

    def attention_targets(self, tokens: Int[Tensor, "batch seq"]) -> tuple[Target, ...]:
        sources = [range(first, first + length) for first, length in self.windows]
        return (Target("window", None, self.output_rows, mask_of(sources, self.n_input, tokens.device)),)

    @property
    def collapse_pairs(self) -> Mapping[str, Bool[Tensor, "n_outputs n_outputs"]]:
        everything = pairs_among(range(self.n_outputs), self.n_outputs)
        lengths = torch.tensor([length for _, length in self.windows])
        groups = {f"w{length}": everything & (lengths == length)[None, :] for length in MIXES[self.mix]}
        return {"": everything, **groups}

    @property
    def partial_outputs(self) -> tuple[int, ...]:
        return tuple(r for r, (_, length) in enumerate(self.windows) if length == 1)

    @property
    def number_tokens(self) -> range:
        return range(self.p)

    @property
    def separator(self) -> int:
        return self.p
