"""Read the tensors of a Hugging Face checkpoint folder without running anything that it contains.

Safetensors files come first. A folder with pickled files only is read by PyTorch's weights-only unpickler,
which knows tensors and plain containers and nothing else; a file that needs more is refused, never retried.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mechplateau.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

_LAYOUTS = (
    ("model.safetensors.index.json", "model.safetensors"),
    ("pytorch_model.bin.index.json", "pytorch_model.bin"),
)
"""Index of a sharded checkpoint and name of an unsharded one, in order of preference."""
_LONGEST_NAME = 255
"""Bytes in the name of a file, on the file systems in use."""


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a checkpoint folder: one safetensors set if there is one, else one pickled set.

    Raises:
        CheckpointError: no weights, a shard that the index names is missing, or an unreadable folder or
            index.
    """
    with _readable(folder):
        for index_name, single_name in _LAYOUTS:
            index, single = folder / index_name, folder / single_name
            if index.is_file():
                files = [folder / name for name in _shards(index)]
                absent = [file.name for file in files if not file.is_file()]
                if absent:
                    raise CheckpointError(
                        f"{folder}: {index_name} names {', '.join(absent)}, which is not there"
                    )
                return files
            if single.is_file():
                return [single]
    raise CheckpointError(
        f"{folder}: no weights; expected model.safetensors (or its shards with their index)"
    )


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint, on the CPU, as stored; safetensors files stay mapped, not copied.

    Raises:
        CheckpointError: missing, damaged or unsafe files, or one tensor in two shards.
    """
    state: dict[str, Tensor] = {}
    for file in weight_files(folder):
        read = _read_safetensors if file.suffix == ".safetensors" else _read_pickle
        for name, tensor in read(file):
            if name in state:
                raise CheckpointError(f"{file}: tensor {name} is in another shard too")
            state[name] = tensor
    return state


def stamp(folder: Path) -> list[list[str | int]]:
    """Name, size in bytes and modification time in ns of each weight and configuration file.

    Equal stamps mean that a finished measurement of this folder still holds.
    """
    with _readable(folder):
        # A link to a file that is gone says nothing of its own.
        files = {*weight_files(folder), *(path for path in folder.glob("*.json") if path.is_file())}
        return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in sorted(files)]


@contextlib.contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or folder}: cannot be read ({error.strerror or error})"
        ) from None


def _shards(index: Path) -> list[str]:
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    # RecursionError: brackets nested by the thousand.
    except (ValueError, KeyError, AttributeError, TypeError, OSError, RecursionError) as error:
        raise CheckpointError(f"{index}: not an index of shards ({type(error).__name__}: {error})") from None
    if not names:
        raise CheckpointError(f"{index}: names no shard")
    kind = Path(index.name.removesuffix(".index.json")).suffix
    for name in names:
        # An index is data from outside: it may not point out of its folder, nor change the kind of file.
        if (
            not isinstance(name, str)
            or "\0" in name
            or len(name.encode(errors="replace")) > _LONGEST_NAME
            or Path(name).name != name
            or Path(name).suffix != kind
        ):
            raise CheckpointError(f"{index}: {str(name)[:80]!r} is not the name of a shard in this folder")
    return sorted(names)


def _read_safetensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt", device="cpu") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (the handle is no mapping)
                yield name, tensors.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: not a readable safetensors file ({error})") from None


def _read_pickle(file: Path) -> Iterator[tuple[str, Tensor]]:
    import torch

    try:
        # Its warnings are about formats it may not know: those end in a refusal here.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except pickle.UnpicklingError as error:
        reason = str(error).split("WeightsUnpickler error:")[-1].strip().splitlines()[0]
        raise CheckpointError(
            f"{file}: refused, it holds more than tensors ({reason}); convert it to safetensors where it is "
            "trusted"
        ) from None
    except (RuntimeError, EOFError, OSError, KeyError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{file}: refused, not readable as tensors alone ({reason})") from None
    if not isinstance(state, dict):
        raise CheckpointError(f"{file}: expected a dictionary of tensors, got {type(state).__name__}")
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise CheckpointError(
                f"{file}: expected tensors by name, got {type(tensor).__name__} under {name!r}"
            )
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
            kind = "quantized" if tensor.is_quantized else f"{tensor.layout} on {tensor.device}"
            raise CheckpointError(
                f"{file}: expected plain tensors, got {kind.removeprefix('torch.')} under {name!r}"
            )
        yield name, tensor.detach()
