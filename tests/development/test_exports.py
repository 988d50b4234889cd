"""What `mechplateau.development` offers."""

from __future__ import annotations

import subprocess
import sys

import mechplateau.development as development


def test_every_name_is_there_documented_and_public():
    assert development.__all__ == sorted(development.__all__)
    assert set(development.__all__) == set(development._HOMES)
    for name in development.__all__:
        thing = getattr(development, name)
        assert callable(thing), name
        assert thing.__doc__, name
        assert thing.__module__.startswith("mechplateau.development."), name


def test_importing_costs_neither_torch_nor_scikit_learn():
    heavy = ("sklearn", "scipy", "transformer_lens", "torch")
    code = f"import mechplateau.development, sys; print([name for name in {heavy} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
