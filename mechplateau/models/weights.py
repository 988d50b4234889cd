"""Strictness about weights: what a state dict must hold to fit a model."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from mechplateau.errors import CheckpointError


def check_fits(given: Mapping[str, Tensor], expected: Mapping[str, Tensor], source: str) -> None:
    """Raise unless `given` has exactly the names, shapes and dtypes of `expected`.

    Raises:
        CheckpointError: one line naming each missing, unknown, misshapen or mistyped tensor.
    """
    problems = []
    if missing := sorted(set(expected) - set(given)):
        problems.append(f"missing {', '.join(missing)}")
    if unknown := sorted(set(given) - set(expected)):
        problems.append(f"unknown {', '.join(unknown)}")
    for name in sorted(set(given) & set(expected)):
        if given[name].shape != expected[name].shape:
            problems.append(
                f"{name} has shape {list(given[name].shape)}, expected {list(expected[name].shape)}"
            )
        elif given[name].dtype != expected[name].dtype:
            problems.append(f"{name} is {_dtype(given[name])}, expected {_dtype(expected[name])}")
    if problems:
        raise CheckpointError(f"{source} does not fit the model: {'; '.join(problems)}")


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
