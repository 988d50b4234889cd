"""An analysis goes on where it stopped, and measures anew what has changed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from mechplateau.errors import ConfigError, RunError, UserError
from mechplateau.llm import SeriesConfig, analyze_series
from mechplateau.training.executor import JobResult

from .conftest import PROMPTS, column


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

class Dying:
    done = 0
    def __init__(self, **given): pass
    def update(self, n): self.done += n
    def set_postfix_str(self, label):
        if self.done == 3:
            os.kill(os.getpid(), signal.SIGKILL)

analyze_series(sys.argv[1], prompts=sys.argv[3:], folder=sys.argv[2], progress=Dying)
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


def test_a_name_of_full_length_has_room_for_its_record(make_series, tmp_path, loads) -> None:
    series = make_series([0, 1])
    long = "step" + "0" * 250 + "1"
    (series / "step1").rename(series / long)
    for _ in range(2):
        analysis = analyze_series(series, prompts=[[1, 2]], folder=tmp_path / "out")
        assert analysis.table["label"].tolist() == ["step0", long]
        assert analysis.table["verdict"].tolist() == ["ok", "ok"]
        assert len(loads) == 2


def test_records_of_an_older_kind_are_measured_anew(make_series, tmp_path, loads) -> None:
    """Their hashes left out GPT-2's biases: beside new ones, nothing would fit."""
    series, folder = make_series([0, 1]), tmp_path / "out"
    first = analyze_series(series, prompts=PROMPTS, folder=folder)
    rewrite(
        folder / "steps" / "step0.safetensors",
        lambda data: {name: value for name, value in data.items() if name != "format"},
    )
    again = analyze_series(series, prompts=PROMPTS, folder=folder)
    assert len(loads) == 3
    pd.testing.assert_frame_equal(again.table, first.table)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: [], r"damaged \(AttributeError"),
        (lambda data: {k: v for k, v in data.items() if k != "measures"}, r"damaged \(KeyError: 'measures'"),
        (lambda data: {**data, "measures": {}}, r"damaged \(ValueError: measures are missing"),
        (lambda data: {**data, "tensors": {}}, "damaged .*its tensors are not those of its header"),
        (lambda data: {**data, "format": 99}, "written by a newer mechplateau; update this one"),
    ],
)
def test_a_record_that_is_not_one_is_named(make_series, tmp_path, loads, change, message: str) -> None:
    series, folder = make_series([0]), tmp_path / "out"
    analyze_series(series, prompts=[[1, 2]], folder=folder)
    rewrite(folder / "steps" / "step0.safetensors", change)
    with pytest.raises(RunError, match=rf"step0\.safetensors: {message}"):
        analyze_series(series, prompts=[[1, 2]], folder=folder)
    assert len(loads) == 1


def rewrite(path, change) -> None:
    """Give a step's record another header."""
    with safe_open(path, "pt") as file:
        data = json.loads(file.metadata()["mechplateau"])
    save_file(load_file(path), path, {"mechplateau": json.dumps(change(data))})


def test_a_record_without_access_is_not_called_damaged(make_series, tmp_path, monkeypatch) -> None:
    """Nor is the checkpoint, which is healthy."""
    series, folder = make_series([0]), tmp_path / "out"
    analyze_series(series, prompts=[[1, 2]], folder=folder)
    original = Path.open

    def guarded(path: Path, *args, **kwargs):
        if path.parent == folder / "steps":
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", guarded)
    with pytest.raises(RunError, match=r"step0\.safetensors: cannot be read \(Permission denied\)"):
        analyze_series(series, prompts=[[1, 2]], folder=folder)


def test_settings_that_are_no_text_are_other_settings(make_series, tmp_path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "settings.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(RunError, match="holds an analysis with other settings"):
        analyze_series(make_series([0]), prompts=[[1, 2]], folder=folder)


def test_in_processes_of_their_own_the_numbers_are_the_same(make_series, tmp_path: Path, monkeypatch) -> None:
    """Of a damaged checkpoint too; and they are found again."""
    series = make_series([0, 1])
    (series / "step0" / "model.safetensors").write_bytes(b"damaged")
    arguments = {"config": SeriesConfig(n_tokens=3), "prompts": PROMPTS}
    here = analyze_series(series, **arguments)
    there = analyze_series(series, **arguments, folder=tmp_path / "kept", jobs=2)
    pd.testing.assert_frame_equal(there.table, here.table)
    assert (there.summary, there.examples) == (here.summary, here.examples)
    assert not list((tmp_path / "kept").glob("**/.*"))
    monkeypatch.setattr("mechplateau.llm.loading.load_model", None)
    again = analyze_series(series, **arguments, folder=tmp_path / "kept")
    pd.testing.assert_frame_equal(again.table, here.table)
    with pytest.raises(ConfigError, match="folder: expected one, in which other processes"):
        analyze_series(series, **arguments, jobs=2)


def test_a_device_that_only_the_nodes_have_is_theirs(make_series, tmp_path: Path) -> None:
    class Cluster:
        def do(self, jobs, **options):
            return [JobResult(job, "failed", f"on {job.arguments['config']['device']}") for job in jobs]

    arguments = {"config": SeriesConfig(device="cuda:7"), "prompts": PROMPTS, "folder": tmp_path / "kept"}
    with pytest.raises(UserError, match=r"^step0: on cuda:7; rerun the same command to resume"):
        analyze_series(make_series([0]), **arguments, executor=Cluster())
    with pytest.raises(UserError, match="device: "):
        analyze_series(tmp_path / "series", **arguments)
