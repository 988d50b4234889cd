"""Run the notebooks, and keep what they show: small, and without a word about the machine.

python docs/_site/notebooks.py                  all of them: some minutes
python docs/_site/notebooks.py 00 05            some

The last picture of each becomes the one it opens with.
"""

from __future__ import annotations

import argparse
import base64
import io
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from PIL import Image

FOLDER = Path(__file__).parents[2] / "notebooks"
WIDTH = 800
"""Pixels of a picture at most."""
COLORS = 64
LARGEST_TABLE = 20_000
"""Characters of a table as HTML; a larger one stays as plain text."""
OPENING = "end.png"
SECONDS_A_CELL = 900
TABLE = re.compile(r"\s*<div>\s*<style scoped>.*?</style>\s*(<table.*</table>)", re.DOTALL)


def executed(path: Path, runs: Path) -> nbformat.NotebookNode:
    """The notebook with what its cells show, run in an empty folder."""
    book = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(book, timeout=SECONDS_A_CELL, kernel_name="python3")
        environment = os.environ | {"MECHPLATEAU_RUNS": str(runs), "IPYTHONDIR": f"{folder}/.ipython"}
        environment.pop("MECHPLATEAU_FULL", None)
        client.execute(env=environment, cwd=folder)
        for cell in book.cells:
            cell.metadata = {}
            if cell.cell_type == "code":
                names = {str(runs): "runs", folder: "."}
                shown = [kept(output, names) for output in joined(cell.outputs)]
                cell.outputs = [nbformat.from_dict(output) for output in shown if output is not None]
    opened(book)
    return book


def joined(outputs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The outputs with pieces of one stream in one: a bar writes over its own line, piece by piece."""
    whole: list[dict[str, Any]] = []
    for output in outputs:
        before = whole[-1] if whole else {}
        if output["output_type"] == "stream" and before.get("name") == output["name"]:
            whole[-1] = {**before, "text": before["text"] + output["text"]}
        else:
            whole.append(output)
    return whole


def kept(output: dict[str, Any], names: dict[str, str]) -> dict[str, Any] | None:
    """An output as it is committed; None where nothing of it is.

    Args:
        output: what a cell showed.
        names: folders of this machine → what is written in their place.

    Raises:
        ValueError: it is an error, or was written to stderr.
    """

    def plain(text: str) -> str:
        for folder, name in names.items():
            text = text.replace(folder, name)
        return text

    if output["output_type"] == "error" or output.get("name") == "stderr":
        raise ValueError(f"expected no errors, got {output}")
    if output["output_type"] == "stream":
        text = plain(output["text"])
        text = "\n".join(line.rpartition("\r")[2] for line in text.replace("\r\n", "\n").split("\n"))
        return {**output, "text": text} if text.strip() else None
    data = {}
    for kind, content in output["data"].items():
        if kind == "image/png":
            data[kind] = smaller(content)
        elif kind == "text/html" and (table := TABLE.match(content)) and len(table[1]) < LARGEST_TABLE:
            data[kind] = plain(table[1])
        elif kind == "text/plain":
            data[kind] = plain(content)
    page = output["data"].get("text/html")
    if page is not None and TABLE.match(page) is None and "image/png" not in data:
        data["text/plain"] = "A view to move about in: run the cell to see it."
    if "image/png" in data:
        data["text/plain"] = "A picture."
    return {**output, "data": data, "metadata": {}} if data else None


def smaller(png: str) -> str:
    """A picture of few colors and no more pixels than a page shows, as base64."""
    with Image.open(io.BytesIO(base64.b64decode(png))) as image:
        whole = image.convert("RGB")
        whole.thumbnail((WIDTH, 10 * WIDTH))
        out = io.BytesIO()
        whole.quantize(COLORS).save(out, "PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode()


def opened(book: nbformat.NotebookNode) -> None:
    """Put the last picture of the notebook into its first cell."""
    pictures = [
        output["data"]["image/png"]
        for cell in book.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    first = book.cells[0]
    first.source = first.source.partition("\n\n![")[0]
    first.source += f"\n\n![What this notebook ends with: its last picture](attachment:{OPENING})"
    first["attachments"] = {OPENING: {"image/png": pictures[-1]}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("numbers", nargs="*", help="which; all if left out")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    asked = parser.parse_args()
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not asked.numbers or path.name[:2] in asked.numbers:
            book = executed(path, asked.runs.absolute())
            nbformat.write(book, path)
            print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
