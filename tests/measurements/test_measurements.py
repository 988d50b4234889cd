"""Measurements as objects: documented columns, asked for by name, and nothing long unless it is asked for."""

from __future__ import annotations

from typing import ClassVar

import pyarrow.parquet as pq
import pytest
import torch

from mechplateau import RunConfig, train
from mechplateau.errors import ConfigError, UserError
from mechplateau.measurements import (
    Column,
    Measurement,
    Setting,
    base,
    columns_of,
    markdown,
    register_measurement,
)
from mechplateau.models import build_model
from mechplateau.tasks import task_names
from mechplateau.training.measure import Measurer

TINY = {
    "task": {"n": 4, "p": 7, "max_num": 6},
    "model": {"d_model": 8},
    "training": {"steps": 2, "batch_size": 4},
    "evaluation": {"samples": 4},
}


def tiny(task="mws", **evaluation):
    return RunConfig.for_task(task, **{**TINY, "evaluation": {**TINY["evaluation"], **evaluation}})


@pytest.fixture
def _own_names(monkeypatch):
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))


class LargestLogit(Measurement):
    name: ClassVar[str] = "test_largest"

    def columns(self):
        return (
            Column("largest", "logits", "largest logit", "never"),
            Column("n_large", "positions", "logits above 1", dtype="int64"),
        )

    def measure(self, seen, batch):
        return {"largest": seen.outputs.max(), "n_large": (seen.outputs > 1).sum()}


@pytest.mark.parametrize("name", task_names())
def test_every_column_says_what_it_is(name):
    try:
        columns = RunConfig.for_task(name, evaluation={"locations": "all"}).columns
    except ConfigError as error:
        pytest.skip(str(error))
    assert [columns[0].name, columns[1].name] == ["step", "loss"]
    for column in columns:
        assert column.name
        assert column.unit
        assert column.definition
    assert len({column.name for column in columns}) == len(columns)


def test_the_tables_schema_is_that_of_the_columns(tmp_path):
    run = train(tiny(), runs_dir=tmp_path)
    schema = pq.read_schema(run.path / "metrics.parquet")
    assert schema.names == [column.name for column in run.columns]
    for column in run.columns:
        field = schema.field(column.name)
        assert str(field.type) == {"float64": "double", "int64": "int64"}[column.dtype]
        assert field.metadata[b"unit"].decode() == column.unit
        assert field.metadata[b"definition"].decode() == column.definition
        assert field.metadata.get(b"undefined_when", b"").decode() == column.undefined_when
    assert "| loss | nats | next-token cross-entropy" in markdown(run.columns)


def test_a_run_records_what_is_asked_for_and_the_loss(tmp_path):
    run = train(tiny(measurements=["similarity", "accuracy"]), runs_dir=tmp_path)
    assert list(run.metrics.columns) == ["step", "loss", "cos_final", "accuracy"]
    whole = train(tiny(), runs_dir=tmp_path)
    for column in run.metrics.columns:
        assert run.metrics[column].tolist() == whole.metrics[column].tolist()
    assert run.name != whole.name


def test_only_the_loss_takes_a_plain_forward():
    config = tiny(measurements=[])
    model = build_model(config.model, vocab_size=config.task.vocab_size, n_ctx=config.task.n_ctx).eval()
    model.observe = model.generate_on = None  # neither is called
    row = Measurer(Setting(config.task, config.model), ()).row(model, 5, config.task.batch(3, seed=0))
    assert list(row) == ["step", "loss"]
    assert row["loss"] > 0


def test_many_outputs_get_no_columns_and_are_not_generated_unless_asked():
    long = {"task": {"n": 511}, "model": {"d_model": 8}}
    config = RunConfig.for_task("copy", **long)
    assert config.task.n_ctx == 1023
    assert [column.name for column in config.columns] == [
        "step", "loss", "apm_input", "apm_zero_count", "cos_final"
    ]  # fmt: skip
    asked = RunConfig.for_task("copy", **long, evaluation={"measurements": ["accuracy", "loss_per_output"]})
    assert len(asked.columns) == 3 + 511
    model = build_model(config.model, vocab_size=config.task.vocab_size, n_ctx=config.task.n_ctx).eval()
    model.generate_on = None
    row = Measurer(Setting(config.task, config.model)).row(model, 0, config.task.batch(1, seed=0))
    assert row["loss"] > 0


@pytest.mark.usefixtures("_own_names")
def test_a_measurement_of_ones_own(tmp_path):
    register_measurement(LargestLogit)
    run = train(tiny(measurements=["test_largest"]), runs_dir=tmp_path)
    assert list(run.metrics.columns) == ["step", "loss", "largest", "n_large"]
    assert str(run.metrics["n_large"].dtype) == "int64"
    tokens = run.task.sample(4, seed=0)
    assert run.columns[2].definition == "largest logit"
    assert torch.isfinite(run.model("after")(tokens[:, :-1])).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"n_large": None, "lagrest": None},
            r"its columns \(largest, n_large\) to numbers, got n_large, lagr",
        ),
        (None, "to numbers, got NoneType"),
        (
            {"largest": 1.5, "n_large": None},
            r"largest: expected a tensor of one number \(.*\) or None, got 1\.5",
        ),
        ({"largest": None, "n_large": torch.ones(3)}, r"n_large: expected .* or None, got shape \[3\]"),
    ],
)
def test_what_a_measurement_gives_is_a_number_for_a_column(given, message, monkeypatch):
    monkeypatch.setitem(base._REGISTRY, "test_largest", LargestLogit)
    monkeypatch.setattr(LargestLogit, "measure", lambda self, seen, batch: given)
    config = tiny(measurements=["test_largest"])
    model = build_model(config.model, vocab_size=config.task.vocab_size, n_ctx=config.task.n_ctx).eval()
    measurer = Measurer(Setting(config.task, config.model), ["test_largest"])
    with pytest.raises(UserError, match=r"LargestLogit\.measure: .*" + message) as error:
        measurer.row(model, 0, config.task.batch(2, seed=0))
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("_own_names")
def test_two_columns_of_one_name_are_said_before_anything_is_written(tmp_path):
    class Again(LargestLogit):
        name: ClassVar[str] = "test_again"

    register_measurement(LargestLogit)
    register_measurement(Again)
    with pytest.raises(ConfigError, match="test_again: its column largest is one of test_largest too"):
        train(tiny(measurements=["test_largest", "test_again"]), runs_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_own_names")
def test_what_is_wrong_with_measurements_is_one_line():
    register_measurement(LargestLogit)

    class Again(LargestLogit):
        name: ClassVar[str] = "test_again"

    register_measurement(Again)
    with pytest.raises(
        ConfigError, match=r"evaluation\.measurements: unknown measurement 'acuracy'; known: accuracy"
    ):
        tiny(measurements=["acuracy"])
    setting = Setting(tiny().task, tiny().model)
    message = "test_again: its column largest is one of test_largest too; rename it"
    with pytest.raises(ConfigError, match=message):
        columns_of(setting, ("test_largest", "test_again"))
