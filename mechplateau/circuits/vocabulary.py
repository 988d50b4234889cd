"""OV and QK circuits over the vocabulary: which tokens attend to which, and what attending to a token does.

For heads of the first layer, whose input is known for every token and position: W_E[token] + W_pos[position].
One-layer models are described completely by these and their MLP.

LayerNorms: LN1 is applied exactly, to each token at its position, so the scores of `qk_circuit` are those of the
model up to rounding. The final norm depends on the whole residual stream; `ov_circuit` folds its centering and
gain and leaves its scale σ at 1, so its entries are logits times σ: compare them with each other, not to a number.

Cost: products of vocabulary × d_model × d_head a head; milliseconds for small vocabularies. In deeper models it
shows the direct path only.

Source: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from mechplateau.errors import UserError
from mechplateau.schema import whole_number

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


@torch.no_grad()
def qk_circuit(
    model: HookedTransformer,
    head: int = 0,
    *,
    query_position: int | None = None,
    key_position: int | None = None,
    labels: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Attention scores (before any softmax) of every token as query on every token as key, in layer 0.

    Exact where both positions are given. Without one, the mean positional embedding is used, which no input has: read
    those as what tokens contribute on average.

    Args:
        model: with absolute or no positional embeddings.
        head: of layer 0.
        query_position, key_position: positions of the tokens; None: the mean of the positional embeddings.
        labels: names of the tokens.

    Returns:
        `[query token, key token]`: (LN1(x_q) W_Q + b_Q)·(LN1(x_k) W_K + b_K) / √d_head.

    Raises:
        UserError: no such head, position or number of labels; rotary or other relative positions.
    """
    attention, names = _first_attention(model, head), _labels(model, labels)
    if model.cfg.positional_embedding_type != "standard":
        raise UserError(
            f"qk_circuit needs absolute positions; this model's are {model.cfg.positional_embedding_type!r}, "
            "which enter the scores elsewhere"
        )
    queries = _normed_tokens(model, query_position) @ attention.W_Q[head] + attention.b_Q[head]
    keys = _normed_tokens(model, key_position) @ attention.W_K[head] + attention.b_K[head]
    scores = queries @ keys.T / attention.attn_scale
    return _frame(scores, names, "query", "key")


@torch.no_grad()
def ov_circuit(
    model: HookedTransformer,
    head: int = 0,
    *,
    key_position: int | None = None,
    labels: Sequence[str] | None = None,
) -> pd.DataFrame:
    """What attending to each token, with weight 1, adds to each logit directly (times the final norm's scale σ).

    Args:
        model: any.
        head: of layer 0.
        key_position: position of the token; None: the mean of the positional embeddings.
        labels: names of the tokens.

    Returns:
        `[attended token, output token]`: ((LN1(x) W_V + b_V) W_O) · gain W_U, centered for LayerNorm. The output
        bias b_O, which does not depend on attention, is left out.

    Raises:
        UserError: no such head, position or number of labels.
    """
    attention, names = _first_attention(model, head), _labels(model, labels)
    values = _normed_tokens(model, key_position) @ attention.W_V[head] + attention.b_V[head]
    written = values @ attention.W_O[head]
    if model.cfg.normalization_type in ("LN", "LNPre"):
        written = written - written.mean(-1, keepdim=True)
    gain = getattr(getattr(model, "ln_final", None), "w", None)
    logits = (written if gain is None else written * gain) @ model.unembed.W_U
    return _frame(logits, names, "attended", "output")


def _first_attention(model: HookedTransformer, head: int):
    if not 0 <= whole_number(head, "head") < model.cfg.n_heads:
        raise UserError(f"head: expected 0 to {model.cfg.n_heads - 1} (of layer 0), got {head}")
    return model.blocks[0].attn


def _normed_tokens(model: HookedTransformer, position: int | None) -> Float[Tensor, "vocab d_model"]:
    residual = model.embed.W_E
    if model.cfg.positional_embedding_type == "standard":
        length = model.cfg.n_ctx
        if position is not None and not 0 <= whole_number(position, "position") < length:
            raise UserError(f"position: expected 0 to {length - 1}, got {position}")
        positions = model.pos_embed.W_pos
        residual = residual + (positions.mean(0) if position is None else positions[position])
    block = model.blocks[0]
    return block.ln1(residual[None])[0] if hasattr(block, "ln1") else residual


def _labels(model: HookedTransformer, labels: Sequence[str] | None) -> list[str] | None:
    if labels is not None and len(labels) != model.cfg.d_vocab:
        raise UserError(f"labels: expected {model.cfg.d_vocab}, one a token, got {len(labels)}")
    return None if labels is None else list(labels)


def _frame(values: Tensor, labels: list[str] | None, rows: str, columns: str) -> pd.DataFrame:
    frame = pd.DataFrame(values.float().cpu().numpy(), index=labels, columns=labels)
    return frame.rename_axis(index=rows, columns=columns)
