"""The encoder: sizes, Hugging Face's BERT, hooks that act, the frozen MASK row, files of others."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mechplateau.errors import CheckpointError, ConfigError, UserError
from mechplateau.models.bert import encoder_from_bert, load_bert_checkpoint
from mechplateau.models.encoder import Encoder, build_encoder, layer_output
from mechplateau.models.encoder_config import EncoderConfig
from mechplateau.tasks.matrices import Grid

VALUES = Grid(q=4, value_max=1).values()
SMALL = EncoderConfig(n_layers=2, n_heads=2, d_model=16, init_std=0.3)


def small(**changes) -> Encoder:
    return build_encoder(SMALL.with_(**changes), values=VALUES, n_ctx=12)


@pytest.fixture
def tokens(generator) -> torch.Tensor:
    return torch.randint(0, len(VALUES), (5, 12), generator=generator)


def bert(seed: int = 0):
    """A random BERT, with every parameter off its initial value."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=len(VALUES),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=20,
        type_vocab_size=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(seed)
    model = BertModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def test_the_papers_size_has_its_parameters():
    def count(n_ctx: int) -> int:
        with torch.device("meta"):
            model = Encoder(EncoderConfig(), torch.zeros(2002), n_ctx)
        return sum(parameter.numel() for parameter in model.parameters())

    assert count(49) == 29_928_961
    assert count(512) == 30_284_545


def test_the_small_recipe_has_its_parameters():
    config = EncoderConfig(n_layers=2, n_heads=4, d_model=64, d_mlp=256)
    model = build_encoder(config, values=VALUES, n_ctx=16)
    assert sum(parameter.numel() for parameter in model.parameters()) == 101_825


def test_equal_to_hugging_face_bert(tokens):
    theirs = bert()
    readout = nn.Linear(32, 1)
    with pytest.warns(UserWarning, match="token-type"):
        ours = encoder_from_bert(
            theirs.state_dict(), (readout.weight, readout.bias), values=VALUES, n_ctx=12, n_heads=4
        )
    with torch.no_grad():
        states = theirs(input_ids=tokens, output_hidden_states=True).hidden_states
        out, cache = ours.run_with_cache(tokens)
        torch.testing.assert_close(cache["hook_full_embed"], states[0], atol=1e-5, rtol=0)
        for layer in range(2):
            torch.testing.assert_close(
                cache[layer_output(SMALL, layer)], states[layer + 1], atol=1e-5, rtol=0
            )
        torch.testing.assert_close(out, readout(states[-1])[..., 0], atol=1e-5, rtol=0)


def authors_file(tmp_path, **changes):
    model = bert().state_dict()
    tensors = {f"_backbone.{name}": tensor for name, tensor in model.items()}
    tensors |= {"read_out.weight": torch.full((1, 32), 1 / 32), "read_out.bias": torch.zeros(1)}
    path = tmp_path / "model_epoch_999.tar"
    saved = {"epoch": 999, "model": tensors, "optim": {"state": {}}, "train_loss": [0.1], "vocab_size": 10}
    torch.save({**saved, **changes}, path)
    return path, model


def test_an_authors_checkpoint_loads(tmp_path, tokens):
    path, model = authors_file(tmp_path)
    with pytest.warns(UserWarning, match="token-type"):
        loaded = load_bert_checkpoint(path, values=VALUES, n_ctx=12, n_heads=4)
    assert loaded.embed.pos_embed.W_pos.shape == (12, 32)
    expected = bert()(input_ids=tokens).last_hidden_state.mean(-1)
    torch.testing.assert_close(loaded(tokens), expected, atol=1e-5, rtol=0)
    assert torch.equal(loaded.embed.embed.W_E, model["embeddings.word_embeddings.weight"])


class _Harmful:
    def __reduce__(self):
        return (print, ("this must never run",))


def test_checkpoints_that_do_not_fit_are_refused(tmp_path, capsys):
    path, model = authors_file(tmp_path)
    with pytest.raises(CheckpointError, match="another size: expected 2002 tokens, as this task has, got 10"):
        load_bert_checkpoint(path, values=torch.zeros(2002), n_ctx=12)
    with pytest.raises(UserError, match="n_heads: expected a divisor of the width 32, got 5"):
        load_bert_checkpoint(path, values=VALUES, n_ctx=12, n_heads=5)
    with pytest.raises(CheckpointError, match=r"position_embeddings\.weight has shape \[20, 32\]"):
        load_bert_checkpoint(path, values=VALUES, n_ctx=21, n_heads=4)
    model.pop("encoder.layer.1.output.dense.bias")
    with pytest.raises(CheckpointError, match=r"missing encoder\.layer\.1\.output\.dense\.bias"):
        encoder_from_bert(model, (torch.ones(1, 32), torch.zeros(1)), values=VALUES, n_ctx=12, n_heads=4)
    path, _ = authors_file(tmp_path, model=_Harmful())
    with pytest.raises(CheckpointError, match="could run code"):
        load_bert_checkpoint(path, values=VALUES, n_ctx=12)
    assert "never run" not in capsys.readouterr().out


def plain(model: Encoder, tokens: torch.Tensor) -> torch.Tensor:
    """The definition, written out with a loop over heads."""
    config, weights = model.model_config, dict(model.named_parameters())

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        centered = x - x.mean(-1, keepdim=True)
        scale = (centered.square().mean(-1, keepdim=True) + 1e-12).sqrt()
        return centered / scale * weights[f"{name}.w"] + weights[f"{name}.b"]

    if config.inputs == "tokens":
        entered = weights["embed.embed.W_E"][tokens]
    else:
        value = VALUES[tokens][..., None] * weights["embed.embed.W_value"] + weights["embed.embed.b_value"]
        entered = torch.where((tokens == 0)[..., None], weights["embed.embed.W_mask"], value)
    x = entered + weights["embed.pos_embed.W_pos"][: tokens.shape[1]]
    post = config.norm == "post"
    x = norm(x, "embed.ln") if post else x
    for layer in range(config.n_layers):
        at = f"blocks.{layer}"
        read = x if post else norm(x, f"{at}.ln1")
        added = weights[f"{at}.attn.b_O"]
        for head in range(config.n_heads):
            q, k, v = (
                read @ weights[f"{at}.attn.W_{letter}"][head] + weights[f"{at}.attn.b_{letter}"][head]
                for letter in "QKV"
            )
            pattern = (q @ k.mT / config.head_width**0.5).softmax(-1)
            added = added + pattern @ v @ weights[f"{at}.attn.W_O"][head]
        x = x + added
        x = norm(x, f"{at}.ln1") if post else x
        read = x if post else norm(x, f"{at}.ln2")
        hidden = read @ weights[f"{at}.mlp.W_in"] + weights[f"{at}.mlp.b_in"]
        hidden = hidden * (1 + torch.erf(hidden / 2**0.5)) / 2
        x = x + hidden @ weights[f"{at}.mlp.W_out"] + weights[f"{at}.mlp.b_out"]
        x = norm(x, f"{at}.ln2") if post else x
    x = x if post else norm(x, "readout.ln")
    return x @ weights["readout.w"] + weights["readout.b"]


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("inputs", ["tokens", "continuous"])
def test_it_computes_its_definition(norm, inputs, tokens):
    model = small(norm=norm, inputs=inputs)
    torch.testing.assert_close(model(tokens), plain(model, tokens), atol=1e-5, rtol=0)
    # Fewer cells than positions: a smaller matrix.
    torch.testing.assert_close(model(tokens[:, :5]), plain(model, tokens[:, :5]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_every_hook_acts(norm, tokens):
    """Each point's activation is seen, and an edit of it changes the output; unedited, nothing changes."""
    model = small(norm=norm)
    before = model(tokens)
    out, cache = model.run_with_cache(tokens)
    torch.testing.assert_close(out, before, atol=1e-6, rtol=0)
    assert set(cache) == set(model.hook_dict)
    assert {"embed.hook_embed", "embed.hook_pos_embed", "hook_full_embed", "readout.hook_in"} < set(cache)
    for name in model.hook_dict:

        def edit(activation, hook):
            return activation + torch.linspace(0, 1, activation.numel()).view(activation.shape)

        changed = model.run_with_hooks(tokens, fwd_hooks=[(name, edit)])
        assert not torch.allclose(changed, before, atol=1e-4), name
    assert torch.equal(model(tokens), before)


def test_a_compiled_model_honors_hooks(tokens):
    model = small()
    compiled = torch.compile(model, backend="eager")
    before = compiled(tokens)
    model.add_hook("blocks.0.attn.hook_pattern", lambda pattern, hook: torch.zeros_like(pattern))
    assert not torch.allclose(compiled(tokens), before)
    model.reset_hooks()
    torch.testing.assert_close(compiled(tokens), before)


@pytest.mark.parametrize(("kind", "moves"), [("frozen_zero", False), ("learned", True)])
def test_the_frozen_mask_row_stays_zero(kind, moves, tokens):
    model = small(mask_embedding=kind)
    before = model.embed.embed.W_E[0].clone()
    assert bool(before.any()) == moves
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(10):
        optimizer.zero_grad()
        F.mse_loss(model(tokens), VALUES[tokens]).backward()
        optimizer.step()
    row = model.embed.embed.W_E[0]
    assert torch.equal(row, before) != moves
    assert moves or bool((row == 0).all())


def test_initial_weights():
    model = build_encoder(EncoderConfig(n_layers=1, n_heads=4, d_model=64), values=VALUES, n_ctx=49)
    for name, parameter in model.named_parameters():
        kind = name.rpartition(".")[2]
        if name.startswith("readout"):
            assert parameter.abs().max() <= 1 / 8
        elif kind.startswith("W_"):
            used = parameter[1:] if kind == "W_E" else parameter
            assert 0.02 * 0.8 < used.std() < 0.02 * 1.2
        else:
            assert bool((parameter == (1 if kind == "w" else 0)).all())
    other = build_encoder(
        model.model_config, values=VALUES, n_ctx=49, generator=torch.Generator().manual_seed(1)
    )
    assert not torch.equal(other.embed.pos_embed.W_pos, model.embed.pos_embed.W_pos)


def test_wrong_requests_in_one_line(tokens):
    with pytest.raises(ConfigError, match="n_heads: expected a divisor of d_model = 16"):
        SMALL.with_(n_heads=3)
    model = small()
    with pytest.raises(UserError, match="at most 12 cells"):
        model(torch.zeros(1, 13, dtype=torch.long))
    with pytest.raises(UserError, match="expected integers"):
        model(torch.zeros(1, 12))
