"""Functions replayed as CUDA graphs; on a CPU they are just called."""

import contextlib

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


class Cards:
    """Two cards that are not there: which is current, and on which one each thing was done."""

    def __init__(self):
        self.current, self.done = 0, []

    @contextlib.contextmanager
    def device(self, device):
        before, self.current = self.current, torch.device(device).index
        try:
            yield
        finally:
            self.current = before

    @contextlib.contextmanager
    def graph(self, graph):
        self.note("capture")
        yield

    def note(self, what):
        self.done.append((what, self.current))


class OnCard1:
    """Of a tensor what `Captured` asks for."""

    device, shape, dtype = torch.device("cuda", 1), (2,), torch.float32

    def detach(self):
        return self

    clone = detach

    def copy_(self, other):
        return self


def test_everything_happens_on_the_tensors_own_card(monkeypatch):
    cards = Cards()

    class Stream:
        def __init__(self):
            cards.note("stream")

        def wait_stream(self, other):
            pass

    class Graph:
        def replay(self):
            cards.note("replay")

    cuda = {
        "device": cards.device, "graph": cards.graph, "Stream": Stream, "current_stream": Stream, "CUDAGraph": Graph,
        "stream": lambda stream: contextlib.nullcontext(), "synchronize": lambda: cards.note("synchronize"),
    }  # fmt: skip
    for name, value in cuda.items():
        monkeypatch.setattr(torch.cuda, name, value)

    def function(x):
        cards.note("call")
        return x

    captured = mk.Captured(function, warmup=1)
    for _ in range(3):
        assert isinstance(captured(OnCard1()), OnCard1)
    done = [what for what, _ in cards.done]
    assert done == ["stream", "stream", "call", "synchronize", "capture", "call", "replay", "replay"]
    assert {card for _, card in cards.done} == {1}
    assert cards.current == 0


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
