"""Matrix completion: fill in the masked cells of a low-rank matrix, given the others.

Two tasks share the matrices: an encoder reads the cells and gives a number for each (`matrix_completion`), or a GPT
reads them and writes the whole matrix as tokens (`matrix_completion_gpt`).

Source: arXiv 2410.22244, section 2 and appendix A.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, model_validator
from torch import Tensor

from mechplateau.errors import UserError
from mechplateau.objectives import Batch, Objective, SquaredError
from mechplateau.schema import Config
from mechplateau.tasks.base import TaskBase, register_task
from mechplateau.tasks.matrices import (
    MASK,
    Factors,
    Grid,
    factor,
    factor_square,
    largest_factor,
    neighbors,
    require_sizes,
)
from mechplateau.tasks.sequence import FEW_OUTPUTS, SequenceTask, Target, pairs_among, sequences

LARGEST_VOCABULARY = 1_000_000
"""Values that can have a token: each has a row of the embedding, which would not fit into memory."""


@dataclass(frozen=True, eq=False)
class Matrices(Batch):
    """Matrices of which some cells are masked, cell by cell, row after row.

    Attributes:
        inputs: tokens, int64 `[batch, cell]`; 0 where the cell is masked.
        targets: the rounded values, float32 `[batch, cell]`, of all cells.
        observed: whether a cell is given, bool `[batch, cell]`.
    """

    inputs: Int[Tensor, "batch cell"]
    targets: Float[Tensor, "batch cell"]
    observed: Bool[Tensor, "batch cell"]

    @property
    def masked(self) -> Bool[Tensor, "batch cell"]:
        """Whether a cell is to be filled in."""
        return ~self.observed

    def with_masked_as(self, token: int) -> Matrices:
        """The same matrices, with another token in the masked cells."""
        return Matrices(self.inputs.masked_fill(self.masked, token), self.targets, self.observed)


class LowRankMatrices(Config):
    """What both tasks share: X = UVᵀ rounded to a grid, with each cell masked by itself.

    X is U · Vᵀ with factors `[m, rank]` and `[n, rank]` of independent entries. A cell is observed where an independent
    uniform number is above p_mask, so that how many are masked varies from matrix to matrix.
    """

    m: int = Field(7, ge=1, le=256)
    """Rows."""
    n: int = Field(7, ge=1, le=256)
    """Columns."""
    rank: int = Field(2, ge=1)
    """At most min(m, n)."""
    p_mask: float = Field(0.3, gt=0, lt=1)
    """How likely a cell is masked."""
    decimals: int = Field(2, ge=0, le=4)
    """Values are rounded to so many decimals."""
    q: int | None = Field(None, ge=1, le=10_000)
    """Values are rounded to whole multiples of 1/q instead."""
    value_max: int = Field(10, ge=1, le=10_000)
    """Largest value that has a token. A value beyond it is an error."""
    factors: Factors = "uniform"
    """Entries of U and V. uniform: U[−1, 1]; gaussian: scale · N(0, 1); laplace: scale · Laplace(0, 1);
    signed_grid: ± a / k with a uniform on 1 … k."""
    scale: float = Field(1.0, gt=0)
    """Of gaussian and laplace factors."""
    k: int = Field(2, ge=1, le=1000)
    """Of signed_grid factors."""

    title_fields: ClassVar[tuple[str, ...]] = ("m", "n", "rank")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.rank > min(self.m, self.n):
            raise ValueError(f"rank: expected at most min(m, n) = {min(self.m, self.n)}, got {self.rank}")
        if self.scale != 1 and self.factors not in ("gaussian", "laplace"):
            raise ValueError(f"scale: only gaussian and laplace factors have one, got {self.scale:g}")
        if self.k != 2 and self.factors != "signed_grid":
            raise ValueError(f"k: only signed_grid factors have one, got {self.k}")
        if self.grid.n_values > LARGEST_VOCABULARY:
            raise ValueError(
                f"value_max: expected at most {LARGEST_VOCABULARY:,} values that have a token, got "
                f"{self.grid.n_values:,}; give a smaller value_max or fewer decimals"
            )
        largest = largest_factor(self.factors)
        if largest is not None and self.rank * largest**2 > self.value_max:
            raise ValueError(
                f"value_max: expected at least {self.rank * largest**2:g}, the largest value of rank {self.rank}, "
                f"got {self.value_max}"
            )
        return self

    @property
    def grid(self) -> Grid:
        """The values that have a token."""
        return Grid(self.q if self.q is not None else 10**self.decimals, self.value_max)

    @property
    def n_cells(self) -> int:
        """Cells of a matrix."""
        return self.m * self.n

    @property
    def second_moment(self) -> float:
        """E x² of a cell, before rounding: rank · (E u²)²."""
        return self.rank * factor_square(self.factors, self.scale, self.k) ** 2

    def matrices(self, n: int, generator: torch.Generator, device: torch.device) -> Matrices:
        """`n` matrices of the task's size."""
        return self._sized(n, self.m, self.n, generator, device)

    def _sized(
        self, batch: int, m: int, n: int, generator: torch.Generator, device: torch.device
    ) -> Matrices:
        u, v = (
            factor(self.factors, (batch, size, self.rank), self.scale, self.k, generator, device)
            for size in (m, n)
        )
        products = (u @ v.mT).flatten(1)
        tokens, values = self.grid.rounded(products, check=largest_factor(self.factors) is None)
        observed = torch.rand(batch, m * n, generator=generator, device=device) > self.p_mask
        return Matrices(tokens.masked_fill(~observed, MASK), values, observed)


def _on_a_cpu(steps: int, **values: Any) -> Mapping[str, Mapping[str, Any]]:
    """A preset of 4 × 4 matrices of rank 1: about 17 ms of one core a step.

    The initial weights are large: at a standard deviation of 0.07 nothing moves in 2,200 steps.
    """
    return {
        "task": {"m": 4, "n": 4, "rank": 1, "value_max": 1, **values},
        "model": {"n_layers": 2, "n_heads": 4, "d_model": 64, "init_std": 0.15},
        "training": {"steps": steps, "batch_size": 64, "lr": 1e-3},
        "checkpoints": {"every": 100},
    }


def _gpt_on_a_cpu(**values: Any) -> Mapping[str, Mapping[str, Any]]:
    """A preset for the GPT, of the same matrices."""
    return {
        "task": {"m": 4, "n": 4, "rank": 1, "value_max": 1, **values},
        "model": {"d_model": 64},
        "training": {"batch_size": 64, "lr": 1e-3},
        "evaluation": {"every": 25},
    }


@register_task
class MatrixCompletion(LowRankMatrices, TaskBase):
    """An encoder reads all cells, MASK in the masked ones, and gives a number for each; squared error.

    The tokens are MASK = 0 and one for each value of the grid. The copying solution gives observed cells their value
    and masked ones 0; its loss is the share of masked cells times E x².

    Source: arXiv 2410.22244.
    """

    name: Literal["matrix_completion"] = "matrix_completion"
    mixture: tuple[int, ...] = ()
    """Square sizes of which each batch has one at random, m and n being the largest; none: m × n always."""
    loss_on: Literal["all", "masked"] = "all"
    """Which cells count in the loss that is trained on."""

    plateau_column: ClassVar[str] = "loss_mask"
    """The loss that is on a plateau: observed cells are copied soon."""
    default_model: ClassVar[Mapping[str, Any]] = {"kind": "encoder"}
    default_training: ClassVar[Mapping[str, Any]] = {"steps": 50_000, "batch_size": 256, "lr": 1e-4}
    default_evaluation: ClassVar[Mapping[str, Any]] = {"every": 50, "samples": 256}
    model_kinds: ClassVar[tuple[str, ...]] = ("encoder",)
    presets: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
        "tiny": _on_a_cpu(4000, factors="signed_grid", q=4),
        "small": _on_a_cpu(5000, q=10),
    }

    @model_validator(mode="after")
    def _mixed(self) -> Self:
        if self.mixture:
            largest = max(require_sizes(self.mixture, "mixture"))
            if (self.m, self.n) != (largest, largest):
                raise ValueError(
                    f"m: expected m and n to be the largest size of the mixture, {largest}, got {self.m} and {self.n}"
                )
            if self.rank > min(self.mixture):
                raise ValueError(
                    f"rank: expected at most the smallest size of the mixture, {min(self.mixture)}, got {self.rank}"
                )
        return self

    @property
    def objective(self) -> Objective:
        return SquaredError(self.loss_on)

    @property
    def measurement_names(self) -> tuple[str, ...]:
        return ("cell_losses", "cell_similarity", "cell_attention", "cell_heads")

    @property
    def trivial_loss(self) -> float:
        """E x²: that of giving 0 everywhere."""
        return self.second_moment

    @property
    def vocab_size(self) -> int:
        """Number of tokens, MASK included."""
        return self.grid.n_values + 1

    @property
    def position_groups(self) -> tuple[int, ...]:
        """Where a row of the matrix begins, but for the first; none with a mixture of sizes."""
        return () if self.mixture else tuple(range(self.n, self.n_cells, self.n))

    @property
    def token_values(self) -> Float[Tensor, " vocab"]:
        """The value of each token; 0 for MASK."""
        return self.grid.values()

    def size_of(self, n_cells: int) -> tuple[int, int]:
        """Rows and columns of matrices with so many cells.

        Raises:
            UserError: this task has none with so many.
        """
        sizes = [(size, size) for size in self.mixture] or [(self.m, self.n)]
        for rows, columns in sizes:
            if rows * columns == n_cells:
                return rows, columns
        known = " or ".join(f"{rows} × {columns}" for rows, columns in sizes)
        raise UserError(f"matrices: expected {known}, as this task has, got {n_cells} cells")

    def attention_entries(self, inputs: Int[Tensor, "batch cell"]) -> Bool[Tensor, "batch query key"]:
        """Where masked queries should look: at observed cells of their row and column."""
        observed = inputs != MASK
        m, n = self.size_of(inputs.shape[1])
        return neighbors(observed, m, n) & ~observed[:, :, None]

    if TYPE_CHECKING:  # the base says only that it is a batch

        def batch(
            self,
            n: int,
            generator: torch.Generator | None = None,
            device: str | torch.device = "cpu",
            *,
            seed: int | None = None,
        ) -> Matrices: ...

    def _batch(self, n: int, generator: torch.Generator, device: torch.device) -> Matrices:
        m, columns = self.m, self.n
        if self.mixture:
            # A shape is the host's to know, so here it waits for the device.
            drawn = int(torch.randint(len(self.mixture), (), generator=generator, device=device))
            m = columns = self.mixture[drawn]
        return self._sized(n, m, columns, generator, device)


@register_task
class MatrixCompletionGPT(LowRankMatrices, SequenceTask):
    """A GPT reads the cells, MASK in the masked ones, then SEP, and writes all cells; next-token cross-entropy.

    The sequence is T = m · n tokens, SEP, T tokens. MASK is 0, the values are 1 … n_values, the next two tokens are
    not used, and SEP is the last.

    Source: arXiv 2410.22244, appendix.
    """

    name: Literal["matrix_completion_gpt"] = "matrix_completion_gpt"
    value_max: int = Field(2, ge=1, le=10_000)
    """Largest value that has a token. A value beyond it is an error."""

    default_model: ClassVar[Mapping[str, Any]] = {"attention": "softmax", "n_layers": 2, "n_heads": 2}
    default_training: ClassVar[Mapping[str, Any]] = {"steps": 2000}
    presets: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
        "tiny": _gpt_on_a_cpu(factors="signed_grid", q=4),
        "small": _gpt_on_a_cpu(q=10),
    }

    @property
    def measurement_names(self) -> tuple[str, ...]:
        few = self.n_outputs <= FEW_OUTPUTS
        return (*super().measurement_names, *(("completed_cells",) if few else ()))

    @property
    def vocab_size(self) -> int:
        return self.grid.n_values + 4

    @property
    def prompt_length(self) -> int:
        return self.n_cells + 1

    @property
    def n_outputs(self) -> int:
        return self.n_cells

    @property
    def separator(self) -> int:
        return self.vocab_size - 1

    @property
    def token_labels(self) -> tuple[str, ...]:
        values = (f"{float(value):g}" for value in self.grid.values()[1:])
        return ("MASK", *values, "unused 1", "unused 2", "SEP")

    def _sample(
        self, batch: int, generator: torch.Generator, device: torch.device
    ) -> Int[Tensor, "batch seq"]:
        made = self.matrices(batch, generator, device)
        right = 1 + torch.round((made.targets + self.value_max) * self.grid.q).long()
        return sequences(made.inputs, self.separator, right)

    def attention_targets(self, tokens: Int[Tensor, "batch seq"]) -> tuple[Target, ...]:
        """None: where a completed cell should look depends on which cells are masked, and is not known for a GPT."""
        return ()

    @property
    def collapse_pairs(self) -> Mapping[str, Bool[Tensor, "n_outputs n_outputs"]]:
        return {"": pairs_among(range(self.n_outputs), self.n_outputs)}


__all__ = ["LowRankMatrices", "Matrices", "MatrixCompletion", "MatrixCompletionGPT"]
