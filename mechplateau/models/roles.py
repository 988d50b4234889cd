"""Roles of a model's parameters, which optimizers, interventions and transfers need to know."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

_MATRICES = {
    "blocks.*.W_[QKV]": "head d_in d_out -> (head d_out) d_in",
    "blocks.*.W_O": "head d_in d_out -> d_out (head d_in)",
    "blocks.*.W_in": "d_in d_out -> d_out d_in",
    "blocks.*.W_out": "d_in d_out -> d_out d_in",
}


@dataclass(frozen=True)
class Roles:
    """Patterns (with *) of parameter names. The defaults are for TransformerLens's names; a kind that has others gives
    its own to `ModelKind.roles`.

    Attributes:
        linear: weights of linear layers: AdamW decays them.
        embeddings: those among `linear` that are tables, which it does not decay.
        matrices: pattern → how the parameter becomes an `[out, in]` matrix, in einops's notation:
            matrices of attention and MLP, which Muon trains.
        final_norm: the norm in front of the read-out.
        queries_and_keys: parameters without a gradient while a pattern is imposed.
        between_tasks: what a transfer moves between different tasks, besides rows of `token_axis`.
        positions: the table of positions, whose length is the task's.
        token_axis: tensor with one row or column a token → which axis that is. They mean something only within a
            vocabulary.
    """

    linear: tuple[str, ...] = ("W_*", "*.W_*")
    embeddings: tuple[str, ...] = ("W_E", "*.W_E", "W_pos", "*.W_pos")
    matrices: Mapping[str, str] = field(default_factory=lambda: MappingProxyType(_MATRICES))
    final_norm: tuple[str, ...] = ("ln_final.*",)
    queries_and_keys: tuple[str, ...] = ("blocks.*.attn.[Wb]_[KQ]",)
    between_tasks: tuple[str, ...] = ("blocks.*.attn.*", "blocks.*.ln1.*", "pos_embed.W_pos")
    positions: str = "pos_embed.W_pos"
    token_axis: Mapping[str, int] = field(
        default_factory=lambda: MappingProxyType({"embed.W_E": 0, "unembed.W_U": 1})
    )

    def decayed(self, name: str) -> bool:
        """Whether a parameter is the weight of a linear layer, and no table."""
        return bool(matched([name], self.linear)) and not matched([name], self.embeddings)

    def matrix(self, name: str) -> str | None:
        """How a parameter becomes the matrix that Muon trains; None: Muon does not train it."""
        return next((axes for pattern, axes in self.matrices.items() if matched([name], [pattern])), None)


def matched(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """The names that one of the patterns fits, in their order."""
    patterns = tuple(patterns)
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


__all__ = ["Roles", "matched"]
