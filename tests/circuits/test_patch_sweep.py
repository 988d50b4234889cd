"""The sweep equals a loop of single patches, on every kind of model, and says what it recovers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from mechplateau.circuits.patch_results import recovered
from mechplateau.circuits.patching import Patch, activations, run_patched
from mechplateau.circuits.scoring import MEASURES, score
from mechplateau.circuits.sweep import firing_hooks, patch_sweep
from mechplateau.errors import UserError

from .conftest import VOCAB, make_model
from .test_patching import hooks_left

ROWS = (3, 5, 6, 7)


def one_by_one(recipient, donor, tokens, result):
    """The measures of every line of a sweep's table, each from a forward of its own."""
    inputs = tokens[:, :-1]
    given = activations(donor, inputs, list(dict.fromkeys(result.table["hook"])))
    # Every third line: with eight positions that is each hook, at all kinds of positions.
    for line in list(result.table.itertuples())[:: 3 if len(result.table) > 100 else 1]:
        positions = None if line.position is pd.NA else (int(line.position),)
        head = None if line.head is pd.NA else int(line.head)
        logits = run_patched(recipient, inputs, [Patch(line.hook, given[line.hook], positions, head)])
        yield line, score(logits, tokens, ROWS).mean()


@pytest.mark.parametrize("positions", ["each", "all"])
def test_a_sweep_is_a_loop_of_single_patches(two_models, tokens, positions):
    recipient, donor = two_models
    result = patch_sweep(
        recipient, donor, tokens, rows=ROWS, positions=positions, batch_size=2, memory_limit=3e5
    )
    assert set(result.table["hook"]) == set(firing_hooks(recipient, tokens[:, :-1]))
    for line, expected in one_by_one(recipient, donor, tokens, result):
        for name in MEASURES:
            assert getattr(line, name) == pytest.approx(expected[name], abs=1e-5), (line.hook, line.position)


def test_what_is_recovered_is_a_share_of_the_difference(tokens):
    recipient, donor = make_model(seed=0), make_model(seed=1)
    tokens = tokens[:1]  # over several sequences, models of random weights do not differ beyond noise
    result = patch_sweep(recipient, donor, tokens, rows=ROWS, positions="all", by_head=False)
    own = score(recipient(tokens[:, :-1]), tokens, ROWS).mean()
    best = score(donor(tokens[:, :-1]), tokens, ROWS).mean()
    assert result.recipient == pytest.approx(own, abs=1e-6)
    assert result.donor == pytest.approx(best, abs=1e-6)
    table = result.table.set_index("hook")
    # The logits are all there is: patching them is the donor.
    for name in ("loss", "logit_difference"):
        assert table.loc["unembed.hook_out", f"recovered_{name}"] == pytest.approx(1.0, abs=1e-6)
    line = table.loc["blocks.0.attn.hook_z"]
    expected = (line["loss"] - own["loss"]) / (best["loss"] - own["loss"])
    assert line["recovered_loss"] == pytest.approx(expected, abs=1e-6)


def test_a_difference_within_its_noise_has_no_share_and_changes_have_errors(generator):
    recipient, donor = make_model(seed=0), make_model(seed=1)
    tokens = torch.randint(0, VOCAB, (40, 9), generator=generator)
    result = patch_sweep(recipient, donor, tokens, rows=ROWS, hooks=["hook_embed"], positions="all")
    own, best = (score(model(tokens[:, :-1]), tokens, ROWS).each.mean(-1) for model in (recipient, donor))
    for i, name in enumerate(MEASURES):
        difference = best[i] - own[i]
        noise = difference.std(ddof=1) / 40**0.5
        assert result.table[f"recovered_{name}"].isna().all() == (abs(difference.mean()) <= 2 * noise)
    given = activations(donor, tokens[:, :-1], ["hook_embed"])["hook_embed"]
    patched = score(run_patched(recipient, tokens[:, :-1], [Patch("hook_embed", given)]), tokens, ROWS)
    change = patched.each.mean(-1)[0] - own[0]
    assert result.table["loss_se"].item() == pytest.approx(change.std(ddof=1) / 40**0.5, rel=1e-4)
    assert result.table["n"].item() == 40


def test_shares_of_known_numbers():
    own, best = np.array([1.0, 2.0, 3.0]), np.array([2.0, 3.0, 5.0])
    assert list(recovered(np.array([2.0, 10 / 3]), own, best)) == pytest.approx([0.0, 1.0])
    # Differences 1, −1, 0.3: mean 0.1, standard error 0.586.
    assert recovered(np.array([2.0]), own, own + np.array([1.0, -1.0, 0.3])).isna().all()
    assert recovered(np.array([2.0]), own[:1], best[:1])[0] == 1.0


def test_a_model_patched_with_itself_does_not_change_and_has_nothing_to_recover(tokens):
    model = make_model()
    result = patch_sweep(model, model, tokens, rows=ROWS, identity=True)
    for name in MEASURES:
        assert (result.table[name] - result.recipient[name]).abs().max() < 1e-6
        assert result.table[f"recovered_{name}"].isna().all()


def test_other_tokens_for_the_donor(tokens):
    model, tokens = make_model(), tokens[:1]
    corrupt = tokens.clone()
    corrupt[:, 2] = (corrupt[:, 2] + 1) % VOCAB
    result = patch_sweep(model, model, corrupt, donor_tokens=tokens, rows=ROWS, hooks=["hook_embed"])
    at = result.table.set_index("position")
    # Only the token at position 2 differs, so patching its embedding is all, and any other nothing.
    assert at.loc[2, "recovered_logit_difference"] == pytest.approx(1.0, abs=1e-5)
    for position in (0, 1, 3, 7):
        assert at.loc[position, "recovered_logit_difference"] == pytest.approx(0.0, abs=1e-5)


def test_the_grid_is_hook_by_position(tokens):
    recipient, donor = make_model(seed=0), make_model(seed=1)
    hooks = ["blocks.1.attn.hook_z", "blocks.0.hook_resid_pre"]
    result = patch_sweep(recipient, donor, tokens, hooks=hooks, positions=[6, 2])
    grid = result.grid("loss")
    assert list(grid.index) == [
        "blocks.1.attn.hook_z head 0",
        "blocks.1.attn.hook_z head 1",
        "blocks.0.hook_resid_pre",
    ]
    assert list(grid.columns) == [2, 6]
    line = result.table.query("hook == 'blocks.1.attn.hook_z' and head == 1 and position == 6")
    assert grid.loc["blocks.1.attn.hook_z head 1", 6] == line["loss"].item()
    with pytest.raises(UserError, match="measure: expected one of loss"):
        result.grid("los")


def test_progress_reaches_the_end(tokens, heard):
    patch_sweep(
        make_model(),
        make_model(seed=1),
        tokens,
        hooks=["hook_embed", "unembed.hook_in"],
        progress=heard,
    )
    # Eight positions of up to eight through the model, then one forward for all of them.
    assert [done / total for _, done, total in heard.counts] == pytest.approx([8 / 9, 1.0])
    assert heard.counts[0][0] == "patching"
    assert heard.open == 0


def test_an_interruption_leaves_no_bar_open(tokens, heard):
    def interrupt(done):
        raise KeyboardInterrupt

    heard.then = interrupt
    with pytest.raises(KeyboardInterrupt):
        patch_sweep(make_model(), make_model(seed=1), tokens, hooks=["hook_embed"], progress=heard)
    assert heard.open == 0


def test_bad_requests_are_one_line_and_leave_no_hook(tokens):
    recipient, donor = make_model(), make_model(seed=1)
    with pytest.raises(UserError, match=r"no hook 'hook_embd'"):
        patch_sweep(recipient, donor, tokens, hooks=["hook_embd"])
    with pytest.raises(UserError, match="rows: expected different positions from 0 to 7"):
        patch_sweep(recipient, donor, tokens, rows=[8])
    with pytest.raises(UserError, match='positions: expected "each", "all"'):
        patch_sweep(recipient, donor, tokens, positions="some")
    with pytest.raises(UserError, match=r"knows tokens 0 to 10, got 11 to 11"):
        patch_sweep(recipient, donor, torch.full_like(tokens, VOCAB))
    with pytest.raises(UserError, match='progress: expected "stderr"'):
        patch_sweep(recipient, donor, tokens, progress="stdout")
    wider = make_model(d_model=32)
    with pytest.raises(UserError, match=r"hook_resid_mid: expected .*\[3, 8, 16\], got \[3, 8, 32\]"):
        patch_sweep(recipient, wider, tokens, hooks=["blocks.0.hook_resid_mid"])
    with pytest.raises(UserError, match=r"no hook 'blocks\.1\."):
        patch_sweep(recipient, make_model(n_layers=1), tokens)
    assert not hooks_left(recipient)
    assert not hooks_left(donor)
