"""Benchmarks import their baselines by file name, print one table of ratios at the end, and write it where asked."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))


def pytest_addoption(parser):
    parser.addoption(
        "--table",
        metavar="FILE",
        help="also write the table of ratios to this Markdown file: it is in the docs",
    )
    parser.addoption(
        "--part",
        metavar="NAME",
        help="of that file, write this part alone, such as '1 thread': what another run measured stays",
    )


def pytest_terminal_summary(terminalreporter, config):
    from side_by_side import TABLE, with_part

    if TABLE.rows:
        terminalreporter.section("ratios, side by side")
        if config.getoption("jaxtyping_packages", None):
            # Of the project's own settings, which pytest takes where tests are asked for as well.
            terminalreporter.write_line(
                "Shapes were checked at every call, and timed; run `pytest benchmarks`."
            )
        for line in TABLE.lines():
            terminalreporter.write_line(line)
        if file := config.getoption("table", None):
            from machine import told

            path, text = Path(file), "\n".join([told(), "", *TABLE.lines(), ""])
            if part := config.getoption("part", None):
                text = with_part(path.read_text(encoding="utf-8") if path.is_file() else "", part, text)
            path.write_text(text, encoding="utf-8")
