"""Generate a few tokens after many prompts at once, keeping the hidden states that predict them.

1. Prompts are sorted by length, put in batches and padded on the left, with a mask and with positions that
   count from each prompt's own first token: padding changes nothing.
2. One forward pass over a batch gives the loss on the prompts and the state of each prompt's last token,
   which predicts the first new token. Each further token is one forward pass over that token alone, with the
   key/value cache. End-of-text is never chosen.
3. For n new tokens the n positions that predict them are kept, at every layer and after the final norm. The
   last new token is never fed back: it predicts none of them.
4. Logits without a finite largest one choose no token: this one and all after it are undefined.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxtyping import Float, Int
from torch import Tensor

from mechplateau.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

UNDEFINED = -1
"""In place of a token where no logit was finite."""
FINAL = "final"
EMBEDDING = "embed"


def layer_name(layer: int) -> str:
    """Name of the output of a block, counted from 0."""
    return f"layer_{layer}"


@dataclass(frozen=True)
class Generation:
    """Generated tokens, and the hidden states that predicted them."""

    tokens: Int[Tensor, "prompt new"]
    """Ids; −1 (`UNDEFINED`) from where the logits have no finite largest one."""
    hidden: dict[str, Float[Tensor, "prompt new d_model"]]
    """float32 states at the positions that predict the new tokens, on the CPU: `embed` (input of the first
    block), `layer_0` … (output of each block), `final` (after the final norm: what the unembedding reads)."""
    loss: float | None
    """Mean cross-entropy (nats) of all prompt tokens that have a predecessor; None if no prompt has two
    tokens."""


def generate(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    n_tokens: int = 8,
    suppress: Sequence[int] = (),
    batch_size: int = 32,
    temperature: float | None = None,
    seed: int = 0,
) -> Generation:
    """Generate `n_tokens` tokens after each prompt.

    Args:
        model: a causal language model of transformers that takes `position_ids`; its mode is left as it was.
        prompts: token ids, of any lengths from 1.
        n_tokens: how many tokens to generate.
        suppress: ids that are never generated (end-of-text).
        batch_size: prompts run together.
        temperature: None for greedy; else tokens are drawn from softmax(logits / temperature), by inverting
            the distribution at one uniform number per prompt and token, so that the batches do not matter.
        seed: of these random numbers.

    Raises:
        ConfigError: an empty prompt, one too long for the model's context, or ids that cannot be.
        CheckpointError: an architecture whose layers or positions are not found, or a prompt with tokens that
            the model does not have.
    """
    import torch

    _check(model, prompts, n_tokens, suppress)
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(len(prompts), n_tokens, generator=generator, dtype=torch.float64)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    tokens = torch.empty(len(prompts), n_tokens, dtype=torch.int64)
    hidden: dict[str, Tensor] = {}
    loss_sum, loss_count = 0.0, 0
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), _captured(model) as states:
            for start in range(0, len(order), batch_size):
                rows = order[start : start + batch_size]
                batch = _Batch(model, [prompts[i] for i in rows], n_tokens)
                known = torch.ones(len(rows), dtype=torch.bool, device=model.device)
                for position in range(n_tokens):
                    logits = batch.forward()
                    for name, state in states.items():
                        if name not in hidden:
                            hidden[name] = torch.empty(len(prompts), n_tokens, state.shape[-1])
                        hidden[name][rows, position] = state[:, -1].float().cpu()
                    if position == 0:
                        total, count = batch.prompt_loss(logits)
                        loss_sum, loss_count = loss_sum + total, loss_count + count
                    last = logits[:, -1].float()
                    if suppress:
                        last[:, list(suppress)] = -torch.inf
                    # Minus infinity rules a token out; any other number that is not finite leaves no largest.
                    known &= last.amax(-1).isfinite()
                    if temperature is None:
                        chosen = last.argmax(-1)
                    else:
                        chosen = _draw(_tempered(last, temperature), uniform[rows, position]).to(last.device)
                    tokens[rows, position] = chosen.where(known, UNDEFINED).cpu()
                    batch.append(chosen)
    finally:
        model.train(training)
    return Generation(tokens, hidden, loss_sum / loss_count if loss_count else None)


class _Batch:
    """Prompts of one batch, padded on the left, and the cache that grows with them."""

    def __init__(self, model: PreTrainedModel, prompts: Sequence[Sequence[int]], n_tokens: int) -> None:
        import torch
        from transformers import DynamicCache

        self.model = model
        self.lengths = torch.tensor([len(prompt) for prompt in prompts], device=model.device)
        self.width = max(len(prompt) for prompt in prompts)
        padded = [[0] * (self.width - len(prompt)) + list(prompt) for prompt in prompts]
        self.prompt = torch.tensor(padded, device=model.device)
        # Long enough for the whole generation; each pass sees the part that is there.
        self.mask = (
            torch.arange(self.width + n_tokens, device=model.device) >= self.width - self.lengths[:, None]
        )
        self.input = self.prompt
        self.seen = 0
        # The argument was renamed in transformers 5.24, and the old name warns.
        name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        self.cache = {name: DynamicCache()}

    def forward(self) -> Tensor:
        """Logits `[batch, input, vocabulary]` of the new inputs since the last pass."""
        self.seen += self.input.shape[1]
        mask = self.mask[:, : self.seen].long()
        positions = (mask.cumsum(-1) - 1).clamp_min(0)[:, -self.input.shape[1] :]
        return self.model(
            input_ids=self.input, attention_mask=mask, position_ids=positions, use_cache=True, **self.cache
        ).logits

    def append(self, tokens: Tensor) -> None:
        """Make the chosen tokens `[batch]` the input of the next pass."""
        self.input = tokens[:, None]

    def prompt_loss(self, logits: Tensor) -> tuple[float, int]:
        """Sum of the cross-entropies of the prompts' tokens, and how many there are."""
        import torch
        from torch.nn.functional import cross_entropy

        sums = [logits.new_zeros((), dtype=torch.float32)]
        # Prompt by prompt: over a wide vocabulary, the temporaries of a whole batch cost more than the work.
        for row, prompt, length in zip(logits, self.prompt, self.lengths.tolist(), strict=True):
            if length > 1:
                known = slice(self.width - length, self.width)
                sums.append(cross_entropy(row[known][:-1].float(), prompt[known][1:], reduction="sum"))
        return float(torch.stack(sums).sum()), int((self.lengths - 1).sum())


@contextlib.contextmanager
def _captured(model: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
    """While open, each forward pass leaves its states `[batch, input, d_model]` in the dictionary."""
    layers = _layers(model)
    states: dict[str, Tensor] = {}

    def before_first(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states[EMBEDDING] = args[0] if args else kwargs["hidden_states"]

    def after(name: str) -> Any:
        def keep(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
            states[name] = output[0] if isinstance(output, tuple) else output

        return keep

    def before_unembedding(_: nn.Module, args: tuple[Any, ...]) -> None:
        states[FINAL] = args[0]

    handles = [layers[0].register_forward_pre_hook(before_first, with_kwargs=True)]
    handles += [layer.register_forward_hook(after(layer_name(i))) for i, layer in enumerate(layers)]
    handles.append(model.get_output_embeddings().register_forward_pre_hook(before_unembedding))
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()


def _layers(model: PreTrainedModel) -> nn.ModuleList:
    from torch import nn

    n_layers = model.config.get_text_config().num_hidden_layers
    # named_modules goes from the outside in, so lists inside the blocks (of experts, say) come later.
    for _, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == n_layers:
            return module
    raise CheckpointError(
        f"{type(model).__name__}: no list of {n_layers} layers found; this architecture is not supported"
    )


def _check(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], n_tokens: int, suppress: Sequence[int]
) -> None:
    if (
        "position_ids" not in inspect.signature(model.forward).parameters
        or model.get_output_embeddings() is None
    ):
        raise CheckpointError(
            f"{type(model).__name__}: takes no position_ids or has no unembedding; "
            "this architecture is not supported"
        )
    if not prompts:
        raise ConfigError("prompts: expected at least one, got none")
    vocabulary = model.get_input_embeddings().num_embeddings
    largest = max((max(prompt) for prompt in prompts if len(prompt)), default=0)
    if largest >= vocabulary:
        raise CheckpointError(
            f"{type(model).__name__}: the prompts hold token {largest}, beyond the vocabulary of {vocabulary}; "
            "the tokenizer belongs to another model"
        )
    if not all(0 <= token < vocabulary for token in suppress):
        raise ConfigError(
            f"suppress: expected ids below the vocabulary of {vocabulary}, got {list(suppress)}"
        )
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    for number, prompt in enumerate(prompts, start=1):
        if not len(prompt):
            raise ConfigError(f"prompts: number {number} has no token; take it out")
        if min(prompt) < 0:
            raise ConfigError(f"prompts: number {number} has token {min(prompt)}; expected ids from 0")
        if context is not None and len(prompt) + n_tokens - 1 > context:
            raise ConfigError(
                f"prompts: number {number} has {len(prompt)} tokens, with {n_tokens} new ones too many for a "
                f"context of {context}; shorten it"
            )


def _tempered(logits: Tensor, temperature: float) -> Tensor:
    """The logits less their largest one, over a temperature of any size, in float64 on the CPU."""
    wide = logits.cpu().double()
    return (wide - wide.amax(-1, keepdim=True)) / temperature


def _draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """One token a row: the first whose cumulative probability exceeds the row's uniform number in [0, 1)."""
    cumulative = logits.cpu().double().softmax(-1).cumsum(-1)
    # Scaled by the sum: rounding may leave it below 1, and suppressed tokens at the end must stay out of
    # reach.
    threshold = (uniform * cumulative[:, -1])[:, None]
    return (cumulative > threshold).long().argmax(-1).to(logits.device)
