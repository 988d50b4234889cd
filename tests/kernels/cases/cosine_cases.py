"""The cosine kernels against float64; see attention_cases.py for where and how they run."""

import math

import pytest
import torch

import mechplateau_kernels as mk
from mechplateau_kernels.cosine import check, launch
from mechplateau_kernels.cosine.configs import Call

DEVICE = "cpu" if launch.INTERPRETED else "cuda"
GATE = 4e-6  # absolute


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def near(got, want, gate=GATE):
    torch.testing.assert_close(got.detach().cpu().double(), want.detach(), rtol=0, atol=gate)


SHAPES = [(1, 1, 16), (3, 5, 1), (2, 33, 48), (1, 64, 40), (3, 16, 256), (2, 1, 2, 17, 20)]


def of_every_type(shapes):
    """Shape and type. In half precision one shape is enough: what a shape changes, float32 has seen."""
    return pytest.mark.parametrize(
        ("dtype", "shape"),
        [
            pytest.param(
                dtype,
                shape,
                id=f"{dtype}-{shape}",
                marks=() if dtype == torch.float32 or shape == (2, 33, 48) else pytest.mark.slow,
            )
            for dtype in (torch.float32, torch.float16, torch.bfloat16)
            for shape in shapes
        ],
    )


@of_every_type(SHAPES)
def test_matrix(shape, dtype):
    h = random(*shape, dtype=dtype)
    for reduce in ("none", "batch_mean"):
        got = mk.pairwise_cosine(h.to(DEVICE), reduce=reduce, backend="triton")
        assert got.dtype == torch.float32
        near(got, mk.pairwise_cosine(h.double(), reduce=reduce, backend="torch"))
        assert got.abs().max() <= 1
        near(got, got.mT.double().cpu(), 1e-6)


@pytest.mark.parametrize("batch", [2, 3, 5])
def test_shares_of_several_samples(batch, monkeypatch):
    monkeypatch.setattr(launch, "MAX_SHARES", 2)
    h = random(2, batch, 4, 12)
    near(mk.pairwise_cosine(h.to(DEVICE), backend="triton"), mk.pairwise_cosine(h.double(), backend="torch"))
    near(
        mk.mean_pairwise_cosine(h.to(DEVICE), backend="triton"),
        mk.mean_pairwise_cosine(h.double(), backend="torch"),
    )


def test_diagonal_is_one():
    cosine = mk.pairwise_cosine(random(3, 20, 32).to(DEVICE), backend="triton")
    near(cosine.diagonal(), torch.ones(20).double(), 1e-6)


@of_every_type([s for s in SHAPES if s[-2] > 1] + [(2, 300, 20)])
def test_mean(shape, dtype):
    h = random(*shape, dtype=dtype)
    got = mk.mean_pairwise_cosine(h.to(DEVICE), backend="triton")
    near(got, mk.mean_pairwise_cosine(h.double(), backend="torch"))
    if shape[-2] > 2:
        got = mk.mean_pairwise_cosine(h.to(DEVICE), exclude=[-2], backend="triton")
        near(got, mk.mean_pairwise_cosine(h.double(), exclude=[-2], backend="torch"))
    if shape[-2] <= 64:
        got = mk.mean_pairwise_cosine(h.to(DEVICE), per_position=True, backend="triton")
        near(got, mk.mean_pairwise_cosine(h.double(), per_position=True, backend="torch"))


BLOCKS = torch.block_diag(torch.ones(4, 4), torch.ones(1, 1), torch.ones(3, 3)).bool()
BAND = torch.ones(8, 8, dtype=torch.bool).tril(1).triu(-1)


@pytest.mark.parametrize("pairs", [BLOCKS, BAND], ids=["groups", "band"])
def test_mean_over_chosen_pairs(pairs):
    h = random(2, 5, 8, 12)
    got = mk.mean_pairwise_cosine(h.to(DEVICE), exclude=[1], pairs=pairs, backend="triton")
    near(got, mk.mean_pairwise_cosine(h.double(), exclude=[1], pairs=pairs, backend="torch"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_edge_vectors(dtype):
    v = random(32, seed=3) / 2
    h = torch.stack([0 * v, v, v, -v, 1e-4 * v, 1e4 * v]).to(dtype).unsqueeze(0)
    cosine = mk.pairwise_cosine(h.to(DEVICE), backend="triton")
    near(cosine, mk.pairwise_cosine(h.double(), backend="torch"))
    assert cosine.abs().max() <= 1
    assert cosine[0].abs().max() == 0
    near(
        mk.mean_pairwise_cosine(h.to(DEVICE), backend="triton"),
        mk.mean_pairwise_cosine(h.double(), backend="torch"),
    )


def test_tiny_vectors_count_as_zero():
    h = torch.cat([torch.ones(1, 1, 8), 1e-30 * torch.ones(1, 1, 8)], dim=1).to(DEVICE)
    assert mk.pairwise_cosine(h, backend="triton")[0, 1].item() == 0
    assert mk.mean_pairwise_cosine(h, backend="triton").item() == 0


def test_nan_stays_where_it_is():
    h = random(2, 6, 8)
    h[1, 3, 2] = math.nan
    cosine = mk.pairwise_cosine(h.to(DEVICE), reduce="none", backend="triton").cpu()
    row = torch.arange(6) == 3
    expected = torch.zeros(2, 6, 6, dtype=torch.bool)
    expected[1] = row.unsqueeze(0) | row.unsqueeze(1)
    assert torch.equal(cosine.isnan(), expected)
    assert torch.equal(mk.pairwise_cosine(h.to(DEVICE), backend="triton").cpu().isnan(), expected[1])
    assert mk.mean_pairwise_cosine(h.to(DEVICE), backend="triton").isnan()
    assert not mk.mean_pairwise_cosine(h.to(DEVICE), exclude=[3], backend="triton").isnan()


def test_any_layout():
    h = random(3, 10, 12).to(DEVICE)
    padded = torch.full((3, 20, 15), math.nan, device=DEVICE)
    padded[:, ::2, :12] = h
    swapped = h.transpose(0, 1).contiguous().transpose(0, 1)
    last = h.transpose(1, 2).contiguous().transpose(1, 2)
    for other in (padded[:, ::2, :12], swapped, last):
        assert torch.equal(
            mk.pairwise_cosine(other, backend="triton"), mk.pairwise_cosine(h, backend="triton")
        )
        assert torch.equal(
            mk.mean_pairwise_cosine(other, backend="triton"), mk.mean_pairwise_cosine(h, backend="triton")
        )
    expanded = h[:1].expand(4, -1, -1)
    near(mk.pairwise_cosine(expanded, backend="triton"), mk.pairwise_cosine(h[:1].double().cpu()))
    rows = mk.pairwise_cosine(h, rows=slice(2, 9, 3), backend="triton")
    near(rows, mk.pairwise_cosine(h.double().cpu(), rows=slice(2, 9, 3)))


def test_runs_are_bitwise_equal():
    h = random(9, 12, 20).to(DEVICE)
    first = mk.pairwise_cosine(h, backend="triton"), mk.mean_pairwise_cosine(h, backend="triton")
    for _ in range(1 if DEVICE == "cpu" else 20):
        assert torch.equal(mk.pairwise_cosine(h, backend="triton"), first[0])
        assert torch.equal(mk.mean_pairwise_cosine(h, backend="triton"), first[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "measure",
    [
        lambda h, b: mk.pairwise_cosine(h, reduce="none", backend=b),
        lambda h, b: mk.pairwise_cosine(h, backend=b),
        lambda h, b: mk.mean_pairwise_cosine(h, exclude=[0], backend=b),
        lambda h, b: mk.mean_pairwise_cosine(h, pairs=BLOCKS, backend=b),
        lambda h, b: mk.mean_pairwise_cosine(h, pairs=BAND, backend=b),
        lambda h, b: mk.mean_pairwise_cosine(h, per_position=True, backend=b),
    ],
    ids=["matrices", "matrix", "mean", "groups", "pairs", "curve"],
)
def test_gradients(measure, dtype):
    h = random(2, 3, 8, 12).to(dtype)
    h[0, 1, 2] = 0.0
    mine, exact = h.to(DEVICE).requires_grad_(), h.double().requires_grad_()
    got, want = measure(mine, "triton"), measure(exact, "torch")
    g = random(*want.shape, seed=5)
    (grad,) = torch.autograd.grad(got, mine, g.to(DEVICE))
    (exact_grad,) = torch.autograd.grad(want, exact, g.double())
    assert grad.dtype == dtype
    near(grad, exact_grad, 4e-6 if dtype == torch.float32 else 4e-3)


@pytest.mark.parametrize(("pos", "d"), [(1, 1), (16, 256), (17, 40), (33, 20)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_integers_give_the_exact_bits(pos, d, dtype):
    device = torch.device(DEVICE)
    assert check.pairwise_is_exact(device, pos, d, dtype, True)
    assert check.pairwise_is_exact(device, pos, d, dtype, False)
    assert check.mean_is_exact(device, pos, d, dtype)


def test_the_exact_test_sees_tf32(monkeypatch):
    """The interpreter knows no tf32: its inputs are cut off instead."""
    right, device = launch.pairwise_cosine, torch.device(DEVICE)

    def cut_off(h, *rest):
        return right((h.view(torch.int32) & -0x2000).view(torch.float32), *rest)

    monkeypatch.setattr(launch, "pairwise_cosine", cut_off)
    for per_sample in (True, False):
        assert not check.pairwise_is_exact(device, 9, 16, torch.float32, per_sample)


@pytest.mark.parametrize(
    "call", [Call(batch="any", shares="16"), Call(("1", "any", "16", "unaligned"), "1", "1", 3)]
)
def test_the_exact_test_of_other_variants(call):
    device = torch.device(DEVICE)
    assert check.pairwise_is_exact(device, 6, 20, torch.float32, False, call)
    assert check.mean_is_exact(device, 6, 20, torch.float32, call)


def test_the_exact_test_sees_one_wrong_number(monkeypatch):
    right_matrix, right_mean = launch.pairwise_cosine, launch.mean_cosine

    def spoil(function):
        def wrong(*arguments):
            result = function(*arguments)
            result.view(-1)[-1] *= 1 + 2e-7
            return result

        return wrong

    device = torch.device(DEVICE)
    monkeypatch.setattr(launch, "pairwise_cosine", spoil(right_matrix))
    monkeypatch.setattr(launch, "mean_cosine", spoil(right_mean))
    assert not check.pairwise_is_exact(device, 9, 16, torch.float32, False)
    assert not check.mean_is_exact(device, 9, 16, torch.float32)
