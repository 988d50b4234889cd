"""Muon on the blocks' matrices, AdamW on everything else, as one optimizer.

torch's Muon takes matrices only, while TransformerLens keeps attention's weights apart by head. Each is given to Muon
as one matrix, `[out, in]` as in `nn.Linear` (the orientation decides Muon's step: its rate is
multiplied by √max(1, out/in)): W_Q, W_K, W_V `[heads · d_head, d_model]`, W_O `[d_model, heads · d_head]`. The
model's kind says which parameters these are, and how each becomes a matrix (`Roles.matrices`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from mechplateau.config import TrainingConfig
from mechplateau.models.roles import Roles, matched


def as_linear_weight(axes: str, tensor: Tensor) -> Tensor:
    """A parameter as an `[out, in]` matrix.

    Args:
        axes: how it becomes that, such as "head d_in d_out -> (head d_out) d_in".
        tensor: the parameter.
    """
    return rearrange(tensor, axes)


def from_linear_weight(axes: str, matrix: Tensor, like: Tensor) -> Tensor:
    """The inverse of `as_linear_weight`, for a parameter like that one."""
    there, _, here = axes.partition("->")
    sizes = dict(zip(there.split(), like.shape, strict=True))
    return rearrange(matrix, f"{here} -> {there}", **sizes)


class MuonAndAdamW(torch.optim.Optimizer):
    """torch's `Muon` on the blocks' matrices and `AdamW` on the rest.

    Args:
        named: the trainable parameters by name.
        roles: of the model's kind.
        config: `muon_lr`, `muon_momentum`, `weight_decay` for Muon; `lr`, `betas`, `eps` for AdamW, without decay.
    """

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], roles: Roles, config: TrainingConfig):
        named = list(named)
        # Gradients of what is left untrained are forgotten too: they would pile up and count in a clipped norm.
        self._with_gradients = [p for _, p in named]
        left = () if config.muon_ln_final else matched((name for name, _ in named), roles.final_norm)
        named = [(name, p) for name, p in named if name not in left]
        self._matrices = [(axes, p) for name, p in named if (axes := roles.matrix(name)) is not None]
        rest = [p for name, p in named if roles.matrix(name) is None]
        self._shadows = [
            nn.Parameter(as_linear_weight(axes, p.detach()).contiguous()) for axes, p in self._matrices
        ]
        ratio = config.muon_lr / config.lr
        parts: list[torch.optim.Optimizer] = []
        if self._shadows:
            muon = torch.optim.Muon(
                [{"params": self._shadows, "rate_ratio": ratio}],
                lr=config.muon_lr,
                momentum=config.muon_momentum,
                weight_decay=config.weight_decay,
            )
            parts.append(muon)
        if rest:
            parts.append(
                torch.optim.AdamW(
                    rest, lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=0.0, fused=True
                )
            )
        super().__init__([p for _, p in named], {})
        self._parts = parts
        # The groups whose rates a schedule sets are those of the two optimizers.
        self.param_groups = [group for part in parts for group in part.param_groups]

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self._with_gradients:
            parameter.grad = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for (axes, parameter), shadow in zip(self._matrices, self._shadows, strict=True):
            # The parameter is the truth: an initialization or a loaded checkpoint may have changed it.
            shadow.copy_(as_linear_weight(axes, parameter))
            shadow.grad = (
                None if parameter.grad is None else as_linear_weight(axes, parameter.grad).contiguous()
            )
        for part in self._parts:
            part.step()
        for (axes, parameter), shadow in zip(self._matrices, self._shadows, strict=True):
            if shadow.grad is not None:
                parameter.copy_(from_linear_weight(axes, shadow, parameter))

    def state_dict(self) -> dict[str, Any]:
        """As torch's: the state of all parameters, Muon's first, by their index over all groups."""
        state: dict[int, Any] = {}
        groups: list[dict[str, Any]] = []
        offset = 0
        for part in self._parts:
            own = part.state_dict()
            state |= {offset + index: values for index, values in own["state"].items()}
            groups += own["param_groups"]
            offset += sum(len(group["params"]) for group in own["param_groups"])
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        offset = 0
        groups = list(state_dict["param_groups"])
        for part in self._parts:
            own, groups = groups[: len(part.param_groups)], groups[len(part.param_groups) :]
            size = sum(len(group["params"]) for group in own)
            state = {i - offset: v for i, v in state_dict["state"].items() if offset <= i < offset + size}
            part.load_state_dict({"state": state, "param_groups": own})
            offset += size
        self.param_groups = [group for part in self._parts for group in part.param_groups]
