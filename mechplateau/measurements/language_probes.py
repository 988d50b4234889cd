"""Fixed sequences to look at a language model on, the same ones at every step of every run of a task.

| probe | sequences |
|---|---|
| text | held-out rows, as many as give 5,000 positions |
| starts | the first tokens of 1,000 held-out rows |
| grams | [end of text, t_1 … t_n] for the common n-grams, n = 2, 3, 4 |
| random | [end of text, uniform tokens], 64 long or as long as the context |
| prefix | uniform tokens with one A in each half, B after the first A; no other token is A or B |
| repeats | [end of text, a random half, the same half again] |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mechplateau.tasks.corpus import END
from mechplateau.tasks.text import Text

_SEED = 20_240_202
_POSITIONS = 5000
_STARTS, _RANDOM, _PREFIX, _REPEATS = 1000, 16, 64, 32
LONGEST_RANDOM = 64


@dataclass(frozen=True, eq=False)
class LanguageProbes:
    """Tokens, int64, on the device of the model.

    Attributes:
        text: whole rows `[row, n_ctx + 1]`.
        starts: `[row, 5]`.
        grams: n → `[gram, n + 1]`.
        random: `[sequence, length]`.
        prefix: `[sequence, n_ctx]`.
        first, second: positions of A in each of these, `[sequence]`; B is at first + 1.
        repeats: `[row, n_ctx + 1]`, whose halves are equal (with one random token after them where n_ctx is odd).
    """

    text: Int[Tensor, "row length"]
    starts: Int[Tensor, "row 5"]
    grams: Mapping[int, Int[Tensor, "gram length"]]
    random: Int[Tensor, "sequence length"]
    prefix: Int[Tensor, "sequence n_ctx"]
    first: Int[Tensor, " sequence"]
    second: Int[Tensor, " sequence"]
    repeats: Int[Tensor, "row length"]


def language_probes(task: Text, device: torch.device | str = "cpu") -> LanguageProbes:
    """The probes of a task."""
    generator = torch.Generator().manual_seed(_SEED)
    corpus = task.corpus()
    held_out = task.held_out(max(_STARTS, math.ceil(_POSITIONS / task.n_ctx)), generator).tokens
    grams = {
        n: torch.cat([torch.full((len(ids), 1), END), ids], dim=1)
        for n, ids in corpus.grams.items()
        if len(ids) and n <= task.n_ctx
    }
    random = _after_end(task.random_tokens(_RANDOM, min(LONGEST_RANDOM, task.n_ctx) - 1, generator))
    prefix, first, second = _prefix_sequences(task, generator)
    half = task.random_tokens(_REPEATS, task.n_ctx // 2, generator)
    rest = task.random_tokens(_REPEATS, task.n_ctx % 2, generator)
    found = LanguageProbes(
        text=held_out[: math.ceil(_POSITIONS / task.n_ctx)],
        starts=held_out[:_STARTS, :5],
        grams=grams,
        random=random,
        prefix=prefix,
        first=first,
        second=second,
        repeats=_after_end(torch.cat([half, half, rest], dim=1)),
    )
    return _on(found, device)


def _prefix_sequences(task: Text, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Sequences that begin with the end of text. A is not the last token of the first half, so that B is in it too."""
    length = task.n_ctx
    half = length // 2
    pairs = torch.stack(
        [torch.randperm(task.vocab_size - 1, generator=generator)[:2] + 1 for _ in range(_PREFIX)]
    )
    tokens = _others(task, length - 1, pairs, generator)
    tokens = _after_end(tokens)
    first = torch.randint(1, half - 1, (_PREFIX,), generator=generator)
    second = torch.randint(half, length, (_PREFIX,), generator=generator)
    rows = torch.arange(_PREFIX)
    tokens[rows, first], tokens[rows, first + 1], tokens[rows, second] = pairs[:, 0], pairs[:, 1], pairs[:, 0]
    return tokens, first, second


def _others(task: Text, length: int, pairs: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform tokens that are neither the end of text nor in each sequence's pair."""
    drawn = torch.randint(1, task.vocab_size - 2, (len(pairs), length), generator=generator)
    low, high = pairs.min(1, keepdim=True).values, pairs.max(1, keepdim=True).values
    drawn = drawn + (drawn >= low)
    return drawn + (drawn >= high)


def _after_end(tokens: Tensor) -> Tensor:
    return torch.cat([tokens.new_full((len(tokens), 1), END), tokens], dim=1)


def _on(probes: LanguageProbes, device: torch.device | str) -> LanguageProbes:
    moved: dict[str, Any] = {
        name: {n: t.to(device) for n, t in value.items()} if isinstance(value, Mapping) else value.to(device)
        for name, value in vars(probes).items()
    }
    return LanguageProbes(**moved)


__all__ = ["LONGEST_RANDOM", "LanguageProbes", "language_probes"]
