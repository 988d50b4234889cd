"""Matrix completion's encoder in plain torch, and the authors' way of training it; what ours is timed against."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    """Those of the preset small, unless others are given."""

    vocabulary: int = 22
    n_cells: int = 16
    width: int = 64
    layers: int = 2
    heads: int = 4
    hidden: int = 256
    batch: int = 64
    learning_rate: float = 1e-3


class PlainLayer(nn.Module):
    """Post-LN, fused where torch fuses; `explicit` builds the attention map, as the authors' library does."""

    def __init__(self, sizes: Sizes, explicit: bool):
        super().__init__()
        self.heads, self.explicit = sizes.heads, explicit
        self.qkv, self.out = nn.Linear(sizes.width, 3 * sizes.width), nn.Linear(sizes.width, sizes.width)
        self.into, self.back = nn.Linear(sizes.width, sizes.hidden), nn.Linear(sizes.hidden, sizes.width)
        self.ln1, self.ln2 = nn.LayerNorm(sizes.width, eps=1e-12), nn.LayerNorm(sizes.width, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.explicit:
            pattern = (q @ k.mT / (width / self.heads) ** 0.5).softmax(-1)
            z = pattern @ v
        else:
            z = F.scaled_dot_product_attention(q, k, v)
        x = self.ln1(x + self.out(z.transpose(1, 2).flatten(2)))
        return self.ln2(x + self.back(F.gelu(self.into(x))))


class PlainEncoder(nn.Module):
    """The same function as ours."""

    def __init__(self, sizes: Sizes, explicit: bool = False):
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width, padding_idx=0)
        self.positions = nn.Embedding(sizes.n_cells, sizes.width)
        self.ln = nn.LayerNorm(sizes.width, eps=1e-12)
        self.layers = nn.ModuleList(PlainLayer(sizes, explicit) for _ in range(sizes.layers))
        self.readout = nn.Linear(sizes.width, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.ln(self.tokens(tokens) + self.positions.weight[: tokens.shape[1]])
        for layer in self.layers:
            x = layer(x)
        return self.readout(x)[..., 0]


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, targets: Tensor) -> None:
    """One update, nothing else."""
    loss = F.mse_loss(model(tokens), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def authors_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    tokens: Tensor,
    targets: Tensor,
    fresh: tuple[Tensor, Tensor],
) -> tuple[float, float]:
    """One update as their script does it: the losses read at every step, on the batch and on 64 fresh matrices."""
    model.train()
    out = model(tokens)
    loss = ((out - targets) ** 2).mean()
    masked = tokens == 0
    errors = (out.detach() - targets) ** 2
    train_losses = [float(errors[part].mean()) for part in (masked, ~masked)]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        evaluated = float(((model(fresh[0]) - fresh[1]) ** 2).mean())
    return train_losses[0], evaluated


def products(sizes: Sizes) -> list[tuple[Tensor, Tensor]]:
    """Left and right sides of the matrix products of one forward, each at its size."""
    rows, d, h = sizes.batch * sizes.n_cells, sizes.width, sizes.hidden
    maps = sizes.batch * sizes.heads
    head, cells = d // sizes.heads, sizes.n_cells
    layer = [
        (torch.randn(rows, d), torch.randn(d, 3 * d)),
        (torch.randn(maps, cells, head), torch.randn(maps, head, cells)),
        (torch.randn(maps, cells, cells), torch.randn(maps, cells, head)),
        (torch.randn(rows, d), torch.randn(d, d)),
        (torch.randn(rows, d), torch.randn(d, h)),
        (torch.randn(rows, h), torch.randn(h, d)),
    ]
    return layer * sizes.layers


def all_products(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Forward and backward: each product, and the two of its gradients."""
    for left, right in pairs:
        out = left @ right
        out @ right.mT
        left.mT @ out
