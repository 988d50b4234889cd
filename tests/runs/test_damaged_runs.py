"""Runs with something missing or damaged: what is there is never deleted, and a contradiction is one line."""

from __future__ import annotations

import errno
import io
import json
import re
import shutil
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mechplateau import files
from mechplateau.config import RunConfig
from mechplateau.errors import CheckpointError, ConfigError, RunError, UserError
from mechplateau.runs import load_checkpoint, load_run, writer
from mechplateau.runs.checkpoints import read_tensors, save_tensors
from mechplateau.runs.record import Record, Standing, standing
from mechplateau.training import RunInterrupted, train

CONFIG = RunConfig.for_task(
    "mws",
    task={"n": 4, "k": 2, "p": 7, "max_num": 6},
    model={"d_model": 8, "n_heads": 2},
    training={"steps": 6, "batch_size": 8, "lr": 1e-2},
    evaluation={"samples": 8},
    checkpoints={"every": 2},
)


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory):
    return train(CONFIG, runs_dir=tmp_path_factory.mktemp("runs")).path


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory):
    """Stopped at step 4, with checkpoints 0, 2 and 4."""

    class Stop:
        def on_step(self, reached, row):
            if reached == 4:
                signal.raise_signal(signal.SIGINT)

    runs_dir = tmp_path_factory.mktemp("runs")
    with pytest.raises(RunInterrupted):
        train(CONFIG, runs_dir=runs_dir, listeners=[Stop()])
    return runs_dir / CONFIG.run_name


@pytest.fixture(scope="module")
def finished_of_another(tmp_path_factory):
    return train(CONFIG.with_(seed=1), runs_dir=tmp_path_factory.mktemp("runs")).path


@pytest.fixture
def finished(finished_once, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(finished_once, tmp_path / finished_once.name)


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(stopped_once, tmp_path / stopped_once.name)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def refused_before_training(root: Path, message: str) -> None:
    """One line, and nothing in the folder is touched."""

    class NoStep:
        def on_step(self, step, row):
            raise AssertionError("it trained")

    (root / ".tmp-1-x").touch()  # not even what a kill left is tidied
    before = contents(root)
    with pytest.raises(UserError, match=message) as caught:
        train(CONFIG, runs_dir=root.parent, listeners=[NoStep()])
    assert "\n" not in str(caught.value)
    assert contents(root) == before


def rewritten(path: Path, **changes: object) -> None:
    """Save a file again with something else in its description."""
    tensors, description = read_tensors(path)
    save_tensors(path, tensors, {k: v for k, v in {**description, **changes}.items() if k != "format"})


ENDED = {"last": 6, "checkpoints": (0, 2, 4, 6), "reached": 6}
HALF = {"table_problem": "metrics.parquet is missing", "checkpoints": (0, 2, 4), "reached": 4}
NOTHING = {"table_problem": "metrics.parquet is missing"}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        # The table and the last checkpoint say that it is finished, whatever the state says.
        ({**ENDED, "state": "finished"}, Standing(finished=6)),
        ({**ENDED, "state": "running"}, Standing(finished=6)),
        ({**ENDED, "state": "running", "resume": 6}, Standing(finished=6)),
        ({**ENDED, "state": None}, Standing(finished=6)),
        ({**ENDED, "state": "archived"}, Standing(finished=6)),
        # Its last checkpoint is gone: finished where the state says so too.
        ({**ENDED, "checkpoints": (0, 2), "state": "finished"}, Standing(finished=6)),
        ({**ENDED, "checkpoints": (0, 2), "state": "running", "resume": 6}, Standing(resume=6)),
        (
            {**ENDED, "checkpoints": (0, 2), "state": None},
            r"step 6, .* \(the checkpoint of step 6 is missing\); put",
        ),
        # The table is gone or damaged.
        ({**HALF, "state": "finished"}, "says finished, but metrics.parquet is missing; put a copy back"),
        ({**HALF, "state": "finished", "resume": 4}, "says finished, but metrics.parquet is missing"),
        (
            {**HALF, "state": None},
            r"trained up to step 4, .* \(its resume folder is empty\); put a copy back",
        ),
        # On its way.
        ({**HALF, "state": "running", "resume": 4}, Standing(resume=4)),
        ({**HALF, "state": "interrupted", "resume": 2, "resume_problem": "x"}, Standing(resume=2)),
        ({**HALF, "state": None, "resume": 4}, Standing(resume=4)),
        ({**HALF, "state": "running", "resume_problem": "damaged"}, r"step 4, .* \(damaged\); put a copy"),
        ({**HALF, "state": "archived", "resume": 4}, "'archived', which this version .*; update mechplateau"),
        # Killed before anything but its beginning was saved.
        (NOTHING, Standing()),
        ({**NOTHING, "state": "running"}, Standing()),
        ({**NOTHING, "state": "running", "checkpoints": (0,)}, Standing()),
        ({**NOTHING, "state": "running", "checkpoints": (0,), "resume": 0}, Standing(resume=0)),
        ({**NOTHING, "state": "running", "checkpoints": (0,), "resume_problem": "damaged"}, Standing()),
    ],
)
def test_how_far_a_run_is(record, expected):
    found = standing(Record(**record))
    if isinstance(expected, Standing):
        assert found == expected
    else:
        assert found.problem is not None
        assert re.search(expected, found.problem)
        assert (found.finished, found.resume) == (None, None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("checkpoints/step_000000.safetensors", "belongs to another run"),
        ("checkpoints/step_000002.safetensors", "belongs to another run"),
        ("maps/step_000002.safetensors", "belongs to another run"),
    ],
)
def test_a_run_does_not_go_on_beside_files_of_another(stopped, finished_of_another, name, message):
    shutil.copy(finished_of_another / name, stopped / name)
    refused_before_training(stopped, rf"{name}: {message} than the config\.yaml beside it; put the right")


@pytest.mark.parametrize("kind", ["checkpoints", "maps"])
def test_a_run_does_not_go_on_beside_files_of_another_step(stopped, kind):
    shutil.copy(stopped / kind / "step_000000.safetensors", stopped / kind / "step_000002.safetensors")
    refused_before_training(stopped, f"{kind}/step_000002.safetensors: holds step 0, not the one of its name")


@pytest.mark.parametrize(
    "name",
    [
        "config.yaml",
        "environment.json",
        "state.json",
        "metrics.parquet",
        "metrics.part.jsonl",
        "checkpoints/step_000002.safetensors",
        "maps/step_000002.safetensors",
        "resume/step_000004.safetensors",
    ],
)
def test_a_folder_in_the_place_of_a_file_is_refused(stopped, name):
    (stopped / name).unlink(missing_ok=True)
    (stopped / name).mkdir()
    refused_before_training(stopped, f"{name}: is a folder, expected a file; move it away")


@pytest.mark.parametrize("name", ["checkpoints", "maps", "resume"])
def test_a_file_in_the_place_of_a_folder_is_refused(stopped, name):
    shutil.rmtree(stopped / name)
    (stopped / name).touch()
    refused_before_training(stopped, f"{name}: is no folder; move it away")


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


def test_rows_that_cannot_be_read_are_one_line(stopped):
    (stopped / "metrics.part.jsonl").unlink()
    (stopped / "metrics.part.jsonl").mkdir()
    with pytest.raises(RunError, match=r"metrics\.part\.jsonl: cannot be read \(Is a directory\)"):
        _ = load_run(stopped).metrics
    with pytest.raises(RunError, match=r"metrics\.part\.jsonl: is a folder, expected a file; move it away"):
        train(CONFIG, runs_dir=stopped.parent)


def test_a_table_of_another_length_is_no_end(finished):
    load_run(finished).metrics[:4].to_parquet(finished / "metrics.parquet")
    with pytest.raises(RunError, match=r"says finished, but metrics\.parquet ends at step 3 of 6"):
        train(CONFIG, runs_dir=finished.parent)
    with pytest.raises(RunError, match=r"metrics\.parquet: ends at step 3 of 6"):
        _ = load_run(finished).phases


def cut(root: Path) -> None:
    path = root / "resume" / "step_000004.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def without_a_tensor(root: Path) -> None:
    path = root / "resume" / "step_000004.safetensors"
    tensors, description = read_tensors(path)
    tensors.pop("optimizer.0.exp_avg")
    save_tensors(path, tensors, {name: value for name, value in description.items() if name != "format"})


def with_rows_of_another_run(root: Path) -> None:
    class Copy:
        def on_step(self, step, row):
            if step == 4:
                shutil.copy(next(root.parent.glob("other/*/metrics.part.jsonl")), root)

    train(CONFIG.with_(seed=1), runs_dir=root.parent / "other", listeners=[Copy()])


def with_a_changed_number(root: Path) -> None:
    path = root / "metrics.part.jsonl"
    first, _, others = path.read_text().partition("\n")
    row = json.loads(first)
    path.write_text(json.dumps({**row, "loss": row["loss"] + 1e-7}) + "\n" + others)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (cut, "damaged"),
        (without_a_tensor, "damaged (it lacks tensors)"),
        (lambda root: shutil.rmtree(root / "resume"), "its resume folder is empty"),
        (lambda root: rewritten(root / "resume/step_000004.safetensors", config_hash="0"), "another run"),
        (
            lambda root: (root / "resume/step_000004.safetensors").rename(
                root / "resume/step_000003.safetensors"
            ),
            "holds step 4, not the one of its name",
        ),
        (lambda root: (root / "metrics.part.jsonl").unlink(), "rows up to step 4 are missing"),
        (
            lambda root: (root / "metrics.part.jsonl").write_text('{"step": 0}\n'),
            "rows up to step 4 are missing",
        ),
        (with_rows_of_another_run, "rows up to step 4 are not those of this run, or were changed"),
        (with_a_changed_number, "rows up to step 4 are not those of this run, or were changed"),
    ],
)
@pytest.mark.parametrize("state", [True, False])
def test_nothing_kept_is_dropped_where_a_run_cannot_go_on(stopped, damage, why, state):
    damage(stopped)
    if not state:
        (stopped / "state.json").unlink()
    before = contents(stopped)
    with pytest.raises(RunError, match=r"trained up to step 4, but nothing is left to go on from") as caught:
        train(CONFIG, runs_dir=stopped.parent)
    assert why in str(caught.value)
    assert "put a copy back, or rename the run's folder" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(stopped) == before


def test_a_damaged_newest_save_falls_back_to_the_one_before_and_keeps_checkpoints(
    stopped, finished_once, caplog
):
    """Both are there where a kill came just after the newest was written."""

    class Saved:
        def on_step(self, step, row):
            if step == 2:
                shutil.copy(next(stopped.parent.glob("other/*/resume/*")), stopped / "resume")

    train(CONFIG, runs_dir=stopped.parent / "other", listeners=[Saved()])
    cut(stopped)
    seen = []

    class Watch:
        def on_step(self, step, row):
            seen.append((step, load_run(stopped).steps))

    run = train(CONFIG, runs_dir=stopped.parent, listeners=[Watch()])
    assert seen[0] == (3, (0, 2, 4))
    assert "step_000004.safetensors: damaged" in caplog.text
    assert "goes on from step 2 instead" in caplog.text
    for name, data in contents(finished_once).items():
        if name.endswith(".safetensors"):
            assert (run.path / name).read_bytes() == data


def test_a_step_of_another_state_is_not_gone_on_from(stopped):
    (stopped / "state.json").write_text('{"status": "archived", "step": 4}')
    before = contents(stopped)
    with pytest.raises(RunError, match=r"'archived', which this version does not know; update mechplateau"):
        train(CONFIG, runs_dir=stopped.parent)
    assert contents(stopped) == before


@pytest.mark.parametrize("which", ["finished", "stopped"])
def test_an_edited_configuration_is_not_passed_off_as_the_one_asked_for(which, request):
    root = request.getfixturevalue(which)
    text = (root / "config.yaml").read_text().replace("seed: 0", "seed: 5")
    (root / "config.yaml").write_text(text)
    before = contents(root)
    other = RunConfig.parse({**CONFIG.data(), "seed": 5}).run_name
    with pytest.raises(
        RunError, match=rf"config\.yaml: is of another run \({other}\) than the one asked for"
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


def test_a_renamed_folder_is_still_the_run(finished):
    run = load_run(finished.rename(finished.parent / "mine"))
    assert run.model("after") is not None
    assert run.weights(2)
    assert run.maps(2)


@pytest.mark.parametrize("kind", ["checkpoints", "maps"])
def test_swapped_files_are_refused(finished, kind):
    one, other = (finished / kind / f"step_00000{step}.safetensors" for step in (2, 4))
    one.rename(finished / "x")
    other.rename(one)
    (finished / "x").rename(other)
    run = load_run(finished)
    reads = [run.maps] if kind == "maps" else [run.model, run.weights]
    for read in reads:
        with pytest.raises(
            CheckpointError, match=r"step_000002\.safetensors: holds step 4, not the one of its name"
        ):
            read(2)


def test_files_of_another_run_are_refused(finished, finished_of_another):
    for kind in ("checkpoints", "maps"):
        name = f"{kind}/step_000002.safetensors"
        shutil.copy(finished_of_another / name, finished / name)
    run = load_run(finished)
    for read in (run.model, run.weights, run.maps):
        with pytest.raises(CheckpointError, match=r"belongs to another run than the config\.yaml beside it"):
            read(2)


def test_a_partial_copy_says_what_is_missing(finished, caplog):
    for step in (2, 6):
        (finished / f"checkpoints/step_00000{step}.safetensors").unlink()
    (finished / "maps/step_000004.safetensors").unlink()
    run = load_run(finished)
    assert "checkpoints are missing, of steps 2, 6" in caplog.text
    assert (run.steps, run.missing, run.missing_maps) == ((0, 4), (2, 6), (4,))
    assert repr(run).endswith("finished, 2 checkpoints, 2 missing)")
    with pytest.raises(
        CheckpointError, match=r"'after', of step 6, is missing; put a copy back; there are: 0, 4"
    ):
        run.model("after")
    with pytest.raises(CheckpointError, match=r"step_000002\.safetensors: missing; put a copy back"):
        run.model(2)
    with pytest.raises(RunError, match="no checkpoint at step 3; kept: 0, 4"):
        run.model(3)
    assert run.model("before") is not None
    (finished / "checkpoints/step_000000.safetensors").unlink()
    with pytest.raises(CheckpointError, match="'before', of step 0, is missing"):
        load_run(finished).model("before")


def test_a_copy_without_checkpoints_is_not_told_to_go_on(finished):
    shutil.rmtree(finished / "checkpoints")
    run = load_run(finished)
    assert run.missing == (0, 2, 4, 6)
    for ask in (lambda: run.phases, lambda: run.model("after")):
        with pytest.raises(CheckpointError, match=r"every checkpoint is missing; put copies back$"):
            ask()


def test_a_whole_run_misses_nothing(finished_once, stopped_once, caplog):
    for path in (finished_once, stopped_once):
        run = load_run(path)
        assert (run.missing, run.missing_maps) == ((), ())
    assert caplog.text == ""
    assert load_run(stopped_once).phases.after == 4


def test_a_run_that_was_opened_on_its_way_misses_nothing_later(tmp_path):
    opened = []

    class Open:
        def on_step(self, step, row):
            if step == 3:
                opened.append(load_run(tmp_path / CONFIG.run_name))
                assert opened[0].reached == 3

    train(CONFIG, runs_dir=tmp_path, listeners=[Open()])
    assert opened[0].status == "finished"
    assert (opened[0].missing, opened[0].phases.after) == ((), 6)


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
    train(CONFIG, runs_dir=finished.parent)
    after = contents(finished)
    assert json.loads(after["state.json"]) == {"status": "finished", "step": 6}
    assert after == before
