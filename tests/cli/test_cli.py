"""The command line: what it prints, and what it refuses and how."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import mechplateau
from mechplateau.config import RunConfig
from mechplateau.runs import list_runs, load_run

from .tiny import TINY


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
    assert re.search(r"Solved \(accuracy ≥ 0\.95\) +no, up to step 8 *$", out, re.MULTILINE)
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
        (["sweep", "mws", "--threads", "0"], "threads: expected 1 to 1024, got 0"),
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
