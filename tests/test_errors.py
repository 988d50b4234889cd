from __future__ import annotations

import pytest

from mechplateau.errors import counted


@pytest.mark.parametrize(("number", "said"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs")])
def test_one_is_singular(number: int, said: str) -> None:
    assert counted(number, "run") == said
