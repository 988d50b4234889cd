"""Measuring one checkpoint of a language model, against the baseline that works as the paper's script does.

Models have the sizes of published ones and random weights; prompts are 100, of 8 to 16 tokens, as short questions
have. Both sides generate the same tokens; ours also measures every layer, the entropy and the loss. Loading
a checkpoint costs both the same and is left out. Nothing is asserted about time: a busy machine is not a failure.
"""

from __future__ import annotations

import llm_baseline as baseline
import pytest
import torch
from side_by_side import TABLE, alternate

from mechplateau.llm import generate, measure

SIZES = {
    "demo": {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 2048},
    "pythia-14m": {"hidden_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4, "vocab_size": 50304},
}


@pytest.mark.parametrize("size", SIZES)
def test_one_checkpoint(benchmark, size):
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    torch.manual_seed(0)
    sizes = SIZES[size]
    model = GPTNeoXForCausalLM(GPTNeoXConfig(**sizes, intermediate_size=4 * sizes["hidden_size"])).eval()
    lengths = torch.randint(8, 17, (100,)).tolist()
    prompts = [torch.randint(sizes["vocab_size"], (length,)).tolist() for length in lengths]

    def paper_way() -> tuple[float, float]:
        return baseline.collapse_and_repetition(model, prompts, end_of_text=0)

    def ours() -> dict[str, float | None]:
        return measure(generate(model, prompts, suppress=[0]))

    values = ours()
    assert paper_way() == pytest.approx((values["cos_final"], values["repetition"]), abs=1e-4)
    times = alternate(paper_way, ours, rounds=3, inner=2)
    ratio = TABLE.faster(f"one checkpoint of {size}'s size, 100 prompts", "paper's way", times, 8)
    benchmark.extra_info["ratio"] = round(ratio, 2)
    benchmark.pedantic(ours, rounds=3, iterations=1)
