"""What is wrong with a checkpoint is named and stays with it; the rest of the series is measured."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from mechplateau.errors import CheckpointError
from mechplateau.llm import SeriesConfig, analyze_series

from .conftest import PROMPTS, column


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
    assert "not a safetensors file" in notes[2]
    assert "no config.json" in notes[4]
    assert "infinite or NaN weights in gpt_neox.final_layer_norm.weight" in notes[8]
    assert "missing gpt_neox.final_layer_norm.bias" in notes[16]
    assert notes[5] == "step 5: requested, but there is no such revision"
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


@pytest.mark.parametrize(
    "change",
    [{"num_attention_heads": 0}, {"num_hidden_layers": "two"}, {"vocab_size": -1}, {"model_type": "?"}],
)
def test_a_configuration_that_makes_no_model_breaks_one_checkpoint(make_series, change) -> None:
    series = make_series([0, 1, 2])
    path = series / "step1" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert column(analyze_series(series, prompts=PROMPTS), "verdict") == {0: "ok", 1: "broken", 2: "ok"}


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


def test_states_that_overflow_leave_no_numbers_and_no_tokens(make_series) -> None:
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
    assert {example.tokens for example in analysis.examples["step1"]} == {(None,) * 8}
    assert all(None not in example.tokens for example in analysis.examples["step2"])


def test_a_file_in_the_place_of_a_checkpoint_is_named(make_series) -> None:
    series = make_series([0, 1, 2])
    shutil.rmtree(series / "step1")
    (series / "step1").write_text("x")
    (series / "notes.txt").write_text("x")
    analysis = analyze_series(series, prompts=[[1, 2]])
    assert column(analysis, "verdict") == {0: "ok", 1: "broken", 2: "ok"}
    assert str(column(analysis, "note")[1]).endswith("step1: cannot be read (Not a directory)")
    assert not any("notes.txt" in sentence for sentence in analysis.summary)


def test_files_without_access_are_named_as_that(make_series, monkeypatch) -> None:
    """The weights of step 1, the tokenizer of step 2, the folder of step 4."""
    series = make_series([0, 1, 2, 4, 8])
    denied = [series / "step1" / "model.safetensors", series / "step2" / "tokenizer.json", series / "step4"]
    for method in ("open", "read_bytes", "iterdir"):
        monkeypatch.setattr(Path, method, _guarded(getattr(Path, method), denied))
    analysis = analyze_series(series, prompts=PROMPTS)
    assert column(analysis, "verdict") == {0: "ok", 1: "broken", 2: "ok", 4: "broken", 8: "ok"}
    notes = {step: str(note) for step, note in column(analysis, "note").items()}
    assert notes[1] == f"{denied[0]}: cannot be read (Permission denied)"
    assert notes[2].endswith("step2: no readable tokenizer (Permission denied); that of step0 is used")
    assert notes[4] == f"{denied[2]}: cannot be read (Permission denied)"


def _guarded(method, denied: list[Path]):
    def guarded(path: Path, *args, **kwargs):
        if path in denied:
            raise PermissionError(13, "Permission denied", str(path))
        return method(path, *args, **kwargs)

    return guarded


def test_a_diverged_checkpoint_flags_no_neighbor(make_series) -> None:
    series = make_series([0, 1, 2, 4, 8])
    weights = load_file(series / "step2" / "model.safetensors")
    save_file(
        {name: tensor * 1e30 for name, tensor in weights.items()},
        series / "step2" / "model.safetensors",
        metadata={"format": "pt"},
    )
    analysis = analyze_series(series, prompts=[[1, 2]], identity_only=True)
    assert column(analysis, "verdict") == {0: "ok", 1: "ok", 2: "jump", 4: "ok", 8: "ok"}
    assert "nan" not in " ".join(analysis.table["note"])
