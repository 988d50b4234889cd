"""The paper's claims, measured: known answers by hand, the paper's own curves, and where they are undecided."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from mechplateau.cli import console
from mechplateau.report.claims import Ranges, claims_of
from mechplateau.signs import Plateau, Signs, find_plateau
from mechplateau.tasks import MovingWindowSum
from mechplateau.views import ClaimView, PlateauView, RunView, key_numbers, plot_curves, render_report
from mechplateau.views.summary import solved_text

from .conftest import metrics_of

TASK = MovingWindowSum(n=3, k=2, p=10, max_num=9)
PLATEAU = Plateau(True, 20, 60, 40.0, 2.0, 1.0, 0.9, "by hand", end=40)
NONE = Plateau(False, None, None, None, None, 1.0, 0.0, "none")


def table(**columns):
    """Ten evaluations; the loss is on its plateau until step 40, half-way down at 60, down at 70."""
    base = {
        "step": np.arange(0, 100, 10),
        "loss": [3.0, 2.2, 2.0, 2.0, 2.0, 1.8, 1.5, 1.0, 1.0, 1.0],
        "loss_out_0": [2.3, 1.5, 0.9, 0.5, 0.3, 0.1, 0.1, 0.1, 0.1, 0.1],
        "accuracy_out_1": [0.1, 0.1, 0.2, 0.2, 0.2, 0.3, 0.5, 1, 1, 1],
        "accuracy_out_2": [0.1, 0.1, 0.1, 0.2, 0.2, 0.3, 0.5, 1, 1, 1],
        "repetition": [0.1, 0.9, 0.6, 0.6, 0.5, 0.4, 0.2, 0.1, 0.1, 0.1],
        "repetition_data": [0.1] * 10,
        "entropy": [1.0, 0.6, 0.5, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0, 1.0],
        "entropy_data": [1.0] * 10,
        "apm_window": [0.1, 0.1, 0.2, 0.4, 0.5, 0.6, 0.7, 0.9, 0.9, 0.9],
        "apm_zero_count": [0] * 10,
        "cos_final": [0.1, 0.9, 0.95, 0.9, 0.5, 0.2, 0.1, 0.99, 0.1, 0.1],
    }
    return pd.DataFrame({**base, **columns})


def measured(metrics, plateau=PLATEAU, task=TASK, **options):
    return {claim.key: claim for claim in claims_of(Signs(metrics, task, plateau=plateau), **options)}


def test_numbers_by_hand():
    found = measured(table())
    assert list(found) == ["partial", "repetition", "collapse", "attention"]
    assert all(claim.passed is True for claim in found.values())
    assert found["partial"].value == pytest.approx(20 / 60)
    # One of nine values, each as often: half of its entropy is ln(9) / 2 = 1.1 nats.
    assert found["partial"].measured == "output 0 known from step 20, 0.33 of the way; others 0.15"
    assert found["repetition"].value == pytest.approx(0.9 - 0.1)
    assert found["repetition"].measured.startswith("peak ρ 0.900 at step 10, 0.800 above the data's 0.100")
    assert "entropy 0.400 of the data's at step 30" in found["repetition"].measured
    assert found["collapse"].value == 0.95  # the 0.99 comes after the drop
    assert found["collapse"].measured == "0.950 at step 20, 0.100 at the drop"
    # The plateau ends at step 40, where APM is at 0.5 of 0.1 … 0.9.
    assert found["attention"].value == pytest.approx(0.5)
    assert found["attention"].measured == "0.500 at step 40: APM 0.500 of 0.100 → 0.900"


def test_what_does_not_hold():
    found = measured(
        table(
            loss_out_0=[2.3] * 6 + [0.1] * 4,
            accuracy_out_1=[0.9] * 10,
            repetition=[0.1, 0.2, 0.1, 0.1, 0.1, 0.1, 0.9, 0.9, 0.9, 0.9],
            entropy=[0.9] * 10,
            cos_final=[0.1, 0.3, 0.3, 0.2, 0.1, 0.1, 0.1, 1.0, 1.0, 1.0],
            apm_window=[0.1, 0.1, 0.1, 0.1, 0.12, 0.2, 0.5, 0.9, 0.9, 0.9],
        )
    )
    assert {claim.passed for claim in found.values()} == {False}
    assert found["partial"].value == pytest.approx(1.0)
    assert found["repetition"].value == pytest.approx(0.1)
    assert found["attention"].value == pytest.approx(0.025)
    never = measured(table(loss_out_0=[2.3, 0.1, 2.3, 0.1, 0.1, 2.3, 2.3, 2.3, 2.3, 2.3]))["partial"]
    assert (never.value, never.passed) == (None, False)


def test_low_entropy_is_enough_and_ranges_can_be_given():
    quiet = table(repetition=[0.1] * 10)
    assert measured(quiet)["repetition"].passed is True
    narrow = measured(table(), ranges=Ranges(cos_peak=(0.4, 0.6), repetition_above=0.9, entropy_below=0.1))
    assert narrow["collapse"].passed is False
    assert narrow["collapse"].expected.startswith("COS 0.4 – 0.6")
    assert narrow["repetition"].passed is False
    with pytest.raises(ValueError, match=r"Ranges\.cos_peak: expected a finite number"):
        Ranges(cos_peak=(0.4, np.nan))


def test_undecided_where_there_is_no_plateau_or_no_number():
    for metrics, plateau in (
        (table(), NONE),
        (table().assign(**dict.fromkeys(table().columns[1:])), PLATEAU),
    ):
        for claim in measured(metrics, plateau).values():
            assert claim.passed is None, claim
            assert claim.value is None
            assert claim.measured.startswith("undefined: no")
    flat = measured(table(apm_window=[0.3] * 10))["attention"]
    assert (flat.value, flat.passed) == (None, None)
    assert "APM goes from 0.300 to 0.300" in flat.measured
    no_rows = table().iloc[:0]
    assert {claim.passed for claim in measured(no_rows, NONE).values()} == {None}


def test_left_out_where_it_means_nothing():
    assert "partial" not in measured(table(), task=MovingWindowSum(n=3, k=1, p=10, max_num=9))
    assert "repetition" not in measured(table(repetition_data=[0.9] * 10))
    bare = table().drop(columns=["apm_window", "cos_final", "repetition"])
    assert list(measured(bare)) == ["partial"]


def test_the_apm_that_grows_most_and_the_group_of_outputs_that_collapses_most():
    metrics = table(apm_window=[0.1] * 10, apm_window_L1=[0.0, 0.0, 0.1, 0.2, 0.4, 0.5, 0.6, 0.8, 0.8, 0.8])
    found = measured(metrics.rename(columns={"cos_final": "cos_final_pairs"}).assign(cos_final=0.5))
    assert found["attention"].value == pytest.approx(0.5)
    assert "APM (window_L1)" in found["attention"].measured
    assert found["collapse"].value == 0.95


def test_the_papers_own_code_holds_its_claims(curves):
    metrics = metrics_of(curves)
    plateau = find_plateau(metrics["step"].to_numpy(), metrics["loss"].to_numpy())
    found = measured(metrics, plateau, MovingWindowSum())
    assert all(claim.passed for claim in found.values())
    assert 0.2 < found["partial"].value < 0.5
    assert found["collapse"].value == pytest.approx(0.974, abs=1e-3)
    assert 0.4 < found["attention"].value < 0.7


@pytest.fixture(scope="module")
def page(curves):
    """The paper's own curves, whose COS and ρ are largest after the drop, with their plateau and claims, as a run's
    view."""
    metrics = metrics_of(curves)
    metrics.loc[350, ["cos_final", "repetition"]] = 0.999, 0.9
    plateau = find_plateau(metrics["step"].to_numpy(), metrics["loss"].to_numpy())
    found = claims_of(Signs(metrics, MovingWindowSum(), plateau=plateau))
    return RunView(
        "mws",
        "seed: 0",
        metrics,
        PlateauView(
            **{
                name: getattr(plateau, name)
                for name in (
                    "found",
                    "onset",
                    "drop",
                    "plateau_level",
                    "final_level",
                    "confidence",
                    "reason",
                    "end",
                )
            }
        ),
        (),
        (),
        (),
        tuple(ClaimView(claim.name, claim.expected, claim.measured, claim.passed) for claim in found),
    )


def shown_by_command(view, monkeypatch, capsys):
    """What `mechplateau show` prints of a run."""
    told = {"name": "mws", "path": "runs/mws", "status": "finished", "failure": None, "stopped_at": None}
    run = SimpleNamespace(steps=(), missing=(), reached=400, **told)
    monkeypatch.setattr(console, "run_view", lambda *_, **__: view)
    console.print_run(run)
    return capsys.readouterr().out


def test_no_two_numbers_for_one_thing(page, monkeypatch, capsys):
    """Every place on the pages, and `show`, read off as a visitor would."""
    html = render_report(page)
    both = render_report([page, page]).replace("<wbr>", "")
    shown = shown_by_command(page, monkeypatch, capsys)

    def only(pattern: str, *texts: str) -> tuple[str, ...]:
        """What a pattern says wherever it stands, which is one thing, in every text."""
        said = [set(re.findall(pattern, unescape(text))) for text in texts]
        assert all(said), pattern
        assert len(set.union(*said)) == 1, said
        return said[0].pop()

    # Ends of the plateau: prose, cards, shading, the comparison's table, claims.
    onset, drop, end = only(
        r"plateau near \S+ from step (\d+) to its drop at step (\d+), .* leaves that level after step (\d+)",
        html,
        both,
        shown,
    )
    assert only(r"plateau from step (\d+) to (\d+)", html) == (onset, drop)
    assert only(r'"plateau":\{"onset":(\d+),"drop":(\d+)\}', html, both) == (onset, drop)
    assert only(r"Drop \(step\)</th><td>(\d+)<", both) == drop
    assert only(r"Step of the drop +(\d+)", shown) == drop
    assert only(r"[\d.]+ at step (\d+): APM", html, both) == end
    left, width = map(float, only(r'class="band" x="([\d.]+)" y="0" width="([\d.]+)"', html))
    first, last = page.metrics["step"].iloc[[0, -1]]
    edges = [round(first + (last - first) * place / 100) for place in (left, left + width)]
    assert edges == pytest.approx([int(onset), int(drop)], abs=1)
    span = plot_curves(page, measures="loss").axes[0].patches[0].get_bbox()
    assert (span.x0, span.x1) == (int(onset), int(drop))
    # Peaks: cards, the comparison's table, claims, `show`.
    rho = only(r"Peak ρ</h2>\s*<p class=\"value\">([\d.]+) <small>at step (\d+)", html)
    assert only(r"peak ρ ([\d.]+) at step (\d+)", html, both) == rho
    assert only(r"Peak ρ</th><td>([\d.]+) at step (\d+)", both) == rho
    assert only(r"Peak ρ \(repetition\) +([\d.]+) at step (\d+)", shown) == rho
    cos = only(r"Peak COS</h2>\s*<p class=\"value\">([\d.]+) <small>at step (\d+)", html)
    assert only(r"<td>([\d.]+) at step (\d+), [\d.]+ at the drop", html, both) == cos
    assert only(r"Peak COS</th><td>([\d.]+) at step (\d+)", both) == cos
    assert only(r"Peak COS \(final\) +([\d.]+) at step (\d+)", shown) == cos
    assert int(cos[1]) < int(drop) > int(rho[1])
    # Attention progress, and whether the task was solved.
    apm = only(r"([\d.]+) → ([\d.]+) → ([\d.]+)<?", html)
    assert only(r"APM [\d.]+ of ([\d.]+) → ([\d.]+)", html, both) == (apm[0], apm[2])
    assert only(r"at the end +([\d.]+), ([\d.]+), ([\d.]+)", shown) == apm
    solved = only(r"Solved \(accuracy ≥ 0\.95\): (first at step \d+)\.", html, both, shown)
    assert only(r"; solved: (first at step \d+)", html) == solved
    assert only(r"Solved \(accuracy ≥ 0\.95\)(?:</th><td>| +)(first at step \d+)", both, shown) == solved


def test_a_run_that_diverged_is_unsolved_up_to_where_its_accuracy_is_defined(page):
    solved = key_numbers(page).solved_at
    metrics = page.metrics.copy()
    last = int(metrics["step"][metrics["step"] < solved].iloc[-1])

    def text(until: float) -> str:
        accuracy = metrics["accuracy"].where(metrics["step"] <= until)
        return solved_text(key_numbers(replace(page, metrics=metrics.assign(accuracy=accuracy))))

    assert text(last) == f"no, up to step {last}"
    first = int(metrics["step"][metrics["accuracy"].notna()].iloc[0])
    assert text(first) == f"no, up to step {first}"
    assert text(-1) == "undefined"
    assert text(solved) == f"first at step {solved}"


def test_a_run_that_ends_in_the_middle_of_its_drop_is_not_solved(page, monkeypatch, capsys):
    last = key_numbers(page).solved_at - 1
    assert last > page.plateau.end
    cut = replace(page, metrics=page.metrics[page.metrics["step"] <= last])
    said = f"olved (accuracy ≥ 0.95): no, up to step {last}"
    html = unescape(render_report(cut))
    assert html.count(said) == 2  # the verdict, the claims
    assert f"; solved: no, up to step {last}<" in html  # a card
    shown = shown_by_command(cut, monkeypatch, capsys)
    assert said in shown
    assert f"no, up to step {last}</td>" in render_report([cut, page])
