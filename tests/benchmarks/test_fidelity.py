"""Does the paper's story come out? In full at the paper's size (slow), its order of events at a small one."""

from __future__ import annotations

import pytest
from fidelity import fidelity_of

from mechplateau.config import RunConfig
from mechplateau.training import train


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Width 64, 8 inputs modulo 11, a higher learning rate: the same story in a quarter of a minute."""
    config = RunConfig.for_task(
        "mws",
        task={"n": 8, "p": 11, "max_num": 10},
        model={"d_model": 64},
        training={"steps": 400, "batch_size": 64, "lr": 1e-3},
        evaluation={"every": 5, "samples": 256},
        seed=1,
    )
    return train(config, runs_dir=tmp_path_factory.mktemp("small"))


def test_order_of_events(small):
    found, plateau, table = fidelity_of(small), small.phases.plateau, small.metrics
    assert plateau.found
    assert 0 < plateau.onset < plateau.drop < 400
    # Hidden states collapse and outputs repeat before the drop, and no longer do after it.
    assert found.cos_peak >= 0.93
    assert found.cos_peak_step < plateau.drop
    assert table["cos_final"].iloc[-1] < 0.5
    assert table.loc[table["step"] < plateau.drop, "repetition"].max() > 5 * table["repetition_data"].mean()
    assert table["repetition"].iloc[-1] < 2 * table["repetition_data"].mean()
    # The copied output is right before the sums are.
    assert found.copy_right < plateau.drop
    # Attention progress is under way half-way to the drop, while the loss stands still.
    assert found.apm_rise > 0.02
    assert found.apm_end > 4 * found.apm_start
    assert found.accuracy_end >= 0.99


def test_the_three_phases_are_before_during_and_after(small):
    phases = small.phases
    assert phases.before == 0
    assert phases.plateau.onset < phases.during < phases.plateau.drop
    assert phases.after == 400
    tokens = small.task.sample(256, seed=0)
    accuracy = {}
    for phase in ("before", "during", "after"):
        model = small.model(phase)
        outputs = model(tokens[:, :-1]).argmax(-1)[:, list(small.task.output_rows)]
        accuracy[phase] = (outputs == tokens[:, small.task.prompt_length :]).float().mean().item()
    assert accuracy["before"] < 0.2
    assert accuracy["during"] < 0.6
    assert accuracy["after"] >= 0.99


@pytest.mark.slow
def test_the_papers_size_gives_the_papers_numbers(tmp_path):
    run = train(RunConfig.for_task("mws"), runs_dir=tmp_path)
    found = fidelity_of(run)
    assert 130 <= found.drop <= 260
    assert found.cos_peak >= 0.93
    assert found.cos_peak_step < found.drop
    assert found.apm_rise >= 0.30
    assert found.apm_end >= 0.65
    assert found.copy_right <= 110
    assert found.accuracy_end >= 0.99
