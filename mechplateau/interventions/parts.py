"""Parts of a model as an intervention's field names them, and freezing them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BeforeValidator
from torch import nn

from mechplateau.models.config import ModelConfigBase
from mechplateau.models.kinds import kind_of, kind_of_module
from mechplateau.tasks import TaskBase


def as_names(value: Any) -> Any:
    """A single name is a list of one."""
    if not readable(value):
        raise ValueError(f"expected a name or a list of names, got {value!r}")
    return (value,) if isinstance(value, str) else value


Parts = Annotated[tuple[str, ...], BeforeValidator(as_names)]


def readable(parts: Any) -> bool:
    """Whether these are names; validation calls this."""
    return isinstance(parts, str) or (
        isinstance(parts, list | tuple) and all(isinstance(part, str) for part in parts)
    )


def chosen(parts: Iterable[str], task: TaskBase, model: ModelConfigBase) -> tuple[str, ...]:
    """The parameters that parts name, in a model of this configuration."""
    kind = kind_of(model)
    return kind.names_in(parts, kind.shapes(model, task))


def chosen_in(parts: Iterable[str], model: nn.Module) -> tuple[str, ...]:
    """The parameters that parts name, in this model."""
    return kind_of_module(model).names_in(parts, dict(model.named_parameters()))
