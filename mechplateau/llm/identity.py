"""A checkpoint's identity by content: a hash of each tensor and of the whole, and a sketch to measure with.

1. A tensor's hash is SHA-256 over its shape and its values as little-endian float32, with −0 read as 0: it
   depends on the numbers, not on the file format, sharding or storage type. A copy made by rounding to
   bfloat16 or float16 has other numbers, so each tensor is also hashed as rounded to these two types, and two
   tensors are the same if they agree at the coarser of the two types they are stored in.
2. The hash of a checkpoint is SHA-256 over the sorted names and hashes of its floating-point tensors.
   Constants of the architecture that some files carry (rotary frequencies, masks) are left out: recognized by whole
   components of their names and by their shapes, so that no trained tensor is taken for one.
3. The sketch keeps the values at up to 4,096 fixed positions of each tensor. The squared distance of two
   tensors is estimated as the mean squared difference there times the number of elements (exact for tensors
   that fit), so any two checkpoints can be compared later without either in memory.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mechplateau.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

SKETCH_SIZE = 4096
_CHUNK = 1 << 22
"""Elements converted at a time, so that hashing a large embedding needs little memory of its own."""
_ATTENTION = ("attention", "attn", "crossattention")
"""Modules whose causal mask is called `bias`, and the number in its empty places `masked_bias`."""
_COARSE = ("bfloat16", "float16")


@dataclass(frozen=True)
class TensorIdentity:
    """Content of one tensor."""

    dtype: str
    """The type it is stored in."""
    shape: tuple[int, ...]
    hash: str
    """SHA-256 of the values as float32, 64 hexadecimal digits."""
    rounded: Mapping[str, str]
    """SHA-256 of the values rounded to bfloat16 and to float16."""
    constant: bool
    """All elements are equal (fresh biases and LayerNorm gains): says nothing about where it comes from."""
    finite: bool

    def agreement(self, other: TensorIdentity) -> str | None:
        """The type at which the two are equal: `float32` (the same numbers), a coarser one, or None.

        bfloat16 against float16 is not decided by hashes (rounding twice may differ), and counts as
        different.
        """
        if self.shape != other.shape:
            return None
        if self.hash == other.hash:
            return "float32"
        for dtype in _COARSE:
            others = {self.dtype, other.dtype} - {dtype}
            coarser_one_stored = dtype in (self.dtype, other.dtype) and not others & set(_COARSE)
            if coarser_one_stored and self.rounded[dtype] == other.rounded[dtype]:
                return dtype
        return None


@dataclass(frozen=True)
class Identity:
    """Content of one checkpoint: its tensors, the hash of the whole and the sketch."""

    tensors: Mapping[str, TensorIdentity]
    sketch: Mapping[str, Tensor]
    """Values at fixed positions, `[min(numel, 4096)]` float32 each, by the same names."""

    @property
    def hash(self) -> str:
        """SHA-256 over the sorted names and hashes of all tensors."""
        digest = hashlib.sha256()
        for name in sorted(self.tensors):
            digest.update(f"{name}\0{self.tensors[name].hash}\n".encode())
        return digest.hexdigest()

    @property
    def dtype(self) -> str:
        """The storage type of the tensors; several are joined by `+`."""
        return "+".join(sorted({tensor.dtype for tensor in self.tensors.values()}))

    @property
    def nonfinite(self) -> list[str]:
        """Names of tensors with an infinity or NaN in them."""
        return [name for name, tensor in self.tensors.items() if not tensor.finite]

    def differences(self, other: Identity) -> list[str]:
        """Names of tensors that only one of the two has, or that have another shape in the other.

        A tied tensor may be stored under both of its names or under one: what equals a tensor that both have
        is no difference.
        """
        shared = self.tensors.keys() & other.tensors.keys()
        return sorted(
            [name for name in shared if self.tensors[name].shape != other.tensors[name].shape]
            + [
                name
                for identity in (self, other)
                for name, tensor in identity.tensors.items()
                if name not in shared
                and not any(tensor.hash == identity.tensors[twin].hash for twin in shared)
            ]
        )

    def agreement(self, other: Identity) -> str | None:
        """The coarsest type at which some tensor needed comparing, if all tensors are equal; else None."""
        if self.differences(other):
            return None
        shared = self.tensors.keys() & other.tensors.keys()
        levels = {self.tensors[name].agreement(other.tensors[name]) for name in shared}
        if None in levels:
            return None
        coarse = sorted(level for level in levels if level is not None and level != "float32")
        return "+".join(coarse) or "float32"

    def squared_distance(self, other: Identity, tensor: str | None = None) -> float:
        """Estimated squared Euclidean distance over the tensors that both have in the same shape, or over
        one."""
        names = self.tensors if tensor is None else (tensor,)
        return sum(
            _mean_square(self.sketch[name], other.sketch[name]) * _numel(self.tensors[name].shape)
            for name in names
            if name in other.tensors and other.tensors[name].shape == self.tensors[name].shape
        )

    def squared_norm(self) -> float:
        """Estimated squared Euclidean norm of all tensors together."""
        return sum(
            _mean_square(self.sketch[name]) * _numel(tensor.shape) for name, tensor in self.tensors.items()
        )

    def record(self) -> dict[str, Any]:
        """The tensors' identities as plain data (without the sketch)."""
        return {
            name: {
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "hash": tensor.hash,
                "rounded": dict(tensor.rounded),
                "constant": tensor.constant,
                "finite": tensor.finite,
            }
            for name, tensor in self.tensors.items()
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any], sketch: Mapping[str, Tensor]) -> Identity:
        """The inverse of `record`, with the sketch that belongs to it."""
        tensors = {
            name: TensorIdentity(**{**fields, "shape": tuple(fields["shape"])})
            for name, fields in record.items()
        }
        return cls(tensors, sketch)


def identify(state: Mapping[str, Tensor]) -> Identity:
    """Hash and sketch the tensors of a checkpoint.

    Args:
        state: tensors by name, on the CPU, as stored.

    Raises:
        CheckpointError: there is no floating-point tensor, or weights are stored as whole or complex numbers.
    """
    import torch

    tensors: dict[str, TensorIdentity] = {}
    sketch: dict[str, Tensor] = {}
    for name in sorted(state):
        tensor = state[name]
        if _is_quantized(name, tensor):
            raise CheckpointError(
                f"{name} is stored as {str(tensor.dtype).removeprefix('torch.')}; expected floating-point weights "
                "(quantized ones are not supported)"
            )
        if not tensor.is_floating_point() or not tensor.numel() or _is_constant(name, tensor):
            continue
        tensors[name] = _identify_tensor(tensor)
        sketch[name] = tensor.reshape(-1)[_positions(tensor.numel())].float()
    if not tensors:
        raise CheckpointError("the checkpoint holds no floating-point tensor")
    # One block: many small tensors that live on between large ones that do not would keep the heap from
    # shrinking.
    block = torch.cat(list(sketch.values())).split([len(values) for values in sketch.values()])
    return Identity(tensors, dict(zip(sketch, block, strict=True)))


def _is_constant(name: str, tensor: Tensor) -> bool:
    """Whether a tensor is a constant of the architecture: rotary frequencies, a causal mask or its fill value."""
    match name.split(".")[-2:]:
        case ["rotary_emb", "inv_freq"]:
            return tensor.dim() == 1
        case [module, "masked_bias"] if module in _ATTENTION:
            return tensor.numel() == 1
        case [module, "bias"] if module in _ATTENTION:
            return tensor.dim() >= 2 and tensor.shape[-1] == tensor.shape[-2] and _one_matrix(tensor.shape)
    return False


def _is_quantized(name: str, tensor: Tensor) -> bool:
    """Whether a tensor of another kind than floating-point numbers holds weights, not a mask or a counter."""
    import torch

    if tensor.is_complex():
        return True
    if tensor.is_floating_point() or tensor.dtype == torch.bool or tensor.dim() < 2:
        return False
    mask = tensor.dim() > 2 and tensor.shape[-1] == tensor.shape[-2] and _one_matrix(tensor.shape)
    return not mask and not _is_constant(name, tensor) and name.split(".")[-1] != "position_ids"


def _one_matrix(shape: Sequence[int]) -> bool:
    return all(size == 1 for size in shape[:-2])


def _identify_tensor(tensor: Tensor) -> TensorIdentity:
    import torch

    shape = tuple(tensor.shape)
    digests = {dtype: hashlib.sha256(repr(shape).encode()) for dtype in ("float32", *_COARSE)}
    constant, finite, first = True, True, None
    for chunk in tensor.reshape(-1).split(_CHUNK):
        # Adding 0 turns −0 into 0: copies that went through different tools differ in that sign.
        values = chunk.float() + 0.0
        digests["float32"].update(_bytes(values))
        for dtype in _COARSE:
            digests[dtype].update(_bytes(values.to(getattr(torch, dtype))))
        first = values[0] if first is None else first
        constant = constant and bool((values == first).all())
        finite = finite and bool(values.isfinite().all())
    return TensorIdentity(
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=shape,
        hash=digests["float32"].hexdigest(),
        rounded={dtype: digests[dtype].hexdigest() for dtype in _COARSE},
        constant=constant,
        finite=finite,
    )


def _bytes(values: Tensor) -> bytes:
    import torch

    return values.contiguous().view(torch.uint8).numpy().tobytes()


def _positions(numel: int) -> Tensor:
    """The same positions for every tensor of one size, spread at random over it."""
    import torch

    if numel <= SKETCH_SIZE:
        return torch.arange(numel)
    return torch.randint(numel, (SKETCH_SIZE,), generator=torch.Generator().manual_seed(numel % 2**63))


def _numel(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _mean_square(one: Tensor, other: Tensor | None = None) -> float:
    """Mean of the squares of a tensor, or of a difference, also where they are too large for float32."""
    value = float((one if other is None else one - other).square().mean())
    if math.isfinite(value):
        return value
    wide = one.double() if other is None else one.double() - other.double()
    return float(wide.square().mean())
