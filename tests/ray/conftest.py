"""One Ray node on this machine for all tests here, and jobs that are quick."""

from __future__ import annotations

import os

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Other work on a crowded machine would have it kill jobs of these tests.
os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112 (Ray spells it so)
os.environ.pop("RAY_ADDRESS", None)


def pytest_collection_modifyitems(items):
    for item in items:
        # Ray's own: sockets and files that it leaves to the garbage collector, and what it will change some day.
        for noise in ("ResourceWarning", "DeprecationWarning", "FutureWarning"):
            item.add_marker(pytest.mark.filterwarnings(f"ignore::{noise}"))
        item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
