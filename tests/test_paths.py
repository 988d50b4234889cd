"""Paths as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mechplateau.config import RunConfig
from mechplateau.errors import CheckpointError, ConfigError, UserError
from mechplateau.files import local_path
from mechplateau.llm import load_prompts
from mechplateau.models import load_reference_checkpoint
from mechplateau.views.embed import View
from mechplateau.views.figure import PaperFigure


def test_a_tilde_is_the_home_folder_and_nothing_else_is_changed(monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere")
    assert local_path("~/runs") == local_path(Path("~/runs")) == Path("/somewhere/runs")
    assert local_path("~") == Path("/somewhere")
    for name in ("~nobody-of-this-name/x", "a:b", "s3:x", "./~", "a/~/b"):
        assert local_path(name) == Path(name)
    with pytest.raises(UserError, match="expected a path, got ''"):
        local_path("")


def test_whatever_takes_a_path_takes_it_so(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "prompts.txt").write_text("one\ntwo\n")
    assert load_prompts("~/prompts.txt") == ["one", "two"]
    assert View("", []).save("~/view.html") == tmp_path / "view.html"
    assert PaperFigure(width=1, height=1).save("~/figure.png") == tmp_path / "figure.png"
    assert (tmp_path / "figure.png").is_file()
    with pytest.raises(CheckpointError, match=f"{tmp_path}/none.pt: no such file"):
        load_reference_checkpoint("~/none.pt")
    init = {"kind": "optimal_init", "parts": "KQ", "source": "~/none.safetensors"}
    with pytest.raises(ConfigError, match=f"{tmp_path}/none.safetensors: no such file"):
        RunConfig.for_task("mws", interventions=[init])
