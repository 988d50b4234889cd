"""What to measure on a series of language-model checkpoints."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mechplateau.schema import Config

Dtype = Literal["float32", "bfloat16", "float16"]


class SeriesConfig(Config):
    """Settings of an analysis; two equal ones give equal numbers.

    The defaults are the paper's for figure 8: 100 questions, 8 new tokens, greedy, float32.
    """

    n_prompts: int = Field(default=100, ge=1)
    """At most this many prompts are used."""
    prompt_seed: int | None = Field(default=None, ge=0, lt=2**63)
    """null: the first `n_prompts`; a number: that many at random, without repetition, in the order drawn."""
    n_tokens: int = Field(default=8, ge=2)
    """Tokens generated after each prompt; the collapse is measured over all pairs of the positions predicting
    them."""
    temperature: float | None = Field(default=None, gt=0)
    """null: greedy; a number: sample from softmax(logits / temperature)."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Of the sampling; each prompt has its own random numbers, so batches do not change what is drawn."""
    dtype: Dtype = "float32"
    """The type the model is run in; measurements are always taken in float32."""
    device: str = "cpu"
    """A torch device: `cpu`, `cuda`, `cuda:1`, `mps`."""
    batch_size: int = Field(default=32, ge=1)
    """Prompts run together; changes speed and memory only."""
