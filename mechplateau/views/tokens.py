"""Tokens of sequences colored by a number each: loss, accuracy, or any other; drawn by CircuitsVis.

A token without a number (the first one has no loss; an undefined mean) is marked, not colored as if it were 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mechplateau.views.data import ViewError
from mechplateau.views.embed import View
from mechplateau.views.maps import beyond, symmetric_limit
from mechplateau.views.text import visible_token

Tokens = Sequence[str] | Sequence[Sequence[str]]
Values = Any


def tokens_by_loss(tokens: Tokens, losses: Values, *, title: str = "", limit: float | None = None) -> View:
    """Tokens, darker the larger the loss of predicting them.

    Args:
        tokens: one sequence, or several.
        losses: a loss (nats) a token, nested like the tokens; None or NaN where there is none, such as at the
            first token, which nothing predicts.
        title: for people.
        limit: the loss that has the full color; None: the largest.

    Raises:
        ViewError: not one number a token, or a negative loss.
    """
    return _view(tokens, losses, title, "loss (nats)", limit, signed=False)


def tokens_by_accuracy(tokens: Tokens, accuracies: Values, *, title: str = "") -> View:
    """Tokens, darker the more often they are predicted right.

    Args:
        tokens: one sequence, or several.
        accuracies: from 0 to 1, one a token, nested like the tokens; None or NaN where undefined.
        title: for people.

    Raises:
        ViewError: not one number from 0 to 1 a token.
    """
    return _view(tokens, accuracies, title, "accuracy", 1.0, signed=False)


def tokens_by_value(
    tokens: Tokens, values: Values, *, label: str, title: str = "", limit: float | None = None
) -> View:
    """Tokens colored by any number, on a signed scale.

    Args:
        tokens: one sequence, or several.
        values: one a token, nested like the tokens; None or NaN where undefined.
        label: what the numbers are, for the legend.
        title: for people.
        limit: the scale goes from −limit to +limit; None: from the data.

    Raises:
        ViewError: not one number a token.
    """
    return _view(tokens, values, title, label, limit, signed=True)


def _view(
    tokens: Tokens, values: Values, title: str, label: str, limit: float | None, *, signed: bool
) -> View:
    if isinstance(tokens, str) or not len(tokens):
        raise ViewError(f"tokens: expected a list of tokens, got {tokens!r}")
    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    single = all(isinstance(token, str) for token in tokens)
    nested = [token for row in tokens if isinstance(row, list | tuple) for token in row]
    if not single and (
        not all(isinstance(row, list | tuple) for row in tokens)
        or not all(isinstance(t, str) for t in nested)
    ):
        raise ViewError("tokens: expected strings, or lists of strings; use the task's token_labels")
    rows: list[Sequence[str]] = [tokens] if single else list(tokens)  # type: ignore[list-item]
    numbers = [np.asarray(row, dtype=np.float64) for row in ([values] if single else values)]
    shapes = [row.shape for row in numbers]
    if shapes != [(len(row),) for row in rows]:
        raise ViewError(
            f"values: expected one number a token, so {[len(row) for row in rows]} numbers, got shapes {shapes}"
        )
    finite = np.concatenate([row[np.isfinite(row)] for row in numbers])
    if not signed and (finite < 0).any():
        raise ViewError(f"{label}: expected numbers from 0 on, got {finite.min():g}")
    if limit is None:
        limit = symmetric_limit(numbers)
    elif label == "accuracy" and (finite > 1).any():
        raise ViewError(f"accuracy: expected numbers from 0 to 1, got {finite.max():g}")
    elif not 0 < limit < np.inf:
        raise ViewError(f"limit: expected a positive number, got {limit}")
    picture = {
        "kind": "tokens",
        "title": visible_token(title) if title else "",
        "label": visible_token(label),
        "signed": signed,
        "limit": float(limit),
        "beyond": beyond(numbers, limit),
        "rows": [
            {
                "tokens": [visible_token(token) for token in row],
                "values": [float(f"{value:.6g}") if np.isfinite(value) else None for value in own],
            }
            for row, own in zip(rows, numbers, strict=True)
        ],
    }
    return View(title, [picture])
