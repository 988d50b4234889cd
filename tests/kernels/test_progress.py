"""Attention progress on masses written out by hand."""

import pytest
import torch

import mechplateau_kernels as mk

# Two samples, one head, two rows. Sample 0: 1 of 4 on the set in row 0, 3 of 4 in row 1.
# Sample 1: no attention in row 0, 1 of 2 in row 1.
ROW = torch.tensor([[[4.0, 4.0]], [[0.0, 2.0]]])
SET = torch.tensor([[[[1.0, 3.0]]], [[[0.0, 1.0]]]])


def test_mean_of_ratios_and_ratio_of_sums():
    assert mk.apm_per_sample(ROW, SET).tolist() == [0.5, 0.5]
    assert mk.apm(ROW, SET).item() == 0.5
    assert mk.apm(ROW, SET, reduce="ratio_of_sums").item() == 0.5
    assert mk.apm_per_sample(ROW, SET, rows=slice(0, 1)).tolist() == [0.25, 0.0]
    assert mk.apm(ROW, SET, rows=[0]).item() == 0.125
    assert mk.apm(ROW, SET, rows=[0], reduce="ratio_of_sums").item() == 0.25
    assert mk.apm(ROW, SET, rows=torch.tensor([1])).item() == pytest.approx((0.75 + 0.5) / 2)


def test_samples_without_attention_count_as_zero_and_are_found():
    assert mk.zero_attention(ROW).tolist() == [False, False]
    assert mk.zero_attention(ROW, rows=[0]).tolist() == [False, True]


def test_all_zero_attention_in_one_of_two_sequences():
    q = torch.zeros(2, 3, 1, 4)
    q[1] = 1.0
    q.requires_grad_()
    k = torch.ones(2, 3, 1, 4, requires_grad=True)
    everything = torch.ones(3, 3, dtype=torch.bool)
    result = mk.linear_attention(q, k, k, metric_sets=[everything])
    assert mk.apm_per_sample(result.row_mass, result.set_mass).tolist() == [0.0, 1.0]
    progress = mk.apm(result.row_mass, result.set_mass)
    assert progress.item() == 0.5
    assert int(mk.zero_attention(result.row_mass).sum()) == 1
    for gradient in torch.autograd.grad(progress, (q, k)):
        assert gradient.isfinite().all()


def test_heads_are_summed_in_both_parts():
    row = torch.tensor([[[3.0], [1.0]]])
    chosen = torch.tensor([[[[0.0]], [[1.0]]]])
    assert mk.apm(row, chosen).item() == 0.25  # the mean over heads of the ratios would be 0.5


def test_uniform_attention_over_four_inputs_in_half_precision():
    # mws with n=4, k=2: rows 4..7 read {0}, {0,1}, {1,2}, {2,3}; uniform attention puts 7 of
    # 5+6+7+8 = 26 there. The raw scores are 115200, beyond float16.
    q = torch.full((1, 8, 1, 128), 30.0, dtype=torch.float16)
    chosen = torch.zeros(8, 8, dtype=torch.bool)
    for r, sources in enumerate([[0], [0, 1], [1, 2], [2, 3]]):
        chosen[4 + r, sources] = True
    result = mk.linear_attention(q, q, q / 1000, metric_sets=[chosen])
    assert mk.apm(result.row_mass, result.set_mass, rows=slice(4, 8)).item() == pytest.approx(
        7 / 26, abs=1e-6
    )


@pytest.mark.parametrize("chosen", [1, -2])
def test_unknown_set_is_refused(chosen):
    with pytest.raises(ValueError, match="the masses hold 1"):
        mk.apm(ROW, SET, set=chosen)


@pytest.mark.parametrize("rows", [slice(9, None), [], 1, torch.tensor([[0, 1]])], ids=str)
def test_rows_that_leave_nothing_are_refused(rows):
    # Summed over no rows, every sample would have "no attention", and an APM of 0.
    for call in (mk.apm, mk.apm_per_sample, lambda row, _, rows: mk.zero_attention(row, rows=rows)):
        with pytest.raises(ValueError, match="rows: expected a slice, ints or a 1-d tensor"):
            call(ROW, SET, rows=rows)


def test_wrong_shapes_and_reduction_are_refused():
    with pytest.raises(ValueError, match="set_mass"):
        mk.apm(ROW, ROW)
    with pytest.raises(ValueError, match="zero_attention: expected row_mass"):
        mk.zero_attention(ROW[0])
    with pytest.raises(ValueError, match="mean_of_ratios"):
        mk.apm(ROW, SET, reduce="mean")
