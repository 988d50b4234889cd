"""The sizes and kind of a model."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from mechplateau.schema import Config

AttentionKind = Literal["linear", "softmax"]


class ModelConfigBase(Config):
    """What the configurations of all kinds of model share. A kind's own gives `kind` a default."""

    kind: str
    """The registered kind of model."""
    n_layers: int = Field(1, ge=1, le=1000)


class ModelConfig(ModelConfigBase):
    """A GPT-2-style transformer with pre-LayerNorm, as in the paper: width 256, one layer, one head.

    Everything the paper keeps fixed (LayerNorm eps 1e-5, learned positions, tanh-GELU, biases but none at the
    unembedding, untied unembedding) is fixed here too.
    """

    later: ClassVar[frozenset[str]] = frozenset({"kind"})

    kind: Literal["gpt"] = "gpt"
    attention: AttentionKind = "linear"
    """linear: A = causal(QKᵀ/√d_head), zeros above the diagonal, no softmax; softmax: the usual causal one."""
    n_layers: int = Field(1, ge=1, le=1000)
    n_heads: int = Field(1, ge=1, le=4096)
    d_model: int = Field(256, ge=1, le=2**16)
    d_head: int | None = Field(None, ge=1, le=2**16)
    """Width of a head; null: d_model / n_heads."""
    d_mlp: int | None = Field(None, ge=1, le=2**20)
    """Width of the MLP's hidden layer; null: 4 · d_model."""
    init_scale: float = Field(1.0, gt=0)
    """Multiplies every initial weight (biases and LayerNorms are not scaled)."""

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
