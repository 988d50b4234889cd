"""kill -9 at any moment, then the same command: equal to an uninterrupted run, to the bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_runs_end_equal_to_the_uninterrupted_one(tmp_path):
    script = Path(__file__).with_name("kill_zygote.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MECHPLATEAU_KERNELS": "torch"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    kills = json.loads(done.stdout)
    assert len(kills) >= 20
    assert sum("in save" in kill for kill in kills) >= 5
