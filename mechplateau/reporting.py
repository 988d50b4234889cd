"""The former name of `mechplateau.report`."""

from mechplateau.report import run_view, save_report

__all__ = ["run_view", "save_report"]
