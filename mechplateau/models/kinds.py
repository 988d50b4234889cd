"""Kinds of model: how a configuration becomes a module, and what its parts are called.

`model.kind` in a run's configuration picks one. A kind builds the module, names the parts that can be frozen, started
from or moved, and the places where hidden states are looked at. No other code knows a kind's parameter names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar, cast

import torch
from torch import nn

from mechplateau.errors import ConfigError
from mechplateau.models.config import ModelConfigBase
from mechplateau.models.roles import Roles, matched
from mechplateau.tasks import TaskBase

Slot = tuple[str, int | None]
"""A parameter's name, and the head (its first axis) that is meant; None: all of it."""

_Config = TypeVar("_Config", bound=ModelConfigBase)


class ModelKind(ABC, Generic[_Config]):
    """One kind of model. It registers itself by the default of its configuration's `kind`.

    A module that it builds is called with a batch's `inputs` and returns what the task's objective compares with the
    targets. TransformerLens's names for parameters and hook points (a `HookedRootModule`) make patching and probing
    work on it. Where measurements need hidden states or attention, it has an `observe` as
    `mechplateau.models.Trainable` says; where they need generated tokens, a `generate_on`. Its parameters are all
    that a run keeps, and its outputs depend on nothing else: no dropout, no running averages.
    """

    config_class: ClassVar[type[ModelConfigBase]]
    """Its configuration, a subclass of ModelConfigBase with `kind: Literal["mine"] = "mine"`."""

    patterns: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Named parts: name → patterns (with *) of parameter names."""

    roles: ClassVar[Roles] = Roles()
    """Which parameters weight decay, Muon, interventions and transfers mean."""

    untrained: ClassVar[frozenset[str]] = frozenset()
    """Parameters that training never changes (their `requires_grad` is off)."""

    attention: ClassVar[bool] = False
    """Whether `blocks[layer].attn` takes a factor or a pattern in place of its own, and `observe` gives its masses:
    what attention progress and the interventions on attention need."""

    generates: ClassVar[bool] = False
    """Whether its module has `generate_on`: tokens, one after the other, from an observation of the prompt."""

    interventions: ClassVar[frozenset[str]] = frozenset()
    """Interventions on attention that it takes, where `attention` says that it does not take all of them."""

    @property
    def name(self) -> str:
        """What `model.kind` says."""
        return str(self.config_class.model_fields["kind"].default)

    def takes(self, task: TaskBase) -> bool:
        """Whether it can learn this task; the task decides, unless the kind overrides this."""
        return self.name in task.model_kinds

    @abstractmethod
    def build(
        self,
        config: _Config,
        task: TaskBase,
        *,
        generator: torch.Generator | None = None,
        device: str | torch.device = "cpu",
    ) -> nn.Module:
        """A freshly initialized model.

        Args:
            config: sizes.
            task: gives the rest of them: the number of tokens, the length.
            generator: a CPU generator, from which all initial weights are drawn; None: seed 0.
            device: where it is put.
        """

    def initial_generator(self, seed: int) -> torch.Generator | None:
        """A CPU generator for the initial weights of a run with this seed; None: the package's own (see
        `training.seeding`). For a kind whose published weights come from a generator of their own."""
        return None

    def shapes(self, config: _Config, task: TaskBase) -> Mapping[str, tuple[int, ...]]:
        """Shapes of all parameters. Built without memory where `build` can do that, else with it."""
        meta = torch.device("meta")
        try:
            with meta:
                model = self.build(config, task, device=meta)
        except Exception:  # whatever in it reads a number from a tensor, or takes a generator of the CPU
            model = self.build(config, task)
        return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}

    def parts(self, config: _Config, task: TaskBase) -> Mapping[str, tuple[str, ...]]:
        """Named parts of a model of this size: name → names of its trained parameters, sorted."""
        names = self.shapes(config, task)
        found = {part: self._matched(patterns, names) for part, patterns in self.patterns.items()}
        return {part: own for part, own in found.items() if own}

    def places(self, config: _Config) -> tuple[str, ...]:
        """Names of the places where hidden states can be looked at; none where `observe` knows none."""
        return ()

    def components(self, config: _Config, names: Sequence[str]) -> Mapping[str, tuple[Slot, ...]]:
        """What parameter patching moves, one at a time: label → slots. The named parts; without any, the modules.

        Args:
            config: sizes.
            names: the model's parameters.
        """
        found: dict[str, tuple[Slot, ...]] = {}
        for part, patterns in self.patterns.items():
            if own := self._matched(patterns, names):
                found[part] = tuple((name, None) for name in own)
        return found or by_module(names)

    def names_in(self, parts: Iterable[str], names: Iterable[str]) -> tuple[str, ...]:
        """The parameters that `parts` name, sorted: a part's name, a parameter's, or a pattern with *.

        Args:
            parts: what is looked for.
            names: parameters there are (of a model, or of a file).

        Raises:
            ConfigError: a part matches none of `names`; lists the parts and names there are.
        """
        names = list(names)
        known = sorted(set(names) - self.untrained)
        expected = ", ".join([*self.patterns, "a tensor's name"])
        chosen: set[str] = set()
        for part in parts:
            own = self._matched(self.patterns.get(part, (part,)), names)
            if not own:
                raise ConfigError(
                    f"parts: {part!r} matches no tensor; expected one of {', '.join(self.patterns)}, or of the tensors "
                    f"{', '.join(known)} (* matches anything)"
                )
            chosen.update(own)
        if not chosen:
            raise ConfigError(f"parts: expected at least one of {expected}")
        return tuple(sorted(chosen))

    def _matched(self, patterns: Iterable[str], names: Iterable[str]) -> tuple[str, ...]:
        return tuple(matched(sorted(set(names) - self.untrained), patterns))

    def trained(self, config: _Config, task: TaskBase) -> frozenset[str]:
        """Names of all parameters that training may change."""
        return frozenset(self.shapes(config, task)) - self.untrained


def by_module(names: Sequence[str]) -> dict[str, tuple[Slot, ...]]:
    """Parameters by the module that has them, each of the root's own by itself."""
    found: dict[str, tuple[Slot, ...]] = {}
    for name in names:
        module = name.rpartition(".")[0] or name
        found[module] = (*found.get(module, ()), (name, None))
    return found


_REGISTRY: dict[str, ModelKind[Any]] = {}
_Kind = TypeVar("_Kind", bound=type[ModelKind[Any]])


def register_model_kind(cls: _Kind) -> _Kind:
    """Class decorator: make a kind known by the default of its configuration's `kind`, also from a notebook.

    Registering the same name again replaces the class, so that a notebook cell can be run twice.

    Raises:
        ConfigError: the configuration gives `kind` no default.
    """
    kind = cls.config_class.model_fields["kind"].default
    if not isinstance(kind, str) or not kind:
        raise ConfigError(
            f'{cls.config_class.__name__}: give the field a default, such as kind: Literal["mine"] = "mine"'
        )
    _REGISTRY[kind] = cls()
    return cls


def model_kinds() -> tuple[str, ...]:
    """The registered names, sorted."""
    return tuple(sorted(_REGISTRY))


def model_kind(name: object) -> ModelKind[Any]:
    """The kind registered under `name`.

    Raises:
        ConfigError: no such kind. Code named in a file is never imported: a kind of your own must be registered (by
            running the module or cell that defines it) before its runs are used.
    """
    if not isinstance(name, str) or name not in _REGISTRY:
        raise ConfigError(
            f"kind: unknown model kind {name!r}; known: {', '.join(model_kinds())}; a kind of your own must be "
            "defined with @register_model_kind before its runs are used"
        )
    return _REGISTRY[name]


def kind_of(config: ModelConfigBase) -> ModelKind[Any]:
    """The kind of a model's configuration."""
    return model_kind(config.kind)


def kind_of_module(model: nn.Module) -> ModelKind[Any]:
    """The kind of a model that `build` made."""
    return kind_of(cast(ModelConfigBase, model.model_config))


def build(
    config: ModelConfigBase,
    task: TaskBase,
    *,
    generator: torch.Generator | None = None,
    device: str | torch.device = "cpu",
) -> nn.Module:
    """A freshly initialized model of a configuration for a task, which carries its configuration (`model_config`)."""
    model = kind_of(config).build(config, task, generator=generator, device=device)
    model.model_config = config  # type: ignore[assignment]
    return model


__all__ = [
    "ModelKind",
    "Slot",
    "build",
    "by_module",
    "kind_of",
    "kind_of_module",
    "model_kind",
    "model_kinds",
    "register_model_kind",
]
