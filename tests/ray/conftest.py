"""One Ray node on this machine for all tests here, and jobs that are quick."""

from __future__ import annotations

import os

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Other work on a crowded machine would have it kill jobs of these tests.
os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112 (Ray spells it so)
os.environ.pop("RAY_ADDRESS", None)


def pytest_collection_modifyitems(items):
    for item in items:
        # Ray's own: sockets and files that it leaves to the garbage collector, and what it will change some day.
        for noise in ("ResourceWarning", "DeprecationWarning", "FutureWarning"):
            item.add_marker(pytest.mark.filterwarnings(f"ignore::{noise}"))
        item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="session")
def series(tmp_path_factory):
    """Two checkpoints of a tiny language model that knows a few words; the first is damaged."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

    words = ("<|endoftext|>", "why", "is", "ice", "cold", "food")
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = GPTNeoXConfig(**sizes, vocab_size=20, max_position_embeddings=32, bos_token_id=0, eos_token_id=0)
    folder = tmp_path_factory.mktemp("series")
    for step in (0, 1):
        torch.manual_seed(step)
        GPTNeoXForCausalLM(config).save_pretrained(folder / f"step{step}")
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=words[0]).save_pretrained(
            folder / f"step{step}"
        )
    (folder / "step0" / "model.safetensors").write_bytes(b"damaged")
    return folder
