"""TransformerLens's own `generate` and caches, fixed: its tokens, with or without the cache, equal ours.

TransformerLens embeds the whole sequence at every token. Where it makes no attention mask (no tokenizer, or embeddings
as input), it takes the cached tokens' number for the position of the first, so that tokens get wrong positions, or
positions beyond the last. Here a mask of ones gives the length of the sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mechplateau.models.lens  # isort: skip  # noqa: F401 (before TransformerLens: says what to install)

import torch
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens.utilities import USE_DEFAULT_VALUE

from mechplateau.errors import UserError


class LensGeneration(HookedTransformer):
    """A HookedTransformer that also generates without a tokenizer, from a cache or not."""

    _generating = 0  # how many generations are under way: a stream may wait while another begins

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As TransformerLens's, with its arguments.

        Hooks on `hook_embed`, which TransformerLens passes by while it generates, act: they see the whole sequence.

        Raises:
            UserError: the sequence gets longer than n_ctx, or the logits are not numbers.
        """
        with self._generation():
            return super().generate(*args, **kwargs)

    def generate_stream(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """As TransformerLens's, with its arguments; what it has generated is never taken for padding.

        Raises:
            UserError: as `generate`.
        """
        with self._generation():
            yield from super().generate_stream(*args, **kwargs)

    @contextmanager
    def _generation(self) -> Iterator[None]:
        def refuse_nan(module: torch.nn.Module, inputs: Any, logits: Tensor) -> None:
            if bool(logits[:, -1].isnan().any()):
                raise UserError(
                    "the model's logits are not numbers (NaN), so there is no next token to generate"
                )

        check = self.unembed.register_forward_hook(refuse_nan)
        self._generating += 1
        try:
            yield
        finally:
            self._generating -= 1
            check.remove()

    def get_residual(
        self,
        embed,
        pos_offset,
        prepend_bos=USE_DEFAULT_VALUE,
        attention_mask=None,
        tokens=None,
        return_shortformer_pos_embed=True,
        device=None,
    ):
        if self._generating and tokens is None:
            embed = self.hook_embed(embed.clone())
            if attention_mask is None:
                attention_mask = embed.new_ones(embed.shape[:2], dtype=torch.long)
        return super().get_residual(
            embed, pos_offset, prepend_bos, attention_mask, tokens, return_shortformer_pos_embed, device
        )

    def input_to_embed(self, input, prepend_bos=USE_DEFAULT_VALUE, padding_side=USE_DEFAULT_VALUE, **kwargs):
        """As TransformerLens's; without a tokenizer, and among generated tokens, none is padding."""
        cache = kwargs.get("past_kv_cache")
        if cache is not None and kwargs.get("attention_mask") is None and isinstance(input, Tensor):
            generated = self._generating > 0 and cache[0].past_keys.shape[1] > 0
            if self.tokenizer is None or generated:
                kwargs["attention_mask"] = torch.ones_like(input if input.dim() > 1 else input[None])
        return super().input_to_embed(input, prepend_bos, padding_side, **kwargs)


__all__ = ["LensGeneration"]
