"""Linear attention by Triton as a torch operation: autograd, vmap, torch.compile.

The kernels give first derivatives. Second and higher ones are the reference's, taken where a graph of the
backward pass is requested.
"""

from typing import Any

import torch
from torch import Tensor

from .._dispatch import full_precision
from .._launch import address, layout, regular
from .._library import define, define_vmap, differentiable, fold, unfold
from .._selfcheck import trusted
from . import reference
from .configs import Call, Options

__all__ = ["fused_linear_attention"]

ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? bits, Tensor? c_tensor, float c, float scale, "
    "bool causal, bool intervene, int n_sets, str precision"
)


def _sets(bits: Tensor | None, intervene: bool, n_sets: int) -> tuple[Tensor | None, list[Tensor]]:
    """The bit planes as the bool masks the reference takes."""
    if bits is None:
        return None, []
    planes = [(bits >> plane) & 1 != 0 for plane in range(n_sets + intervene)]
    return (planes[n_sets] if intervene else None), planes[:n_sets]


def _by_reference(
    q: Tensor, k: Tensor, v: Tensor, bits: Tensor | None, c_tensor: Tensor | None, options: Options
) -> tuple[Tensor, Tensor, Tensor]:
    chosen, sets = _sets(bits, options.intervene, options.n_sets)
    c = options.c if c_tensor is None else c_tensor
    return reference.linear_attention(q, k, v, options.scale, options.causal, chosen, c, sets)


def _gradients_by_reference(
    grad_output: Tensor, grad_row: Tensor | None, grad_set: Tensor | None,
    q: Tensor, k: Tensor, v: Tensor, bits: Tensor | None, c_tensor: Tensor | None, *flags: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    def outputs(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return _by_reference(q, k, v, bits, c_tensor, Options(*flags))

    # The products of a backward pass are autocast as well where it runs inside autocast.
    with full_precision(q.device):
        results, pull_back = torch.func.vjp(outputs, q, k, v)[:2]
        given = zip(results, (grad_output, grad_row, grad_set), strict=True)
        return pull_back(tuple(torch.zeros_like(x) if g is None else g for x, g in given))


def _options(dtype: torch.dtype, flags: tuple[Any, ...]) -> Options:
    """The flags with the precision settled: here, when the operation runs, since a trace cannot know it."""
    options = Options(*flags)
    if dtype != torch.float32:
        # tf32 is exact for float16 operands, and bfloat16 never multiplies as float32.
        return options._replace(precision="tf32")
    if options.precision == "auto":
        exact = torch.get_float32_matmul_precision() == "highest"
        return options._replace(precision="tf32x3" if exact else "tf32")
    return options


def _configuration(
    q: Tensor, k: Tensor, v: Tensor, bits: Tensor | None, c_tensor: Tensor | None, options: Options
) -> tuple[tuple[Any, ...], Call]:
    """What a compiled kernel depends on: shapes and options, and how the arguments lie in memory."""
    shapes = (q.shape[1], q.shape[3], v.shape[3], q.dtype, *options[2:])
    sets = None if bits is None else ("shared" if bits.shape[0] == 1 else "own", address(bits))
    factor = None if c_tensor is None else address(c_tensor)
    return shapes, Call(q.shape[2], layout(q), layout(k), layout(v), sets, factor)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, bits: Tensor | None, c_tensor: Tensor | None, *flags: Any
) -> tuple[Tensor, Tensor, Tensor]:
    from . import check, launch

    options = _options(q.dtype, flags)
    q, k, v = regular(q), regular(k), regular(v)
    shapes, call = _configuration(q, k, v, bits, c_tensor, options)
    if trusted("linear_attention", q.device, (*shapes, call), check.forward_is_exact):
        return launch.forward(q, k, v, bits, c_tensor, options)
    with full_precision(q.device):
        output, row_mass, set_mass = _by_reference(q, k, v, bits, c_tensor, options)
    return output.contiguous(), row_mass, set_mass


def _forward_fake(
    q: Tensor, k: Tensor, v: Tensor, bits: Tensor | None, c_tensor: Tensor | None, *flags: Any
) -> tuple[Tensor, Tensor, Tensor]:
    batch, pos, heads, _ = q.shape
    return (
        v.new_empty(batch, pos, heads, v.shape[3]),
        q.new_empty(batch, heads, pos, dtype=torch.float32),
        q.new_empty(batch, heads, Options(*flags).n_sets, pos, dtype=torch.float32),
    )


def _backward(
    grad_output: Tensor, grad_row: Tensor | None, grad_set: Tensor | None,
    q: Tensor, k: Tensor, v: Tensor, bits: Tensor | None, c_tensor: Tensor | None, *flags: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    from . import check, launch

    options = _options(q.dtype, flags)
    q, k, v, grad_output = regular(q), regular(k), regular(v), regular(grad_output)
    # Masses are small, and their gradients often expanded scalars.
    grad_row = None if grad_row is None else grad_row.contiguous()
    grad_set = None if grad_set is None or options.n_sets == 0 else grad_set.contiguous()
    shapes, call = _configuration(q, k, v, bits, c_tensor, options)
    call = call._replace(
        grad_output=layout(grad_output),
        grad_row=None if grad_row is None else address(grad_row),
        grad_set=None if grad_set is None else address(grad_set),
    )
    if trusted("linear_attention_backward", q.device, (*shapes, call), check.backward_is_exact):
        return launch.backward(grad_output, grad_row, grad_set, q, k, v, bits, c_tensor, options)
    grads = _gradients_by_reference(
        grad_output, grad_row, grad_set, q, k, v, bits, c_tensor, *options
    )  # fmt: skip
    return grads[0].contiguous(), grads[1].contiguous(), grads[2].contiguous()


def _backward_fake(
    grad_output: Tensor, grad_row: Tensor | None, grad_set: Tensor | None,
    q: Tensor, k: Tensor, v: Tensor, bits: Tensor | None, c_tensor: Tensor | None, *flags: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


define(f"linear_attention({ARGUMENTS}) -> (Tensor, Tensor, Tensor)", _forward, _forward_fake)
define(
    "linear_attention_backward(Tensor grad_output, Tensor? grad_row, Tensor? grad_set, "
    f"{ARGUMENTS}) -> (Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
)


def _fold_inputs(
    size: int, dims: tuple[Any, ...], q: Tensor, k: Tensor, v: Tensor, bits: Tensor | None, c_tensor: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Any]:
    if dims[4] is not None:
        raise NotImplementedError("linear_attention: vmap cannot map c; map q, k, v or the sets")
    q, k, v = (fold(x, dim, size) for x, dim in zip((q, k, v), dims, strict=False))
    if bits is not None and (dims[3] is not None or bits.shape[0] != 1):
        bits = bits.expand(size, *bits.shape) if dims[3] is None else bits.movedim(dims[3], 0)
        bits = bits.expand(size, q.shape[0] // size, *bits.shape[2:]).flatten(0, 1).contiguous()
    return q, k, v, bits, c_tensor


def _forward_vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
    size = info.batch_size
    folded = _fold_inputs(size, in_dims[:5], *arguments[:5])
    results = torch.ops.mechplateau.linear_attention(*folded, *arguments[5:])
    return tuple(unfold(x, size) for x in results), (0, 0, 0)


def _backward_vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
    size = info.batch_size
    folded = _fold_inputs(size, in_dims[3:8], *arguments[3:8])
    grads = [
        None if x is None else fold(x, dim, size) for x, dim in zip(arguments[:3], in_dims[:3], strict=True)
    ]
    results = torch.ops.mechplateau.linear_attention_backward(*grads, *folded, *arguments[8:])
    return tuple(unfold(x, size) for x in results), (0, 0, 0)


define_vmap("linear_attention", _forward_vmap)
define_vmap("linear_attention_backward", _backward_vmap)

_differentiable_backward = differentiable(
    torch.ops.mechplateau.linear_attention_backward, _gradients_by_reference
)


class _LinearAttention(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        return torch.ops.mechplateau.linear_attention(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[:5])
        ctx.flags = inputs[5:]
        ctx.set_materialize_grads(False)
        # As in the reference: masses do not depend on v, and what holds no set depends on nothing.
        if not any(ctx.needs_input_grad[:2]):
            ctx.mark_non_differentiable(*output[1:])
        elif output[2].shape[2] == 0:
            ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        q, k, v, bits, c_tensor = ctx.saved_tensors
        grad_output, grad_row, grad_set = grads
        if grad_output is None:
            grad_output = q.new_zeros(v.shape)
        operation = torch.ops.mechplateau.linear_attention_backward
        gradients = (_differentiable_backward if torch.is_grad_enabled() else operation)(
            grad_output, grad_row, grad_set, q, k, v, bits, c_tensor, *ctx.flags
        )
        return (*gradients, *[None] * (2 + len(Options._fields)))


def fused_linear_attention(
    q: Tensor, k: Tensor, v: Tensor, bits: Tensor | None, c_tensor: Tensor | None, options: Options
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.linear_attention`, with the sets as bit planes (see `sets.pack`)."""
    return _LinearAttention.apply(q, k, v, bits, c_tensor, *options)
