"""The GPU check on a machine without a GPU, its report, and its handling of what goes wrong."""

import json
import subprocess
import sys
from pathlib import Path

import gpu_check
import gpu_report
import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")


def test_its_sections_in_the_interpreter(run_cases):
    pytest.importorskip("triton", reason="the interpreter comes with triton")
    run_cases(["gpu_check_cases.py"], "not slow", TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")


@needs_no_gpu
def test_without_a_gpu_it_runs_to_the_end_and_measures_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(tmp_path / "new" / "folder")],
        capture_output=True, text=True, timeout=120, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "No CUDA device" in done.stdout
    content = json.loads((tmp_path / "new" / "folder" / "kernels.json").read_text())
    assert [s["title"] for s in content["sections"]] == gpu_check.TITLES
    assert {s["status"] for s in content["sections"]} == {"not yet measured: no CUDA device"}
    assert content["environment"]["torch"] == torch.__version__
    assert (tmp_path / "new" / "folder" / "kernels.md").read_text().count("not yet measured") == len(
        gpu_check.TITLES
    )


def test_a_broken_section_is_recorded_and_the_next_one_runs(tmp_path, capsys):
    report = gpu_report.Report(tmp_path, 100)

    def broken(section):
        section.rows.append({"a": 1.23456789, "ok": True})
        raise RuntimeError("no luck")

    report.run("first", broken)
    report.run("second", lambda section: section.rows.append({"b": True}))
    content = json.loads((tmp_path / "kernels.json").read_text())["sections"]
    assert content[0]["status"].startswith("failed: RuntimeError: no luck")
    assert content[0]["rows"] == [{"a": 1.23456789, "ok": True}]
    assert content[1]["status"] == "done"
    assert report.failed()
    assert "no luck" in capsys.readouterr().err


def test_a_false_row_is_a_failure_and_a_true_one_is_not(tmp_path):
    report = gpu_report.Report(tmp_path, 100)
    report.run("good", lambda section: section.rows.append({"ok": True}))
    assert not report.failed()
    report.run("bad", lambda section: section.rows.append({"ok": False}))
    assert report.failed()
    assert "| NO |" in (tmp_path / "kernels.md").read_text()


def test_what_does_not_fit_the_budget_is_left_out_and_says_so(tmp_path):
    report = gpu_report.Report(tmp_path, 3)
    report.run("long", lambda section: pytest.fail("must not run"), needs_s=10)
    (section,) = json.loads((tmp_path / "kernels.json").read_text())["sections"]
    assert section["status"].startswith("not measured: ")
    assert not report.failed()


def test_the_table_has_every_rows_columns():
    lines = gpu_report.table([{"a": 1, "b": 0.123456}, {"a": None, "c": False}])
    assert lines == ["| a | b | c |", "|---|---|---|", "| 1 | 0.1235 |  |", "|  |  | NO |"]


def test_a_worker_that_dies_or_is_late_is_a_failure(tmp_path):
    section = gpu_report.Section("")
    # An unknown mode makes the worker fail before it measures anything.
    rows = gpu_check._in_processes(
        [[["exact", [1, 16, 16], 99]]], section, gpu_check.time.monotonic() + 100, {}
    )
    assert rows == [{"op": "worker", "ok": False}]
    assert "IndexError" in section.notes[0]
    rows = gpu_check._in_processes([[["exact", [1, 16, 16], 0]]], section, gpu_check.time.monotonic(), {})
    assert rows == [{"op": "worker", "ok": False}]
    assert "out of time" in section.notes[1]


def test_with_a_gpu_every_section_runs_in_order(tmp_path, monkeypatch):
    """Played through without one: what each section does is tested elsewhere."""
    gpu_correctness = pytest.importorskip("gpu_correctness")
    import gpu_long
    import gpu_step
    import gpu_timings

    ran = []

    def play(module, name):
        def section_of_it(section, *rest, **keywords):
            ran.append(name)
            section.rows.append({"ok": True})

        monkeypatch.setattr(module, name, section_of_it)

    for module, names in (
        (gpu_check, ["measure_ceilings", "correctness", "other_ptxas", "memory_checks"]),
        (gpu_correctness, ["cosine_tolerances", "second_derivatives", "determinism", "graphs_and_waiting"]),
        (gpu_step, ["trajectory", "times", "times_on_hooked"]),
        (gpu_timings, ["attention", "cosine"]),
        (gpu_long, ["correctness", "times"]),
    ):
        for name in names:
            play(module, name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_check, "environment", lambda: {"card": "a card"})
    monkeypatch.setattr(gpu_check.mk, "backend_report", lambda: {"self_checks": {}})
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--out", str(tmp_path)])
    assert gpu_check.main() == 0
    assert len(ran) == len(gpu_check.TITLES)
    content = json.loads((tmp_path / "kernels.json").read_text())
    assert [s["title"] for s in content["sections"]] == gpu_check.TITLES
    assert {s["status"] for s in content["sections"]} == {"done"}

    play(gpu_check, "memory_checks")
    monkeypatch.setattr(gpu_step, "times", lambda *_: 1 / 0)
    assert gpu_check.main() == 1


def test_the_steps_time_on_a_hooked_transformer(monkeypatch):
    gpu_step = pytest.importorskip("gpu_step")
    monkeypatch.setattr(gpu_step, "_milliseconds", lambda step, rounds, warmup: step() and 2.0)
    section = gpu_report.Section("")
    gpu_step.times_on_hooked(section, {"ms": 6.0}, "cpu")
    assert not section.notes
    times, checks = section.rows[:3], section.rows[3:]
    assert {row["model"] for row in section.rows} == {"HookedTransformer"}
    assert [row["paper's / this"] for row in times] == [3.0, 3.0, 3.0]
    assert "update and measurement as CUDA graphs" in times[2]["step"]
    assert [row["ok"] for row in checks] == [True, True]


def test_a_measurement_whose_replay_is_off_fails(monkeypatch):
    gpu_step = pytest.importorskip("gpu_step")
    from mechplateau.training.graphed import GraphedMeasurement

    monkeypatch.setattr(gpu_step, "_milliseconds", lambda step, rounds, warmup: 2.0)
    right = GraphedMeasurement.__call__
    monkeypatch.setattr(GraphedMeasurement, "__call__", lambda self, *tokens: right(self, *tokens) + 1e-4)
    section = gpu_report.Section("")
    gpu_step.times_on_hooked(section, {}, "cpu")
    assert [row["ok"] for row in section.rows[3:]] == [False, False]


def test_memcheck_leaves_the_drivers_answers_alone(tmp_path, monkeypatch):
    commands = []

    def run(command, **keywords):
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "========= ERROR SUMMARY: 0 errors\n", "")

    monkeypatch.setattr(gpu_check.shutil, "which", lambda name: name)
    monkeypatch.setattr(gpu_check.subprocess, "run", run)
    section = gpu_report.Section("")
    gpu_check.memory_checks(section, gpu_report.Report(tmp_path, 100))
    assert [row["ok"] for row in section.rows] == [True, True]
    memcheck = commands[0]
    assert memcheck[memcheck.index("--report-api-errors") + 1] == "no"
    assert memcheck.index("--report-api-errors") < memcheck.index(sys.executable)


def test_every_input_is_drawn_once_and_the_mask_is_made_once(monkeypatch):
    gpu_timings, peers = pytest.importorskip("gpu_timings"), pytest.importorskip("kernel_peers")
    drawn = []
    case = peers.AttentionCase(1, 4, 1, 4)
    right = peers.AttentionCase.inputs

    def inputs(self, device, seed=0):
        drawn.append(seed)
        return right(self, device, seed)

    monkeypatch.setattr(peers.AttentionCase, "inputs", inputs)
    monkeypatch.setattr(gpu_timings, "ATTENTION", [case])
    monkeypatch.setattr(gpu_timings, "_attention_case", lambda *_: None)
    gpu_timings.attention(gpu_report.Section(""), {}, lambda: 100.0, "cpu")
    assert drawn == list(range(gpu_timings.SETS))

    q, k, v, _ = right(case, "cpu")
    first = peers.eager_attention(q, k, v, case.chosen("cpu"))
    monkeypatch.setattr(torch, "ones", lambda *_, **__: pytest.fail("the mask is made again"))
    again = peers.eager_attention(q, k, v, case.chosen("cpu"))
    assert torch.equal(first[0], again[0])


def test_packages_that_travel_are_found_last(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "packages" / "flash_linear_attention-9.9.dist-info").mkdir(parents=True)
    (tmp_path / "packages" / "flash_linear_attention-9.9.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: flash-linear-attention\nVersion: 9.9\n"
    )
    out, packages = str(tmp_path / "out"), str(tmp_path / "packages")
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--out", out, "--packages", packages])
    assert gpu_check.main() == 0
    assert sys.path[-1] == packages
    facts = json.loads((tmp_path / "out" / "kernels.json").read_text())["environment"]
    assert facts["flash-linear-attention"] == "9.9"


def test_without_mechplateau_the_hooked_rows_are_left_out_with_a_note(monkeypatch):
    gpu_step = pytest.importorskip("gpu_step")
    monkeypatch.setitem(sys.modules, "mechplateau.training.step", None)
    section = gpu_report.Section("")
    gpu_step.times_on_hooked(section, {}, "cpu")
    assert not section.rows
    assert "cannot be imported here" in section.notes[0]
