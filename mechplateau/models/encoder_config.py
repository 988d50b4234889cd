"""Sizes and kind of the encoder."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from mechplateau.models.config import ModelConfigBase


class EncoderConfig(ModelConfigBase):
    """A BERT encoder with a scalar read-out: the paper's has 4 layers, 8 heads and width 768.

    Source: arXiv 2410.22244, appendix A.
    """

    kind: Literal["encoder"] = "encoder"
    n_layers: int = Field(4, ge=1, le=1000)
    n_heads: int = Field(8, ge=1, le=4096)
    d_model: int = Field(768, ge=1, le=2**16)
    d_head: int | None = Field(None, ge=1, le=2**16)
    """Width of a head; null: d_model / n_heads."""
    d_mlp: int | None = Field(None, ge=1, le=2**20)
    """Width of the MLP's hidden layer; null: 4 · d_model."""
    norm: Literal["post", "pre"] = "post"
    """post: a norm after the embedding, after attention and after the MLP, as in BERT; pre: before attention and MLP,
    and before the read-out."""
    inputs: Literal["tokens", "continuous"] = "tokens"
    """continuous: a value v enters as v · W + b, and a masked cell as a vector of its own."""
    mask_embedding: Literal["frozen_zero", "learned"] = "frozen_zero"
    """frozen_zero: MASK's embedding is zero and stays so, so that a masked cell enters by its position alone. For
    inputs = "tokens" only."""
    init_std: float = Field(0.02, gt=0)
    """Standard deviation of the initial matrices and embeddings."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.d_head is None and self.d_model % self.n_heads:
            raise ValueError(
                f"n_heads: expected a divisor of d_model = {self.d_model} (or a d_head of your own), "
                f"got {self.n_heads}"
            )
        return self

    @property
    def head_width(self) -> int:
        """d_head, or d_model / n_heads where it is not set."""
        return self.d_head if self.d_head is not None else self.d_model // self.n_heads

    @property
    def mlp_width(self) -> int:
        """d_mlp, or 4 · d_model where it is not set."""
        return self.d_mlp if self.d_mlp is not None else 4 * self.d_model
