"""The door: what is exported, that it is there, and that opening it costs nothing."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from importlib import import_module
from types import ModuleType

import pytest

import mechplateau
from mechplateau._lazy import MOVED


@pytest.mark.parametrize("name", mechplateau.__all__)
def test_every_exported_name_is_there_and_documented(name):
    value = getattr(mechplateau, name)
    assert isinstance(value, str) or value.__doc__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = mechplateau.nothing


def test_importing_is_free_of_heavy_imports_and_of_the_network():
    script = (
        "import socket\n"
        "def refuse(*a, **k): raise AssertionError('network at import')\n"
        "socket.socket.connect = refuse\n"
        "import sys, mechplateau\n"
        "heavy = {'torch', 'transformer_lens', 'triton', 'pandas', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "for name in mechplateau.__all__: getattr(mechplateau, name)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("former", MOVED)
def test_what_moved_is_still_found_by_its_former_name(former):
    there = pkgutil.resolve_name(former)
    assert there is pkgutil.resolve_name(MOVED[former])
    if isinstance(there, ModuleType):
        assert there.__spec__.name == there.__name__ == MOVED[former]


def test_a_module_is_the_same_by_both_names():
    from mechplateau.experiments.plateau import study
    from mechplateau.experiments.summary import summarize
    from mechplateau.studies.plateau import study as now

    assert study is now
    assert summarize.__module__ == "mechplateau.studies.plateau.summary"
    with pytest.raises(ModuleNotFoundError, match=r"mechplateau\.studies\.nothing"):
        import_module("mechplateau.experiments.nothing")
