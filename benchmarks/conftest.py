"""Benchmarks import their baselines by file name, and print one table of ratios at the end."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))


def pytest_terminal_summary(terminalreporter):
    from side_by_side import TABLE

    if TABLE.rows:
        terminalreporter.section("ratios, side by side")
        for line in TABLE.lines():
            terminalreporter.write_line(line)
