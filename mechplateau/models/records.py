"""What a forward pass records for measurements, and the locations of hidden states.

Free of TransformerLens, so that any module that keeps the contract below can be measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from mechplateau.errors import UserError
from mechplateau_kernels import PositionSet

if TYPE_CHECKING:
    from mechplateau.models.table import Table

_LAYER_PLACES = ("resid_pre", "attn_out", "resid_mid", "resid_post")


@dataclass
class AttentionRecord:
    """Placed on an attention component, it is filled by the next forward pass.

    Attributes:
        metric_sets: sets whose mass is wanted, each a `mechplateau_kernels` set or bool `[query, key]` or
            `[batch, query, key]`.
        keep_pattern: whether the map is wanted as well (it is then built).
        row_mass: Σ_j |A_ij|, `[batch, head, query]`.
        set_mass: Σ_{j ∈ set} |A_ij|, `[batch, head, set, query]`.
        keys, values: `[batch, key, head, d_head]`, from which generation continues.
        pattern: `[batch, head, query, key]`, if it was to be kept.
        table: the first layer's table, where queries, keys and values were looked up.
    """

    metric_sets: tuple[Tensor | PositionSet, ...] = ()
    keep_pattern: bool = False
    row_mass: Tensor | None = field(default=None, init=False)
    set_mass: Tensor | None = field(default=None, init=False)
    keys: Tensor | None = field(default=None, init=False)
    values: Tensor | None = field(default=None, init=False)
    pattern: Tensor | None = field(default=None, init=False)
    table: Table | None = field(default=None, init=False)

    def masses(self) -> tuple[Tensor, Tensor]:
        """`row_mass` and `set_mass`, once a forward pass has filled them."""
        if self.row_mass is None or self.set_mass is None:
            raise RuntimeError("this record is empty: the attention it was placed on has not run")
        return self.row_mass, self.set_mass

    def cache(self) -> tuple[Tensor, Tensor]:
        """`keys` and `values`, once a forward pass has filled them."""
        if self.keys is None or self.values is None:
            raise RuntimeError("this record is empty: the attention it was placed on has not run")
        return self.keys, self.values

    def map(self) -> Tensor:
        """`pattern`, once a forward pass has kept it."""
        if self.pattern is None:
            raise RuntimeError("this record holds no attention map: make it with the attention map kept")
        return self.pattern


@dataclass(frozen=True)
class Observation:
    """One teacher-forced forward.

    Attributes:
        outputs: what the model returned: logits `[batch, pos, vocab]`, or numbers `[batch, entry]`.
        hidden: location → hidden states `[batch, pos, d_model]`.
        records: one a layer: attention masses, keys and values, and the map if it was wanted.
    """

    outputs: Float[Tensor, "batch ..."]
    hidden: Mapping[str, Float[Tensor, "batch pos d_model"]]
    records: Sequence[AttentionRecord]

    @property
    def logits(self) -> Float[Tensor, "batch pos vocab"]:
        """The outputs of a model of tokens."""
        return self.outputs


@runtime_checkable
class Trainable(Protocol):
    """What measurements of attention, hidden states and generated tokens need from a model of tokens.

    One that is trained on something else, and measured by its outputs alone, needs no more than `forward`.
    """

    def __call__(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos vocab"]:
        """Logits."""

    def observe(
        self,
        tokens: Int[Tensor, "batch pos"],
        *,
        metric_sets: Mapping[int, Sequence[Tensor | PositionSet]] | None = None,
        at: Iterable[str] = ("final",),
        keep_patterns: bool = False,
    ) -> Observation:
        """One forward that records what measurements need."""

    def generate_on(
        self, seen: Observation, prompt_length: int, n_outputs: int
    ) -> Int[Tensor, "batch n_outputs"]:
        """Greedy generation from an observation's prompt."""


def locations(n_layers: int) -> tuple[str, ...]:
    """Names of all places where hidden states are compared: "final" and, per layer L, "L{L}_resid_pre", …"""
    return ("final", *(f"L{layer}_{place}" for layer in range(n_layers) for place in _LAYER_PLACES))


def is_layer_place(name: str) -> bool:
    """Whether a name is a location inside a layer, "L0_resid_pre" say, and nothing more than that."""
    layer, _, place = name.removeprefix("L").partition("_")
    return name.startswith("L") and layer.isdigit() and place in _LAYER_PLACES


def hook_of(location: str) -> str:
    """TransformerLens's hook name of a location. "final" is after the last LayerNorm's gain and bias.

    Raises:
        UserError: no such location.
    """
    if location == "final":
        return "unembed.hook_in"
    if not is_layer_place(location):
        raise UserError(
            f"unknown location {location!r}; expected final or L0_{', L0_'.join(_LAYER_PLACES)}, …"
        )
    layer, _, place = location.removeprefix("L").partition("_")
    return f"blocks.{layer}.hook_{place}"
