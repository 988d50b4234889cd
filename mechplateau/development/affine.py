"""Over checkpoints: is λ̂ nothing but the loss?

λ̂ = nβ(E[L] − L*). Where chains leave the neighborhood, E[L] is the same at every checkpoint, and λ̂ is then an affine
function of L* with slope −nβ: it says nothing that the loss does not. The published regression curves are of this
kind for their first 60,000 steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mechplateau.errors import UserError

R_LIMIT = 0.999
SLOPE_TOLERANCE = 0.05


@dataclass(frozen=True)
class AffineCheck:
    """λ̂ on L* over checkpoints.

    Attributes:
        r: Pearson's correlation; None with fewer than three checkpoints, or where one of the two is constant.
        slope: of the least-squares line, λ̂ per unit of loss; None as r.
        n_beta: nβ.
        checkpoints: how many were used.
        saturated: |r| > 0.999 and the slope within 5 % of −nβ; None where r is None.
    """

    r: float | None
    slope: float | None
    n_beta: float
    checkpoints: int
    saturated: bool | None


def affine_check(llcs: Sequence[float], losses: Sequence[float], n_beta: float) -> AffineCheck:
    """Check whether λ̂ is an affine function of the loss with slope −nβ.

    Args:
        llcs: λ̂ of each checkpoint; those that are not finite are left out.
        losses: L(w*) of each.
        n_beta: nβ, the same at all.

    Raises:
        UserError: different numbers of both, or nβ not above 0.
    """
    y, x = np.asarray(llcs, dtype=np.float64), np.asarray(losses, dtype=np.float64)
    if y.shape != x.shape or y.ndim != 1:
        raise UserError(f"llcs and losses: expected one of each a checkpoint, got {y.shape} and {x.shape}")
    if not n_beta > 0:
        raise UserError(f"n_beta: expected a number above 0, got {n_beta}")
    use = np.isfinite(x) & np.isfinite(y)
    x, y = x[use], y[use]
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return AffineCheck(None, None, float(n_beta), len(x), None)
    r = float(np.corrcoef(x, y)[0, 1])
    slope = float(np.polyfit(x, y, 1)[0])
    saturated = abs(r) > R_LIMIT and abs(slope / -n_beta - 1) < SLOPE_TOLERANCE
    return AffineCheck(r, slope, float(n_beta), len(x), saturated)
