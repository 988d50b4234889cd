"""TransformerLens's strings for tokens, by a task's labels: a model that is trained on a task has no tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mechplateau.models.lens  # isort: skip  # noqa: F401 (before TransformerLens: says what to install)

import numpy as np
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens.utilities import USE_DEFAULT_VALUE

from mechplateau.errors import UserError

UNDEFINED = "undefined"


class LabeledTokens(HookedTransformer):
    """A HookedTransformer that knows what to show for each of its tokens.

    Attributes:
        token_labels: a label for each token of the vocabulary (a task's `token_labels`); None where there are none.
    """

    token_labels: Sequence[str] | None = None

    def to_str_tokens(
        self, input: Any, prepend_bos: Any = USE_DEFAULT_VALUE, padding_side: Any = USE_DEFAULT_VALUE
    ) -> Any:
        """The label of each token; with a tokenizer, as TransformerLens's.

        Args:
            input: tokens: one sequence `[pos]` or `[1, pos]`, several `[batch, pos]`, or a list of sequences.
            prepend_bos, padding_side: of a tokenizer only.

        Returns:
            list of labels, or of several sequences a list of lists; "undefined" for −1, which `generate` returns where
            a token is undefined.

        Raises:
            UserError: the model has neither a tokenizer nor labels, or the input is text or has tokens without a label.
        """
        if self.tokenizer is not None:
            return super().to_str_tokens(input, prepend_bos, padding_side)
        if self.token_labels is None:
            raise UserError(
                "to_str_tokens: this model has neither a tokenizer nor labels; set model.token_labels to its task's "
                "token_labels"
            )
        if isinstance(input, Tensor | np.ndarray):
            input = input[0] if input.ndim == 2 and len(input) == 1 else input
            input = input.tolist() if input.ndim else [input.item()]
        if isinstance(input, Sequence) and not isinstance(input, str):
            several = any(isinstance(part, Sequence | Tensor | np.ndarray) for part in input)
            return [self.to_str_tokens(part) if several else self._label(part) for part in input]
        return [self._label(input)]

    def _label(self, token: object) -> str:
        labels = self.token_labels or ()
        if isinstance(token, int | np.integer) and -1 <= token < len(labels):
            return UNDEFINED if token == -1 else str(labels[int(token)])
        raise UserError(
            f"to_str_tokens: expected tokens from 0 to {len(labels) - 1} (or -1, undefined), got {token!r}"
        )


__all__ = ["LabeledTokens"]
