"""Waves over residues, on curves written out by hand and against numpy's Fourier transform."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mechplateau.metrics.frequencies import (
    circular_mean,
    mean_by_residue,
    spectrum,
    sum_share,
    term_phases,
    term_products,
    waves,
)

NAN = math.nan


def wave(p, q, phase=0.0, size=1.0):
    return size * torch.cos(2 * math.pi * q * torch.arange(p, dtype=torch.float64) / p - phase)


def test_a_wave_has_its_frequency_share_and_phase():
    curves = torch.stack([3 + wave(7, 2, 0.4, 5.0), wave(7, 3, -2.0) + 0.5 * wave(7, 1, 1.0)], dim=1)
    found = waves(curves)
    assert found.strongest.tolist() == [2, 3]
    assert found.shares[:, 0].tolist() == pytest.approx([0, 1, 0], abs=1e-12)
    assert found.shares[:, 1].tolist() == pytest.approx([0.2, 0, 0.8])  # ½² : 1²
    assert found.phases(found.strongest).tolist() == pytest.approx([0.4, -2.0])
    assert found.means.tolist() == pytest.approx([3, 0])
    parts = found.parts(torch.tensor([2, 1]))
    assert torch.allclose(parts[:, 0], wave(7, 2, 0.4, 5.0))
    assert torch.allclose(parts[:, 1], 0.5 * wave(7, 1, 1.0))


@pytest.mark.parametrize("p", [5, 8, 17])
def test_shares_of_whole_curves_are_the_power_spectrum(p):
    curves = torch.randn(p, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    power = np.abs(np.fft.rfft(curves.numpy(), axis=0))[1:] ** 2
    if p % 2 == 0:
        power[-1] /= 2  # numpy gives the others one of two equal halves
    expected = power / power.sum(axis=0)
    assert waves(curves).shares.numpy() == pytest.approx(expected)
    assert waves(curves).shares.sum(dim=0).tolist() == pytest.approx([1.0] * 3)


def test_residues_that_are_not_known_are_left_out():
    whole = torch.stack([3 + wave(11, 2, 0.4)], dim=1)
    some = whole.clone()
    some[[0, 7]] = NAN
    found = waves(some)
    assert float(found.shares[1, 0]) == pytest.approx(1.0)
    assert float(found.phases(torch.tensor([2]))) == pytest.approx(0.4)
    mended = found.parts(torch.tensor([2])) + found.means
    assert torch.allclose(mended, whole)  # at all residues, also those two


def test_what_has_no_wave_is_undefined():
    curves = torch.stack([torch.full((7,), 2.0), torch.full((7,), NAN), wave(7, 1)], dim=1)
    curves[2, 1] = 1.0  # NaN elsewhere: not known by its own
    found = waves(curves)
    assert found.shares.isnan().all(dim=0).tolist() == [True, True, False]
    assert found.strongest.tolist() == [0, 0, 1]
    assert found.phases(found.strongest).isnan().tolist() == [True, True, False]
    assert (found.parts(found.strongest)[:, :2] == 0).all()
    few = torch.full((7, 1), NAN)
    few[:3] = wave(7, 1)[:3, None]
    assert waves(few).shares.isnan().all()
    assert waves(torch.full((7, 1), NAN)).strongest.tolist() == [0]


def test_means_by_residue():
    found = mean_by_residue(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([2, 2, 0]), 4)
    assert found[:, 0].tolist() == pytest.approx([5, NAN, 2, NAN], nan_ok=True)


def test_orthogonal_vectors_have_a_flat_spectrum():
    assert spectrum(torch.eye(17)).tolist() == pytest.approx([1 / 8] * 8)
    assert spectrum(torch.stack([wave(7, 1), 2 * wave(7, 2)], dim=1)).tolist() == pytest.approx([0.2, 0.8, 0])
    assert spectrum(torch.ones(7, 2)).isnan().all()


def test_the_phase_of_a_sum_of_waves_of_terms():
    terms = torch.cartesian_prod(torch.arange(7), torch.arange(7))
    waved = wave(7, 2, 0.9)[terms].sum(dim=1)
    values = torch.stack([4 + waved, waved, torch.ones(49, dtype=torch.float64)], dim=1)
    found = term_phases(values, terms, torch.tensor([2, 0, 2]), 7)
    assert found.tolist() == pytest.approx([0.9, NAN, NAN], nan_ok=True)


def test_a_mean_of_angles():
    assert circular_mean(torch.tensor([0.5, 0.5, NAN])) == pytest.approx((1.0, math.cos(0.5)))
    assert circular_mean(torch.tensor([0.0, math.pi / 2])) == pytest.approx((math.sqrt(0.5), 0.5))
    assert circular_mean(torch.tensor([NAN])) == (None, None)


def test_logits_that_are_a_sum_of_cosines():
    sums = torch.tensor([0, 3, 5, 6])
    shifts = (sums[:, None] - torch.arange(7)) % 7
    even, odd = wave(7, 1) + 0.3 * wave(7, 3), wave(7, 1, math.pi / 2)
    assert sum_share(1 + even[shifts], sums) == pytest.approx(1.0)
    assert sum_share(odd[shifts], sums) == pytest.approx(0.0)
    assert sum_share(wave(7, 1)[shifts] + odd[shifts], sums) == pytest.approx(0.5)
    # Strengths 1 and 3 instead of 2 and 2: 2 · 2² of 1² + 3².
    strengths = torch.tensor([1.0, 3.0])[:, None]
    assert sum_share(strengths * even[shifts[:2]], sums[:2]) == pytest.approx(0.8)
    table = torch.nn.functional.one_hot(sums, 7).double()
    assert sum_share(table, sums) == pytest.approx(1.0)  # a table of right answers, too
    assert sum_share(torch.ones(4, 7), sums) is None
    assert sum_share(torch.full((4, 7), NAN), sums) is None


def test_products_of_two_terms_span_their_sum_and_difference():
    terms = torch.cartesian_prod(torch.arange(7), torch.arange(7))
    design = term_products(terms, 2, 7)
    assert design.shape == (49, 8)
    a, b = 4 * math.pi / 7 * terms.T.double()
    assert design[:, 4].tolist() == pytest.approx((a.cos() * b.sin()).tolist())
    inside = torch.stack([(a + b - 0.3).cos(), (a - b + 1.1).cos(), (b - 0.5).cos()], dim=1)
    assert torch.allclose(design @ (torch.linalg.pinv(design) @ inside), inside)
    other = (2 * a + 2 * b).cos()[:, None]  # of another frequency
    assert (torch.linalg.pinv(design) @ other).abs().max() < 1e-9
