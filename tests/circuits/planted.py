"""Models built by hand, whose circuits are known."""

from __future__ import annotations

import torch

from .conftest import plain_model

N_TOKENS, N_POSITIONS = 4, 6
WIDTH = 2 * N_TOKENS + N_POSITIONS
"""The residual stream: token (one-hot), position (one-hot), and a copy space for what heads write."""
TOKEN, POSITION, COPY = slice(0, 4), slice(4, 10), slice(10, 14)


def empty_model(n_layers, attention="softmax", n_heads=1):
    """All weights zero, without norm and MLP: only what is planted acts. Tokens and positions are one-hot."""
    model = plain_model(
        n_layers=n_layers,
        d_model=WIDTH,
        n_heads=n_heads,
        d_head=WIDTH,
        d_vocab=N_TOKENS,
        n_ctx=N_POSITIONS,
        attn_only=True,
        normalization_type=None,
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E[:, TOKEN] = torch.eye(N_TOKENS)
        model.pos_embed.W_pos[:, POSITION] = torch.eye(N_POSITIONS)
        model.unembed.W_U[COPY] = torch.eye(N_TOKENS)
    return model


def plant_previous_token_head(model, layer=0, head=0, sharpness=50.0):
    """Position i attends to i − 1 (position 0 to itself, for want of an earlier one) and copies its token."""
    attention = model.blocks[layer].attn
    with torch.no_grad():
        for position in range(N_POSITIONS):
            attention.W_Q[head, 4 + position, max(position - 1, 0)] = sharpness * attention.attn_scale
            attention.W_K[head, 4 + position, position] = 1.0
        plant_copying(model, layer, head)


def plant_copying(model, layer=0, head=0):
    """Whatever is attended to, its token is written to the copy space."""
    attention = model.blocks[layer].attn
    with torch.no_grad():
        attention.W_V[head, TOKEN, :N_TOKENS] = torch.eye(N_TOKENS)
        attention.W_O[head, :N_TOKENS, COPY] = torch.eye(N_TOKENS)


def copied_tokens(generator, batch=8):
    """Sequences whose every next token is the one before the present: x, y, x, y, … ."""
    pair = torch.randint(0, N_TOKENS, (batch, 2), generator=generator)
    pair[:, 1] = (pair[:, 0] + 1 + pair[:, 1] % (N_TOKENS - 1)) % N_TOKENS
    return pair.repeat(1, 4)[:, : N_POSITIONS + 1]
