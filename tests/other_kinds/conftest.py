from __future__ import annotations

import pytest

from mechplateau.measurements import base as measurements
from mechplateau.models import kinds
from mechplateau.tasks import base as tasks

from .toys import register


@pytest.fixture(autouse=True, scope="package")
def toys_registered():
    """The toys, known to this folder's tests only."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (tasks, kinds, measurements):
            patch.setattr(module, "_REGISTRY", dict(module._REGISTRY))
        register()
        yield
