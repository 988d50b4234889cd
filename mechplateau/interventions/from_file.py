"""Tensors that an intervention takes from a checkpoint, or the attention maps beside it, identified by content.

A SHA-256 of the tensors taken is recorded, so that a run's configuration and its hash depend on what it was
started from. Opening a finished run needs no source; starting one does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from mechplateau.errors import CheckpointError, ConfigError
from mechplateau.files import local_path
from mechplateau.interventions.base import Intervention
from mechplateau.interventions.parts import readable
from mechplateau.models.safe_files import load_tensors


def is_finite(tensor: Tensor) -> bool:
    """Whether these are real numbers, all of them finite."""
    return tensor.is_floating_point() and bool(torch.isfinite(tensor).all())


def content_hash(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, shapes, dtypes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {list(tensor.shape)} {tensor.dtype};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class FromFile(Intervention):
    """Takes tensors from a file, identified by their content: the file's path does not count for a run's hash."""

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
            and readable(data.get("parts", ()))
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
        """The tensors of the file that these fields name."""
        raise NotImplementedError

    @property
    def reads(self) -> tuple[Path, ...]:
        return (local_path(self.source),)

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
        """The tensors, or None if a run is only opened and its source is gone or has changed."""
        try:
            return self.tensors()
        except CheckpointError:
            return None
