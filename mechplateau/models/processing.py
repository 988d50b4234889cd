"""Exact weight processing: the same function with weights that are easier to read.

TransformerLens's own functions take a weight's orientation from its shape, and fold the wrong way where d_vocab
or d_mlp equals d_model; these go by name. All change a state dict with TransformerLens's names in place.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

import torch
from torch import Tensor

from mechplateau.errors import UserError

State = MutableMapping[str, Tensor]

_ROWS_SUM_TO_ONE = (
    "{step} assumes that attention rows sum to 1; linear attention's do not, so it would change what the model "
    "computes. Leave it out ({step}=False): fold_ln, center_writing_weights and center_unembed are exact"
)


def refuse_steps(attention: str, steps: Mapping[str, object]) -> None:
    """Raise where a requested step is wrong for linear attention.

    Args:
        attention: of the model, linear or softmax.
        steps: by TransformerLens's names; whether each is requested.

    Raises:
        UserError: says which, and which steps are exact.
    """
    if attention == "linear":
        for step in ("fold_value_biases", "refactor_factored_attn_matrices"):
            if steps.get(step):
                raise UserError(_ROWS_SUM_TO_ONE.format(step=step))


def fold_layer_norms(state: State, n_layers: int) -> None:
    """Move each LayerNorm's gain and bias into the weights that read from it, and drop them.

    For y = W ᵀ(w ⊙ x̂ + b): W ← w ⊙ W, bias ← bias + Wᵀb; then W is centered over its input, of which x̂'s
    mean is 0 anyway.
    """
    for layer in range(n_layers):
        prefix = f"blocks.{layer}"
        for kind in ("Q", "K", "V"):
            _fold(state, f"{prefix}.ln1", f"{prefix}.attn.W_{kind}", f"{prefix}.attn.b_{kind}")
        _fold(state, f"{prefix}.ln2", f"{prefix}.mlp.W_in", f"{prefix}.mlp.b_in")
        for norm in ("ln1", "ln2"):
            del state[f"{prefix}.{norm}.w"], state[f"{prefix}.{norm}.b"]
    _fold(state, "ln_final", "unembed.W_U", "unembed.b_U")
    del state["ln_final.w"], state["ln_final.b"]


def _fold(state: State, norm: str, weight: str, bias: str) -> None:
    # [.., d_model, out]: the input is the last but one dimension.
    w, b = state[f"{norm}.w"][:, None], state[f"{norm}.b"][:, None]
    state[bias] = state[bias] + (state[weight] * b).sum(-2)
    folded = state[weight] * w
    state[weight] = folded - folded.mean(-2, keepdim=True)


def center_writing_weights(state: State, n_layers: int) -> None:
    """Take the mean over d_model off everything written to the residual stream: LayerNorms take it off anyway."""
    names = ["embed.W_E", "pos_embed.W_pos"]
    for layer in range(n_layers):
        prefix = f"blocks.{layer}"
        names += [f"{prefix}.attn.W_O", f"{prefix}.attn.b_O", f"{prefix}.mlp.W_out", f"{prefix}.mlp.b_out"]
    for name in names:
        state[name] = state[name] - state[name].mean(-1, keepdim=True)


def center_unembed(state: State) -> None:
    """Take the mean over the vocabulary off the logits: log-probabilities stay, raw logits shift."""
    for name in ("unembed.W_U", "unembed.b_U"):
        state[name] = state[name] - state[name].mean(-1, keepdim=True)


def fold_value_biases(state: State, n_layers: int) -> None:
    """Move b_V through W_O into b_O: exact where attention rows sum to 1, so for softmax attention only."""
    for layer in range(n_layers):
        prefix = f"blocks.{layer}.attn"
        values, outputs = state[f"{prefix}.b_V"], state[f"{prefix}.W_O"]
        state[f"{prefix}.b_O"] = state[f"{prefix}.b_O"] + torch.einsum("hd,hdm->m", values, outputs)
        state[f"{prefix}.b_V"] = torch.zeros_like(values)
