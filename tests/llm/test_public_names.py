"""The package's door: every name is there, is the thing and not a module, and stays so when modules are imported."""

from __future__ import annotations

import importlib
import pkgutil
import types

import pytest

from mechplateau import llm


def test_every_name_is_there() -> None:
    for info in pkgutil.iter_modules(llm.__path__):
        importlib.import_module(f"mechplateau.llm.{info.name}")
    for name in llm.__all__:
        assert not isinstance(getattr(llm, name), types.ModuleType), name
        assert getattr(llm, name).__doc__, name
    assert set(llm.__all__) <= set(dir(llm))


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        llm.nothing  # noqa: B018
