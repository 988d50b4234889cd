"""The curves of the paper's own code, as for the views."""

from ..views.conftest import curves, metrics_of

__all__ = ["curves", "metrics_of"]
