from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from mechplateau.cli import llm as cli_llm
from mechplateau.errors import CheckpointError, ConfigError, UserError


@pytest.fixture
def run():
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(cli_llm.llm)

    def invoke(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    return invoke


def test_a_folder_is_analyzed_and_drawn(run, make_series, copy_weights, tmp_path: Path) -> None:
    series = make_series([0, 1, 2, 4, 8])
    copy_weights(series / "step8", series / "step2")
    (series / "step4" / "model.safetensors").unlink()
    output = run(series, "--n-prompts", 3, "--runs-dir", tmp_path / "runs")
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("llm-series-")
    assert {"page.html", "figure.pdf", "series.parquet", "settings.yaml", "steps"} == {
        p.name for p in folder.iterdir()
    }
    table = pd.read_parquet(folder / "series.parquet")
    assert table["verdict"].tolist() == ["ok", "ok", "equals_final", "broken", "ok"]
    lines = [line.split() for line in output.splitlines()]
    assert [
        "2",
        "equals_final",
        *[f"{table[n][2]:.3f}" for n in ("cos_final", "repetition", "entropy", "loss")],
    ] in lines
    assert ["4", "broken", "–", "–", "–", "–"] in lines
    assert "step2: equals the final weights (step8), hash" in " ".join(output.split())
    assert str(folder / "page.html") in output.replace("\n", "")
    assert "Why does ice float on water?" in (folder / "page.html").read_text(encoding="utf-8")


def test_a_gap_is_named_once_and_notes_stay_on_one_line(run, make_series, tmp_path: Path) -> None:
    series = make_series([0, 1])
    (series / "step1" / "model.safetensors").write_bytes(b"")
    output = run(series, "--identity-only", "--steps", "0,1,7", "--runs-dir", tmp_path / "runs")
    assert "\nstep 7: requested, but there is no such revision\n" in output
    (broken,) = [line for line in output.splitlines() if line.startswith("step1: ")]
    assert "not a safetensors file" in broken


def test_identities_alone(run, make_series, tmp_path: Path) -> None:
    output = run(make_series([0, 1, 2]), "--identity-only", "--runs-dir", tmp_path / "runs")
    (folder,) = (tmp_path / "runs").iterdir()
    assert not (folder / "figure.pdf").exists()
    assert "3 checkpoints read, 3 of them with nothing speaking against their names" in output


def test_the_demonstration_is_trained_first(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mechplateau.llm import DemoConfig, demo

    sizes = {
        "d_model": 16,
        "n_layers": 1,
        "n_heads": 2,
        "vocab_size": 300,
        "context": 16,
        "batch": 2,
        "steps": 3,
    }
    monkeypatch.setattr(demo, "DemoConfig", lambda: DemoConfig(**sizes, text_bytes=20_000))
    run("demo", "--n-prompts", 2, "--runs-dir", tmp_path)
    assert sorted(path.name for path in (tmp_path / "demo-series").iterdir() if path.is_dir()) == [
        "step0",
        "step1",
        "step2",
        "step3",
    ]
    (analysis,) = tmp_path.glob("llm-demo-series-*")
    assert len(pd.read_parquet(analysis / "series.parquet")) == 4


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["no-such-series"], ConfigError, "expected a folder of checkpoint folders, a repository"),
        (["SERIES", "--dtype", "int8"], ConfigError, "dtype: .*'float32', 'bfloat16' or 'float16'.*int8"),
        (["SERIES", "--n-tokens", "1"], ConfigError, "n_tokens: .*greater than or equal to 2"),
        (["SERIES", "--batch-size", "0"], ConfigError, "batch_size: "),
        (["SERIES", "--temperature", "-1"], ConfigError, "temperature: "),
        (["SERIES", "--steps", "x"], ConfigError, "steps: expected all, or numbers and ranges"),
        (
            ["SERIES", "--prompts", "nowhere.txt"],
            ConfigError,
            "prompts: expected default, arc-easy or a text file",
        ),
        (
            ["SERIES", "--tokenizer", "nowhere"],
            CheckpointError,
            "nowhere: no readable tokenizer .there is no such",
        ),
        (["SERIES", "--threads", "0"], UserError, "threads: expected 1 to 1024, got 0"),
        (["SERIES", "--seed", str(2**64)], ConfigError, "seed: .*less than 9223372036854775808"),
        (
            ["SERIES", "--device", "meta"],
            ConfigError,
            "device: expected cpu, cuda, mps or cuda:N, got 'meta'",
        ),
        (["SERIES", "--stage", "2"], ConfigError, "stage: .* has no stage 2; stages there: none"),
    ],
)
def test_mistakes_are_one_line(run, make_series, tmp_path, arguments, error, message) -> None:
    series = str(make_series([0]))
    with pytest.raises(error, match=message) as caught:
        run(
            *[series if argument == "SERIES" else argument for argument in arguments],
            "--runs-dir",
            tmp_path / "runs",
        )
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").rglob("*.parquet"))


def test_help_imports_nothing_heavy() -> None:
    code = "import typer; from mechplateau.cli.llm import llm; a = typer.Typer(); a.command()(llm); a(['--help'])"
    result = subprocess.run([sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True)
    assert "SERIES" in result.stdout
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert not imported & {"torch", "transformers", "pandas", "huggingface_hub", "matplotlib", "pydantic"}


@pytest.mark.parametrize("option", ["--runs-dir", "--tokenizer"])
def test_an_empty_name_is_no_folder(option: str, make_series, tmp_path, monkeypatch) -> None:
    """As of a variable that is not set: the current folder is not what was meant."""
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(cli_llm.llm)
    result = CliRunner().invoke(app, [str(make_series([0])), option, ""])
    assert result.exit_code == 2
    assert "expected a folder, got an empty name" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["series"]


def test_a_choice_is_said_on_the_command_line(run, make_series, tmp_path) -> None:
    series = make_series([0, 1])
    (series / "step1" / "pytorch_model.bin").write_bytes(b"")
    output = run(series, "--identity-only", "--runs-dir", tmp_path / "runs")
    assert (
        "step1: the last step, taken as the final weights; read from model.safetensors, as transformers does; "
        "not looked at: pytorch_model.bin\n"
    ) in output
    assert "step0: " not in output
