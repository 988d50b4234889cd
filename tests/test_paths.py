"""Paths as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mechplateau.errors import UserError
from mechplateau.paths import local_path


def test_a_tilde_is_the_home_folder_and_nothing_else_is_changed(monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere")
    assert local_path("~/runs") == local_path(Path("~/runs")) == Path("/somewhere/runs")
    assert local_path("~") == Path("/somewhere")
    for name in ("~nobody-of-this-name/x", "a:b", "s3:x", "./~", "a/~/b"):
        assert local_path(name) == Path(name)
    with pytest.raises(UserError, match="expected a path, got ''"):
        local_path("")
