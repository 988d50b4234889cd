"""A BERT's weights in the encoder: the authors' checkpoints of matrix completion, and Hugging Face's `BertModel`.

The authors save with `torch.save` a dict with epoch, model, optim and losses; the model is Hugging Face's BERT under
`_backbone.` and a linear read-out under `read_out.`. Only tensors are read.

Source: arXiv 2410.22244; its released code names the tensors.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from mechplateau.errors import CheckpointError, UserError
from mechplateau.models.encoder import Encoder
from mechplateau.models.encoder_config import EncoderConfig
from mechplateau.models.safe_files import load_tensors
from mechplateau.models.weights import check_fits

_PREFIX = "_backbone."
_IGNORED = re.compile(r"(.*\.)?(position_ids|token_type_ids)|pooler\..*")


def load_bert_checkpoint(
    path: str | Path,
    *,
    values: Float[Tensor, " vocab"],
    n_ctx: int,
    n_heads: int | None = None,
) -> Encoder:
    """An encoder with the weights of one of the authors' checkpoints, on the CPU.

    Args:
        path: the file, whatever its ending.
        values: the number of each token (`task.token_values`).
        n_ctx: cells of a matrix; the checkpoint's further positions are left out.
        n_heads: heads a layer, which the weights do not show; None: d_model / 96.

    Raises:
        CheckpointError: missing, damaged, unsafe, or of another size.
        UserError: a number of heads that does not divide the width.
    """
    file = Path(path)
    tensors = load_tensors(file)
    if not any(name.startswith(_PREFIX) for name in tensors):
        raise CheckpointError(
            f"{file}: expected names that begin with {_PREFIX}, as in the authors' files; got "
            f"{', '.join(sorted(tensors)[:3])}, …"
        )
    bert = {name.removeprefix(_PREFIX): t for name, t in tensors.items() if name.startswith(_PREFIX)}
    readout = {name: t for name, t in tensors.items() if not name.startswith(_PREFIX)}
    if set(readout) != {"read_out.weight", "read_out.bias"}:
        raise CheckpointError(
            f"{file}: expected read_out.weight and read_out.bias beside {_PREFIX}…, got {', '.join(sorted(readout))}"
        )
    return encoder_from_bert(
        bert,
        (readout["read_out.weight"], readout["read_out.bias"]),
        values=values,
        n_ctx=n_ctx,
        n_heads=n_heads,
        source=str(file),
    )


def encoder_from_bert(
    bert: Mapping[str, Tensor],
    readout: tuple[Tensor, Tensor],
    *,
    values: Float[Tensor, " vocab"],
    n_ctx: int,
    n_heads: int | None = None,
    source: str = "the state dict",
) -> Encoder:
    """An encoder that computes what a Hugging Face `BertModel` and a linear read-out compute.

    Args:
        bert: `BertModel.state_dict()`; its id buffers and pooler are not used. The first row of its token-type table,
            if it has one, goes into the positions, with a notice.
        readout: weight `[1, d_model]` and bias `[1]`.
        values: the number of each token.
        n_ctx: how many of its positions are kept.
        n_heads: heads a layer; None: d_model / 96.
        source: what an error calls the weights.

    Raises:
        CheckpointError: names or shapes that do not fit.
        UserError: a number of heads that does not divide the width.
    """
    given = {name: tensor for name, tensor in bert.items() if not _IGNORED.fullmatch(name)}
    words = given.get("embeddings.word_embeddings.weight")
    if words is None or words.dim() != 2:
        raise CheckpointError(f"{source}: expected embeddings.word_embeddings.weight [vocabulary, d_model]")
    vocabulary, width = words.shape
    if vocabulary != len(values):
        raise CheckpointError(
            f"{source} is of another size: expected {len(values)} tokens, as this task has, got {vocabulary}"
        )
    layers = {int(found[1]) for name in given if (found := re.match(r"encoder\.layer\.(\d+)\.", name))}
    heads = n_heads if n_heads is not None else max(width // 96, 1)
    if heads < 1 or width % heads:
        raise UserError(f"n_heads: expected a divisor of the width {width}, got {heads}")
    inner = given.get("encoder.layer.0.intermediate.dense.weight", torch.zeros(4 * width, width))
    config = EncoderConfig(
        n_layers=max(len(layers), 1),
        n_heads=heads,
        d_model=width,
        d_mlp=inner.shape[0],
        mask_embedding="frozen_zero" if not words[0].any() else "learned",
    )
    check_fits(given, _expected(config, given, vocabulary, n_ctx), source)
    model = Encoder(config, values, n_ctx)
    weights = _translated(given, config, n_ctx, source)
    weights |= {"readout.w": readout[0].reshape(-1), "readout.b": readout[1].reshape(())}
    own = dict(model.named_parameters())
    check_fits(weights, own, source)
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])
    return model


def _expected(
    config: EncoderConfig, given: Mapping[str, Tensor], vocabulary: int, n_ctx: int
) -> dict[str, Tensor]:
    """What BERT's state dict holds at these sizes, under its own names."""
    width, inner = config.d_model, config.mlp_width
    positions = given.get("embeddings.position_embeddings.weight")
    n_positions = n_ctx if positions is None or len(positions) < n_ctx else len(positions)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (vocabulary, width),
        "embeddings.position_embeddings.weight": (n_positions, width),
        **_norm("embeddings.LayerNorm", width),
    }
    if (types := given.get("embeddings.token_type_embeddings.weight")) is not None:
        shapes["embeddings.token_type_embeddings.weight"] = (max(len(types), 1), width)
    for layer in range(config.n_layers):
        at = f"encoder.layer.{layer}"
        for name in ("attention.self.query", "attention.self.key", "attention.self.value"):
            shapes |= _linear(f"{at}.{name}", width, width)
        shapes |= _linear(f"{at}.attention.output.dense", width, width)
        shapes |= _norm(f"{at}.attention.output.LayerNorm", width)
        shapes |= _linear(f"{at}.intermediate.dense", inner, width)
        shapes |= _linear(f"{at}.output.dense", width, inner)
        shapes |= _norm(f"{at}.output.LayerNorm", width)
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}


def _linear(name: str, out: int, into: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _translated(
    bert: Mapping[str, Tensor], config: EncoderConfig, n_ctx: int, source: str
) -> dict[str, Tensor]:
    """The encoder's parameters, all but the read-out's."""
    width, heads, d_head = config.d_model, config.n_heads, config.head_width
    positions = bert["embeddings.position_embeddings.weight"][:n_ctx]
    if (types := bert.get("embeddings.token_type_embeddings.weight")) is not None:
        positions = positions + types[0]
        warnings.warn(
            f"{source}: the first row of its token-type table is added to the positions", stacklevel=4
        )
    weights = {
        "embed.embed.W_E": bert["embeddings.word_embeddings.weight"],
        "embed.pos_embed.W_pos": positions,
        "embed.ln.w": bert["embeddings.LayerNorm.weight"],
        "embed.ln.b": bert["embeddings.LayerNorm.bias"],
    }
    for layer in range(config.n_layers):
        theirs, ours = f"encoder.layer.{layer}", f"blocks.{layer}"
        for letter, name in (("Q", "query"), ("K", "key"), ("V", "value")):
            weight = bert[f"{theirs}.attention.self.{name}.weight"]
            weights[f"{ours}.attn.W_{letter}"] = weight.view(heads, d_head, width).transpose(1, 2)
            weights[f"{ours}.attn.b_{letter}"] = bert[f"{theirs}.attention.self.{name}.bias"].view(
                heads, d_head
            )
        out = bert[f"{theirs}.attention.output.dense.weight"]
        weights[f"{ours}.attn.W_O"] = out.T.reshape(heads, d_head, width)
        weights[f"{ours}.attn.b_O"] = bert[f"{theirs}.attention.output.dense.bias"]
        for norm, name in (("ln1", "attention.output.LayerNorm"), ("ln2", "output.LayerNorm")):
            weights[f"{ours}.{norm}.w"] = bert[f"{theirs}.{name}.weight"]
            weights[f"{ours}.{norm}.b"] = bert[f"{theirs}.{name}.bias"]
        for matrix, name in (("in", "intermediate.dense"), ("out", "output.dense")):
            weights[f"{ours}.mlp.W_{matrix}"] = bert[f"{theirs}.{name}.weight"].T
            weights[f"{ours}.mlp.b_{matrix}"] = bert[f"{theirs}.{name}.bias"]
    return weights


__all__ = ["encoder_from_bert", "load_bert_checkpoint"]
