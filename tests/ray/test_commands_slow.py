"""Every command with --executor ray, as a user gives it: it writes and prints what local processes do.

Minutes; run by `make test-slow`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("ray", reason="Ray is not installed here; `make test-ray` has an environment with it")

from .raylets import RUNS, files_of, two_raylets

pytestmark = pytest.mark.slow

KEPT_RUN = Path(__file__).parents[1] / "data" / "copy-62e708e1119f"
CHAINS = ("--steps=all", "--chains=2", "--draws=3", "--n-beta=50")
PROMPTS = ("--prompts=prompts", "--n-tokens=3")
COMMANDS = {
    "sweep": ("sweep", "mws", *RUNS, "--set=training.steps=60", "--set=training.lr=1e-3,1e-2", "--seeds=2"),
    "figure": ("figure", "18", "--scale=small"),
    "reproduce": ("reproduce", "solved", "--scale=small"),
    "llc": ("llc", KEPT_RUN.name, *CHAINS, "--out=llc.png"),
    "llm": ("llm", "series", *PROMPTS, "--llc", "--llc-row=8", "--llc-chains=2", "--llc-draws=3"),
}
CLUSTERS = {
    "started here": ("--executor=ray",),
    "of RAY_ADDRESS": ("--executor=ray",),
    "collected": ("--executor=ray", "--collect"),
}


@pytest.fixture(scope="module")
def address():
    with two_raylets() as cluster:
        yield cluster.address


@pytest.fixture(scope="module")
def made(series, tmp_path_factory, address):
    """What a command writes and prints on such a cluster (None: in local processes); each is given once.

    The series stays where it is: the name of its analysis depends on that.
    """
    known = {}

    def of(command, where):
        if (command, where) not in known:
            folder = tmp_path_factory.mktemp("made")
            shutil.copytree(KEPT_RUN, folder / "runs" / KEPT_RUN.name)
            (folder / "prompts").write_text("why is ice cold\nice is food\nfood why food is\n" * 4)
            words = [str(series) if word == "series" else word for word in COMMANDS[command]]
            words += ("--threads=1", *(("--jobs=2",) if where is None else CLUSTERS[where]))
            named = {"RAY_ADDRESS": address} if where in ("of RAY_ADDRESS", "collected") else {}
            done = subprocess.run(
                [sys.executable, "-m", "mechplateau", *words],
                cwd=folder,
                env={**os.environ, "COLUMNS": "120", **named},
                capture_output=True,
                text=True,
                timeout=1500,
            )
            assert done.returncode == 0, (done.stdout, done.stderr)
            assert "lost" not in done.stderr
            known[command, where] = folder, done.stdout
        return known[command, where]

    return of


def lines_of(printed):
    """In any order, as runs end; without their place in it, and without ages."""
    return sorted(re.sub(r"^\[\d+/|\s+(age|\d+ (s|min))\s*$", "", line) for line in printed.splitlines())


@pytest.mark.parametrize("where", CLUSTERS)
@pytest.mark.parametrize("command", COMMANDS)
def test_it_makes_what_local_processes_make(made, command, where):
    alone, said = made(command, None)
    folder, told = made(command, where)
    expected, found = files_of(alone), files_of(folder)
    assert sorted(found) == sorted(expected)
    for name in expected:
        if name.endswith(".pdf"):
            continue  # has the time at which it was made
        if name.startswith("figures/") and name.endswith(".parquet"):
            pd.testing.assert_frame_equal(
                pd.read_parquet(folder / name), pd.read_parquet(alone / name), check_exact=True
            )
        assert found[name] == expected[name], name
    assert lines_of(told) == lines_of(said)
