"""The study of learning coefficients: numbers counted by hand, a tiny run measured once, its claims and its page."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from mechplateau import RunConfig, train
from mechplateau.studies import Material, study_named
from mechplateau.studies.claims import check
from mechplateau.studies.development import coefficients
from mechplateau.studies.development.numbers import half_way, of_coefficients, of_scan, partial_correlation
from mechplateau.studies.development.told import page
from mechplateau.studies.results import write_results

STUDY = study_named("development")


def over_steps(part, paired, verdicts="undetermined"):
    steps = [0, 100, 150, 200, 300]
    loss = [3.0, 2.0, 2.0, 1.5, 1.0]
    return pd.DataFrame(
        {
            "step": steps,
            "part": part,
            "loss": loss,
            "llc": paired,
            "paired": paired,
            "attention_progress": [0.1, 0.2, 0.5, 0.6, 0.6],
            "verdict": verdicts,
        }
    )


def test_numbers_over_checkpoints():
    table = pd.concat(
        [
            over_steps(
                "whole", [-5.0, 10.0, 20.0, 60.0, 30.0], ["sliding", "saturated", "local", "local", "local"]
            ),
            over_steps("mlp", [1.0, 2.0, 4.0, 50.0, 9.0]),
            over_steps("attention", [1.0, 3.0, 12.0, 20.0, 9.0]),
        ]
    )
    found = of_coefficients(table, 90.0, 170.0, 140)
    assert found["local_on_plateau"] == 1
    assert (found["llc_start"], found["llc_during"], found["llc_end"]) == (-5, 20, 30)
    assert found["llc_rise"] == 10
    assert found["llc_peak_over_end"] == 2.0
    # Half-way: the loss at 200, λ̂ (10 to 30) at 150, attention (.2 to .6) at 133.3.
    assert found["llc_lead"] == pytest.approx(50 / 200)
    assert found["attention_lead"] == pytest.approx((200 - 100 - 50 * 2 / 3) / 200)
    assert found["attention_before_llc"] == pytest.approx((50 - 50 * 2 / 3) / 200)
    assert found["mlp_over_attention_peak"] == 2.5
    assert found["attention_over_mlp_before"] == 3.0
    assert of_coefficients(table, None, None, None)["llc_lead"] is None
    few = of_coefficients(table[table["step"].isin([0, 150, 300])], 90.0, 170.0, 140)
    assert few["llc_lead"] is None  # three checkpoints do not tell what comes first
    assert few["affine_slope"] is None
    assert (few["llc_during"], few["llc_rise"], few["local_on_plateau"]) == (20, 10, 1)


def test_half_way_and_what_is_left_given_the_loss():
    assert half_way(np.array([0.0, 10, 20]), np.array([4.0, 4, 0])) == 15
    assert half_way(np.array([0.0, 10]), np.array([1.0, 1])) is None
    given = np.arange(8.0)
    wave = np.array([1.0, -1, 1, -1, 1, -1, 1, -1])
    assert partial_correlation(3 * given + wave, 2 * wave - given, given) == pytest.approx(1, abs=1e-9)
    assert partial_correlation(3 * given, wave, given) is None  # nothing is left of it
    assert partial_correlation(given[:4], wave[:4], given[:4]) is None


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = RunConfig.for_task(
        "mws",
        task={"n": 3, "k": 2, "p": 5, "max_num": 4},
        model={"d_model": 8},
        training={"steps": 6, "batch_size": 8},
        checkpoints={"every": 3},
        evaluation={"samples": 8},
    )
    return train(config, runs_dir=tmp_path_factory.mktemp("runs"), threads=1)


@pytest.fixture(scope="module")
def short():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            coefficients, "CHAINS", {**coefficients.CHAINS, "burn_in": 0, "draws": 2, "batch_size": 8}
        )
        few = {"n_betas": (10.0,), "localizations": (10.0,), "shares": (0.1, 0.5), "draws": 2, "burn_in": 0}
        patch.setattr(coefficients, "SCAN", {**coefficients.SCAN, **few, "batch_size": 8})
        yield


def test_what_is_estimated_is_kept_and_read(run, short, monkeypatch):
    assert not coefficients.is_measured(run, "small")
    table = coefficients.Coefficients().measure(run, "small")
    assert list(table["step"]) == [0, 3, 6]
    assert {f"llc {name}" for name in ("whole", "attention", "mlp", "embeddings")} <= set(table)
    assert coefficients.is_measured(run, "small")  # it has no plateau, hence nothing to scan
    monkeypatch.setattr("mechplateau.development.over_checkpoints.llc", None)  # no chain is needed any more
    numbers = STUDY.numbers(run, "small")
    assert numbers["onset"] is None
    assert numbers["llc_end"] == pytest.approx(table["llc whole"].iloc[-1])
    sheet = STUDY.figure("2").picture(Material("small", {"mws": [run.metrics]}, {}, {"mws": [run]}))
    assert [ax.get_title(loc="left") for ax in sheet.axes] == ["λ̂ by component", "Where the chains were"]


def test_the_scan_counts_its_verdicts():
    scan = pd.DataFrame({"verdict": ["local", "sliding", "sliding", "saturated"]})
    assert of_scan(scan) == {
        "scan_settings": 4, "scan_local": 1, "scan_sliding": 2, "scan_saturated": 1, "scan_undetermined": 0,
    }  # fmt: skip


@pytest.mark.parametrize("claim", STUDY.claims, ids=lambda claim: claim.id)
def test_every_claim_can_hold_and_can_fail(claim):
    inner = claim.low if claim.low is not None else claim.high
    runs = [{claim.number: inner}] * claim.seeds
    assert check(claim, {claim.recipe: runs}).verdict == "holds"
    for bound, away in ((claim.low, -1), (claim.high, 1)):
        if bound is not None:
            runs = [{claim.number: bound + away}] * claim.seeds
            assert check(claim, {claim.recipe: runs}).verdict == "fails"


def test_the_page_tells_what_is_on_record(tmp_path):
    assert "| not yet run |" in page(tmp_path)
    line = {
        "recipe": "mws",
        "seed": 0,
        "scale": "small",
        "config_hash": "a",
        "llc_lead": 0.1,
        "scan_local": 2,
    }
    write_results(pd.DataFrame([line]), tmp_path / "runs.csv")
    coefficients_ = over_steps("whole", [-5.0, 10.0, 20.0, 60.0, 30.0]).assign(
        recipe="mws", seed=0, scale="small", mean_loss=3.5, chain_sd=1.0, elasticity=None
    )
    write_results(coefficients_, tmp_path / "coefficients.csv")
    scan = {"recipe": "mws", "seed": 0, "scale": "small", "n_beta": 100.0, "verdict": ["local", "sliding"]}
    write_results(pd.DataFrame(scan), tmp_path / "scan.csv")
    told = page(tmp_path).splitlines()
    assert any("before the loss is | 0.1 | ≥ 0.005 | 1 of 1 | holds so far |" in row for row in told)
    assert any("verdict local | 2 | ≤ 0 | 0 of 1 | fails so far |" in row for row in told)
    assert "| nβ | local | sliding |" in told
    assert "| 100 | 1 | 1 |" in told
    assert "| 150 | 0.5 | 2 | 3.5 | 20 | 1 | – | undetermined |" in told
