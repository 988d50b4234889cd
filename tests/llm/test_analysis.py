from __future__ import annotations

import copy
import gc
import os
import weakref
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from mechplateau.errors import CheckpointError, ConfigError, RunError
from mechplateau.llm import SeriesConfig, analysis_folder, analyze_series
from mechplateau.llm import generation as generation_module
from mechplateau.llm.sources import FolderSource

from .conftest import PROMPTS, column


def test_a_fake_history_is_seen_through(make_series, copy_weights) -> None:
    series = make_series([0, 1, 2, 4, 8, 16, 32, 64, 256, 512])
    for target in ("step1", "step2"):
        copy_weights(series / "step0", series / target)
    copy_weights(series / "step512", series / "step64")
    analysis = analyze_series(series, prompts=PROMPTS)
    verdicts, notes, joined = (column(analysis, name) for name in ("verdict", "note", "joined"))
    assert verdicts == {
        **dict.fromkeys([0, 1, 2], "duplicate"),
        **dict.fromkeys([4, 8, 16, 32], "ok"),
        64: "equals_final",
        128: "missing",
        **dict.fromkeys([256, 512], "ok"),
    }
    hashes = column(analysis, "hash")
    assert {label: identity.hash for label, identity in analysis.identities.items()} == {
        f"step{step}": value for step, value in hashes.items() if step != 128
    }
    assert hashes[0] == hashes[1] == hashes[2] != hashes[4]
    assert notes[1] == f"same weights as step0, step2, hash {str(hashes[0])[:12]}"
    assert notes[64] == f"equals the final weights (step512), hash {str(hashes[512])[:12]}"
    assert notes[128] == "step 128: missing by the spacing of the others"
    # A curve runs through 4 … 32 and through 256, 512: over none of the doubtful points, nor the gap.
    assert {step for step, join in joined.items() if join} == {8, 16, 32, 512}
    assert analysis.summary[0] == (
        "10 checkpoints read, 6 of them with nothing speaking against their names, 4 doubtful; 1 missing or broken."
    )
    assert column(analysis, "cos_final")[64] == column(analysis, "cos_final")[512]


def test_a_single_foreign_tensor(make_series) -> None:
    series = make_series([0, 1, 2, 4, 8, 16, 32])
    name = "gpt_neox.layers.1.mlp.dense_h_to_4h.weight"
    path = series / "step4" / "model.safetensors"
    foreign = load_file(series / "step32" / "model.safetensors")[name]
    save_file({**load_file(path), name: foreign}, path, {"format": "pt"})
    analysis = analyze_series(series, prompts=PROMPTS)
    verdicts = column(analysis, "verdict")
    assert verdicts.pop(4) == "foreign_tensor"
    assert set(verdicts.values()) == {"ok"}
    assert f"those of step32 ({name}), hash " in str(column(analysis, "note")[4])


def test_bf16_and_fp32_copies_have_one_identity(make_series, save_checkpoint, weights) -> None:
    series = make_series([0, 1, 2, 4, 8])
    save_checkpoint(series / "step4", weights(0.2), torch.bfloat16)
    analysis = analyze_series(series, prompts=PROMPTS)
    assert column(analysis, "verdict") == {0: "ok", 1: "ok", 2: "duplicate", 4: "duplicate", 8: "ok"}
    identity, hashes, dtype = (column(analysis, name) for name in ("identity", "hash", "dtype"))
    assert identity[2] == identity[4] == hashes[2] != hashes[4]
    assert (dtype[2], dtype[4]) == ("float32", "bfloat16")
    note = "same weights as step4 (stored as bfloat16 there, float32 here: equal once rounded to bfloat16), hash "
    assert str(column(analysis, "note")[2]).startswith(note)


def test_memory_does_not_grow_with_the_series(tmp_path, tokenizer) -> None:
    """20 checkpoints of 13 MB: were they kept, memory would grow by a quarter of a gigabyte."""

    config = GPTNeoXConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, vocab_size=300
    )
    model = GPTNeoXForCausalLM(config)
    for step in range(20):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.001)
        model.save_pretrained(tmp_path / f"step{step}")
    tokenizer.save_pretrained(tmp_path)
    resident: list[int] = []

    class Note:
        def __init__(self, **given) -> None:
            pass

        def update(self, n: int) -> None:
            pages = Path("/proc/self/statm").read_text().split()[1]
            resident.append(int(pages) * os.sysconf("SC_PAGE_SIZE"))

        def set_postfix_str(self, label: str) -> None:
            pass

        def close(self) -> None:
            pass

    analyze_series(tmp_path, prompts=PROMPTS, progress=Note)
    assert len(resident) == 20
    assert max(resident[3:]) <= 1.05 * resident[2]


def test_a_model_is_gone_before_the_next_is_loaded(make_series, monkeypatch) -> None:
    """Also one in a reference cycle, which automatic collections may find late."""
    from mechplateau.llm import loading

    models: list[weakref.ref] = []
    original = loading.load_model

    def watched(*args, **kwargs):
        assert all(model() is None for model in models)
        model = original(*args, **kwargs)
        model.cycle = [model]
        models.append(weakref.ref(model))
        return model

    monkeypatch.setattr(loading, "load_model", watched)
    gc.disable()
    try:
        analyze_series(make_series([0, 1, 2]), prompts=PROMPTS)
    finally:
        gc.enable()
    assert len(models) == 3
    assert gc.get_freeze_count() == 0


def test_batches_change_nothing(make_series) -> None:
    series = make_series([0, 1])
    one = analyze_series(series, SeriesConfig(batch_size=1), prompts=PROMPTS)
    all_ = analyze_series(series, prompts=PROMPTS)
    pd.testing.assert_frame_equal(one.table, all_.table, atol=1e-5, rtol=1e-5)
    assert one.examples == all_.examples


def test_the_table_says_what_was_measured(make_series) -> None:
    analysis = analyze_series(make_series([0, 1]), SeriesConfig(n_prompts=2, n_tokens=4), prompts=PROMPTS)
    expected = (
        "step stage tokens label verdict doubtful joined note hash identity same_as dtype distance detour "
        "loss repetition entropy cos_final cos_embed cos_layer_0 cos_layer_1"
    )
    assert " ".join(analysis.table.columns) == expected
    assert analysis.table[["loss", "repetition", "entropy", "cos_final", "cos_layer_1"]].notna().all().all()
    examples = analysis.examples["step1"]
    assert [example.prompt for example in examples] == PROMPTS[:2]
    assert all(len(example.tokens) == 4 for example in examples)
    assert analysis.summary[1] == "4 tokens after each of 2 prompts, greedy, in float32; ruled out: token 0."


def test_published_weights_close_the_table(make_series, copy_weights) -> None:
    series = make_series([0, 1, 2, 4, 8])
    (series / "step8").rename(series / "main")
    copy_weights(series / "main", series / "step1")
    analysis = analyze_series(series, prompts=PROMPTS, steps="0-2")
    assert analysis.table["verdict"].tolist() == ["ok", "equals_final", "ok", "final"]
    last = analysis.table.iloc[-1]
    assert last["label"] == "main"
    assert pd.isna(last["step"])
    assert pd.isna(last["cos_final"])
    assert not last["joined"]


def test_identity_alone_needs_no_tokenizer_and_no_model(make_series, loads) -> None:
    series = make_series([0, 1, 2])
    for path in series.rglob("tokenizer*"):
        path.unlink()
    with pytest.raises(ConfigError, match="no tokenizer with the checkpoints or beside them"):
        analyze_series(series, prompts=PROMPTS)
    analysis = analyze_series(series, prompts=[], identity_only=True)
    assert analysis.table["verdict"].tolist() == ["ok", "ok", "ok"]
    assert analysis.table["cos_final"].isna().all()
    assert not loads
    assert analyze_series(series, prompts=[[1, 2, 3], [4]]).table["cos_final"].notna().all()


def test_a_tokenizer_may_lie_beside_the_checkpoints_or_elsewhere(make_series, tokenizer, tmp_path) -> None:
    series = make_series([0, 1])
    expected = analyze_series(series, prompts=PROMPTS).table
    for path in series.rglob("tokenizer*"):
        path.unlink()
    tokenizer.save_pretrained(tmp_path / "elsewhere")
    elsewhere = analyze_series(series, prompts=PROMPTS, tokenizer=tmp_path / "elsewhere")
    pd.testing.assert_frame_equal(elsewhere.table, expected)
    tokenizer.save_pretrained(series)
    pd.testing.assert_frame_equal(analyze_series(series, prompts=PROMPTS).table, expected)


def test_folders_without_a_series_are_explained(make_series, tmp_path) -> None:
    with pytest.raises(CheckpointError, match="give the folder above it"):
        analyze_series(make_series([0, 1]) / "step0")
    (tmp_path / "empty").mkdir()
    expected = r"expected folders named by their steps, such as step512, checkpoint-500, .*; found "
    with pytest.raises(CheckpointError, match=expected + "none"):
        analyze_series(tmp_path / "empty")
    # Files too: those of a run's own checkpoints, say.
    (tmp_path / "empty" / "epoch1").write_text("x")
    for name in ("epoch2", "epoch3", "epoch4", "epoch5", "epoch6"):
        (tmp_path / "empty" / name).mkdir()
    with pytest.raises(
        CheckpointError, match=expected + "'epoch1', 'epoch2', 'epoch3', 'epoch4' and 2 more$"
    ):
        analyze_series(tmp_path / "empty")
    with pytest.raises(ConfigError, match="expected a folder of checkpoint folders, a repository"):
        analyze_series(tmp_path / "nowhere" / "at" / "all")
    with pytest.raises(
        ConfigError, match=r"steps: none of the requested steps is there; .* has 2 from step 0 to step 1"
    ):
        analyze_series(tmp_path / "series", steps="7")


def test_devices_that_are_not_there_are_named(make_series) -> None:
    for device in ("cuda:77", "toaster"):
        with pytest.raises(ConfigError, match=r"device: (expected|cuda:77 is not there)"):
            analyze_series(make_series([0]), SeriesConfig(device=device), prompts=PROMPTS)


def test_a_full_disk_is_one_line(make_series, tmp_path, monkeypatch) -> None:
    from mechplateau.llm import store

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    folder = tmp_path / "out"
    with pytest.raises(RunError, match=r"cannot be written .No space left on device"):
        analyze_series(make_series([0]), prompts=PROMPTS, folder=folder)
    assert not list((folder / "steps").iterdir())
    assert store.Store(folder, (folder / "settings.yaml").read_text()).load("step0", "") is None


def test_the_folder_is_named_by_series_settings_and_prompts(tmp_path) -> None:
    source = FolderSource(tmp_path)
    config = SeriesConfig()
    folder = analysis_folder("runs", source, config, PROMPTS)
    assert folder.parent == Path("runs")
    assert folder.name.startswith(f"llm-{tmp_path.name}-")
    assert analysis_folder("runs", source, SeriesConfig(batch_size=1), PROMPTS) == folder
    others = [
        analysis_folder("runs", source, config, PROMPTS[:2]),
        analysis_folder("runs", source, SeriesConfig(n_tokens=4), PROMPTS),
        analysis_folder("runs", FolderSource(tmp_path / "x"), config, PROMPTS),
    ]
    assert len({folder, *others}) == 4


def test_sampling_is_an_option(make_series) -> None:
    series = make_series([0, 1])
    greedy = analyze_series(series, prompts=PROMPTS)
    warm = analyze_series(series, SeriesConfig(temperature=1.0), prompts=PROMPTS)
    assert "sampled at temperature 1, seed 0" in warm.summary[1]
    assert warm.examples != greedy.examples
    assert warm.table["loss"].tolist() == greedy.table["loss"].tolist()


def test_generation_runs_in_eval_mode_once_a_checkpoint(make_series, monkeypatch) -> None:
    modes = []
    original = generation_module.generate
    monkeypatch.setattr(
        generation_module,
        "generate",
        lambda model, *a, **k: (modes.append(model.training), original(model, *a, **k))[1],
    )
    analyze_series(make_series([0, 1, 2]), prompts=PROMPTS)
    assert modes == [False, False, False]


def test_a_damaged_tokenizer_is_not_the_end(make_series) -> None:
    series = make_series([0, 1, 2])
    (series / "step0" / "tokenizer.json").write_text("{")
    analysis = analyze_series(series, prompts=PROMPTS)
    assert analysis.table["verdict"].tolist() == ["ok", "ok", "ok"]
    for step in (1, 2):
        (series / f"step{step}" / "tokenizer.json").write_text("{")
    with pytest.raises(
        ConfigError, match=r"no readable tokenizer .*step0: no readable tokenizer \(.*--tokenizer"
    ):
        analyze_series(series, prompts=PROMPTS)


def test_end_of_text_beyond_the_vocabulary_is_the_models_own(make_series, tokenizer) -> None:
    series = make_series([0, 1, 2])
    other = copy.deepcopy(tokenizer)
    other.add_special_tokens({"eos_token": "<end>"})
    for step in (0, 1, 2):
        other.save_pretrained(series / f"step{step}")
    analysis = analyze_series(series, prompts=PROMPTS)
    assert any("ruled out: token 0." in sentence for sentence in analysis.summary)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "expected at least one, got none"),
        (["a", [1]], "expected strings only, or sequences of token ids only"),
        ([[1], "12"], "expected strings only, or sequences of token ids only"),
        ([1, 2], "expected strings only, or sequences of token ids only"),
    ],
)
def test_prompts_of_no_use_are_named(make_series, prompts, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        analyze_series(make_series([0]), prompts=prompts)


def test_prompts_may_be_a_path_or_a_tensor(make_series, tmp_path) -> None:
    series = make_series([0])
    (tmp_path / "prompts.txt").write_text("sun\nWhy ice?\n")
    from_file = analyze_series(series, prompts=tmp_path / "prompts.txt")
    assert [example.prompt for example in from_file.examples["step0"]] == ["sun", "Why ice?"]
    ids = analyze_series(series, prompts=torch.tensor([[1, 2], [3, 4]]), folder=tmp_path / "kept")
    assert [example.prompt for example in ids.examples["step0"]] == ["1 2", "3 4"]


def test_names_that_describe_no_step_are_said(make_series) -> None:
    series = make_series([0, 1, 2])
    (series / "step2-backup").mkdir()
    (series / ".cache").mkdir()
    analysis = analyze_series(series, identity_only=True)
    assert analysis.summary[-1] == "Not looked at, as their names describe no step: step2-backup."
