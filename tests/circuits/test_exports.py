"""What `mechplateau.circuits` offers."""

from __future__ import annotations

import subprocess
import sys

import mechplateau.circuits as circuits


def test_every_name_is_there_documented_and_public():
    assert circuits.__all__ == sorted(circuits.__all__)
    assert set(circuits.__all__) == set(circuits._HOMES)
    for name in circuits.__all__:
        thing = getattr(circuits, name)
        assert callable(thing), name
        assert thing.__doc__, name
        assert thing.__module__.startswith("mechplateau.circuits."), name


def test_importing_costs_neither_scikit_learn_nor_transformer_lens():
    heavy = ("sklearn", "transformer_lens", "torch")
    code = f"import mechplateau.circuits, sys; print([name for name in {heavy} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
