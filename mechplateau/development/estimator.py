"""The local learning coefficient from losses along chains, with all that is needed to judge it.

    λ̂(w*) = nβ (E[L(w)] − L(w*))

E is the mean over all draws after the burn-in, of all chains that were not lost. The paired estimate subtracts the
loss of the same batch at w* instead, draw by draw, which removes the noise of the batches. A negative λ̂ is returned
as it is: away from a minimum, chains slide downhill.

Source: Lau et al. 2023 (arXiv 2308.12108). What is reported besides λ̂ is ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mechplateau.development.traces import Sampling, Trace
from mechplateau.development.verdicts import Evidence, judge
from mechplateau.errors import UserError


@dataclass(frozen=True, eq=False)
class Estimate:
    """One learning coefficient. What is undefined is None. λ̂ has no unit; losses are in the loss's own.

    Attributes:
        llc: λ̂, over the chains that were not lost.
        paired: λ̂ with the same batches' loss at w* subtracted; None where that was not taken.
        mean_loss: E[L], over the draws after the burn-in.
        loss: L(w*).
        chain_llcs: each chain's λ̂; None for a lost one.
        chain_sd: standard deviation of those (n − 1); None for a single chain.
        first_half, second_half: λ̂ over halves of the draws (paired, where there is that).
        distance: mean ‖w − w*‖ / ‖w*‖ over the chosen weights; None where w* is 0 or it was not measured.
        trivial_loss: the loss of a model that does not look at its input; None: not said; inf: there is none.
        doubled_llc: λ̂ at 2nβ, all else equal (paired, where there is that); None where it was not sampled.
        elasticity: log₂(λ̂(2nβ)/λ̂(nβ)): 0 for a local estimate, 1 where E[L] no longer depends on nβ; None where not
            sampled, or where one of the two is not positive.
        h_max: the largest eigenvalue of the Hessian at w*; None where it was not measured.
        stability: ε(nβ·h_max + γ); chains are unstable from 4 on and a third too high at 1; None as h_max.
        lost: chains that went to infinity, left out of everything else.
        n_beta: nβ.
        n: rows of the data set that nβ is about; None: not said.
        draws, burn_in: steps a chain that count, and that do not.
        verdict: `"chain lost"`, `"step too large"`, `"saturated"`, `"sliding"`, `"local"` or `"undetermined"`.
        reason: the number behind the verdict, and what to try next.
        losses: `[chain, step]`, burn-in included.
        distances: `[chain, step]`, ‖w − w*‖; None where not measured.
        sampling: the settings; None where losses came from elsewhere.
    """

    llc: float
    paired: float | None
    mean_loss: float
    loss: float
    chain_llcs: tuple[float | None, ...]
    chain_sd: float | None
    first_half: float | None
    second_half: float | None
    distance: float | None
    trivial_loss: float | None
    doubled_llc: float | None
    elasticity: float | None
    h_max: float | None
    stability: float | None
    lost: tuple[int, ...]
    n_beta: float
    n: int | None
    draws: int
    burn_in: int
    verdict: str
    reason: str
    losses: np.ndarray = field(repr=False)
    distances: np.ndarray | None = field(repr=False)
    sampling: Sampling | None

    @property
    def running(self) -> np.ndarray:
        """`[chain, draw]`: λ̂ of each chain over its draws so far, for the plot of traces; NaN for a lost one."""
        kept = self.losses[:, self.burn_in :]
        return self.n_beta * (np.cumsum(kept, axis=1) / np.arange(1, self.draws + 1) - self.loss)

    def row(self) -> dict[str, Any]:
        """The single numbers, for a table, in the order of `COLUMNS`; lost chains by their number."""
        values = {name: getattr(self, name) for name in COLUMNS if name in self.__dataclass_fields__}
        chosen = {} if self.sampling is None else {name: getattr(self.sampling, name) for name in _SETTINGS}
        return {**values, "lost": len(self.lost), **chosen}


_SETTINGS = ("step_size", "localization", "chains", "seed")
COLUMNS = (
    *(
        "llc",
        "paired",
        "mean_loss",
        "loss",
        "chain_sd",
        "first_half",
        "second_half",
        "distance",
        "trivial_loss",
    ),
    *(
        "doubled_llc",
        "elasticity",
        "h_max",
        "stability",
        "n_beta",
        "n",
        "draws",
        "burn_in",
        "verdict",
        "reason",
    ),
    *("lost", *_SETTINGS),
)
"""The numbers of an estimate as columns of a table."""


def estimate(
    losses: np.ndarray,
    loss: float,
    n_beta: float,
    *,
    burn_in: int = 0,
    at_start: np.ndarray | None = None,
    distances: np.ndarray | None = None,
    norm: float | None = None,
    trivial_loss: float | None = None,
    doubled_llc: float | None = None,
    doubled_lost: bool = False,
    h_max: float | None = None,
    stability: float | None = None,
    n: int | None = None,
    sampling: Sampling | None = None,
) -> Estimate:
    """The estimate from losses that were sampled already, by this package or by another.

    Args:
        losses: `[chain, step]` or `[step]`, burn-in included.
        loss: L(w*).
        n_beta: nβ of the sampling.
        burn_in: steps at the beginning that are left out.
        at_start: `[step]` or `[chain, step]`, L_m(w*) of the same batches.
        distances: `[chain, step]`, ‖w − w*‖.
        norm: ‖w*‖.
        doubled_lost: all chains at 2nβ went to infinity.
        trivial_loss, doubled_llc, h_max, stability, n, sampling: as in `Estimate`.

    Raises:
        UserError: shapes that do not fit, no draw after the burn-in, or no chain that stayed finite.
    """
    if trivial_loss is not None and math.isnan(trivial_loss):
        raise UserError("trivial_loss: expected a number, inf or None, got nan")
    means = _Means.of(losses, loss, n_beta, burn_in, at_start)
    best = means.llc if means.paired is None else means.paired
    distance = None
    if distances is not None and norm:
        distance = float(np.asarray(distances)[means.finite, burn_in:].mean()) / norm
    evidence = Evidence(
        llc=best,
        chain_sd=means.chain_sd,
        halves=means.halves,
        mean_loss=means.mean_loss,
        loss=float(loss),
        trivial_loss=trivial_loss,
        elasticity=_elasticity(best, doubled_llc),
        doubled="lost" if doubled_lost else "sampled" if doubled_llc is not None else "no",
        stability=stability,
        lost=tuple(int(chain) for chain in np.flatnonzero(~means.finite)),
        chains=len(means.finite),
    )
    verdict, reason = judge(evidence)
    return Estimate(
        llc=means.llc,
        paired=means.paired,
        mean_loss=means.mean_loss,
        loss=float(loss),
        chain_llcs=means.by_chain,
        chain_sd=means.chain_sd,
        first_half=None if means.halves is None else means.halves[0],
        second_half=None if means.halves is None else means.halves[1],
        distance=distance,
        trivial_loss=trivial_loss,
        doubled_llc=doubled_llc,
        elasticity=evidence.elasticity,
        h_max=h_max,
        stability=stability,
        lost=evidence.lost,
        n_beta=n_beta,
        n=n,
        draws=means.values.shape[1] - burn_in,
        burn_in=burn_in,
        verdict=verdict,
        reason=reason,
        losses=means.values,
        distances=None if distances is None else np.asarray(distances),
        sampling=sampling,
    )


@dataclass(frozen=True, eq=False)
class _Means:
    """Means over draws after the burn-in and over the chains that stayed finite; fields as in `Estimate`.

    Attributes:
        values: `[chain, step]`, all losses.
        finite: `[chain]`, which chains stayed finite.
        by_chain: each chain's λ̂; None for a lost one.
        halves: λ̂ over halves of the draws; None with a single draw.
    """

    values: np.ndarray
    finite: np.ndarray
    mean_loss: float
    llc: float
    paired: float | None
    by_chain: tuple[float | None, ...]
    chain_sd: float | None
    halves: tuple[float, float] | None

    @classmethod
    def of(
        cls, losses: np.ndarray, loss: float, n_beta: float, burn_in: int, at_start: np.ndarray | None
    ) -> _Means:
        values = np.atleast_2d(np.asarray(losses, dtype=np.float64))
        if values.ndim != 2:
            raise UserError(f"losses: expected [chain, step], got shape {list(values.shape)}")
        chains, steps = values.shape
        if not 0 <= burn_in < steps:
            raise UserError(f"burn_in: expected 0 to {steps - 1}, with {steps} steps sampled, got {burn_in}")
        if not (math.isfinite(loss) and math.isfinite(n_beta) and n_beta > 0):
            raise UserError(
                f"loss and n_beta: expected a finite loss and n_beta above 0, got {loss} and {n_beta}"
            )
        finite: np.ndarray = np.asarray(np.isfinite(values).all(axis=1))
        if not finite.any():
            raise UserError(f"losses: all {chains} chains went to infinity; take a smaller step size")
        kept = values[finite, burn_in:]
        over = kept - loss
        if at_start is not None:
            base = np.asarray(at_start, dtype=np.float64)
            if base.shape not in ((steps,), values.shape):
                raise UserError(
                    f"at_start: expected one loss a step, [{steps}], or {list(values.shape)}, "
                    f"got shape {list(base.shape)}"
                )
            over = kept - np.broadcast_to(base, values.shape)[finite, burn_in:]
        own = n_beta * (kept.mean(axis=1) - loss)
        in_turn = iter(own)
        half = kept.shape[1] // 2
        return cls(
            values=values,
            finite=finite,
            mean_loss=float(kept.mean()),
            llc=n_beta * (float(kept.mean()) - loss),
            paired=None if at_start is None else n_beta * float(over.mean()),
            by_chain=tuple(float(next(in_turn)) if ok else None for ok in finite),
            chain_sd=float(own.std(ddof=1)) if len(own) > 1 else None,
            halves=(n_beta * float(over[:, :half].mean()), n_beta * float(over[:, half:].mean()))
            if half
            else None,
        )


def estimate_from(
    trace: Trace,
    *,
    trivial_loss: float | None = None,
    doubled: Trace | None = None,
    doubled_lost: bool = False,
    h_max: float | None = None,
) -> Estimate:
    """The estimate from a trace of `sample`.

    Args:
        trace: the chains.
        trivial_loss, h_max: as in `Estimate`.
        doubled: chains at 2nβ with all else equal, for the elasticity.
        doubled_lost: there were such chains, and all of them went to infinity.

    Raises:
        UserError: `doubled` was sampled with other settings.
    """
    settings = trace.sampling
    doubled_llc = None
    if doubled is not None:
        if not math.isclose(doubled.sampling.n_beta, 2 * settings.n_beta):
            raise UserError(
                f"doubled: expected chains at n_beta {2 * settings.n_beta:g}, got {doubled.sampling.n_beta:g}"
            )
        second = estimate_from(doubled)
        doubled_llc = second.llc if second.paired is None else second.paired
    return estimate(
        trace.losses,
        trace.loss,
        settings.n_beta,
        burn_in=settings.burn_in,
        at_start=trace.at_start,
        distances=trace.distances,
        norm=trace.norm,
        trivial_loss=trivial_loss,
        doubled_llc=doubled_llc,
        doubled_lost=doubled_lost,
        h_max=h_max,
        stability=None if h_max is None else stability_of(settings, h_max),
        n=trace.n,
        sampling=settings,
    )


def stability_of(sampling: Sampling, h_max: float) -> float:
    """ε(nβ·h_max + γ): the step against the stiffest direction."""
    return sampling.step_size * (sampling.n_beta * h_max + sampling.localization)


def _elasticity(llc: float, doubled_llc: float | None) -> float | None:
    if doubled_llc is None or llc <= 0 or doubled_llc <= 0:
        return None
    return math.log2(doubled_llc / llc)
