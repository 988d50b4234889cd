"""Tiny language models with a tokenizer, saved as a series the way transformers saves them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

from mechplateau.llm.analysis import SeriesAnalysis

TEXT = "What do plants need to make their own food? Why does ice float on water? Which planet is closest to the sun?"
PROMPTS = ["Why ice?", "What do plants need", "sun", "Which planet is closest to the sun?", "food food water"]

State = dict[str, torch.Tensor]


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")


@pytest.fixture(scope="session")
def neox_config(tokenizer: PreTrainedTokenizerFast) -> GPTNeoXConfig:
    return GPTNeoXConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=len(tokenizer),
        max_position_embeddings=128,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.3,
    )


@pytest.fixture(scope="session")
def weights(neox_config: GPTNeoXConfig) -> Callable[[float], State]:
    """Weights at a moment of a smooth imaginary training: they move along a bent path, all tensors of them."""

    def at(time: float) -> State:
        generator = torch.Generator().manual_seed(0)
        state = {}
        for name, tensor in GPTNeoXForCausalLM(neox_config).state_dict().items():
            start, way, bend = (torch.randn(tensor.shape, generator=generator) * 0.3 for _ in range(3))
            state[name] = start + time * way + 0.3 * time**2 * bend
        return state

    return at


@pytest.fixture
def save_checkpoint(neox_config: GPTNeoXConfig, tokenizer: PreTrainedTokenizerFast) -> Callable[..., Path]:
    """Save one checkpoint folder as `save_pretrained` does."""

    def save(folder: Path, state: Mapping[str, torch.Tensor], dtype: torch.dtype = torch.float32) -> Path:
        model = GPTNeoXForCausalLM(neox_config)
        model.load_state_dict(dict(state))
        model.to(dtype).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return save


@pytest.fixture
def make_series(tmp_path: Path, save_checkpoint: Callable[..., Path], weights: Callable[[float], State]):
    """A folder with one checkpoint a step, at times 1, 2, 3 … of the imaginary training."""

    def make(steps: list[int], name: str = "series") -> Path:
        for i, step in enumerate(steps):
            save_checkpoint(tmp_path / name / f"step{step}", weights(0.1 * i))
        return tmp_path / name

    return make


@pytest.fixture
def copy_weights() -> Callable[[Path, Path], None]:
    """Let one checkpoint folder serve another's weights."""

    def copy(source: Path, target: Path) -> None:
        shutil.copyfile(source / "model.safetensors", target / "model.safetensors")

    return copy


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry a model that was run."""
    from mechplateau.llm import loading

    ran: list[int] = []
    original = loading.load_model

    def counted(*args, **kwargs):
        ran.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(loading, "load_model", counted)
    return ran


def column(analysis: SeriesAnalysis, name: str) -> dict[int, object]:
    rows = analysis.table[analysis.table["step"].notna()]
    return dict(zip(rows["step"].astype(int), rows[name], strict=True))
