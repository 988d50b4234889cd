"""Attention of any length as a torch operation: autograd, vmap, torch.compile.

The fast ways give first derivatives. Second and higher ones are the reference's, with the whole map, taken where a
graph of the backward pass is requested.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._dispatch import device_obstacle, full_precision
from .._launch import kind as number_kind
from .._launch import layout, regular
from .._library import define, define_vmap, differentiable, fold, unfold
from .._selfcheck import trusted
from . import blocked, chunk, lse, reference
from .choose import tiled_obstacle
from .kind import PER_SET, Kind, Sets, decode, encode
from .results import AttentionOutput, AttentionOutputWithStatistics

__all__ = ["run"]

ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? c_tensor, Tensor[] held, int[] numbers, bool softmax, float scale, "
    "float soft_cap, bool causal, float c, float bias, int n_sets, bool allowed, bool intervene, str statistics, "
    "bool row_mass, str algorithm, str precision"
)
N_FLAGS = len(Kind._fields)
N_GRADS = 4
"""Outputs with a gradient: output, row mass, set mass, entropy."""
N_KEPT = 2
"""What the algorithm `lse` needs again for gradients: what its kernel gave, and the logarithms of its sums."""


def _configuration(
    tensors: Sequence[Tensor], c_tensor: Tensor | None, sets: Sets, kind: Kind
) -> tuple[Any, ...]:
    """What a compiled kernel depends on: shapes and options, and how the arguments lie in memory."""
    from .tiled_check import form, plain_numbers

    q, v = tensors[0], tensors[2]
    chosen = (*sets.metric, *(x for x in (sets.allowed, sets.intervene) if x is not None))
    settled = plain_numbers(kind, c_tensor is not None)
    settled = settled._replace(precision=kind.precision if q.dtype == torch.float32 else "tf32")
    if q.dtype == torch.float32 and kind.precision == "auto":
        exact = torch.get_float32_matmul_precision() == "highest"
        settled = settled._replace(precision="tf32x3" if exact else "tf32")
    layouts = tuple(layout(x) for x in tensors)
    return (
        q.dtype, (q.shape[3], v.shape[3]), number_kind(q.shape[1]), q.shape[2], layouts, settled,
        tuple(form(one) for one in chosen), c_tensor is not None,
    )  # fmt: skip


def _forward(
    q: Tensor, k: Tensor, v: Tensor, c_tensor: Tensor | None, held: Sequence[Tensor], numbers: Sequence[int],
    *flags: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    kind = Kind(*flags)
    sets = decode(held, numbers, kind)
    if kind.algorithm == "tiled":
        from . import tiled_check, tiled_launch

        q, k, v = regular(q), regular(k), regular(v)
        configuration = _configuration((q, k, v, v), c_tensor, sets, kind)
        if trusted("attention", q.device, configuration, tiled_check.forward_is_right):
            return _owned(_asked_for(tiled_launch.forward(q, k, v, c_tensor, sets, kind), kind))
    with full_precision(q.device):
        if kind.algorithm == "lse":
            results = lse.forward(q, k, v, sets, kind)
        elif kind.algorithm == "chunk":
            results = chunk.forward(q, k, v, sets, kind)
        else:
            results = blocked.forward(q, k, v, c_tensor, sets, kind)
    return _owned(_asked_for(results, kind))


def _owned(results: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Contiguous and none a view, which a hook could not change in place while gradients are wanted."""
    return tuple(
        x.clone(memory_format=torch.contiguous_format) if x._is_view() else x.contiguous() for x in results
    )


def _asked_for(results: Sequence[Tensor], kind: Kind) -> tuple[Tensor, ...]:
    """What `_forward_fake` promises, and nothing that was not requested."""
    output, row_mass, set_mass, largest, place, entropy, *kept = results
    return (
        output,
        row_mass if kind.row_mass else row_mass[..., :0].clone(),
        set_mass,
        *(x if kind.statistics == "all" else x[..., :0].clone() for x in (largest, place)),
        entropy,
        *(kept if kind.algorithm == "lse" else (row_mass.new_empty(0) for _ in range(N_KEPT))),
    )


def _forward_fake(
    q: Tensor, k: Tensor, v: Tensor, c_tensor: Tensor | None, held: Sequence[Tensor], numbers: Sequence[int],
    *flags: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    kind = Kind(*flags)
    batch, pos, heads, _ = q.shape
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    largest = pos if kind.statistics == "all" else 0
    row_mass = q.new_empty(batch, heads, pos if kind.row_mass else 0, dtype=dtype)
    kept = lse.kept_shapes(q, v, kind) if kind.algorithm == "lse" else ((0,),) * N_KEPT
    return (
        v.new_empty(batch, pos, heads, v.shape[3]),
        row_mass,
        q.new_empty(batch, heads, kind.n_sets, pos, dtype=dtype),
        q.new_empty(batch, heads, largest, dtype=dtype),
        q.new_empty(batch, heads, largest, dtype=torch.int64),
        q.new_empty(batch, heads, pos if kind.statistics else 0, dtype=dtype),
        *(q.new_empty(shape, dtype=dtype) for shape in kept),
    )


def _backward(
    grad_output: Tensor, grad_row: Tensor | None, grad_set: Tensor | None, grad_entropy: Tensor | None,
    kept: Tensor | None, sums: Tensor | None, q: Tensor, k: Tensor, v: Tensor, c_tensor: Tensor | None,
    held: Sequence[Tensor], numbers: Sequence[int], *flags: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    kind = Kind(*flags)
    sets = decode(held, numbers, kind)
    masses = (grad_row, grad_set, grad_entropy)
    if q.device.type == "cuda" and (
        kind.algorithm == "lse" or (kind.algorithm == "chunk" and grad_set is not None)
    ):
        # There, what is gathered would be added up in any order.
        others = (sets.allowed, sets.intervene)
        obstacle = device_obstacle(q.device) or tiled_obstacle(q, v, kind.c, sets.metric, others)
        kind = kind._replace(algorithm="blocked" if obstacle else "tiled")
    if kind.algorithm == "tiled":
        from . import tiled_check, tiled_launch

        q, k, v, grad_output = regular(q), regular(k), regular(v), regular(grad_output)
        configuration = (
            tuple(x is not None for x in masses),
            *_configuration((q, k, v, grad_output), c_tensor, sets, kind),
        )
        if trusted("attention_backward", q.device, configuration, tiled_check.backward_is_right):
            return tiled_launch.backward(grad_output, *masses, q, k, v, c_tensor, sets, kind)
    with full_precision(q.device):
        if kind.algorithm == "lse":
            assert kept is not None
            assert sums is not None
            grads = lse.backward(grad_output, grad_set, grad_entropy, kept, sums, q, k, v, sets, kind)
        elif kind.algorithm == "chunk":
            grads = chunk.backward(grad_output, grad_set, q, k, v, sets, kind)
        else:
            grads = blocked.backward(grad_output, *masses, q, k, v, c_tensor, sets, kind)
    return grads[0].contiguous(), grads[1].contiguous(), grads[2].contiguous()


def _backward_fake(
    grad_output: Tensor, grad_row: Tensor | None, grad_set: Tensor | None, grad_entropy: Tensor | None,
    kept: Tensor | None, sums: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *rest: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


define(f"attention({ARGUMENTS}) -> ({', '.join(['Tensor'] * 8)})", _forward, _forward_fake)
define(
    "attention_backward(Tensor grad_output, Tensor? grad_row, Tensor? grad_set, Tensor? grad_entropy, "
    f"Tensor? kept, Tensor? sums, {ARGUMENTS}) -> (Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
)


def _fold_inputs(size: int, dims: Sequence[Any], arguments: Sequence[Any]) -> tuple[Any, ...]:
    q, k, v, c_tensor, held, numbers = arguments
    if dims[3] is not None:
        raise NotImplementedError("attention: vmap cannot map c; map q, k, v or the sets")
    q, k, v = (fold(x, dim, size) for x, dim in zip((q, k, v), dims, strict=False))
    samples = q.shape[0] // size

    def of_every_sample(x: Tensor, dim: int | None) -> Tensor:
        if dim is None and x.shape[0] == 1:
            return x
        x = x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
        return x.expand(size, samples, *x.shape[2:]).flatten(0, 1)

    held = [of_every_sample(x, dim) for x, dim in zip(held, dims[4], strict=True)]
    return q, k, v, c_tensor, held, numbers


def _dims_of_held(dims: Any, held: Sequence[Tensor]) -> list[int | None]:
    return [None] * len(held) if dims is None else list(dims)


def _forward_vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
    dims = [*in_dims[:4], _dims_of_held(in_dims[4], arguments[4])]
    folded = _fold_inputs(info.batch_size, dims, arguments[:6])
    results = torch.ops.mechplateau.attention(*folded, *arguments[6:])
    return tuple(unfold(x, info.batch_size) for x in results), (0,) * len(results)


def _backward_vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
    size = info.batch_size
    n = N_GRADS + N_KEPT
    dims = [*in_dims[n : n + 4], _dims_of_held(in_dims[n + 4], arguments[n + 4])]
    folded = _fold_inputs(size, dims, arguments[n : n + 6])
    grads = [
        None if x is None else fold(x, dim, size) for x, dim in zip(arguments[:n], in_dims[:n], strict=True)
    ]
    results = torch.ops.mechplateau.attention_backward(*grads, *folded, *arguments[n + 6 :])
    return tuple(unfold(x, size) for x in results), (0, 0, 0)


define_vmap("attention", _forward_vmap)
define_vmap("attention_backward", _backward_vmap)


def _split(arguments: tuple[Any, ...]) -> tuple[Kind, tuple[int, ...], list[Tensor]]:
    """Flat arguments after q, k, v and c (torch.compile wants them flat): flags, the sets' numbers, their tensors."""
    kind = Kind(*arguments[:N_FLAGS])
    end = N_FLAGS + PER_SET * (kind.n_sets + kind.allowed + kind.intervene)
    return kind, tuple(arguments[N_FLAGS:end]), list(arguments[end:])


def _backward_operation(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    tensors = N_GRADS + N_KEPT + 4
    kind, numbers, held = _split(arguments[tensors:])
    return torch.ops.mechplateau.attention_backward(*arguments[:tensors], held, numbers, *kind)


def _gradients_by_reference(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    # What was kept of the results is not looked at: it is made again.
    tensors = N_GRADS + N_KEPT + 4
    *given, q, k, v, c_tensor = arguments[:tensors]
    grads = given[:N_GRADS]
    kind, numbers, held = _split(arguments[tensors:])
    sets = decode(held, numbers, kind)

    def outputs(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        results = reference.attention(q, k, v, c_tensor, sets, kind)
        return (*results[:3], results[5])

    # The products of a backward pass are autocast as well where it runs inside autocast.
    with full_precision(q.device):
        results, pull_back = torch.func.vjp(outputs, q, k, v)[:2]
        pairs = zip(results, grads, strict=True)
        return pull_back(tuple(torch.zeros_like(x) if g is None else g for x, g in pairs))


_differentiable_backward = differentiable(_backward_operation, _gradients_by_reference)


class _Attention(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        kind, numbers, held = _split(arguments[4:])
        return torch.ops.mechplateau.attention(*arguments[:4], held, numbers, *kind)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        kind, numbers, held = _split(inputs[4:])
        kept = output[6:] if kind.algorithm == "lse" else (None,) * N_KEPT
        ctx.save_for_backward(*inputs[:4], *kept, *held)
        ctx.flags = (*kind, *numbers)
        ctx.set_materialize_grads(False)
        # As in the reference: masses do not depend on v, and what is empty depends on nothing.
        scored = any(ctx.needs_input_grad[:2])
        without = [output[3], output[4], *output[6:]]
        if not scored or not kind.row_mass:
            without.append(output[1])
        if not scored or kind.n_sets == 0:
            without.append(output[2])
        if not scored or not kind.statistics:
            without.append(output[5])
        ctx.mark_non_differentiable(*without)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        q, k, v, c_tensor, *rest = ctx.saved_tensors
        kept, held = rest[:N_KEPT], rest[N_KEPT:]
        grad_output = q.new_zeros(v.shape) if grads[0] is None else grads[0]
        kind = Kind(*ctx.flags[:N_FLAGS])
        # A trace hands back zeros also where an output is empty.
        of_masses = (
            grads[1] if kind.row_mass else None,
            grads[2] if kind.n_sets else None,
            grads[5] if kind.statistics else None,
        )
        arguments = (grad_output, *of_masses, *kept, q, k, v, c_tensor, *ctx.flags, *held)
        gradients = (_differentiable_backward if torch.is_grad_enabled() else _backward_operation)(*arguments)
        return (*gradients, *[None] * (1 + len(ctx.flags) + len(held)))


def _settled_factor(q: Tensor, c: float | Tensor, kind: Kind) -> tuple[Tensor | None, Kind]:
    """The factor as a tensor on the device, or as a number: one on the host is read now for a kernel."""
    if not isinstance(c, Tensor):
        return None, kind._replace(c=float(c))
    if kind.algorithm != "tiled":
        return c, kind
    return (c.float(), kind) if c.device == q.device else (None, kind._replace(c=float(c)))


def run(
    q: Tensor, k: Tensor, v: Tensor, c: float | Tensor, sets: Sets, kind: Kind
) -> AttentionOutput | AttentionOutputWithStatistics:
    """Attention by the algorithm that `kind` names; its factor is `c`."""
    factor, kind = _settled_factor(q, c, kind)
    if kind.algorithm == "map":
        with full_precision(q.device):
            results = _asked_for(reference.attention(q, k, v, factor, sets, kind), kind)
    else:
        held, numbers = encode(sets)
        if torch.compiler.is_compiling():
            # A trace of an autograd.Function wants each tensor once.
            k = k.view_as(k) if k is q else k
            v = v.view_as(v) if v is q or v is k else v
        results = _Attention.apply(q, k, v, factor, *kind, *numbers, *held)
    return AttentionOutputWithStatistics(*results[:6]) if kind.statistics else AttentionOutput(*results[:3])
