"""Another type or device: weights, caches and hooks go along; a device that is not there is one line."""

from __future__ import annotations

import pytest
import torch

import mechplateau
from mechplateau.devices import device_named
from mechplateau.errors import ConfigError
from mechplateau.models import ModelConfig, build_model, generate

PATTERN, NORMALIZED = "blocks.0.attn.hook_pattern", "ln_final.hook_normalized"
CASTS = {
    "half": lambda model: model.half(),
    "bfloat16": lambda model: model.bfloat16(),
    "double": lambda model: model.double(),
    "to dtype": lambda model: model.to(torch.float64),
    "to device and dtype": lambda model: model.to("cpu", torch.float64),
    "to by keywords": lambda model: model.to(device="cpu", dtype=torch.float16),
    "to like another": lambda model: model.to(torch.zeros(1, dtype=torch.float64)),
    "and back": lambda model: model.half().float(),
}


@pytest.mark.parametrize("cast", CASTS)
def test_caches_hooks_and_generation_follow_a_cast(model, tokens, cast, capsys):
    expected = model(tokens)
    generated = generate(model, tokens[:, :5], 4)
    model = CASTS[cast](model)
    dtype = model.W_E.dtype
    assert model.cfg.dtype == dtype
    tolerance = {torch.float16: 2e-2, torch.bfloat16: 2e-1}.get(dtype, 3e-3 if cast == "and back" else 1e-5)
    logits, cache = model.run_with_cache(tokens)  # with every point hooked: the explicit paths
    # TransformerLens computes LayerNorms in float32 at least.
    types = {cache[name].dtype for name in cache.keys() if ".ln" not in f".{name}"}  # noqa: SIM118
    assert types == {dtype}
    for out in (logits, model(tokens)):
        assert out.dtype == dtype
        torch.testing.assert_close(out.float(), expected, rtol=0, atol=tolerance)
    for point in (PATTERN, NORMALIZED):
        edited = model.run_with_hooks(tokens, fwd_hooks=[(point, lambda a, hook: a * 2)])
        assert (edited - logits).abs().max() > 1e-2
    if dtype == torch.float64:
        for cached in (True, False):
            theirs = model.generate(
                tokens[:, :5],
                max_new_tokens=4,
                do_sample=False,
                stop_at_eos=False,
                use_past_kv_cache=cached,
                verbose=False,
            )
            assert torch.equal(theirs[:, 5:], generated)
        assert torch.equal(generate(model, tokens[:, :5], 4), generated)
    else:
        model.generate(tokens[:, :5], max_new_tokens=2, do_sample=False, stop_at_eos=False, verbose=False)
    assert capsys.readouterr().out == ""


def test_the_cfg_follows_to_another_device(linear_model):
    assert linear_model.to("meta").cfg.device == "meta"


@pytest.mark.parametrize(
    "device", [name for name in ("cuda:99", "mps") if name != "mps" or not torch.backends.mps.is_available()]
)
def test_a_device_that_is_not_there_is_one_line_wherever_one_is_taken(linear_model, device):
    takers = [
        lambda: device_named(device),
        lambda: build_model(ModelConfig(d_model=8), vocab_size=5, n_ctx=4, device=device),
        lambda: linear_model.to(device),
        lambda: linear_model.to(device, torch.float64),
        lambda: mechplateau.RunConfig.for_task("mws").task.sample(2, device=device),
    ]
    for take in takers:
        with pytest.raises(ConfigError, match=rf"^device: {device} is not there ") as caught:
            take()
        assert "\n" not in str(caught.value)
    assert linear_model.cfg.device == "cpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_cuda_without_a_card_is_one_line(linear_model):
    for take in (linear_model.cuda, lambda: linear_model.to(torch.device("cuda"))):
        with pytest.raises(ConfigError, match=r"device: cuda\S* is not there .*none; use cpu"):
            take()


@pytest.mark.parametrize("device", ["tpu", "", None, "cpu:x", "vulkan"])
def test_what_is_no_device_is_one_line(device):
    with pytest.raises(ConfigError, match="device: expected cpu, cuda, mps or cuda:N, got"):
        device_named(device)
