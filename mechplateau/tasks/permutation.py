"""Permutation: apply a permutation that is part of the prompt, once or several times."""

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


@register_task
class Permutation(SequenceTask):
    """x₀ … x₍ₙ₋₁₎, SEP, π₀ … π₍ₙ₋₁₎, SEP, y₀ … y₍ₙ₋₁₎ with y_i = x[π^c(i)], c = compose.

    x is uniform on n + 1 … 2n, π a random permutation written as 1 … n, the separator 0. Two layers can solve
    it in two ways, and both are tracked:

    - *read, then fetch*: at layer 0, row r reads its entry π(r) (target `read`); at layer 1 it attends to
      input π^c(r) (target `fetch`, which differs from sequence to sequence);
    - *gather, then copy*: at layer 0, the rows of π's tokens attend to the input they point at (target `gather`);
      at layer 1, output row r attends to π's token r (target `collect`). It solves c = 1 only.

    Source: arXiv 2506.13688, appendix (figures 13, 14); the authors keep π(r) in `fetch` for every c.
    """

    name: Literal["permutation"] = "permutation"
    n: int = Field(16, ge=1, le=2**12)
    """Number of inputs, and of outputs."""
    compose: int = Field(1, ge=1, le=4)
    """How often the permutation is applied."""

    words: ClassVar = "Permutation"
    title_fields: ClassVar = ("n", "compose")
    default_model: ClassVar = {"n_layers": 2}
    default_training: ClassVar = {"steps": 2000}
    presets: ClassVar = {"small": small(steps=1200, task={"n": 5}, batch_size=128, lr=2e-3)}

    @property
    def prompt_entropy(self) -> float:
        return (self.n - 1) * math.log(self.n) + math.lgamma(self.n + 1)

    @property
    def vocab_size(self) -> int:
        return 2 * self.n + 1

    @property
    def prompt_length(self) -> int:
        return 2 * self.n + 2

    @property
    def n_outputs(self) -> int:
        return self.n

    @property
    def token_labels(self) -> tuple[str, ...]:
        entries = (f"π{token}" for token in range(1, self.n + 1))
        return ("SEP", *entries, *(str(token) for token in range(self.n + 1, 2 * self.n + 1)))

    def _sample(
        self, batch: int, generator: torch.Generator, device: torch.device
    ) -> Int[Tensor, "batch seq"]:
        x = torch.randint(self.n + 1, 2 * self.n + 1, (batch, self.n), generator=generator, device=device)
        permutation = torch.rand(batch, self.n, generator=generator, device=device).argsort(dim=1)
        return sequences(x, 0, permutation + 1, 0, x.gather(1, self._composed(permutation)))

    def attention_targets(self, tokens: Int[Tensor, "batch seq"]) -> tuple[Target, ...]:
        n = self.n
        permutation = tokens[:, n + 1 : 2 * n + 1] - 1
        entries = mask_of([[n + 1 + r] for r in range(n)], self.n_input, tokens.device)
        entry_rows = tuple(range(n + 1, 2 * n + 1))
        return (
            Target("fetch", 1, self.output_rows, self._one_hot(self._composed(permutation))),
            Target("read", 0, self.output_rows, entries),
            Target("gather", 0, entry_rows, self._one_hot(permutation)),
            Target("collect", 1, self.output_rows, entries),
        )

    @property
    def collapse_pairs(self) -> Mapping[str, Bool[Tensor, "n_outputs n_outputs"]]:
        return {"": pairs_among(range(self.n), self.n)}

    @property
    def counts_values(self) -> bool:
        return True

    @property
    def counted_values(self) -> range:
        return range(self.n + 1, 2 * self.n + 1)

    def _composed(self, permutation: Int[Tensor, "batch n"]) -> Int[Tensor, "batch n"]:
        """π^c."""
        result = permutation
        for _ in range(self.compose - 1):
            result = permutation.gather(1, result)
        return result

    def _one_hot(self, sources: Int[Tensor, "batch rows"]) -> Bool[Tensor, "batch rows n_input"]:
        return sources[:, :, None] == torch.arange(self.n_input, device=sources.device)
