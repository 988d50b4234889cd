"""What a step costs in operations, beside how fast steps are: so that a size that needs a GPU is known to need one.

Counted are the matrix products of an encoder's layers: an entry of a sequence takes, in each layer,
2 (4 d² + 2 d·d_mlp) + 4 T·d operations, and the backward pass twice as many as the forward pass. The paper's matrix
completion (T 49, d 768, d_mlp 3072, 4 layers, batch 256) comes to 2.15 · 10¹² a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from mechplateau.config import RunConfig
from mechplateau.models.encoder_config import EncoderConfig
from mechplateau.training.loop import Row

LARGE = 0.1
"""TFLOP a step from which on a run is made for a GPU: a second or more on a CPU's thread."""
_ON_A_CPU, _ON_A_GPU = 1, 200
"""Steps that are timed; one more before them is not."""


def tflop_of_a_step(config: RunConfig) -> float | None:
    """10¹² operations of a step's matrix products; None for models other than the encoder."""
    model, cells = config.model, getattr(config.task, "n_cells", None)
    if not isinstance(model, EncoderConfig) or cells is None:
        return None
    heads = model.n_heads * model.head_width
    an_entry = 2 * (4 * model.d_model * heads + 2 * model.d_model * model.mlp_width) + 4 * cells * heads
    return 3 * config.training.batch_size * cells * model.n_layers * an_entry / 1e12


class Rate:
    """A listener that says once how fast steps are, and how long the rest takes.

    Args:
        config: of the run.
        device: where it trains.
        tell: takes the sentence.
        clock: seconds.
    """

    def __init__(
        self,
        config: RunConfig,
        device: str,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._steps, self._tflop, self._tell, self._clock = (
            config.training.steps,
            tflop_of_a_step(config),
            tell,
            clock,
        )
        self._on_a_gpu = device.startswith("cuda")
        self._timed = _ON_A_GPU if self._on_a_gpu else _ON_A_CPU
        self._first: int | None = None
        self._begin = 0.0

    def on_step(self, step: int, row: Row | None) -> None:
        """Begins after the first step that it receives: what is built at a first step takes longer."""
        if self._first is None:
            if step > 0:
                self._first, self._begin = step, self._now()
            return
        if step != self._first + self._timed or self._tflop is None:
            return
        seconds = (self._now() - self._begin) / self._timed
        rate, hours = self._tflop / seconds, (self._steps - step) * seconds / 3600
        self._tell(
            f"{self._tflop:.3g} TFLOP a step: {seconds:.3g} s each here, {rate:.3g} TFLOP/s; the other "
            f"{self._steps - step:,} steps would take {hours:.3g} hours"
        )

    def _now(self) -> float:
        if self._on_a_gpu:
            import torch

            torch.cuda.synchronize()
        return self._clock()


def made_for_a_gpu(config: RunConfig) -> bool:
    """Whether a step is so large that a CPU is only good for a try."""
    return (tflop_of_a_step(config) or 0.0) >= LARGE


__all__ = ["LARGE", "Rate", "made_for_a_gpu", "tflop_of_a_step"]
