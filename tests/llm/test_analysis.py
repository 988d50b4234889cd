from __future__ import annotations

import copy
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from mechplateau.errors import CheckpointError, ConfigError, RunError
from mechplateau.llm import SeriesConfig, analysis_folder, analyze_series
from mechplateau.llm import generation as generation_module
from mechplateau.llm.analysis import SeriesAnalysis
from mechplateau.llm.sources import FolderSource

PROMPTS = ["Why ice?", "What do plants need", "sun", "Which planet is closest to the sun?", "food food water"]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry a model that was run."""
    from mechplateau.llm import loading

    ran: list[int] = []
    original = loading.load_model

    def counted(*args, **kwargs):
        ran.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(loading, "load_model", counted)
    return ran


def column(analysis: SeriesAnalysis, name: str) -> dict[int, object]:
    rows = analysis.table[analysis.table["step"].notna()]
    return dict(zip(rows["step"].astype(int), rows[name], strict=True))


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


def test_missing_and_broken_checkpoints_are_named_and_the_run_goes_on(make_series, tmp_path) -> None:
    series = make_series([0, 1, 2, 4, 8, 16, 32])
    (series / "step1" / "model.safetensors").unlink()
    (series / "step2" / "model.safetensors").write_bytes(b"no")
    (series / "step4" / "config.json").unlink()
    path = series / "step8" / "model.safetensors"
    state = load_file(path)
    state["gpt_neox.final_layer_norm.weight"][0] = torch.nan
    save_file(state, path, {"format": "pt"})
    path = series / "step16" / "model.safetensors"
    state = load_file(path)
    del state["gpt_neox.final_layer_norm.bias"]
    save_file(state, path, {"format": "pt"})
    analysis = analyze_series(series, prompts=PROMPTS, steps="0-32,5")
    assert column(analysis, "verdict") == {
        0: "ok",
        **dict.fromkeys([1, 2, 4, 8, 16], "broken"),
        5: "missing",
        32: "ok",
    }
    notes = {step: str(note) for step, note in column(analysis, "note").items()}
    assert "no weights" in notes[1]
    assert "not a readable safetensors file" in notes[2]
    assert "no config.json" in notes[4]
    assert "infinite or NaN weights in gpt_neox.final_layer_norm.weight" in notes[8]
    assert "missing gpt_neox.final_layer_norm.bias" in notes[16]
    assert notes[5] == "step 5: asked for, but there is no such revision"
    assert not any(column(analysis, "joined").values())
    for folder in series.iterdir():
        shutil.rmtree(folder)
        folder.mkdir()
    with pytest.raises(CheckpointError, match=r"none of 7 checkpoints can be read; .*no weights"):
        analyze_series(series, prompts=[[1, 2]])


@pytest.mark.parametrize("key", ["extra.weight", "gpt_neox.layers.0.attention.dense.weight"])
def test_tensors_that_do_not_fit_break_a_checkpoint(make_series, key: str) -> None:
    series = make_series([0, 1, 2])
    path = series / "step1" / "model.safetensors"
    save_file({**load_file(path), key: torch.ones(3, 3)}, path, {"format": "pt"})
    analysis = analyze_series(series, prompts=PROMPTS)
    assert column(analysis, "verdict") == {0: "ok", 1: "broken", 2: "ok"}
    assert "do not fit GPTNeoXForCausalLM" in str(column(analysis, "note")[1])


def test_code_of_a_checkpoint_is_never_run(make_series, tmp_path) -> None:
    series = make_series([0, 1, 2])
    sentinel = tmp_path / "sentinel"
    code = f"open({str(sentinel)!r}, 'w').close()\nfrom transformers import GPTNeoXConfig as C\n"
    (series / "step1" / "custom.py").write_text(code)
    path = series / "step1" / "config.json"
    auto_map = {"AutoConfig": "custom.C", "AutoModelForCausalLM": "custom.M"}
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "model_type": "custom", "auto_map": auto_map})
    )
    # A malicious pickle beside sound checkpoints: refused and named, the others measured.
    (series / "step2" / "model.safetensors").unlink()
    torch.save({"w": _Touch(sentinel)}, series / "step2" / "pytorch_model.bin")
    analysis = analyze_series(series, prompts=PROMPTS)
    assert column(analysis, "verdict") == {0: "ok", 1: "broken", 2: "broken"}
    assert "pytorch_model.bin: refused" in str(column(analysis, "note")[2])
    assert not sentinel.exists()


class _Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_finished_steps_are_kept(make_series, tmp_path, loads) -> None:
    series, folder = make_series([0, 1, 2, 4]), tmp_path / "out"
    first = analyze_series(series, prompts=PROMPTS, folder=folder)
    assert len(loads) == 4
    again = analyze_series(series, prompts=PROMPTS, folder=folder)
    assert len(loads) == 4
    pd.testing.assert_frame_equal(again.table, first.table)
    assert again.examples == first.examples
    pd.testing.assert_frame_equal(pd.read_parquet(folder / "series.parquet"), first.table, check_dtype=False)
    # Another batch size gives the same numbers, so it may go on; other prompts may not.
    analyze_series(series, SeriesConfig(batch_size=2), prompts=PROMPTS, folder=folder)
    assert len(loads) == 4
    with pytest.raises(RunError, match="holds an analysis with other settings"):
        analyze_series(series, prompts=PROMPTS[:2], folder=folder)


def test_another_tokenizer_means_other_measurements(make_series, tmp_path, loads, tokenizer) -> None:
    series, folder = make_series([0, 1]), tmp_path / "out"
    first = analyze_series(series, prompts=PROMPTS, folder=folder)
    other = json.loads(tokenizer.backend_tokenizer.to_str())
    other["model"]["merges"] = []
    type(tokenizer)(
        tokenizer_object=Tokenizer.from_str(json.dumps(other)), eos_token=tokenizer.eos_token
    ).save_pretrained(tmp_path / "other")
    again = analyze_series(series, prompts=PROMPTS, folder=folder, tokenizer=tmp_path / "other")
    assert len(loads) == 4
    assert again.table["loss"].tolist() != first.table["loss"].tolist()
    # Identities do not depend on it.
    analyze_series(series, prompts=PROMPTS, folder=folder, identity_only=True)
    assert len(loads) == 4


@pytest.mark.parametrize(
    "change",
    [{"num_attention_heads": 0}, {"num_hidden_layers": "two"}, {"vocab_size": -1}, {"model_type": "?"}],
)
def test_a_configuration_that_makes_no_model_breaks_one_checkpoint(make_series, change) -> None:
    series = make_series([0, 1, 2])
    path = series / "step1" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert column(analyze_series(series, prompts=PROMPTS), "verdict") == {0: "ok", 1: "broken", 2: "ok"}


def test_a_checkpoint_that_changed_is_measured_anew(
    make_series, tmp_path, loads, save_checkpoint, weights
) -> None:
    series, folder = make_series([0, 1, 2]), tmp_path / "out"
    before = analyze_series(series, prompts=PROMPTS, folder=folder)
    save_checkpoint(series / "step1", weights(0.15))
    after = analyze_series(series, prompts=PROMPTS, folder=folder)
    assert len(loads) == 4
    assert column(after, "hash")[1] != column(before, "hash")[1]
    assert column(after, "hash")[2] == column(before, "hash")[2]


_KILLED = """
import os, signal, sys
from mechplateau.llm import analyze_series

def die(done, total, label):
    if done == 3:
        os.kill(os.getpid(), signal.SIGKILL)

analyze_series(sys.argv[1], prompts=sys.argv[3:], folder=sys.argv[2], progress=die)
"""


def test_killed_it_goes_on_with_the_next_step(make_series, tmp_path, loads) -> None:
    series, folder = make_series([0, 1, 2, 4, 8]), tmp_path / "out"
    whole = analyze_series(series, prompts=PROMPTS)
    child = subprocess.run(
        [sys.executable, "-c", _KILLED, str(series), str(folder), *PROMPTS], capture_output=True
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert len(list((folder / "steps").iterdir())) == 3
    # What a kill in the middle of a write leaves behind is no step.
    (folder / "steps" / ".tmp-1-step4.safetensors").write_bytes(b"half")
    loads.clear()
    resumed = analyze_series(series, prompts=PROMPTS, folder=folder)
    assert len(loads) == 2
    pd.testing.assert_frame_equal(resumed.table, whole.table)


def test_memory_does_not_grow_with_the_series(tmp_path, tokenizer) -> None:
    """20 checkpoints of 13 MB: were they kept, memory would grow by a quarter of a gigabyte."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

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

    def note(done: int, total: int, label: str) -> None:
        pages = Path("/proc/self/statm").read_text().split()[1]
        resident.append(int(pages) * os.sysconf("SC_PAGE_SIZE"))

    analyze_series(tmp_path, prompts=PROMPTS, progress=note)
    assert len(resident) == 21
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
    with pytest.raises(CheckpointError, match="expected folders named by their steps"):
        analyze_series(tmp_path / "empty")
    with pytest.raises(ConfigError, match="expected a folder of checkpoint folders, a repository"):
        analyze_series(tmp_path / "nowhere" / "at" / "all")
    with pytest.raises(
        ConfigError, match=r"steps: none of those asked for is there; .* has 2 from step 0 to step 1"
    ):
        analyze_series(tmp_path / "series", steps="7")


def test_devices_that_are_not_there_are_named(make_series) -> None:
    for device in ("cuda:77", "toaster"):
        with pytest.raises(ConfigError, match=f"device: '{device}' cannot be used here"):
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


def test_links_that_lead_nowhere_and_files_without_access_break_one_checkpoint(
    make_series, monkeypatch
) -> None:
    series = make_series([0, 1, 2, 4])
    shutil.rmtree(series / "step1")
    (series / "step1").symlink_to(series / "gone")
    original = Path.is_file

    def is_file(path: Path) -> bool:
        if path.parent.name == "step2":
            raise PermissionError(13, "Permission denied", str(path))
        return original(path)

    monkeypatch.setattr(Path, "is_file", is_file)
    analysis = analyze_series(series, prompts=PROMPTS)
    assert analysis.table["verdict"].tolist() == ["ok", "broken", "broken", "ok"]
    assert "Permission denied" in analysis.table["note"][2]


def test_a_checkpoint_of_another_size_is_not_joined(make_series, save_checkpoint, neox_config) -> None:
    series = make_series([0, 1, 2, 4, 8])
    wide = GPTNeoXConfig(**{**neox_config.to_dict(), "hidden_size": 24})
    GPTNeoXForCausalLM(wide).save_pretrained(series / "step2")
    analysis = analyze_series(series, prompts=PROMPTS)
    assert column(analysis, "verdict") == {0: "ok", 1: "ok", 2: "other_model", 4: "ok", 8: "ok"}
    assert list(column(analysis, "joined").values()) == [False, True, False, False, True]
    assert analysis.table["cos_final"].notna().all()


def test_states_that_overflow_leave_no_numbers_and_no_completions(make_series) -> None:
    series = make_series([0, 1, 2])
    weights = load_file(series / "step1" / "model.safetensors")
    for name, tensor in weights.items():
        if name.endswith("mlp.dense_4h_to_h.weight"):
            tensor *= 1e5
    save_file(weights, series / "step1" / "model.safetensors", metadata={"format": "pt"})
    analysis = analyze_series(series, SeriesConfig(dtype="float16"), prompts=PROMPTS)
    row = analysis.table.iloc[1]
    assert row[["loss", "repetition", "entropy", "cos_final"]].isna().all()
    assert "its hidden states are not finite in the type it was run in" in row["note"]
    assert set(analysis.examples) == {"step0", "step2"}


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
