"""Muon on the blocks' matrices, AdamW on everything else, as one optimizer.

torch's Muon takes matrices only, while TransformerLens keeps attention's weights apart by head. Each is
given to Muon as the one matrix it stands for, `[out, in]` as in `nn.Linear` (the orientation decides Muon's step: its
rate is multiplied by √max(1, out/in)): W_Q, W_K, W_V `[heads · d_head, d_model]`, W_O `[d_model, heads · d_head]`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from mechplateau.config import TrainingConfig

_MATRICES = ("W_Q", "W_K", "W_V", "W_O", "W_in", "W_out")


def is_muon_matrix(name: str) -> bool:
    """Whether Muon trains this parameter: a matrix of a block's attention or MLP."""
    return name.startswith("blocks.") and name.rpartition(".")[2] in _MATRICES


def as_linear_weight(name: str, tensor: Tensor) -> Tensor:
    """The `[out, in]` matrix that a parameter of a block stands for; heads are merged."""
    kind = name.rpartition(".")[2]
    if kind == "W_O":  # [head, d_head, d_model]
        return tensor.flatten(0, 1).T
    if tensor.dim() == 3:  # [head, d_model, d_head]
        return tensor.transpose(1, 2).flatten(0, 1)
    return tensor.T


def from_linear_weight(name: str, matrix: Tensor, like: Tensor) -> Tensor:
    """The inverse of `as_linear_weight`."""
    kind = name.rpartition(".")[2]
    if kind == "W_O":
        return matrix.T.reshape(like.shape)
    if like.dim() == 3:
        heads, d_model, d_head = like.shape
        return matrix.reshape(heads, d_head, d_model).transpose(1, 2)
    return matrix.T


class MuonAndAdamW(torch.optim.Optimizer):
    """torch's `Muon` on the blocks' matrices and `AdamW` on the rest.

    Args:
        named: the trainable parameters by TransformerLens's names.
        config: `muon_lr`, `muon_momentum`, `weight_decay` for Muon; `lr`, `betas` for AdamW, without decay.
    """

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], config: TrainingConfig):
        named = list(named)
        # Gradients of what is left untrained are forgotten too: they would pile up and count in a clipped norm.
        self._with_gradients = [p for _, p in named]
        named = [(n, p) for n, p in named if config.muon_ln_final or not n.startswith("ln_final.")]
        self._matrices = [(name, p) for name, p in named if is_muon_matrix(name)]
        rest = [p for name, p in named if not is_muon_matrix(name)]
        self._shadows = [
            nn.Parameter(as_linear_weight(name, p.detach()).contiguous()) for name, p in self._matrices
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
                torch.optim.AdamW(rest, lr=config.lr, betas=config.betas, weight_decay=0.0, fused=True)
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
        for (name, parameter), shadow in zip(self._matrices, self._shadows, strict=True):
            # The parameter is the truth: an initialization or a loaded checkpoint may have changed it.
            shadow.copy_(as_linear_weight(name, parameter))
            shadow.grad = (
                None if parameter.grad is None else as_linear_weight(name, parameter.grad).contiguous()
            )
        for part in self._parts:
            part.step()
        for (name, parameter), shadow in zip(self._matrices, self._shadows, strict=True):
            if shadow.grad is not None:
                parameter.copy_(from_linear_weight(name, shadow, parameter))

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
