"""Attention of any checkpoint in the browser, drawn by CircuitsVis: one map, all heads, or maps side by side.

Every map is painted when the page opens; CircuitsVis draws over it what comes on the screen, unless it has more than
10,000 cells. Cost: a map of 32 × 32 adds 6 kB to a page; a page holds CircuitsVis's script once. For a paper use
`mechplateau.views.draw_map`, for all steps of a run the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mechplateau.views._payload import encode_floats
from mechplateau.views.data import ViewError
from mechplateau.views.embed import View
from mechplateau.views.maps import beyond, symmetric_limit
from mechplateau.views.outline import outline
from mechplateau.views.text import visible_token

Outlines = Mapping[str, Any]
"""Masks bool `[query, key]` by name, such as `{"Ω": target.mask}`; each is outlined on the map."""


def attention_pattern(
    pattern: Any,
    tokens: Sequence[str],
    *,
    title: str = "",
    outlines: Outlines | None = None,
    limit: float | None = None,
) -> View:
    """One attention map.

    Args:
        pattern: `[query, key]`, signed or not, array or tensor; NaN and infinities are shown as undefined.
        tokens: as many as positions.
        title: for people.
        outlines: masks to outline.
        limit: the color scale goes from −limit to +limit; None: from the data.

    Raises:
        ViewError: shapes differ, or no token.
    """
    return attention_phases({"": pattern}, tokens, title=title, outlines=outlines, limit=limit)


def attention_phases(
    patterns: Mapping[str, Any],
    tokens: Sequence[str],
    *,
    title: str = "",
    outlines: Outlines | None = None,
    limit: float | None = None,
) -> View:
    """Maps side by side on one scale: the same head before, during and after the plateau.

    Args:
        patterns: `[query, key]` by name, in the order shown, such as `{"before": …, "during": …, "after": …}`.
        tokens: as many as positions.
        title: for people.
        outlines: masks to outline on every map.
        limit: the color scale goes from −limit to +limit; None: from all maps.

    Raises:
        ViewError: shapes differ, or no map or token.
    """
    maps = {name: as_array(pattern, 2, "[query, key]") for name, pattern in patterns.items()}
    return View(title, [_picture("maps", title, maps, tokens, outlines, limit)])


def attention_heads(
    pattern: Any,
    tokens: Sequence[str],
    *,
    names: Sequence[str] | None = None,
    title: str = "",
    outlines: Outlines | None = None,
    limit: float | None = None,
) -> View:
    """All heads small, one of them large: choose by click or keyboard.

    Args:
        pattern: `[head, query, key]`; heads of several layers can be stacked.
        tokens: as many as positions.
        names: one a head, such as `L0H1`; None: head 0, head 1 ….
        title: for people.
        outlines: masks to outline on every map.
        limit: the color scale goes from −limit to +limit; None: from all heads.

    Raises:
        ViewError: shapes differ, or no head or token.
    """
    heads = as_array(pattern, 3, "[head, query, key]")
    names = [f"head {head}" for head in range(len(heads))] if names is None else list(names)
    if len(names) != len(heads) or len(set(names)) != len(names):
        raise ViewError(f"names: expected {len(heads)} different names, one a head, got {names}")
    maps = dict(zip(names, heads, strict=True))
    return View(title, [_picture("heads", title, maps, tokens, outlines, limit)])


def attention_on_target(
    pattern: Any, target: Any, tokens: Sequence[str], *, title: str = "", limit: float | None = None
) -> View:
    """One map compared with Ω: the whole of it, the part on Ω and the part off Ω, with the share of each.

    The share is that of Σ|A| in the rows where Ω has a position, for this one map (the attention progress measure is
    the mean of it over sequences); undefined, and said so, where those rows are all zero or hold a NaN.

    Args:
        pattern: `[query, key]`.
        target: Ω, bool `[query, key]`.
        tokens: as many as positions.
        title: for people.
        limit: as in `attention_pattern`.

    Raises:
        ViewError: shapes differ, or no token.
    """
    values = as_array(pattern, 2, "[query, key]")
    mask = as_array(target, 2, "[query, key]").astype(bool)
    if mask.shape != values.shape:
        raise ViewError(f"target: expected the pattern's shape {values.shape}, got {mask.shape}")
    rows = np.abs(values[mask.any(axis=1)])
    total = float(rows.sum())
    if np.isfinite(total) and total > 0:
        share = float(np.abs(values[mask]).sum()) / total
        on, off = f"on Ω: {share:.1%}", f"off Ω: {1 - share:.1%}"
    else:
        on, off = "on Ω: share undefined", "off Ω: share undefined"
    maps = {"attention": values, on: np.where(mask, values, 0), off: np.where(mask, 0, values)}
    return View(title, [_picture("maps", title, maps, tokens, {"Ω": mask}, limit)])


def as_array(values: Any, ndim: int, shape: str) -> np.ndarray:
    """An array or tensor (of any device and precision) as float32.

    Raises:
        ViewError: it has another number of dimensions.
    """
    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    try:
        array = np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ViewError(f"expected an array {shape}, got {type(values).__name__}") from error
    if array.ndim != ndim:
        raise ViewError(f"expected an array {shape}, got shape {array.shape}")
    return array


def _picture(
    kind: str,
    title: str,
    maps: Mapping[str, np.ndarray],
    tokens: Sequence[str],
    outlines: Outlines | None,
    limit: float | None,
) -> dict[str, Any]:
    if not maps or not tokens:
        raise ViewError(f"expected at least one map and one token, got {len(maps)} and {len(tokens)}")
    n = len(tokens)
    for name, values in maps.items():
        if values.shape != (n, n):
            raise ViewError(
                f"pattern {name!r}: expected {(n, n)} for {n} tokens, got {values.shape}; "
                "give the tokens that the model sees, one a position"
            )
    masks = {name: as_array(mask, 2, "[query, key]").astype(bool) for name, mask in (outlines or {}).items()}
    for name, mask in masks.items():
        if mask.shape != (n, n):
            raise ViewError(f"outlines[{name!r}]: expected {(n, n)} as the maps, got {mask.shape}")
    if isinstance(tokens, str) or not all(isinstance(token, str) for token in tokens):
        raise ViewError("tokens: expected a list of strings, one a position; use the task's token_labels")
    if limit is not None and not 0 < limit < np.inf:
        raise ViewError(f"limit: expected a positive number, got {limit}")
    # Above the diagonal a causal map holds nothing, and CircuitsVis paints it grey; whatever is there is shown.
    causal = n > 1 and not any(np.triu(values, 1).any() for values in maps.values())
    return {
        "kind": kind,
        "title": visible_token(title) if title else "",
        "tokens": [visible_token(token) for token in tokens],
        "limit": (limit := symmetric_limit(list(maps.values())) if limit is None else float(limit)),
        "beyond": beyond(list(maps.values()), limit),
        "causal": causal,
        "maps": [
            {"name": visible_token(name) if name else "", "data": encode_floats(values)}
            for name, values in maps.items()
        ],
        "outlines": [
            {"name": visible_token(name), "segments": outline(mask)} for name, mask in masks.items()
        ],
    }
