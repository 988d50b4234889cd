"""The tiled kernels against the map in float64: see attention_cases.py for where and how this runs.

Shapes are just beyond one block of 32 rows: in the interpreter every block costs some tenths of a second.
"""

import math

import pytest
import torch

import mechplateau_kernels as mk
from mechplateau_kernels.attention import tiled_check, tiled_launch

DEVICE = "cpu" if tiled_launch.INTERPRETED else "cuda"
OPERATIONS = {"linear": mk.linear_attention, "softmax": mk.softmax_attention}
OUTPUT = {torch.float32: 5e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3 if DEVICE == "cuda" else 8e-3}
MASS = {torch.float32: 3e-6, torch.float16: 3e-6, torch.bfloat16: 3e-6}


def tensors(seed, batch, pos, heads, d_head, d_v, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, pos, heads, d, generator=generator).to(dtype) for d in (d_head, d_head, d_v)]


def some_sets(batch, pos):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 5, (batch, pos), generator=generator)
    before = torch.cat([torch.full((1, 1), -1), tokens[:1, :-1]], dim=1)
    listed = torch.stack([torch.arange(pos), (torch.arange(pos) - 7).clamp(min=-1)], dim=1)
    return [mk.Offsets(1, 1), mk.Codes(tokens, before), mk.Listed(listed), mk.First(2), mk.First(0)]


def moved(options):
    def move(x):
        if isinstance(x, list):
            return [move(y) for y in x]
        return x.to(DEVICE) if isinstance(x, mk.PositionSet | torch.Tensor) else x

    return {name: move(x) for name, x in options.items()}


def compare(operation, inputs, dtype=torch.float32, gradients=True, **options):
    found = []
    for mine in (True, False):
        leaves = [(x.to(DEVICE) if mine else x.double()).detach().requires_grad_() for x in inputs]
        chosen = moved(options) | {"algorithm": "tiled"} if mine else options | {"algorithm": "map"}
        out = OPERATIONS[operation](*leaves, **chosen)._asdict()
        if gradients:
            generator = torch.Generator().manual_seed(5)
            smooth = [x for name, x in out.items() if x.requires_grad and x.numel() and name != "largest"]
            total = sum(
                (torch.nan_to_num(x).double() * torch.randn(x.shape, generator=generator).to(x.device)).sum()
                for x in smooth
            )
            out |= dict(zip(("dq", "dk", "dv"), torch.autograd.grad(total, leaves), strict=True))
        found.append({name: x.detach().cpu() for name, x in out.items()})
    for name, got in found[0].items():
        want = found[1][name].double()
        assert got.shape == want.shape
        assert torch.equal(got.isnan(), want.isnan()), name
        got, want = got.double().nan_to_num(), want.nan_to_num()
        # Of bfloat16 the signs of weights near 0 are a matter of luck; masses are sums of float32.
        gate = (OUTPUT if name in ("output", "dq", "dk", "dv") else MASS)[dtype]
        if name == "largest_at":
            assert (got == want).float().mean() > 0.95
        else:
            assert (got - want).norm() <= gate * want.norm() + 1e-12, (
                name,
                (got - want).norm() / want.norm(),
            )


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("shape", [(1, 33, 1, 5, 9), (1, 1, 1, 1, 1), (2, 20, 2, 40, 24)], ids=str)
def test_shapes_sets_and_statistics(operation, shape):
    batch, pos = shape[:2]
    compare(operation, tensors(0, *shape), metric_sets=some_sets(batch, pos), row_statistics=True)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_dtypes(operation, dtype):
    compare(operation, tensors(1, 1, 33, 1, 16, 16, dtype), dtype, metric_sets=some_sets(1, 33)[:1])


REQUESTS = {
    "not causal, a factor": {"causal": False, "intervene": mk.Offsets(-3, 3), "c": -2.0},
    "a window with rows without keys": {"allowed": mk.Offsets(2, 9), "row_statistics": True},
}
SOFTMAX_REQUESTS = {
    "a knock-out before": {"intervene": mk.Offsets(0, 3), "bias": -math.inf},
    "soft cap and bias": {"soft_cap": 0.7, "intervene": mk.First(3), "bias": 1.0},
}


@pytest.mark.parametrize(
    ("operation", "request_"),
    [(o, r) for o in OPERATIONS for r in REQUESTS] + [("softmax", r) for r in SOFTMAX_REQUESTS],
)
def test_requests(operation, request_):
    options = (REQUESTS | SOFTMAX_REQUESTS)[request_]
    compare(operation, tensors(2, 1, 33, 1, 4, 4), metric_sets=some_sets(1, 33)[:2], **options)


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("pos", [63, 64, 65, 130])
def test_more_lengths(operation, pos):
    compare(operation, tensors(3, 2, pos, 2, 24, 40), metric_sets=some_sets(2, pos), row_statistics=True)


def test_integers_come_out_to_the_bit():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randint(-1, 2, (1, 40, 1, 32), generator=generator).float() for _ in range(3))
    # 13 bits in one factor of each product, which tf32 would cut off; few of them, so that sums stay exact.
    wide = 2 * torch.randint(2048, 4096, q.shape, generator=generator) + 1
    q *= wide * (torch.rand(q.shape, generator=generator) < 0.1)
    sets = some_sets(1, 40)
    options = {"scale": 0.125, "intervene": sets[1], "c": 4.0, "metric_sets": sets}
    got = mk.linear_attention(*(x.to(DEVICE) for x in (q, k, v)), **moved(options), algorithm="tiled")
    want = mk.linear_attention(q.double(), k.double(), v.double(), algorithm="map", **options)
    for x, y in zip(got, want, strict=True):
        assert torch.equal(x.cpu(), y.float())


def test_a_strided_call_and_a_second_one_give_the_same_bits():
    inputs = [x.to(DEVICE) for x in tensors(4, 1, 33, 2, 8, 8)]
    plain = mk.softmax_attention(*inputs, algorithm="tiled")
    other = mk.softmax_attention(
        *(x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs), algorithm="tiled"
    )
    for x, y in zip(plain, other, strict=True):
        assert torch.equal(x, y)


def test_second_derivatives_are_the_maps():
    inputs = [x.to(DEVICE) for x in tensors(5, 1, 3, 1, 2, 2)]

    def product(algorithm, *inputs):
        def scalar(q):
            out = mk.softmax_attention(q, *inputs[1:], algorithm=algorithm, metric_sets=[mk.Offsets(1, 1)])
            return out.output.square().sum() + out.set_mass.square().sum()

        return torch.autograd.functional.hvp(scalar, inputs[0], inputs[0].cos())[1]

    got, want = product("tiled", *inputs), product("map", *(x.double() for x in inputs))
    assert (got - want).norm() <= 1e-5 * want.norm()
    assert want.norm() > 1e-2


def test_the_self_check_passes_and_can_fail(monkeypatch):
    from mechplateau_kernels.attention.any_length import _configuration
    from mechplateau_kernels.attention.kind import Kind, Sets

    inputs = [x.to(DEVICE) for x in tensors(6, 1, 33, 1, 4, 4)]
    kind = Kind(True, 0.5, 0.0, True, 1.0, 0.0, 1, False, False, "all", True, "tiled", "tf32x3")
    sets = Sets([mk.Offsets(1, 1)], None, None)
    configuration = _configuration((*inputs, inputs[2]), None, sets, kind)
    device = torch.device(DEVICE)
    assert tiled_check.forward_is_right(device, *configuration)
    real = tiled_launch.forward

    def wrong(*arguments):
        return (real(*arguments)[0] * 1.01, *real(*arguments)[1:])

    monkeypatch.setattr(tiled_launch, "forward", wrong)
    assert not tiled_check.forward_is_right(device, *configuration)
