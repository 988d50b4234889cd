"""What holds for all metrics: annotated shapes are right, names are exported, nothing waits for the device."""

import inspect
from collections.abc import Callable

import pytest
import torch
from beartype import beartype
from jaxtyping import jaxtyped
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from mechplateau import metrics, signs

TOKENS = torch.tensor([[1, 1, 2, 3], [0, 2, 2, 1]])
HIDDEN = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0))
MATRIX = torch.eye(4)
PAIRS = torch.ones(4, 4, dtype=torch.bool)

CALLS: dict[str, tuple] = {
    "accuracy": (TOKENS, TOKENS),
    "accuracy_per_output": (TOKENS, TOKENS),
    "attention_progress": (torch.ones(2, 3, 7), torch.ones(2, 3, 2, 7), slice(1, 5)),
    "cosine_matrix": (HIDDEN,),
    "cosine_per_output": (MATRIX,),
    "count_check": (TOKENS, TOKENS, 6),
    "count_check_all": (TOKENS, TOKENS, range(1, 6)),
    "loss_per_output": (torch.zeros(2, 4, 6), TOKENS),
    "match_to_first": (TOKENS,),
    "match_to_first_by_part": (TOKENS, 2),
    "mean_cosine": (MATRIX, PAIRS),
    "mean_norm": (HIDDEN,),
    "repetition_frequency": (TOKENS,),
    "sequence_entropy": (TOKENS, 6),
    "stable_rank": (HIDDEN,),
}
METRICS = sorted(CALLS)


def checked(name: str) -> Callable:
    return jaxtyped(typechecker=beartype)(getattr(metrics, name))


def tensors(result: object) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def test_every_exported_name_is_covered_and_in_the_table():
    functions = {n for n in metrics.__all__ if inspect.isfunction(getattr(metrics, n))}
    assert functions == {*METRICS, "find_plateau", "solved_at"}
    assert metrics.find_plateau is signs.find_plateau
    assert metrics.SOLVED == signs.SOLVED
    for name in METRICS:
        assert f"| `{name}` |" in metrics.__doc__
        assert getattr(metrics, name).__doc__


@pytest.mark.parametrize("name", METRICS)
def test_annotated_shapes_hold(name: str):
    for tensor in tensors(checked(name)(*CALLS[name])):
        assert torch.isfinite(tensor).all()


@pytest.mark.parametrize("name", METRICS)
def test_a_missing_dimension_is_caught(name: str):
    first, *others = CALLS[name]
    with pytest.raises(Exception, match="type"):
        checked(name)(first[0], *others)


@pytest.mark.parametrize("name", METRICS)
def test_nothing_reads_values_on_the_host(name: str):
    """Fake tensors hold no values: whatever asks for one fails. The pairs of the cosine are CPU constants."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    arguments = [mode.from_tensor(a) if isinstance(a, Tensor) and a is not PAIRS else a for a in CALLS[name]]
    with pytest.raises(DataDependentOutputException):
        arguments[0].sum().item()
    real = tensors(getattr(metrics, name)(*CALLS[name]))
    fake = tensors(getattr(metrics, name)(*arguments))
    assert [(t.shape, t.dtype) for t in fake] == [(t.shape, t.dtype) for t in real]


@pytest.mark.parametrize("name", METRICS)
def test_arguments_are_left_as_they_were(name: str):
    before = [a.clone() if isinstance(a, Tensor) else a for a in CALLS[name]]
    getattr(metrics, name)(*CALLS[name])
    for old, new in zip(before, CALLS[name], strict=True):
        assert torch.equal(old, new) if isinstance(old, Tensor) else old == new
