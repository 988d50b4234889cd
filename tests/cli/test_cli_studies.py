"""`mechplateau figure`, `figures`, `claims`: what they print, and one line for a mistake."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mechplateau.studies import study_named, study_names
from mechplateau.studies.claims import Claim, check, check_all
from mechplateau.studies.claims_told import claims_page, counts, lines_told, verdict_told
from mechplateau.studies.results import on_record, summaries_of


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["figure", "1"], "figure 1: expected one of 2, 3, 4"),
        (["figure", "8"], "figure 8: shows language models"),
        (["figure", "plateau/8"], "figure 8: shows language models"),
        (["figure", "nothing/3"], "study 'nothing': expected one of"),
        (["figure", "/3"], "study '': expected one of"),
        (["reproduce", "nothing"], "study 'nothing': expected one of"),
        (["figure", "3", "--scale", "tiny"], "--scale: expected paper or small, got 'tiny'"),
        (["figure", "3", "--seeds", "0"], "--seeds: expected 1 to 1000, got 0"),
        (["figure", "3", "--jobs", "0"], "--jobs: expected at least 1, got 0"),
        (["figure", "3", "--device", "tpu"], "device: expected cpu, cuda or cuda:N, got 'tpu'"),
        (["figure", "3", "--threads", "0"], "threads: expected 1 to 1024, got 0"),
        (["claims", "--runs-dir", "nowhere"], "--runs-dir nowhere: no such folder"),
    ],
)
def test_a_mistake_is_one_line(run_cli, arguments, message, tmp_path):
    code, out, err = run_cli(*arguments)
    assert (code, out) == (2, "")
    (line,) = err.strip().splitlines()
    assert line.startswith(f"mechplateau: {message}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--runs-dir", "--out"])
def test_a_folder_that_cannot_be_is_said_before_anything_is_trained(run_cli, option, tmp_path):
    (tmp_path / "file").touch()
    code, _, err = run_cli("reproduce", "--scale", "small", option, "file/there")
    assert code == 2
    assert err.startswith(f"mechplateau: {option} file/there: expected a folder to write in (Not a dir")
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.glob("runs/*"))


def test_a_run_that_failed_says_why_at_once(capsys):
    from mechplateau.cli import bars
    from mechplateau.config import RunConfig
    from mechplateau.training.sweep import SweepResult

    config = RunConfig.for_task("copy")
    from mechplateau.studies.training import _tell

    bar = bars.told(total=3, desc="runs")
    for outcome, message in (("skipped", ""), ("failed", "interrupted at step 9"), ("finished", "")):
        _tell(bar, SweepResult(config, Path("x"), outcome, message))
    name = config.run_name
    assert capsys.readouterr().err == (
        f"runs [2/3] {name} failed: interrupted at step 9\nruns [3/3] {name} finished\n"
    )


def test_ctrl_c_is_one_line(monkeypatch, capsys):
    from mechplateau import cli
    from mechplateau.studies import making

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(making, "state", interrupted)
    monkeypatch.setattr(sys, "argv", ["mechplateau", "figures"])
    with pytest.raises(SystemExit) as ending:
        cli.main()
    assert ending.value.code == 130
    assert capsys.readouterr().err.strip() == "mechplateau: interrupted"


def test_a_long_or_hostile_value_is_cut_and_shown_literally(monkeypatch, capsys):
    from mechplateau import cli

    monkeypatch.setattr(
        sys, "argv", ["mechplateau", "figures", "--scale", "\x1b" * 999 + "[31m" + "x" * 9999]
    )
    with pytest.raises(SystemExit):
        cli.main()
    line = capsys.readouterr().err
    assert "\x1b" not in line
    assert r"\x1b\x1b" in line
    assert len(line) < 2100
    assert line.endswith(" …\n")


def test_a_run_that_cannot_be_read_is_named(tmp_path, capsys):
    from mechplateau.cli.studies import claims
    from mechplateau.runs import RunWriter
    from mechplateau.studies.recipes import config_of

    names = []
    for recipe in ("copy", "reverse"):
        writer = RunWriter(config_of(study_named("plateau").recipes, recipe, 0, "small", tmp_path), tmp_path)
        row = {"step": 0, "loss": 1.0, "accuracy": 1.0}
        writer.begin({})
        writer.append(row)
        writer.finish(0, {})
        writer.close()
        names.append(writer.layout.root.name)
    (tmp_path / names[0] / "config.yaml").write_text("")
    claims(scale="small", runs_dir=tmp_path)
    out, err = capsys.readouterr()
    assert err.startswith(f"left out: {names[0]}: ")
    assert len(err.splitlines()) == 1
    assert "undefined" in out  # reverse, whose one row says little, was looked at


def test_a_child_whose_parent_is_gone_is_stopped(monkeypatch):
    import os
    import signal

    from mechplateau.training.executor import stop_with_parent

    sent = []
    monkeypatch.setattr(signal, "raise_signal", sent.append)
    stop_with_parent(os.getppid())
    assert sent == []
    stop_with_parent(os.getppid() + 1)
    assert sent == [signal.SIGTERM]


def test_what_was_reduced_is_a_line_a_setting(capsys):
    from mechplateau.cli.studies import _print_reduced

    plateau = study_named("plateau")
    _print_reduced(plateau, [plateau.figures["2"], plateau.figures["37"]], "small")
    lines = capsys.readouterr().out.splitlines()
    assert "  task.n: 16 → 8" in lines
    assert "  training.batch_size: 256 → 64, 512 → 128" in lines
    assert not any("seed" in line for line in lines)


def test_a_median_says_of_how_many_seeds():
    claim = Claim(
        study="x", id="2/it", figure="2", text="it is near 3", recipe="mws", number="drop", low=2.5, high=3.5
    )
    (whole, part) = (
        check(claim, {"mws": [{"drop": 3.0}, {"drop": 3.2}]}),
        check(claim, {"mws": [{"drop": None}, {"drop": 3.0}, {"drop": None}]}),
    )
    study = study_named("plateau")
    assert "| 3.1 (3 – 3.2) | 2 of 2 | holds |" in claims_page(study, [whole])
    assert "| 3 | 1 of 3 | undefined |" in claims_page(study, [part])
    # One seed says nothing of others: it is marked, on the page, on the terminal and where they are counted.
    outcomes = [check(claim, {"mws": [{"drop": drop}]}) for drop in (3.0, 9.0)]
    assert "| 1 of 1 | holds, one seed |" in claims_page(study, outcomes)
    first, *_ = lines_told(study, outcomes[0], "paper")
    assert (len(first), first.endswith("  holds, one seed")) == (80, True)
    assert counts([*outcomes, whole]) == "Of 3 claims 2 hold (1 by one seed), 1 fails (1 by one seed)."


def test_the_figures_are_listed_with_their_cost(run_cli):
    code, out, _ = run_cli("figures")
    assert code == 0
    lines = out.splitlines()
    (five,) = [line for line in lines if line.startswith("5 ")]
    assert "4,000" in five
    assert "0 of 10" in five  # two baselines: one run starts from the next seed's
    assert any(line.startswith("8: language models; mechplateau llm pythia-14m") for line in lines)


def test_the_page_of_claims_is_what_the_command_prints(run_cli):
    """And the README has its first line: how many hold."""
    code, table, _ = run_cli("claims", "--markdown")
    assert code == 0
    told = {}
    for name in ("docs/claims.md", "README.md"):
        _, _, rest = (
            (Path(__file__).parents[2] / name).read_text(encoding="utf-8").partition("<!-- claims -->\n")
        )
        told[name], _, _ = rest.partition("<!-- /claims -->")
    assert told["docs/claims.md"] == table
    counts, *_ = table.splitlines()
    assert told["README.md"] == f"{counts} [Each with its set-up, range and seeds](docs/claims.md).\n"
    assert "| holds |" in table
    for section in ("## Set-ups", "## Changed after runs had been seen", "## Claims that stood here once"):
        assert section in table
    # Every recipe of a claim with its set-up, every change with what was there before.
    for claim in study_named("plateau").claims:
        assert f"| {claim.recipe} |" in table
        assert all(change.because.replace("|", "\\|") in table for change in claim.changes), claim.id


def test_no_claim_holds_where_nothing_has_run(run_cli, tmp_path):
    (tmp_path / "empty").mkdir()
    code, out, _ = run_cli("claims", "--runs-dir", "empty", "--markdown")
    assert code == 0
    assert "| holds |" not in out
    assert (
        out.splitlines()[0]
        == f"Of {len(study_named('plateau').claims)} claims {len(study_named('plateau').claims)} were not yet run."
    )


@pytest.mark.parametrize("name", study_names())
def test_claims_fit_into_80_columns(name):
    study = study_named(name)
    for outcome in check_all(study.claims, summaries_of(on_record(study), "paper")):
        lines = lines_told(study, outcome, "paper")
        assert max(map(len, lines)) <= 80, outcome.claim.id
        # A figure's name stands before the sentence, or above it where it is long.
        assert lines[0].split()[0] == outcome.claim.figure
        assert next(line for line in lines if line != outcome.claim.figure).endswith(
            f" {verdict_told(outcome)}"
        )
        told = " ".join(" ".join(lines).split())
        for shown in (
            outcome.claim.number,
            outcome.claim.paper,
            outcome.claim.source if outcome.claim.paper else "",
            "set-up" if study.recipes[outcome.claim.recipe].setup else "",
        ):
            assert shown in told, outcome.claim.id
        assert ("changed after" in told) == bool(outcome.claim.changes)
        assert not outcome.runs or f"in range in {outcome.inside} of {outcome.runs} seed" in told


def test_what_no_claim_is_about_is_counted_in_words():
    assert counts([]) == "No claims are made about this."
