"""Read the tensors of a Hugging Face checkpoint folder without running anything that it contains.

Safetensors files come first. A folder with pickled files only is read by PyTorch's weights-only unpickler,
which knows tensors and plain containers and nothing else; a file that needs more is refused, never retried.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mechplateau.errors import CheckpointError
from mechplateau.files import check_plain, read_tensors, read_torch

if TYPE_CHECKING:
    from torch import Tensor

LAYOUTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Where the weights may be, in the order in which transformers looks: one file, or the index of its shards."""
_INDEX = ".index.json"
_LONGEST_NAME = 255
"""Bytes in the name of a file, on the file systems in use."""


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a checkpoint folder."""

    tensors: dict[str, Tensor]
    """On the CPU, as stored; those of safetensors files are mapped, not copied."""
    notes: tuple[str, ...]
    """What was chosen where the folder holds more than one thing, in words."""


@dataclass(frozen=True)
class _Choice:
    """Which files of a folder count."""

    layout: str
    files: list[Path]
    shard_of: Mapping[str, str]
    """The shard that the index names for each tensor; empty without an index."""
    passed_over: list[str]
    """The other layouts that are there."""

    def notes(self) -> list[str]:
        if not self.passed_over:
            return []
        return [
            f"read from {self.layout}, as transformers does; not looked at: {', '.join(self.passed_over)}"
        ]


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a checkpoint folder that transformers would load, in its order.

    Raises:
        CheckpointError: no weights, a shard that the index names is missing, an unreadable folder or index, or
            weights that the folder's configuration changes or keeps elsewhere.
    """
    return _choose(folder).files


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint; see `read_checkpoint`."""
    return read_checkpoint(folder).tensors


def read_checkpoint(folder: Path) -> Checkpoint:
    """All tensors of a checkpoint, the ones transformers would take, and what was chosen among several.

    A tensor in several shards: transformers takes the last one in the order of the files' names, whatever the
    index says. Where the copies differ and the index names another one, none is taken.

    Raises:
        CheckpointError: missing, damaged or unsafe files, or copies of a tensor that contradict the index.
    """
    choice = _choose(folder)
    tensors: dict[str, Tensor] = {}
    owner: dict[str, str] = {}
    differing: dict[str, str] = {}
    for file in choice.files:
        read = read_tensors if file.suffix == ".safetensors" else _read_pickle
        for name, tensor in read(file):
            if name in tensors and not _equal(tensor, tensors[name]):
                differing[name] = owner[name]
            tensors[name], owner[name] = tensor, file.name
    for name, other in differing.items():
        if choice.shard_of.get(name) != owner[name]:
            raise CheckpointError(
                f"{folder}: {name} has other values in {other} than in {owner[name]}; the index names "
                f"{choice.shard_of.get(name, 'neither')}, transformers would take {owner[name]}; remove the stale one"
            )
    return Checkpoint(tensors, (*choice.notes(), *_copies_note(differing, owner)))


def _copies_note(differing: Mapping[str, str], owner: Mapping[str, str]) -> list[str]:
    if not differing:
        return []
    name, other = next(iter(differing.items()))
    more = f" (and {len(differing) - 1} more tensors like it)" if len(differing) > 1 else ""
    return [
        f"{name} has other values in {other} than in {owner[name]}, which counts, as the index says and "
        f"transformers does{more}"
    ]


def _equal(one: Tensor, other: Tensor) -> bool:
    import torch

    return one.dtype == other.dtype and torch.equal(one, other)


def stamp(folder: Path) -> list[list[str | int]]:
    """Name, size in bytes and modification time in ns of each weight and configuration file.

    Equal stamps mean that a finished measurement of this folder still holds.
    """
    with readable(folder):
        choice = _choose(folder)
        # A link to a file that is gone says nothing of its own.
        others = [*folder.glob("*.json"), *(folder / name for name in choice.passed_over)]
        files = {*choice.files, *(path for path in others if path.is_file())}
        return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in sorted(files)]


def _choose(folder: Path) -> _Choice:
    with readable(folder):
        next(folder.iterdir(), None)  # a folder without access is named, not a file that may be in it
        _check_plain(folder)
        there = [name for name in LAYOUTS if (folder / name).is_file() or (folder / name).is_symlink()]
        layout = next((name for name in there if (folder / name).is_file()), None)
        if layout is None:
            raise CheckpointError(
                f"{folder}: no weights; expected model.safetensors (or its shards with their index)"
            )
        passed_over = [name for name in there if name != layout]
        if not layout.endswith(_INDEX):
            return _Choice(layout, [folder / layout], {}, passed_over)
        shard_of = _read_index(folder / layout)
        files = [folder / name for name in sorted(set(shard_of.values()))]
        absent = [file.name for file in files if not file.is_file()]
        if absent:
            raise CheckpointError(f"{folder}: {layout} names {', '.join(absent)}, which is not there")
        return _Choice(layout, files, shard_of, passed_over)


def _check_plain(folder: Path) -> None:
    """Refuse what transformers would do beyond loading the usual files."""
    if (folder / "adapter_config.json").is_file():
        raise CheckpointError(
            f"{folder}: adapter_config.json: weights of an adapter; expected those of a whole model; merge the "
            "adapter into its model first"
        )
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (ValueError, RecursionError, FileNotFoundError):
        return  # said where the configuration is used
    if isinstance(config, dict) and config.get("transformers_weights") is not None:
        raise CheckpointError(
            f"{folder}: config.json names a weight file of its own (transformers_weights: "
            f"{str(config['transformers_weights'])[:80]!r}), which is not supported; rename that file to "
            "model.safetensors and take the entry out"
        )


@contextlib.contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Turn failures to read a checkpoint's files into one line.

    Raises:
        CheckpointError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or folder}: cannot be read ({error.strerror or error})"
        ) from None


def _read_index(index: Path) -> dict[str, str]:
    """The shard of each tensor."""
    try:
        shard_of = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"].items())
    # RecursionError: brackets nested by the thousand.
    except (ValueError, KeyError, AttributeError, TypeError, OSError, RecursionError) as error:
        raise CheckpointError(f"{index}: not an index of shards ({type(error).__name__}: {error})") from None
    if not shard_of:
        raise CheckpointError(f"{index}: names no shard")
    kind = Path(index.name.removesuffix(_INDEX)).suffix
    for name in shard_of.values():
        # An index is data from outside: it may not point out of its folder, nor change the kind of file.
        if (
            not isinstance(name, str)
            or "\0" in name
            or len(name.encode(errors="replace")) > _LONGEST_NAME
            or Path(name).name != name
            or Path(name).suffix != kind
        ):
            raise CheckpointError(f"{index}: {str(name)[:80]!r} is not the name of a shard in this folder")
    return shard_of


def _read_pickle(file: Path) -> Iterator[tuple[str, Tensor]]:
    state = read_torch(file, mmap=True)
    if not isinstance(state, dict):
        raise CheckpointError(f"{file}: expected a dictionary of tensors, got {type(state).__name__}")
    check_plain(file, state)
    for name, tensor in state.items():
        yield name, tensor.detach()
