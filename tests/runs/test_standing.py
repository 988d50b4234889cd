"""How far a run is, as its folder says."""

from __future__ import annotations

import re

import pytest

from mechplateau.runs.record import Record, Standing, standing

ENDED = {"last": 6, "checkpoints": (0, 2, 4, 6), "reached": 6}
HALF = {"table_problem": "metrics.parquet is missing", "checkpoints": (0, 2, 4), "reached": 4}
NOTHING = {"table_problem": "metrics.parquet is missing"}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        # The table and the last checkpoint say that it is finished, whatever the state says.
        ({**ENDED, "state": "finished"}, Standing(finished=6)),
        ({**ENDED, "state": "running"}, Standing(finished=6)),
        ({**ENDED, "state": "running", "resume": 6}, Standing(finished=6)),
        ({**ENDED, "state": None}, Standing(finished=6)),
        ({**ENDED, "state": "archived"}, Standing(finished=6)),
        # Its last checkpoint is gone: finished where the state says so too.
        ({**ENDED, "checkpoints": (0, 2), "state": "finished"}, Standing(finished=6)),
        ({**ENDED, "checkpoints": (0, 2), "state": "running", "resume": 6}, Standing(resume=6)),
        (
            {**ENDED, "checkpoints": (0, 2), "state": None},
            r"step 6, .* \(the checkpoint of step 6 is missing\); put",
        ),
        # The table is gone or damaged.
        ({**HALF, "state": "finished"}, "says finished, but metrics.parquet is missing; put a copy back"),
        ({**HALF, "state": "finished", "resume": 4}, "says finished, but metrics.parquet is missing"),
        (
            {**HALF, "state": None},
            r"trained up to step 4, .* \(its resume folder is empty\); put a copy back",
        ),
        # On its way.
        ({**HALF, "state": "running", "resume": 4}, Standing(resume=4)),
        ({**HALF, "state": "interrupted", "resume": 2, "resume_problem": "x"}, Standing(resume=2)),
        ({**HALF, "state": None, "resume": 4}, Standing(resume=4)),
        ({**HALF, "state": "running", "resume_problem": "damaged"}, r"step 4, .* \(damaged\); put a copy"),
        ({**HALF, "state": "archived", "resume": 4}, "'archived', which this version .*; update mechplateau"),
        # Killed before anything but its beginning was saved.
        (NOTHING, Standing()),
        ({**NOTHING, "state": "running"}, Standing()),
        ({**NOTHING, "state": "running", "checkpoints": (0,)}, Standing()),
        ({**NOTHING, "state": "running", "checkpoints": (0,), "resume": 0}, Standing(resume=0)),
        ({**NOTHING, "state": "running", "checkpoints": (0,), "resume_problem": "damaged"}, Standing()),
    ],
)
def test_how_far_a_run_is(record, expected):
    found = standing(Record(**record))
    if isinstance(expected, Standing):
        assert found == expected
    else:
        assert found.problem is not None
        assert re.search(expected, found.problem)
        assert (found.finished, found.resume) == (None, None)
