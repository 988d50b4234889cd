"""Reports of runs: what pages and pictures are drawn from, and the paper's claims measured in one run."""

from mechplateau.report.gather import run_view, save_report

__all__ = ["run_view", "save_report"]
