"""The data contract: arrays that do not fit each other are refused with both shapes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from mechplateau.errors import UserError
from mechplateau.views import (
    CheckpointView,
    PlateauView,
    RunView,
    SampleView,
    TargetView,
    ViewError,
)

MakeView = Callable[..., RunView]


def test_refusals_are_user_errors() -> None:
    assert issubclass(ViewError, UserError)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SampleView(("1",), ("2", "3"), ("2",)), "1 and 2"),
        (lambda: CheckpointView(0, (np.zeros((4, 4)),)), r"\[head, query, key\].*\(4, 4\)"),
        (lambda: CheckpointView(0, (), np.zeros((2, 3))), r"n_outputs.*\(2, 3\)"),
        (lambda: TargetView("window", 0, np.zeros(3)), r"window.*\(3,\)"),
    ],
)
def test_wrong_shapes_are_named(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ViewError, match=message):
        build()


def test_run_view_refuses_parts_that_do_not_fit(make_view: MakeView) -> None:
    small = CheckpointView(0, (np.zeros((1, 4, 4)),))
    with pytest.raises(ViewError, match="column 'step'"):
        make_view(metrics=pd.DataFrame({"loss": [1.0]}))
    with pytest.raises(ViewError, match=r"rising steps.*\[1, 0\]"):
        make_view(checkpoints=(CheckpointView(1), CheckpointView(0)), targets=())
    with pytest.raises(ViewError, match=r"\(1, 4, 4\).*\(2, 4, 4\)"):
        make_view(checkpoints=(small, CheckpointView(1, (np.zeros((2, 4, 4)),))), targets=())
    with pytest.raises(ViewError, match=r"\(32, 32\).*\(4, 4\)"):
        make_view(checkpoints=(small,))
    with pytest.raises(ViewError, match="layer from 0 to 0, got 3"):
        make_view(checkpoints=(small,), targets=(TargetView("window", 3, np.zeros((4, 4))),))


def test_phase_of_a_step() -> None:
    plateau = PlateauView(True, onset=10, drop=20)
    assert [plateau.phase_of(step) for step in (0, 9, 10, 19, 20)] == [
        "before",
        "before",
        "during",
        "during",
        "after",
    ]
    # On the plateau is onset to drop, wherever the loss leaves its level.
    falling = PlateauView(True, onset=10, drop=20, end=15)
    assert [falling.phase_of(step) for step in (15, 16, 19, 20)] == ["during", "during", "during", "after"]
    assert PlateauView(False).phase_of(3) is None


def test_phase_steps_need_a_checkpoint(make_view: MakeView) -> None:
    assert make_view().phase_steps() == {"before": 0, "during": 120, "after": 400}
    # Step 110 has no checkpoint, so there is nothing to show for it.
    missing = PlateauView(True, 62, 191, before=0, during=110, after=400)
    assert make_view(plateau=missing).phase_steps() == {"before": 0, "after": 400}
    assert make_view(plateau=PlateauView(False)).phase_steps() == {"before": 0, "after": 400}
    assert make_view(plateau=None, checkpoints=()).phase_steps() == {}


def test_checkpoint_by_step(make_view: MakeView) -> None:
    view = make_view()
    assert view.checkpoint(120).step == 120
    with pytest.raises(ViewError, match="got 121; there are: 0, 20, 40"):
        view.checkpoint(121)


def test_a_phase_is_not_shown_by_a_checkpoint_outside_of_it(make_view: MakeView) -> None:
    plateau = PlateauView(True, 90, 155, before=0, during=0, after=400)
    assert make_view(plateau=plateau).phase_steps() == {"before": 0, "after": 400}
    late = PlateauView(True, 90, 155, before=0, during=100, after=120)
    assert make_view(plateau=late).phase_steps() == {"before": 0, "during": 100}
