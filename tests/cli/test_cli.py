"""The command line: what it prints, what it refuses and how, interruption, sweeps, trackers."""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import mechplateau
from mechplateau import cli
from mechplateau.config import RunConfig
from mechplateau.errors import ConfigError
from mechplateau.runs import list_runs, load_run
from mechplateau.runs.checkpoints import read_tensors
from mechplateau.training import trackers
from mechplateau.training.sweep import expand

TINY = [
    "--set", "task.n=4", "--set", "task.p=7", "--set", "task.max_num=6", "--set", "model.d_model=8",
    "--set", "training.batch_size=8", "--set", "evaluation.samples=8",
]  # fmt: skip


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mechplateau", *arguments]


def test_help_needs_no_heavy_import():
    script = (
        "import sys; sys.argv = ['mechplateau', '--help']\n"
        "from mechplateau.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'transformer_lens', 'pandas', 'numpy', 'pydantic', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("train", "config", "show", "report", "list", "sweep", "demo"):
        assert f"  {name} " in done.stdout


def test_a_preset_is_overridden_and_needs_a_task(run_cli, tmp_path):
    code, out, _ = run_cli(
        "config", "mws", "--preset", "small", "--set", "task.n=6", "--set", "training.lr=1"
    )
    data = yaml.safe_load(out)
    assert code == 0
    assert (data["task"]["n"], data["task"]["p"], data["training"]["lr"]) == (6, 11, 1.0)
    assert (data["training"]["batch_size"], data["evaluation"]["every"]) == (64, 5)
    (tmp_path / "mine.yaml").write_text("task: mws")
    for arguments, message in (
        (("train", "mws", "--preset", "big"), "preset: mws has none called 'big'; known: small;"),
        (("sweep", "mws", "--preset", "big"), "preset: mws has none called 'big'; known: small;"),
        (
            ("config", "mine.yaml", "--preset", "small"),
            "--preset small: expected a task's name beside it, got the",
        ),
    ):
        code, out, err = run_cli(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith(f"mechplateau: {message}")
        assert len(err.splitlines()) == 1


def test_a_run_is_stopped_and_goes_on(run_cli):
    arguments = ["train", "mws", *TINY, "--set", "training.steps=6", "--set"]
    code, out, _ = run_cli(*arguments, "training.stop_at=4")
    assert code == 0
    assert "(stopped at 4 of 6)" in out
    code, out, err = run_cli(*arguments, "training.stop_at=3")
    assert (code, out) == (2, "")
    assert err.startswith("mechplateau: runs/mws-")
    assert err.endswith(
        ": the run has reached step 4: expected training.stop_at of at least 4 or null, got 3\n"
    )
    code, out, _ = run_cli(*arguments, "training.stop_at=null")
    assert code == 0
    assert "(finished)" in out


def test_a_sweep_of_a_preset(run_cli, monkeypatch):
    from mechplateau.training import sweep

    told = []
    monkeypatch.setattr(sweep, "sweep", lambda configs, **_: told.extend(configs) or [])
    code, _, _ = run_cli("sweep", "copy", "--preset", "small", "--set", "task.n=3,4", "--seeds", "2")
    assert code == 0
    assert [(config.task.n, config.seed, config.model.d_model) for config in told] == [
        (n, seed, 64) for n in (3, 4) for seed in (0, 1)
    ]


def test_config_prints_a_file_that_trains_the_same_run(run_cli, tmp_path):
    code, out, _ = run_cli("config", "mws", *TINY, "--set", "training.steps=5", "--seed", "3")
    assert code == 0
    config = RunConfig.parse(yaml.safe_load(out))
    assert (config.training.steps, config.seed, config.task.k) == (5, 3, 2)
    Path("mine.yaml").write_text(out)
    code, out, _ = run_cli("train", "mine.yaml", "--quiet")
    assert code == 0
    assert Path(out.strip()) == Path("runs") / config.run_name
    code, out, _ = run_cli("train", "mine.yaml", "--set", "task.k=3", "--seed", "4", "--quiet")
    assert load_run(out.strip()).task.k == 3


def test_train_show_list_report(run_cli):
    code, out, err = run_cli("train", "mws", *TINY, "--set", "training.steps=8")
    assert code == 0
    assert "Step of the drop" in out
    assert "step 8/8" in err  # no terminal: plain lines
    (run,) = list_runs("runs")
    code, out, _ = run_cli("show", run.name[:8])
    assert code == 0
    assert "(finished)" in out
    assert re.search(r"Solved \(accuracy ≥ 0\.95\) +no, up to step 8 ", out)
    code, out, _ = run_cli("list")
    assert "8/8" in out
    code, out, _ = run_cli("report", run.name)
    report = Path(out.strip())
    assert report == Path("runs") / run.name / "report.html"
    assert report.read_text().lstrip().lower().startswith("<!doctype html>")
    code, out, _ = run_cli("report", str(run.path), "-o", "elsewhere.html")
    assert Path("elsewhere.html").is_file()
    code, out, _ = run_cli("report", run.name, "-o", "/dev/stdout")
    assert (code, out) == (0, Path("elsewhere.html").read_text())  # the page and nothing else
    assert run_cli("report", run.name, "-o", "-") == (0, out, "")
    assert run_cli("report", run.name, "-o", "./-")[0] == 0
    Path("-").unlink()  # a file of this name where it is asked for, and only there
    assert run_cli("report", run.name, "-o", "new/") == (
        *(2, ""),
        "mechplateau: new/: is a folder; expected the name of a file\n",
    )
    assert not Path("new").exists()
    damaged = run.path / "checkpoints" / "step_000004.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:200])
    Path("elsewhere.html").unlink()
    code, out, err = run_cli("report", run.name, "-o", "elsewhere.html")
    assert (code, out) == (2, "")
    assert "step_000004.safetensors: damaged" in err
    assert err.count("\n") == 1
    assert not Path("elsewhere.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "mwss"], "task.name: unknown task 'mwss'; known: "),
        (["train", "none.yaml"], "none.yaml: cannot be read (No such file or directory)"),
        (
            ["train", "mws", "--set", "training.stepz=3"],
            "training.stepz: unknown field; allowed here: steps,",
        ),
        (
            ["train", "mws", "--set", "task.k=99"],
            "task.k: expected a window of at most n = 16 inputs, got 99",
        ),
        (["train", "mws", "--set", "task.p=5"], "task.p: expected a modulus above"),
        (["train", "mws", "--set", "training.lr=-1"], "training.lr: input should be greater than 0, got -1"),
        (
            ["train", "mws", "--set", "training.steps=0"],
            "training.steps: input should be greater than or equal to 1",
        ),
        (["train", "mws", "--set", "training.steps"], "--set training.steps: expected field=value"),
        (["train", "mws", "--device", "tpu"], "device: expected cpu, cuda or cuda:N, got 'tpu'"),
        (
            ["train", "mws", "--tracker", "mlflow"],
            "tracker: expected one of wandb, tensorboard, got 'mlflow'",
        ),
        (["train", "mws", "--threads", "0"], "threads: expected 1 to 1024, got 0"),
        (["train", "mws", "--seed", "-1"], "seed: input should be greater than or equal to 0, got -1"),
        (["train", "mws", "--runs-dir", ""], "expected a path, got ''"),
        (["report", "x", "-o", ""], "expected a path, got ''"),
        (["claims", "--runs-dir", ""], "expected a path, got ''"),
        (["figure", "2", "--out", ""], "expected a path, got ''"),
        (["train", "mws", "--set", "k=3"], "k: unknown field; allowed here: task, model,"),
        (["train", "mws", "--set", "model.d_model=65536", "--set", "model.n_layers=50"], "model: "),
        (["show", "nothing"], "nothing: no such run in runs"),
        (["report", "nothing"], "nothing: no such run in runs"),
        (["sweep", "mws", "--seeds", "0"], "--seeds: expected at least 1, got 0"),
        (["sweep", "mws", "--jobs", "0"], "--jobs: expected at least 1, got 0"),
        (
            ["sweep", "mws", "--set", "task.k=2,99"],
            "task.k: expected a window of at most n = 16 inputs, got 99",
        ),
        (
            ["config", "mws", "--set", "model.attention=relu"],
            "model.attention: input should be 'linear' or 'softmax'",
        ),
    ],
)
def test_a_mistake_is_one_line_exit_code_2_and_nothing_left(run_cli, tmp_path, arguments, message):
    code, out, err = run_cli(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith(f"mechplateau: {message}")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["train", "sweep"])
def test_a_tracker_that_is_not_installed_is_refused_before_training(run_cli, tmp_path, monkeypatch, command):
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    code, out, err = run_cli(command, "mws", "--tracker", "tensorboard")
    assert (code, out) == (2, "")
    assert (
        err == "mechplateau: tracker: tensorboard is not installed; pip install 'mechplateau[tensorboard]'\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_tilde_is_the_home_folder_for_every_command(run_cli, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    code, out, _ = run_cli(
        "train", "mws", *TINY, "--set", "training.steps=2", "--quiet", "--runs-dir", "~/a:b"
    )
    assert code == 0
    (run,) = list_runs(tmp_path / "home" / "a:b")
    assert Path(out.strip()) == run.path
    assert run.name in run_cli("list", "--runs-dir", "~/a:b")[1]
    assert "(finished)" in run_cli("show", f"~/a:b/{run.name}")[1]
    code, out, _ = run_cli("report", run.name, "--runs-dir", "~/a:b", "-o", "~/x.html")
    assert Path(out.strip()) == tmp_path / "home" / "x.html"
    assert (tmp_path / "home" / "x.html").is_file()
    assert not (tmp_path / "~").exists()


def test_ctrl_c_while_libraries_are_loaded_is_one_line(tmp_path):
    """Some of them swallow KeyboardInterrupt, or die of it with words of their own."""
    (tmp_path / "pydantic.py").write_text(
        "import os, signal\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    for _ in range(1000): pass\n"
        "except BaseException:\n    pass\n"
        "raise SystemError('a library of its own mind')\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        command("config", "mws"),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "mechplateau: interrupted\n")


def test_ctrl_c_anywhere_else_is_one_line(run_cli, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.runs, "_data", stopped)
    code, _, err = run_cli("config", "mws")
    assert (code, err) == (130, "mechplateau: interrupted\n")


def test_long_names_and_full_devices_are_one_line(run_cli):
    for name in ("train", "config", "show"):
        code, out, err = run_cli(name, "x" * 5000)
        assert (code, out, err.count("\n")) == (2, "", 1)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mechplateau", "config", "mws"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


def test_a_configuration_comes_on_standard_input(run_cli, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("task: mws\nseed: 7\n"))
    code, out, _ = run_cli("config", "-", "--set", "task.k=3")
    assert code == 0
    config = RunConfig.parse(yaml.safe_load(out))
    assert (config.task.k, config.seed) == (3, 7)


def test_version(run_cli):
    code, out, _ = run_cli("--version")
    assert code == 0
    assert out.startswith(
        f"mechplateau {mechplateau.__version__}; kernels: torch (the tensors are on the CPU"
    )
    assert len(out.splitlines()) == 1


def test_sweeps_expand_every_combination():
    configs = expand({"task": {"name": "mws"}}, ["task.k=2,3", "training.lr=1e-3,1e-4"], range(2))
    assert len(configs) == 8
    assert [(c.task.k, c.training.lr, c.seed) for c in configs[:3]] == [
        (2, 1e-3, 0),
        (2, 1e-3, 1),
        (2, 1e-4, 0),
    ]


def test_sweeps_keep_the_seed_of_the_file_unless_told():
    data = {"task": {"name": "mws"}, "seed": 7}
    assert [c.seed for c in expand(data, [], None)] == [7]
    assert [c.seed for c in expand(data, ["seed=3,4"], None)] == [3, 4]
    assert [c.seed for c in expand(data, [], range(2))] == [0, 1]
    with pytest.raises(ConfigError, match="seed: given both"):
        expand(data, ["seed=3,4"], range(2))


def test_lists_are_one_value_of_a_sweep():
    one, other = "{kind: attention_scale, c: 2, layers: [0]}", "{kind: attention_scale, c: 3, start: 9}"
    both = f"interventions=[{one}, {other}],[]"
    with pytest.raises(ConfigError, match="scales the same attention"):
        expand({"task": {"name": "mws"}}, [both], None)
    fine = both.replace("c: 2,", "c: 2, stop: 9,")
    assert [len(c.interventions) for c in expand({"task": {"name": "mws"}}, [fine], None)] == [2, 0]
    assert [
        c.training.betas
        for c in expand({"task": {"name": "mws"}}, ["training.betas=[0.9,0.99],[0.8,0.9]"], None)
    ] == [
        (0.9, 0.99),
        (0.8, 0.9),
    ]
    with pytest.raises(ConfigError, match=r"training\.optimizer"):
        expand({"task": {"name": "mws"}}, ['training.optimizer="adam,sgd"'], None)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_sweep_stopped_alone_takes_its_runs_with_it(tmp_path, how):
    """What a time limit or a job scheduler does; the same command then runs what is left, without a failure."""
    arguments = [
        "sweep",
        "mws",
        *TINY,
        "--set",
        "training.steps=1000000",
        "--threads",
        "1",
        "--runs-dir",
        str(tmp_path),
    ]
    arguments += ["--set", "checkpoints.every=50", "--set", "evaluation.every=10"]
    process = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("*/checkpoints/step_000050.safetensors")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(how)
    process.wait(timeout=60)
    (run,) = list_runs(tmp_path)
    while run.status != "interrupted":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_folder_that_may_not_be_read_hides_no_other(run_cli, monkeypatch):
    run_cli("train", "mws", *TINY, "--set", "training.steps=1", "--quiet")
    (run,) = list_runs("runs")
    (run.path.parent / f"{run.name}-closed").mkdir()
    is_file = Path.is_file

    def refused(path):
        if path.parent.name.endswith("-closed"):
            raise PermissionError(13, "Permission denied")
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refused)
    assert run_cli("show", run.name[:6])[0] == 0
    code, out, _ = run_cli("list")
    assert code == 0
    assert re.search(rf"^{run.name} .* 1/1 ", out, re.MULTILINE)
    assert f"{run.name}-closed: cannot be read (Permission denied)" in " ".join(out.split())


def test_an_ambiguous_name_lists_the_runs(run_cli):
    for seed in ("0", "1"):
        run_cli("train", "mws", *TINY, "--set", "training.steps=1", "--seed", seed, "--quiet")
    code, _, err = run_cli("show", "mws-")
    assert code == 2
    assert "several runs begin so: mws-" in err


def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path):
    arguments = [
        "train",
        "mws",
        *TINY,
        "--set",
        "training.steps=4000",
        "--set",
        "evaluation.every=5",
        "--threads",
        "1",
    ]
    arguments += ["--runs-dir", str(tmp_path)]
    process = subprocess.Popen(
        command(*arguments), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("*/checkpoints/step_000200.safetensors")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "rerun the same command to resume" in err
    assert "mechplateau: interrupted\n" not in err  # said once, with where it was saved
    (run,) = list_runs(tmp_path)
    assert run.status == "interrupted"
    stopped = run.reached
    assert 200 <= stopped < 4000
    (state,) = (run.path / "resume").iterdir()
    assert read_tensors(state)[1]["step"] >= stopped


OFFLINE = {
    "http_proxy": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
    "NO_PROXY": "",
    "HOME": "/nonexistent",
    "MPLCONFIGDIR": "/tmp",
}


@pytest.fixture
def offline(monkeypatch):
    """An environment without account, key or network."""
    for name in os.environ:
        if name.startswith("WANDB"):
            monkeypatch.delenv(name)
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)


TO_WANDB = ["--set", "training.steps=3", "--threads", "1", "--tracker", "wandb"]


def test_a_sweep_cut_half_way_runs_only_the_rest(run_cli, offline, tmp_path):
    """Two configurations, a tracker, no network, no account; all is killed once the first has finished."""
    arguments = ["sweep", "mws", *TINY, *TO_WANDB, "--set", "task.k=1,2", "--runs-dir", str(tmp_path)]
    process = subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    with process.stdout as lines:
        assert any(" finished" in line for line in lines)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (first,) = (run for run in list_runs(tmp_path) if run.status == "finished")
    before = (first.path / "metrics.parquet").stat().st_mtime_ns
    code, out, err = run_cli(*arguments)
    assert code == 0, out + err
    assert "1 finished, 1 skipped, 0 failed" in out
    assert (first.path / "metrics.parquet").stat().st_mtime_ns == before
    runs = list_runs(tmp_path)
    assert len(runs) == 2
    for run in runs:
        assert run.status == "finished"
        assert run.name == run.config.run_name
        assert list(run.metrics["step"]) == [0, 1, 2, 3]
    assert "0 finished, 2 skipped, 0 failed" in run_cli(*arguments)[1]


def test_a_tracker_without_network_ends_in_time_and_loses_nothing(run_cli, offline, tmp_path):
    began = time.monotonic()
    code, _, err = run_cli("train", "mws", *TINY, *TO_WANDB, "--runs-dir", str(tmp_path))
    assert code == 0, err
    assert time.monotonic() - began < 120
    (run,) = list_runs(tmp_path)
    assert list(run.metrics["step"]) == [0, 1, 2, 3]


def test_no_port_is_opened_and_none_is_needed():
    """A guard for the tests above: the proxy they point at does not answer."""
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", 9)) != 0
