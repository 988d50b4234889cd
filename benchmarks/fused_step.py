"""One step of the experiment on the baseline's plain-torch model, done our way: fused attention, cached
generation, cosines without a loop, nothing read back; fit to be captured as one CUDA graph.

Needs torch and the kernels package only. It is what `gpu_check.py` times where transformer-lens is not
installed; the training loop of mechplateau does the same on a HookedTransformer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from paper_baseline import PlainGPT, Sizes, next_token_loss
from torch import Tensor

import mechplateau_kernels as mk


@dataclass
class Seen:
    """One forward's results: logits and final states `[batch, pos, ·]`; per layer keys, values and masses."""

    logits: Tensor
    hidden: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    row_mass: list[Tensor]
    set_mass: list[Tensor]


def forward(
    model: PlainGPT, tokens: Tensor, metric_sets: Sequence[Tensor] = (), backend: str = "auto"
) -> Seen:
    """Tokens `[batch, pos]` through the model's own layers, with the fused attention between them."""
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    x = model.transformer["wte"](tokens) + model.transformer["wpe"](positions)
    seen = Seen(x, x, [], [], [], [])
    for block in model.transformer["h"].children():
        attn, normed = block.attn, block.ln_1(x)
        q, k, v = (layer(normed).unflatten(-1, (attn.n_heads, -1)) for layer in (attn.Q, attn.K, attn.V))
        out = mk.linear_attention(q, k, v, metric_sets=metric_sets, backend=backend)  # type: ignore[arg-type]
        x = x + attn.c_proj(out.output.flatten(2))
        x = x + block.mlp(block.ln_2(x))
        for kept, value in (
            (seen.keys, k), (seen.values, v), (seen.row_mass, out.row_mass), (seen.set_mass, out.set_mass),
        ):  # fmt: skip
            kept.append(value)
    seen.hidden = model.transformer["ln_f"](x)
    seen.logits = model.lm_head(seen.hidden)
    return seen


def generate(model: PlainGPT, seen: Seen, prompt_length: int, n_outputs: int) -> Tensor:
    """Greedy outputs `[batch, n_outputs]`, going on from a forward over sequences that begin with the prompt."""
    batch = seen.logits.shape[0]
    caches = []
    for k, v in zip(seen.keys, seen.values, strict=True):
        # Room for the outputs; [batch, head, pos, d], so that a slice of positions multiplies as it is.
        pair = [x.new_empty(batch, x.shape[2], prompt_length + n_outputs, x.shape[3]) for x in (k, v)]
        for cache, x in zip(pair, (k, v), strict=True):
            cache[:, :, :prompt_length] = x[:, :prompt_length].transpose(1, 2)
        caches.append(pair)
    outputs = [seen.logits[:, prompt_length - 1].argmax(dim=-1)]
    for position in range(prompt_length, prompt_length + n_outputs - 1):
        x = model.transformer["wte"](outputs[-1]) + model.transformer["wpe"].weight[position]
        for block, (keys, values) in zip(model.transformer["h"].children(), caches, strict=True):
            attn, normed = block.attn, block.ln_1(x)
            q, k, v = (layer(normed).unflatten(-1, (attn.n_heads, -1)) for layer in (attn.Q, attn.K, attn.V))
            keys[:, :, position], values[:, :, position] = k, v
            scores = q.unsqueeze(2) @ keys[:, :, : position + 1].transpose(-2, -1) / q.shape[-1] ** 0.5
            z = (scores @ values[:, :, : position + 1]).flatten(1)
            x = x + attn.c_proj(z)
            x = x + block.mlp(block.ln_2(x))
        outputs.append(model.lm_head(model.transformer["ln_f"](x)).argmax(dim=-1))
    return torch.stack(outputs, dim=1)


def sample(sizes: Sizes, batch: int, device: torch.device | str) -> Tensor:
    """Moving-window-sum sequences `[batch, 2n + 1]`, made on the device from its default generator."""
    x = torch.randint(1, sizes.max_num + 1, (batch, sizes.n), device=device)
    sums = x.unfold(1, sizes.k, 1).sum(dim=-1) % sizes.p
    separator = torch.full((batch, 1), sizes.p, dtype=torch.int64, device=device)
    return torch.cat([x, separator, x[:, : sizes.k - 1], sums], dim=1)


def needed_inputs(sizes: Sizes, device: torch.device | str) -> Tensor:
    """Ω: bool `[n_input, n_input]`, the inputs each output's window covers."""
    mask = torch.zeros(sizes.n_input, sizes.n_input, dtype=torch.bool)
    for r in range(sizes.n):
        mask[sizes.n + r, (r if r < sizes.k - 1 else r - sizes.k + 1) : r + 1] = True
    return mask.to(device)


class Step:
    """Update and measurements on one model.

    Args:
        model: the baseline's model, on its device.
        sizes: of the experiment.
        lr: learning rate; `learning_rate` may be changed in place.
        backend: of the kernels.
    """

    def __init__(self, model: PlainGPT, sizes: Sizes, lr: float = 1e-4, backend: str = "auto") -> None:
        self.model, self.sizes, self.backend = model, sizes, backend
        self.device = next(model.parameters()).device
        on_cuda = self.device.type == "cuda"
        # A graph reads a tensor anew at each replay; a Python number would be frozen into it.
        self.learning_rate = torch.tensor(lr, device=self.device)
        rate = self.learning_rate if on_cuda else lr
        self.optimizer = torch.optim.Adam(model.parameters(), lr=rate, capturable=on_cuda, fused=True)
        self.needed = needed_inputs(sizes, self.device)

    def update(self, tokens: Tensor) -> Tensor:
        """One update on tokens `[batch, seq]`; the loss before it, on the device."""
        loss = next_token_loss(forward(self.model, tokens[:, :-1], backend=self.backend).logits, tokens)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def measure(self, tokens: Tensor) -> dict[str, Tensor]:
        """All measurements on tokens `[samples, seq]`; the teacher-forced forward is the generation's prefill."""
        n, prompt = self.sizes.n, self.sizes.prompt_length
        seen = forward(self.model, tokens[:, :-1], [self.needed], self.backend)
        generated, targets = generate(self.model, seen, prompt, n), tokens[:, prompt:]
        cosine = mk.pairwise_cosine(seen.hidden, rows=slice(n, None), backend=self.backend)
        kept = cosine[self.sizes.k - 1 :, self.sizes.k - 1 :]
        pairs = kept.shape[0] * (kept.shape[0] - 1) / 2
        rows = slice(n, None)
        return {
            "loss": next_token_loss(seen.logits, tokens),
            "accuracy_out": (generated == targets).float().mean(dim=0),
            "repetition": (generated[:, 1:] == generated[:, :-1]).float().mean(),
            "repetition_data": (targets[:, 1:] == targets[:, :-1]).float().mean(),
            "apm": mk.apm(seen.row_mass[-1], seen.set_mass[-1], rows=rows),
            "cosine": cosine,
            "cos": kept.tril(-1).sum() / pairs,
        }

    def whole(self, train: Tensor, test: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Update on `train`, then measure on `test`."""
        return self.update(train), self.measure(test)

    @torch.no_grad()
    def generation_accuracy(self, tokens: Tensor) -> Tensor:
        """Accuracy per output of greedy generation after the prompts of tokens `[samples, seq]`."""
        prompt = self.sizes.prompt_length
        seen = forward(self.model, tokens[:, :prompt], backend=self.backend)
        return (generate(self.model, seen, prompt, self.sizes.n) == tokens[:, prompt:]).float().mean(dim=0)
