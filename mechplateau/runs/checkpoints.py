"""Checkpoint files: self-describing safetensors files (tensors and JSON, no code)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from mechplateau.errors import CheckpointError
from mechplateau.files import TensorFileError, first_line, open_safetensors, write_atomic
from mechplateau.runs.layout import REMEDY, step_named

FORMAT = 1
_KEY = "mechplateau"


def save_tensors(path: Path, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Write tensors and a JSON description, atomically; equal contents give equal bytes.

    Raises:
        RunError: the file cannot be written.
    """
    # One key only: safetensors keeps several in no particular order.
    metadata = {_KEY: json.dumps({"format": FORMAT, **description}, sort_keys=True)}
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    def write(temporary: Path) -> None:
        try:
            save_file(plain, temporary, metadata=metadata)
        except SafetensorError as error:  # its own word for what the system refused, a full disk among it
            raise OSError(str(error)) from None

    write_atomic(path, write)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the description of a file written by `save_tensors`, on the CPU.

    Raises:
        CheckpointError: missing, damaged, not ours, of a later format, or of another step than its name says.
    """
    with _opened(path) as (file, description):
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    return tensors, description


def read_description(path: Path) -> dict[str, Any]:
    """The description alone, which costs no time. Errors as `read_tensors`."""
    with _opened(path) as (_, description):
        return description


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A file of tensors and its checked description."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint")
    try:
        with open_safetensors(path) as (file, header):
            description = json.loads(header.get(_KEY, "null"))
            _check(path, description)
            yield file, description
    except TensorFileError as error:
        raise CheckpointError(f"{path}: damaged ({error.reason}); {REMEDY}") from None
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{path}: damaged ({first_line(error)}); {REMEDY}") from None


def _check(path: Path, description: Any) -> None:
    if not isinstance(description, dict):
        raise CheckpointError(f"{path}: not a checkpoint of mechplateau: it lacks the {_KEY} description")
    if description.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: format {description.get('format')!r}, this version reads {FORMAT}; update mechplateau"
        )
    if (named := step_named(path)) is not None and description.get("step") != named:
        raise CheckpointError(
            f"{path}: holds step {description.get('step')!r}, not the one of its name; put the right file back"
        )


def flatten_state(optimizer_state: Mapping[str, Any]) -> dict[str, Tensor]:
    """An optimizer's state dict as named tensors: `{parameter index}.{name}`."""
    return {
        f"{index}.{name}": torch.as_tensor(value)
        for index, values in optimizer_state["state"].items()
        for name, value in values.items()
        if value is not None
    }


def unflatten_state(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """The inverse of `flatten_state`: what belongs under `state` of an optimizer's state dict."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = tensor
    return state
