"""A study that is none of ours, made here: listed, drawn, claimed and reproduced by the same commands."""

from __future__ import annotations

import json
import sys
import tomllib
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest

from mechplateau import cli
from mechplateau.errors import UserError
from mechplateau.progress import bars
from mechplateau.studies import (
    CheckpointMeasure,
    Claim,
    Elsewhere,
    Figure,
    Panel,
    Recipe,
    Source,
    Study,
    register_study,
    study,
    study_named,
    study_names,
    training,
)
from mechplateau.studies.results import KEY, found_in, merged, on_record, write_results

from .conftest import in_process

TINY = {
    "task": {"n": 3, "max_num": 4},
    "model": {"d_model": 8},
    "training": {"steps": 6, "batch_size": 4},
    "evaluation": {"samples": 4},
    "checkpoints": {"every": 3},
}
LOSS = Panel("Loss", "nats", lambda table: ["loss"])


class Norm(CheckpointMeasure):
    """The norm of the token embeddings."""

    def measure(self, run, scale, *, jobs=1, progress=None):
        norms = []
        with closing(bars(progress)(total=len(run.steps), desc="norm")) as bar:
            for step in run.steps:
                norms.append(float(run.model(step).W_E.detach().norm()))
                bar.update(1)
                bar.set_postfix_str(f"step {step}")
        return pd.DataFrame({"step": run.steps, "norm_embed": norms})

    def settings(self, scale):
        return {"norm": {"order": 2 if scale == "paper" else 1}}


def _bars(material):
    from mechplateau.views.figure import PaperFigure

    sheet = PaperFigure(2, 2)
    ends = {name: runs[0].metrics["loss"].iloc[-1] for name, runs in material.runs.items()}
    sheet.subplots().bar(list(ends), list(ends.values()))
    return sheet


def _ends(material):
    return pd.DataFrame(
        {"recipe": list(material.runs), "seeds": [len(runs) for runs in material.runs.values()]}
    )


def a_study(**changes):
    given = {
        "name": "toy",
        "title": "A toy",
        "recipes": [
            Recipe("copy", "copy", "copies", TINY, {"small": {"training": {"steps": 4}}}),
            Recipe(
                "again",
                "copy",
                "copies, begun elsewhere",
                TINY,
                start=Source("copy", {"kind": "optimal_init", "parts": ["MLP"]}, seed_offset=1),
            ),
        ],
        "figures": [
            Figure("S1.a", "Losses", ("copy", "again"), (LOSS,)),
            Figure(
                "norms",
                "Norms",
                ("copy",),
                (LOSS, Panel("Norm", "length", lambda table: ["norm_embed"], of_checkpoints=True)),
                checkpoints=Norm(),
            ),
            Figure("bars", "Ends", ("copy",), picture=_bars, data=_ends),
        ],
        "claims": [
            Claim(
                study="toy",
                id="S1.a/end",
                figure="S1.a",
                text="it ends low",
                recipe="copy",
                number="end",
                high=9,
            ),
            Claim(
                study="toy",
                id="norms/end",
                figure="norms",
                text="…",
                recipe="again",
                number="end",
                low=99,
                over="copy",
            ),
        ],
        "numbers": lambda run, scale: {"end": float(run.metrics["loss"].iloc[-1]), "solved_at": 1},
        "elsewhere": {"7": Elsewhere("elephants", ("catch one",), "shows elephants; catch one")},
    }
    return Study(**{**given, **changes})


@pytest.fixture
def toy_study(monkeypatch, tmp_path):
    monkeypatch.setattr(training, "sweep", in_process)
    monkeypatch.setattr(study, "_REGISTERED", {})
    monkeypatch.chdir(tmp_path)
    return register_study(a_study(results=tmp_path / "results"))


@pytest.fixture
def command(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["mechplateau", *arguments])
        with pytest.raises(SystemExit) as ending:
            cli.main()
        captured = capsys.readouterr()
        return int(ending.value.code or 0), captured.out, captured.err

    return call


def test_it_is_listed_beside_ours(toy_study, command):
    assert {"plateau", "toy"} <= set(study_names())
    assert study_named("toy") is toy_study
    code, out, _ = command("figures", "toy")
    assert code == 0
    listed = [line.split()[0] for line in out.splitlines()]
    assert listed[1:4] == ["S1.a", "norms", "bars"]
    assert "7: elephants; catch one" in out
    assert "mechplateau figures plateau" in out
    with pytest.raises(UserError, match=r"study 'nothing': expected one of .*plateau.*, toy"):
        study_named("nothing")


def test_all_of_it_is_made_and_named_after_the_study(toy_study, command, tmp_path):
    code, out, err = command("reproduce", "toy")
    assert code == 0, err
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == sorted(
        f"toy-{id}.{kind}" for id in ("S1.a", "norms", "bars") for kind in ("png", "pdf", "parquet", "json")
    )
    verdict = json.loads((tmp_path / "figures" / "toy-S1.a.json").read_text())
    assert (verdict["study"], verdict["figure"], verdict["reduced"]) == ("toy", "S1.a", None)
    assert [(claim["id"], claim["verdict"]) for claim in verdict["claims"]] == [("S1.a/end", "holds")]
    verdict = json.loads((tmp_path / "figures" / "toy-norms.json").read_text())
    # What it is compared to was trained as well, and with the seed that its source needs.
    assert set(verdict["runs"]) == {"copy", "again"}
    assert [claim["verdict"] for claim in verdict["claims"]] == ["fails"]
    norms = pd.read_parquet(tmp_path / "figures" / "toy-norms.parquet")
    assert norms["norm_embed"].notna().tolist() == [True, False, False, True, False, False, True]
    bars = pd.read_parquet(tmp_path / "figures" / "toy-bars.parquet")
    assert bars.to_dict("list") == {"recipe": ["copy"], "seeds": [1]}
    assert "1 holds (1 by one seed), 1 fails (1 by one seed)" in out


def test_a_figure_at_a_preset(toy_study, command, tmp_path):
    code, out, err = command("figure", "toy/norms", "--scale", "small")
    assert code == 0, err
    assert (tmp_path / "figures" / "toy-norms.png").is_file()
    assert "training.steps: 6 → 4" in out
    assert "norm.order: 2 → 1" in out
    assert "norm [3/3] step 4" in err
    assert "runs [1/3] copy-" in err
    code, _, err = command("figure", "toy/norms", "--scale", "huge")
    assert (code, err) == (2, "mechplateau: --scale: expected paper or small, got 'huge'\n")
    code, _, err = command("figure", "toy/7")
    assert (code, err) == (2, "mechplateau: figure 7: shows elephants; catch one\n")
    code, _, err = command("figure", "toy/8")
    assert err == "mechplateau: figure 8: expected one of S1.a, norms, bars of the study toy\n"


def test_its_claims_are_checked_on_its_own_record(toy_study, command, tmp_path):
    assert "2 were not yet run" in command("claims", "toy")[1]
    assert on_record(toy_study).columns.tolist() == list(KEY)
    training.ensure(toy_study.recipes, ["copy", "again"], [0], "paper", runs_dir=tmp_path / "runs")
    found = found_in(toy_study, tmp_path / "runs", "paper", [0])
    (tmp_path / "results").mkdir()
    write_results(merged(toy_study.recipes, on_record(toy_study), found), tmp_path / "results" / "runs.csv")
    out = command("claims", "toy", "--markdown")[1]
    assert "| S1.a | it ends low |  | end of copy ≤ 9 |" in out
    assert "† | 1 of 1 | holds, one seed |" in out  # † there is no table of the run beside the record
    rows = command("claims", "toy", "--csv")[1].splitlines()
    assert rows[1].startswith("toy,S1.a/end,S1.a,it ends low,copy,end,,9.0,")


RECIPE = Recipe("copy", "copy", "copies", TINY)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "A toy"}, "study 'A toy': expected a name of small letters"),
        ({"recipes": [RECIPE, RECIPE]}, "toy: recipe copy: there are two"),
        ({"recipes": [RECIPE]}, "toy: figure S1.a: no recipe 'again'"),
        ({"figures": []}, "toy: claim S1.a/end: no figure toy/S1.a here"),
        (
            {
                "recipes": [RECIPE, Recipe("again", "copy", "copies", TINY)],
            },
            "toy: figure S1.a: expected recipes that differ in `what`",
        ),
    ],
)
def test_what_does_not_fit_together_is_said(changes, message):
    with pytest.raises(ValueError, match=message):
        a_study(**changes)


def test_a_figure_has_panels_or_a_picture_and_a_name_for_files():
    with pytest.raises(ValueError, match="figure 3: expected either panels or a picture"):
        Figure("3", "Nothing", ())
    with pytest.raises(ValueError, match="figure 'a/b': expected letters"):
        Figure("a/b", "Losses", (), (LOSS,))


def test_a_report_tells_what_a_study_says_of_a_run(toy_study, tmp_path):
    from mechplateau import RunConfig, save_report, train
    from mechplateau.views import SectionView

    def sections(run):
        return (SectionView("A story of toys", (f"of {run.name}",)),) if run.task.name == "copy" else ()

    run = train(RunConfig.for_task("copy", **TINY), runs_dir=tmp_path)
    assert "A story of toys" not in save_report(run).read_text(encoding="utf-8")
    register_study(a_study(sections=sections))
    page = save_report(run).read_text(encoding="utf-8")
    assert "A story of toys" in page
    assert f"of {run.name}" in page


def test_the_contracts_of_imports_name_every_study_and_the_engine():
    """`transfer` trains models, and `missing` counts what a task's runs would cost: both know tasks."""
    root = Path(__file__).parents[2]
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    engine, apart = ({c["name"]: c for c in contracts}[name] for name in (
        "the engine of studies knows no paper, task or model", "a study knows no other"
    ))  # fmt: skip
    rooms = root / "mechplateau/studies"
    papers = sorted(f"mechplateau.studies.{path.parent.name}" for path in rooms.glob("*/study.py"))
    beside = {path.stem for path in rooms.glob("*.py")} - {"__init__", "missing", "transfer"}
    assert apart["modules"] == papers
    assert set(engine["source_modules"]) == {f"mechplateau.studies.{name}" for name in beside}
    assert set(papers) < set(engine["forbidden_modules"])
