"""A run's configuration: task, model, training, evaluation, interventions and seed.

`RunConfig.for_task("mws")` is the paper's set-up of a task. What a file or an override leaves out is filled
in from the task's own defaults, then from the defaults here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from mechplateau.errors import ConfigError
from mechplateau.interventions import Intervention, intervention_class
from mechplateau.measurements import Column, Setting, chosen_measurements, columns_of
from mechplateau.models.config import ModelConfig, ModelConfigBase
from mechplateau.models.kinds import kind_of, model_kind
from mechplateau.models.roles import matched
from mechplateau.schema import Config, laid_over, nested, unknown_field
from mechplateau.tasks import TaskBase, targets_of, task_class

SEEDS = 2**31
"""Seeds are below this."""
_FIRST_KIND = "gpt"
"""The kind of model of configurations that were written while there was but one."""


def _as_task(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    try:
        cls = task_class(value.get("name"))
    except ConfigError as error:
        raise ValueError(str(error).removeprefix("task.")) from None
    return nested(cls, value)


def _as_model(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    try:
        cls = model_kind(value.get("kind", _FIRST_KIND)).config_class
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return nested(cls, value)


def _as_intervention(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    try:
        cls = intervention_class(value.get("kind"))
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return nested(cls, value)


class TrainingConfig(Config):
    """How the model is trained: fresh data at every step, next-token cross-entropy over the whole sequence."""

    later: ClassVar[frozenset[str]] = frozenset(
        {"decay", "eps", "stop_at", "pct_start", "div_factor", "final_div_factor"}
    )
    unhashed: ClassVar[frozenset[str]] = frozenset({"stop_at"})

    steps: int = Field(400, ge=1, le=10**9)
    """Number of updates."""
    stop_past_solved: float | None = Field(None, ge=0, le=1000)
    """End early, at the first measured step that is this share (0.2: a fifth) past the first one with an
    accuracy of at least 0.95; null: never. The learning-rate schedule still counts on `steps`."""
    stop_at: int | None = Field(None, ge=1)
    """Stop after so many updates for now; null: do not. The learning-rate schedule still counts on `steps`, and the
    run keeps its name and what it needs to resume: raise it or set it to null, and rerun the command."""
    batch_size: int = Field(256, ge=1, le=2**20)
    optimizer: Literal["adam", "adamw", "sgd", "muon"] = "adam"
    """muon: torch's Muon on the matrices of attention and MLP, AdamW on everything else."""
    lr: float = Field(1e-4, gt=0)
    """Learning rate, after any warm-up; with muon, of its AdamW part."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's and AdamW's averages; with muon, of its AdamW part."""
    eps: float = Field(1e-8, gt=0)
    """What Adam and AdamW add to the root of the second average; with muon, of its AdamW part."""
    weight_decay: float = Field(0.0, ge=0)
    """adamw: decoupled, on the parameters that `decay` says; sgd, adam: L2, on all parameters; muon: decoupled,
    on the matrices that Muon trains."""
    decay: Literal["linear", "all"] = "linear"
    """adamw only, which parameters decay: the linear layers' weights, or all."""
    momentum: float = Field(0.0, ge=0, lt=1)
    """sgd only."""
    muon_lr: float = Field(0.02, gt=0)
    """muon only: learning rate of the matrices that Muon trains; a schedule acts on both rates."""
    muon_momentum: float = Field(0.95, ge=0, lt=1)
    """muon only."""
    muon_ln_final: bool = True
    """muon only: train the final LayerNorm; false: keep it at its initial value, as the authors' groups do."""
    schedule: Literal["constant", "warmup", "warmup_cosine", "one_cycle"] = "constant"
    """warmup: linear from 0 over warmup_steps, then constant; warmup_cosine: then a cosine to 0; one_cycle: linear up
    to `lr` and linear down again, as torch's OneCycleLR (anneal linear, no cycling of the momentum)."""
    warmup_steps: int = Field(200, ge=1)
    """Used by the schedules with a warm-up, whose first update has learning rate 0."""
    pct_start: float = Field(0.3, ge=0, le=1)
    """one_cycle: the share of the steps on which the rate rises."""
    div_factor: float = Field(25.0, gt=0)
    """one_cycle: the first rate is lr / div_factor."""
    final_div_factor: float = Field(1e4, gt=0)
    """one_cycle: the last rate is lr / (div_factor · final_div_factor)."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: autocast of the forward pass, weights stay float32; refused where it would only be slower."""
    clip_norm: float | None = Field(None, gt=0)
    """Largest norm of the whole gradient; null: no clipping."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for beta in self.betas:
            if not 0 <= beta < 1:
                raise ValueError(f"betas: expected two numbers from 0 to below 1, got {list(self.betas)}")
        if self.schedule == "warmup_cosine" and self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps: expected less than training.steps = {self.steps} with warmup_cosine, "
                f"got {self.warmup_steps}"
            )
        return self


class CheckpointConfig(Config):
    """When the weights are kept: at the union of what is given here. Step 0 and the last step always are."""

    later: ClassVar[frozenset[str]] = frozenset({"linear_spaced", "rounding", "from_onset_every"})

    every: int | None = Field(None, ge=1)
    """Keep every so many steps; null: a twentieth of the run, or none where steps are spaced otherwise."""
    log_spaced: int | None = Field(None, ge=2, le=10_000)
    """Keep this many steps from 1 to the last, spaced evenly in the logarithm."""
    linear_spaced: int | None = Field(None, ge=2, le=10_000)
    """Keep this many steps from 0 to the last, spaced evenly; 2: the two ends only."""
    rounding: Literal["nearest", "down"] = "nearest"
    """How log_spaced and linear_spaced become whole steps."""
    at: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Further steps to keep."""
    from_onset_every: int | None = Field(None, ge=1)
    """Keep every so many steps, too, from the measured step on at which the run is seen to be on its plateau: the loss
    that the task's plateau is defined on fell and is level (see `mechplateau.signs.live`), and the task is not
    solved."""


class EvaluationConfig(Config):
    """What is measured, on which sequences, how often. Measuring never changes training."""

    later: ClassVar[frozenset[str]] = frozenset({"log_spaced", "at", "measurements"})

    every: int | None = Field(1, ge=1)
    """Measure every so many steps; step 0 and the last step always are. Where it is left out and log_spaced or at
    is given, it is null: none."""
    log_spaced: int | None = Field(None, ge=2, le=10_000)
    """Measure this many steps from 1 to the last, spaced evenly in the logarithm, too."""
    at: Literal["checkpoints"] | None = None
    """checkpoints: measure where checkpoints are kept, too; without every and log_spaced, there only."""
    samples: int | Literal["paper"] = 64
    """How many fresh sequences are measured; paper: as the authors do (loss, accuracy of each output, APM,
    COS and α₁ on the training batch; repetition, entropy and accuracy on 64 fresh sequences)."""
    locations: Literal["final", "all"] = "final"
    """Where hidden states are compared: after the final LayerNorm, or at every place of every layer too."""
    measurements: tuple[str, ...] | None = None
    """Names of measurements, beside the loss, which always is one; null: the task's own."""

    @model_validator(mode="before")
    @classmethod
    def _every_left_out(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "every" not in data and (data.get("log_spaced") or data.get("at")):
            return {**data, "every": None}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.every == 1 and (self.log_spaced is not None or self.at is not None):
            other = "log_spaced" if self.log_spaced is not None else "at"
            raise ValueError(
                f"every: expected null or more than 1 beside {other}, got 1, which measures every step "
                f"(then set {other} to null)"
            )
        if isinstance(self.samples, int) and not 1 <= self.samples <= 2**20:
            raise ValueError(
                f"samples: expected at least 1 sequence (at most 2^20), or paper, got {self.samples}"
            )
        return self


def task_presets(name: str) -> tuple[str, ...]:
    """Names of the presets of the named task.

    Raises:
        ConfigError: there is no such task.
    """
    return tuple(task_class(name).presets)


def task_settings(name: str, preset: str | None = None) -> dict[str, Any]:
    """A configuration of the named task as plain data, with the settings of one of its presets and without defaults.

    Raises:
        ConfigError: there is no such task or preset.
    """
    settings: dict[str, Any] = {"task": {"name": name}}
    if preset is None:
        return settings
    presets = task_class(name).presets
    if not isinstance(preset, str) or preset not in presets:
        known = ", ".join(presets) or "none"
        raise ConfigError(
            f"preset: {name} has none called {preset!r}; known: {known}; leave it out for the task's own set-up"
        )
    return laid_over(settings, presets[preset])


class RunConfig(Config):
    """Everything that decides a run's numbers. Equal configurations give equal runs."""

    task: Annotated[SerializeAsAny[TaskBase], BeforeValidator(_as_task)]
    model: Annotated[SerializeAsAny[ModelConfigBase], BeforeValidator(_as_model)] = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()
    interventions: tuple[Annotated[SerializeAsAny[Intervention], BeforeValidator(_as_intervention)], ...] = ()
    seed: int = Field(0, ge=0, lt=SEEDS)

    @model_validator(mode="before")
    @classmethod
    def _fill_from_task(cls, data: Any) -> Any:
        """Settings that are left out come from the task's own set-up."""
        if not isinstance(data, Mapping):
            return data
        task = data.get("task")
        if isinstance(task, str):
            task = {"name": task}
            data = {**data, "task": task}
        try:
            owner = type(task) if isinstance(task, TaskBase) else task_class((task or {}).get("name"))
        except (ConfigError, AttributeError):
            return data  # the task's own validator says what is wrong
        cls._name_sections(data, owner)
        filled = dict(data)
        for section, defaults in (
            ("model", cls._default_model(owner, data)),
            ("training", owner.default_training),
            ("evaluation", owner.default_evaluation),
        ):
            given = filled.get(section, {})
            if isinstance(given, Mapping):
                filled[section] = {**defaults, **given}
        return filled

    @classmethod
    def _default_model(cls, task: type[TaskBase], data: Mapping[str, Any]) -> Mapping[str, Any]:
        """The task's settings of its own kind of model; of another kind, none of them."""
        own = task.default_model.get("kind", next(iter(task.model_kinds), _FIRST_KIND))
        given = data.get("model", {})
        kind = given.get("kind", own) if isinstance(given, Mapping) else own
        return {"kind": own, **task.default_model} if kind == own else {}

    @classmethod
    def _name_sections(cls, data: Mapping[str, Any], task: type[TaskBase]) -> None:
        """Raise ValueError for a field beside the sections that belongs in one of them."""
        sections: dict[str, type[Config]] = {
            "task": task,
            "model": cls._model_class(data, task),
            "training": TrainingConfig,
            "evaluation": EvaluationConfig,
            "checkpoints": CheckpointConfig,
        }
        for name in data:
            if isinstance(name, str) and name not in cls.model_fields:
                owners = [section for section, config in sections.items() if name in config.model_fields]
                if owners:
                    ways = " or ".join(f'{section}={{"{name}": {data[name]!r}}}' for section in owners)
                    hint = f"it is a field of {' and of '.join(owners)}: give {ways}, or --set {owners[0]}.{name}="
                    raise ValueError(unknown_field(name, list(cls.model_fields), hint))

    @classmethod
    def _model_class(cls, data: Mapping[str, Any], task: type[TaskBase]) -> type[Config]:
        given = data.get("model", {})
        kind = given.get("kind") if isinstance(given, Mapping) else getattr(given, "kind", None)
        try:
            return model_kind(kind or cls._default_model(task, data).get("kind", _FIRST_KIND)).config_class
        except ConfigError:
            return ModelConfigBase  # the model's own validator says what is wrong

    @model_validator(mode="after")
    def _model_fits(self) -> Self:
        kind = kind_of(self.model)
        if not kind.takes(self.task):
            known = ", ".join(self.task.model_kinds) or "none"
            raise ValueError(
                f"model.kind: {self.task.name} is learned by models of kind {known}; got {kind.name}"
            )
        try:
            chosen_measurements(self.task, self.model, self.evaluation.measurements)
        except ConfigError as error:
            raise ValueError(f"evaluation.measurements: {error}") from None
        return self

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of a run's table, each with its unit, its definition and when it is undefined."""
        setting = Setting(self.task, self.model, self.evaluation.locations)
        return columns_of(setting, self.evaluation.measurements)

    @model_validator(mode="after")
    def _interventions_fit(self) -> Self:
        for target in targets_of(self.task):
            if target.layer is not None and target.layer >= self.model.n_layers:
                raise ValueError(
                    f"model.n_layers: expected more than {target.layer}, where {self.task.name}'s attention target "
                    f"{target.name} lies, got {self.model.n_layers}"
                )
        for index, intervention in enumerate(self.interventions):
            if intervention.start > self.training.steps:
                raise ValueError(
                    f"interventions.{index}.start: expected a step up to training.steps = {self.training.steps}, "
                    f"got {intervention.start}"
                )
            kind = kind_of(self.model)
            takes = kind.attention or intervention.kind in kind.interventions
            if intervention.needs_attention and not takes:
                raise ValueError(
                    f"interventions.{index}.kind: {intervention.kind} acts on a model's attention, which a model of "
                    f"kind {self.model.kind} does not let it; expected another kind of model or intervention"
                )
            try:
                intervention.check(self.task, self.model)
            except ConfigError as error:
                raise ValueError(f"interventions.{index}.{error}") from None
            for earlier, other in enumerate(self.interventions[:index]):
                if problem := intervention.conflict(other) or other.conflict(intervention):
                    raise ValueError(f"interventions.{index}: {problem} interventions.{earlier}")
                if both := intervention.initialized(self.task, self.model) & other.initialized(
                    self.task, self.model
                ):
                    raise ValueError(
                        f"interventions.{index}: sets the same tensors ({', '.join(sorted(both))}) as "
                        f"interventions.{earlier}"
                    )
        if self.interventions:
            self._something_is_trained()
        return self

    def _something_is_trained(self) -> None:
        trained = kind_of(self.model).trained(self.model, self.task)
        if self.training.optimizer == "muon" and not self.training.muon_ln_final:
            trained -= set(matched(trained, kind_of(self.model).roles.final_norm))
        for begun in self.interventions:
            together = [i for i, other in enumerate(self.interventions) if other.active(begun.start)]
            held = {
                i: names for i in together if (names := self.interventions[i].held(self.task, self.model))
            }
            if held and trained <= frozenset().union(*held.values()):
                *others, last = held
                with_others = (
                    f" together with {', '.join(f'interventions.{i}' for i in others)}" if others else ""
                )
                raise ValueError(
                    f"interventions.{last}: every tensor would be frozen{with_others} and nothing "
                    "trained; hold fewer"
                )

    @classmethod
    def for_task(cls, name: str, *, preset: str | None = None, **sections: Any) -> Self:
        """The paper's set-up of the named task, or one of its presets.

        Args:
            name: of the task.
            preset: named settings of the task (`presets` of its class), small for instance; None: the paper's.
            sections: task, model, training, …: settings that win over those.

        Raises:
            ConfigError: there is no such task or preset, or a setting is not allowed.
        """
        task = sections.pop("task", {})
        if not isinstance(task, Mapping):
            raise ConfigError(f"task: expected a mapping of its fields, got {task!r}")
        return cls.parse(laid_over(task_settings(name, preset), {**sections, "task": {"name": name, **task}}))

    @property
    def reads(self) -> tuple[Path, ...]:
        """Files that the run reads when it starts, besides its own."""
        return tuple(dict.fromkeys(path for one in self.interventions for path in one.reads))

    @property
    def run_name(self) -> str:
        """Name of the run's folder: the task's name and the configuration's hash (the seed is part of it)."""
        return f"{self.task.name}-{self.content_hash()}"


__all__ = [
    "CheckpointConfig",
    "EvaluationConfig",
    "ModelConfig",
    "RunConfig",
    "TrainingConfig",
    "task_presets",
    "task_settings",
]
