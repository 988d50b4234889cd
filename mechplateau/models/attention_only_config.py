"""The sizes of an attention-only language model, see `mechplateau.models.attention_only`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from mechplateau.models.config import ModelConfigBase


class AttentionOnlyConfig(ModelConfigBase):
    """Layers of softmax attention without MLPs, with positions that only queries and keys read (Shortformer).

    The defaults are arXiv 2402.02364's. Weights start as N(0, (0.8/√d_model)²), biases at 0.
    """

    kind: Literal["attention_only"] = "attention_only"
    n_layers: int = Field(2, ge=1, le=1000)
    n_heads: int = Field(8, ge=1, le=4096)
    d_model: int = Field(256, ge=1, le=2**16)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.d_model % self.n_heads:
            raise ValueError(f"n_heads: expected a divisor of d_model = {self.d_model}, got {self.n_heads}")
        return self

    @property
    def head_width(self) -> int:
        """d_model / n_heads."""
        return self.d_model // self.n_heads
