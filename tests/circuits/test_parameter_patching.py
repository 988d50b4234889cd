"""Moved weights: exactly those named, alone and all but those; nothing stays moved."""

from __future__ import annotations

import pytest
import torch

from mechplateau.circuits.parameter_patching import components, patch_parameters
from mechplateau.circuits.scoring import score
from mechplateau.errors import UserError

from .conftest import make_model, plain_model
from .planted import copied_tokens, empty_model, plant_previous_token_head


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def test_components_cover_every_parameter_once():
    model = make_model()
    found = components(model)
    whole = [label for label in found if not label.endswith(("QK", "OV"))]
    slots = [slot for label in whole for slot in found[label]]
    assert sorted(name for name, _ in slots) == sorted(dict(model.named_parameters()))
    by_head = [slot for label in ("L0H0 QK", "L0H1 QK") for slot in found[label]]
    assert {name for name, _ in by_head} == {name for name, _ in found["L0 QK"]}
    assert "L0H0 OV" in found
    assert ("blocks.0.attn.b_O", None) in found["L0 OV"]
    assert not any(name.endswith("b_O") for name, _ in found["L0H0 OV"])


def test_a_component_moved_is_a_model_with_those_weights(tokens):
    recipient, donor = make_model(seed=0), make_model(seed=1)
    before, given = weights(recipient), weights(donor)
    table = patch_parameters(recipient, donor, tokens, rows=[4, 7]).set_index(["component", "mode"])
    by_hand = make_model(seed=0)
    for label, names, head in (
        ("L1 MLP", ("W_in", "b_in", "W_out", "b_out"), None),
        ("L0H1 OV", ("W_V", "W_O", "b_V"), 1),
    ):
        for mode in ("moved", "kept"):
            with torch.no_grad():
                for name, parameter in by_hand.named_parameters():
                    named = name.split(".")[-1] in names and name.startswith(f"blocks.{label[1]}")
                    if head is None:
                        parameter.copy_((given if named == (mode == "moved") else before)[name])
                    else:
                        parameter.copy_((before if mode == "moved" else given)[name])
                        if named:
                            parameter[head] = (given if mode == "moved" else before)[name][head]
                expected = score(by_hand(tokens[:, :-1]), tokens, [4, 7]).mean()
            line = table.loc[(label, mode)]
            assert line["loss"] == pytest.approx(expected["loss"], abs=1e-6)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(recipient).items())


def test_all_weights_moved_are_the_donor_and_none_the_recipient(tokens):
    recipient, donor = make_model(seed=0), make_model(seed=1)
    every = {"all": [(name, None) for name in dict(recipient.named_parameters())]}
    table = patch_parameters(recipient, donor, tokens, moved=every)
    moved, kept = (table[table["mode"] == mode].iloc[0] for mode in ("moved", "kept"))
    own, best = table.iloc[0], table.iloc[1]
    assert (own["component"], best["component"]) == ("recipient", "donor")
    assert moved["loss"] == best["loss"]
    assert kept["loss"] == own["loss"]
    assert (moved["recovered_loss"], kept["recovered_loss"]) == (1.0, 0.0)


def test_the_planted_component_is_enough_and_needed(generator):
    donor, recipient = empty_model(1), empty_model(1)
    plant_previous_token_head(donor)
    table = patch_parameters(recipient, donor, copied_tokens(generator), rows=range(1, 6))
    recovered = table.set_index(["component", "mode"])["recovered_loss"].astype(float)
    assert recovered["L0 attention", "moved"] == 1.0
    assert recovered["L0 attention", "kept"] == 0.0
    assert recovered["L0 QK", "moved"] == 0.0  # looks at the right place and copies nothing
    assert 0.1 < recovered["L0 OV", "moved"] < 0.9  # copies from everywhere
    assert recovered["embed", "moved"] == 0.0


def test_refusals_and_nothing_left_behind(tokens):
    recipient = make_model()
    before = weights(recipient)
    with pytest.raises(
        UserError, match=r"W_pos has shape \[9, 16\] in the recipient and \[10, 16\] in the donor"
    ):
        patch_parameters(recipient, make_model(n_ctx=10), tokens)
    with pytest.raises(UserError, match=r"ln1\.w is in one only"):
        patch_parameters(recipient, plain_model(normalization_type=None), tokens)
    with pytest.raises(UserError, match=r"no such weights 'blocks\.0\.attn\.W_Q', head 2"):
        patch_parameters(recipient, make_model(seed=1), tokens, moved={"x": [("blocks.0.attn.W_Q", 2)]})

    calls = []

    def fail_on_the_third(activation, hook):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("broken")

    recipient.add_hook("hook_embed", fail_on_the_third)
    with pytest.raises(RuntimeError, match="broken"):
        patch_parameters(recipient, make_model(seed=1), tokens)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(recipient).items())
