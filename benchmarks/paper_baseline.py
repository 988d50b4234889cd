"""A baseline: one step of the loss-plateau experiment, done the way the paper's own code does it.

The speed of mechplateau is stated against this module, so it is an ordinary script's work, neither slowed
down nor sped up: it needs torch and numpy (and matplotlib, when the figure is asked for) and nothing of ours.
At every step, following arXiv 2506.13688 and its published code:

1. data: moving-window-sum sequences made with numpy, one row after the other;
2. training: forward, cross-entropy over the whole sequence, backward, default Adam;
3. evaluation after the update: greedy generation for the training batch and for fresh test prompts, running
   the whole prefix through the model again for every token; the explicit attention map for attention
   progress; a Python double loop over position pairs for the cosine similarity;
4. optionally one matplotlib figure, saved to a file.

`python benchmarks/paper_baseline.py` times each part on this machine.
"""

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Sizes:
    """Sizes of the experiment; the defaults are the paper's moving window sum.

    n input tokens drawn from 1..max_num, then the separator p, then n outputs: windows of k tokens summed
    modulo p. `batch` training sequences and `test_samples` fresh test sequences a step.
    """

    n: int = 16
    k: int = 2
    p: int = 17
    max_num: int = 16
    d_model: int = 256
    n_heads: int = 1
    n_layers: int = 1
    batch: int = 256
    test_samples: int = 64
    learning_rate: float = 1e-4

    @property
    def vocab_size(self) -> int:
        return self.p + 1

    @property
    def prompt_length(self) -> int:
        return self.n + 1

    @property
    def n_ctx(self) -> int:
        return 2 * self.n + 1

    @property
    def n_input(self) -> int:
        """Length of the model's input in training: the sequence without its last token."""
        return self.n_ctx - 1


class LinearAttention(nn.Module):
    """Causal attention without softmax: A = tril(Q Kᵀ / √d_head), z = A V, zero above the diagonal."""

    bias: Tensor

    def __init__(self, d_model: int, n_heads: int, n_ctx: int) -> None:
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"d_model must be a multiple of n_heads, got {d_model} and {n_heads}")
        self.n_heads = n_heads
        self.Q = nn.Linear(d_model, d_model)
        self.K = nn.Linear(d_model, d_model)
        self.V = nn.Linear(d_model, d_model)
        self.c_proj = nn.Linear(d_model, d_model)
        # The published checkpoints carry the mask under this name, so ours does too.
        self.register_buffer("bias", torch.tril(torch.ones(n_ctx, n_ctx)).view(1, 1, n_ctx, n_ctx))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[batch, pos, d_model] → output of the same shape and the map A [batch, head, pos, pos]."""
        batch, length, d_model = x.shape
        d_head = d_model // self.n_heads
        q, k, v = (
            layer(x).view(batch, length, self.n_heads, d_head).transpose(1, 2)
            for layer in (self.Q, self.K, self.V)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(d_head)
        pattern = scores.masked_fill(self.bias[:, :, :length, :length] == 0, 0.0)
        z = (pattern @ v).transpose(1, 2).reshape(batch, length, d_model)
        return self.c_proj(z), pattern


class MLP(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(d_model, 4 * d_model)
        self.c_proj = nn.Linear(4 * d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, d_model: int, n_heads: int, n_ctx: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(d_model)
        self.attn = LinearAttention(d_model, n_heads, n_ctx)
        self.ln_2 = nn.LayerNorm(d_model)
        self.mlp = MLP(d_model)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        attended, pattern = self.attn(self.ln_1(x))
        x = x + attended
        return x + self.mlp(self.ln_2(x)), pattern


class PlainGPT(nn.Module):
    """GPT-2-style pre-LayerNorm decoder with linear attention; parameter names of the published checkpoints.

    Weights start at N(0, 0.02²), biases at 0, LayerNorms at 1 and 0; the projections that write to the
    residual stream start at N(0, (0.02 / √(2 n_layers))²).
    """

    def __init__(
        self, vocab_size: int, n_ctx: int, d_model: int = 256, n_heads: int = 1, n_layers: int = 1
    ) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict()
        self.transformer["wte"] = nn.Embedding(vocab_size, d_model)
        self.transformer["wpe"] = nn.Embedding(n_ctx, d_model)
        self.transformer["h"] = nn.ModuleList(Block(d_model, n_heads, n_ctx) for _ in range(n_layers))
        self.transformer["ln_f"] = nn.LayerNorm(d_model)
        self.lm_head = nn.Linear(d_model, vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * n_layers))

    @classmethod
    def of(cls, sizes: Sizes) -> "PlainGPT":
        return cls(sizes.vocab_size, sizes.n_ctx, sizes.d_model, sizes.n_heads, sizes.n_layers)

    def forward(self, tokens: Tensor, observe: bool = False) -> Any:
        """Tokens [batch, pos] → logits [batch, pos, vocab]; with `observe`, (logits, maps, hidden): each
        layer's map [batch, head, pos, pos] and the states [batch, pos, d_model] after the last LayerNorm.
        """
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.transformer["wte"](tokens) + self.transformer["wpe"](positions)
        patterns = []
        for block in self.transformer["h"].children():
            x, pattern = block(x)
            patterns.append(pattern)
        hidden = self.transformer["ln_f"](x)
        logits = self.lm_head(hidden)
        return (logits, patterns, hidden) if observe else logits


def make_batch_rowwise(
    rng: np.random.Generator, batch: int, n: int = 16, k: int = 2, p: int = 17, max_num: int = 16
) -> Tensor:
    """Moving-window-sum sequences x, p, y as int64 [batch, 2n+1], one row at a time.

    y_i = x_i for i < k−1, else (x_{i−k+1} + … + x_i) mod p.
    """
    rows = []
    for _ in range(batch):
        x = rng.integers(1, max_num + 1, size=n)
        sums = np.convolve(x, np.ones(k, dtype=np.int64), mode="valid") % p
        rows.append(np.concatenate([x, [p], x[: k - 1], sums]))
    return torch.from_numpy(np.stack(rows))


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross-entropy (nats) of logits [batch, seq−1, vocab] over tokens [batch, seq], prompt included."""
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> float:
    """One update on tokens [batch, seq]; returns the loss before it."""
    model.train()
    optimizer.zero_grad()
    loss = next_token_loss(model(tokens[:, :-1]), tokens)
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def generate_reforward(model: Callable[[Tensor], Tensor], prompts: Tensor, n_outputs: int) -> Tensor:
    """Greedy outputs [batch, n_outputs] after prompts [batch, prompt]: the whole prefix anew for each."""
    tokens = prompts
    for _ in range(n_outputs):
        following = model(tokens)[:, -1].argmax(dim=-1, keepdim=True)
        tokens = torch.cat([tokens, following], dim=1)
    return tokens[:, prompts.shape[1] :]


def cosine_double_loop(hidden: Tensor) -> Tensor:
    """Batch-mean cosine similarity of hidden states [batch, pos, d] at every pair of positions i > j.

    Returns a float32 matrix [pos, pos] on the CPU, filled below the diagonal only.
    """
    length = hidden.shape[1]
    matrix = torch.zeros(length, length)
    for i in range(length):
        for j in range(i):
            matrix[i, j] = F.cosine_similarity(hidden[:, i], hidden[:, j], dim=-1).mean().item()
    return matrix


def mean_cosine(matrix: Tensor, first: int) -> float:
    """Mean of the entries i > j ≥ first of [pos, pos]: COS, which leaves out the `first` copied outputs."""
    pairs = torch.ones_like(matrix, dtype=torch.bool).tril(-1)
    pairs[:, :first] = False
    return matrix[pairs].mean().item()


def attention_progress(pattern: Tensor, n: int, k: int) -> float:
    """APM of a map [batch, head, 2n, 2n]: share of the output rows' |A| on the inputs each output needs.

    Mean over samples, heads summed in numerator and denominator; 0 for a map that is all zero.
    """
    mass = pattern[:, :, n:].abs().sum(dim=1)
    needed = torch.zeros(mass.shape[1:], dtype=torch.bool, device=mass.device)
    for r in range(n):
        needed[r, (r if r < k - 1 else r - k + 1) : r + 1] = True
    total = mass.sum(dim=(1, 2)).clamp_min(torch.finfo(mass.dtype).tiny)
    return ((mass * needed).sum(dim=(1, 2)) / total).mean().item()


def repetition_frequency(outputs: Tensor) -> float:
    """Share of adjacent pairs y_i = y_{i+1} in outputs [batch, n_outputs]."""
    return (outputs[:, 1:] == outputs[:, :-1]).float().mean().item()


@torch.no_grad()
def evaluate(model: Any, train_tokens: Tensor, test_tokens: Tensor, sizes: Sizes) -> dict[str, Any]:
    """All measurements of one step, on the training batch [batch, seq] and on test sequences [samples, seq].

    `attention_map` [2n, 2n] and `cosine` [n, n] are arrays averaged over the training batch; the rest are
    floats, or lists of one float an output.
    """
    model.eval()
    n, prompt_length = sizes.n, sizes.prompt_length
    logits, patterns, hidden = model(train_tokens[:, :-1], observe=True)
    row: dict[str, Any] = {"loss": next_token_loss(logits, train_tokens).item()}
    for name, tokens in (("train", train_tokens), ("test", test_tokens)):
        generated = generate_reforward(model, tokens[:, :prompt_length], n)
        targets = tokens[:, prompt_length:]
        per_output = (generated == targets).float().mean(dim=0)
        row[f"{name}_accuracy"] = per_output.mean().item()
        row[f"{name}_accuracy_out"] = per_output.tolist()
        row[f"{name}_repetition"] = repetition_frequency(generated)
        row[f"{name}_repetition_data"] = repetition_frequency(targets)
    cosine = cosine_double_loop(hidden[:, n:])
    row["apm"] = attention_progress(patterns[-1], n, sizes.k)
    row["cos"] = mean_cosine(cosine, first=sizes.k - 1)
    row["attention_map"] = patterns[-1].mean(dim=(0, 1)).cpu().numpy()
    row["cosine"] = cosine.numpy()
    return row


def draw_dashboard(history: list[dict[str, Any]], path: str | Path) -> None:
    """Save the curves so far, the latest attention map and the latest cosine matrix as one figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 8))
    axes = figure.subplots(2, 3)
    curves = [
        (axes[0, 0], ["loss"]),
        (axes[0, 1], ["train_accuracy", "test_accuracy"]),
        (axes[0, 2], ["test_repetition", "test_repetition_data"]),
        (axes[1, 0], ["apm", "cos"]),
    ]
    for axis, names in curves:
        for name in names:
            axis.plot([row[name] for row in history], label=name)
        axis.set_xlabel("step")
        axis.legend()
    for axis, name in ((axes[1, 1], "attention_map"), (axes[1, 2], "cosine")):
        figure.colorbar(axis.imshow(history[-1][name]), ax=axis)
        axis.set_title(name)
    figure.savefig(path)


def whole_step(
    model: PlainGPT,
    optimizer: torch.optim.Optimizer,
    rng: np.random.Generator,
    sizes: Sizes,
    history: list[dict[str, Any]],
    figure: str | Path | None = None,
) -> dict[str, Any]:
    """Data, update, all measurements and, if a path is given, the figure; appends the row to `history`."""
    device = next(model.parameters()).device
    task = (sizes.n, sizes.k, sizes.p, sizes.max_num)
    train_tokens = make_batch_rowwise(rng, sizes.batch, *task).to(device)
    train_step(model, optimizer, train_tokens)
    test_tokens = make_batch_rowwise(rng, sizes.test_samples, *task).to(device)
    history.append(evaluate(model, train_tokens, test_tokens, sizes))
    if figure is not None:
        draw_dashboard(history, figure)
    return history[-1]


def step_gflop(sizes: Sizes) -> dict[str, float]:
    """GFLOP of one training step's matrix products by kind (forward, and twice that in backward).

    `blocks`: the attention and MLP weights (12 d_model² a layer and token), 38.7 at the paper's size;
    `unembedding` and `attention` (Q Kᵀ and A V as full squares) add 1.0. The update has no product.
    """
    tokens = sizes.batch * sizes.n_input
    multiply_adds = {
        "blocks": 12 * sizes.d_model**2 * sizes.n_layers * tokens,
        "unembedding": sizes.d_model * sizes.vocab_size * tokens,
        "attention": 2 * sizes.d_model * sizes.n_input * sizes.n_layers * tokens,
    }
    return {name: 3 * 2 * count / 1e9 for name, count in multiply_adds.items()}


def gflop_with_table(sizes: Sizes) -> float:
    """`blocks` of `step_gflop`, with the first layer's queries, keys and values taken once for each pair of token and
    position instead of once for each row of the batch: 29.7 at the paper's size."""
    rows_saved = sizes.n_input * (sizes.batch - sizes.vocab_size)
    return step_gflop(sizes)["blocks"] - 3 * 2 * 3 * sizes.d_model**2 * rows_saved / 1e9


def matmul_peak(device: str | torch.device = "cpu", size: int = 2048, repeats: int = 7) -> float:
    """Best GFLOP/s of `repeats` float32 products of two [size, size] matrices, after one to warm up."""
    a, b = torch.randn(2, size, size, device=device)
    product = torch.empty_like(a)
    seconds = [timed(lambda: torch.mm(a, b, out=product), device) for _ in range(repeats + 1)]
    return 2 * size**3 / min(seconds[1:]) / 1e9


def matmul_seconds(sizes: Sizes | None = None, *, peak: float | None = None) -> float:
    """Seconds of one training step's `blocks` products at `peak` GFLOP/s (None: measured on the CPU)."""
    return step_gflop(sizes or Sizes())["blocks"] / (matmul_peak() if peak is None else peak)


def timed(work: Callable[[], object], device: str | torch.device = "cpu") -> float:
    """Wall-clock seconds of one call, the device's queue drained before and after."""
    synchronize = torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None
    synchronize()
    start = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the baseline's parts at the paper's size.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--figure", type=Path, help="also draw the figure, to this file")
    arguments = parser.parse_args()

    sizes, device = Sizes(), arguments.device
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    model = PlainGPT.of(sizes).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=sizes.learning_rate)
    history: list[dict[str, Any]] = []
    tokens = make_batch_rowwise(rng, sizes.batch).to(device)
    prompts = tokens[:, : sizes.prompt_length]
    test_tokens = make_batch_rowwise(rng, sizes.test_samples).to(device)
    with torch.no_grad():
        hidden = model(tokens[:, :-1], observe=True)[2][:, sizes.n :]
    parts: dict[str, Callable[[], object]] = {
        "data, training batch": lambda: make_batch_rowwise(rng, sizes.batch),
        "training step": lambda: train_step(model, optimizer, tokens),
        "generation, training batch": lambda: generate_reforward(model, prompts, sizes.n),
        "cosine double loop": lambda: cosine_double_loop(hidden),
        "evaluation, all of it": lambda: evaluate(model, tokens, test_tokens, sizes),
        "whole step": lambda: whole_step(model, optimizer, rng, sizes, history),
    }
    if arguments.figure is not None:
        parts["figure"] = lambda: draw_dashboard(history, arguments.figure)
    print(
        f"{torch.get_num_threads()} threads, load average {os.getloadavg()[0]:.1f}, torch {torch.__version__}"
    )
    for name, work in parts.items():
        seconds = [timed(work, device) for _ in range(arguments.repeats + 1)][1:]
        print(f"{name:28} {statistics.median(seconds):8.4f} s (median of {len(seconds)})")
    peak, gflop = matmul_peak(device), step_gflop(sizes)["blocks"]
    print(f"{'matrix products at peak':28} {gflop / peak:8.4f} s ({gflop:.1f} GFLOP at {peak:.0f} GFLOP/s)")


if __name__ == "__main__":
    main()
