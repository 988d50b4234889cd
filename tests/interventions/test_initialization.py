"""Weights taken over, frozen or not, and imposed patterns: exact, by content, also across a kill."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from mechplateau.config import RunConfig
from mechplateau.errors import CheckpointError, ConfigError
from mechplateau.interventions import Freeze, ImposedPattern, OptimalInit
from mechplateau.models import build_model, generate, observe
from mechplateau.models.kinds import model_kind
from mechplateau.training import train

BASE = {
    "task": {"n": 4, "k": 2, "p": 7, "max_num": 6},
    "model": {"d_model": 8},
    "training": {"steps": 12, "batch_size": 8, "lr": 1e-2},
    "evaluation": {"samples": 8, "every": 4},
    "checkpoints": {"every": 4},
}


GPT = model_kind("gpt")


def tiny(**sections):
    merged = dict(BASE)
    for name, values in sections.items():
        merged[name] = {**BASE.get(name, {}), **values} if isinstance(values, dict) else values
    return RunConfig.for_task("mws", **merged)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A finished run that others take from."""
    return train(tiny(seed=7), runs_dir=tmp_path_factory.mktemp("source"))


def optimal(source, **fields):
    return {"kind": "optimal_init", "source": str(source.checkpoint_path()), **fields}


class Killed(Exception):
    pass


class KillAt:
    def __init__(self, step):
        self.step = step

    def on_step(self, step, row):
        if step == self.step:
            raise Killed


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_shapes_are_those_of_the_model():
    config = tiny(model={"n_layers": 2, "n_heads": 2, "d_head": 3, "d_mlp": 5})
    model = build_model(config.model, vocab_size=config.task.vocab_size, n_ctx=config.task.n_ctx)
    actual = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert GPT.shapes(config.model, config.task) == actual


def test_the_papers_parts():
    names = GPT.shapes(tiny().model, tiny().task)
    inputs = {"embed.W_E", "pos_embed.W_pos", "blocks.0.ln1.w", "blocks.0.ln1.b"}
    attention = {f"blocks.0.attn.{kind}_{letter}" for kind in "Wb" for letter in "QKVO"}
    queries_and_keys = {name for name in attention if name[-1] in "QK"}
    assert set(GPT.names_in(["KQ"], names)) == queries_and_keys | inputs
    assert set(GPT.names_in(["KQOV"], names)) == attention | inputs
    after = {f"blocks.0.mlp.{kind}_{end}" for kind in "Wb" for end in ("in", "out")}
    after |= {"blocks.0.ln2.w", "blocks.0.ln2.b", "ln_final.w", "ln_final.b", "unembed.W_U"}
    assert set(GPT.names_in(["MLP"], names)) == after
    assert "unembed.b_U" not in GPT.names_in(["*"], names)


def test_a_name_that_matches_nothing_lists_the_names(source):
    with pytest.raises(
        ConfigError, match=r"parts: 'blocks\.1\.\*' matches no tensor.*KQOV.*blocks\.0\.attn\.W_Q"
    ):
        tiny(interventions=[optimal(source, parts=["KQ", "blocks.1.*"])])
    with pytest.raises(ConfigError, match="'nothing' matches no tensor"):
        tiny(interventions=[{"kind": "freeze", "parts": "nothing"}])


@pytest.mark.parametrize(
    ("optimizer", "part"),
    [
        ("adam", "KQ"),
        ("sgd", "KQ"),
        ("adamw", "KQOV"),
        ("adamw", "MLP"),
        ("adamw", "embeddings"),
        ("adamw", ["blocks.0.attn.W_V"]),
    ],
)
def test_frozen_tensors_are_the_sources_to_the_bit_and_the_rest_is_trained(tmp_path, source, optimizer, part):
    training = {"optimizer": optimizer, "weight_decay": 0.1}
    config = tiny(training=training, interventions=[optimal(source, parts=part)])
    run = train(config, runs_dir=tmp_path)
    moved = GPT.names_in([part] if isinstance(part, str) else part, source.weights())
    baseline = train(tiny(training=training), runs_dir=tmp_path)
    for step in run.steps:
        weights = run.weights(step)
        for name, tensor in weights.items():
            if name in moved:
                assert torch.equal(tensor, source.weights()[name]), name
            elif step == 0:
                assert torch.equal(tensor, baseline.weights(0)[name]), name
            elif name != "unembed.b_U" and tensor.abs().max() > 0:
                assert not torch.equal(tensor, run.weights(0)[name]), name


def test_not_frozen_they_begin_there_and_are_trained(tmp_path, source):
    run = train(tiny(interventions=[optimal(source, parts="KQ", freeze=False)]), runs_dir=tmp_path)
    name = "blocks.0.attn.W_Q"
    assert torch.equal(run.weights(0)[name], source.weights()[name])
    assert not torch.equal(run.weights()[name], source.weights()[name])


@pytest.mark.parametrize(
    ("fields", "killed_at"), [({}, 6), ({"freeze": False}, 6), ({"stop": 6}, 2), ({"stop": 6}, 11)]
)
def test_a_kill_and_resume_changes_no_bit(tmp_path, source, fields, killed_at):
    config = tiny(
        training={"optimizer": "adamw", "weight_decay": 0.1},
        interventions=[optimal(source, parts="KQ", **fields)],
    )
    whole = train(config, runs_dir=tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, runs_dir=tmp_path / "killed", listeners=[KillAt(killed_at)])
    resumed = train(config, runs_dir=tmp_path / "killed")
    for step in whole.steps:
        assert same(whole.weights(step), resumed.weights(step))
    if fields.get("stop"):
        assert not torch.equal(whole.weights()["embed.W_E"], source.weights()["embed.W_E"])
        assert torch.equal(whole.weights(4)["embed.W_E"], source.weights()["embed.W_E"])


def test_freezing_from_a_step_on_keeps_what_was_learned_by_then(tmp_path):
    run = train(tiny(interventions=[{"kind": "freeze", "parts": "attention", "start": 4}]), runs_dir=tmp_path)
    for name in GPT.names_in(["attention"], run.weights()):
        assert torch.equal(run.weights(4)[name], run.weights()[name])
    assert not torch.equal(run.weights(0)["blocks.0.attn.W_V"], run.weights(4)["blocks.0.attn.W_V"])
    assert not torch.equal(run.weights(4)["embed.W_E"], run.weights()["embed.W_E"])


def test_what_two_interventions_hold_is_free_when_both_have_ended():
    task = tiny().task
    model = build_model(tiny().model, vocab_size=task.vocab_size, n_ctx=task.n_ctx)
    embedding = model.embed.W_E
    first = Freeze(parts="tokens").attach(model, task)
    second = Freeze(parts="embeddings").attach(model, task)
    first.remove()
    assert not embedding.requires_grad
    second.remove()
    assert embedding.requires_grad


def test_the_source_is_known_by_its_content(tmp_path, source):
    one = tiny(interventions=[optimal(source, parts="KQ")])
    earlier = tiny(interventions=[{**optimal(source, parts="KQ"), "source": str(source.checkpoint_path(4))}])
    assert len(one.interventions[0].sha256) == 64
    assert one.interventions[0].sha256 != earlier.interventions[0].sha256
    assert one.run_name != earlier.run_name
    # A wrong source is refused when it would be used, and a run that is only opened does not need it.
    wrong = OptimalInit.parse({**one.interventions[0].data(), "sha256": earlier.interventions[0].sha256})
    with pytest.raises(CheckpointError, match="not those recorded"):
        wrong.tensors()
    gone = {**one.interventions[0].data(), "source": str(tmp_path / "gone.safetensors")}
    assert (
        RunConfig.parse({**one.data(), "interventions": [gone]})
        .interventions[0]
        .source.endswith("gone.safetensors")
    )
    with pytest.raises(CheckpointError, match=r"gone\.safetensors: no such file"):
        train(RunConfig.parse({**one.data(), "interventions": [gone]}), runs_dir=tmp_path / "runs")


def test_refusals_name_both_shapes(tmp_path, source):
    with pytest.raises(ConfigError, match=r"W_pos has shape \[9, 8\] there and \[11, 8\] here"):
        tiny(task={"n": 5}, interventions=[optimal(source, parts="KQ")])
    with pytest.raises(ConfigError, match=r"attn\.W_Q has shape \[1, 8, 8\] there and \[2, 8, 4\] here"):
        tiny(model={"n_heads": 2}, interventions=[optimal(source, parts="KQ")])
    with pytest.raises(ConfigError, match=r"blocks\.1\.attn\.W_Q is not in the source"):
        tiny(model={"n_layers": 2}, interventions=[optimal(source, parts="KQ")])
    with pytest.raises(ConfigError, match="every tensor would be frozen"):
        tiny(interventions=[optimal(source, parts="*")])
    with pytest.raises(ConfigError, match="start: an initialization is at step 0, got 3"):
        tiny(interventions=[optimal(source, parts="KQ", start=3)])
    with pytest.raises(ConfigError, match="no such file"):
        tiny(
            interventions=[{"kind": "optimal_init", "source": str(tmp_path / "x.safetensors"), "parts": "KQ"}]
        )


def test_token_rows_move_what_they_name_and_nothing_else(tmp_path, source):
    pairs = [[7, 7], [2, 3]]
    run = train(
        tiny(training={"steps": 1}, interventions=[optimal(source, parts="embeddings", token_rows=pairs)]),
        runs_dir=tmp_path,
    )
    baseline = train(tiny(training={"steps": 1}), runs_dir=tmp_path)
    there = source.weights()
    for name, axis in (("embed.W_E", 0), ("unembed.W_U", 1)):
        rows, random = run.weights(1)[name].movedim(axis, 0), baseline.weights(0)[name].movedim(axis, 0)
        assert torch.equal(rows[7], there[name].movedim(axis, 0)[7])
        assert torch.equal(rows[2], there[name].movedim(axis, 0)[3])
        others = [token for token in range(8) if token not in (7, 2)]
        assert torch.equal(rows[others], random[others])
    with pytest.raises(ConfigError, match=r"token_rows do not fit embed\.W_E"):
        tiny(interventions=[optimal(source, parts="tokens", token_rows=[[8, 0]])])


def test_an_imposed_pattern_is_the_pattern(tmp_path, source):
    config = tiny(interventions=[{"kind": "imposed_pattern", "source": str(source.maps_path())}])
    pattern = source.maps()["pattern.L0"]
    (imposed,) = config.interventions
    model = build_model(config.model, vocab_size=config.task.vocab_size, n_ctx=config.task.n_ctx)
    tokens = config.task.sample(3, seed=0)
    plain = model(tokens[:, :-1])
    handle = imposed.attach(model, config.task)
    logits, cache = model.run_with_cache(tokens[:, :-1])
    expected = torch.einsum("hqk,bkhd->bqhd", pattern, cache["v", 0])
    torch.testing.assert_close(cache["blocks.0.attn.hook_z"], expected, rtol=1e-5, atol=1e-8)
    record = observe(model, tokens[:, :-1]).records[0]
    torch.testing.assert_close(record.row_mass, pattern.abs().sum(-1).expand(3, -1, -1))
    # Cached generation sees the last rows of the same pattern.
    prompt = tokens[:, :5]
    full = prompt
    for _ in range(4):
        full = torch.cat([full, model(full)[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(generate(model, prompt, 4), full[:, 5:])
    handle.remove()
    assert not torch.equal(logits, plain)
    assert torch.equal(model(tokens[:, :-1]), plain)


def test_under_an_imposed_pattern_queries_and_keys_are_not_trained(tmp_path, source):
    run = train(
        tiny(interventions=[{"kind": "imposed_pattern", "source": str(source.maps_path())}]),
        runs_dir=tmp_path,
    )
    torch.testing.assert_close(run.maps()["pattern.L0"], source.maps()["pattern.L0"])
    for name in ("blocks.0.attn.W_Q", "blocks.0.attn.W_K", "blocks.0.attn.b_K"):
        assert torch.equal(run.weights()[name], run.weights(0)[name])
    assert not torch.equal(run.weights()["blocks.0.attn.W_V"], run.weights(0)["blocks.0.attn.W_V"])


def test_a_pattern_of_another_shape_is_refused_with_both(source):
    with pytest.raises(ConfigError, match=r"pattern\.L0 \[1, 8, 8\].*1 layer\(s\) of \[1, 10, 10\]"):
        tiny(task={"n": 5}, interventions=[{"kind": "imposed_pattern", "source": str(source.maps_path())}])
    with pytest.raises(ConfigError, match="holds no attention maps"):
        ImposedPattern.parse({"source": str(source.checkpoint_path())})


@pytest.mark.parametrize("parts", [5, [5], None, {"KQ": 1}])
def test_parts_that_are_no_names_are_one_line(parts):
    with pytest.raises(ConfigError) as caught:
        RunConfig.for_task("mws", interventions=[{"kind": "freeze", "parts": parts}])
    assert str(caught.value) == f"interventions.0.parts: expected a name or a list of names, got {parts!r}"


def test_freezing_everything_together_is_refused():
    rest = ["tokens", "positions", "unembedding", "ln_final"]
    blocks = {"kind": "freeze", "parts": ["blocks.*"]}
    with pytest.raises(ConfigError) as caught:
        RunConfig.for_task("mws", interventions=[blocks, {"kind": "freeze", "parts": rest, "start": 3}])
    assert str(caught.value) == (
        "interventions.1: every tensor would be frozen together with interventions.0 and nothing trained; "
        "hold fewer"
    )
    one_after_the_other = [{**blocks, "stop": 3}, {"kind": "freeze", "parts": rest, "start": 3}]
    assert len(RunConfig.for_task("mws", interventions=one_after_the_other).interventions) == 2


@pytest.mark.parametrize(
    "spoil", [lambda t: t * float("nan"), lambda t: t.to(torch.int32), lambda t: t.to(torch.complex64)]
)
def test_only_finite_real_numbers_are_taken(tmp_path, source, spoil):
    for kind, file, name in (
        ("optimal_init", source.checkpoint_path(), "embed.W_E"),
        ("imposed_pattern", source.maps_path(), "pattern.L0"),
    ):
        tensors = load_file(file)
        save_file({**tensors, name: spoil(tensors[name])}, tmp_path / "spoilt.safetensors")
        fields = {"parts": "tokens"} if kind == "optimal_init" else {}
        with pytest.raises(ConfigError, match=rf"source: .*{name} holds other than finite real numbers"):
            tiny(interventions=[{"kind": kind, "source": str(tmp_path / "spoilt.safetensors"), **fields}])


def test_one_tensor_is_taken_once(source):
    both = [optimal(source, parts="KQ"), optimal(source, parts=["positions", "unembedding"])]
    with pytest.raises(
        ConfigError, match=r"interventions\.1: sets the same tensors \(pos_embed\.W_pos\) as interventions\.0"
    ):
        tiny(interventions=both)
    assert len(tiny(interventions=[both[0], optimal(source, parts="unembedding")]).interventions) == 2


def test_a_hash_is_a_hash(source):
    with pytest.raises(ConfigError, match=r"interventions\.0\.sha256: .*pattern"):
        tiny(interventions=[optimal(source, parts="KQ", sha256="abc")])


def test_something_is_trained_where_no_gradient_or_update_comes(source):
    """An imposed pattern leaves queries and keys without a gradient, the authors' Muon the final LayerNorm without
    an update."""
    imposed = {"kind": "imposed_pattern", "source": str(source.maps_path())}
    rest = ["MLP", "blocks.*.attn.[Wb]_[VO]", "embeddings", "ln1"]
    with pytest.raises(ConfigError, match=r"interventions\.1: every tensor would be frozen together with"):
        tiny(interventions=[imposed, {"kind": "freeze", "parts": rest}])
    assert tiny(interventions=[imposed, {"kind": "freeze", "parts": rest[1:]}])
    frozen = {"kind": "freeze", "parts": ["blocks.*", "tokens", "positions", "unembedding"]}
    muon = {"optimizer": "muon", "muon_ln_final": False}
    with pytest.raises(ConfigError, match=r"interventions\.0: every tensor would be frozen and nothing"):
        tiny(training=muon, interventions=[frozen])
    assert tiny(training={"optimizer": "muon"}, interventions=[frozen])


def test_taking_off_twice_is_taking_off_once():
    config = tiny()
    model = build_model(config.model, vocab_size=config.task.vocab_size, n_ctx=config.task.n_ctx)
    frozen = Freeze(parts=("tokens",))
    first = frozen.attach(model, config.task)
    first.remove()
    first.remove()
    second = frozen.attach(model, config.task)
    assert not model.embed.W_E.requires_grad
    second.remove()
    assert model.embed.W_E.requires_grad


def test_where_the_source_lies_does_not_count_for_the_hash(tmp_path):
    first = train(tiny(), runs_dir=tmp_path / "runs")
    path = first.checkpoint_path("after")
    elsewhere = tmp_path / "moved.safetensors"
    elsewhere.write_bytes(path.read_bytes())

    def config(source):
        start = {"kind": "optimal_init", "source": str(source), "parts": "KQ"}
        return tiny(interventions=[start])

    assert config(path).content_hash() == config(elsewhere).content_hash()
    assert config(path).content_hash() != config(first.checkpoint_path(0)).content_hash()
    run = train(config(path), runs_dir=tmp_path / "runs")
    again = train(config(elsewhere), runs_dir=tmp_path / "runs")
    assert again.path == run.path
    assert again.model("after") is not None
