"""Which parameters optimizers, interventions and transfers mean, by a kind's own names."""

from __future__ import annotations

from mechplateau.models.gpt import Gpt
from mechplateau.models.kinds import kind_of
from mechplateau.models.roles import Roles, matched


def test_weights_of_linear_layers_decay_and_tables_do_not():
    roles = Roles()
    for name in ("blocks.0.attn.W_Q", "blocks.0.mlp.W_out", "unembed.W_U", "W_U"):
        assert roles.decayed(name)
    for name in ("embed.W_E", "pos_embed.W_pos", "blocks.0.ln1.w", "blocks.0.attn.b_Q", "ln_final.b", "W_E"):
        assert not roles.decayed(name)


def test_matrices_are_those_of_blocks():
    roles = Roles()
    assert roles.matrix("blocks.3.attn.W_O") == "head d_in d_out -> d_out (head d_in)"
    for name in ("unembed.W_U", "embed.W_E", "attn.W_Q", "blocks.0.attn.b_Q", "blocks.0.ln1.w"):
        assert roles.matrix(name) is None


def test_a_kind_of_other_names_says_its_own(monkeypatch):
    """Training asks the kind: Muon leaves the norm alone that the kind calls the last one."""
    from mechplateau.config import RunConfig
    from mechplateau.models.kinds import build
    from mechplateau.training.optimizers import build_optimizer

    config = RunConfig.for_task(
        "mws", model={"d_model": 8}, training={"optimizer": "muon", "muon_ln_final": False}
    )
    monkeypatch.setattr(Gpt, "roles", Roles(final_norm=("blocks.*.ln2.*",), matrices={}))
    model = build(config.model, config.task)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    held = {
        names[id(parameter)]
        for group in build_optimizer(model, config.training).param_groups
        for parameter in group["params"]
    }
    left = set(names.values()) - held - kind_of(config.model).untrained
    assert left == {"blocks.0.ln2.w", "blocks.0.ln2.b"}
    assert matched(sorted(left), ["*.b"]) == ["blocks.0.ln2.b"]
