"""Running only the part of a forward that an edit at one hook can change.

Belongs to `patch_sweep`, whose docstring says why each step is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechplateau.circuits.editing import layer_of, position_axis, require_same_shape
from mechplateau.circuits.patching import Patch, part_of
from mechplateau.errors import UserError

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

_TOKENS_A_FORWARD = 2048
"""Positions of all stacked sequences in one forward: more gains no speed on a CPU."""

_AFTER_KEYS_AND_VALUES = (
    *("attn.hook_q", "attn.hook_rot_q", "attn.hook_attn_scores", "attn.hook_pattern", "attn.hook_z"),
    *(
        "attn.hook_result",
        "hook_attn_out",
        "hook_resid_mid",
        "hook_mlp_in",
        "hook_mlp_out",
        "hook_resid_post",
    ),
)


def acts_on_its_own_position(model: HookedTransformer, hook: str) -> bool:
    """Whether an edit at one position can change the logits of that position only."""
    layer = layer_of(hook)
    if layer is None:
        return hook.startswith(("ln_final.", "unembed."))
    inner = hook.split(".", 2)[2]
    after = inner in _AFTER_KEYS_AND_VALUES or inner.startswith("mlp.")
    # Where the MLP reads beside attention, not after it, LN2 is as early as LN1 but still acts by position.
    return layer == model.cfg.n_layers - 1 and (after or inner.startswith("ln2."))


@dataclass(frozen=True)
class Resumed:
    """Logits of stacked variants, at the scored rows that could change.

    Attributes:
        logits: `[variants · batch, rows, vocab]`.
        order: which of the scored rows these are.
        left_out: the scored rows that come before every edit.
    """

    logits: Float[Tensor, "batch rows vocab"]
    order: tuple[int, ...]
    left_out: tuple[int, ...]


class Resumer:
    """A model's forward over some sequences, kept so that its later part can be run again with edits.

    Attributes:
        model: the model.
        rows: the scored positions.
        base_logits: without edits, at those, `[batch, rows, vocab]`.
    """

    def __init__(
        self,
        model: HookedTransformer,
        inputs: Int[Tensor, "batch pos"],
        rows: tuple[int, ...],
        memory_limit: float,
    ):
        self.model = model
        self.rows = rows
        self._inputs = inputs
        self._memory_limit = memory_limit
        cfg = model.cfg
        # Elsewhere a block needs more than its residual (shortformer), or positions see later ones.
        self._resumes = cfg.positional_embedding_type in ("standard", "rotary")
        self._has_prefix = self._resumes and cfg.attention_dir == "causal"
        blocks = range(cfg.n_layers)
        kept = [
            f"blocks.{layer}.{name}"
            for layer in blocks
            for name in ("hook_resid_pre", "attn.hook_k", "attn.hook_v")
        ]
        logits, cache = model.run_with_cache(inputs, names_filter=kept)
        self._residual = [cache[f"blocks.{layer}.hook_resid_pre"] for layer in blocks]
        self._keys = [cache[f"blocks.{layer}.attn.hook_k"] for layer in blocks]
        self._values = [cache[f"blocks.{layer}.attn.hook_v"] for layer in blocks]
        self.base_logits: Float[Tensor, "batch rows vocab"] = logits[:, list(rows)]

    @property
    def length(self) -> int:
        """Positions of a sequence."""
        return self._inputs.shape[1]

    def start(self, positions: Sequence[int]) -> int:
        """The first position that must be run again where these are patched."""
        return min(positions) if self._has_prefix else 0

    def chunks(self, positions: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Positions that share one forward: as many as keep it within its size and its memory."""
        batch, length = self._inputs.shape
        # One forward at least, however little memory is allowed.
        most = min(_TOKENS_A_FORWARD, self._memory_limit / self._bytes_a_position())
        remaining = list(positions)
        while remaining:
            size = max(1, int(most // (batch * (length - self.start(remaining)))))
            yield tuple(remaining[:size])
            remaining = remaining[size:]

    def run(self, hook: str, patches: Sequence[Patch], start: int) -> Resumed:
        """Run the part from the hook's layer and position `start` on, once for each patch, stacked along the batch.

        Raises:
            UserError: the hook never fired, or an activation has another shape than its patch.
        """
        start = start if self._has_prefix else 0
        order = tuple(i for i, row in enumerate(self.rows) if row >= start)
        left_out = tuple(i for i, row in enumerate(self.rows) if row < start)
        if not order:  # every scored row comes before the edit
            vocab = self.base_logits.shape[-1]
            batch = len(patches) * len(self._inputs)
            return Resumed(self.base_logits.new_zeros(batch, 0, vocab), (), left_out)
        wanted = torch.tensor([self.rows[i] - start for i in order], device=self._inputs.device)
        length = self._inputs.shape[1] - start
        slicing = _Slicing(wanted, length)
        putting = _Putting(hook, patches, start, self._inputs.shape[1], wanted)
        edits = [(hook, putting), (self._last_point(), slicing)]
        with self.model.hooks(fwd_hooks=edits):
            logits = self._forward(hook, len(patches), start)
        if not putting.fired:
            raise UserError(f"{hook} never fired in this forward, so the patch did nothing")
        return Resumed(logits, order, left_out)

    def _forward(self, hook: str, variants: int, start: int) -> Tensor:
        layer = layer_of(hook)
        if layer is None:
            from_layer = (
                None if hook.startswith(("hook_", "embed.", "pos_embed.")) else self.model.cfg.n_layers - 1
            )
        else:
            from_layer = layer
        options: dict[str, object] = {}
        if start:
            options["past_kv_cache"] = self._prefix(variants, start)
        if from_layer is None or not self._resumes:
            inputs = _stacked(self._inputs[:, start:], variants)
            if start:
                options["attention_mask"] = torch.ones_like(inputs)
            return self.model(inputs, **options)
        residual = _stacked(self._residual[from_layer][:, start:], variants)
        return self.model(residual, start_at_layer=from_layer, **options)

    def _prefix(self, variants: int, start: int):
        from transformer_lens.cache.key_value_cache import TransformerLensKeyValueCache
        from transformer_lens.cache.key_value_cache_entry import TransformerLensKeyValueCacheEntry

        entries = [
            TransformerLensKeyValueCacheEntry(
                _stacked(keys[:, :start], variants), _stacked(values[:, :start], variants)
            )
            for keys, values in zip(self._keys, self._values, strict=True)
        ]
        mask = torch.ones(variants * len(self._inputs), start, dtype=torch.int64, device=self._inputs.device)
        return TransformerLensKeyValueCache(entries, mask)

    def _last_point(self) -> str:
        """The first hook of the residual stream after which nothing looks at other positions."""
        last = f"blocks.{self.model.cfg.n_layers - 1}."
        middle = f"{last}hook_resid_mid"
        return middle if middle in self.model.hook_dict else f"{last}hook_resid_post"

    def _bytes_a_position(self) -> int:
        cfg = self.model.cfg
        attention = 8 * cfg.n_heads * cfg.d_head + 3 * cfg.n_heads * self._inputs.shape[1]
        return 4 * (10 * cfg.d_model + attention + 3 * (cfg.d_mlp or 0) + 6 * cfg.d_vocab_out)


def _stacked(tensor: Tensor, variants: int) -> Tensor:
    """The batch, `variants` times over; itself, not a copy, where that is once."""
    return tensor if variants == 1 else tensor.repeat(variants, *(1 for _ in tensor.shape[1:]))


class _Slicing:
    """Drop the rows that are not scored, after the last point that reads them."""

    def __init__(self, wanted: Int[Tensor, " rows"], length: int):
        self._wanted = wanted
        self._all = len(wanted) == length

    def __call__(self, activation: Tensor, hook) -> Tensor:
        return activation if self._all else activation[:, self._wanted]


class _Putting:
    """Put each patch into its own part of the stacked batch.

    Its activation may lack the positions before `start`, and those that are not scored.
    """

    def __init__(
        self, hook: str, patches: Sequence[Patch], start: int, length: int, wanted: Int[Tensor, " rows"]
    ):
        self.fired = False
        self._hook = hook
        self._patches = patches
        self._start = start
        self._length = length
        self._wanted = wanted

    def __call__(self, activation: Tensor, hook) -> Tensor:
        self.fired = True
        stacked = activation.clone().unflatten(0, (len(self._patches), -1))
        for own, patch in zip(stacked, self._patches, strict=True):
            value, positions = self._seen_part(patch, own)
            require_same_shape(self._hook, value, own)
            where = part_of(self._hook, own, positions, patch.head)
            own[where] = value.to(own.device, own.dtype)[where]
        return stacked.flatten(0, 1)

    def _seen_part(self, patch: Patch, own: Tensor) -> tuple[Tensor, tuple[int, ...] | None]:
        """The patch's value where this activation has it, and its positions counted from `start`."""
        axis = position_axis(self._hook)
        value, positions = patch.value, patch.positions
        seen = self._length - self._start
        if self._start and value.shape[axis] == self._length and own.shape[axis] == seen:
            value = value.narrow(axis, self._start, seen)
            positions = None if positions is None else tuple(position - self._start for position in positions)
        if own.shape[axis] == len(self._wanted) != value.shape[axis]:
            # Only after the last attention, where all positions are patched at once.
            value = value.index_select(axis, self._wanted.to(value.device))
        return value, positions


__all__ = ["Resumed", "Resumer", "acts_on_its_own_position"]
