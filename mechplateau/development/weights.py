"""A loss as a function of some of a model's weights, for one set of weights or for several that are stacked.

The model itself is never written to: weights are put in for the length of a call (`torch.func.functional_call`).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from mechplateau.development.data import moved
from mechplateau.errors import UserError

Model = nn.Module | Mapping[str, Tensor]
"""A module, or parameters by name for a loss that is a plain function of them."""

Losses = Callable[..., Tensor]
"""`losses(model, batch)`, or `losses(model)` without data → a tensor of any shape, whose mean is the loss."""

Parts = Sequence[str | tuple[str, int | None]] | Mapping[str, Tensor]
"""Which weights: names or patterns such as `"blocks.0.attn.*"`, pairs (name, index of the first axis, such as a head),
or masks by name (True: in)."""


class WeightedLoss:
    """The mean loss on a batch as a function of the chosen weights.

    Attributes:
        names: the chosen parameters.
        start: their values w*, detached, of the model's own dtype and device.
        masks: for each, None (all of it) or a bool tensor of its shape.
        is_module: whether the model is a module.
    """

    def __init__(self, model: Model, losses: Losses, parts: Parts | None = None):
        self.is_module = isinstance(model, nn.Module)
        self._model = model
        self._losses = losses
        found = dict(model.named_parameters()) if isinstance(model, nn.Module) else dict(model)
        trained = {
            name: tensor
            for name, tensor in found.items()
            if tensor.is_floating_point() and (tensor.requires_grad or not self.is_module)
        }
        if not trained:
            raise UserError("model: expected at least one parameter that is not frozen, got none")
        chosen = _chosen(trained, set(found), parts)
        self.names = tuple(chosen)
        self.start = tuple(trained[name].detach() for name in chosen)
        self.masks = tuple(
            None if mask is None else mask.to(trained[name].device) for name, mask in chosen.items()
        )
        self._others = {name: tensor.detach() for name, tensor in found.items() if name not in chosen}
        self._wrapped = _Wrapped(model, losses) if isinstance(model, nn.Module) else None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.start[0].device

    @property
    def count(self) -> int:
        """Numbers among the weights that are moved."""
        return sum(
            tensor.numel() if mask is None else int(mask.sum())
            for tensor, mask in zip(self.start, self.masks, strict=True)
        )

    def norm(self) -> float:
        """‖w*‖ over the chosen weights."""
        squares = [
            (tensor if mask is None else tensor[mask]).double().square().sum()
            for tensor, mask in zip(self.start, self.masks, strict=True)
        ]
        return float(torch.stack(squares).sum().sqrt())

    def loss(self, weights: Sequence[Tensor], batch: Any) -> Tensor:
        """The mean loss at these weights, a scalar of at least float32."""
        arguments = () if batch is None else (batch,)
        if self._wrapped is not None:
            named = {f"model.{name}": tensor for name, tensor in zip(self.names, weights, strict=True)}
            losses = functional_call(self._wrapped, named, arguments)
        else:
            losses = self._losses({**self._others, **dict(zip(self.names, weights, strict=True))}, *arguments)
        if not isinstance(losses, Tensor) or not losses.is_floating_point():
            got = losses.dtype if isinstance(losses, Tensor) else type(losses).__name__
            raise UserError(f"losses: expected a tensor of real numbers, whose mean is the loss, got {got}")
        return losses.to(torch.promote_types(losses.dtype, torch.float32)).mean()

    def gradients(
        self, weights: Sequence[Tensor], batch: Any, *, stacked: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Losses and their gradients.

        Args:
            weights: like `start`; with `stacked`, each with a first axis of chains.
            batch: what the losses are of.
            stacked: evaluate all chains in one call (`torch.func.vmap`).

        Returns:
            The loss, `[]` or `[chain]`, and the gradient for each of `weights` in its shape.
        """
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_() for tensor in weights]
            if stacked:
                losses = vmap(lambda *one: self.loss(one, batch))(*leaves)
            else:
                losses = self.loss(leaves, batch)
            gradients = torch.autograd.grad(losses.sum(), leaves, allow_unused=True, materialize_grads=True)
        return losses.detach(), gradients

    @torch.no_grad()
    def loss_at_start(self, batch: Any) -> Tensor:
        """L_m(w*) of one batch, a scalar on the model's device."""
        return self.loss(self.start, batch)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Evaluation mode, and random numbers of the caller's left alone; all as before afterwards.

        Dropout would add noise that is not the sampler's, and running means would drift.
        """
        modules = list(self._model.modules()) if isinstance(self._model, nn.Module) else []
        modes = [module.training for module in modules]
        devices = [self.device] if self.device.type == "cuda" else []
        try:
            if isinstance(self._model, nn.Module):
                self._model.eval()
            with torch.random.fork_rng(devices=devices):
                yield
        finally:
            for module, mode in zip(modules, modes, strict=True):
                module.training = mode

    def on_device(self, batch: Any) -> Any:
        """The batch where the weights are."""
        return moved(batch, self.device)


class _Wrapped(nn.Module):
    """A model and its losses as one module, so that weights can be put in while the losses run."""

    def __init__(self, model: nn.Module, losses: Losses):
        super().__init__()
        self.model = model
        self._losses = losses

    def forward(self, *batch: Any) -> Tensor:
        return self._losses(self.model, *batch)


def _chosen(trained: Mapping[str, Tensor], known: set[str], parts: Parts | None) -> dict[str, Tensor | None]:
    """The chosen parameters in the model's order, each with its mask (None: all of it)."""
    if parts is None:
        return dict.fromkeys(trained)
    if isinstance(parts, str):
        parts = (parts,)
    asked: Iterator[tuple[str, Tensor]]
    if isinstance(parts, Mapping):
        asked = ((name, _checked(name, mask, trained, known)) for name, mask in parts.items())
    else:
        asked = (request for part in parts for request in _asked(part, trained, known))
    masks: dict[str, Tensor] = {}
    for name, mask in asked:
        masks[name] = mask | masks[name] if name in masks else mask
    if not any(bool(mask.any()) for mask in masks.values()):
        raise UserError("parts: expected at least one weight, got none")
    return {name: None if bool(masks[name].all()) else masks[name] for name in trained if name in masks}


def _asked(
    part: str | tuple[str, int | None], trained: Mapping[str, Tensor], known: set[str]
) -> list[tuple[str, Tensor]]:
    """The masks for a name, a pattern, or a name with an index."""
    name, index = (part, None) if isinstance(part, str) else part
    names = fnmatch.filter(trained, name) if isinstance(part, str) else []
    if not names:
        _require(name, trained, known)
        names = [name]
    if index is None:
        return [(own, torch.ones(trained[own].shape, dtype=torch.bool)) for own in names]
    if not 0 <= index < trained[name].shape[0]:
        raise UserError(f"parts: {name} has {trained[name].shape[0]} entries, got index {index}")
    mask = torch.zeros(trained[name].shape, dtype=torch.bool)
    mask[index] = True
    return [(name, mask)]


def _checked(name: str, mask: Tensor, trained: Mapping[str, Tensor], known: set[str]) -> Tensor:
    _require(name, trained, known)
    if mask.shape != trained[name].shape or mask.dtype != torch.bool:
        raise UserError(
            f"parts: {name} needs a mask of bool and shape {list(trained[name].shape)}, "
            f"got {mask.dtype} and {list(mask.shape)}"
        )
    return mask.cpu()


def _require(name: str, trained: Mapping[str, Tensor], known: set[str]) -> None:
    if name in trained:
        return
    if name in known:
        raise UserError(f"parts: {name} is frozen, so no chain can move it; unfreeze it or leave it out")
    shown = ", ".join(list(trained)[:6])
    raise UserError(f"parts: no such weights {name!r}; expected some of {shown}{', …' * (len(trained) > 6)}")
