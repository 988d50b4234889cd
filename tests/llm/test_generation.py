"""Batched generation against the paper's way: one prompt at a time, no cache, a full forward pass a token."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    PreTrainedModel,
)

from mechplateau.errors import CheckpointError, ConfigError
from mechplateau.llm.generation import UNDEFINED, _draw, generate
from mechplateau.llm.measures import measure

VOCABULARY = 50
N = 8
EOS = 7
PROMPTS = [
    [3],
    [4, 9, 1, 22, 8, 30, 41],
    [11, 12],
    [5, 6, 7, 8, 9, 10],
    [2, 2, 2],
    [49, 0],
    [13, 14, 15, 16, 17],
]

_SIZES = {"vocab_size": VOCABULARY, "initializer_range": 0.5}
_BLOCKS = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
ARCHITECTURES: dict[str, Callable[[], PreTrainedModel]] = {
    "neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**_SIZES, **_BLOCKS, max_position_embeddings=32)),
    "neox_sequential": lambda: GPTNeoXForCausalLM(
        GPTNeoXConfig(**_SIZES, **_BLOCKS, max_position_embeddings=32, use_parallel_residual=False)
    ),
    "olmo2": lambda: Olmo2ForCausalLM(
        Olmo2Config(**_SIZES, **_BLOCKS, max_position_embeddings=32, pad_token_id=None)
    ),
    "llama_grouped": lambda: LlamaForCausalLM(
        LlamaConfig(**_SIZES, **_BLOCKS, max_position_embeddings=32, num_key_value_heads=1)
    ),
    # Learned absolute positions: wrong positions of padded prompts would show at once.
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**_SIZES, n_embd=16, n_layer=3, n_head=2, n_positions=32)),
}


@pytest.fixture(params=ARCHITECTURES)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    torch.manual_seed(0)
    model = ARCHITECTURES[request.param]().eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 0.5, 0.5)
    return model


@pytest.fixture
def neox() -> PreTrainedModel:
    torch.manual_seed(0)
    return ARCHITECTURES["neox"]().eval()


@torch.no_grad()
def paper_way(
    model: PreTrainedModel, prompt: list[int], suppress: list[int]
) -> tuple[list[int], list[torch.Tensor]]:
    """New tokens, and at each position that predicts one the hidden states of all locations of transformers."""
    tokens, states = list(prompt), []
    for _ in range(N):
        output = model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
        states.append(torch.stack([hidden[0, -1] for hidden in output.hidden_states]))
        logits = output.logits[0, -1].clone()
        logits[suppress] = -torch.inf
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :], states


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_batched_is_single_is_the_papers_way(model: PreTrainedModel, batch_size: int) -> None:
    generation = generate(model, PROMPTS, n_tokens=N, suppress=[EOS], batch_size=batch_size)
    for i, prompt in enumerate(PROMPTS):
        tokens, states = paper_way(model, prompt, [EOS])
        assert generation.tokens[i].tolist() == tokens
        expected = torch.stack(states, dim=1)
        # transformers' list holds the last block's output after the final norm.
        for location, name in enumerate(["embed", "layer_0", "layer_1"]):
            torch.testing.assert_close(generation.hidden[name][i], expected[location], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(generation.hidden["final"][i], expected[-1], atol=1e-4, rtol=1e-4)
    assert list(generation.hidden) == ["embed", "layer_0", "layer_1", "layer_2", "final"]


def test_the_last_layer_is_taken_before_the_final_norm(neox: PreTrainedModel) -> None:
    generation = generate(neox, PROMPTS)
    with torch.no_grad():
        normed = neox.gpt_neox.final_layer_norm(generation.hidden["layer_2"])
    torch.testing.assert_close(normed, generation.hidden["final"], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(generation.hidden["layer_2"], generation.hidden["final"], atol=0.1)


def test_the_loss_is_the_mean_over_all_prompt_tokens(model: PreTrainedModel) -> None:
    total, count = 0.0, 0
    for prompt in PROMPTS:
        if len(prompt) > 1:
            ids = torch.tensor([prompt])
            with torch.no_grad():
                total += float(model(ids, labels=ids).loss) * (len(prompt) - 1)
            count += len(prompt) - 1
    for batch_size in (2, 100):
        assert generate(model, PROMPTS, batch_size=batch_size).loss == pytest.approx(total / count, rel=1e-5)
    assert generate(model, [[3], [4]]).loss is None


def test_end_of_text_is_never_chosen(neox: PreTrainedModel) -> None:
    free = generate(neox, PROMPTS)
    favorite = int(free.tokens.flatten().mode().values)
    assert favorite not in generate(neox, PROMPTS, suppress=[favorite]).tokens
    assert favorite not in generate(neox, PROMPTS, suppress=[favorite], temperature=1.0).tokens


def test_sampling_depends_on_the_seed_and_not_on_the_batches(neox: PreTrainedModel) -> None:
    def draw(seed: int, batch_size: int) -> torch.Tensor:
        return generate(neox, PROMPTS, temperature=1.5, seed=seed, batch_size=batch_size).tokens

    assert torch.equal(draw(0, 1), draw(0, 100))
    assert not torch.equal(draw(0, 100), draw(1, 100))
    cold = generate(neox, PROMPTS, temperature=1e-4).tokens
    assert torch.equal(cold, generate(neox, PROMPTS).tokens)


def test_drawing_inverts_the_distribution() -> None:
    logits = torch.tensor([0.2, 0.5, 0.0, 0.3]).log().expand(4, 4)
    uniform = torch.tensor([0.1999, 0.2001, 0.6999, 0.7001], dtype=torch.float64)
    assert _draw(logits, uniform).tolist() == [0, 1, 1, 3]
    never_last = torch.tensor([[0.0, -torch.inf]])
    assert _draw(never_last, torch.tensor([1 - 2**-53], dtype=torch.float64)).tolist() == [0]


def test_the_model_is_left_as_it_was(neox: PreTrainedModel) -> None:
    neox.train()
    state = torch.get_rng_state()
    generate(neox, PROMPTS, temperature=1.0)
    assert neox.training
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in neox.modules())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_measured_in_float32(neox: PreTrainedModel, dtype: torch.dtype) -> None:
    full, half = generate(neox, PROMPTS), generate(neox.to(dtype), PROMPTS)
    assert all(states.dtype == torch.float32 for states in half.hidden.values())
    first, other = full.hidden["final"][:, 0], half.hidden["final"][:, 0]
    assert 1e-6 < float((first - other).norm() / first.norm()) < 0.05


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "expected at least one"),
        ([[1], [2, -3]], "number 2 has token -3; expected ids from 0"),
        ([[1], []], "number 2 has no token"),
        ([[1] * 26], "26 tokens, with 8 new ones too many for a context of 32"),
    ],
)
def test_prompts_that_cannot_be_run_are_named(neox: PreTrainedModel, prompts: list, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        generate(neox, prompts)
    assert generate(neox, [[1] * 25]).tokens.shape == (1, 8)


def test_tokens_beyond_the_vocabulary_are_named(neox: PreTrainedModel) -> None:
    with pytest.raises(CheckpointError, match="token 50, beyond the vocabulary of 50"):
        generate(neox, [[1], [2, 50]])


def test_an_architecture_without_positions_is_refused() -> None:
    from transformers import BloomConfig, BloomForCausalLM

    with pytest.raises(CheckpointError, match="BloomForCausalLM: takes no position_ids"):
        generate(BloomForCausalLM(BloomConfig(vocab_size=50, hidden_size=16, n_layer=1, n_head=2)), PROMPTS)


def test_measures_against_numbers_worked_out_by_hand(neox: PreTrainedModel) -> None:
    from mechplateau.llm.generation import Generation

    tokens = torch.tensor([[5, 5, 9], [1, 2, 3]])
    # Positions at right angles, opposite, equal: cosines (1,0), (2,0), (2,1) are 0, −1, 0 and 1, 1, 1.
    first = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])
    second = torch.tensor([[1.0, 1.0], [2.0, 2.0], [0.5, 0.5]])
    values = measure(Generation(tokens, {"final": torch.stack([first, second])}, None))
    assert values["loss"] is None
    assert values["repetition"] == pytest.approx(1 / 4)
    ln = torch.log(torch.tensor([2.0, 3.0])).tolist()
    assert values["entropy"] == pytest.approx(((ln[1] - 2 / 3 * ln[0]) + ln[1]) / 2, rel=1e-6)
    assert values["cos_final"] == pytest.approx((0 - 1 + 0 + 1 + 1 + 1) / 6, abs=1e-6)


def test_states_that_overflow_are_undefined() -> None:
    from mechplateau.llm.generation import Generation

    states = torch.full((1, 2, 3), torch.nan)
    assert measure(Generation(torch.tensor([[1, 2]]), {"final": states}, 1.0))["cos_final"] is None


def test_nothing_is_made_up_of_states_that_are_not_finite() -> None:
    from mechplateau.llm.generation import Generation

    states = torch.ones(2, 3, 4)
    states[1, 2, 0] = torch.inf
    values = measure(
        Generation(torch.zeros(2, 3, dtype=torch.int64), {"final": states, "embed": states.abs()}, 1.0)
    )
    assert values["repetition"] is None
    assert values["entropy"] is None


def test_ids_that_cannot_be_suppressed_are_named(neox: PreTrainedModel) -> None:
    with pytest.raises(ConfigError, match=r"suppress: expected ids below the vocabulary of 50, got \[50\]"):
        generate(neox, PROMPTS, suppress=[50])


def test_measuring_reports_no_choice_of_kernels(caplog: pytest.LogCaptureFixture, monkeypatch) -> None:
    from mechplateau.llm.generation import Generation
    from mechplateau_kernels import _dispatch

    monkeypatch.setattr(_dispatch, "_said", set())
    measure(Generation(torch.zeros(1, 3, dtype=torch.int64), {"final": torch.ones(1, 3, 4)}, 1.0))
    assert not caplog.records


@pytest.mark.parametrize("temperature", [None, 1.0])
def test_logits_that_overflow_choose_no_token(temperature: float | None) -> None:
    """Finite states whose logits are too large for float16: no token is made up for them."""
    torch.manual_seed(0)
    model = ARCHITECTURES["neox"]().eval().half()
    with torch.no_grad():
        # The state after the final norm is 1 in each place.
        model.gpt_neox.final_layer_norm.weight.zero_()
        model.gpt_neox.final_layer_norm.bias.fill_(1.0)
        model.get_output_embeddings().weight.zero_()
        model.get_output_embeddings().weight[3] = 1.0
        fine = generate(model, PROMPTS, n_tokens=3, temperature=temperature)
        model.get_output_embeddings().weight[3:5] = 6e4
        generation = generate(model, PROMPTS, n_tokens=3, temperature=temperature)
    assert (fine.tokens == 3).any()
    assert (fine.tokens >= 0).all()
    assert (generation.tokens == UNDEFINED).all()
    values = measure(generation)
    assert (values["repetition"], values["entropy"]) == (None, None)
    assert values["cos_final"] == pytest.approx(1.0, abs=1e-3)


def test_minus_infinity_only_rules_a_token_out() -> None:
    torch.manual_seed(0)
    model = ARCHITECTURES["neox"]().eval().half()
    with torch.no_grad():
        model.gpt_neox.final_layer_norm.weight.zero_()
        model.gpt_neox.final_layer_norm.bias.fill_(1.0)
        model.get_output_embeddings().weight.fill_(-6e4)
        model.get_output_embeddings().weight[9] = -1.0
        assert (generate(model, PROMPTS, n_tokens=2).tokens == 9).all()


@pytest.mark.parametrize("temperature", [1e-300, 1e300])
def test_temperatures_of_any_size_draw_what_they_mean(temperature: float) -> None:
    """Nearly 0 is greedy, nearly infinite is uniform; what is ruled out stays so."""
    torch.manual_seed(0)
    model = ARCHITECTURES["neox"]().eval()
    generation = generate(model, PROMPTS, n_tokens=N, suppress=[0], temperature=temperature)
    assert (generation.tokens > 0).all()
    greedy = generate(model, PROMPTS, n_tokens=N, suppress=[0])
    if temperature < 1:
        assert torch.equal(generation.tokens, greedy.tokens)
    else:
        assert len(generation.tokens.unique()) > 25  # of 56 numbers from 1 to 49
