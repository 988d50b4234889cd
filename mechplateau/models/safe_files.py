"""Named tensors of checkpoints from any source, and the description in a run's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from mechplateau.errors import CheckpointError
from mechplateau.files import check_plain, open_safetensors, read_tensors, read_torch
from mechplateau.models.weights import plain_names


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The named tensors of a safetensors or torch file, on the CPU.

    A torch file may hold the state dict itself or a dict with it under `model`, `state_dict` or `model_state_dict`.
    Prefixes of wrappers (`_orig_mod.`, `module.`) are taken off the names.

    Raises:
        CheckpointError: missing, damaged, without tensors, or a pickle that needs anything but tensors
            and plain values; such a file is never read another way.
    """
    if path.suffix == ".safetensors":
        return _plain(dict(read_tensors(path)), path)
    content = read_torch(path)
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
    check_plain(path, tensors)
    return _plain(tensors, path)


def recorded_kind(path: Path) -> str | None:
    """The kind of model that a checkpoint of a run says it is of; None for a file that says nothing of the sort."""
    if path.suffix != ".safetensors":
        return None
    try:
        with open_safetensors(path) as (_, header):
            description = json.loads(header.get("mechplateau", "{}"))
        model = description["config"]["model"]
        return str(model.get("kind", "gpt"))  # checkpoints lacked it while there was but one
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _plain(tensors: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    try:
        return plain_names(tensors)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
