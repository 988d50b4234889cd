"""The terms of each output, in tasks whose outputs are sums modulo p of the tokens on Ω (window or prefix sums)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from mechplateau.circuits.scoring import require_task_of
from mechplateau.errors import UserError
from mechplateau.objectives import TokenBatch
from mechplateau.schema import whole_number

if TYPE_CHECKING:
    from mechplateau.tasks import Task


@dataclass(frozen=True)
class Summands:
    """The outputs with the largest number of terms, and these terms.

    Attributes:
        rows: the positions that predict them.
        places: positions of the summed tokens, in order, `[batch, row, term]`.
        terms: the summed tokens, `[batch, row, term]`.
        p: the modulus.
    """

    rows: tuple[int, ...]
    places: Int[Tensor, "batch row term"]
    terms: Int[Tensor, "batch row term"]
    p: int

    @property
    def sums(self) -> Int[Tensor, "batch row"]:
        """The sums modulo p: the right outputs."""
        return self.terms.sum(dim=-1) % self.p

    def permuted(self, seed: int) -> Summands:
        """A control: the same with the numbers 0 … p − 1 renamed by a random permutation, so that sums mean nothing."""
        generator = torch.Generator().manual_seed(whole_number(seed, "seed"))
        names = torch.randperm(self.p, generator=generator)
        return Summands(self.rows, self.places, names[self.terms], self.p)


def summands(task: Task, tokens: Int[Tensor, "batch seq"]) -> Summands:
    """Find them for these sequences, on the CPU.

    Raises:
        UserError: tokens that are not the task's, a task whose outputs are no sums modulo p of two or more tokens, or p
            below 4.
    """
    require_task_of(tokens, task)
    tokens = tokens.cpu()
    what = f"{getattr(task, 'name', 'task')}: expected outputs that are sums modulo p of two or more tokens"
    p, targets = getattr(task, "p", None), task.attention_targets(tokens)
    if p is not None and p < 4:
        raise UserError(f"p: expected at least 4 numbers, whose sums have several frequencies, got {p}")
    if p is None or not targets:
        raise UserError(f"{what}; this task has no {'modulus p' if p is None else 'Ω'}")
    mask = targets[0].mask.cpu().expand(len(tokens), -1, -1)
    sizes = mask.sum(dim=2)
    most = int(sizes.max())
    chosen = [row for row in range(mask.shape[1]) if bool((sizes[:, row] == most).all())]
    if most < 2 or not chosen:
        raise UserError(f"{what}; its Ω has {'a single token' if most < 2 else 'as many tokens nowhere'}")
    rows = tuple(targets[0].rows[row] for row in chosen)
    places = mask[:, chosen].nonzero()[:, 2].reshape(len(tokens), len(chosen), most)
    terms = tokens.gather(1, places.flatten(1)).reshape(places.shape)
    found = Summands(rows, places, terms, int(p))
    if bool((terms >= p).any()) or not bool((TokenBatch(tokens).targets[:, list(rows)] == found.sums).all()):
        raise UserError(f"{what}; these are others")
    return found


__all__ = ["Summands", "summands"]
