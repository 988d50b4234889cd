"""Tables on record: small, and enough to read every number again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from mechplateau.config import RunConfig
from mechplateau.errors import UserError
from mechplateau.studies.claims import check_all
from mechplateau.studies.numbers import rounded
from mechplateau.studies.plateau.study import STUDY
from mechplateau.studies.recorded import (
    LARGEST,
    packed,
    read_recorded,
    recorded_table,
    table_name,
    write_recorded,
)
from mechplateau.studies.results import OLD, read_again, read_results, summaries_of, write_results

CONFIG = RunConfig.parse(STUDY.recipes["mws"].data(0, "paper"))


def measured(rows: int = 401) -> pd.DataFrame:
    """A table as large as that of a paper-size run, as noisy as its batches: 401 rows, every measure."""
    random, steps = np.random.default_rng(0), np.arange(rows)
    loss = np.where(steps < 60, 2.9 - steps / 200, np.where(steps < 160, 2.6, 1.3))
    table = pd.DataFrame({"step": steps, "loss": loss + 0.002 * random.standard_normal(rows)})
    table["accuracy"] = np.where(steps < 160, 0.1, 1.0)
    for r in range(16):
        table[f"loss_out_{r}"] = 2.85 * np.exp(-steps / 50) + 0.01 * random.random(rows)
        table[f"accuracy_out_{r}"] = random.integers(0, 65, rows) / 64
        table[f"cos_out_{r}"] = random.random(rows)
    for name in ("repetition", "repetition_data"):
        table[name] = random.integers(0, 960, rows) / 960
    for name in ("entropy", "entropy_data", "apm_window", "cos_final", "norm_final", "alpha_1"):
        table[name] = random.random(rows)
    table["apm_zero_count"] = 0
    return table


def test_a_papers_run_takes_less_than_the_limit_and_keeps_its_numbers(tmp_path):
    kept = recorded_table(STUDY.reading, measured(), CONFIG)
    assert {"loss_out_0", "accuracy_out_15", "cos_final", "apm_window"} <= set(kept.columns)
    assert not {"loss_out_1", "accuracy_out_0", "cos_out_3", "norm_final"} & set(kept.columns)
    assert set(kept.dtypes.drop("step")) == {np.dtype("float32")}
    data = packed(kept, "abc")
    assert 10_000 < len(data) <= LARGEST
    write_recorded(tmp_path, "mws_0_paper.parquet", data)
    again = read_recorded(tmp_path, table_name("mws", 0, "paper"), "abc")
    pd.testing.assert_frame_equal(again, kept, check_exact=True)
    numbers = STUDY.reading.numbers(again, CONFIG)
    assert numbers == STUDY.reading.numbers(kept, CONFIG)
    # Every number that the whole table has: nothing that is looked at was left out.
    whole = STUDY.reading.numbers(measured(), CONFIG)
    assert whole["partial_at"] is not None
    assert numbers.keys() == whole.keys()
    for name, value in whole.items():
        assert numbers[name] == (None if value is None else pytest.approx(value, rel=1e-5)), name
    assert read_recorded(tmp_path, "mws_1_paper.parquet", "abc") is None
    with pytest.raises(UserError, match="is of configuration abc, not abd; record the run again"):
        read_recorded(tmp_path, "mws_0_paper.parquet", "abd")
    with pytest.raises(UserError, match=rf"takes \d+ bytes, more than {LARGEST}"):
        packed(measured(), "abc")


def test_the_table_of_the_longest_run_can_be_kept():
    """10,000 steps that never solve the task, as with k = 3: that it is too long must not show after hours."""
    recipe = STUDY.recipes["mws-k3"]
    config = RunConfig.parse(recipe.data(0, "paper"))
    rows = recipe.steps("paper") // config.evaluation.every + 1
    kept = recorded_table(STUDY.reading, measured(rows), config)
    assert len(kept) == rows == 1001
    assert len(packed(kept, "abc")) > LARGEST
    # A wide one may not be as large because it is long.
    with pytest.raises(UserError, match="a table of 1001 rows and 60 columns takes"):
        packed(measured(rows), "abc")


def test_numbers_are_read_again_where_there_is_a_table(tmp_path):
    """A better definition renews the line with a table; the other keeps its numbers, and every place says so."""
    line = {"scale": "paper", "config_hash": "abc", "drop": 1.0, "probe_end": 0.9}
    table = pd.DataFrame([{"recipe": "mws", "seed": seed, **line} for seed in (0, 1)])
    kept = recorded_table(STUDY.reading, measured(), CONFIG)
    write_recorded(tmp_path, table_name("mws", 0, "paper"), packed(kept, "abc"))
    renewed = read_again(STUDY, table, tmp_path)
    expected = rounded(STUDY.reading.numbers(kept, CONFIG))
    assert renewed.loc[0, "drop"] == expected["drop"] == 160
    assert renewed.loc[0, "probe_end"] == 0.9  # no table holds it
    assert renewed.loc[1, "drop"] == 1.0
    assert renewed["definition"].isna().tolist() == [True, False]
    assert renewed.loc[1, "definition"] == OLD

    write_results(renewed, tmp_path / "runs.csv")
    summaries = summaries_of(read_results(tmp_path / "runs.csv"), "paper")
    assert [run.get("old_definition") for run in summaries["mws"]] == [None, 1.0]
    claim = next(claim for claim in STUDY.claims if claim.recipe == "mws" and claim.number == "drop")
    (outcome,) = check_all([claim], summaries)
    assert (outcome.runs, outcome.old) == (2, 1)
    (outcome,) = check_all([replace(claim, number="accuracy_end")], {"mws": summaries["mws"][:1]})
    assert outcome.old == 0


def test_the_record_says_which_lines_have_no_table():
    """And those that have one hold just what it gives."""
    from mechplateau.studies.results import on_record

    record = on_record(STUDY)
    again = read_again(STUDY, record, STUDY.results)
    for name in again.columns:
        ours, theirs = record.get(name), again[name]
        assert ours is not None, f"{name}: python benchmarks/record_results.py --again"
        both = pd.DataFrame({"ours": ours, "again": theirs})
        assert (both["ours"].eq(both["again"]) | both.isna().all(axis=1)).all(), name
