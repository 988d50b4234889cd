"""A full sweep at paper size stays below 2 GB, the process with all its libraries included."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, resource, torch
torch.set_num_threads(1)
from mechplateau import RunConfig, build_model
from mechplateau.circuits import patch_sweep
config = RunConfig.for_task("mws")
task = config.task
sizes = {"vocab_size": task.vocab_size, "n_ctx": task.n_ctx}
models = [
    build_model(config.model, **sizes, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)
]
class Heard:
    reports = 0
    def __init__(self, **given): pass
    def update(self, n): Heard.reports += 1
    def close(self): pass

result = patch_sweep(*models, task.sample(64, seed=0), rows=task.output_rows, progress=Heard)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"peak": peak, "patches": len(result.table), "reports": Heard.reports}))
"""


@pytest.mark.slow
def test_a_sweep_at_paper_size_stays_below_two_gigabytes():
    out = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    told = json.loads(out.stdout.splitlines()[-1])
    assert told["patches"] == 23 * 32
    assert told["peak"] < 2e9
    assert told["reports"] == 23
