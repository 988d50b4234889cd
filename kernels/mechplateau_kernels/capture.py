"""A function of tensors of fixed shapes, replayed as one CUDA graph: no launch costs, however small its kernels.

The first calls run as they are, on a side stream, and do real work: what is compiled or allocated on first
use happens there, and a training step needs no rehearsal that would have to be undone. Then one call is
captured; from there on a call copies its inputs into fixed memory and replays.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

__all__ = ["Captured"]

Result = TypeVar("Result")


class Captured(Generic[Result]):
    """`function(*tensors)`, captured after `warmup` ordinary calls; with a first input on the CPU, just called.

    The function must not wait for the device (no `.item()`), must keep to the same memory (optimizers with
    `capturable=True`, learning rates as tensors changed in place, gradients left where they are), and must
    take what changes from call to call as an argument. What it returns is memory that the next call overwrites.

    Args:
        function: of tensors only.
        warmup: ordinary calls before the capture; at least 1 for kernels to be compiled, 3 as PyTorch advises.

    Raises (when called):
        ValueError: the inputs' number, shapes, dtypes or devices are not those captured.
    """

    def __init__(self, function: Callable[..., Result], warmup: int = 3) -> None:
        self._function = function
        self._left = warmup
        self._graph: Any = None
        self._inputs: tuple[Tensor, ...] = ()
        self._result: Result | None = None

    @property
    def captured(self) -> bool:
        """Whether calls are replays by now."""
        return self._graph is not None

    def __call__(self, *inputs: Tensor) -> Result:
        if not inputs or inputs[0].device.type != "cuda":
            return self._function(*inputs)
        # Streams, captures and replays are the current device's, which need not be the tensors'.
        with torch.cuda.device(inputs[0].device):
            return self._on_device(*inputs)

    def _on_device(self, *inputs: Tensor) -> Result:
        if self._graph is None and self._left > 0:
            self._left -= 1
            return self._on_side_stream(*inputs)
        if self._graph is None:
            self._capture(*inputs)
        self._check(inputs)
        for fixed, given in zip(self._inputs, inputs, strict=True):
            fixed.copy_(given)
        self._graph.replay()
        return self._result  # type: ignore[return-value]

    def _on_side_stream(self, *inputs: Tensor) -> Result:
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            result = self._function(*inputs)
        current.wait_stream(side)
        return result

    def _capture(self, *inputs: Tensor) -> None:
        self._inputs = tuple(x.detach().clone() for x in inputs)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            self._result = self._function(*self._inputs)
        self._graph = graph

    def _check(self, inputs: tuple[Tensor, ...]) -> None:
        expected = [(tuple(x.shape), x.dtype, x.device) for x in self._inputs]
        got = [(tuple(x.shape), x.dtype, x.device) for x in inputs]
        if expected != got:
            raise ValueError(
                f"Captured: expected inputs as captured, {expected}; got {got}: make a new Captured for other shapes"
            )
