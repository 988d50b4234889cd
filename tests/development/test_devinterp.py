"""Cross-check against devinterp, where it is installed: the step equals its step to the bit."""

from __future__ import annotations

from importlib import metadata

import numpy as np
import pytest
import torch

from mechplateau.development import Sampling, sample

from .small import mlp, rows, squared


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("localization", [0.0, 50.0])
def test_a_chain_equals_devinterps_to_the_bit(localization):
    try:
        version = metadata.version("devinterp")
        from devinterp.optim import SGMCMC
    except ImportError:
        pytest.skip("devinterp is not installed")
    assert version.startswith("2.0")
    settings = Sampling(step_size=1e-3, n_beta=40.0, localization=localization, chains=2, draws=25, seed=3)
    ours = sample(mlp(), squared, rows(), settings, stacked=False, keep_state=True)
    data = rows()
    for chain in range(settings.chains):
        model = mlp()
        optimizer = SGMCMC.sgld(
            model.parameters(),
            lr=settings.step_size,
            nbeta=settings.n_beta,
            localization=settings.localization,
        )
        noise = torch.Generator().manual_seed(settings.chain_seed(chain))
        losses = []
        for step in range(settings.draws):
            optimizer.zero_grad()
            loss = squared(model, data.batch(step)).mean()
            loss.backward()
            losses.append(loss.item())
            optimizer.step(noise_generator=noise)
        np.testing.assert_array_equal(ours.losses[chain], losses)
        for kept, theirs in zip(ours.state.weights, model.parameters(), strict=True):
            assert torch.equal(kept[chain], theirs)
