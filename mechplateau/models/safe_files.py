"""Reading tensors from files of strangers: tensors only, never a pickle that could run code."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from mechplateau.errors import CheckpointError
from mechplateau.models.weights import plain_names

# Losses and accuracies are often saved as NumPy scalars; rebuilding one runs no foreign code.
_scalar = np.float64(0).__reduce__()[0]
_NUMPY_SCALARS: list[Any] = [
    np.dtype,
    *(type(np.dtype(kind)) for kind in ("float64", "float32", "int64", "int32", "bool")),
    (_scalar, "numpy.core.multiarray.scalar"),
    (_scalar, "numpy._core.multiarray.scalar"),
]


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The named tensors of a safetensors or torch file, on the CPU.

    A torch file may hold the state dict itself or a dict with it under `model`, `state_dict` or `model_state_dict`.
    Prefixes of wrappers (`_orig_mod.`, `module.`) are taken off the names.

    Raises:
        CheckpointError: missing, damaged, without tensors, or a pickle that asks for anything but tensors
            and plain values; such a file is never read another way.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; expected a checkpoint saved by torch or safetensors")
    try:
        path.open("rb").close()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    if path.suffix == ".safetensors":
        try:
            return _plain(load_file(path, device="cpu"), path)
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(
                f"{path}: damaged, or not a safetensors file ({_first_line(error)})"
            ) from None
    try:
        with torch.serialization.safe_globals(_NUMPY_SCALARS):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path}: refused, since loading it could run code: it holds more than tensors and plain values "
            f"({_reason(error)}); ask for a safetensors file"
        ) from None
    except Exception as error:  # torch raises many kinds for a damaged file
        if "weights_only" in str(error):  # formats that torch reads by running code: legacy tar, TorchScript
            raise CheckpointError(
                f"{path}: refused, since reading this format (legacy tar or TorchScript) could run code; "
                "ask for a safetensors file"
            ) from None
        raise CheckpointError(f"{path}: damaged, or not a torch file ({_first_line(error)})") from None
    for key in ("model", "state_dict", "model_state_dict"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    tensors = (
        {str(n): t for n, t in content.items() if isinstance(t, Tensor)}
        if isinstance(content, Mapping)
        else {}
    )
    if not tensors:
        raise CheckpointError(
            f"{path}: holds no named tensors; expected a state dict, or a dict with one under model"
        )
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
            raise CheckpointError(
                f"{path}: {name} is sparse, quantized or without data; expected a plain tensor"
            )
    return _plain(tensors, path)


def recorded_kind(path: Path) -> str | None:
    """The kind of model that a checkpoint of a run says it is of; None for a file that says nothing of the sort."""
    if path.suffix != ".safetensors":
        return None
    try:
        with safe_open(path, framework="pt") as file:
            description = json.loads((file.metadata() or {}).get("mechplateau", "{}"))
        model = description["config"]["model"]
        return str(model.get("kind", "gpt"))  # checkpoints lacked it while there was but one
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _plain(tensors: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    try:
        return plain_names(tensors)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _reason(error: Exception) -> str:
    """The part of torch's long message that names what the file asked for."""
    for line in str(error).splitlines():
        if "Unsupported" in line or "GLOBAL" in line or "tar" in line:
            return " ".join(line.split())[:160]
    return _first_line(error)[:160]
