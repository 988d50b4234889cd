"""Functions replayed as CUDA graphs; on a CPU they are just called."""

import pytest
import torch

import mechplateau_kernels as mk

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_on_a_cpu_it_is_the_function():
    calls = []

    def double(x):
        calls.append(x)
        return 2 * x

    captured = mk.Captured(double)
    for i in range(5):
        assert captured(torch.tensor(float(i))).item() == 2 * i
    assert len(calls) == 5
    assert not captured.captured
    # Nothing is fixed on a CPU: shapes may change.
    assert captured(torch.ones(2, 3)).shape == (2, 3)


@pytest.mark.gpu
@needs_gpu
def test_replays_equal_calls():
    weight = torch.randn(4, 4, device="cuda", requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=torch.tensor(0.1, device="cuda"), capturable=True)

    def step(x):
        loss = (x @ weight).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    captured = mk.Captured(step)
    losses = [captured(torch.full((3, 4), 1.0 + i / 10, device="cuda")).item() for i in range(20)]
    assert captured.captured
    assert losses[-1] < losses[0]

    weight2 = torch.randn(4, 4, device="cuda")
    doubled = mk.Captured(lambda x: x @ weight2, warmup=1)
    for i in range(4):
        x = torch.full((3, 4), float(i), device="cuda")
        torch.testing.assert_close(doubled(x), x @ weight2)
    with pytest.raises(ValueError, match="expected inputs as captured"):
        doubled(torch.ones(2, 4, device="cuda"))
