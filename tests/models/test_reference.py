"""Checkpoints in the layout of the paper's own code: equal logits, strictness, and safety."""

from __future__ import annotations

import io
import math
import os
import pickle
import tarfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import mechplateau
from mechplateau.errors import CheckpointError
from mechplateau.models import build_model
from mechplateau.models.transformer import load_weights, parameters_of

VOCAB, N_CTX, WIDTH = 11, 9, 12


class Attention(nn.Module):
    """Written from the layout's description, independently of the package."""

    def __init__(self, n_heads, softmax, lower):
        super().__init__()
        names = ("q", "k", "v") if lower else ("Q", "K", "V")
        for name in names:
            setattr(self, name, nn.Linear(WIDTH, WIDTH))
        self.names = names
        self.c_proj = nn.Linear(WIDTH, WIDTH)
        self.n_heads, self.softmax = n_heads, softmax
        self.register_buffer("bias", torch.ones(N_CTX, N_CTX).tril().view(1, 1, N_CTX, N_CTX))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            getattr(self, name)(x).view(batch, length, self.n_heads, -1).transpose(1, 2)
            for name in self.names
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        mask = self.bias[:, :, :length, :length]
        pattern = scores.masked_fill(mask == 0, -math.inf).softmax(-1) if self.softmax else scores * mask
        return self.c_proj((pattern @ v).transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    def __init__(self, **kind):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = Attention(**kind)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(WIDTH, 4 * WIDTH), "c_proj": nn.Linear(4 * WIDTH, WIDTH)})

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        hidden = nn.functional.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        return x + self.mlp["c_proj"](hidden)


class ReferenceGPT(nn.Module):
    def __init__(self, n_layers=1, n_heads=1, softmax=False, lower=False):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCAB, WIDTH),
                "wpe": nn.Embedding(N_CTX, WIDTH),
                "h": nn.ModuleList(
                    Block(n_heads=n_heads, softmax=softmax, lower=lower) for _ in range(n_layers)
                ),
                "ln_f": nn.LayerNorm(WIDTH),
            }
        )
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                center = 1.0 if ".ln_" in name and name.endswith("weight") else 0.0
                parameter.normal_(center, 0.15, generator=generator)

    def forward(self, tokens):
        x = self.transformer["wte"](tokens) + self.transformer["wpe"](torch.arange(tokens.shape[1]))
        for block in self.transformer["h"]:
            x = block(x)
        return self.lm_head(self.transformer["ln_f"](x))


@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("n_heads", [1, 3])
@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("lower", [False, True])
def test_logits_equal_the_originals(tmp_path, tokens, n_layers, n_heads, softmax, lower):
    original = ReferenceGPT(n_layers, n_heads, softmax, lower)
    path = tmp_path / "checkpoint.pt"
    torch.save(
        {
            "epoch": 3,
            "model": original.state_dict(),
            "optim": torch.optim.Adam(original.parameters()).state_dict(),
            "test_loss": np.float64(0.5),
            "test_acc": np.float32(1.0),
            "train_loss": [0.1],
        },
        path,
    )
    kind = "softmax" if softmax else "linear"
    model = mechplateau.load_reference_checkpoint(path, n_heads=n_heads, attention=kind)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), original(tokens), rtol=0, atol=1e-5)
        _, cache = model.run_with_cache(tokens)
    assert cache["pattern", n_layers - 1].shape == (3, n_heads, 8, 8)


def test_a_bare_state_dict_and_safetensors_load_too(tmp_path, tokens):
    original = ReferenceGPT()
    state = original.state_dict()
    torch.save(state, tmp_path / "bare.pt")
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, tmp_path / "bare.safetensors")
    for name in ("bare.pt", "bare.safetensors"):
        model = mechplateau.load_reference_checkpoint(tmp_path / name)
        torch.testing.assert_close(model(tokens), original(tokens), rtol=0, atol=1e-5)


@pytest.mark.parametrize("key", ["model", "state_dict", "model_state_dict"])
@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "_orig_mod.module.", "module._orig_mod."])
def test_what_wrappers_add_to_names_is_taken_off(tmp_path, tokens, key, prefix):
    original = ReferenceGPT()
    state = {prefix + name: tensor.contiguous() for name, tensor in original.state_dict().items()}
    torch.save({"step": 3, key: state}, tmp_path / "c.pt")
    save_file(state, tmp_path / "c.safetensors")
    for name in ("c.pt", "c.safetensors"):
        model = mechplateau.load_reference_checkpoint(tmp_path / name)
        torch.testing.assert_close(model(tokens), original(tokens), rtol=0, atol=1e-5)


def test_a_name_with_and_without_a_prefix_is_an_error(tmp_path):
    state = ReferenceGPT().state_dict()
    state["_orig_mod.lm_head.weight"] = state["lm_head.weight"] + 1
    torch.save(state, tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match=r"c\.pt: _orig_mod\.lm_head\.weight is duplicate"):
        mechplateau.load_reference_checkpoint(tmp_path / "c.pt")


def test_a_folded_file_is_recognized(tmp_path, linear_model):
    raw = {name: tensor.clone() for name, tensor in parameters_of(linear_model).items()}
    torch.save(raw, tmp_path / "raw.pt")
    with pytest.raises(CheckpointError, match=r"raw\.pt: holds TransformerLens's names"):
        mechplateau.load_reference_checkpoint(tmp_path / "raw.pt")
    linear_model.process_weights_()
    folded = parameters_of(linear_model)
    torch.save({"model_state_dict": folded}, tmp_path / "folded.pt")
    with pytest.raises(CheckpointError, match=r"folded\.pt: holds folded weights"):
        mechplateau.load_reference_checkpoint(tmp_path / "folded.pt")
    fresh = build_model(linear_model.model_config, vocab_size=11, n_ctx=9)
    with pytest.raises(CheckpointError, match=r"^the file holds folded weights"):
        load_weights(fresh, folded, "the file")
    with pytest.raises(CheckpointError, match=r"^the state dict holds folded weights"):
        fresh.load_and_process_state_dict(linear_model.state_dict())


@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_nanogpts_fused_projection_is_named(tmp_path, kind):
    state = {
        n: t for n, t in ReferenceGPT().state_dict().items() if ".attn.Q" not in n and ".attn.K" not in n
    }
    state[f"transformer.h.0.attn.c_attn.{kind}"] = torch.zeros(3 * WIDTH, WIDTH)
    torch.save(state, tmp_path / "c.pt")
    with pytest.raises(
        CheckpointError, match=rf"transformer\.h\.0\.attn\.c_attn\.{kind} holds queries, keys and"
    ):
        mechplateau.load_reference_checkpoint(tmp_path / "c.pt")


def test_the_wrong_kind_of_attention_gives_other_logits(tmp_path, tokens):
    """What the arguments are for: nothing in the file tells."""
    original = ReferenceGPT(softmax=True)
    torch.save(original.state_dict(), tmp_path / "c.pt")
    wrong = mechplateau.load_reference_checkpoint(tmp_path / "c.pt", attention="linear")
    assert (wrong(tokens) - original(tokens)).abs().max() > 1e-3


def changed(change):
    state = ReferenceGPT().state_dict()
    change(state)
    return state


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("transformer.h.0.ln_2.bias"), r"missing blocks\.0\.ln2\.b"),
        (lambda s: s.pop("transformer.h.0.attn.Q.weight"), r"missing transformer\.h\.0\.attn\.q\.weight"),
        (
            lambda s: s.update({"transformer.extra.weight": torch.zeros(2)}),
            r"unknown tensor transformer\.extra\.weight",
        ),
        (lambda s: s.update({"lm_head.weight": torch.zeros(VOCAB + 1, WIDTH)}), r"unembed\.W_U has shape"),
        (
            lambda s: s.update({"transformer.h.0.attn.bias": torch.ones(1, 1, N_CTX, N_CTX)}),
            "not a lower-triangular",
        ),
        (
            lambda s: s.update({"transformer.h.0.attn.bias": torch.ones(1, 1, 4, 4).tril()}),
            "not a lower-triangular",
        ),
        (lambda s: s.update({"transformer.h.0.attn.q.weight": torch.zeros(WIDTH, WIDTH)}), "is duplicate"),
        (lambda s: s.update({"embed.W_E": torch.zeros(VOCAB, WIDTH)}), r"unknown tensor embed\.W_E"),
        (lambda s: s.update({"transformer.wpe.weight": torch.zeros(())}), "expected a matrix"),
        (
            lambda s: s.update({"transformer.ln_f.bias": torch.zeros(WIDTH, dtype=torch.int64)}),
            "is int64, expected",
        ),
        (lambda s: s.pop("transformer.wte.weight"), "not a checkpoint of the paper's code"),
    ],
)
def test_a_wrong_layout_names_the_tensor(tmp_path, change, message):
    torch.save({"model": changed(change)}, tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match=message):
        mechplateau.load_reference_checkpoint(tmp_path / "c.pt")


def test_wrong_arguments_are_named(tmp_path):
    torch.save(ReferenceGPT().state_dict(), tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match="n_heads: expected a divisor of the width 12"):
        mechplateau.load_reference_checkpoint(tmp_path / "c.pt", n_heads=5)
    with pytest.raises(CheckpointError, match="attention: expected linear or softmax, got 'relu'"):
        mechplateau.load_reference_checkpoint(tmp_path / "c.pt", attention="relu")
    for wrong in (1.0, True, None):
        with pytest.raises(CheckpointError, match="n_heads: expected a whole number"):
            mechplateau.load_reference_checkpoint(tmp_path / "c.pt", n_heads=wrong)
    with pytest.raises(CheckpointError, match="no such file"):
        mechplateau.load_reference_checkpoint(tmp_path / "none.pt")


class Attack:
    """Unpickling this creates a file."""

    def __init__(self, sentinel):
        self.sentinel = str(sentinel)

    def __reduce__(self):
        return (os.mkdir, (self.sentinel,))


def malicious(kind, path, sentinel):
    content = {"model": ReferenceGPT().state_dict(), "extra": Attack(sentinel)}
    if kind == "zip":
        torch.save(content, path)
    elif kind == "legacy":
        torch.save(content, path, _use_new_zipfile_serialization=False)
    elif kind == "plain pickle":
        path.write_bytes(pickle.dumps(Attack(sentinel)))
    else:
        with tarfile.open(path, "w") as tar:
            for name in ("sys_info", "pickle", "storages", "tensors"):
                data = pickle.dumps(Attack(sentinel))
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


@pytest.mark.parametrize("kind", ["zip", "legacy", "plain pickle", "tar"])
def test_a_pickle_that_runs_code_is_refused(tmp_path, kind):
    sentinel = tmp_path / "sentinel"
    path = tmp_path / "evil.pt"
    malicious(kind, path, sentinel)
    with pytest.raises(CheckpointError, match=r"evil\.pt: ") as caught:
        mechplateau.load_reference_checkpoint(path)
    assert "\n" not in str(caught.value)
    assert "refused" in str(caught.value)
    assert "weights_only" not in str(caught.value)
    assert not sentinel.exists()
    # A good file beside it loads.
    save_file(
        {n: t.contiguous() for n, t in ReferenceGPT().state_dict().items()}, tmp_path / "good.safetensors"
    )
    mechplateau.load_reference_checkpoint(tmp_path / "good.safetensors")
    assert not sentinel.exists()


@pytest.mark.parametrize("name", ["garbage.pt", "garbage.safetensors", "empty.pt"])
def test_a_damaged_file_is_one_line(tmp_path, name):
    (tmp_path / name).write_bytes(b"" if name.startswith("empty") else b"\x00\x01garbage" * 50)
    with pytest.raises(CheckpointError) as caught:
        mechplateau.load_reference_checkpoint(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_file_without_tensors_is_an_error(tmp_path):
    torch.save({"epoch": 3}, tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match="holds no named tensors"):
        mechplateau.load_reference_checkpoint(tmp_path / "c.pt")
