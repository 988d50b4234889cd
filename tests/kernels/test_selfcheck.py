"""What happens when a compiled kernel gives wrong numbers (played through without a card)."""

import logging

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mechplateau_kernels import _dispatch, _selfcheck
from mechplateau_kernels.attention import ops, reference
from mechplateau_kernels.attention.configs import Options
from mechplateau_kernels.attention.planes import pack
from mechplateau_kernels.cosine import ops as cosine_ops
from mechplateau_kernels.cosine import reference as cosine_reference

CARD = torch.device("cuda", 0)
CONFIGURATION = (32, 256, torch.float32)


@pytest.fixture(autouse=True)
def card(monkeypatch):
    monkeypatch.setattr(_selfcheck, "_verdicts", {})
    monkeypatch.setattr(_dispatch, "_said", set())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some Card")
    monkeypatch.setattr(_selfcheck, "toolchain", lambda: "triton 3.6.0, ptxas 12.8 (/ptxas)")


def test_a_right_kernel_is_tested_once_and_trusted(caplog):
    calls = []

    def is_exact(device, *configuration):
        calls.append((device, configuration))
        return True

    for _ in range(3):
        assert _selfcheck.trusted("op", CARD, CONFIGURATION, is_exact)
    assert calls == [(CARD, CONFIGURATION)]
    assert _selfcheck.results() == {"op 32 256 torch.float32": "exact"}
    assert not caplog.records


def test_a_wrong_kernel_is_never_used_and_one_line_says_so(caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert not _selfcheck.trusted("op", CARD, CONFIGURATION, lambda *_: False)
    (record,) = caplog.records
    for part in ("WRONG NUMBERS", "Some Card", "triton 3.6.0", "ptxas 12.8", "torch reference"):
        assert part in record.getMessage()
    assert "\n" not in record.getMessage()
    assert _selfcheck.results() == {"op 32 256 torch.float32": "WRONG"}


def test_inside_a_graph_capture_nothing_is_tested(monkeypatch, caplog):
    def is_exact(*_):
        raise AssertionError("would wait for the device")

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not _selfcheck.trusted("op", CARD, CONFIGURATION, is_exact)
    assert "run it once before" in caplog.text
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert _selfcheck.trusted("op", CARD, CONFIGURATION, lambda *_: True)


def test_an_untrusted_operation_runs_the_reference(monkeypatch):
    pytest.importorskip("triton")
    for module in (ops, cosine_ops):
        monkeypatch.setattr(module, "trusted", lambda *_: False)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 5, 2, 8, generator=generator, requires_grad=True) for _ in range(3))
    masks = [torch.rand(2, 5, 5, generator=generator) < 0.5 for _ in range(3)]
    bits = pack(masks[2], masks[:2])
    options = Options(2.0, 0.5, True, True, 2, "auto")
    got = ops.fused_linear_attention(q, k, v, bits, None, options)
    want = reference.linear_attention(q, k, v, 0.5, True, masks[2], 2.0, masks[:2])
    grads = [torch.randn(x.shape, generator=generator) for x in want]
    for x, y in zip(got, want, strict=True):
        assert torch.equal(x, y)
    for x, y in zip(
        torch.autograd.grad(got, (q, k, v), grads), torch.autograd.grad(want, (q, k, v), grads), strict=True
    ):
        torch.testing.assert_close(x, y)

    h = torch.randn(1, 3, 6, 8, generator=generator)
    assert torch.equal(
        cosine_ops.fused_pairwise_cosine(h, False), cosine_reference.pairwise_cosine(h, "batch_mean")
    )
    groups = torch.tensor([0, 0, -1, 1, 1, 1], dtype=torch.int32)
    torch.testing.assert_close(
        cosine_ops.fused_mean_cosine(h, groups, 2, 4),
        cosine_reference.mean_cosine(h, [slice(0, 2), slice(3, 6)], 4),
    )


class NothingReadBack(TorchDispatchMode):
    """What a CUDA graph capture refuses."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert not any(read in str(function) for read in ("_local_scalar_dense", "nonzero", "lift_fresh"))
        return function(*args, **(kwargs or {}))


def test_an_untrusted_operation_can_be_captured(monkeypatch):
    pytest.importorskip("triton")
    for module in (ops, cosine_ops):
        monkeypatch.setattr(module, "trusted", lambda *_: False)
    q = torch.randn(2, 4, 1, 8, generator=torch.Generator().manual_seed(0))
    mask = torch.eye(4, dtype=torch.bool)[None]
    flags, bits = Options(2.0, 0.5, True, True, 1, "tf32x3"), pack(mask, [mask])
    h, groups = q.squeeze(2)[None], torch.tensor([0, 0, 1, 1], dtype=torch.int32)
    # The operations' own code: a mode does not see into a registered operation.
    with NothingReadBack():
        output, row_mass, set_mass = ops._forward(q, q, q, bits, None, *flags)
        ops._backward(output, row_mass, set_mass, q, q, q, bits, None, *flags)
        matrix, mean = cosine_ops._pairwise(h, False), cosine_ops._mean(h, groups, 2, 2)
        cosine_ops._pairwise_backward(matrix, h, False)
        cosine_ops._mean_backward(mean, h, groups, 2, 2)


def test_an_untrusted_operation_stays_float32_under_autocast(monkeypatch):
    pytest.importorskip("triton")
    for module in (ops, cosine_ops):
        monkeypatch.setattr(module, "trusted", lambda *_: False)
    h = torch.randn(1, 3, 6, 8, generator=torch.Generator().manual_seed(0))
    groups = torch.tensor([0, 0, -1, 1, 1, 1], dtype=torch.int32)

    def all_of_it(h):
        q = h[0].unsqueeze(2)
        out = ops.fused_linear_attention(q, q, q, None, None, Options(1.0, 0.5, True, False, 0, "tf32x3"))
        matrix = cosine_ops.fused_pairwise_cosine(h, False)
        mean = cosine_ops.fused_mean_cosine(h, groups, 2, 4)
        total = out[0].square().sum() + out[1].sum() + matrix.square().sum() + mean.sum()
        return (*out[:2], matrix, mean, torch.autograd.grad(total, h)[0])

    plain = all_of_it(h.requires_grad_())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = all_of_it(h)
    for x, y in zip(cast, plain, strict=True):
        assert x.dtype == torch.float32
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-6)
