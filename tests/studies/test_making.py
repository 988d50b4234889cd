"""Every figure end to end at a toy size: trained, drawn, its data and verdict beside it."""

from __future__ import annotations

import json
import pickle
import shutil
from typing import Literal

import pandas as pd
import pytest

from mechplateau.errors import UserError
from mechplateau.runs import load_run
from mechplateau.studies.drawing import draw
from mechplateau.studies.figures import Material
from mechplateau.studies.making import all_recipes, compared_to, make_figure, reduced, state
from mechplateau.studies.panels import over_seeds
from mechplateau.studies.plateau import probes
from mechplateau.studies.plateau.claims import CLAIMS
from mechplateau.studies.plateau.study import STUDY
from mechplateau.studies.training import ensure
from mechplateau.tasks import MovingWindowSum, register_task
from mechplateau.tasks import base as tasks_base
from mechplateau.views import figure as views_figure
from mechplateau.views.figure import PaperFigure

RECIPES, FIGURES = STUDY.recipes, STUDY.figures


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory):
    """Shared, so that figures of the same runs train them once."""
    return tmp_path_factory.mktemp("figures") / "runs"


@pytest.fixture(autouse=True)
def small_probes(monkeypatch):
    few = {"authors": {"sequences": 40, "n_train": 8}, "ours": {"sequences": 24, "n_train": 12}}
    paper = {**few, "ours": {"sequences": 24, "n_train": 6}}
    monkeypatch.setattr(probes, "SPLITS", {"paper": paper, "small": few})


@pytest.fixture(autouse=True)
def few_dots(monkeypatch):
    """Pictures of a size that is drawn fast, laid out once for both files, and no fonts in the PDF."""
    render = PaperFigure._render

    def drawn(self, suffix, dpi):
        picture = render(self, suffix, 30)
        self.set_layout_engine("none")
        return picture

    monkeypatch.setattr(PaperFigure, "_render", drawn)
    monkeypatch.setitem(views_figure._STYLE, "pdf.use14corefonts", True)


@pytest.fixture
def probed(toy, runs_dir):
    """The run of figure 20 and its probes, in the shared folder: made once."""
    (run,) = ensure(RECIPES, ["mws-probe"], [0], "small", runs_dir=runs_dir)["mws-probe"]
    return run, probes.probe_curve(run, "small")


@pytest.mark.parametrize("number", list(FIGURES))
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_figure_end_to_end(number, toy, runs_dir, tmp_path):
    spec = FIGURES[number]
    made = make_figure(STUDY, spec, scale="small", runs_dir=runs_dir, out=tmp_path)
    stem = tmp_path / f"plateau-{number}"
    assert [path.name for path in made.files] == [
        f"{stem.name}.{kind}" for kind in ("png", "pdf", "parquet", "json")
    ]
    assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert stem.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    data = pd.read_parquet(stem.with_suffix(".parquet"))
    assert list(data.columns[:4]) == ["recipe", "label", "seed", "step"]
    assert set(data["recipe"]) == set(spec.recipes)
    verdict = json.loads(stem.with_suffix(".json").read_text())
    assert (verdict["figure"], verdict["scale"]) == (number, "small")
    assert len(verdict["claims"]) == sum(claim.figure == number for claim in CLAIMS) > 0
    assert all(claim["verdict"] != "not yet run" for claim in verdict["claims"])
    assert set(verdict["reduced"]) == set(spec.recipes)
    finished, wanted = state(STUDY, spec, "small", [0], runs_dir)
    assert finished == wanted >= 1


def test_several_seeds_give_median_and_spread(toy, runs_dir, tmp_path):
    made = make_figure(STUDY, FIGURES["17"], scale="small", seeds=range(3), runs_dir=runs_dir, out=tmp_path)
    assert all(len(outcome.values) == 3 for outcome in made.outcomes if outcome.verdict != "undefined")
    assert set(pd.read_parquet(made.files[2])["seed"]) == {0, 1, 2}


def test_what_is_asked_is_checked_before_anything_is_trained(tmp_path):
    options = {"runs_dir": str(tmp_path / "runs"), "out": str(tmp_path / "out")}
    with pytest.raises(UserError, match="scale: expected paper or small, got 'x'"):
        make_figure(STUDY, FIGURES["17"], scale="x", **options)
    with pytest.raises(UserError, match="seeds: expected at least one"):
        make_figure(STUDY, FIGURES["17"], seeds=[], **options)
    assert list(tmp_path.iterdir()) == []


def test_a_seed_named_twice_is_one(toy, runs_dir, tmp_path):
    made = make_figure(
        STUDY, FIGURES["17"], scale="small", seeds=[0, 0], runs_dir=str(runs_dir), out=str(tmp_path)
    )
    assert all(outcome.runs == 1 for outcome in made.outcomes)


def test_the_probe_is_kept_beside_the_run(toy, runs_dir, tmp_path, monkeypatch):
    made = make_figure(STUDY, FIGURES["20"], scale="small", runs_dir=runs_dir, out=tmp_path)
    data = pd.read_parquet(made.files[2])
    assert {"probe_authors", "probe_ours", "probe_shuffled", "probe_control"} <= set(data.columns)
    kept = data.dropna(subset=["probe_ours"])
    assert len(kept) == len(data["probe_control"].dropna()) > 1
    for name, of in (("selectivity", "ours"), ("linear_selectivity", "linear")):
        control = "control" if of == "ours" else f"{of}_control"
        assert kept[f"probe_{name}"].tolist() == (kept[f"probe_{of}"] - kept[f"probe_{control}"]).tolist()
    monkeypatch.setattr(probes, "probe", None)  # nothing is fitted again
    again = make_figure(STUDY, FIGURES["20"], scale="small", runs_dir=runs_dir, out=tmp_path)
    assert again.outcomes == made.outcomes


def test_every_seed_has_a_probe_of_its_own(toy, runs_dir, tmp_path):
    made = make_figure(STUDY, FIGURES["20"], scale="small", seeds=range(2), runs_dir=runs_dir, out=tmp_path)
    data = pd.read_parquet(made.files[2])
    one, other = (data[data["seed"] == seed]["probe_ours"].dropna().tolist() for seed in (0, 1))
    assert len(one) == len(other) > 1
    assert one != other
    assert all(len(outcome.values) == 2 for outcome in made.outcomes if outcome.claim.number == "probe_end")


def kept_notes(run):
    """The notes of probes beside a run: path → bytes."""
    return {path: path.read_bytes() for path in sorted(run.path.glob("notes/probes-*/*.safetensors"))}


@pytest.mark.parametrize("spoil", ["cut", "another's", "no accuracy"])
def test_a_spoilt_note_of_probes_is_made_again(probed, spoil):
    run, curve = probed
    kept = kept_notes(run)
    assert len(kept) == len(run.steps)
    path = next(iter(kept))
    if spoil == "cut":
        path.write_bytes(kept[path][:50])
    elif spoil == "another's":
        path.write_bytes(list(kept.values())[1])
    else:
        run.notes(probes._KIND, probes._settings("small")).write(0, dict.fromkeys(probes.ACCURACIES, 1.5))
    assert probes.probe_numbers(run, "small") == {}
    assert probes.probe_curve(run, "small").equals(curve)
    assert kept_notes(run) == kept


def test_the_probe_of_a_partial_copy_has_no_end(probed, tmp_path):
    """What is left is not the end: its last accuracy is that of an earlier step."""
    run, _ = probed
    copy = load_run(shutil.copytree(run.path, tmp_path / "copy"))
    assert probes.probe_numbers(copy, "small") == probes.probe_numbers(run, "small") != {}
    copy.checkpoint_path("after").unlink()
    assert probes.probe_numbers(copy, "small") == {}


def test_claims_may_look_at_runs_that_are_not_drawn():
    assert compared_to(STUDY, FIGURES["34"]) == ()
    assert compared_to(STUDY, FIGURES["2"]) == ()
    assert "mws-sgd-lr0.1" in all_recipes(STUDY)
    assert list(all_recipes(STUDY)).index("mws") < list(all_recipes(STUDY)).index("mws-init-KQ")


def test_a_line_over_seeds_ends_where_the_first_seed_does():
    short = pd.DataFrame({"step": [0, 5, 10], "loss": [3.0, 2.0, 1.0]})
    long = pd.DataFrame({"step": [0, 5, 10, 15], "loss": [5.0, 4.0, 3.0, 2.0]})
    steps, middle, low, high = over_seeds([short, long], "loss")
    assert steps.tolist() == [0, 5, 10]
    assert middle.tolist() == [4.0, 3.0, 2.0]
    assert (low.tolist(), high.tolist()) == ([3.0, 2.0, 1.0], [5.0, 4.0, 3.0])


def test_each_seed_is_drawn_by_the_attention_that_it_solves_with():
    def table(gather, look_up):
        steps = [0, 5, 10]
        others = ("loss", "accuracy", "repetition", "cos_final", "count_check")
        return pd.DataFrame({"step": steps, "apm_gather_L0": gather, "apm_look_up_L0": look_up}).assign(
            **dict.fromkeys(others, 0.5)
        )

    rising, flat = [0.1, 0.3, 0.9], [0.1, 0.1, 0.1]
    names = FIGURES["14"].recipes
    tables = {name: [table(rising, flat), table(flat, rising)] for name in names}
    figure = draw(FIGURES["14"], RECIPES, Material("paper", tables))
    panel = next(ax for ax in figure.axes if ax.get_ylabel() == "APM")
    assert [list(line.get_ydata()) for line in panel.lines] == [rising] * len(names)


def test_what_is_reduced_is_read_off_the_configurations():
    found = reduced(STUDY, [FIGURES["38"]], "small")
    assert set(found) == {"mws", "mws-lr3e-05"}
    assert found["mws"]["task.n"] == ("16", "8")
    assert found["mws"]["model.d_model"] == ("256", "64")
    assert found["mws-lr3e-05"]["training.lr"] == ("3.0e-05", "0.0003")
    assert "seed" not in found["mws"]
    assert "training.optimizer" not in found["mws"]
    assert reduced(STUDY, [FIGURES["20"]], "small")["mws-probe"]["probe.ours.n_train"] == ("6", "12")


# One is enough for another process; every process loads its libraries first.
@pytest.mark.parametrize("missing", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_probes_are_the_same_however_many_run_at_a_time(missing, probed, runs_dir, tmp_path):
    run, curve = probed
    kept = kept_notes(run)
    assert len(kept) == 3
    for path in list(kept)[:missing]:
        path.unlink()
    make_figure(STUDY, FIGURES["20"], scale="small", runs_dir=runs_dir, out=tmp_path, jobs=2)
    assert kept_notes(run) == kept
    assert probes.probe_curve(run, "small").equals(curve)
    with pytest.raises(UserError, match="jobs: expected at least 1, got 0"):
        probes.probe_curve(run, "small", jobs=0)


def test_a_notebooks_task_travels_to_where_checkpoints_are_probed(probed, monkeypatch):
    run, _ = probed
    monkeypatch.setattr(tasks_base, "_REGISTRY", dict(tasks_base._REGISTRY))
    own = {"__module__": "__main__", "__annotations__": {"name": Literal["cell"]}, "name": "cell"}
    cell = register_task(type("Cell", (MovingWindowSum,), own))
    sent = []
    monkeypatch.setattr(
        probes, "_probe_at", lambda *given: sent.append(given[-1]) or dict.fromkeys(probes.ACCURACIES, 0.5)
    )
    for path in kept_notes(run):
        path.unlink()
    probes.probe_curve(run, "small")
    assert len(sent) >= len(run.steps)
    assert all((register_task, cell) in map(pickle.loads, classes) for classes in sent)
    for path in kept_notes(run):
        path.unlink()  # accuracies that were made up
