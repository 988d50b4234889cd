"""Configurations: strictness, one-line errors, overrides, YAML and hashes."""

from __future__ import annotations

import pytest
import yaml

from mechplateau.config import RunConfig
from mechplateau.errors import ConfigError
from mechplateau.schema import override, read_yaml


def error_of(data: dict) -> str:
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse(data)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_are_the_papers():
    config = RunConfig.for_task("mws")
    assert config.task.data() == {"name": "mws", "n": 16, "k": 2, "p": 17, "max_num": 16, "sep": None}
    assert (config.training.steps, config.training.batch_size, config.training.lr) == (400, 256, 1e-4)
    assert (config.training.optimizer, config.training.betas) == ("adam", (0.9, 0.999))
    assert (config.model.d_model, config.model.n_layers, config.model.n_heads) == (256, 1, 1)
    assert config.model.attention == "linear"


def test_yaml_round_trip_is_the_same_configuration():
    config = RunConfig.for_task(
        "mws",
        training={"lr": 3e-5},
        interventions=[{"kind": "attention_scale", "c": 10, "start": 25}],
    )
    again = RunConfig.parse(read_yaml(config.yaml(), "test"))
    assert again == config
    assert again.content_hash() == config.content_hash()


def test_hash_depends_on_every_value_and_on_nothing_else():
    base = RunConfig.for_task("mws")
    assert base.content_hash() == RunConfig.parse({"seed": 0, "task": {"k": 2, "name": "mws"}}).content_hash()
    assert RunConfig.for_task("mws", training={"lr": "1e-4"}).content_hash() == base.content_hash()
    changed = [
        RunConfig.for_task("mws", seed=1),
        RunConfig.for_task("mws", task={"k": 3}),
        RunConfig.for_task("mws", evaluation={"every": 2}),
        RunConfig.for_task("mws", interventions=[{"kind": "attention_scale", "c": 2}]),
    ]
    assert len({config.content_hash() for config in [base, *changed]}) == 5


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"task": {"name": "mws"}, "trainig": {}},
            "trainig: unknown field; allowed here: task, model, training",
        ),
        (
            {"task": {"name": "mws"}, "training": {"step": 3}},
            "training.step: unknown field; allowed here: steps,",
        ),
        ({"task": {"name": "mws", "k": 17}}, "task.k: expected a window of at most n = 16 inputs, got 17"),
        ({"task": {"name": "mws", "p": 3}}, "task.p: expected a modulus above the largest input token"),
        ({"task": {"name": "mws", "kk": 3}}, "task.kk: unknown field; allowed here: name, n, k, p, max_num"),
        ({"task": {"name": "nope"}}, "task.name: unknown task 'nope'; known: "),
        ({"task": {}}, "task.name: unknown task None; known: "),
        ({}, "task: missing"),
        ({"task": "mws", "training": {"lr": -1}}, "training.lr: input should be greater than 0, got -1"),
        ({"task": "mws", "training": {"lr": float("nan")}}, "training.lr: "),
        (
            {"task": "mws", "training": {"steps": 0}},
            "training.steps: input should be greater than or equal to 1",
        ),
        (
            {"task": "mws", "training": {"optimizer": "lion"}},
            "training.optimizer: input should be 'adam', 'adamw'",
        ),
        ({"task": "mws", "training": 3}, "training: "),
        ({"task": "mws", "model": {"n_heads": 3}}, "model.n_heads: expected a divisor of d_model = 256"),
        ({"task": "mws", "evaluation": {"samples": 0}}, "evaluation.samples: expected at least 1 sequence"),
        (
            {"task": "mws", "training": {"schedule": "warmup_cosine", "steps": 100}},
            "training.warmup_steps: expected less than training.steps = 100",
        ),
        (
            {"task": "mws", "interventions": [{"kind": "x"}]},
            "interventions.0.kind: unknown intervention 'x'; known:",
        ),
        ({"task": "mws", "interventions": [{"kind": "attention_scale"}]}, "interventions.0.c: missing"),
        (
            {"task": "mws", "interventions": [{"kind": "attention_scale", "c": 2, "layers": [1]}]},
            "interventions.0.layers: expected layers from 0 to 0, got 1",
        ),
        (
            {
                "task": "mws",
                "interventions": [{"kind": "attention_scale", "c": c, "start": 5} for c in (2, 3)],
            },
            "interventions.1: scales the same attention at the same steps as interventions.0",
        ),
        ({"task": {"name": "mws", "n": 2**70}}, "task.n: "),
        ({"task": "mws", "training": {"steps": 10**30}}, "training.steps: "),
        ({"task": "mws", "model": {"d_model": 10**12}}, "model.d_model: "),
        (
            {"task": "mws", "interventions": [{"kind": "attention_scale", "c": 2, "start": 5, "stop": 5}]},
            "interventions.0.stop: expected a step after start = 5, got 5",
        ),
        (
            {"task": "mws", "interventions": [{"kind": "attention_scale", "c": 2, "start": 500}]},
            "interventions.0.start: expected a step up to training.steps = 400, got 500",
        ),
        (
            {"task": "mws", "interventions": [{"kind": "attention_scale", "c": 2, "layers": []}]},
            "interventions.0.layers: expected at least one layer",
        ),
        (
            {"task": "histogram", "interventions": [{"kind": "attention_scale", "c": 2, "layers": [1]}]},
            "interventions.0.layers: histogram has no Ω at layer 1; expected among 0",
        ),
        (
            {"task": "mws", "evaluation": {"samples": "Paper"}},
            "evaluation.samples: input should be",
        ),
        (
            {"task": "mws", "checkpoints": {"log_spaced": 10**9}},
            "checkpoints.log_spaced: input should be less",
        ),
    ],
)
def test_errors_name_the_field_and_what_is_allowed(data, message):
    assert error_of(data).startswith(message)


def test_a_tasks_fields_are_a_mapping():
    with pytest.raises(ConfigError, match="task: expected a mapping of its fields, got 'x'"):
        RunConfig.for_task("mws", task="x")


def test_overrides_reach_any_depth_and_are_read_as_yaml():
    data = override(
        {"task": {"name": "mws"}}, ["training.steps=100", "task.k=3", "training.betas=[0.5, 0.9]"]
    )
    assert data == {
        "task": {"name": "mws", "k": 3},
        "training": {"steps": 100, "betas": [0.5, 0.9]},
    }


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("training.steps", "expected field=value"),
        ("=3", "expected field=value"),
        ("a..b=3", "expected field=value"),
        ("seed.x=3", "seed has no fields of its own"),
        ("task.k=[", "is not a YAML value"),
    ],
)
def test_wrong_overrides_are_one_line(assignment, message):
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        override({"task": {"name": "mws"}, "seed": 0}, [assignment])


def test_a_key_written_twice_is_an_error():
    with pytest.raises(ConfigError, match="duplicate key 'seed'"):
        read_yaml("seed: 1\nseed: 2\n", "file.yaml")


def test_interventions_that_follow_each_other_are_allowed():
    parts = [{"c": 2, "start": 0, "stop": 5}, {"c": 3, "start": 5}]
    config = RunConfig.for_task("mws", interventions=[{"kind": "attention_scale", **part} for part in parts])
    assert len(config.interventions) == 2


def test_merge_keys_work():
    data = read_yaml("base: &base {steps: 5}\ntraining:\n  <<: *base\n  lr: 0.1\n", "file.yaml")
    assert data["training"] == {"steps": 5, "lr": 0.1}


@pytest.mark.parametrize(
    "text",
    [
        "- 1\n",
        "",
        "a: [\n",
        "!!python/object/apply:os.system ['true']\n",
        "a: 2026-01-01\n",
        "2026-01-01: a\n",
        "a: !!binary aGk=\n",
        "a: !!set {b, c}\n",
        "a: &x [*x]\n",
        "? [1, 2]\n: a\n",
        "? {b: 1}\n: a\n",
        "a: " + "[" * 3000 + "]" * 3000 + "\n",
    ],
)
def test_what_is_not_a_plain_mapping_is_an_error(text):
    with pytest.raises(ConfigError, match=r"^file\.yaml: "):
        read_yaml(text, "file.yaml")


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        RunConfig.for_task("mws").seed = 3


def test_printed_yaml_names_every_field():
    data = yaml.safe_load(RunConfig.for_task("mws").yaml())
    assert set(data) == set(RunConfig.model_fields)
    assert data["training"]["lr"] == 1e-4


@pytest.mark.parametrize(
    ("section", "name"),
    [("training", "steps"), ("task", "k"), ("model", "d_head"), ("evaluation", "samples")],
)
def test_true_is_not_one(section, name):
    with pytest.raises(ConfigError) as caught:
        RunConfig.for_task("mws", **{section: {name: True}})
    assert str(caught.value) == f"{section}.{name}: expected a number or text, got true"
    assert RunConfig.for_task("prefix", task={"no_repeat": True}).task.no_repeat


def test_a_misspelled_field_is_recognized():
    assert error_of({"task": "mws", "trainig": {}}).endswith("; did you mean training?")
    assert error_of({"task": "mws", "training": {"stepz": 3}}).endswith("; did you mean steps?")
    assert error_of({"task": {"name": "mws", "max_nun": 3}}).endswith("; did you mean max_num?")
    assert "did you mean" not in error_of({"task": "mws", "qqqqqq": 1})


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"k": 3}, 'it is a field of task: give task={"k": 3}, or --set task.k='),
        ({"lr": 0.1}, 'it is a field of training: give training={"lr": 0.1}, or --set training.lr='),
        ({"every": 3}, 'evaluation={"every": 3} or checkpoints={"every": 3}'),
        ({"betas": [0.9, 0.99]}, 'give training={"betas": [0.9, 0.99]}, or --set'),
    ],
)
def test_a_field_outside_its_section_is_told_where_it_belongs(fields, hint):
    with pytest.raises(ConfigError) as caught:
        RunConfig.for_task("mws", **fields)
    (name,) = fields
    assert str(caught.value).startswith(f"{name}: unknown field; allowed here: task, model, training")
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_changed_configuration_is_validated():
    config = RunConfig.for_task("mws", training={"steps": 50}, seed=1)
    changed = config.with_(seed=5, training={"lr": 1e-2}, task={"k": 3})
    assert changed == RunConfig.for_task("mws", training={"steps": 50, "lr": 1e-2}, task={"k": 3}, seed=5)
    assert (config.seed, config.task.k) == (1, 2)
    other = config.with_(task={"name": "copy"})
    assert (other.task.name, other.training.steps) == ("copy", 50)
    assert config.with_(task=other.task).task == other.task
    for wrong, message in [
        ({"seed": -1}, "seed: input should be greater than or equal to 0"),
        ({"sed": 1}, "sed: unknown field; .*did you mean seed"),
        ({"task": {"k": 99}}, r"task\.k: expected a window"),
        ({"training": {"stepz": 1}}, r"training\.stepz: unknown field"),
    ]:
        with pytest.raises(ConfigError, match=message):
            config.with_(**wrong)
