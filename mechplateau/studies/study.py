"""A study: what one paper, or a question of ours, trains, draws and claims. One folder each, found by its name."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

from mechplateau.errors import UserError
from mechplateau.runs import Run
from mechplateau.studies.claims import Change, Claim
from mechplateau.studies.figures import Elsewhere, Figure
from mechplateau.studies.numbers import Numbers
from mechplateau.studies.recipes import Recipe
from mechplateau.studies.recorded import Reading
from mechplateau.views import SectionView


class Study:
    """Recipes, figures and claims that belong together, by name, id and id.

    Attributes:
        name: as in `mechplateau figure NAME/ID`; that of its folder.
        title: one line for lists.
        recipes: name → recipe.
        figures: id → figure.
        claims: in the order of their figures.
        numbers: what is read off a finished run, for claims and the record. Takes the run and the scale.
        elsewhere: id → a figure of the paper that is not made here.
        results: the folder that holds `runs.csv`, the results on record; None: there are none.
        reading: how those numbers that are a table's are read off it alone, so that tables are put on record; None:
            they are not.
        retired: id → why a claim that once stood there does not any more.
        setup: how all its recipes differ from the authors' set-ups, in a sentence or two; "" where they do not.
        sections: what a report shows of a run that is like the study's; takes any run, and has none of one that is not.
    """

    def __init__(
        self,
        *,
        name: str,
        title: str,
        recipes: Iterable[Recipe],
        figures: Iterable[Figure],
        claims: Iterable[Claim],
        numbers: Callable[[Run, str], Numbers],
        elsewhere: Mapping[str, Elsewhere] | None = None,
        results: Traversable | Path | None = None,
        reading: Reading | None = None,
        retired: Mapping[str, Change] | None = None,
        setup: str = "",
        sections: Callable[[Run], Sequence[SectionView]] = lambda run: (),
    ) -> None:
        """Takes the recipes, figures and claims in the order in which they are listed.

        Raises:
            ValueError: two have the same name, or one names another that is not there.
        """
        self.name, self.title, self.numbers, self.results = name, title, numbers, results
        self.reading, self.setup, self.sections = reading, setup, sections
        self.retired: Mapping[str, Change] = dict(retired or {})
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise ValueError(f"study {name!r}: expected a name of small letters, digits and '_'")
        self.recipes: Mapping[str, Recipe] = _by(f"{name}: recipe", recipes, lambda recipe: recipe.name)
        self.figures: Mapping[str, Figure] = _by(f"{name}: figure", figures, lambda figure: figure.id)
        self.claims = tuple(_by(f"{name}: claim", claims, lambda claim: claim.id).values())
        self.elsewhere: Mapping[str, Elsewhere] = dict(elsewhere or {})
        self._check()

    def _check(self) -> None:
        for recipe in self.recipes.values():
            if recipe.same_as is not None:
                self._recipe(f"recipe {recipe.name}", recipe.same_as)
            if recipe.start is not None and self._recipe(recipe.name, recipe.start.recipe).start is not None:
                raise ValueError(
                    f"{self.name}: recipe {recipe.name} starts from one that itself starts from another"
                )
        for figure in self.figures.values():
            whats = [self._recipe(f"figure {figure.id}", name).what for name in figure.recipes]
            if len(set(whats)) < len(whats):
                raise ValueError(f"{self.name}: figure {figure.id}: expected recipes that differ in `what`")
        for claim in self.claims:
            if claim.id in self.retired:
                raise ValueError(f"{self.name}: claim {claim.id}: its id was retired, and ids are for good")
            if claim.study != self.name or claim.figure not in self.figures:
                raise ValueError(
                    f"{self.name}: claim {claim.id}: no figure {claim.study}/{claim.figure} here"
                )
            for name in (claim.recipe, claim.over):
                if name is not None:
                    self._recipe(f"claim {claim.id}", name)

    def _recipe(self, asker: str, name: str) -> Recipe:
        if name not in self.recipes:
            raise ValueError(f"{self.name}: {asker}: no recipe {name!r}")
        return self.recipes[name]

    def figure(self, id: str) -> Figure:
        """The figure of that id.

        Raises:
            UserError: there is none, or it is one that is not made here.
        """
        if id in self.elsewhere:
            raise UserError(f"figure {id}: {self.elsewhere[id].why}")
        if id not in self.figures:
            raise UserError(
                f"figure {id}: expected one of {', '.join(self.figures)} of the study {self.name}"
            )
        return self.figures[id]


_T = TypeVar("_T")


def _by(what: str, things: Iterable[_T], key: Callable[[_T], str]) -> dict[str, _T]:
    found: dict[str, _T] = {}
    for thing in things:
        if key(thing) in found:
            raise ValueError(f"{what} {key(thing)}: there are two")
        found[key(thing)] = thing
    return found


_REGISTERED: dict[str, Study] = {}


def register_study(study: Study) -> Study:
    """Make a study known by its name, also from a notebook. The same name again replaces it."""
    _REGISTERED[study.name] = study
    return study


def study_names() -> tuple[str, ...]:
    """The studies there are: a folder each in this package, and those that were registered."""
    import mechplateau.studies

    folders = (found.name for found in pkgutil.iter_modules(mechplateau.studies.__path__) if found.ispkg)
    return tuple(sorted({*folders, *_REGISTERED}))


def study_named(name: str) -> Study:
    """The study of this name, whose folder is imported on first use.

    Raises:
        UserError: there is none.
    """
    if name not in study_names():
        raise UserError(f"study {name!r}: expected one of {', '.join(study_names())}")
    if name not in _REGISTERED:
        module: Any = importlib.import_module(f"mechplateau.studies.{name}.study")
        register_study(module.STUDY)
    return _REGISTERED[name]
