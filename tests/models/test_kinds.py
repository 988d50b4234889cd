"""Kinds of model: registered, chosen by `model.kind`, asked for their parts."""

from __future__ import annotations

from typing import ClassVar, Literal

import pytest
import torch
from torch import nn

from mechplateau import RunConfig
from mechplateau.errors import ConfigError
from mechplateau.models import kinds
from mechplateau.models.config import ModelConfig, ModelConfigBase
from mechplateau.models.kinds import ModelKind, build, model_kind, model_kinds, register_model_kind
from mechplateau.objectives import Batch, SquaredError
from mechplateau.tasks import MovingWindowSum, TaskBase, base, register_task


class LineConfig(ModelConfigBase):
    kind: Literal["test_line"] = "test_line"
    width: int = 3


class Line(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner, self.outer = nn.Linear(2, width), nn.Linear(width, 2)
        self.outer.bias.requires_grad_(False)


class LineKind(ModelKind[LineConfig]):
    config_class: ClassVar = LineConfig
    patterns: ClassVar = {"first": ("inner.*",), "weights": ("*.weight",), "attention": ("blocks.*.attn.*",)}
    untrained: ClassVar = frozenset({"outer.bias"})

    def build(self, config, task, *, generator=None, device="cpu"):
        return Line(config.width).to(device)


class Doubling(TaskBase):
    name: Literal["test_doubling"] = "test_doubling"
    model_kinds: ClassVar = ("test_line",)
    default_model: ClassVar = {"width": 5}
    default_evaluation: ClassVar = {"every": 7}

    @property
    def objective(self):
        return SquaredError()

    def _batch(self, n, generator, device):
        numbers = torch.randn(n, 2, generator=generator, device=device)
        return Batch(numbers, 2 * numbers)


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    for module in (base, kinds):
        monkeypatch.setattr(module, "_REGISTRY", dict(module._REGISTRY))
    register_model_kind(LineKind)
    register_task(Doubling)


def test_a_task_names_the_kind_and_its_settings():
    config = RunConfig.for_task("test_doubling")
    assert config.model == LineConfig(width=5)
    assert config.evaluation.every == 7
    assert RunConfig.for_task("test_doubling", model={"width": 2}).model.width == 2
    assert RunConfig.parse(config.data()) == config
    assert "kind: test_line" in config.yaml()
    assert RunConfig.for_task("mws").model.kind == "gpt"


def test_another_kind_takes_none_of_the_settings_of_the_tasks_own():
    with pytest.raises(
        ConfigError, match=r"model\.kind: test_doubling is learned by models of kind test_line; got gpt"
    ):
        RunConfig.for_task("test_doubling", model={"kind": "gpt"})


@pytest.mark.parametrize(
    ("task", "model", "message"),
    [
        (
            "mws",
            {"kind": "test_line"},
            r"model\.kind: mws is learned by models of kind gpt\b.*; got test_line",
        ),
        (
            "mws",
            {"kind": "rnn"},
            r"model\.kind: unknown model kind 'rnn'; known: .*gpt.*@register_model_kind",
        ),
        ("test_doubling", {"widht": 2}, r"model\.widht: unknown field; allowed here: .*did you mean width"),
        ("mws", {"d_model": 0, "n_heads": 0}, r"model\.n_heads: .*; model\.d_model: "),
        ("test_doubling", {"width": True}, r"model\.width: expected a number or text, got true"),
    ],
)
def test_a_wrong_model_is_one_line(task, model, message):
    with pytest.raises(ConfigError, match=message) as raised:
        RunConfig.for_task(task, model=model)
    assert "\n" not in str(raised.value)


def test_an_intervention_on_attention_needs_a_kind_that_has_it():
    with pytest.raises(
        ConfigError, match=r"interventions\.0\.kind: attention_scale acts on a model's attention"
    ):
        RunConfig.for_task("test_doubling", interventions=[{"kind": "attention_scale", "c": 2.0}])


def test_the_kind_counts_for_a_runs_name_unless_it_is_the_first():
    class Renamed(ModelConfig):
        kind: Literal["test_renamed"] = "test_renamed"

    assert Renamed().content_hash() != ModelConfig().content_hash()
    assert "kind" in LineConfig().data()
    assert LineConfig().content_hash() != ModelConfig().content_hash()


def test_parts_shapes_and_components_are_asked_of_the_kind():
    kind, task, config = model_kind("test_line"), Doubling(), LineConfig()
    assert kind.shapes(config, task) == {
        "inner.weight": (3, 2), "inner.bias": (3,), "outer.weight": (2, 3), "outer.bias": (2,)
    }  # fmt: skip
    assert kind.trained(config, task) == {"inner.weight", "inner.bias", "outer.weight"}
    assert kind.parts(config, task) == {
        "first": ("inner.bias", "inner.weight"), "weights": ("inner.weight", "outer.weight")
    }  # fmt: skip
    assert kind.names_in(["outer.*"], kind.shapes(config, task)) == ("outer.weight",)
    names = list(kind.shapes(config, task))
    assert kind.components(config, names)["first"] == (("inner.bias", None), ("inner.weight", None))
    with pytest.raises(ConfigError, match=r"parts: 'KQ' matches no tensor; expected one of first, weights"):
        RunConfig.for_task("test_doubling", interventions=[{"kind": "freeze", "parts": "KQ"}])
    frozen = RunConfig.for_task("test_doubling", interventions=[{"kind": "freeze", "parts": "first"}])
    assert frozen.interventions[0].held(task, config) == {"inner.weight", "inner.bias"}
    with pytest.raises(ConfigError, match="every tensor would be frozen"):
        RunConfig.for_task("test_doubling", interventions=[{"kind": "freeze", "parts": "*"}])


def test_a_kind_without_named_parts_moves_its_modules():
    class Plain(LineKind):
        patterns: ClassVar = {}

    moved = Plain().components(LineConfig(), ["inner.weight", "inner.bias", "scale"])
    assert moved == {"inner": (("inner.weight", None), ("inner.bias", None)), "scale": (("scale", None),)}


def test_gpt_is_a_kind():
    assert "gpt" in model_kinds()
    kind, config, task = (
        model_kind("gpt"),
        ModelConfig(d_model=8, n_heads=2),
        MovingWindowSum(n=3, p=5, max_num=4),
    )
    model = build(config, task)
    assert kind.shapes(config, task) == {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert kind.places(config) == ("final", "L0_resid_pre", "L0_attn_out", "L0_resid_mid", "L0_resid_post")
    assert "embed.W_E" in kind.parts(config, task)["KQ"]
    assert model.to_str_tokens(torch.tensor([4, 5])) == ["4", "SEP"]
    assert {name for name, p in model.named_parameters() if not p.requires_grad} == kind.untrained


def test_a_kind_without_a_name_is_refused():
    class Nameless(ModelConfigBase):
        pass

    with pytest.raises(ConfigError, match="Nameless: give the field a default"):

        @register_model_kind
        class Kind(LineKind):
            config_class = Nameless
