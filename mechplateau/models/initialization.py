"""Interventions that set or hold weights and attention: optimal initialization, freezing, an imposed pattern.

They take what they need from files (a checkpoint, or the attention maps kept beside it) and record a SHA-256 of
the tensors taken, so that a run's configuration, and with it the run's hash, says what it was started from.
Opening a finished run needs no source; starting one does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, cast

import torch
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor, nn

from mechplateau.errors import CheckpointError, ConfigError
from mechplateau.models.config import ModelConfig, ModelConfigBase
from mechplateau.models.interventions import Handle, Intervention, register_intervention
from mechplateau.models.kinds import kind_of, model_kind
from mechplateau.models.safe_files import load_tensors, recorded_kind
from mechplateau.paths import local_path
from mechplateau.tasks import TaskBase, sequence_task, targets_of

_UNNAMED = "gpt"
"""The kind of a file that names none: the paper's."""

TOKEN_AXIS: Mapping[str, int] = {"embed.W_E": 0, "unembed.W_U": 1}
"""Tensors with one row or column a token, which means something only within a vocabulary."""


def _as_names(value: Any) -> Any:
    if not _readable(value):
        raise ValueError(f"expected a name or a list of names, got {value!r}")
    return (value,) if isinstance(value, str) else value


Parts = Annotated[tuple[str, ...], BeforeValidator(_as_names)]


def _readable(parts: Any) -> bool:
    """Whether these are names, as validation will ask."""
    return isinstance(parts, str) or (
        isinstance(parts, list | tuple) and all(isinstance(part, str) for part in parts)
    )


def _chosen(parts: Iterable[str], task: TaskBase, model: ModelConfigBase) -> tuple[str, ...]:
    """The parameters that parts stand for, in a model of this configuration."""
    kind = kind_of(model)
    return kind.names_in(parts, kind.shapes(model, task))


def _chosen_in(parts: Iterable[str], model: nn.Module) -> tuple[str, ...]:
    """The parameters that parts stand for, in this model."""
    kind = kind_of(cast(ModelConfigBase, model.model_config))
    return kind.names_in(parts, dict(model.named_parameters()))


def _is_finite(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and bool(torch.isfinite(tensor).all())


def content_hash(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, shapes, dtypes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {list(tensor.shape)} {tensor.dtype};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class _FromFile(Intervention):
    """Takes tensors from a file, known by their content: where it lies does not count for a run's hash."""

    unhashed: ClassVar[frozenset[str]] = frozenset({"source"})

    source: str
    """A file of tensors by TransformerLens's names: a run's checkpoint, or a run's maps."""
    sha256: str = Field("", pattern="^([0-9a-f]{64})?$")
    """Of the tensors taken; filled in from the source where it is left out."""

    @model_validator(mode="before")
    @classmethod
    def _fill_hash(cls, data: Any) -> Any:
        if (
            isinstance(data, Mapping)
            and isinstance(data.get("source"), str)
            and not data.get("sha256")
            and _readable(data.get("parts", ()))
        ):
            try:
                taken = cls.taken_from(load_tensors(local_path(data["source"])), data)
            except (CheckpointError, ConfigError) as error:
                message = str(error)
                raise ValueError(message if message.startswith("parts: ") else f"source: {message}") from None
            return {**data, "sha256": content_hash(taken)}
        return data

    @classmethod
    def taken_from(cls, tensors: Mapping[str, Tensor], fields: Mapping[str, Any]) -> dict[str, Tensor]:
        """The tensors of the file that these fields ask for."""
        raise NotImplementedError

    def tensors(self) -> dict[str, Tensor]:
        """The tensors taken, on the CPU.

        Raises:
            CheckpointError: the source is gone, or holds others than those recorded.
        """
        taken = self.taken_from(load_tensors(local_path(self.source)), self.model_dump())
        if content_hash(taken) != self.sha256:
            raise CheckpointError(
                f"{self.source}: its tensors are not those recorded (sha256 {self.sha256[:12]}…); restore the file, "
                "or leave sha256 out to start a new run from the present ones"
            )
        return taken

    def tensors_if_there(self) -> dict[str, Tensor] | None:
        """The tensors, or None where a run is only opened and its source is gone or another by now."""
        try:
            return self.tensors()
        except CheckpointError:
            return None


class _Freezing(Intervention):
    """Holds parameters as they are: no gradient, and so no update, weight decay or optimizer state."""

    def hold(self, model: nn.Module, names: Iterable[str]) -> Handle:
        """Stop training the named parameters until the handle is removed."""
        parameters = dict(model.named_parameters())
        held = [parameters[name] for name in names]
        for parameter in held:
            # Counted, because two interventions may hold one tensor and end at different steps.
            parameter.holders = getattr(parameter, "holders", 0) + 1  # type: ignore[attr-defined]
            parameter.requires_grad_(False)
            parameter.grad = None

        def undo() -> None:
            while held:
                parameter = held.pop()
                parameter.holders -= 1  # type: ignore[attr-defined]
                if parameter.holders == 0:  # type: ignore[attr-defined]
                    parameter.requires_grad_(True)

        return Handle(undo)


@register_intervention
class Freeze(_Freezing):
    """Keep named tensors bitwise as they are at its first step: from step 0, frozen at random."""

    kind: Literal["freeze"] = "freeze"
    parts: Parts
    """Names of parts (KQ, attention, ln1, …), of tensors, or patterns with *."""

    def check(self, task: TaskBase, model: ModelConfigBase) -> None:
        _chosen(self.parts, task, model)

    def held(self, task: TaskBase, model: ModelConfigBase) -> frozenset[str]:
        return frozenset(_chosen(self.parts, task, model))

    def attach(self, model: Any, task: TaskBase) -> Handle:
        return self.hold(model, _chosen_in(self.parts, model))


@register_intervention
class OptimalInit(_FromFile, _Freezing):
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
        return {name: tensors[name] for name in kind.names_in(_as_names(fields.get("parts", ())), tensors)}

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
            if not _is_finite(tensor):
                problems.append(f"{name} holds other than finite real numbers")
            if name not in shapes:
                problems.append(f"{name} of the source is not in this model")
            elif self.token_rows is not None and name in TOKEN_AXIS:
                problems += self._wrong_rows(name, tensor.shape, shapes[name])
            elif tuple(tensor.shape) != shapes[name]:
                problems.append(f"{name} has shape {list(tensor.shape)} there and {list(shapes[name])} here")
        if problems:
            raise ConfigError(f"source: {self.source} does not fit: {'; '.join(problems)}")

    def initialized(self, task: TaskBase, model: ModelConfigBase) -> frozenset[str]:
        names = _chosen(self.parts, task, model)
        # Rows of an embedding may come from one source each.
        return frozenset(name for name in names if self.token_rows is None or name not in TOKEN_AXIS)

    def held(self, task: TaskBase, model: ModelConfigBase) -> frozenset[str]:
        if not self.freeze:
            return frozenset()
        return frozenset(_chosen(self.parts, task, model))

    def _wrong_rows(self, name: str, there: Iterable[int], here: Iterable[int]) -> list[str]:
        there, here, axis = list(there), list(here), TOKEN_AXIS[name]
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
        with torch.no_grad():
            for name, tensor in self.tensors().items():
                own = parameters[name]
                if self.token_rows is not None and name in TOKEN_AXIS:
                    here, there = torch.tensor(self.token_rows, dtype=torch.int64).reshape(-1, 2).T
                    axis = TOKEN_AXIS[name]
                    own.index_copy_(
                        axis, here.to(own.device), tensor.index_select(axis, there).to(own.device)
                    )
                else:
                    own.copy_(tensor)

    def attach(self, model: Any, task: TaskBase) -> Handle:
        if not self.freeze:
            return Handle(lambda: None)
        # Of the source's names, not the source: a run that resumes does not need the file again.
        return self.hold(model, _chosen_in(self.parts, model))


@register_intervention
class ImposedPattern(_FromFile):
    """Replace every layer's attention pattern by a fixed one: the mean map that a run kept at a checkpoint.

    The pattern is the same for every sequence; keys and queries then have no effect and are not trained. It stands
    in `hook_pattern`'s place in training, measurement and generation, and overrides a factor on Ω.
    """

    needs_attention: ClassVar[bool] = True

    kind: Literal["imposed_pattern"] = "imposed_pattern"

    @classmethod
    def taken_from(cls, tensors: Mapping[str, Tensor], fields: Mapping[str, Any]) -> dict[str, Tensor]:
        maps = {name: tensor for name, tensor in tensors.items() if name.startswith("pattern.L")}
        if not maps:
            raise ConfigError(
                f"{fields['source']} holds no attention maps; expected a file of a run's maps folder"
            )
        return maps

    def check(self, task: TaskBase, model: ModelConfigBase) -> None:
        sequences = sequence_task(task, "kind: imposed_pattern")
        if any(target.mask.shape[0] != 1 for target in targets_of(task)):
            raise ConfigError(
                f"kind: imposed_pattern is one pattern for all sequences, and the Ω of {task.name} varies; "
                "transfer the parameters (KQ) instead"
            )
        taken = self.tensors_if_there()
        if taken is None:
            return
        here = [cast(ModelConfig, model).n_heads, sequences.n_input, sequences.n_input]
        there = {name: list(tensor.shape) for name, tensor in sorted(taken.items())}
        if wrong := [name for name, tensor in sorted(taken.items()) if not _is_finite(tensor)]:
            raise ConfigError(
                f"source: {self.source}: {', '.join(wrong)} holds other than finite real numbers"
            )
        if len(there) != model.n_layers or any(shape != here for shape in there.values()):
            shown = ", ".join(f"{name} {shape}" for name, shape in there.items())
            raise ConfigError(
                f"source: {self.source} does not fit: it has {shown} (head, query, key); "
                f"this model has {model.n_layers} layer(s) of {here}"
            )

    def held(self, task: TaskBase, model: ModelConfigBase) -> frozenset[str]:
        # No gradient reaches them.
        return frozenset(_chosen(["blocks.*.attn.[Wb]_[KQ]"], task, model))

    def attach(self, model: Any, task: TaskBase) -> Handle:
        maps = self.tensors()
        handles = []
        for layer, block in enumerate(model.blocks):
            device = block.attn.W_V.device
            handles.append(
                block.attn.hook_pattern.register_forward_hook(_imposing(maps[f"pattern.L{layer}"].to(device)))
            )

        def undo() -> None:
            for handle in handles:
                handle.remove()

        return Handle(undo)


def _imposing(pattern: Tensor):
    """A PyTorch hook that answers with the rows of `pattern` that are asked for; generation asks for the last only."""

    def hook(module, inputs, output: Tensor) -> Tensor:
        queries, keys = output.shape[-2:]
        rows = pattern[:, keys - queries : keys, :keys].to(output.dtype)
        return rows.expand(output.shape[0], -1, -1, -1)

    return hook


__all__ = [
    "TOKEN_AXIS",
    "Freeze",
    "ImposedPattern",
    "OptimalInit",
    "content_hash",
]
