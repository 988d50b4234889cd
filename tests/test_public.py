"""The door: what is exported, that it is there, and that opening it costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import mechplateau


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


def test_names_that_were_documented_before_a_move_are_still_there():
    from mechplateau import experiments, report, reporting
    from mechplateau.experiments import summary
    from mechplateau.studies.plateau.summary import summarize

    assert experiments.__doc__
    assert (reporting.run_view, reporting.save_report) == (report.run_view, report.save_report)
    assert summary.summarize is summarize
