"""Sides that take turns: order, clocks, and what happens to a process that dies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import side_by_side
import sides

BENCHMARKS = Path(sides.__file__).parent


class Counting:
    """Takes as many seconds as works were done before it."""

    done = 0

    def seconds(self, work):
        Counting.done += 1
        return Counting.done


def test_works_take_turns_after_one_round_to_warm_up():
    Counting.done = 0
    one, other = Counting(), Counting()
    assert sides.in_turns([(one, "a"), (other, "b"), (one, "c")], rounds=2) == [[4, 7], [5, 8], [6, 9]]


def test_the_middle_turn_is_that_of_the_median_ratio():
    assert side_by_side.middle_turn([6.0, 100.0, 8.0], [2.0, 1.0, 4.0]) == (6.0, 2.0)


def test_a_process_answers_each_line_and_nothing_else_is_in_its_answers():
    code = "import sides; sides.serve({'loud': lambda: print('noise'), 'long': lambda: sum(range(10**6))})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input="loud\nlong\nmemory\n",
        capture_output=True,
        text=True,
        cwd=BENCHMARKS,
        timeout=60,
    )
    loud, long, memory = (json.loads(line) for line in done.stdout.splitlines())
    assert loud.keys() == long.keys() == {"cpu", "wall"}
    assert long["cpu"] > loud["cpu"] >= 0
    assert memory["memory"] > 1
    assert "noise" in done.stderr


@pytest.mark.parametrize(("threads", "clock"), [(1, 3.0), (2, 5.0)])
def test_one_thread_is_timed_by_the_processor_and_several_by_the_wall(tmp_path, monkeypatch, threads, clock):
    script = tmp_path / "fake.py"
    script.write_text(
        "import sys\n"
        "for _ in range(2):\n"
        "    sys.stdin.readline()\n"
        '    print(\'{"cpu": 3, "wall": 5}\', flush=True)\n'
    )
    monkeypatch.setattr(sides, "HERE", script)
    with sides.Side("ours", threads) as side:
        assert [side.seconds("x"), side.seconds("y")] == [clock] * 2
        with pytest.raises(RuntimeError, match="the process died at 'z'"):
            side.seconds("z")
