"""A wheel in a bare environment: the first cell of a notebook installs it; it works with old and new versions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import nbformat
import pytest
import yaml

ROOT = Path(__file__).parents[1]
OLDEST = ROOT / "requirements.oldest"
TARGETS = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
EVERYDAY = """
import mechplateau
from mechplateau.circuits import patch_sweep
from mechplateau.report import run_view
from mechplateau.views import attention_pattern, plot_curves

run = mechplateau.example("mws", runs_dir="runs")
model, tokens = run.model("during"), run.task.sample(8, seed=0)
logits, cache = model.run_with_cache(tokens[:, :-1])
found = patch_sweep(model, run.model("after"), tokens, rows=run.task.output_rows, positions="all")
assert len(found.table) and found.table["recovered_loss"].notna().all()
assert run.metrics["loss"].notna().all()
plot_curves(run_view(run, pictures=False), measures=("loss", "accuracy")).save("curves.pdf")
attention_pattern(cache["pattern", 0][0, 0].detach().numpy(), model.to_str_tokens(tokens[0, :-1])).save("view.html")
print(mechplateau.__file__)
"""


def versions(lines):
    """Name, as pip compares names, → version or lower bound."""
    found = (re.match(r"([\w.-]+)(?:\[.*\])?(?:==|>=)(\d+(?:\.\d+)*)", line) for line in lines)
    return {
        re.sub(r"[-_.]+", "-", one[1]).lower(): tuple(int(part) for part in one[2].split("."))
        for one in found
        if one
    }


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_lower_bounds_are_the_versions_that_are_tried(project):
    bounds = versions(project["dependencies"])
    tried = versions(OLDEST.read_text().splitlines())
    assert bounds.pop("torch") < tried.pop("torch") == (2, 13, 0)
    assert len(bounds) > 20
    for name, bound in bounds.items():
        assert tried[name][: len(bound)] == bound, name
        assert not any(tried[name][len(bound) :]), name  # 2.10 is 2.10.0


def test_the_package_says_what_it_is(project):
    assert project["dynamic"] == ["readme"]
    assert "Typing :: Typed" in project["classifiers"]
    for package in ("mechplateau", "kernels/mechplateau_kernels"):
        assert (ROOT / package / "py.typed").is_file()


def test_the_citation_names_the_papers_that_the_package_names_and_their_authors(project):
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == project["version"]
    papers = {paper["url"]: paper for paper in cited["references"]}
    assert set(papers) == {url for name, url in project["urls"].items() if name.startswith("Paper")}
    for paper in papers.values():
        assert all(author["family-names"] and author["given-names"] for author in paper["authors"])


def test_the_readme_in_a_package_links_to_nothing_that_is_not_there():
    """A wheel has no files beside its README: as relative links, pictures and pages would be dead on PyPI."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    relative = [target for target in TARGETS.findall(readme) if "://" not in target]
    assert len(relative) > 15
    assert all((ROOT / target).is_file() for target in relative)
    command = (sys.executable, "-m", "hatch_fancy_pypi_readme")
    told = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, encoding="utf-8"
    ).stdout
    assert TARGETS.findall(told) == [target for target in TARGETS.findall(readme) if "://" in target]
    assert "![" not in told
    assert "are in the project's repository" in told
    assert "```python" in told


@pytest.fixture
def done(tmp_path):
    """Runs a command in an empty folder, without this checkout on its path, and returns what it prints."""

    def run(*command, **environment):
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        ended = subprocess.run(command, cwd=tmp_path, env=kept | environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


@pytest.fixture
def wheel(tmp_path, done):
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    done(*pip, "--wheel-dir", str(tmp_path), str(ROOT))
    (made,) = tmp_path.glob("mechplateau-*.whl")
    done(sys.executable, "-m", "venv", str(tmp_path / "bare"))
    return made


def description(wheel):
    """The long description in a wheel's METADATA."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name).decode().partition("\n\n")[2]


@pytest.mark.slow
def test_the_first_cell_installs_in_a_bare_environment(tmp_path, done, wheel):
    book = nbformat.read(ROOT / "notebooks" / "00_train_and_look.ipynb", as_version=4)
    cell = book.cells[1].source.replace(', "transformer-lens<4"', "")  # no network here
    for _ in range(2):  # then it does nothing
        script = f"{cell}\nprint(mechplateau.__version__)\nprint(mechplateau.__file__)"
        out = done(
            *(str(tmp_path / "bare/bin/python"), "-c", script),
            MECHPLATEAU_SOURCE=str(wheel),
            PIP_NO_DEPS="1",
            PIP_NO_INDEX="1",
        )
        assert str(tmp_path / "bare") in out.splitlines()[-1]
    assert wheel.stat().st_size < 8_000_000
    assert all(target.startswith("https://") for target in TARGETS.findall(description(wheel)))


@pytest.mark.slow
@pytest.mark.wheel
@pytest.mark.parametrize(
    "asked",
    [("--constraint", str(OLDEST)), ("torch==2.13.0", "transformer-lens<4")],
    ids=["oldest", "newest"],
)
def test_a_bare_environment_trains_looks_inside_and_reports(tmp_path, done, wheel, asked):
    programs = tmp_path / "bare/bin"
    done(str(programs / "pip"), "install", "--quiet", str(wheel), *asked)
    if asked[0] == "--constraint":
        there = done(str(programs / "pip"), "list", "--format=freeze").splitlines()
        tried = versions(OLDEST.read_text().splitlines())
        assert {name: version for name, version in versions(there).items() if name in tried} == tried

    else:
        # What PyPI would show of the README; it refuses a package whose README it cannot render.
        done(str(programs / "pip"), "install", "--quiet", "readme-renderer[md]")
        (tmp_path / "README.md").write_text(description(wheel), encoding="utf-8")
        shown = done(str(programs / "python"), "-m", "readme_renderer", "README.md")
        assert "<table>" in shown
        assert "<h2" in shown

    def ours(*words):
        return done(str(programs / "mechplateau"), *words, OMP_NUM_THREADS="1")

    assert ours("--version").startswith("mechplateau ")
    for command in ("train", "list", "show", "report", "figure", "llm"):
        assert "Usage" in ours(command, "--help")
    small = ("--preset", "small", "--set", "training.steps=20", "--runs-dir", "runs")
    ours("train", "mws", *small)
    assert "Final loss" in ours("show", "mws", "--runs-dir", "runs")
    assert "mws" in ours("list", "--runs-dir", "runs")
    ours("report", "mws", "--runs-dir", "runs")
    (page,) = tmp_path.glob("runs/*/report.html")
    assert page.stat().st_size > 4_000_000
    assert str(programs.parent) in done(str(programs / "python"), "-c", EVERYDAY).splitlines()[-1]
    assert (tmp_path / "curves.pdf").stat().st_size > 1000
