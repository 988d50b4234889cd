"""A model's parameters by name: reading them, and loading others strictly."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from mechplateau.errors import CheckpointError

_Value = TypeVar("_Value")
_NORM = re.compile(r"(ln_final|blocks\.\d+\.ln[12])\.[wb]")


def plain_names(tensors: Mapping[str, _Value]) -> dict[str, _Value]:
    """Names without the prefixes of `torch.compile` (`_orig_mod.`) and data parallelism (`module.` before all names).

    Raises:
        CheckpointError: two names become the same.
    """
    plain: dict[str, _Value] = {}
    wrapped = bool(tensors) and all(_compiled(name).startswith("module.") for name in tensors)
    for name, tensor in tensors.items():
        short = _compiled(name)
        if wrapped:
            short = _compiled(short.removeprefix("module."))
        if short in plain:
            raise CheckpointError(
                f"{name} is duplicate, with and without the prefix of a wrapper; keep one of them"
            )
        plain[short] = tensor
    return plain


def _compiled(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def check_fits(given: Mapping[str, Tensor], expected: Mapping[str, Tensor], source: str) -> None:
    """Raise unless `given` has exactly the names, shapes and dtypes of `expected`.

    Raises:
        CheckpointError: one line naming each missing, unknown, misshapen or mistyped tensor.
    """
    norms = {name for name in expected if _NORM.fullmatch(name)}
    if norms and not norms & set(given) and set(given) == set(expected) - norms:
        raise CheckpointError(
            f"{source} holds folded weights (no gains and biases of LayerNorms): hidden states and gradients are then "
            "not the trained model's; give the weights as they were before process_weights_"
        )
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


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Load parameters strictly: every parameter of the model, nothing else, in its shape.

    Raises:
        CheckpointError: names what is missing, unknown or misshapen; the model is then unchanged.
    """
    own = parameters_of(model)
    check_fits(tensors, own, source)
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """All parameters by TransformerLens's names (the fixed b_U too), without the buffers that hold no weights.

    A compiled or wrapped model's are those of the model inside.
    """
    return plain_names({name: parameter.detach() for name, parameter in model.named_parameters()})
