"""Benchmarks import their baselines by file name, and print one table of ratios at the end."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))


def pytest_terminal_summary(terminalreporter, config):
    from side_by_side import TABLE

    if TABLE.rows:
        terminalreporter.section("ratios, side by side")
        if config.getoption("jaxtyping_packages", None):
            # Of the project's own settings, which pytest takes where tests are asked for as well.
            terminalreporter.write_line(
                "Shapes were checked at every call, and timed; run `pytest benchmarks`."
            )
        for line in TABLE.lines():
            terminalreporter.write_line(line)
