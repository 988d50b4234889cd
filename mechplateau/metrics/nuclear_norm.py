"""Completion by the smallest nuclear norm, for many matrices at once.

    exact:      min ‖Z‖_*  with Z = X on the observed cells
    penalized:  min (1/|obs|) Σ_obs (Z − X)² + λ ‖Z‖_*

Both by the alternating direction method of multipliers, in float64:

    Z ← SVT(Y − S, 1/ρ)      singular values lowered by 1/ρ, none below 0
    R ← 1.6 Z − 0.6 Y        a step a little too long (over-relaxation) needs two thirds of the steps
    Y ← R + S, pulled to X on the observed cells (exact: set to X)
    S ← S + R − Y

until Z and Y, and Y and the one before, agree to a tolerance in every cell. A matrix that is done is taken out of the
batch, so that the slowest one does not cost as much as all.

Source: Candès & Recht 2009 (the problem); Boyd et al. 2011, section 3 (the method; 3.4.3 for over-relaxation).
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ._shapes import require_sequences

PENALTIES = (5e-4, 1e-3, 1.5e-3, 1.75e-3, 2e-3, 5e-3, 1e-2)
"""The λ of arXiv 2410.22244."""
_RELAXATION = 1.6


def complete(
    matrices: Float[Tensor, "batch m n"],
    observed: Bool[Tensor, "batch m n"],
    penalty: float | None = None,
    *,
    tolerance: float = 1e-5,
    rho: float = 5.0,
    max_iterations: int = 20_000,
) -> tuple[Float[Tensor, "batch m n"], Bool[Tensor, " batch"]]:
    """The completion of each matrix.

    Args:
        matrices: only observed cells are read; entries of size about 1 (`rho` is for those).
        observed: which cells are given.
        penalty: λ; None: observed cells are matched exactly.
        tolerance: in every cell, in the matrices' unit.
        rho: step of the method; it changes the speed, not the result.
        max_iterations: iterations at most.

    Returns:
        `(completed, converged)`: float64, and whether each matrix came to its tolerance. Where nothing is observed the
        completion is 0.

    Raises:
        ValueError: no batch of matrices, or an empty one; no bool mask, or one of another shape; a penalty that is
            not above 0.
    """
    if matrices.dim() != 3:
        raise ValueError(f"complete: expected matrices [batch, m, n], got shape {list(matrices.shape)}")
    require_sequences("complete", matrices)
    if observed.shape != matrices.shape or observed.dtype != torch.bool:
        raise ValueError(
            f"complete: expected a bool mask of the matrices' shape {list(matrices.shape)}, got {observed.dtype} "
            f"{list(observed.shape)}"
        )
    if penalty is not None and not penalty > 0:
        raise ValueError(f"complete: penalty: expected a number above 0, or None, got {penalty}")
    x = torch.where(observed, matrices.double(), 0.0)
    pull = torch.zeros_like(x)  # how far Y goes from Z + S to X: 1 where it must match
    if penalty is None:
        pull[observed] = 1.0
    else:
        stiffness = 2 / (penalty * observed.sum(dim=(1, 2), keepdim=True).clamp(min=1).double())
        pull = torch.where(observed, stiffness / (stiffness + rho), 0.0)
    result = torch.zeros_like(x)
    converged = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    left = torch.arange(len(x), device=x.device)
    y, s = x.clone(), torch.zeros_like(x)
    for _ in range(max_iterations):
        z = lower_singular_values(y - s, 1 / rho)
        before, relaxed = y, torch.lerp(y, z, _RELAXATION)
        y = torch.lerp(relaxed + s, x, pull)
        s = s + relaxed - y
        change = torch.maximum((z - y).abs(), (y - before).abs()).amax(dim=(1, 2))
        done = change < tolerance
        if bool(done.any()):
            result[left[done]], converged[left[done]] = y[done], True
            more = ~done
            left, x, pull, y, s = left[more], x[more], pull[more], y[more], s[more]
            if len(left) == 0:
                break
    result[left] = y
    return result, converged


def lower_singular_values(matrices: Float[Tensor, "batch m n"], by: float) -> Float[Tensor, "batch m n"]:
    """Each singular value lowered by `by`, none below 0: the proximal map of the nuclear norm.

    From the eigenvectors of the smaller Gram matrix, which for small matrices costs a third of the singular value
    decomposition; the singular values that matter are those above `by`.
    """
    wide = matrices.shape[1] < matrices.shape[2]
    a = matrices.mT if wide else matrices
    squares, vectors = torch.linalg.eigh(a.mT @ a)
    singular = squares.clamp(min=0).sqrt()
    kept = (1 - by / singular.clamp(min=by)).clamp(min=0)
    lowered = a @ (vectors * kept[:, None, :]) @ vectors.mT
    return lowered.mT if wide else lowered


def nuclear_norm(matrices: Float[Tensor, "batch m n"]) -> Float[Tensor, " batch"]:
    """‖Z‖_*, the sum of the singular values of each matrix."""
    return torch.linalg.svdvals(matrices).sum(dim=-1)
