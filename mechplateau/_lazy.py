"""Names that are imported when they are first used, so that importing a package costs nothing; and names that moved."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED: Mapping[str, str] = {
    "mechplateau.circuits.TransferMatrix": "mechplateau.studies.transfer.TransferMatrix",
    "mechplateau.circuits.transfer_controls": "mechplateau.studies.transfer.transfer_controls",
    "mechplateau.circuits.transfer_matrix": "mechplateau.studies.transfer.transfer_matrix",
    "mechplateau.experiments": "mechplateau.studies",
    "mechplateau.experiments.summary": "mechplateau.studies.plateau.summary",
    "mechplateau.metrics.SOLVED": "mechplateau.signs.SOLVED",
    "mechplateau.metrics.Plateau": "mechplateau.signs.Plateau",
    "mechplateau.metrics.find_plateau": "mechplateau.signs.find_plateau",
    "mechplateau.metrics.solved_at": "mechplateau.signs.solved_at",
    "mechplateau.reporting": "mechplateau.report",
    "mechplateau.training.progress": "mechplateau.progress",
}
"""Names and modules that had another place → where they are now. What is in a module moves with it."""


def lazy_names(
    package: str, homes: Mapping[str, str], before: Callable[[str], None] = lambda name: None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`.

    Args:
        package: its `__name__`.
        homes: name → the module of the package that defines it.
        before: called with a name before its module is imported.
    """

    def find(name: str) -> Any:
        if name in homes:
            before(name)
            return getattr(import_module(f"{package}.{homes[name]}"), name)
        if (moved := MOVED.get(f"{package}.{name}")) is not None:
            return pkgutil.resolve_name(moved)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*vars(import_module(package)), *homes})

    return find, names


class MovedModules:
    """For `sys.meta_path`: importing a module by its former name gives the same module object as its present name."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if _now(name) is None else ModuleSpec(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(str(_now(spec.name)))
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # which Python has replaced by that of the former name


def _now(module: str) -> str | None:
    """Where a module is now; None where it did not move."""
    name, rest = module, ""
    while name.startswith("mechplateau."):
        if name in MOVED:
            return MOVED[name] + rest
        name, _, own = name.rpartition(".")
        rest = f".{own}{rest}"
    return None


def install() -> None:
    """Have former names of modules imported from now on."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedModules())
