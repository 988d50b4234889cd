"""The former name of `mechplateau.studies.plateau.summary`."""

from mechplateau.studies.plateau.summary import summarize

__all__ = ["summarize"]
