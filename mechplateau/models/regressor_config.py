"""The sizes of a model that reads real-valued tokens, see `mechplateau.models.regressor`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from mechplateau.models.config import ModelConfigBase


class RegressorConfig(ModelConfigBase):
    """A pre-LayerNorm transformer for in-context regression; the defaults are arXiv 2402.02364's."""

    kind: Literal["regressor"] = "regressor"
    n_layers: int = Field(2, ge=1, le=1000)
    n_heads: int = Field(4, ge=1, le=4096)
    d_model: int = Field(64, ge=1, le=2**16)
    d_mlp: int | None = Field(None, ge=1, le=2**20)
    """Width of the MLP's hidden layer; null: d_model."""
    residual_gain: Literal[1, 2] = 2
    """A block gives gain · x + attention + MLP; 2 as the authors' code does, or the usual 1."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.d_model % self.n_heads:
            raise ValueError(f"n_heads: expected a divisor of d_model = {self.d_model}, got {self.n_heads}")
        return self

    @property
    def head_width(self) -> int:
        """d_model / n_heads."""
        return self.d_model // self.n_heads

    @property
    def mlp_width(self) -> int:
        """d_mlp, or d_model where it is not set."""
        return self.d_mlp if self.d_mlp is not None else self.d_model
