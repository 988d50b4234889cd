"""The notebooks: nothing of a machine in them, and public names only. `tests/notebooks` runs them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NAMES = (
    "00_train_and_look",
    "01_open_a_checkpoint",
    "02_who_carries_the_plateau",
    "03_composition_and_probes",
    "04_attention_transfer",
    "05_your_own_task",
    "06_kernels",
    "07_matrix_completion",
    "08_learning_coefficient",
    "09_stages",
    "10_the_solved_model",
)
LARGEST = 150_000
"""Bytes of a notebook with what it shows."""
OF_A_MACHINE = re.compile(
    r"/(tmp|home|root|work|Users|usr|content)/|[A-Z]:\\|\b0x[0-9a-f]{6,}|\d\d:\d\d:\d\d|\d%\||\b(it/s|s/it)\b"
)


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code(book):
    return [cell.source for cell in book.cells if cell.cell_type == "code"]


def test_these_are_all():
    assert tuple(sorted(path.stem for path in FOLDER.glob("*.ipynb"))) == NAMES


def test_each_names_the_next_one_so_that_all_are_one_tour():
    name, seen = NAMES[0], []
    while name is not None and name not in seen:
        seen.append(name)
        link = re.fullmatch(r"\*\*Next: \[(.+)\]\((.+)\.ipynb\)\*\*", read(name).cells[-1].source)
        if link:
            assert link[1] == read(link[2]).cells[0].source.splitlines()[0].removeprefix("# ")
        name = link and link[2]
    assert name is None
    assert tuple(sorted(seen)) == NAMES


def test_of_a_bar_nothing_is_kept_and_of_an_error_neither():
    spec = importlib.util.spec_from_file_location("keeping", FOLDER.parent / "docs/_site/notebooks.py")
    keeping = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(keeping)

    def stream(text, name="stdout"):
        return {"output_type": "stream", "name": name, "text": text}

    bar = [stream("\rprobe:  50%|#  |"), stream("\rprobe: 100%|###|"), stream("\r" + " " * 17), stream("\r")]
    words = stream("found in /there/run\n")
    shown = [keeping.kept(output, {"/there": "runs"}) for output in keeping.joined([*bar, words])]
    assert [output["text"] for output in shown] == ["found in runs/run\n"]
    assert keeping.kept(keeping.joined(bar)[0], {}) is None
    with pytest.raises(ValueError, match="expected no errors"):
        keeping.kept(stream("a warning", "stderr"), {})


@pytest.mark.parametrize("name", NAMES)
def test_they_are_valid_small_and_say_what_they_show(name):
    book = read(name)
    nbformat.validate(book)
    first = book.cells[0]
    assert first.cell_type == "markdown"
    title, _, rest = first.source.partition("\n")
    assert title.startswith("# ")
    assert rest.strip().startswith("Shows: ")
    assert (FOLDER / f"{name}.ipynb").stat().st_size < LARGEST
    assert book.cells[1].source == read(NAMES[0]).cells[1].source
    assert book.cells[1].source.startswith("# Where mechplateau is missing")


@pytest.mark.parametrize("name", NAMES)
def test_what_they_show_has_no_errors_and_nothing_of_a_machine(name):
    book = read(name)
    ran = [cell for cell in book.cells if cell.cell_type == "code" and cell.execution_count is not None]
    assert not ran or len(ran) == len(code(book))  # whole, or stripped
    for cell in ran:
        for output in cell.outputs:
            assert output.output_type != "error"
            assert output.get("name") != "stderr"
            texts = [
                output.get("text", ""),
                *(text for kind, text in output.get("data", {}).items() if kind != "image/png"),
            ]
            assert not any(OF_A_MACHINE.search(text) for text in texts), texts
    if ran:
        assert "end.png" in book.cells[0].attachments


@pytest.mark.parametrize("name", NAMES)
def test_they_say_what_to_look_for_and_what_was_seen(name):
    told = [cell.source for cell in read(name).cells if cell.cell_type == "markdown"]
    shown = [cell for cell in read(name).cells if cell.cell_type == "code" and cell.outputs]
    for word in ("Look", "Seen"):
        assert sum(word in text for text in told) >= len(shown) / 2, word


@pytest.mark.parametrize("name", NAMES)
def test_they_use_public_names_only(name):
    ours = ("mechplateau", "mechplateau_kernels")
    for source in code(read(name)):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ours:
                module = importlib.import_module(node.module)
                assert not any(part.startswith("_") for part in node.module.split("."))
                for alias in node.names:
                    assert alias.name in getattr(module, "__all__", [alias.name]), (node.module, alias.name)
                    assert not alias.name.startswith("_")
            if isinstance(node, ast.Attribute) and not node.attr.startswith("__"):
                assert not node.attr.startswith("_"), node.attr
