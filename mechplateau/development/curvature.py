"""Curvature of the loss at given weights: the largest eigenvalues of the Hessian, and its trace.

Hessian-vector products are two backward passes a batch; eigenvalues come from Lanczos iteration (ARPACK, through
scipy), the trace from Hutchinson's estimator,

    tr H ≈ mean over probes of vᵀ H v,      v random signs.

Cost: about 20 to 60 products for the eigenvalues, one a probe for the trace. Memory: about 20 vectors of the size of
the weights, on the CPU, in float64. curvlinops has the same products but wants a model and a loss of `(input,
target)` pairs and brings five more packages. An operation that is marked `once_differentiable` gives wrong second
derivatives silently, in torch itself.

Source: Pearlmutter 1994 (products), Lehoucq et al. 1998 (ARPACK), Hutchinson 1989 (trace).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from mechplateau.development.data import Batches, as_batches, moved, seed_of
from mechplateau.development.weights import Losses, Model, Parts, WeightedLoss
from mechplateau.errors import UserError

_PROBES, _START = 3, 4
_DENSE = 32
"""Up to so many weights the whole matrix is made, one product a column: Lanczos would need more of them."""


@dataclass(frozen=True, eq=False)
class Curvature:
    """The Hessian of the mean loss over the batches, in loss per squared weight.

    Attributes:
        eigenvalues: the largest ones (algebraically), in falling order.
        trace: mean over probes.
        trace_error: standard error of that mean; None with fewer than two probes.
        parameters: how many weights it is over.
        probes: each probe's vᵀHv.
    """

    eigenvalues: tuple[float, ...]
    trace: float | None
    trace_error: float | None
    parameters: int
    probes: tuple[float, ...] = field(repr=False)


def hessian(
    model: Model,
    losses: Losses,
    data: Batches | Sequence[Any] | None,
    *,
    top: int = 3,
    probes: int = 10,
    batches: int = 1,
    parts: Parts | None = None,
    tolerance: float = 1e-3,
    seed: int = 0,
) -> Curvature:
    """Measure the curvature at the model's weights.

    Args:
        model, losses, data, parts: as for `sample`.
        top: how many eigenvalues; 0: none.
        probes: random vectors for the trace; 0: none.
        batches: the loss is the mean over this many batches, the first that a chain would see.
        tolerance: relative accuracy of the eigenvalues.
        seed: of the probes and of the first Lanczos vector.

    Raises:
        UserError: counts that make no sense; an operation of the model has no second derivative.
    """
    point = WeightedLoss(model, losses, parts)
    if top < 0 or probes < 0 or batches < 1 or top > point.count:
        raise UserError(
            f"top, probes and batches: expected 0 to {point.count} eigenvalues, at least 0 probes and 1 batch, "
            f"got {top}, {probes} and {batches}"
        )
    source = as_batches(data)
    # Fused attention has no second derivative; torch's plain one has.
    with point.quiet(), sdpa_kernel(SDPBackend.MATH):
        product = _Product(point, [moved(source.batch(step), point.device) for step in range(batches)])
        values = _largest(product, top, tolerance, seed) if top else ()
        signs = torch.Generator().manual_seed(seed_of(seed, _PROBES))
        quadratic = []
        for _ in range(probes):
            probe = (torch.randint(0, 2, (point.count,), generator=signs) * 2 - 1).double()
            quadratic.append(float(probe @ product(probe)))
    return Curvature(
        eigenvalues=values,
        trace=float(np.mean(quadratic)) if quadratic else None,
        trace_error=float(np.std(quadratic, ddof=1) / np.sqrt(probes)) if probes > 1 else None,
        parameters=point.count,
        probes=tuple(quadratic),
    )


class _Product:
    """v → H v over the chosen weights, as float64 vectors on the CPU."""

    def __init__(self, point: WeightedLoss, batches: Sequence[Any]):
        self.size = point.count
        self._point = point
        self._batches = batches

    def __call__(self, vector: Tensor) -> Tensor:
        point = self._point
        pieces = self._spread(vector)
        total = torch.zeros(self.size, dtype=torch.float64)
        for batch in self._batches:
            leaves = [tensor.detach().requires_grad_() for tensor in point.start]
            try:
                second = self._second(leaves, pieces, batch)
            except RuntimeError as error:
                raise UserError(
                    f"model: an operation of it has no second derivative ({str(error).splitlines()[0]}); "
                    "use the plain reference of that operation for curvature"
                ) from error
            if second is None:
                continue  # a loss that is linear in the weights
            total += self._gather(second)
        return total / len(self._batches)

    def _second(self, leaves: list[Tensor], along: list[Tensor], batch: Any) -> Sequence[Tensor] | None:
        with torch.enable_grad():
            loss = self._point.loss(leaves, batch)
            first = torch.autograd.grad(
                loss, leaves, create_graph=True, allow_unused=True, materialize_grads=True
            )
            slope = torch.stack([(g * v).sum() for g, v in zip(first, along, strict=True)]).sum()
            if not slope.requires_grad:
                return None
            return torch.autograd.grad(slope, leaves, allow_unused=True, materialize_grads=True)

    def _spread(self, vector: Tensor) -> list[Tensor]:
        pieces, place = [], 0
        for tensor, mask in zip(self._point.start, self._point.masks, strict=True):
            piece = torch.zeros_like(tensor)
            count = tensor.numel() if mask is None else int(mask.sum())
            own = vector[place : place + count].to(tensor.device, tensor.dtype)
            if mask is None:
                piece.copy_(own.view_as(piece))
            else:
                piece[mask] = own
            pieces.append(piece)
            place += count
        return pieces

    def _gather(self, tensors: Sequence[Tensor]) -> Tensor:
        chosen = [
            (tensor if mask is None else tensor[mask]).reshape(-1).double().cpu()
            for tensor, mask in zip(tensors, self._point.masks, strict=True)
        ]
        return torch.cat(chosen)


def _largest(product: _Product, top: int, tolerance: float, seed: int) -> tuple[float, ...]:
    if product.size <= max(_DENSE, top + 1):
        matrix = torch.stack([product(column) for column in torch.eye(product.size, dtype=torch.float64)])
        values = torch.linalg.eigvalsh((matrix + matrix.T) / 2).numpy()
    else:
        from scipy.sparse.linalg import LinearOperator, eigsh

        operator = LinearOperator(
            (product.size, product.size),
            matvec=lambda vector: product(torch.from_numpy(np.asarray(vector).reshape(-1))).numpy(),
            dtype=np.float64,
        )
        first = np.random.default_rng(seed_of(seed, _START)).standard_normal(product.size)
        if not operator.matvec(
            first
        ).any():  # flat in every direction: a random vector would show another one
            return (0.0,) * top
        values = eigsh(operator, k=top, which="LA", v0=first, tol=tolerance, return_eigenvectors=False)
    return tuple(float(value) for value in np.sort(values)[::-1][:top])
