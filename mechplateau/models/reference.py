"""Checkpoints of the paper's own code, loaded as HookedTransformers.

Layout: transformer.{wte, wpe, h.N.{ln_1, attn.{Q, K, V, c_proj}, ln_2, mlp.{c_fc, c_proj}}, ln_f}, lm_head,
each a PyTorch module's `weight` (and `bias`), and a causal mask h.N.attn.bias `[1, 1, n_ctx, n_ctx]`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from mechplateau.errors import CheckpointError
from mechplateau.models.config import AttentionKind, ModelConfig
from mechplateau.models.safe_files import load_tensors
from mechplateau.models.transformer import PlateauTransformer, load_weights

_MASK = re.compile(r"transformer\.h\.\d+\.attn\.bias")
_NAMES = {
    "transformer.wte.weight": "embed.W_E",
    "transformer.wpe.weight": "pos_embed.W_pos",
    "transformer.ln_f.weight": "ln_final.w",
    "transformer.ln_f.bias": "ln_final.b",
    "lm_head.weight": "unembed.W_U",
}
_BLOCK_NAMES = {
    "ln_1.weight": "ln1.w",
    "ln_1.bias": "ln1.b",
    "attn.q.weight": "attn.W_Q",
    "attn.q.bias": "attn.b_Q",
    "attn.k.weight": "attn.W_K",
    "attn.k.bias": "attn.b_K",
    "attn.v.weight": "attn.W_V",
    "attn.v.bias": "attn.b_V",
    "attn.c_proj.weight": "attn.W_O",
    "attn.c_proj.bias": "attn.b_O",
    "ln_2.weight": "ln2.w",
    "ln_2.bias": "ln2.b",
    "mlp.c_fc.weight": "mlp.W_in",
    "mlp.c_fc.bias": "mlp.b_in",
    "mlp.c_proj.weight": "mlp.W_out",
    "mlp.c_proj.bias": "mlp.b_out",
}


def load_reference_checkpoint(
    path: str | Path, *, n_heads: int = 1, attention: AttentionKind = "linear"
) -> PlateauTransformer:
    """Load a checkpoint of the paper's own code (`GPTLinear`, `GPTSoftmax`); logits equal theirs to 1e-5.

    Sizes are read off the tensors. The number of heads and the kind of attention cannot be, so they are
    arguments. Only tensors are read: a file whose pickle would run code is refused.

    Args:
        path: a file saved by torch (the state dict itself, or a dict with it under `model`) or safetensors.
        n_heads: heads of each layer.
        attention: "linear" or "softmax".

    Raises:
        CheckpointError: no such file, unsafe, damaged, or not of this layout; names the tensor.
    """
    path = Path(path)
    if attention not in ("linear", "softmax"):
        raise CheckpointError(f"attention: expected linear or softmax, got {attention!r}")
    given = load_tensors(path)
    blocks = sorted({int(m[1]) for name in given if (m := re.match(r"transformer\.h\.(\d+)\.", name))})
    if "transformer.wte.weight" not in given or "transformer.wpe.weight" not in given or not blocks:
        raise CheckpointError(
            f"{path}: not a checkpoint of the paper's code: expected tensors transformer.wte.weight, "
            f"transformer.wpe.weight, transformer.h.0.…, got {', '.join(sorted(given)[:4]) or 'none'}"
        )
    vocab_size, d_model = given["transformer.wte.weight"].shape
    n_ctx = given["transformer.wpe.weight"].shape[0]
    query, d_mlp = _shape_of(given, "attn.q.weight", path)[0], _shape_of(given, "mlp.c_fc.weight", path)[0]
    if n_heads < 1 or query % n_heads:
        raise CheckpointError(
            f"n_heads: expected a divisor of the width {query} of {path}'s queries, got {n_heads}"
        )
    config = ModelConfig.parse(
        {
            "attention": attention,
            "n_layers": len(blocks),
            "n_heads": n_heads,
            "d_model": d_model,
            "d_head": query // n_heads,
            "d_mlp": d_mlp,
        }
    )
    model = PlateauTransformer(config, vocab_size, n_ctx)
    load_weights(model, _translate(given, n_heads, path), str(path))
    return model.eval()


def _translate(given: Mapping[str, Tensor], n_heads: int, path: Path) -> dict[str, Tensor]:
    """TransformerLens's names and layouts; a name that is not of the layout stays, and is refused later."""
    tensors = {}
    for name, tensor in given.items():
        if _MASK.fullmatch(name):
            _check_mask(name, tensor, path)
            continue
        block = re.fullmatch(r"transformer\.h\.(\d+)\.(.+)", name)
        target = _NAMES.get(name, name)
        if block:
            inner = re.sub(r"^attn\.([QKV])\.", lambda m: f"attn.{m[1].lower()}.", block[2])
            if inner in _BLOCK_NAMES:
                target = f"blocks.{block[1]}.{_BLOCK_NAMES[inner]}"
        tensors[target] = _to_hooked_layout(target.rpartition(".")[2], tensor, n_heads)
    tensors["unembed.b_U"] = torch.zeros(tensors["embed.W_E"].shape[0])
    return {name: tensor.float() for name, tensor in tensors.items()}


def _to_hooked_layout(kind: str, tensor: Tensor, n_heads: int) -> Tensor:
    """PyTorch's Linear holds [out, in]; TransformerLens [in, out], split by head in attention."""
    try:
        if kind in ("W_Q", "W_K", "W_V"):
            return tensor.T.unflatten(1, (n_heads, -1)).transpose(0, 1)
        if kind == "W_O":
            return tensor.T.unflatten(0, (n_heads, -1))
        if kind in ("b_Q", "b_K", "b_V"):
            return tensor.unflatten(0, (n_heads, -1))
    except RuntimeError:
        return tensor  # does not split into heads: the strict check names it with both shapes
    return tensor.T if kind in ("W_in", "W_out", "W_U") else tensor


def _check_mask(name: str, mask: Tensor, path: Path) -> None:
    lower = torch.ones(mask.shape[-2:]).tril().expand(mask.shape)
    if mask.dim() != 4 or mask.shape[-1] != mask.shape[-2] or not torch.equal(mask.float(), lower):
        raise CheckpointError(
            f"{path}: {name} is not a lower-triangular mask [1, 1, n_ctx, n_ctx]: not causal"
        )


def _shape_of(given: Mapping[str, Tensor], inner: str, path: Path) -> tuple[int, ...]:
    for name in (inner, inner.replace("attn.q", "attn.Q")):
        if (tensor := given.get(f"transformer.h.0.{name}")) is not None:
            return tuple(tensor.shape)
    raise CheckpointError(f"{path}: missing transformer.h.0.{inner}")
