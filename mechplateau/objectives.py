"""What is minimized: a batch of data, and how wrong a model's outputs are on it.

A task makes a `Batch` and names its `Objective`. Training, measurements, probes and patching use these two; no other
code knows which part of the data the model sees, or what its outputs are compared with.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from mechplateau.errors import UserError


@dataclass(frozen=True, eq=False)
class Batch:
    """Data for one forward. A task with more to say adds fields, each a tensor whose first axis is the batch.

    Attributes:
        inputs: what the model is called with, `[batch, …]`.
        targets: what its outputs are compared with, `[batch, …]`.
    """

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors it is made of, in the order of its fields."""
        return tuple(getattr(self, one.name) for one in fields(self) if one.init)

    def of(self, tensors: Iterable[Tensor]) -> Self:
        """A batch of the same kind, made of other tensors (in the order of `tensors`)."""
        return type(self)(*tensors)

    def to(self, device: str | torch.device) -> Self:
        """The same data on another device; itself where it is there already."""
        moved = [tensor.to(device) for tensor in self.tensors()]
        return self if all(a is b for a, b in zip(moved, self.tensors(), strict=True)) else self.of(moved)


@dataclass(frozen=True, eq=False)
class TokenBatch(Batch):
    """Whole sequences, of which the model sees all but the last token and predicts each next one.

    `inputs` and `targets` `[batch, seq − 1]` are views of the tokens.

    Attributes:
        tokens: int64 `[batch, seq]`.
    """

    inputs: Int[Tensor, "batch pos"] = field(init=False)
    targets: Int[Tensor, "batch pos"] = field(init=False)
    tokens: Int[Tensor, "batch seq"]

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", self.tokens[:, :-1])
        object.__setattr__(self, "targets", self.tokens[:, 1:])


def tokens_of(batch: Batch) -> Int[Tensor, "batch seq"]:
    """The whole sequences of a batch of tokens.

    Raises:
        UserError: it is another kind of batch.
    """
    if not isinstance(batch, TokenBatch):
        raise UserError(f"expected a batch of tokens (TokenBatch), got {type(batch).__name__}")
    return batch.tokens


class Objective(ABC):
    """How wrong outputs are: a loss for each entry of the targets, and their weighted mean.

    Attributes:
        unit: of the loss.
        meaning: what the loss is, in a few words, for tables and pictures.
    """

    unit: ClassVar[str]
    meaning: ClassVar[str]

    @abstractmethod
    def losses(self, outputs: Tensor, batch: Batch) -> Float[Tensor, "batch entry"]:
        """The loss of each entry, differentiable.

        Args:
            outputs: what the model returned for `batch.inputs`.
            batch: the data.
        """

    def weights(self, batch: Batch) -> Tensor | None:
        """How much each entry counts in the mean, `[batch, entry]`, at least 0; None: all alike."""
        return None

    def loss(self, outputs: Tensor, batch: Batch) -> Float[Tensor, ""]:
        """Σ weight · loss / Σ weight, differentiable; not a number where no entry counts, with a gradient of 0."""
        losses, weights = self.losses(outputs, batch), self.weights(batch)
        if weights is None:
            return losses.mean()
        total = weights.sum()
        # Divided by 1 where there is nothing: 0 / 0 would make every gradient, and so every weight, not a number.
        mean = (losses * weights).sum() / torch.where(total > 0, total, 1)
        return torch.where(total > 0, mean, torch.nan)


@dataclass(frozen=True)
class NextToken(Objective):
    """Cross-entropy of the next token at every position, in nats: −log softmax(logits)[target].

    Outputs are logits `[batch, pos, vocab]`, targets tokens `[batch, pos]`. A random prompt's positions count too, so
    the mean need not be able to reach 0.
    """

    unit: ClassVar[str] = "nats"
    meaning: ClassVar[str] = "next-token cross-entropy over the whole sequence"

    def losses(self, outputs: Float[Tensor, "batch pos vocab"], batch: Batch) -> Float[Tensor, "batch pos"]:
        flat = F.cross_entropy(outputs.flatten(0, 1), batch.targets.flatten(), reduction="none")
        return flat.view(batch.targets.shape)

    def loss(self, outputs: Float[Tensor, "batch pos vocab"], batch: Batch) -> Float[Tensor, ""]:
        # The mean in the same call: no tensor of single losses is kept.
        return F.cross_entropy(outputs.flatten(0, 1), batch.targets.flatten())


@dataclass(frozen=True)
class SquaredError(Objective):
    """(output − target)² of each entry; the mean over all of them, or over those that a field of the batch marks.

    Outputs and targets are real numbers `[batch, entry]`; the unit is the targets' squared.

    Attributes:
        on: "all", or the name of a field of the batch, bool `[batch, entry]`: which entries count.
    """

    unit: ClassVar[str] = "targets²"
    meaning: ClassVar[str] = "squared error of the entries that count"

    on: str = "all"

    def losses(self, outputs: Float[Tensor, "batch entry"], batch: Batch) -> Float[Tensor, "batch entry"]:
        self._require_shape(outputs, batch)
        return (outputs - batch.targets).square()

    def loss(self, outputs: Float[Tensor, "batch entry"], batch: Batch) -> Float[Tensor, ""]:
        if self.on != "all":
            return super().loss(outputs, batch)
        # The mean in the same call, equal to the bit, with a shorter way back.
        self._require_shape(outputs, batch)
        return F.mse_loss(outputs, batch.targets)

    def _require_shape(self, outputs: Tensor, batch: Batch) -> None:
        if outputs.shape != batch.targets.shape:
            raise UserError(
                f"expected the model's outputs in the targets' shape {list(batch.targets.shape)} (batch, entry), "
                f"got {list(outputs.shape)}"
            )

    def weights(self, batch: Batch) -> Tensor | None:
        if self.on == "all":
            return None
        marked = getattr(batch, self.on, None)
        if not isinstance(marked, Tensor) or marked.dtype != torch.bool:
            names = ", ".join(one.name for one in fields(batch))
            raise UserError(
                f"SquaredError(on={self.on!r}): expected all, or a bool field of the batch; it has {names}"
            )
        return marked


__all__ = ["Batch", "NextToken", "Objective", "SquaredError", "TokenBatch", "tokens_of"]
