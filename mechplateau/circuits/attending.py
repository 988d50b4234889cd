"""What every head attends to: the share of its attention on sets of entries, without any attention map.

For a set S and a head, over the queries i that have a key in S (they alone could attend to one),

    mass = mean_i Σ_{j in S(i)} |A_ij| / Σ_j |A_ij|        uniform = mean_i |S(i)| / |allowed keys of i|
    lift = mass / uniform                                  entropy = mean_i -Σ_j p_ij log p_ij, p = |A| / Σ|A|

A head that attends to S alone has mass 1. Attention spread evenly over the keys has lift 1. Softmax and
linear attention, rotary positions, grouped queries, soft caps and local windows are measured; other kinds are refused.

Cost: one forward. Memory does not grow with the square of the length: no map is built. For the map itself, use
`run_with_cache`; for what a head's attention does, `ablate_heads` and `ablate_attention`.

Source: the scores of Olsson et al. 2022, In-context Learning and Induction Heads, as sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

import mechplateau_kernels as mk
from mechplateau.circuits._measured_attention import Seen, measured_attention, require_lens
from mechplateau.circuits.scoring import checked_rows, inputs_of
from mechplateau.circuits.token_sets import READY_MADE, attention_sets
from mechplateau.errors import UserError
from mechplateau.schema import whole_number

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

COLUMNS = ("layer", "head", "set", "mass", "uniform", "lift", "queries", "entropy")


@torch.no_grad()
def attention_scores(
    model: HookedTransformer,
    tokens: Int[Tensor, "batch seq"],
    *,
    sets: Mapping[str, mk.PositionSet | Tensor] | Sequence[str] = READY_MADE,
    rows: Sequence[int] | None = None,
    batch_size: int = 8,
) -> pd.DataFrame:
    """Every head's attention on sets of entries.

    Args:
        model: any HookedTransformer. Its attention is replaced while measuring; hooks before and after it act.
        tokens: whole sequences; `repeated_tokens` makes some on which induction shows.
        sets: names of ready-made ones (`attention_sets`), or by name sets of `mechplateau_kernels` (`Offsets`, `First`,
            `Codes`, `Listed`) or bool masks `[query, key]` or `[batch, query, key]`, over what the model sees.
        rows: queries that count (a task's `output_rows`); None: all.
        batch_size: sequences run together.

    Returns:
        one line a head and set: layer, head, set, mass and uniform in [0, 1], lift, queries (how many have a key in the
        set), entropy (nats, over all queries that count). Null where no query has a key in the set, and where attention
        is not a number.

    Raises:
        UserError: no such set, or one that does not fit; a hook that needs the map, or an attention that cannot be
            measured (each named).
    """
    require_lens(model)
    inputs = inputs_of(model, tokens)
    chosen = _sets(sets, inputs)
    counted = torch.zeros(inputs.shape[1], dtype=torch.bool, device=inputs.device)
    counted[list(checked_rows(rows, inputs.shape[1]))] = True
    batch_size = whole_number(batch_size, "batch_size")
    if batch_size < 1:
        raise UserError(f"batch_size: expected a whole number of at least 1, got {batch_size!r}")
    sums = _Sums(model.cfg.n_layers, counted)
    for start in range(0, len(inputs), batch_size):
        samples = slice(start, start + batch_size)
        part = [one.of_samples(samples) for one in chosen.values()]
        sums.begin(part)
        with measured_attention(model, part, sums.add):
            model(inputs[samples], return_type=None)
    return sums.table(list(chosen))


def _sets(
    sets: Mapping[str, mk.PositionSet | Tensor] | Sequence[str], inputs: Int[Tensor, "batch pos"]
) -> dict[str, mk.PositionSet]:
    if hasattr(sets, "__array__"):  # a tensor too; asked for its truth, it raises
        raise UserError(f"sets: expected names, or a dict of names to sets, got {type(sets).__name__}")
    if not sets:
        raise UserError(f"sets: expected at least one, got {sets!r}")
    if not isinstance(sets, Mapping):
        return attention_sets(inputs, sets)
    found = {}
    batch, pos = inputs.shape
    for name, given in sets.items():
        try:
            chosen = mk.as_set(given).to(inputs.device)
        except (TypeError, ValueError) as error:
            raise UserError(f"sets: {name}: {error}") from None
        if chosen.length not in (None, pos) or chosen.batch not in (1, batch):
            raise UserError(
                f"sets: {name}: it is of {chosen.batch} sequences of {chosen.length} positions, and the model sees "
                f"{batch} of {pos} (all but the last token)"
            )
        if str(name) in found:
            raise UserError(f"sets: expected different names, got {name!s} twice")
        found[str(name)] = chosen
    return found


class _Sums:
    """Sums over queries, added up batch by batch: small, whatever the length."""

    def __init__(self, n_layers: int, counted: Tensor) -> None:
        self.counted = counted
        nothing = torch.zeros((), dtype=torch.float64)
        self.shares, self.uniform, self.queries, self.entropy = ([nothing] * n_layers for _ in range(4))
        self.rows = 0

    def begin(self, sets: Sequence[mk.PositionSet]) -> None:
        """The sets of the next batch."""
        self.sets = sets
        self.counts: dict[tuple[int | None, bool], list[Tensor]] = {}

    def add(self, seen: Seen) -> None:
        """What one layer's attention put on the sets."""
        out, layer = seen.out, seen.layer
        batch, _, pos = out.row_mass.shape
        allowed, *counts = self._counts(seen, pos)
        # A row without any attention has none on the set.
        total = torch.where(out.row_mass == 0, 1.0, out.row_mass)
        shares = (out.set_mass / total[:, :, None]).double()
        there = torch.stack([(count > 0).expand(batch, pos) for count in counts], dim=1) & self.counted
        uniform = torch.stack([(count / allowed).expand(batch, pos) for count in counts], dim=1).double()
        self.shares[layer] = self.shares[layer] + torch.where(there[:, None], shares, 0.0).sum((0, 3)).cpu()
        self.uniform[layer] = self.uniform[layer] + torch.where(there, uniform, 0.0).sum((0, 2)).cpu()
        self.queries[layer] = self.queries[layer] + there.sum((0, 2)).cpu()
        self.entropy[layer] = self.entropy[layer] + out.entropy[:, :, self.counted].double().sum((0, 2)).cpu()
        if layer == 0:
            self.rows += batch * int(self.counted.sum())

    def _counts(self, seen: Seen, pos: int) -> list[Tensor]:
        """How many keys each query may attend to, and how many of them are in each set."""
        key = (seen.window, seen.causal)
        if key not in self.counts:
            reach = mk.Offsets(0 if seen.causal else -pos, None if seen.window is None else seen.window - 1)
            sets = [reach, *(one & reach for one in self.sets)]
            self.counts[key] = [one.count(pos, causal=seen.causal).to(self.counted.device) for one in sets]
        return self.counts[key]

    def table(self, names: Sequence[str]) -> pd.DataFrame:
        lines = []
        for layer, shares in enumerate(self.shares):
            queries, uniform = self.queries[layer], self.uniform[layer]
            mass, even = shares / queries, uniform / queries
            entropy = self.entropy[layer] / self.rows
            for head in range(len(shares)):
                for s, name in enumerate(names):
                    at, of_even = float(mass[head, s]), float(even[s])
                    lift = at / of_even if of_even else float("nan")
                    lines.append(
                        (layer, head, name, at, of_even, lift, int(queries[s]), float(entropy[head]))
                    )
        table = pd.DataFrame(lines, columns=list(COLUMNS))
        numbers = ("mass", "uniform", "lift", "entropy")
        return table.astype({"set": "string", **dict.fromkeys(numbers, "Float64")})
