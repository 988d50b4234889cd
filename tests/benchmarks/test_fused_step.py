"""The fused step computes what the baseline's step computes."""

import fused_step
import numpy as np
import paper_baseline as baseline
import pytest
import torch

SIZES = baseline.Sizes(n=6, d_model=16, n_heads=2, n_layers=2, batch=8, test_samples=4)


def model(seed=0):
    torch.manual_seed(seed)
    return baseline.PlainGPT.of(SIZES)


def tokens(number, seed=0):
    return baseline.make_batch_rowwise(np.random.default_rng(seed), number, SIZES.n)


def test_updates_follow_the_baseline():
    theirs, ours = model(), model()
    optimizer = torch.optim.Adam(theirs.parameters(), lr=1e-3)
    step = fused_step.Step(ours, SIZES, lr=1e-3)
    for i in range(5):
        batch = tokens(8, i)
        assert step.update(batch).item() == pytest.approx(
            baseline.train_step(theirs, optimizer, batch), abs=1e-6
        )
    for x, y in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-5)


def test_measurements_are_the_baselines():
    trained = model()
    step = fused_step.Step(trained, SIZES, lr=1e-2)
    for i in range(30):
        step.update(tokens(8, i))
    batch, test = tokens(8, 100), tokens(4, 101)
    row = baseline.evaluate(trained, batch, test, SIZES)
    got = step.measure(batch)
    assert got["loss"].item() == pytest.approx(row["loss"], abs=1e-5)
    assert got["accuracy_out"].tolist() == pytest.approx(row["train_accuracy_out"])
    assert got["repetition"].item() == pytest.approx(row["train_repetition"])
    assert got["repetition_data"].item() == pytest.approx(row["train_repetition_data"])
    assert got["apm"].item() == pytest.approx(row["apm"], abs=1e-5)
    assert got["cos"].item() == pytest.approx(row["cos"], abs=1e-5)
    np.testing.assert_allclose(got["cosine"].tril(-1).numpy(), row["cosine"], atol=1e-5)
    assert step.generation_accuracy(test).tolist() == pytest.approx(row["test_accuracy_out"])


def test_samples_are_moving_window_sums():
    sizes = baseline.Sizes(n=6, k=3)
    batch = fused_step.sample(sizes, 50, "cpu")
    x, y = batch[:, :6], batch[:, 7:]
    assert batch.shape == (50, 13)
    assert (batch[:, 6] == sizes.p).all()
    assert x.min() >= 1
    assert x.max() <= sizes.max_num
    for r in range(6):
        want = x[:, r] if r < 2 else x[:, r - 2 : r + 1].sum(1) % sizes.p
        assert torch.equal(y[:, r], want)


def test_needed_inputs_by_hand():
    mask = fused_step.needed_inputs(baseline.Sizes(n=3, k=2), "cpu")
    assert mask.nonzero().tolist() == [[3, 0], [4, 0], [4, 1], [5, 1], [5, 2]]
