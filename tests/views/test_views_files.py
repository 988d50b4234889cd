"""Where pages and pictures go: plain files whole or not at all, links followed, pipes and devices written to."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mechplateau.errors import UserError
from mechplateau.views import RunView, ViewError, attention_pattern, plot_curves

PAGE = attention_pattern(np.eye(2), ["a", "b"])
VIEW = RunView("x", "", pd.DataFrame({"step": [0, 1], "loss": [2.0, 1.0]}), None, (), (), ())


def test_a_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "there" / "page.html", tmp_path / "link.html"
    link.symlink_to(target)  # leads to nothing yet
    for token in ("first", "second"):
        assert attention_pattern(np.eye(1), [token]).save(link) == link
        assert link.is_symlink()
        assert f'"{token}"' in target.read_text(encoding="utf-8")
    assert [path.name for path in target.parent.iterdir()] == ["page.html"]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    """Figures and views go the same way."""
    views = {
        "curves.svg": plot_curves(VIEW),
        "view.html": PAGE,
    }
    for name, view in views.items():
        pipe, read = tmp_path / name, []
        os.mkfifo(pipe)
        reader = threading.Thread(target=lambda pipe=pipe, read=read: read.append(pipe.read_bytes()))
        reader.start()
        view.save(pipe)
        reader.join(timeout=20)
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        assert len(read[0]) > 3000
        assert read[0].rstrip().endswith((b"</svg>", b"</html>"))


def test_a_device_is_written_to(tmp_path: Path) -> None:
    null = tmp_path / "null"
    null.symlink_to("/dev/null")
    PAGE.save(null)
    assert stat.S_ISCHR(null.stat().st_mode)
    assert null.is_symlink()


def test_standard_output_goes_on_where_it_stands(tmp_path: Path) -> None:
    names = ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"]
    code = (
        "from mechplateau.views import attention_pattern; page = attention_pattern([[1.0]], ['a'])\n"
        f"for name in {names}: print('before', name); page.save(name); print('after', name)"
    )
    log = tmp_path / "log"
    log.write_text("older\n", encoding="utf-8")
    with log.open("ab") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
    text = log.read_text(encoding="utf-8").removeprefix("older\n")
    for name in names:
        page, after, text = text.partition(f"after {name}\n")
        assert page.startswith(f"before {name}\n<!DOCTYPE html>")
        assert page.endswith("</html>")
        assert after
    assert text == ""


def test_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    private = tmp_path / "private.html"
    private.touch(mode=0o600)
    PAGE.save(private)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE(PAGE.save(tmp_path / "new.html").stat().st_mode) & 0o444


@pytest.mark.parametrize("name", ["page.html", "figure.pdf"])
def test_a_name_that_ends_as_a_folders_does_is_refused(name: str, tmp_path: Path) -> None:
    view = plot_curves(VIEW) if name == "figure.pdf" else PAGE
    with pytest.raises(UserError, match=f"{name}/: is a folder; expected the name of a file"):
        view.save(f"{tmp_path}/{name}/")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ViewError, match="is a folder; expected the name of a file"):
        PAGE.save(tmp_path)
    assert list(tmp_path.iterdir()) == []
