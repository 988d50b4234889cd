"""Reports of runs: the data of pages and pictures, and the paper's claims measured in one run."""

from mechplateau.report.gather import run_view, save_report

__all__ = ["run_view", "save_report"]
