"""Concatenated windows, each mix written out."""

from __future__ import annotations

import pytest

from mechplateau.errors import ConfigError
from mechplateau.tasks import ConcatenatedWindows

WINDOWS = {
    # (first, last) input of each window
    "123_disjoint_454": "0-0 1-1 2-2 3-3 4-5 5-6 6-7 7-8 8-9 10-12 11-13 12-14 13-15",
    "124_disjoint_444": "0-0 1-1 2-2 3-3 4-5 5-6 6-7 7-8 9-12 10-13 11-14 12-15",
    "124_disjoint_453": "0-0 1-1 2-2 3-3 4-5 5-6 6-7 7-8 8-9 10-13 11-14 12-15",
    "124_stair_653": "0-0 1-1 2-2 3-3 4-4 5-5 0-1 1-2 2-3 3-4 4-5 0-3 1-4 2-5",
}


def windows_of(mix: str) -> list[list[int]]:
    spans = [tuple(map(int, span.split("-"))) for span in WINDOWS[mix].split()]
    return [list(range(first, last + 1)) for first, last in spans]


@pytest.mark.parametrize("mix", list(WINDOWS))
def test_sequences_and_omega_are_those_of_the_definition(mix):
    task, windows = ConcatenatedWindows(mix=mix), windows_of(mix)
    assert task.n_outputs == len(windows)
    for row in task.sample(200, seed=0).tolist():
        x = row[:16]
        assert row[16] == 17
        assert all(1 <= token <= 16 for token in x)
        assert row[17:] == [sum(x[j] for j in window) % 17 for window in windows]
    (target,) = task.attention_targets(task.sample(1, seed=0))
    assert [row.nonzero().flatten().tolist() for row in target.mask[0]] == windows


def test_groups_are_columns_of_the_cosine_matrix():
    task = ConcatenatedWindows()
    groups = task.collapse_pairs
    assert list(groups) == ["", "w1", "w2", "w3"]
    assert (
        sum(int(groups[name].sum()) for name in ("w1", "w2", "w3")) == int(groups[""].sum()) == 13 * 12 // 2
    )
    assert set(groups["w2"].nonzero()[:, 1].tolist()) == {4, 5, 6, 7, 8}
    assert task.partial_outputs == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"mix": "123"},
            "mix: input should be '123_disjoint_454', '124_disjoint_444', '124_disjoint_453' or",
        ),
        ({"p": 16}, "p: expected a modulus above the largest input token"),
    ],
)
def test_wrong_values_name_the_field(values, message):
    with pytest.raises(ConfigError, match=message):
        ConcatenatedWindows.parse(values)
