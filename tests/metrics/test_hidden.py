"""Attention progress, cosines, norms and stable ranks on arrays written out by hand."""

import math

import pytest
import torch

from mechplateau.metrics import (
    attention_progress,
    cosine_matrix,
    cosine_per_output,
    mean_cosine,
    mean_norm,
    stable_rank,
)

# Two sequences, two heads, three rows of attention mass, one Ω. Of rows 1 and 2, sequence 0 has
# 2 + 2 + 0 + 4 = 8, on Ω 1 + 0 + 0 + 1 = 2; sequence 1 nothing, though row 0 has some.
ROW_MASS = torch.tensor([[[9.0, 2.0, 2.0], [9.0, 0.0, 4.0]], [[9.0, 0.0, 0.0], [9.0, 0.0, 0.0]]])
SET_MASS = torch.tensor([[[[9.0, 1.0, 0.0]], [[9.0, 0.0, 1.0]]], [[[9.0, 0.0, 0.0]], [[9.0, 0.0, 0.0]]]])
ALL_PAIRS = torch.ones(3, 3, dtype=torch.bool)


def random_hidden(seed: int, batch: int = 5, n: int = 6, d: int = 9) -> torch.Tensor:
    return torch.randn(batch, n, d, generator=torch.Generator().manual_seed(seed))


def test_attention_progress_is_a_mean_of_ratios_with_heads_summed():
    value, zero_count = attention_progress(ROW_MASS, SET_MASS, rows=slice(1, 3))
    assert value.item() == (2 / 8 + 0) / 2
    assert zero_count.item() == 1
    assert attention_progress(ROW_MASS, SET_MASS, rows=torch.tensor([2]))[0].item() == pytest.approx(1 / 12)


def test_attention_progress_chooses_the_set():
    two = torch.cat([torch.zeros_like(SET_MASS), SET_MASS], dim=2)
    assert attention_progress(ROW_MASS, two, rows=[1, 2], set=0)[0].item() == 0.0
    assert attention_progress(ROW_MASS, two, rows=[1, 2], set=1)[0].item() == 1 / 8


def test_attention_progress_of_no_attention_and_of_all_attention_on_the_set():
    row_mass = torch.tensor([[[0.0, 0.0]], [[3.0, 1.0]]], requires_grad=True)
    value, zero_count = attention_progress(row_mass, row_mass[:, :, None], rows=slice(None))
    assert value.item() == 0.5
    assert zero_count.item() == 1
    value.backward()
    assert torch.isfinite(row_mass.grad).all()


def test_attention_progress_without_a_set_or_rows_is_none():
    assert attention_progress(ROW_MASS, SET_MASS[:, :, :0], rows=[1]) is None
    assert attention_progress(ROW_MASS, SET_MASS, rows=[]) is None
    with pytest.raises(ValueError, match="at least one sequence"):
        attention_progress(ROW_MASS[:0], SET_MASS[:0], rows=[1])


def test_cosine_matrix_averages_over_sequences_first():
    hidden = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]], [[0.0, 1.0], [0.0, 5.0], [0.0, 0.0]]])
    # Sequence 0: 0↔1 0, 0↔2 −1, 1↔2 0. Sequence 1: 0↔1 1, and a zero row: 0 with all, itself too.
    expected = [[1.0, 0.5, -0.5], [0.5, 1.0, 0.0], [-0.5, 0.0, 0.5]]
    matrix = cosine_matrix(hidden)
    assert matrix.tolist() == expected
    assert mean_cosine(matrix, ALL_PAIRS).item() == 0.0
    assert cosine_per_output(matrix).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float16, 1e-3)])
def test_cosine_of_extreme_vectors(dtype: torch.dtype, tolerance: float):
    v = torch.tensor([1.0, -0.9, 1.1, 0.8])
    rows = torch.stack([0 * v, v, v, -v, 1e-4 * v, 1e4 * v]).to(dtype)[None].requires_grad_()
    matrix = cosine_matrix(rows)
    assert matrix[0].tolist() == [0.0] * 6
    assert matrix[1, [2, 4, 5]].tolist() == pytest.approx([1.0] * 3, abs=tolerance)
    assert matrix[1, 3].item() == pytest.approx(-1.0, abs=tolerance)
    assert matrix.abs().max().item() <= 1.0
    matrix.sum().backward()
    assert torch.isfinite(rows.grad).all()


def test_cosine_below_the_floor_is_finite():
    v = torch.tensor([1.0, -0.9, 1.1, 0.8])
    assert 0.0 <= cosine_matrix(torch.stack([v, 1e-30 * v])[None])[0, 1].item() <= 1.0


def test_mean_cosine_uses_the_pairs_below_the_diagonal_only():
    matrix = torch.tensor([[9.0, 9.0, 9.0], [0.5, 9.0, 9.0], [-1.0, 0.25, 9.0]])
    assert mean_cosine(matrix, ALL_PAIRS).item() == pytest.approx(-0.25 / 3)
    one = torch.zeros(3, 3, dtype=torch.bool)
    one[2, 0] = True
    assert mean_cosine(matrix, one).item() == -1.0
    assert mean_cosine(matrix, one.T) is None
    assert mean_cosine(matrix, torch.eye(3, dtype=torch.bool)) is None
    assert mean_cosine(torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool)) is None


def test_mean_cosine_is_not_spoiled_by_pairs_left_out():
    matrix = torch.tensor([[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [math.nan, 0.25, 1.0]])
    pairs = ALL_PAIRS.clone()
    pairs[2, 0] = False
    assert mean_cosine(matrix, pairs).item() == 0.375


def test_cosine_per_output():
    matrix = torch.tensor([[1.0, 9.0, 9.0], [0.5, 1.0, 9.0], [-1.0, 0.25, 1.0]])
    assert cosine_per_output(matrix).tolist() == [-0.25, 0.25]
    assert cosine_per_output(torch.ones(1, 1)) is None


@pytest.mark.parametrize("seed", range(5))
def test_cosines_against_a_plain_double_loop(seed: int):
    hidden = random_hidden(seed)
    batch, n, _ = hidden.shape
    pairs = torch.rand(n, n, generator=torch.Generator().manual_seed(seed)) < 0.5
    matrix = cosine_matrix(hidden)
    chosen, per_output = [], [[] for _ in range(n)]
    for i in range(n):
        for j in range(i):
            similar = sum(
                float(hidden[b, i] @ hidden[b, j] / hidden[b, i].norm() / hidden[b, j].norm())
                for b in range(batch)
            )
            assert matrix[i, j].item() == pytest.approx(similar / batch, abs=1e-6)
            per_output[j].append(similar / batch)
            if pairs[i, j]:
                chosen.append(similar / batch)
    assert mean_cosine(matrix, pairs).item() == pytest.approx(sum(chosen) / len(chosen), abs=1e-6)
    expected = [sum(values) / len(values) for values in per_output[:-1]]
    assert cosine_per_output(matrix).tolist() == pytest.approx(expected, abs=1e-6)


def test_mean_norm():
    hidden = torch.tensor([[[3.0, 4.0], [0.0, 0.0]], [[0.0, -2.0], [1.0, 0.0]]])
    assert mean_norm(hidden).item() == (5 + 0 + 2 + 1) / 4
    assert mean_norm(hidden[:, :0]) is None
    # A length whose square is beyond float16.
    assert mean_norm(torch.full((1, 1, 4), 1e4, dtype=torch.float16)).item() == pytest.approx(2e4)


def test_stable_rank_by_hand():
    one = torch.tensor([[[1.0, 2.0], [-2.0, -4.0], [0.5, 1.0]]])
    two = torch.tensor([[[3.0, 0.0], [0.0, 3.0], [0.0, 0.0]]])
    unequal = torch.tensor([[[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]]])
    for matrices, expected in ((one, 1.0), (two, 2.0), (unequal, 5 / 4), (torch.cat([one, two]), 1.5)):
        value, zero_count = stable_rank(matrices)
        assert value.item() == pytest.approx(expected, rel=1e-6)
        assert zero_count.item() == 0


def test_stable_rank_leaves_out_all_zero_sequences_and_counts_them():
    two = torch.tensor([[[3.0, 0.0], [0.0, 3.0]]])
    value, zero_count = stable_rank(torch.cat([torch.zeros_like(two), two]))
    assert value.item() == pytest.approx(2.0)
    assert zero_count.item() == 1
    value, zero_count = stable_rank(torch.zeros(3, 2, 2))
    assert zero_count.item() == 3
    assert value.isnan()
    assert stable_rank(two[:, :0]) is None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25])
def test_stable_rank_against_singular_values(seed: int, scale: float):
    hidden = random_hidden(seed, n=16, d=40)
    hidden[0, 1:] = hidden[0, :1] + 1e-3 * hidden[0, 1:]  # nearly collapsed
    hidden[1] = torch.linalg.qr(hidden[1].T)[0].T  # orthonormal: all singular values equal
    singular = torch.linalg.svdvals(hidden.double())
    expected = (singular.square().sum(dim=1) / singular[:, 0].square()).mean().item()
    assert stable_rank(hidden * scale)[0].item() == pytest.approx(expected, rel=2e-6)


def test_stable_rank_of_nearly_equal_singular_values():
    """The slow case of a power iteration: a gap of one part in 10⁵ between the two largest."""
    x = torch.diag(torch.tensor([1.0, 1 - 1e-5, 1 - 1e-5, 0.5]))[None]
    expected = float((x.double() ** 2).sum())
    assert stable_rank(x)[0].item() == pytest.approx(expected, rel=2e-6)


def test_stable_rank_ignores_autocast():
    hidden = random_hidden(2, n=16, d=40)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value, _ = stable_rank(hidden)
    assert value.item() == stable_rank(hidden)[0].item()


def test_half_precision_states_give_float32():
    hidden = random_hidden(1).bfloat16()
    assert (
        mean_norm(hidden).dtype
        == stable_rank(hidden)[0].dtype
        == cosine_matrix(hidden).dtype
        == torch.float32
    )


def test_empty_batches_and_wrong_shapes_are_errors():
    none = torch.zeros(0, 3, 4)
    for call in (cosine_matrix, mean_norm, stable_rank):
        with pytest.raises(ValueError, match=r"got (shape )?\[0, 3, 4\]"):
            call(none)
    with pytest.raises(ValueError, match=r"shape \[3, 3\]; got \[2, 3\]"):
        mean_cosine(torch.eye(3), ALL_PAIRS[:2])
