"""The base of all tasks: data, objective, fitting models and default settings.

A task makes the data, names what is minimized on it, and says which kinds of model can learn it and what set-up they
are trained with. Nothing about a task is written anywhere else. Tasks of tokens that have a prompt and outputs:
`mechplateau.tasks.sequence`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import torch

from mechplateau.devices import device_named
from mechplateau.errors import ConfigError
from mechplateau.files import folder_name
from mechplateau.objectives import Batch, Objective
from mechplateau.schema import Config, whole_number


class TaskBase(Config):
    """Base of all tasks: a frozen configuration that makes batches of data and names its objective."""

    name: str
    """The registered name."""

    model_kinds: ClassVar[tuple[str, ...]] = ()
    """The kinds of model that can learn it; the first is what `model.kind` is where it is left out."""

    default_model: ClassVar[Mapping[str, Any]] = {}
    """Model settings of this task, where they differ from the defaults of the model's kind."""

    default_training: ClassVar[Mapping[str, Any]] = {}
    """Training settings of this task, where they differ from the defaults of TrainingConfig."""

    default_evaluation: ClassVar[Mapping[str, Any]] = {}
    """Evaluation settings of this task, where they differ from the defaults of EvaluationConfig."""

    presets: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {}
    """Named settings, another size say: name → section of the configuration (task, model, training, …) → settings.
    What is given beside a preset wins over it, and the defaults fill in what it leaves out."""

    llc_settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Named settings of chains that suit it: name → arguments of `mechplateau.development.llc_over_run`."""

    words: ClassVar[str] = ""
    """What the task is called where people read it; where it is left out, its name."""

    title_fields: ClassVar[tuple[str, ...]] = ()
    """The settings that its title shows."""

    @property
    def title(self) -> str:
        """The task in words, with the settings that make it: `Moving window sum, n = 16, k = 2, p = 17`."""
        called = self.words or self.name.replace("_", " ").capitalize()
        return ", ".join([called, *(f"{name} = {getattr(self, name)}" for name in self.title_fields)])

    @property
    @abstractmethod
    def objective(self) -> Objective:
        """What is minimized."""

    @property
    def measurement_names(self) -> tuple[str, ...]:
        """Names of the registered measurements that a run makes unless its configuration names others."""
        return ("loss",)

    @property
    def plateau_column(self) -> str:
        """Column of the metrics table whose plateau is the run's: the loss, or that of masked entries, say."""
        return "loss"

    @property
    def trivial_loss(self) -> float | None:
        """The loss of the best answer that ignores the input, in the objective's unit; None where it is not known."""
        return None

    @property
    def loss_floor(self) -> float | None:
        """The loss of a model that knows the rule, in the objective's unit: the rest is chance, such as the inputs of a
        sequence, which cannot be predicted. None where it is not known."""
        return None

    @property
    def position_groups(self) -> tuple[int, ...]:
        """Positions at which a new group begins, if the task has groups: maps show a line there."""
        return ()

    def batch(
        self,
        n: int,
        generator: torch.Generator | None = None,
        device: str | torch.device = "cpu",
        *,
        seed: int | None = None,
    ) -> Batch:
        """Make `n` examples on `device`.

        With neither a generator nor a seed, each call gives new data, as `torch.randn` does, and
        `torch.manual_seed` makes it repeat (one number is drawn from torch's CPU generator, whatever the device).
        The same seed gives the same data on a kind of device: two different batches need two seeds.

        Args:
            n: how many, at least 1.
            generator: a generator on that device; each call advances it.
            device: where to make them.
            seed: that of a generator for this call alone.

        Raises:
            ConfigError: both a generator and a seed, one of another kind or device, fewer than 1, or a `_batch` that
                makes something else.
        """
        n = whole_number(n, "n")
        if n < 1:
            raise ConfigError(f"n: expected at least 1, got {n}")
        torch_device = device if isinstance(device, torch.device) else device_named(device)
        made = self._batch(n, generator_on(torch_device, generator, seed), torch_device)
        if not isinstance(made, Batch) or len(made) != n:
            got = f"one of {len(made)}" if isinstance(made, Batch) else type(made).__name__
            raise ConfigError(f"{type(self).__name__}._batch: expected a Batch of {n}, got {got}")
        return made

    def evaluation_batch(
        self, n: int, generator: torch.Generator | None = None, device: str | torch.device = "cpu"
    ) -> Batch:
        """What is measured: fresh examples, or for a task that has one, a fixed set (of which `n` may be all)."""
        return self.batch(n, generator, device)

    def prepare(self) -> None:
        """Prepare what batches are made from (read a text, say), before anything of a run is written.

        Raises:
            UserError: it cannot be prepared.
        """
        return

    @abstractmethod
    def _batch(self, n: int, generator: torch.Generator, device: torch.device) -> Batch:
        """Make the examples, vectorized on `device`."""


def generator_on(
    device: torch.device, generator: torch.Generator | None, seed: int | None
) -> torch.Generator:
    """The given generator, after a check; without one, a generator for a single call.

    Without a seed that one is seeded with the next number of torch's CPU generator.

    Raises:
        ConfigError: both a generator and a seed, something else than a generator, one on another device, or a seed
            of more than 64 bits.
    """
    if generator is None:
        if seed is None:
            seed = int(torch.randint(2**63 - 1, (), device="cpu"))
        seed = whole_number(seed, "seed")
        if not -(2**63) <= seed < 2**63:
            raise ConfigError(f"seed: expected a number of 64 bits, got {seed}")
        return torch.Generator(device).manual_seed(seed)
    if seed is not None:
        raise ConfigError("seed: expected a generator or a seed, got both; leave one of them out")
    if not isinstance(generator, torch.Generator):
        raise ConfigError(
            f"generator: expected a torch.Generator, got {generator!r}; a seed is given by name, as in seed=0"
        )
    if generator.device.type != device.type:
        raise ConfigError(
            f"generator: expected one on {device}, where the data are made, got one on {generator.device}; "
            f"make it with torch.Generator({str(device)!r})"
        )
    return generator


_TaskType = TypeVar("_TaskType", bound=TaskBase)

_REGISTRY: dict[str, type[TaskBase]] = {}


def register_task(cls: type[_TaskType]) -> type[_TaskType]:
    """Class decorator: make a task known by the default of its `name` field, also from a notebook.

    Registering the same name again replaces the class, so that a notebook cell can be run twice.

    Raises:
        ConfigError: the class gives `name` no default, or one that cannot begin the name of a run's folder.
    """
    name = cls.model_fields["name"].default
    if not isinstance(name, str) or not name:
        raise ConfigError(f'{cls.__name__}: give the field a default, such as name: Literal["mine"] = "mine"')
    _REGISTRY[folder_name(name, f"{cls.__name__}.name")] = cls
    return cls


def task_names() -> tuple[str, ...]:
    """The registered names, sorted."""
    return tuple(sorted(_REGISTRY))


def task_class(name: object) -> type[TaskBase]:
    """The class registered under `name`.

    Raises:
        ConfigError: no such task. Code named in a file is never imported: a task of your own must be
            registered (by running the module or cell that defines it) before its runs are loaded.
    """
    if not isinstance(name, str) or name not in _REGISTRY:
        known = ", ".join(task_names())
        raise ConfigError(
            f"task.name: unknown task {name!r}; known: {known}; "
            "a task of your own must be defined with @register_task before its runs are used"
        )
    return _REGISTRY[name]
