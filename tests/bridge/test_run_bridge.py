"""Checkpoints as bridges, and what is said where TransformerLens has no HookedTransformer. Runs on 3.9 and 4."""

from __future__ import annotations

import importlib
import re
from importlib import metadata
from pathlib import Path

import pytest
import torch

import mechplateau
from mechplateau.config import RunConfig
from mechplateau.errors import UserError
from mechplateau.models import versions
from mechplateau.models.kinds import kind_of

RUN = Path(__file__).parents[1] / "data" / "copy-62e708e1119f"
PACKAGE = Path(mechplateau.__file__).parent
HAS_HOOKED = int(metadata.version("transformer-lens").split(".")[0]) < 4


@pytest.fixture(params=["a run that was stopped", "during the plateau"])
def checkpoint(request):
    """A run, and which of its checkpoints."""
    if request.param == "during the plateau":
        return mechplateau.example(), "during"
    run = mechplateau.load_run(RUN)
    return run, run.steps[-1]


def test_a_checkpoint_opens_as_a_bridge(checkpoint):
    run, which = checkpoint
    bridge = run.bridge(which)
    tokens = run.task.sample(4, seed=0)[:, :-1]
    logits, cache = bridge.run_with_cache(tokens)
    assert logits.shape == (4, tokens.shape[1], run.task.vocab_size)
    assert torch.equal(bridge.blocks[0].attn.W_Q, run.weights(which)["blocks.0.attn.W_Q"])
    assert cache["blocks.0.attn.hook_pattern"].shape[-1] == tokens.shape[1]


@pytest.mark.skipif(not HAS_HOOKED, reason="needs HookedTransformer")
def test_it_is_the_checkpoints_model(checkpoint):
    run, which = checkpoint
    model, bridge, tokens = run.model(which), run.bridge(which), run.task.sample(4, seed=0)[:, :-1]
    expected, cache = model.run_with_cache(tokens)
    logits, got = bridge.run_with_cache(tokens)
    assert torch.allclose(logits, expected, atol=1e-5)
    assert not set(cache) - set(got)
    for name in cache:
        assert torch.allclose(got[name], cache[name], atol=1e-5), name


@pytest.mark.parametrize("task", ["matrix_completion", "in_context_regression", "text"])
def test_other_kinds_say_in_a_line_what_opens_them(tmp_path, task):
    (tmp_path / "config.yaml").write_text(RunConfig.for_task(task).yaml())
    with pytest.raises(
        UserError, match=r"only models of kind gpt open .*; use run\.model, with transformer-lens>=3\.9,<4$"
    ):
        mechplateau.load_run(tmp_path).bridge()


@pytest.mark.skipif(not HAS_HOOKED, reason="needs HookedTransformer")
def test_folded_weights_go_over_too():
    run = mechplateau.load_run(RUN)
    model, tokens = run.model(run.steps[-1]), run.task.sample(4, seed=0)[:, :-1]
    model.process_weights_()
    assert torch.allclose(model.to_bridge()(tokens), model(tokens), atol=1e-5)


@pytest.mark.skipif(HAS_HOOKED, reason="TransformerLens 4 only")
def test_without_hooked_transformer_one_line_says_what_to_install(tmp_path):
    run = mechplateau.load_run(RUN)
    for call in (
        lambda: run.model(run.steps[-1]),
        lambda: mechplateau.build_model,
        lambda: mechplateau.train(run.config, runs_dir=tmp_path),
    ):
        with pytest.raises(
            UserError, match=r"needs HookedTransformer, .*pip install 'transformer-lens>=3.9,<4'"
        ):
            call()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("version", ["2.16.1", "3.8.2", "5.0.0"])
def test_another_transformer_lens_is_one_clear_message(monkeypatch, version):
    monkeypatch.setattr(versions.metadata, "version", lambda name: version)
    with pytest.raises(
        UserError, match=rf"needs transformer-lens>=3\.9,<5, but {version} is installed; run: pip install"
    ):
        versions.check_transformer_lens()


@pytest.mark.parametrize("version", ["3.9.0", "3.10.2", "4.0.0", "4.1.0rc1"])
def test_the_supported_lines_pass(monkeypatch, version):
    monkeypatch.setattr(versions.metadata, "version", lambda name: version)
    versions.check_transformer_lens()
    if version.startswith("3"):
        versions.check_hooked_transformer("this")
    else:
        with pytest.raises(
            UserError, match=rf"this needs HookedTransformer, which transformer-lens {version}"
        ):
            versions.check_hooked_transformer("this")


def test_no_transformer_lens_is_one_clear_message(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(versions.metadata, "version", missing)
    with pytest.raises(UserError, match="which is not installed; run: pip install"):
        versions.check_transformer_lens()


NAMES_OF_3 = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if re.search(
        r"^from transformer_lens(\.(components|utilities|weight_processing)[\w.]*)? import",
        path.read_text(),
        re.M,
    )
]


@pytest.mark.skipif(HAS_HOOKED, reason="TransformerLens 4 only")
@pytest.mark.parametrize("module", NAMES_OF_3)
def test_every_module_that_needs_it_says_what_to_install(module):
    with pytest.raises(UserError, match=r"needs HookedTransformer, .*pip install 'transformer-lens>=3.9,<4'"):
        importlib.import_module(module)


@pytest.mark.skipif(HAS_HOOKED, reason="TransformerLens 4 only")
@pytest.mark.parametrize("task", ["matrix_completion", "in_context_regression", "text"])
def test_so_does_every_kind_of_model(task):
    config = RunConfig.for_task(task)
    with pytest.raises(UserError, match=r"needs HookedTransformer, .*pip install 'transformer-lens>=3.9,<4'"):
        kind_of(config.model).build(config.model, config.task)
