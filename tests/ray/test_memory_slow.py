"""A node whose memory runs out: Ray ends the worker, and the job is begun again.

Half a minute; run by `make test-slow`. It fills 3 GiB for some seconds.
"""

from __future__ import annotations

import time

import numpy as np
import psutil
import pytest

pytest.importorskip("ray", reason="Ray is not installed here; `make test-ray` has an environment with it")

from mechplateau.training import executor
from mechplateau.training.cluster.on_ray import RayCluster
from mechplateau.training.executor import Job, job_function, submit

pytestmark = pytest.mark.slow

FILLED = 3 * 2**30


def fill(folder, threads, times):
    """Takes much memory, so many times."""
    folder.mkdir(exist_ok=True)
    tries = len(list(folder.iterdir()))
    (folder / f"try{tries}").touch()
    print(f"try {tries}", flush=True)
    if tries < times:
        held = np.ones(FILLED, dtype=np.int8)
        time.sleep(60)
        del held


@pytest.fixture
def cluster():
    """A node that calls its memory full when two thirds of what a job fills are taken."""
    from ray._private.utils import get_used_memory  # as Ray counts it, in a container too
    from ray.cluster_utils import Cluster

    threshold = (get_used_memory() + FILLED * 2 / 3) / psutil.virtual_memory().total
    system = {"memory_usage_threshold": threshold, "memory_monitor_refresh_ms": 100}
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": system}
    found = Cluster(initialize_head=True, head_node_args=head)
    yield found
    found.shutdown()


def test_a_job_whose_node_runs_out_of_memory(cluster, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(executor, "_FUNCTIONS", {})
    fill.__module__ = "__main__"
    job_function("fill")(fill)
    job = Job("fill", {"times": 1}, tmp_path / "fills")
    with RayCluster(cluster.address, retries=3) as executor_on_ray:
        (result,) = submit([job], workers=1, executor=executor_on_ray)
    assert (result.outcome, result.message) == ("finished", "")
    assert result.tries > 1
    assert (
        "fills: lost (its node ran out of memory); it resumes from its last save: retry 1 of 3" in caplog.text
    )
