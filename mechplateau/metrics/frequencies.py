"""Waves over the numbers modulo p: how much of a curve is a wave of one frequency, and at which phase.

At frequency q, with θ = 2π q s / p, a curve y(s) is fitted by least squares, over the residues s where it is known:

    y(s) ≈ mean y + a (cos θ − mean cos θ) + b (sin θ − mean sin θ)
    share = Σ_s (fit − mean y)² / Σ_s (y − mean y)²          phase = atan2(b, a), so that the fit peaks at θ = phase

Frequencies are 1 … p // 2. Where all residues are known and p is odd, shares are the power spectrum and sum to 1. Of
noise each is 1 / n in the mean, n = (p − 1) / 2, and the largest is (1 + 1/2 + … + 1/n) / n: 0.34 for p = 17.

Undefined, as NaN: a curve that is constant (its variance is rounding) or NaN, or known at fewer than 4 residues.
Plain tensors in, float64 out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

_ROUNDING = 1e-12
"""Of a curve's mean square: variance below it is float32's rounding."""
_FEWEST = 4


@dataclass(frozen=True)
class Waves:
    """Fits of curves at every frequency.

    Attributes:
        shares: of the curve's variance, `[frequency, unit]`.
        cosines, sines: the coefficients a and b, `[frequency, unit]`.
        centers: mean cos θ and mean sin θ over the known residues, `[frequency, 2]`.
        means: mean of the curve over the known residues, `[unit]`.
        p: residues.
    """

    shares: Float[Tensor, "frequency unit"]
    cosines: Float[Tensor, "frequency unit"]
    sines: Float[Tensor, "frequency unit"]
    centers: Float[Tensor, "frequency 2"]
    means: Float[Tensor, " unit"]
    p: int

    @property
    def strongest(self) -> Int[Tensor, " unit"]:
        """The frequency of the largest share; 0 where shares are undefined."""
        found = self.shares.nan_to_num(-1.0).argmax(dim=0) + 1
        return torch.where(self.shares.isnan().any(dim=0), 0, found)

    def phases(self, frequencies: Int[Tensor, " unit"]) -> Float[Tensor, " unit"]:
        """Of the fit of each unit at its frequency, in radians; NaN at frequency 0, or without a wave."""
        a, b = self._at(frequencies)
        known = (frequencies > 0) & ((a != 0) | (b != 0))
        return torch.where(known, torch.atan2(b, a), torch.nan)

    def parts(self, frequencies: Int[Tensor, " unit"]) -> Float[Tensor, "residue unit"]:
        """The fit of each unit at its frequency minus its mean, at all p residues; 0 at frequency 0."""
        a, b = self._at(frequencies)
        at = (frequencies - 1).clamp(min=0)
        angles = (
            2 * math.pi * torch.arange(self.p, dtype=torch.float64)[:, None] * frequencies.double() / self.p
        )
        centers = self.centers[at]
        wave = a * (angles.cos() - centers[:, 0]) + b * (angles.sin() - centers[:, 1])
        return torch.where(frequencies > 0, wave, 0.0)

    def _at(self, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        at = (frequencies - 1).clamp(min=0)[None]
        return self.cosines.gather(0, at)[0], self.sines.gather(0, at)[0]


def mean_by_residue(
    values: Float[Tensor, "row unit"], residues: Int[Tensor, " row"], p: int
) -> Float[Tensor, "residue unit"]:
    """The mean of the rows of each residue; NaN for a residue without one."""
    sums = torch.zeros(p, values.shape[1], dtype=torch.float64)
    sums.index_add_(0, residues, values.double())
    counts = torch.bincount(residues, minlength=p).double()
    return sums / torch.where(counts > 0, counts, torch.nan)[:, None]


def waves(curves: Float[Tensor, "residue unit"]) -> Waves:
    """Fit every curve at every frequency.

    Args:
        curves: a row a residue; a residue whose row is all NaN is not known.
    """
    p = len(curves)
    curves = curves.double()
    known = ~curves.isnan().all(dim=1)
    angles = _angles(p)[:, known]
    design = torch.stack([angles.cos(), angles.sin()], dim=2)
    centers = design.mean(dim=1)
    y = curves[known]
    means = y.mean(dim=0)
    deviations = y - means
    if int(known.sum()) < _FEWEST:
        nothing = torch.full((len(angles), curves.shape[1]), torch.nan, dtype=torch.float64)
        return Waves(nothing, nothing, nothing, centers, means, p)
    design = design - centers[:, None]
    # By the pseudo-inverse: at q = p / 2 the sine is 0 everywhere.
    coefficients = torch.linalg.pinv(design, rtol=1e-9) @ deviations
    explained = (design @ coefficients).square().sum(dim=1)
    total = deviations.square().sum(dim=0)
    total = torch.where(total > _ROUNDING * y.square().sum(dim=0), total, torch.nan)
    return Waves(explained / total, coefficients[:, 0], coefficients[:, 1], centers, means, p)


def spectrum(vectors: Float[Tensor, "residue unit"]) -> Float[Tensor, " frequency"]:
    """The share of all units' variance together at each frequency: of vectors, one a residue (NaN: not known).

    Flat, 1 / n each, where the vectors are random or orthogonal to each other: a flat spectrum says nothing about what
    is made of them.
    """
    found, known = waves(vectors), ~vectors.isnan().all(dim=1)
    y = vectors.double()[known]
    variances = (y - y.mean(dim=0)).square().sum(dim=0)
    weights = torch.where(found.shares.isnan(), 0.0, variances)
    total = weights.sum(dim=1)
    return (found.shares.nan_to_num(0.0) * weights).sum(dim=1) / torch.where(total > 0, total, torch.nan)


def term_phases(
    values: Float[Tensor, "row unit"],
    terms: Int[Tensor, "row term"],
    frequencies: Int[Tensor, " unit"],
    p: int,
) -> Float[Tensor, " unit"]:
    """The phase of each unit as a sum of the same wave of every term: the least-squares fit

        value ≈ m + a Σ_j cos(2π q t_j / p) + b Σ_j sin(2π q t_j / p),     phase = atan2(b, a)

    Args:
        values: a row an example.
        terms: the numbers t_j.
        frequencies: q of each unit; 0: none, whose phase is NaN.
        p: modulus.
    """
    phases = torch.full((values.shape[1],), torch.nan, dtype=torch.float64)
    centered = values.double() - values.double().mean(dim=0)
    for q in frequencies.unique().tolist():
        if q == 0:
            continue
        angles = 2 * math.pi * q / p * terms.double()
        design = torch.stack([angles.cos().sum(dim=1), angles.sin().sum(dim=1)], dim=1)
        design = design - design.mean(dim=0)
        chosen = frequencies == q
        a, b = torch.linalg.pinv(design, rtol=1e-9) @ centered[:, chosen]
        phases[chosen] = torch.where((a != 0) | (b != 0), torch.atan2(b, a), torch.nan)
    return phases


def term_products(terms: Int[Tensor, "row term"], frequency: int, p: int) -> Float[Tensor, "row product"]:
    """All products of 1, cos θ_j and sin θ_j, one factor a term, θ_j = 2π q t_j / p, but for that of ones: 3^k − 1 of k
    terms. They span the waves of single terms, of the sum and of every difference at that frequency.
    """
    angles = 2 * math.pi * frequency / p * terms.double()
    found = torch.ones(len(terms), 1, dtype=torch.float64)
    for angle in angles.T:
        factors = torch.stack([torch.ones_like(angle), angle.cos(), angle.sin()], dim=1)
        found = (found[:, :, None] * factors[:, None]).flatten(1)
    return found[:, 1:]


def circular_mean(angles: Float[Tensor, " unit"]) -> tuple[float | None, float | None]:
    """Of the mean of e^{i angle}: its length R, and its part along 0 (the mean cosine). NaN angles are left out; None
    without any other.

    R is 1 where all angles are equal, and about 0.89 / √n of n angles at random; the part along 0 is 1 where all are 0.
    """
    known = angles[~angles.isnan()]
    if not len(known):
        return None, None
    cosine, sine = float(known.cos().mean()), float(known.sin().mean())
    return math.hypot(cosine, sine), cosine


def sum_share(logits: Float[Tensor, "row residue"], sums: Int[Tensor, " row"]) -> float | None:
    """The share of the logits' variance over answers c that is one even function of (sum − c):

        R² of the least-squares fit of  logit_c − mean_c logit  by  Σ_q w_q cos(2π q (s − c) / p),

    one w_q for all examples. None where logits do not differ, or are not numbers.

    Every model that gives the right answer alike for all sums has a high share, whatever it does inside: a table of
    answers has 1. It says what comes out, not how it is made.
    """
    p = logits.shape[1]
    centered = logits.double() - logits.double().mean(dim=1, keepdim=True)
    residues = torch.arange(p)
    shifts = (sums[:, None] - residues) % p
    total = float(centered.square().sum())
    if not total > _ROUNDING * float(logits.double().square().sum()):
        return None
    # Cosines of all frequencies are all even functions: their fit is the mean over s − c and c − s.
    by_shift = mean_by_residue(centered.reshape(-1, 1), shifts.reshape(-1), p)[:, 0]
    even = (by_shift + by_shift[-residues % p]) / 2
    explained = float(even[shifts].square().sum())
    return explained / total


def _angles(p: int) -> Float[Tensor, "frequency residue"]:
    q = torch.arange(1, p // 2 + 1, dtype=torch.float64)[:, None]
    return 2 * math.pi * q * torch.arange(p, dtype=torch.float64) / p


__all__ = [
    "Waves",
    "circular_mean",
    "mean_by_residue",
    "spectrum",
    "sum_share",
    "term_phases",
    "term_products",
    "waves",
]
