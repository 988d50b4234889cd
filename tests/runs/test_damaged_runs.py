"""Finished runs with something missing or damaged: nothing is deleted, and a contradiction is one line."""

from __future__ import annotations

import errno
import io
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mechplateau import files
from mechplateau.config import RunConfig
from mechplateau.errors import ConfigError, RunError
from mechplateau.runs import load_checkpoint, load_run, writer
from mechplateau.training import train

from .tiny import CONFIG, contents, rewritten


@pytest.mark.parametrize(
    "state", [None, "{", "[]", '{"status": "archived"}', '{"status": "running", "step": 0}']
)
def test_a_finished_run_is_one_whatever_becomes_of_its_state(finished, state):
    before = contents(finished)
    if state is None:
        (finished / "state.json").unlink()
    else:
        (finished / "state.json").write_text(state)
    assert load_run(finished).status == "finished"
    run = train(CONFIG, runs_dir=finished.parent)
    assert run.steps == (0, 2, 4, 6)
    after = contents(finished)
    if state is not None and "archived" in state:
        assert after.pop("state.json") == state.encode()
        before.pop("state.json")
    assert after == before  # a lost state is written again


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: p.unlink(), r"says finished, but metrics\.parquet is missing; put a copy back"),
        (
            lambda p: p.write_bytes(p.read_bytes()[:-9]),
            r"says finished, but metrics\.parquet: damaged \(.*back",
        ),
    ],
)
def test_a_finished_run_without_its_table_is_left_alone(finished, damage, message):
    damage(finished / "metrics.parquet")
    before = contents(finished)
    with pytest.raises(RunError, match=message) as caught:
        train(CONFIG, runs_dir=finished.parent)
    assert "\n" not in str(caught.value)
    assert contents(finished) == before
    with pytest.raises(RunError, match=r"metrics\.parquet"):
        load_run(finished).model("after")


def test_a_table_of_another_run_is_not_taken_for_this_ones(finished, finished_of_another):
    shutil.copy(finished_of_another / "metrics.parquet", finished)
    with pytest.raises(
        RunError, match=r"metrics\.parquet: belongs to another run than the config\.yaml beside it"
    ):
        _ = load_run(finished).metrics
    with pytest.raises(RunError, match=r"says finished, but metrics\.parquet: belongs to another run"):
        train(CONFIG, runs_dir=finished.parent)


def test_a_changed_number_in_a_table_is_found(finished):
    path = finished / "metrics.parquet"
    whole, data = pq.read_table(path), path.read_bytes()
    losses = pq.ParquetFile(path).metadata.row_group(0).column(whole.column_names.index("loss"))
    last = losses.dictionary_page_offset + losses.total_compressed_size

    def changed(place: int) -> bytes:
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    def gives_other_numbers(content: bytes) -> bool:
        try:
            return pq.read_table(io.BytesIO(content)) != whole
        except (OSError, pa.ArrowException):
            return False

    tables = map(changed, range(losses.dictionary_page_offset, last))
    path.write_bytes(next(filter(gives_other_numbers, tables)))
    with pytest.raises(RunError, match=r"metrics\.parquet: damaged \(.*put a copy back"):
        _ = load_run(finished).metrics


def test_a_table_of_another_length_is_no_end(finished):
    load_run(finished).metrics[:4].to_parquet(finished / "metrics.parquet")
    with pytest.raises(RunError, match=r"says finished, but metrics\.parquet ends at step 3 of 6"):
        train(CONFIG, runs_dir=finished.parent)
    with pytest.raises(RunError, match=r"metrics\.parquet: ends at step 3 of 6"):
        _ = load_run(finished).phases


@pytest.mark.parametrize("which", ["finished", "stopped"])
def test_an_edited_configuration_is_not_passed_off_as_the_one_asked_for(which, request):
    root = request.getfixturevalue(which)
    text = (root / "config.yaml").read_text().replace("seed: 0", "seed: 5")
    (root / "config.yaml").write_text(text)
    before = contents(root)
    other = RunConfig.parse({**CONFIG.data(), "seed": 5}).run_name
    with pytest.raises(
        RunError, match=rf"config\.yaml: is of another run \({other}\) than the one requested"
    ) as caught:
        train(CONFIG, runs_dir=root.parent)
    assert "put its own back, or rename the folder" in str(caught.value)
    assert contents(root) == before
    with pytest.raises(
        RunError,
        match=rf"config\.yaml: is of another run \({other}\) than the checkpoints beside it \({root.name}\)",
    ):
        load_run(root)


def test_a_lost_configuration_is_written_again(finished):
    text = (finished / "config.yaml").read_text()
    (finished / "config.yaml").unlink()
    assert train(CONFIG, runs_dir=finished.parent).steps == (0, 2, 4, 6)
    assert (finished / "config.yaml").read_text() == text


def test_a_key_of_a_newer_version_names_the_file_and_says_update(finished):
    path = finished / "config.yaml"
    path.write_text(path.read_text().replace("seed: 0", "seed: 0\nnovelty: 1"))
    with pytest.raises(
        ConfigError, match=r"config\.yaml: novelty: unknown field; .*update mechplateau"
    ) as caught:
        load_run(finished)
    assert str(caught.value).startswith(str(path))
    checkpoint = finished / "checkpoints/step_000002.safetensors"
    rewritten(checkpoint, config={**CONFIG.data(), "novelty": 1})
    with pytest.raises(
        ConfigError, match=r"step_000002\.safetensors: novelty: unknown field; .*update mechplateau"
    ):
        load_checkpoint(checkpoint)


def test_a_finished_run_is_not_written_to(finished, monkeypatch):
    """It may lie where nothing can be written; not even a lock is taken."""

    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(writer, "write_text", refuse)
    monkeypatch.setattr(writer.RunWriter, "_take_lock", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert train(CONFIG, runs_dir=finished.parent).steps == (0, 2, 4, 6)


@pytest.mark.parametrize("name", ["ENOLCK", "ENOTSUP", "EOPNOTSUPP", "ENOSYS"])
def test_a_file_system_without_locks_is_said_once(tmp_path, monkeypatch, caplog, name):
    def refuse(*_):
        raise OSError(getattr(errno, name), name)

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    monkeypatch.setattr(writer, "LOCK_PATIENCE", 0.0)
    with writer.RunWriter(CONFIG, tmp_path) as opened:
        assert not opened.finished
    assert caplog.text.count("this file system has no locks") == 1


def test_what_a_kill_at_the_end_left_is_tidied(finished):
    before = contents(finished)
    (finished / "state.json").write_text('{"status": "running", "step": 4}')
    (finished / "resume").mkdir()
    shutil.copy(finished / "checkpoints/step_000006.safetensors", finished / "resume")
    (finished / "metrics.part.jsonl").write_text('{"step": 0}\n')
    (finished / "maps/.tmp-1-x").write_text("half")
    (finished / "resume/.tmp7fbEw0").write_text("half")  # safetensors' own
    train(CONFIG, runs_dir=finished.parent)
    after = contents(finished)
    assert json.loads(after["state.json"]) == {"status": "finished", "step": 6}
    assert after == before
