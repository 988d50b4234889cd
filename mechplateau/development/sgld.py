"""Stochastic gradient Langevin dynamics around given weights w*, with a pull back to them.

    w_0 = w*
    w_{s+1} = w_s + (ε/2) [ −nβ ∇L_m(w_s) + γ (w* − w_s) ] + √ε ξ_s,      ξ_s ~ N(0, 1)

L_m is the mean loss on the batch of step s. Draw s is L_m(w_s), so the first draw is w* itself. Weights that are
frozen or outside the chosen parts get neither noise nor pull.

All chains see the same batches, and each has noise of its own: what they differ in is noise alone, and the loss of a
batch at w*, which the paired estimate needs, is computed once for all. Chains side by side (`chains_at_once`) or one
after the other give the same bits; chains that are evaluated in one call (`stacked`) differ from chains that are
evaluated one by one by rounding.

Source: Lau et al. 2023 (arXiv 2308.12108); the step is that of devinterp 2.0.1 (`SGMCMC.sgld`), to the bit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechplateau.development.data import Batches, as_batches
from mechplateau.development.traces import AllChainsLost, ChainState, Sampling, Trace
from mechplateau.development.weights import Losses, Model, Parts, WeightedLoss
from mechplateau.errors import UserError
from mechplateau.progress import Bar, Progress, bars

_STEPS_BETWEEN_LOOKS = 64
"""Whether all chains are lost is looked at this often: a look makes a GPU wait."""


def sgld_step(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    start: Sequence[Tensor],
    generators: Sequence[torch.Generator],
    *,
    step_size: float,
    n_beta: float,
    localization: float,
    masks: Sequence[Tensor | None] | None = None,
) -> Tensor:
    """One step of several chains, in place.

    Args:
        weights: `[chain, …]`, one tensor a parameter.
        gradients: of the mean loss, of the same shapes.
        start: w*, `[…]`, one tensor a parameter.
        generators: one a chain, of the noise.
        step_size, n_beta, localization: ε, nβ, γ.
        masks: for each parameter None or a bool tensor `[…]`: what is not in it stays.

    Returns:
        `[chain]`, ‖w − w*‖² before the step.
    """
    moved = torch.zeros(len(generators), dtype=weights[0].dtype, device=weights[0].device)
    for index, (weight, gradient, center) in enumerate(zip(weights, gradients, start, strict=True)):
        mask = None if masks is None else masks[index]
        away = weight - center
        moved += away.square().reshape(len(away), -1).sum(1)  # a parameter may be one number
        drift = gradient.mul(n_beta)
        if localization > 0:
            drift.add_(away.mul_(localization))
        noise = torch.empty_like(weight)
        for chain, generator in enumerate(generators):
            noise[chain].normal_(generator=generator)
        if mask is not None:
            drift, noise = drift * mask, noise * mask
        weight.add_(drift, alpha=-0.5 * step_size)
        weight.add_(noise, alpha=step_size**0.5)
    return moved


def sample(
    model: Model,
    losses: Losses,
    data: Batches | Sequence[Any] | None,
    sampling: Sampling,
    *,
    parts: Parts | None = None,
    paired: bool = True,
    stacked: bool | None = None,
    chains_at_once: int | None = None,
    keep_state: bool = False,
    same: Trace | None = None,
    progress: Progress | str | None = None,
) -> Trace:
    """Run the chains. The model, its mode, hooks and device, and all generators are as before afterwards.

    Args:
        model: a module, or parameters by name.
        losses: `losses(model, batch)` → a tensor whose mean is the loss; `losses(model)` where `data` is None.
        data: `Rows`, `Fresh`, a list of batches, or None.
        sampling: the settings.
        parts: which weights move; None: all that are not frozen.
        paired: also take each batch's loss at w*.
        stacked: evaluate chains in one call, with `torch.func.vmap`; None: on a GPU, and for parameters by name,
            where the model allows it. On a CPU one by one is as fast or faster for all but the smallest models.
        chains_at_once: how many chains run side by side (memory grows with them); None: all. 1: one after the other.
        keep_state: keep where the chains ended, for `resume`.
        same: another trace from the same w* on the same data with as many steps; its losses at w* are taken over.
        progress: makes a bar of chain steps, as tqdm does (`mechplateau.progress`); "stderr": tqdm's own; None: silent.

    Raises:
        UserError: settings, data or parts that make no sense.
        AllChainsLost: every chain went to infinity.
    """
    point = WeightedLoss(model, losses, parts)
    batches = as_batches(data)
    run = _Run(point, batches, sampling, paired, stacked, chains_at_once or sampling.chains)
    with point.quiet():
        if same is not None and same.at_start is not None and len(same.at_start) == sampling.steps:
            run.at_start = torch.from_numpy(same.at_start)
        loss = mean_loss(point, batches) if same is None else same.loss
        if not math.isfinite(loss):
            raise UserError(f"model: its own loss is {loss}, so no chain can start there")
        total = sampling.chains * sampling.steps
        with closing(bars(progress)(total=total, desc="chain steps")) as bar:
            groups = [run.group(chains, None, 0, sampling.steps, bar) for chains in run.groups()]
    return run.trace(groups, loss, keep_state)


def resume(
    trace: Trace,
    model: Model,
    losses: Losses,
    data: Batches | Sequence[Any] | None,
    draws: int,
    *,
    parts: Parts | None = None,
    stacked: bool | None = None,
    progress: Progress | str | None = None,
) -> Trace:
    """Continue for more draws: the result equals one longer run to the bit.

    Args:
        trace: of `sample(…, keep_state=True)`.
        model, losses, data, parts, stacked: as there.
        draws: how many more.
        progress: makes a bar of chain steps, as tqdm does (`mechplateau.progress`); "stderr": tqdm's own; None: silent.

    Raises:
        UserError: the trace kept no state, or the weights are others.
    """
    if trace.state is None:
        raise UserError("trace: it kept no state to continue from; run sample(…, keep_state=True)")
    if draws < 1:
        raise UserError(f"draws: expected at least 1 more, got {draws}")
    point = WeightedLoss(model, losses, parts)
    shapes = [list(tensor.shape[1:]) for tensor in trace.state.weights]
    if shapes != [list(tensor.shape) for tensor in point.start] or trace.norm != point.norm():
        raise UserError("trace: it belongs to other weights than those of this model and these parts")
    settings = trace.sampling
    done = settings.steps
    run = _Run(point, as_batches(data), settings, trace.at_start is not None, stacked, settings.chains)
    with (
        point.quiet(),
        closing(bars(progress)(total=settings.chains * draws, desc="chain steps")) as bar,
    ):
        group = run.group(range(settings.chains), trace.state, done, draws, bar)
    longer = dataclasses.replace(run, sampling=dataclasses.replace(settings, draws=settings.draws + draws))
    more = longer.trace([group], trace.loss, keep_state=True)
    together = np.concatenate([trace.losses, more.losses], axis=1)
    return dataclasses.replace(
        more,
        losses=_lost_from_then_on(together),
        distances=np.concatenate([trace.distances, more.distances], axis=1),
        at_start=None
        if trace.at_start is None or more.at_start is None
        else np.concatenate([trace.at_start, more.at_start]),
    )


def mean_loss(point: WeightedLoss, batches: Batches) -> float:
    """L(w*), the weighted mean over the baseline's batches."""
    total = weight = 0.0
    for rows, batch in batches.baseline():
        total += rows * float(point.loss_at_start(point.on_device(batch)))
        weight += rows
    return total / weight


@dataclass(frozen=True, eq=False)
class _Group:
    losses: Tensor
    distances: Tensor
    state: ChainState


@dataclass(eq=False)
class _Run:
    """The loop over steps, for one group of chains after the other."""

    point: WeightedLoss
    batches: Batches
    sampling: Sampling
    paired: bool
    stacked: bool | None
    at_once: int
    at_start: Tensor | None = None

    def groups(self) -> Iterator[range]:
        if self.at_once < 1:
            raise UserError(f"chains_at_once: expected at least 1, got {self.at_once}")
        for first in range(0, self.sampling.chains, self.at_once):
            yield range(first, min(first + self.at_once, self.sampling.chains))

    def group(
        self, chains: Sequence[int], state: ChainState | None, first: int, steps: int, bar: Bar
    ) -> _Group:
        """Run these chains for some steps, from w* or from where they were."""
        point, settings, device = self.point, self.sampling, self.point.device
        generators = [torch.Generator(device) for _ in chains]
        if state is None:
            weights = [tensor.repeat(len(chains), *(1 for _ in tensor.shape)) for tensor in point.start]
            for chain, generator in zip(chains, generators, strict=True):
                generator.manual_seed(settings.chain_seed(chain))
        else:
            weights = [tensor.clone() for tensor in state.weights]
            for kept, generator in zip(state.generators, generators, strict=True):
                generator.set_state(kept)
        losses = torch.full((len(chains), steps), math.nan, dtype=_real(point), device=device)
        squares = torch.full_like(losses, math.nan)
        pairing = self.paired and self.at_start is None
        at_start = torch.full((steps,), math.nan, dtype=losses.dtype, device=device) if pairing else None
        for step in range(steps):
            batch = point.on_device(self.batches.batch(first + step))
            if at_start is not None:
                at_start[step] = point.loss_at_start(batch)
            self._step(weights, generators, batch, losses[:, step], squares[:, step])
            if step % _STEPS_BETWEEN_LOOKS == 0 and not bool(losses[:, step].isfinite().any()):
                at_start = None  # not complete; another group takes it
                break
            bar.update(len(chains))
        if at_start is not None:
            self.at_start = at_start
        ended = ChainState(tuple(weights), tuple(generator.get_state() for generator in generators))
        return _Group(losses, squares.sqrt(), ended)

    def _step(
        self,
        weights: list[Tensor],
        generators: list[torch.Generator],
        batch: Any,
        losses: Tensor,
        squares: Tensor,
    ) -> None:
        point = self.point
        if self._stacks(weights, batch):
            values, gradients = point.gradients(weights, batch, stacked=True)
            losses.copy_(values)
            squares.copy_(self._moved(weights, gradients, generators))
            return
        for chain, generator in enumerate(generators):
            own = [tensor[chain] for tensor in weights]
            values, gradients = point.gradients(own, batch, stacked=False)
            losses[chain] = values
            lifted = [gradient[None] for gradient in gradients]
            squares[chain] = self._moved([tensor[None] for tensor in own], lifted, [generator])[0]

    def _moved(
        self, weights: Sequence[Tensor], gradients: Sequence[Tensor], generators: Sequence[torch.Generator]
    ) -> Tensor:
        return sgld_step(
            weights,
            gradients,
            self.point.start,
            generators,
            step_size=self.sampling.step_size,
            n_beta=self.sampling.n_beta,
            localization=self.sampling.localization,
            masks=self.point.masks,
        )

    def _stacks(self, weights: list[Tensor], batch: Any) -> bool:
        """Whether chains are evaluated in one call; found out at the first step where that was left open."""
        if self.stacked is None:
            self.stacked = not self.point.is_module or self.point.device.type == "cuda"
            if self.stacked:
                try:
                    self.point.gradients(weights, batch, stacked=True)
                except (RuntimeError, ValueError, NotImplementedError):
                    self.stacked = False  # an operation that vmap does not know
        return self.stacked

    def trace(self, groups: Sequence[_Group], loss: float, keep_state: bool) -> Trace:
        """The groups' chains together.

        Raises:
            AllChainsLost: no chain is left.
        """
        settings = self.sampling
        losses = _lost_from_then_on(torch.cat([group.losses for group in groups]).double().cpu().numpy())
        if not np.isfinite(losses).all(axis=1).any():
            step = int(np.isfinite(losses).sum(axis=1).max())
            raise AllChainsLost(
                f"all {settings.chains} chains went to infinity, the last at step {step}: the step size "
                f"{settings.step_size:g} is too large for n_beta {settings.n_beta:g}; take a tenth of it"
            )
        state = None
        if keep_state:
            stacks = zip(*(group.state.weights for group in groups), strict=True)
            generators = tuple(kept for group in groups for kept in group.state.generators)
            state = ChainState(tuple(torch.cat(parts) for parts in stacks), generators)
        return Trace(
            losses=losses,
            at_start=None if self.at_start is None else self.at_start.double().cpu().numpy(),
            distances=torch.cat([group.distances for group in groups]).double().cpu().numpy(),
            loss=loss,
            norm=self.point.norm(),
            parameters=self.point.count,
            n=self.batches.n,
            sampling=settings,
            state=state,
        )


def _real(point: WeightedLoss) -> torch.dtype:
    return torch.promote_types(point.start[0].dtype, torch.float32)


def _lost_from_then_on(losses: np.ndarray) -> np.ndarray:
    """NaN from the first value on that is not finite."""
    return np.where(np.logical_and.accumulate(np.isfinite(losses), axis=1), losses, np.nan)
