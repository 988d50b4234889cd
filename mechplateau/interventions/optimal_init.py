"""Optimal initialization: a run that starts from another's attention, embeddings or MLP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor

from mechplateau.errors import ConfigError
from mechplateau.files import local_path
from mechplateau.interventions.base import Handle, register_intervention
from mechplateau.interventions.freeze import Freezing
from mechplateau.interventions.from_file import FromFile, is_finite
from mechplateau.interventions.parts import Parts, as_names, chosen, chosen_in
from mechplateau.models.config import ModelConfigBase
from mechplateau.models.kinds import kind_of, kind_of_module, model_kind
from mechplateau.models.safe_files import recorded_kind
from mechplateau.tasks import TaskBase

_UNNAMED = "gpt"
"""The kind of a file that names none: the paper's."""


@register_intervention
class OptimalInit(FromFile, Freezing):
    """Start from named tensors of a checkpoint, usually a finished run's, frozen or not.

    The rest keeps its random initialization. With `stop`, frozen tensors are trained from that step on.

    Source: arXiv 2506.13688, section 4 (figure 5).
    """

    kind: Literal["optimal_init"] = "optimal_init"
    parts: Parts
    """Names of parts (KQ, KQOV, MLP, embeddings, …), of tensors, or patterns with *."""
    freeze: bool = True
    """Keep them bitwise as they are; false: train them like the rest."""
    token_rows: tuple[tuple[int, int], ...] | None = None
    """Pairs (token here, token of the source) whose rows of the embeddings are moved, where the source knows
    another vocabulary; the other rows stay random, and are frozen with their tensor. null: whole tensors."""

    @model_validator(mode="after")
    def _from_the_beginning(self) -> Self:
        if self.start != 0:
            raise ValueError(f"start: an initialization is at step 0, got {self.start}")
        return self

    @classmethod
    def taken_from(cls, tensors: Mapping[str, Tensor], fields: Mapping[str, Any]) -> dict[str, Tensor]:
        kind = model_kind(recorded_kind(local_path(fields["source"])) or _UNNAMED)
        return {name: tensors[name] for name in kind.names_in(as_names(fields.get("parts", ())), tensors)}

    def check(self, task: TaskBase, model: ModelConfigBase) -> None:
        kind = kind_of(model)
        shapes = kind.shapes(model, task)
        taken = self.tensors_if_there()
        if taken is None:
            return
        problems = [
            f"{name} is not in the source" for name in kind.names_in(self.parts, shapes) if name not in taken
        ]
        for name, tensor in taken.items():
            if not is_finite(tensor):
                problems.append(f"{name} holds other than finite real numbers")
            if name not in shapes:
                problems.append(f"{name} of the source is not in this model")
            elif self.token_rows is not None and (axis := kind.roles.token_axis.get(name)) is not None:
                problems += self._wrong_rows(name, axis, tensor.shape, shapes[name])
            elif tuple(tensor.shape) != shapes[name]:
                problems.append(f"{name} has shape {list(tensor.shape)} there and {list(shapes[name])} here")
        if problems:
            raise ConfigError(f"source: {self.source} does not fit: {'; '.join(problems)}")

    def initialized(self, task: TaskBase, model: ModelConfigBase) -> frozenset[str]:
        names = frozenset(chosen(self.parts, task, model))
        # Rows of an embedding may come from one source each.
        return names if self.token_rows is None else names - set(kind_of(model).roles.token_axis)

    def held(self, task: TaskBase, model: ModelConfigBase) -> frozenset[str]:
        if not self.freeze:
            return frozenset()
        return frozenset(chosen(self.parts, task, model))

    def _wrong_rows(self, name: str, axis: int, there: Iterable[int], here: Iterable[int]) -> list[str]:
        there, here = list(there), list(here)
        own, other = zip(*(self.token_rows or ((0, 0),)), strict=True)
        if (
            there[1 - axis] != here[1 - axis]
            or max(own) >= here[axis]
            or max(other) >= there[axis]
            or min(*own, *other) < 0
        ):
            return [f"token_rows do not fit {name}, of shape {there} there and {here} here"]
        return []

    def begin(self, model: Any, task: TaskBase) -> None:
        parameters = dict(model.named_parameters())
        token_axis = kind_of_module(model).roles.token_axis
        with torch.no_grad():
            for name, tensor in self.tensors().items():
                own = parameters[name]
                if self.token_rows is not None and name in token_axis:
                    here, there = torch.tensor(self.token_rows, dtype=torch.int64).reshape(-1, 2).T
                    axis = token_axis[name]
                    own.index_copy_(
                        axis, here.to(own.device), tensor.index_select(axis, there).to(own.device)
                    )
                else:
                    own.copy_(tensor)

    def attach(self, model: Any, task: TaskBase) -> Handle:
        if not self.freeze:
            return Handle(lambda: None)
        # Of the source's names, not the source: a run that resumes does not need the file again.
        return self.hold(model, chosen_in(self.parts, model))
