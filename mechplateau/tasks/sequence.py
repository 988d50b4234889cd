"""Tasks of tokens: a prompt, then outputs.

Such a task knows where an optimal model attends (Ω), which outputs are learnt early (the partial solution), and which
pairs of outputs the collapse measure compares.
"""

from __future__ import annotations

import functools
import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Int
from pydantic import Field
from torch import Tensor

from mechplateau.devices import device_named
from mechplateau.errors import ConfigError, UserError
from mechplateau.objectives import NextToken, Objective, TokenBatch
from mechplateau.schema import whole_number
from mechplateau.tasks.base import TaskBase, generator_on


@dataclass(frozen=True)
class Target:
    """Where an optimal attention looks (Ω) at some rows of some layer.

    Attributes:
        name: names the column of the metrics table, `apm_{name}`.
        layer: 0-based layer, or None where the task has one Ω whatever the depth: measured at every layer.
        rows: query positions, in the order of the mask's rows.
        mask: bool `[batch or 1, len(rows), n_input]`; True where attention belongs. A leading 1 says that it
            is the same for every sequence.
    """

    name: str
    layer: int | None
    rows: tuple[int, ...]
    mask: Bool[Tensor, "batch rows n_input"]


FEW_OUTPUTS = 256
"""Up to so many outputs each has columns of its own, and all are generated at every evaluation, by default."""


class SequenceTask(TaskBase):
    """Base of the tasks of tokens that have a prompt and outputs.

    Sequences are prompt, then outputs; the model sees all but the last token. Output row r (r = 0 …
    n_outputs − 1) is the input position that predicts output r: `prompt_length − 1 + r`.
    """

    model_kinds: ClassVar[tuple[str, ...]] = ("gpt",)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("sample")
        if own is not None and "seed" not in inspect.signature(own).parameters:
            cls.sample = _with_seed(own)  # type: ignore[method-assign]

    @property
    def objective(self) -> Objective:
        return NextToken()

    @property
    def measurement_names(self) -> tuple[str, ...]:
        """Every measurement of sequences.

        With many outputs, nothing is generated and no output has a column of its own, unless a run requests it
        (`evaluation.measurements`).
        """
        few = self.n_outputs <= FEW_OUTPUTS
        generated = (
            *("accuracy", "accuracy_per_output", "loss_per_output", "repetition", "alpha_1"),
            *(("count_check",) if self.counts_values else ()),
        )
        return (
            "loss",
            *(generated if few else ()),
            "attention_progress",
            "similarity",
            *(("similarity_per_output",) if few else ()),
            "hidden_size",
        )

    @property
    def trivial_loss(self) -> float:
        """Mean over positions of the token's entropy, nats: the loss of the best prediction from the position alone.

        Estimated from 65,536 sequences of a fixed seed, with the bias of counting taken off (Miller 1955): good to
        about 0.001.
        """
        return _entropy_by_position(self)

    @property
    def prompt_entropy(self) -> float | None:
        """Entropy of the prompt after its first token, all together, nats; None where it is not known."""
        return None

    @property
    def loss_floor(self) -> float | None:
        """The prompt's entropy over all predicted positions: outputs follow from the prompt, and add nothing."""
        return None if self.prompt_entropy is None else self.prompt_entropy / self.n_input

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of tokens."""

    @property
    @abstractmethod
    def prompt_length(self) -> int:
        """Number of tokens before the first output, the separator included."""

    @property
    @abstractmethod
    def n_outputs(self) -> int:
        """Number of tokens the model must produce."""

    @property
    def n_ctx(self) -> int:
        """Length of a whole sequence, prompt and outputs."""
        return self.prompt_length + self.n_outputs

    @property
    def n_input(self) -> int:
        """Length of what the model sees: a sequence without its last token."""
        return self.n_ctx - 1

    @property
    def output_rows(self) -> tuple[int, ...]:
        """The input positions that predict outputs 0 … n_outputs − 1."""
        return tuple(range(self.prompt_length - 1, self.n_input))

    @property
    def token_labels(self) -> tuple[str, ...]:
        """What to show for each token of the vocabulary."""
        return tuple(str(token) for token in range(self.vocab_size))

    def labels_of(self, tokens: Iterable[int]) -> tuple[str | None, ...]:
        """What to show for each of these tokens; None for −1, an output that is undefined.

        Raises:
            UserError: a token outside the vocabulary, or `token_labels` are not one a token.
        """
        labels = self.token_labels
        if len(labels) != self.vocab_size:
            raise UserError(
                f"{self.name}.token_labels: expected {self.vocab_size}, one a token, got {len(labels)}"
            )
        shown = [int(token) for token in tokens]
        if unknown := [token for token in shown if not -1 <= token < self.vocab_size]:
            raise UserError(
                f"{self.name}: expected tokens from 0 to {self.vocab_size - 1}, or -1 for undefined; got {unknown[0]}"
            )
        return tuple(None if token < 0 else str(labels[token]) for token in shown)

    def sample(
        self,
        batch: int,
        generator: torch.Generator | None = None,
        device: str | torch.device = "cpu",
        *,
        seed: int | None = None,
    ) -> Int[Tensor, "batch seq"]:
        """Make `batch` sequences, int64 `[batch, n_ctx]`, on `device`.

        With neither a generator nor a seed, each call gives new data, as `torch.randn` does, and
        `torch.manual_seed` makes it repeat (one number is drawn from torch's CPU generator, whatever the device).
        The same seed gives the same data on a kind of device: two different batches need two seeds.

        Args:
            batch: how many, at least 1.
            generator: a generator on that device; each call advances it.
            device: where to make them.
            seed: that of a generator for this call alone.

        Raises:
            ConfigError: both a generator and a seed, one of another kind or device, fewer than 1 sequence, or a
                `_sample` that makes something else.
        """
        batch = whole_number(batch, "batch")
        if batch < 1:
            raise ConfigError(f"batch: expected at least 1 sequence, got {batch}")
        torch_device = device if isinstance(device, torch.device) else device_named(device)
        return self._checked(
            self._sample(batch, generator_on(torch_device, generator, seed), torch_device), batch
        )

    def _batch(self, n: int, generator: torch.Generator, device: torch.device) -> TokenBatch:
        return TokenBatch(self.sample(n, generator, device))

    def _checked(self, tokens: Tensor, batch: int) -> Tensor:
        """What `_sample` returned; a user's own task may return something else."""
        if tokens.shape != (batch, self.n_ctx) or tokens.is_floating_point():
            raise ConfigError(
                f"{type(self).__name__}._sample: expected integers [{batch}, {self.n_ctx}] (batch, n_ctx), got "
                f"{tokens.dtype} {list(tokens.shape)}"
            )
        return tokens

    @abstractmethod
    def _sample(self, batch: int, generator: torch.Generator, device: torch.device) -> Tensor:
        """Make the sequences, vectorized on `device`."""

    @abstractmethod
    def attention_targets(self, tokens: Int[Tensor, "batch seq"]) -> tuple[Target, ...]:
        """Ω for these sequences, on their device."""

    @property
    @abstractmethod
    def collapse_pairs(self) -> Mapping[str, Bool[Tensor, "n_outputs n_outputs"]]:
        """Pairs of outputs (i > j) whose cosine similarity is averaged; one column of the table a group.

        The group `""` needs no name of its own: its column is plain `cos_{location}`.
        """

    @property
    def partial_outputs(self) -> tuple[int, ...] | None:
        """Outputs that are learnt early, on the plateau; None where none is known."""
        return None

    @property
    def output_parts(self) -> Mapping[str, int]:
        """Ways to cut the outputs into equal parts (name → how many) in each of which repetition is measured too."""
        return {}

    @property
    def counts_values(self) -> bool:
        """Whether to measure that each value occurs as often as it should, at any position."""
        return False

    @property
    def counted_values(self) -> range:
        """If values are counted: all values that an output can have, so that absent ones count too."""
        return range(0)

    @property
    def number_tokens(self) -> range:
        """Tokens that represent the number with their index."""
        return range(0)

    @property
    def separator(self) -> int | None:
        """The token between prompt and outputs, where there is one that says nothing else."""
        return None

    def token_map(self, source: SequenceTask) -> Mapping[int, int] | None:
        """Which of this task's tokens mean the same as which of another's: own token → token of `source`.

        What a model learned about those tokens can be moved between the two: numbers that both have, and the
        separators. None: nothing is shared, not even between equal vocabularies.
        """
        shared = {token: token for token in self.number_tokens if token in source.number_tokens}
        if shared and self.separator is not None and source.separator is not None:
            shared[self.separator] = source.separator
        return shared or None


def _with_seed(own: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A `sample` that takes a generator alone, with `seed` added."""

    @functools.wraps(own)
    def sample(
        self: SequenceTask,
        batch: int,
        generator: torch.Generator | None = None,
        device: str | torch.device = "cpu",
        *,
        seed: int | None = None,
    ) -> Tensor:
        torch_device = device if isinstance(device, torch.device) else device_named(device)
        return own(self, batch, generator_on(torch_device, generator, seed), device)

    return sample


Task = SequenceTask
"""The name it had while every task was of this kind."""


def sequence_task(task: TaskBase, what: str) -> SequenceTask:
    """The task, after a check that it is a task of tokens.

    Raises:
        ConfigError: it is not; `what` names what needs one.
    """
    if not isinstance(task, SequenceTask):
        raise ConfigError(f"{what} needs a task of tokens with a prompt and outputs; {task.name} is none")
    return task


def targets_of(task: TaskBase, device: str | torch.device = "cpu") -> tuple[Target, ...]:
    """Ω of a task; none where it is not of tokens.

    Of two sequences, since one sequence cannot show whether a mask varies.
    """
    if not isinstance(task, SequenceTask):
        return ()
    return task.attention_targets(task.sample(2, device=device, seed=0))


@functools.lru_cache(maxsize=256)
def _entropy_by_position(task: SequenceTask) -> float:
    right = TokenBatch(task.sample(2**16, seed=0)).targets
    place = torch.arange(right.shape[1]) * task.vocab_size
    counts = torch.bincount((right + place).flatten(), minlength=right.shape[1] * task.vocab_size)
    shares = counts.double().view(right.shape[1], -1) / len(right)
    entropy = -torch.xlogy(shares, shares).sum(1) + ((shares > 0).sum(1) - 1) / (2 * len(right))
    return float(entropy.mean())


class OneOutputPerInput(SequenceTask):
    """x₀ … x₍ₙ₋₁₎, a separator, y₀ … y₍ₙ₋₁₎: base of the tasks with one output per input."""

    n: int = Field(16, ge=1, le=2**12)
    """Number of inputs, and of outputs."""

    @property
    def prompt_length(self) -> int:
        return self.n + 1

    @property
    def n_outputs(self) -> int:
        return self.n


def sample_numbers(
    batch: int,
    n: int,
    largest: int,
    generator: torch.Generator,
    device: torch.device,
    *,
    repeats: bool = True,
) -> Int[Tensor, "batch n"]:
    """Numbers 1 … largest, uniform and independent, or (`repeats=False`) all different within a sequence."""
    if repeats:
        return torch.randint(1, largest + 1, (batch, n), generator=generator, device=device)
    order = torch.rand(batch, largest, generator=generator, device=device).argsort(dim=1)
    return order[:, :n] + 1


def sequences(*parts: Tensor | int) -> Int[Tensor, "batch seq"]:
    """Join `[batch, …]` parts; an int is one column of that token."""
    first = next(part for part in parts if isinstance(part, Tensor))
    return torch.cat(
        [part if isinstance(part, Tensor) else first.new_full((len(first), 1), part) for part in parts], dim=1
    )


def mask_of(
    sources: Sequence[Iterable[int]], n_input: int, device: torch.device
) -> Bool[Tensor, "1 rows n_input"]:
    """The mask of a target that is the same for every sequence, from each row's source positions."""
    mask = torch.zeros(1, len(sources), n_input, dtype=torch.bool)
    for row, positions in enumerate(sources):
        mask[0, row, list(positions)] = True
    return mask.to(device)


def pairs_among(outputs: Iterable[int], n_outputs: int) -> Bool[Tensor, "n_outputs n_outputs"]:
    """All pairs i > j among the named outputs, as a mask."""
    chosen = torch.zeros(n_outputs, dtype=torch.bool)
    chosen[list(outputs)] = True
    return torch.tril(chosen[:, None] & chosen[None, :], diagonal=-1)
