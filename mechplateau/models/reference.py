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
from mechplateau.files import local_path
from mechplateau.models.config import AttentionKind, ModelConfig
from mechplateau.models.safe_files import load_tensors
from mechplateau.models.transformer import HookedGPT, load_weights

_MASK = re.compile(r"transformer\.h\.\d+\.attn\.bias")
_FUSED = re.compile(r"transformer\.h\.\d+\.attn\.c_attn\.(weight|bias)")
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
) -> HookedGPT:
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
    path = local_path(path)
    if isinstance(n_heads, bool) or not isinstance(n_heads, int):
        raise CheckpointError(f"n_heads: expected a whole number, got {n_heads!r}")
    if attention not in ("linear", "softmax"):
        raise CheckpointError(f"attention: expected linear or softmax, got {attention!r}")
    given = load_tensors(path)
    blocks = sorted({int(m[1]) for name in given if (m := re.match(r"transformer\.h\.(\d+)\.", name))})
    _check_layout(given, path)
    if "transformer.wte.weight" not in given or "transformer.wpe.weight" not in given or not blocks:
        raise CheckpointError(
            f"{path}: not a checkpoint of the paper's code: expected tensors transformer.wte.weight, "
            f"transformer.wpe.weight, transformer.h.0.…, got {', '.join(sorted(given)[:4]) or 'none'}"
        )
    vocab_size, d_model = _matrix(given, "transformer.wte.weight", path)
    n_ctx, _ = _matrix(given, "transformer.wpe.weight", path)
    query, _ = _matrix(given, "transformer.h.0.attn.q.weight", path)
    d_mlp, _ = _matrix(given, "transformer.h.0.mlp.c_fc.weight", path)
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
    model = HookedGPT(config, vocab_size, n_ctx)
    load_weights(model, _translate(given, n_heads, path), str(path))
    return model.eval()


def _check_layout(given: Mapping[str, Tensor], path: Path) -> None:
    """Name the layouts that are often taken for this one."""
    fused = [name for name in given if _FUSED.fullmatch(name)]
    if fused:
        raise CheckpointError(
            f"{path}: {fused[0]} holds queries, keys and values in one tensor (nanoGPT's layout); expected attn.Q, "
            "attn.K and attn.V: split it in three, in this order, along its first dimension"
        )
    if "embed.W_E" in given and not any(name.startswith("transformer.") for name in given):
        if "ln_final.w" in given:
            raise CheckpointError(
                f"{path}: holds TransformerLens's names (embed.W_E, …), not the paper's; read it with torch.load and "
                "give it to the load_state_dict of a model from build_model"
            )
        raise CheckpointError(
            f"{path}: holds folded weights (TransformerLens's names, no gains and biases of LayerNorms): the trained "
            "model cannot be had from them; give the file as it was before processing"
        )


def _translate(given: Mapping[str, Tensor], n_heads: int, path: Path) -> dict[str, Tensor]:
    """TransformerLens's names and layouts; a name that is not of the layout, or one written twice, is an error."""
    tensors: dict[str, Tensor] = {}
    n_ctx = given["transformer.wpe.weight"].shape[0]
    for name, tensor in given.items():
        if _MASK.fullmatch(name):
            _check_mask(name, tensor, n_ctx, path)
            continue
        target = _NAMES.get(name)
        if block := re.fullmatch(r"transformer\.h\.(\d+)\.(.+)", name):
            inner = _BLOCK_NAMES.get(_lower(block[2]))
            target = f"blocks.{block[1]}.{inner}" if inner else None
        if target is None:
            raise CheckpointError(f"{path}: unknown tensor {name}: not of the layout of the paper's code")
        if target in tensors:
            raise CheckpointError(f"{path}: {name} is duplicate (its name in either case); keep one of them")
        if not tensor.dtype.is_floating_point:
            raise CheckpointError(
                f"{path}: {name} is {str(tensor.dtype)[6:]}, expected floating-point numbers"
            )
        tensors[target] = _to_hooked_layout(target.rpartition(".")[2], tensor, n_heads)
    tensors["unembed.b_U"] = torch.zeros(tensors["embed.W_E"].shape[0])
    return {name: tensor.float() for name, tensor in tensors.items()}


def _lower(inner: str) -> str:
    """The authors write q, k and v in either case."""
    return re.sub(r"^attn\.([QKV])\.", lambda m: f"attn.{m[1].lower()}.", inner)


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


def _check_mask(name: str, mask: Tensor, n_ctx: int, path: Path) -> None:
    lower = torch.ones(1, 1, n_ctx, n_ctx).tril()
    if mask.shape != lower.shape or not torch.equal(mask.float(), lower):
        raise CheckpointError(
            f"{path}: {name} is not a lower-triangular mask {list(lower.shape)}: the model is not the causal one"
        )


def _matrix(given: Mapping[str, Tensor], name: str, path: Path) -> tuple[int, int]:
    """Shape of a matrix by its name, q, k and v in either case."""
    for candidate in (name, name.replace("attn.q", "attn.Q")):
        if (tensor := given.get(candidate)) is not None:
            if tensor.dim() != 2:
                raise CheckpointError(
                    f"{path}: {candidate} has shape {list(tensor.shape)}, expected a matrix"
                )
            return tensor.shape[0], tensor.shape[1]
    raise CheckpointError(f"{path}: missing {name}")
