"""Put named parts of one checkpoint's weights into another of the same model.

For any model: parts are sets of parameter names. `patch_parameters` does the same for a GPT's components one by one,
with scores of its tokens.

Cost: one copy of the model.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

import torch
from torch import nn

from mechplateau.errors import UserError

_Model = TypeVar("_Model", bound=nn.Module)

RELEASED = {
    "att": re.compile(r"blocks\.\d+\.attn\.[Wb]_[QKV]"),
    "mlp": re.compile(r"(?!blocks\.\d+\.(attn|ln1)\.).*"),
}
"""What the released code of arXiv 2410.22244 switches, by its own names: `att` are the weights and biases of Q, K and V
and not the output's; `mlp` is every parameter whose name lacks "attention", so embeddings, LN₂ and read-out too."""


def named_like(model: nn.Module, pattern: re.Pattern[str]) -> tuple[str, ...]:
    """The model's parameters whose whole name the pattern fits."""
    return tuple(name for name, _ in model.named_parameters() if pattern.fullmatch(name))


def switched(recipient: _Model, donor: nn.Module, names: Iterable[str]) -> _Model:
    """A copy of `recipient` with the donor's parameters of these names.

    Args:
        recipient, donor: two checkpoints of one configuration; neither is changed.
        names: parameters; all of them: the copy computes what the donor does.

    Raises:
        UserError: no name, a parameter that one of them has not, or of another shape.
    """
    chosen = tuple(names)
    theirs = dict(donor.named_parameters())
    model = copy.deepcopy(recipient)
    own = dict(model.named_parameters())
    if not chosen:
        raise UserError("names: expected at least one parameter, got none")
    if unknown := [name for name in chosen if name not in own or name not in theirs]:
        raise UserError(
            f"names: expected parameters of both models, got {unknown[0]}; known: {', '.join(own)}"
        )
    with torch.no_grad():
        for name in chosen:
            if own[name].shape != theirs[name].shape:
                raise UserError(
                    f"{name} has shape {list(own[name].shape)} in the recipient and {list(theirs[name].shape)} in the "
                    "donor; expected two checkpoints of one model"
                )
            own[name].copy_(theirs[name])
    return model


def both_ways(
    early: _Model, late: _Model, parts: Mapping[str, Iterable[str]]
) -> dict[tuple[str, str], _Model]:
    """(part, direction) → model, where "late into early" is the early model with the late one's part.

    Args:
        early, late: two checkpoints of one run.
        parts: name → parameters.
    """
    return {
        (part, direction): switched(recipient, donor, names)
        for part, names in ((part, tuple(names)) for part, names in parts.items())
        for direction, recipient, donor in (
            ("late into early", early, late),
            ("early into late", late, early),
        )
    }


__all__ = ["RELEASED", "both_ways", "named_like", "switched"]
