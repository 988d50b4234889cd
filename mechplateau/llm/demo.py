"""A small language model, trained on text that every machine with Python has.

1. The text is the source of Python's standard library (code, comments, docstrings), in the order of file
   names.
2. A byte-pair tokenizer is trained on it, then a small GPT-NeoX (Pythia's architecture) with Adam, warm-up
   and a constant rate, on random windows.
3. About 20 checkpoints at logarithmic steps are saved as Pythia's are: one Hugging Face folder a step,
   safetensors.

Equal settings, Python, torch and thread count give equal weights. What was interrupted starts over.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from mechplateau.errors import ConfigError, RunError
from mechplateau.files import explained, local_path, take_lock, write_text
from mechplateau.progress import Progress, bars
from mechplateau.schema import Config
from mechplateau.tasks.corpus import END_OF_TEXT, library_texts, train_bpe

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


class DemoConfig(Config):
    """Sizes and schedule of the demonstration; the defaults take a few minutes on two cores."""

    d_model: int = Field(default=128, ge=8)
    n_layers: int = Field(default=4, ge=1)
    n_heads: int = Field(default=4, ge=1)
    vocab_size: int = Field(default=2048, ge=300)
    context: int = Field(default=96, ge=16)
    batch: int = Field(default=16, ge=1)
    steps: int = Field(default=1024, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0)
    warmup: int = Field(default=100, ge=1)
    """Steps over which the rate rises linearly from 0 (Pythia's share is 1 %, which here would be 10
    steps)."""
    text_bytes: int = Field(default=6_000_000, ge=10_000)
    """How much of the standard library is read."""
    seed: int = Field(default=0, ge=0, lt=2**63)

    def checkpoint_steps(self) -> list[int]:
        """0, 1, 2, 3, 4, 6, 8, 12, 16 … and the last: two a doubling."""
        steps = {0, self.steps}
        step = 1
        while step < self.steps:
            steps |= {step, step + step // 2}
            step *= 2
        return sorted(step for step in steps if step <= self.steps)


def train_demo(
    folder: str | Path,
    config: DemoConfig | None = None,
    *,
    progress: Progress | str | None = None,
) -> Path:
    """Train the demonstration's series, unless the folder holds it already.

    Args:
        folder: where its checkpoint folders go (`step0` … `step1024`).
        config: sizes and schedule.
        progress: makes a bar of steps, as tqdm does (`mechplateau.progress`), and is given the loss (nats a token);
            "stderr": tqdm's own; None: silent.

    Returns:
        the folder.

    Raises:
        ConfigError: the folder holds something else, or this Python comes without the source of its library.
        RunError: the disk is full, or another process is training into the folder.
    """
    folder = local_path(folder)
    with _alone(folder):
        return _train_into(folder, config or DemoConfig(), progress)


def _train_into(folder: Path, config: DemoConfig, progress: Progress | str | None) -> Path:
    import torch

    finished, begun = folder / "demo.yaml", folder / "unfinished.yaml"
    for note in (finished, begun):
        if note.is_file() and note.read_text(encoding="utf-8", errors="replace") != config.yaml():
            raise ConfigError(f"{folder}: holds a demonstration with other settings; choose another folder")
    if finished.is_file():
        return folder
    # Only what a demonstration began may be written over.
    if not begun.is_file() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise ConfigError(f"{folder}: holds something else than a demonstration; choose another folder")
    write_text(begun, config.yaml())
    texts = library_texts(config.text_bytes)
    tokenizer = train_tokenizer(texts, config.vocab_size)
    ids = tokenizer([text + END_OF_TEXT for text in texts], verbose=False)["input_ids"]
    tokens = torch.cat([torch.tensor(part, dtype=torch.int64) for part in ids])
    model = _new_model(config, len(tokenizer))
    saved = set(config.checkpoint_steps())
    with closing(bars(progress)(total=config.steps, desc="training step")) as bar:
        for step, loss in _train(model, tokens, config):
            if step in saved:
                _save(model, tokenizer, folder / f"step{step}")
            if step:
                bar.set_postfix_str(f"loss {loss:.3f}")
                bar.update(1)
    with explained(finished):
        begun.replace(finished)
    return folder


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level byte-pair tokenizer with an end-of-text token, trained on `texts`."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = train_bpe(texts, vocab_size)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TEXT, bos_token=END_OF_TEXT)


def _new_model(config: DemoConfig, vocab_size: int) -> PreTrainedModel:
    import torch
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    sizes = GPTNeoXConfig(
        hidden_size=config.d_model,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        intermediate_size=4 * config.d_model,
        vocab_size=vocab_size,
        max_position_embeddings=4 * config.context,
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return GPTNeoXForCausalLM(sizes).train()


def _train(model: PreTrainedModel, tokens: Tensor, config: DemoConfig) -> Iterator[tuple[int, float]]:
    """Yield (0, nan) before the first update, then the step and its loss after each one."""
    import torch
    from torch.nn.functional import cross_entropy

    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate, betas=(0.9, 0.95), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / config.warmup))
    generator = torch.Generator().manual_seed(config.seed)
    window = torch.arange(config.context + 1)
    yield 0, float("nan")
    for step in range(1, config.steps + 1):
        starts = torch.randint(len(tokens) - config.context - 1, (config.batch, 1), generator=generator)
        batch = tokens[starts + window]
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        yield step, float(loss.detach())


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: two trainings at once would save over each other's checkpoints."""
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = take_lock(folder / ".lock")
        except BlockingIOError:
            raise RunError(
                f"{folder}: another process is training the demonstration there; wait for it"
            ) from None
    with lock or contextlib.nullcontext():
        yield


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Save a checkpoint folder, whole or not at all."""
    from mechplateau.llm.loading import quiet

    temporary = folder.with_name(f"tmp-{folder.name}")
    with explained(folder), quiet():
        shutil.rmtree(temporary, ignore_errors=True)
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
