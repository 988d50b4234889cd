from __future__ import annotations

import json
from pathlib import Path

import jaxtyping
import pytest
import torch
from transformers import GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM, Olmo2Config, Olmo2ForCausalLM

from mechplateau.errors import CheckpointError, ConfigError
from mechplateau.llm import generate, hooked, load_hooked


def olmo2(folder: Path, **settings) -> Path:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = Olmo2Config(
        **{**sizes, "vocab_size": 60, "max_position_embeddings": 64, "initializer_range": 0.4, **settings},
        pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    )
    model = Olmo2ForCausalLM(config)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1.0, 0.3)
    model.save_pretrained(folder)
    return folder


def log_probs(model, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        output = model(tokens)
    return getattr(output, "logits", output).log_softmax(-1)


def test_a_pythia_like_checkpoint_of_a_series(make_series) -> None:
    series = make_series([0, 1, 2])
    model = load_hooked(series, 1)
    reference = GPTNeoXForCausalLM.from_pretrained(series / "step1")
    tokens = torch.randint(300, (3, 40), generator=torch.Generator().manual_seed(1))
    difference = (log_probs(model, tokens) - log_probs(reference, tokens)).abs().max()
    assert float(difference) <= 1e-4
    assert model.parity <= 1e-4
    assert torch.equal(load_hooked(series, "step1").W_E, model.W_E)
    assert not torch.equal(load_hooked(series, 2).W_E, model.W_E)
    assert model.to_str_tokens("Why ice", prepend_bos=False)


def test_an_olmo2_checkpoint(tmp_path: Path) -> None:
    folder = olmo2(tmp_path / "stage1-step150-tokens1B")
    for model in (load_hooked(folder), load_hooked(tmp_path, 150)):
        assert model.parity <= 1e-4
        assert model.tokenizer is None
        tokens = torch.randint(60, (2, 30), generator=torch.Generator().manual_seed(1))
        difference = (
            log_probs(model, tokens) - log_probs(Olmo2ForCausalLM.from_pretrained(folder), tokens)
        ).abs()
        assert float(difference.max()) <= 1e-4


def test_a_sequential_pythia(tmp_path, neox_config, save_checkpoint, weights) -> None:
    folder = save_checkpoint(tmp_path / "step1", weights(0.0))
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "use_parallel_residual": False}))
    assert load_hooked(folder).parity <= 1e-4


def test_its_hidden_states_are_those_that_were_measured(make_series) -> None:
    series = make_series([0])
    model = load_hooked(series, 0)
    reference = GPTNeoXForCausalLM.from_pretrained(series / "step0").eval()
    prompt = [5, 17, 100, 31]
    generation = generate(reference, [prompt], n_tokens=3)
    tokens = torch.tensor([prompt + generation.tokens[0, :-1].tolist()])
    _, cache = model.run_with_cache(tokens)
    for name, hook in (("layer_0", "blocks.0.hook_resid_post"), ("layer_1", "blocks.1.hook_resid_post")):
        torch.testing.assert_close(cache[hook][0, 3:], generation.hidden[name][0], atol=1e-4, rtol=1e-4)


def test_weights_are_not_processed(make_series, weights) -> None:
    model = load_hooked(make_series([0]), 0)
    state = weights(0.0)
    torch.testing.assert_close(model.W_E, state["gpt_neox.embed_in.weight"])
    torch.testing.assert_close(model.blocks[1].ln1.w, state["gpt_neox.layers.1.input_layernorm.weight"])
    torch.testing.assert_close(model.ln_final.b, state["gpt_neox.final_layer_norm.bias"])


def test_a_difference_is_refused(make_series, monkeypatch) -> None:
    series = make_series([0])
    original = hooked._neox_sizes
    monkeypatch.setattr(hooked, "_neox_sizes", lambda *a: {**original(*a), "eps": 0.1})
    with pytest.raises(
        CheckpointError, match=r"log-probabilities differ from transformers' by .*allowed: 0\.0001"
    ):
        load_hooked(series, 0)


def test_what_is_not_supported_is_named(tmp_path: Path, make_series) -> None:
    llama = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=20
        )
    )
    llama.save_pretrained(tmp_path / "llama")
    with pytest.raises(CheckpointError, match="expected an architecture among gpt_neox, olmo2, got llama"):
        load_hooked(tmp_path / "llama")
    with pytest.raises(CheckpointError, match="OLMo-2 with grouped keys"):
        load_hooked(olmo2(tmp_path / "grouped", num_key_value_heads=1))
    series = make_series([0, 1])
    with pytest.raises(ConfigError, match=r"has no 7; steps there: 0, 1"):
        load_hooked(series, 7)
    with pytest.raises(ConfigError, match=r"has no None; steps there: 0, 1"):
        load_hooked(series)
    path = series / "step1" / "config.json"
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    path.write_text(json.dumps({**json.loads(path.read_text()), "rope_parameters": rope}))
    with pytest.raises(CheckpointError, match="expected plain rotary positions, got rope_type linear"):
        load_hooked(series, 1)


@pytest.mark.parametrize("name", ["swish", "gelu_python", "relu2", "gelu_new"])
def test_activations_by_their_names_in_transformers(make_series, name: str) -> None:
    path = set_activation(make_series([0]), name)
    assert load_hooked(path).parity <= 1e-4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("quick_gelu", r"expected hidden_act among gelu, .*, got 'quick_gelu'; TransformerLens has no such"),
        ("nonsense", r"hidden_act 'nonsense' is not an activation function that transformers knows"),
        (3, r"config\.json cannot be used .*'hidden_act': TypeError: .*'hidden_act' expected str"),
    ],
)
def test_an_unknown_activation_is_one_line(make_series, name: object, message: str) -> None:
    path = set_activation(make_series([0]), name)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_hooked(path)
    assert "\n" not in str(caught.value)


def set_activation(series: Path, name: object) -> Path:
    path = series / "step0" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "hidden_act": name}))
    return path.parent


def test_circuits_and_views_work_on_it(make_series) -> None:
    from mechplateau.circuits import ablate_heads, composition_scores
    from mechplateau.views import attention_pattern

    model = load_hooked(make_series([0]), 0)
    tokens = torch.tensor([[5, 17, 100, 31, 8], [9, 2, 40, 7, 11]])
    assert len(composition_scores(model)) == 12  # three kinds, two heads that write, two that read
    assert len(ablate_heads(model, tokens, rows=[2, 3])) == 8  # four heads, two methods
    _, cache = model.run_with_cache(tokens)
    view = attention_pattern(cache["pattern", 1][0, 0], [model.to_string(token) for token in tokens[0]])
    assert type(view).__name__ == "View"


def test_a_checkpoint_without_access_is_one_line(make_series, monkeypatch) -> None:
    series = make_series([0, 1])
    original = Path.is_file

    def is_file(path: Path) -> bool:
        if path.parent.name == "step1":
            raise PermissionError(13, "Permission denied", str(path))
        return original(path)

    monkeypatch.setattr(Path, "is_file", is_file)
    for arguments in ((series / "step1",), (series, 1), (series, "1"), (series, "step1")):
        with pytest.raises(CheckpointError, match=r"step1.*: cannot be read \(Permission denied\)"):
            load_hooked(*arguments)


@pytest.mark.parametrize("kind", ["neox", "olmo2"])
@pytest.mark.parametrize("part", ["blocks.1", "blocks.1.attn", "blocks.1.mlp", "blocks.1.ln1"])
def test_a_compiled_part_honors_hooks_that_come_later(kind, part, make_series, tmp_path, monkeypatch) -> None:
    model = load_hooked(make_series([0]) / "step0" if kind == "neox" else olmo2(tmp_path / "olmo2"))
    monkeypatch.setattr(
        jaxtyping.config, "jaxtyping_disable", True
    )  # `torch.compile` cannot trace the checks
    module = model.get_submodule(part)
    module.compile(backend="eager")
    tokens = torch.randint(60, (2, 5), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        plain = model(tokens)
        for name in [name for name in model.hook_dict if name.startswith(part)]:
            if model.hook_dict[name].off:
                continue
            fired: list[str] = []

            def note(activation, hook, fired=fired):
                fired.append(hook.name)

            model.run_with_hooks(tokens, fwd_hooks=[(name, note)])
            assert set(fired) == {name}
        assert torch.equal(model(tokens), plain)
