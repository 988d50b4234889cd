"""Attribution patching: exact where the rest is linear, the derivative elsewhere, and compared with the exact sweep."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mechplateau.circuits.editing import run_edited
from mechplateau.circuits.patching import activations
from mechplateau.circuits.scoring import score
from mechplateau.circuits.sweep import patch_sweep
from mechplateau.errors import UserError

from .conftest import make_model, plain_model

ROWS = (3, 5, 6)


def near(seed, by=1e-3):
    """A model and another one whose weights differ a little."""
    recipient, donor = make_model(seed=seed), make_model(seed=seed)
    with torch.no_grad():
        for parameter in donor.parameters():
            parameter += by * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return recipient, donor


@pytest.mark.parametrize("positions", ["each", "all"])
def test_small_changes_are_estimated_exactly(tokens, positions):
    recipient, donor = near(0)
    result = patch_sweep(recipient, donor, tokens, rows=ROWS, positions=positions, method="both")
    for name in ("loss", "logit_difference"):
        exact = result.table[name] - result.recipient[name]
        estimate = result.table[f"{name}_gradient"] - result.recipient[name]
        assert exact.abs().max() > 1e-4
        assert (exact - estimate).abs().max() < 0.02 * exact.abs().max()
        assert result.rank_correlation[name] > 0.95


def test_the_estimate_is_the_derivative(tokens):
    """At any size of the difference: by central differences along it."""
    recipient, donor = plain_model(seed=0), plain_model(seed=1)
    hook, inputs = "blocks.0.attn.hook_z", tokens[:, :-1]
    table = patch_sweep(
        recipient, donor, tokens, rows=ROWS, hooks=[hook], positions=[2], method="gradient"
    ).table
    given = activations(donor, inputs, [hook])[hook]

    def loss_at(share, head):
        def edit(z):
            z = z.clone()
            z[:, 2, head] += share * (given - z)[:, 2, head]
            return z

        return score(run_edited(recipient, inputs, [(hook, edit)]), tokens, ROWS).mean()["loss"]

    own = score(recipient(inputs), tokens, ROWS).mean()["loss"]
    for line in table.itertuples():
        slope = (loss_at(0.01, line.head) - loss_at(-0.01, line.head)) / 0.02
        assert line.loss - own == pytest.approx(slope, rel=0.02, abs=2e-5)
    assert table["accuracy"].isna().all()


def test_logits_are_linear_in_the_last_activation(tokens):
    recipient, donor = make_model(seed=0), make_model(seed=1)
    with torch.no_grad():
        donor.unembed.W_U.copy_(recipient.unembed.W_U)
    table = patch_sweep(recipient, donor, tokens, rows=ROWS, hooks=["unembed.hook_in"], method="both").table
    np.testing.assert_allclose(table["logit_difference_gradient"], table["logit_difference"], atol=1e-5)


def test_weights_that_are_frozen_make_no_difference(tokens):
    recipient, donor = near(2)
    expected = patch_sweep(recipient, donor, tokens, method="gradient").table
    recipient.requires_grad_(False)
    found = patch_sweep(recipient, donor, tokens, method="gradient").table
    np.testing.assert_allclose(found["loss"], expected["loss"], atol=1e-6)
    assert expected["loss"].notna().all()


def test_an_unknown_method_is_one_line(tokens):
    with pytest.raises(UserError, match="method: expected one of exact, gradient, both, got 'fast'"):
        patch_sweep(make_model(), make_model(seed=1), tokens, method="fast")
