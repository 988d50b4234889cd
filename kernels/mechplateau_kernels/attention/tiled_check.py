"""The test that a configuration of the tiled kernels must pass on a card before it is used there (see `_selfcheck`).

Random data of some seventy positions, laid out as the call's, against the map in float64: a miscompiled product is
wrong by far more than the precision requested. Bounds of sets, factors and scales are numbers that a kernel reads when
it runs; here they are others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._launch import Layout, of_kind, placed
from . import reference
from .kind import Kind, Sets
from .sets import Codes, Listed, PositionSet

__all__ = ["Form", "backward_is_right", "form", "forward_is_right", "plain_numbers"]

LIMITS = {"tf32x3": 1e-5, "ieee": 1e-5, "tf32": 8e-3, "float16": 2e-3, "bfloat16": 1.6e-2}
"""Largest relative error (Frobenius): twice what the tests on a card allow."""
Form = tuple[bool, int]
"""Of a set: whether it has codes, and the length of its lists."""


def form(chosen: PositionSet) -> Form:
    coded = chosen.query_codes is not None
    return coded, 0 if coded or chosen.indices is None else chosen.indices.shape[2]


def plain_numbers(kind: Kind, factor_in_memory: bool) -> Kind:
    """The same kernel with numbers of the test's own."""
    return kind._replace(
        scale=0.25,
        c=1.0 if factor_in_memory or kind.c == 1.0 else 2.0,
        bias=0.5 if kind.bias else 0.0,
        soft_cap=1.5 if kind.soft_cap else 0.0,
    )


def _like(shape: Form, pos: int, batch: int, generator: torch.Generator) -> PositionSet:
    coded, listed = shape
    bounds = PositionSet(low=0, high=40, first=60)
    if coded:
        codes = torch.randint(0, 5, (2, batch, pos), generator=generator)
        return Codes(codes[0], codes[1]) & bounds
    if listed:
        keys = torch.stack([torch.randperm(pos, generator=generator)[:listed] for _ in range(pos)])
        return Listed(torch.nn.functional.pad(keys, (0, listed - keys.shape[1]), value=-1)) & bounds
    return bounds


class _Case:
    def __init__(
        self, device: torch.device, dtype: torch.dtype, widths: tuple[int, int], pos_kind: str, heads: int,
        layouts: tuple[Layout, ...], kind: Kind, forms: tuple[Form, ...], on_device: bool,
    ) -> None:  # fmt: skip
        generator = torch.Generator().manual_seed(0)
        one = any(laid[0] == "1" for laid in layouts)
        batch, pos = 1 if one else 2, of_kind(pos_kind, 70)
        sizes = (widths[0], widths[0], widths[1], widths[1])
        values = [torch.randn(batch, pos, heads, d, generator=generator).to(dtype) for d in sizes]
        self.exact = [x.double() for x in values]
        self.given = [placed(x, laid, device, dtype) for x, laid in zip(values, layouts, strict=False)]
        made = [_like(shape, pos, batch, generator) for shape in forms]
        rest = made[kind.n_sets :]
        self.kind = kind
        self.sets = Sets(
            made[: kind.n_sets], rest[0] if kind.allowed else None, rest[-1] if kind.intervene else None
        )
        move = lambda one: None if one is None else one.to(device)  # noqa: E731
        self.moved = Sets(
            [one.to(device) for one in made[: kind.n_sets]],
            move(self.sets.allowed),
            move(self.sets.intervene),
        )
        self.c = torch.tensor(2.0, device=device) if on_device else None
        self.generator = generator

    def expected(self, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        c = None if self.c is None else self.c.cpu().double()
        q, k, v = inputs
        return reference.attention(q, k, v, c, self.sets, self.kind)

    def close(self, got: Tensor, want: Tensor) -> bool:
        from .tiled_launch import settled

        limit = LIMITS[settled(self.given[0], self.given[2], self.kind)[1]]
        got, want = got.detach().cpu().double(), want.detach()
        if got.numel() == 0:
            return True
        same = bool((got.isnan() == want.isnan()).all())
        got, want = got.nan_to_num(), want.nan_to_num()
        return same and bool((got - want).norm() <= limit * want.norm() + 1e-6)


def forward_is_right(device: torch.device, *configuration: object) -> bool:
    from . import tiled_launch

    case = _Case(device, *configuration)  # type: ignore[arg-type]
    q, k, v = case.given[:3]
    got = tiled_launch.forward(q, k, v, case.c, case.moved, case.kind)
    want = case.expected(case.exact[:3])
    # Of two weights that are nearly as large, either may come out on top.
    return all(case.close(got[i], want[i]) for i in (0, 1, 2, 3, 5))


def backward_is_right(device: torch.device, has: tuple[bool, bool, bool], *configuration: object) -> bool:
    from . import tiled_launch

    case = _Case(device, *configuration)  # type: ignore[arg-type]
    leaves = [x.requires_grad_() for x in case.exact[:3]]
    with torch.enable_grad():
        results = case.expected(leaves)
        outputs = [results[1], results[2], results[5]]
        grads = [
            torch.randn(x.shape, generator=case.generator) if h else None
            for x, h in zip(outputs, has, strict=True)
        ]
        total = (results[0] * case.exact[3]).sum()
        for x, g in zip(outputs, grads, strict=True):
            if g is not None:
                total = total + (x.nan_to_num() * g).sum()
    want = torch.autograd.grad(total, leaves)
    of_row, of_set, of_entropy = (None if g is None else g.to(device) for g in grads)
    q, k, v, of_output = case.given
    got = tiled_launch.backward(of_output, of_row, of_set, of_entropy, q, k, v, case.c, case.moved, case.kind)
    return all(case.close(x, y) for x, y in zip(got, want, strict=True))
