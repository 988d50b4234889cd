"""Settings of chains, where they are, and what they went through; the chains themselves: `development.sgld`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from mechplateau.development.data import seed_of
from mechplateau.errors import UserError

_NOISE = 0


class AllChainsLost(UserError):
    """No chain stayed finite, so there is nothing to estimate from."""


@dataclass(frozen=True)
class Sampling:
    """Settings of the chains.

    Attributes:
        step_size: ε.
        n_beta: nβ, the inverse temperature times the number of samples.
        localization: γ, the strength of the pull back to w*.
        chains: how many.
        draws: steps a chain that count.
        burn_in: steps a chain before those, which do not.
        seed: of the noise.
    """

    step_size: float
    n_beta: float
    localization: float = 1.0
    chains: int = 4
    draws: int = 200
    burn_in: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("step_size", 0.0), ("n_beta", 0.0)):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > least):
                raise UserError(f"{name}: expected a number above 0, got {value}")
        if not (math.isfinite(self.localization) and self.localization >= 0):
            raise UserError(f"localization: expected a number of at least 0, got {self.localization}")
        for name, least_count in (("chains", 1), ("draws", 1), ("burn_in", 0), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least_count:
                raise UserError(f"{name}: expected a whole number of at least {least_count}, got {value}")

    @property
    def steps(self) -> int:
        """Steps of a chain, burn-in included."""
        return self.burn_in + self.draws

    def chain_seed(self, chain: int) -> int:
        """The seed of a chain's noise."""
        return seed_of(self.seed, _NOISE, chain)


@dataclass(frozen=True, eq=False)
class ChainState:
    """Where the chains are, so that sampling can continue.

    Attributes:
        weights: `[chain, …]`, one tensor a parameter.
        generators: each chain's generator of noise.
    """

    weights: tuple[Tensor, ...]
    generators: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Trace:
    """What the chains went through, burn-in included.

    Attributes:
        losses: `[chain, step]`, L_m(w_s), float64; NaN from the step on at which a chain was no longer finite.
        at_start: `[step]`, L_m(w*) of the same batches; None where that was switched off.
        distances: `[chain, step]`, ‖w_s − w*‖ over the chosen weights.
        loss: L(w*), the mean over the baseline's batches.
        norm: ‖w*‖ over the chosen weights.
        parameters: how many numbers those are.
        n: rows of the data set; None where there is no such number.
        sampling: the settings.
        state: where the chains are; None unless requested.
    """

    losses: np.ndarray
    at_start: np.ndarray | None
    distances: np.ndarray
    loss: float
    norm: float
    parameters: int
    n: int | None
    sampling: Sampling
    state: ChainState | None = None

    @property
    def lost(self) -> tuple[int, ...]:
        """The chains that went to infinity."""
        return tuple(int(chain) for chain in np.flatnonzero(~np.isfinite(self.losses).all(axis=1)))


__all__ = ["AllChainsLost", "ChainState", "Sampling", "Trace"]
