"""Pages that are made when the site is built: the reference of every public name, and the notebooks."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"

SHIM = "https://unpkg.com/iframe-worker/shim"
OWN_SHIM = "_site/iframe-worker.js"
FETCHED = re.compile(
    r'<(?:script|img|iframe)[^>]+src="https?:[^"]*"|<link[^>]+rel="stylesheet"[^>]+href="https?:[^"]*"'
)
"""What a browser would ask the network for."""

PACKAGES = {
    "mechplateau": "Everyday names",
    "mechplateau.config": "Configurations of runs",
    "mechplateau.tasks": "Tasks",
    "mechplateau.objectives": "Batches and objectives",
    "mechplateau.models": "Models",
    "mechplateau.interventions": "Interventions",
    "mechplateau.training": "Training",
    "mechplateau.runs": "Run folders",
    "mechplateau.metrics": "Metrics",
    "mechplateau.measurements": "Measurements",
    "mechplateau.signs": "Signs: numbers read off a table",
    "mechplateau.circuits": "Circuits: look inside",
    "mechplateau.development": "Development: learning coefficients and stages",
    "mechplateau.llm": "Series of language-model checkpoints",
    "mechplateau.studies": "Studies: figures and claims",
    "mechplateau.views": "Views: figures and pages",
    "mechplateau.report": "Reports of runs",
    "mechplateau.errors": "Errors",
    "mechplateau_kernels": "Kernels",
}


def public_names(package: str) -> list[str]:
    """The names that a package offers: its `__all__`, or what it defines."""
    module = importlib.import_module(package)
    offered = getattr(module, "__all__", None)
    if offered is not None:
        return [name for name in offered if not name.startswith("_")]
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == package
    ]


def home(package: str, name: str) -> str | None:
    """Where a class or function is defined, as `module.name`; None for a plain value, which the package's own page
    tells in words."""
    value: Any = getattr(importlib.import_module(package), name)
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return None
    return f"{value.__module__}.{value.__qualname__}"


def reference_pages() -> Iterator[tuple[str, str, str]]:
    """Path, title and text of each page of the reference. A name that two packages offer is described once, on the page
    of the package that defines it."""
    homes = {package: {name: home(package, name) for name in public_names(package)} for package in PACKAGES}
    owners: dict[str, str] = {}
    for package in sorted(PACKAGES, key=len, reverse=True):
        for place in homes[package].values():
            if place is not None and place.startswith(f"{package}."):
                owners.setdefault(place, package)
    for package, title in PACKAGES.items():
        lines = [
            f"# {title}",
            "",
            f"`{package}`",
            "",
            inspect.getdoc(importlib.import_module(package)) or "",
            "",
        ]
        for name, place in homes[package].items():
            if place is None:
                continue
            owner = owners.get(place, package)
            if owner == package:
                lines += [f"::: {place}", ""]
            else:
                lines += [
                    f"## `{name}`",
                    "",
                    f"Described in [{PACKAGES[owner]}]({_page(owner)}#{place}).",
                    "",
                ]
        yield f"reference/{_page(package)}", title, "\n".join(lines)


def _page(package: str) -> str:
    return f"{package.rpartition('.')[2]}.md"


def notebook_pages() -> Iterator[tuple[str, str, Path]]:
    """Path, title and file of each notebook, in the order of the tour."""
    for path in tour():
        first = "".join(json.loads(path.read_text())["cells"][0]["source"])
        yield f"notebooks/{path.name}", first.splitlines()[0].lstrip("# "), path


def tour() -> list[Path]:
    """The notebooks in the order in which each names the next one."""
    path: Path | None = min(NOTEBOOKS.glob("*.ipynb"))
    order: list[Path] = []
    while path is not None:
        order.append(path)
        last = "".join(json.loads(path.read_text())["cells"][-1]["source"])
        found = re.search(r"^\*\*Next: .*\((.*\.ipynb)\)\*\*$", last)
        path = NOTEBOOKS / found[1] if found else None
    return order


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The pages that are made here have their place in the navigation."""
    for section in config.nav:
        if "Reference" in section:
            section["Reference"] = [
                "reference/index.md",
                *({title: path} for path, title, _ in reference_pages()),
            ]
        if "Notebooks" in section:
            section["Notebooks"] = [
                "notebooks/index.md",
                *({title: path} for path, title, _ in notebook_pages()),
            ]
    return config


@event_priority(100)  # before the plugins that turn notebooks into pages
def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = list(reference_pages())
    for path, _, text in pages:
        files.append(File.generated(config, path, content=text))
    listed = "\n".join(f"- [{title}]({path.partition('/')[2]})" for path, title, _ in pages)
    files.append(
        File.generated(
            config,
            "reference/index.md",
            content="# Reference\n\nEvery public name, from its docstring: shapes, units, errors and sources.\n\n"
            f"{listed}\n",
        )
    )
    for path, _, source in notebook_pages():
        files.append(File(path, str(source.parents[1]), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """The numbers of notes in the table of claims are no links."""
    return re.sub(r"\[(\d+)\]", r"\\[\1\\]", markdown) if page.file.src_uri == "claims.md" else markdown


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """The theme asks the network for a script that searching needs where pages lie in a folder: it is here."""
    return output.replace(SHIM, get_relative_url(OWN_SHIM, page.url))


def on_post_template(output_content: str, **_: Any) -> str:
    return output_content.replace(SHIM, OWN_SHIM)


def on_post_build(config: MkDocsConfig) -> None:
    """No page fetches anything.

    Raises:
        PluginError: one does.
    """
    for path in sorted(Path(config.site_dir).rglob("*.html")):
        found = FETCHED.search(path.read_text(encoding="utf-8"))
        if found:
            raise PluginError(
                f"{path.name}: expected nothing that is fetched from the network, got {found[0]}"
            )
