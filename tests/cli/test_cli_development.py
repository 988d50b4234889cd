"""`mechplateau llc` and `stages`: what they print, keep and refuse."""

from __future__ import annotations

import sys

import pytest

from mechplateau.cli import main
from mechplateau.config import RunConfig
from mechplateau.training import train


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    config = RunConfig.for_task(
        "mws",
        task={"n": 3, "k": 2, "p": 5, "max_num": 4},
        model={"d_model": 8},
        training={"steps": 6, "batch_size": 8},
        checkpoints={"every": 3},
        evaluation={"samples": 8},
    )
    runs = tmp_path_factory.mktemp("cli")
    return train(config, runs_dir=runs / "runs", threads=1).path


@pytest.fixture
def call(monkeypatch, capsys):
    """The command in this process: exit code, standard output, standard error."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["mechplateau", *map(str, arguments)])
        with pytest.raises(SystemExit) as ending:
            main()
        out, err = capsys.readouterr()
        return ending.value.code, out, err

    return run


def test_coefficients_are_printed_with_their_verdicts_and_drawn(folder, call, tmp_path):
    settings = ("--chains", 2, "--draws", 3, "--batch-size", 8, "--n-beta", 50, "--steps", "0,6")
    code, out, err = call("llc", folder, *settings, "--out", tmp_path / "llc.png")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["step", "L(w*)", "E[L]"]
    assert [line.split()[0] for line in lines[1:3]] == ["0", "6"]
    assert "trivial loss 1.2" in out
    assert "Too few checkpoints to hold λ̂ against the loss." in out
    assert (tmp_path / "llc.png").stat().st_size > 10_000
    assert len(list(folder.glob("notes/llc-*/*.safetensors"))) == 2
    assert "Traceback" not in err


def test_stages_of_a_run_too_short_for_any(folder, call):
    code, out, err = call("stages", folder, "--column", "loss")
    assert (code, err) == (0, "")
    assert out.startswith("loss: None (")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("llc", "RUN", "--steps", "7"), "no checkpoint at step 7; kept: 0, 3, 6"),
        (("llc", "RUN", "--steps", ","), "--steps: expected all, or steps and phases"),
        (
            ("llc", "RUN", "--chains", "0", "--step-size", "1e-5"),
            "chains: expected a whole number of at least 1",
        ),
        (("llc", "RUN", "--part", "nothing"), "parts: no such weights 'nothing'"),
        (("llc", "RUN", "--threads", "0"), "threads: expected 1 to 1024, got 0"),
        (("llc", "RUN", "--seed", "-1"), "seed: expected a whole number of at least 0, got -1"),
        (("llc", "RUN", "--n-beta", "inf"), "n_beta: expected a number above 0, got inf"),
        (("llc", "RUN", "--localization", "nan"), "localization: expected a number of at least 0, got nan"),
        (("llc", "RUN", "--batch-size", "0"), "batch_size: expected at least 1, got 0"),
        (("stages", "RUN", "--column", "height"), "height"),
        (("llm", "RUN"), "a run of mechplateau, not a series of language models; use `mechplateau llc"),
        (("llc", "SERIES"), "checkpoints of a language model, not a run; use `mechplateau llm"),
    ],
)
def test_a_mistake_is_one_line(folder, call, tmp_path, arguments, said):
    series = tmp_path / "series" / "step-1"
    series.mkdir(parents=True)
    (series / "config.json").write_text("{}")
    given = [{"RUN": folder, "SERIES": series.parent}.get(argument, argument) for argument in arguments]
    code, out, err = call(*given)
    assert code == 2
    assert said in err
    assert len(err.splitlines()) == 1
    assert out == ""
