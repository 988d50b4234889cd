"""Spread and alignment of weights, on matrices whose answer is known."""

import math

import pytest
import torch

from mechplateau.metrics import spectra


def test_shares_and_effective_rank():
    shares = spectra.variance_shares(torch.diag(torch.tensor([3.0, 1.0])))
    assert shares.tolist() == pytest.approx([0.9, 0.1])
    entropy = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    assert float(spectra.effective_rank(shares)) == pytest.approx(math.exp(entropy))
    assert float(spectra.effective_rank(torch.full((5,), 0.2))) == pytest.approx(5.0)
    assert spectra.variance_shares(torch.zeros(2, 2)).isnan().all()


def test_alignment_is_the_cosine_between_planes():
    axes = torch.eye(4)
    assert spectra.alignment(axes[:2], axes[:2].flip(0), 2).tolist() == pytest.approx([1.0, 1.0])
    assert spectra.alignment(axes[:2], axes[2:], 2).tolist() == pytest.approx([0.0, 0.0])
    tilted = torch.stack([axes[0], math.cos(0.3) * axes[1] + math.sin(0.3) * axes[2]])
    assert spectra.alignment(axes[:2], tilted, 2).tolist() == pytest.approx([1.0, math.cos(0.3)])
    with pytest.raises(ValueError, match="rank from 1 to 2"):
        spectra.alignment(axes[:2], axes, 3)


def test_gains_and_the_readout_by_hand():
    gain = torch.tensor([1.0, -0.05, 3.0, 0.05])
    stats = {name: float(value) for name, value in spectra.gain_statistics(gain).items()}
    sd = math.sqrt(sum((value - 1.0) ** 2 for value in (1.0, -0.05, 3.0, 0.05)) / 4)
    assert stats == pytest.approx({"mean": 1.0, "sd": sd, "min": -0.05, "max": 3.0, "small": 0.5})
    readout = spectra.effective_readout(torch.tensor([[2.0, 9.0], [0.0, 9.0], [1.0, 9.0], [4.0, 9.0]]), gain)
    assert readout.tolist() == pytest.approx([2.0, 0.0, 3.0, 0.2])
    assert float(spectra.small_share(readout, 0.01)) == 0.25
    assert float(spectra.top_share(readout, 1)) == pytest.approx(9 / 13.04)
    assert spectra.top_share(torch.zeros(3)).isnan()
