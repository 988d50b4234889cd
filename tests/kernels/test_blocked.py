"""What attention in blocks keeps between its blocks: running sums of kᵀv, and lists of keys."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import mechplateau_kernels as mk
from mechplateau_kernels.attention import blocked, blocks
from mechplateau_kernels.attention.kind import Kind, Sets


@pytest.mark.parametrize("sizes", [(1e-25, 1e25, 1e20), (1e30, 1e-25, 1e-25), (1.0, 1.0, 1.0)], ids=str)
def test_products_of_keys_and_values_may_pass_the_range_of_their_numbers(sizes):
    """The scores do not, so the output is right."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 200, 1, 4, generator=generator) * size for size in sizes)
    got = mk.linear_attention(q, k, v, algorithm="blocked").output
    want = mk.linear_attention(q.double(), k.double(), v.double(), algorithm="map").output
    assert (got - want).norm() <= 2e-6 * want.norm()


@pytest.mark.parametrize("pos", [100, 300])
def test_a_query_that_is_no_number_reaches_no_set_without_keys(pos):
    q, k, v = (torch.ones(1, pos, 1, 2) for _ in range(3))
    q[0, 50] = math.nan
    sets = [mk.Offsets(1, 1), mk.Offsets(-3, -1)]
    masses = mk.softmax_attention(q, k, v, metric_sets=sets, algorithm="blocked").set_mass[0, 0]
    assert masses[0].isnan().nonzero().flatten().tolist() == [50]
    assert (masses[1] == 0).all()


class _Largest(TorchDispatchMode):
    """The most entries that an operation gave, of those that take memory."""

    entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.entries = max(self.entries, out.untyped_storage().nbytes() // out.element_size())
        return out


def test_a_list_that_all_samples_share_is_not_copied_for_each():
    batch, pos = 64, 256
    q = torch.ones(batch, pos, 1, 2)
    shared = mk.Listed(torch.arange(100).expand(pos, 100))
    codes = torch.arange(batch * pos).view(batch, pos)
    kind = Kind(
        softmax=True, scale=1.0, soft_cap=0.0, causal=True, c=1.0, bias=0.0, n_sets=2, allowed=False,
        intervene=False, statistics="", row_mass=True, algorithm="blocked", precision="auto",
    )  # fmt: skip
    with _Largest() as largest:
        masses = blocked.forward(q, q, q, None, Sets([shared, mk.Codes(codes, codes)], None, None), kind)[2]
    assert largest.entries <= blocks.TILE
    seen = torch.arange(1.0, pos + 1)
    want = torch.stack([seen.clamp(max=100) / seen, 1 / seen])
    torch.testing.assert_close(masses, want.expand(batch, 1, 2, pos))
