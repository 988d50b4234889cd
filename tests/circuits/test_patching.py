"""Patches provably act: identity, full swap, errors with both shapes, nothing left behind."""

from __future__ import annotations

import pytest
import torch

from mechplateau.circuits.editing import run_edited
from mechplateau.circuits.patching import Patch, activations, run_patched
from mechplateau.circuits.sweep import firing_hooks, patch_sweep
from mechplateau.errors import UserError

from .conftest import make_model, plain_model


def hooks_left(model):
    return [name for name, point in model.hook_dict.items() if point.fwd_hooks or point._forward_hooks]


def nothing(activation):
    return activation


def test_an_identity_patch_is_bitwise_the_no_op_path(two_models, tokens):
    model, inputs = two_models[0], tokens[:, :-1]
    fused = model(inputs)
    hooks = firing_hooks(model, inputs)
    for together in [[hook] for hook in hooks] + [hooks]:
        own = activations(model, inputs, together)
        patched = run_patched(model, inputs, [Patch(hook, value) for hook, value in own.items()])
        assert torch.equal(patched, run_edited(model, inputs, [(hook, nothing) for hook in together])), (
            together
        )
        torch.testing.assert_close(patched, fused, rtol=1e-6, atol=1e-6 * fused.abs().max().item())


def test_a_full_swap_is_the_donor(two_models, tokens):
    """All that flows past a point, of the same weights on other tokens: everything after it is the donor's."""
    model, inputs = two_models[0], tokens[:, :-1]
    other = inputs.flip(0).roll(1, dims=1)
    expected = model(other)
    last = model.cfg.n_layers - 1
    hooks = [
        "blocks.0.hook_resid_pre",
        f"blocks.{last}.hook_resid_post",
        "unembed.hook_in",
        "unembed.hook_out",
    ]
    for hook in hooks:
        given = activations(model, other, [hook])[hook]
        assert (model(inputs) - expected).abs().max() > 0.1
        torch.testing.assert_close(
            run_patched(model, inputs, [Patch(hook, given)]), expected, rtol=1e-6, atol=1e-6
        )


def test_only_the_named_part_is_patched(tokens):
    model, inputs = make_model(), tokens[:, :-1]
    for hook, index in (
        ("blocks.0.hook_resid_mid", (slice(None), [2, 5])),
        ("blocks.1.attn.hook_z", (slice(None), [2, 5], 1)),
        ("blocks.1.attn.hook_pattern", (slice(None), 1, [2, 5])),
    ):
        own = activations(model, inputs, [hook])[hook]
        donor = torch.randn(own.shape, generator=torch.Generator().manual_seed(3))
        expected = own.clone()
        expected[index] = donor[index]
        head = None if "resid" in hook else 1
        patch = Patch(hook, donor, positions=(2, 5), head=head)
        assert torch.equal(patch(own), expected)
        assert not torch.equal(own, expected)
        assert (run_patched(model, inputs, [patch]) - model(inputs)).abs().max() > 1e-3


def test_an_early_position_is_not_touched_by_a_later_patch(tokens):
    model, inputs = make_model(), tokens[:, :-1]
    patch = Patch("blocks.0.hook_resid_pre", torch.zeros(3, 8, 16), positions=(5,))
    patched, plain = run_patched(model, inputs, [patch]), model(inputs)
    torch.testing.assert_close(patched[:, :5], plain[:, :5], rtol=0, atol=1e-6)
    assert (patched[:, 5:] - plain[:, 5:]).abs().amax(dim=(0, 2)).min() > 1e-4


def test_shapes_that_differ_are_an_error_with_both(tokens):
    model = make_model()
    with pytest.raises(
        UserError, match=r"hook_z: expected an activation of shape \[3, 8, 2, 8\], got \[3, 8, 16\]"
    ):
        run_patched(model, tokens[:, :-1], [Patch("blocks.0.attn.hook_z", torch.zeros(3, 8, 16))])
    with pytest.raises(
        UserError, match=r"hook_z: expected an activation of shape \[3, 8, 2, 8\], got \[1, 8, 2, 8\]"
    ):
        run_edited(model, tokens[:, :-1], [("blocks.0.attn.hook_z", lambda activation: activation[:1])])
    assert not hooks_left(model)


def test_hooks_that_do_not_fire_are_errors(tokens):
    model, inputs = plain_model(), tokens[:, :-1]
    with pytest.raises(UserError, match=r"no hook 'blocks\.0\.hook_resid_pst'.*blocks\.0\.hook_resid_post"):
        run_edited(model, inputs, [("blocks.0.hook_resid_pst", nothing)])
    with pytest.raises(UserError, match=r"hook_result never fires in this model.*use_attn_result"):
        run_edited(model, inputs, [("blocks.0.attn.hook_result", nothing)])
    model = plain_model(attn_only=True)
    with pytest.raises(UserError, match=r"blocks\.1\.hook_mlp_out never fired in this forward"):
        run_edited(model, inputs, [("blocks.0.hook_attn_out", nothing), ("blocks.1.hook_mlp_out", nothing)])
    with pytest.raises(UserError, match=r"blocks\.1\.hook_mlp_out never fired"):
        activations(model, inputs, ["blocks.0.hook_attn_out", "blocks.1.hook_mlp_out"])
    with pytest.raises(UserError, match=r"blocks\.1\.hook_mlp_out never fired"):
        patch_sweep(model, plain_model(attn_only=True, seed=1), tokens, hooks=["blocks.1.hook_mlp_out"])
    assert not hooks_left(model)


def test_positions_and_heads_that_are_not_there_are_errors(tokens):
    model, inputs = make_model(), tokens[:, :-1]
    for patch in (
        Patch("blocks.0.hook_resid_pre", torch.zeros(3, 8, 16), positions=(8,)),
        Patch("blocks.0.hook_resid_pre", torch.zeros(3, 8, 16), head=0),
        Patch("blocks.0.attn.hook_z", torch.zeros(3, 8, 2, 8), head=2),
    ):
        with pytest.raises(UserError, match="expected"):
            run_patched(model, inputs, [patch])


def test_no_hook_is_left_after_an_exception_and_the_users_own_stays(tokens):
    model, inputs = make_model(), tokens[:, :-1]
    model.add_hook("blocks.0.hook_resid_pre", lambda activation, hook: activation)

    def fail(activation):
        raise RuntimeError("broken edit")

    with pytest.raises(RuntimeError, match="broken edit"):
        run_edited(model, inputs, [("blocks.0.hook_mlp_out", nothing), ("blocks.1.hook_mlp_out", fail)])
    assert hooks_left(model) == ["blocks.0.hook_resid_pre"]
    run_patched(model, inputs, [Patch("blocks.0.hook_mlp_out", torch.zeros(3, 8, 16))])
    assert hooks_left(model) == ["blocks.0.hook_resid_pre"]
