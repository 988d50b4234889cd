"""Which runs a sweep trains."""

from __future__ import annotations

import pytest

from mechplateau.errors import ConfigError
from mechplateau.training.sweep import expand


def test_a_sweep_of_a_preset(run_cli, monkeypatch):
    from mechplateau.training import sweep

    told = []
    monkeypatch.setattr(sweep, "sweep", lambda configs, **_: told.extend(configs) or [])
    code, _, _ = run_cli("sweep", "copy", "--preset", "small", "--set", "task.n=3,4", "--seeds", "2")
    assert code == 0
    assert [(config.task.n, config.seed, config.model.d_model) for config in told] == [
        (n, seed, 64) for n in (3, 4) for seed in (0, 1)
    ]


def test_sweeps_expand_every_combination():
    configs = expand({"task": {"name": "mws"}}, ["task.k=2,3", "training.lr=1e-3,1e-4"], range(2))
    assert len(configs) == 8
    assert [(c.task.k, c.training.lr, c.seed) for c in configs[:3]] == [
        (2, 1e-3, 0),
        (2, 1e-3, 1),
        (2, 1e-4, 0),
    ]


def test_sweeps_keep_the_seed_of_the_file_unless_told():
    data = {"task": {"name": "mws"}, "seed": 7}
    assert [c.seed for c in expand(data, [], None)] == [7]
    assert [c.seed for c in expand(data, ["seed=3,4"], None)] == [3, 4]
    assert [c.seed for c in expand(data, [], range(2))] == [0, 1]
    with pytest.raises(ConfigError, match="seed: given both"):
        expand(data, ["seed=3,4"], range(2))


def test_lists_are_one_value_of_a_sweep():
    one, other = "{kind: attention_scale, c: 2, layers: [0]}", "{kind: attention_scale, c: 3, start: 9}"
    both = f"interventions=[{one}, {other}],[]"
    with pytest.raises(ConfigError, match="scales the same attention"):
        expand({"task": {"name": "mws"}}, [both], None)
    fine = both.replace("c: 2,", "c: 2, stop: 9,")
    assert [len(c.interventions) for c in expand({"task": {"name": "mws"}}, [fine], None)] == [2, 0]
    assert [
        c.training.betas
        for c in expand({"task": {"name": "mws"}}, ["training.betas=[0.9,0.99],[0.8,0.9]"], None)
    ] == [
        (0.9, 0.99),
        (0.8, 0.9),
    ]
    with pytest.raises(ConfigError, match=r"training\.optimizer"):
        expand({"task": {"name": "mws"}}, ['training.optimizer="adam,sgd"'], None)
