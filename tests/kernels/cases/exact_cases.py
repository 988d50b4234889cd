"""Linear attention of small integers, whose results are exact, and that the check of it finds mistakes.

See attention_cases.py for where and how these run.
"""

import pytest
import torch

from mechplateau_kernels.attention import check, launch
from mechplateau_kernels.attention.configs import Call

DEVICE = "cpu" if launch.INTERPRETED else "cuda"
PRECISIONS = [
    (torch.float32, "tf32x3"),
    *([] if DEVICE == "cpu" else [(torch.float32, "ieee"), (torch.float32, "tf32")]),
    (torch.float16, "tf32"),
    (torch.bfloat16, "tf32"),
]  # the interpreter knows one float32 precision


SHAPES = [
    (1, 16, 16),
    (17, 40, 24),
    (33, 48, 48),
    *([] if DEVICE == "cpu" else [(32, 256, 256), (64, 64, 128)]),
]
FLAGS = [(True, True, 2), (False, True, 1), (True, False, 0)]


def marks(shape, dtype, flags):
    """Of the largest shape in half precision one set of flags is enough: float32 has them all."""
    return pytest.mark.slow if shape[0] == 33 and dtype != torch.float32 and flags != FLAGS[0] else ()


@pytest.mark.parametrize(
    ("flags", "dtype", "precision", "pos", "d_head", "d_v"),
    [
        pytest.param(
            flags, dtype, precision, *shape,
            id="-".join(map(str, (flags, dtype, precision, *shape))), marks=marks(shape, dtype, flags),
        )
        for flags in FLAGS
        for dtype, precision in PRECISIONS
        for shape in SHAPES
    ],
)  # fmt: skip
def test_small_integers_give_the_exact_bits(pos, d_head, d_v, dtype, precision, flags):
    masses = "aligned" if flags[2] > 0 else None
    call = Call(grad_row=masses, grad_set=masses)
    if DEVICE == "cpu":
        call = call._replace(heads=1)  # the interpreter is slow
    device = torch.device(DEVICE)
    assert check.forward_is_exact(device, pos, d_head, d_v, dtype, *flags, precision, call)
    assert check.backward_is_exact(device, pos, d_head, d_v, dtype, *flags, precision, call)


def test_the_exact_test_sees_one_wrong_number(monkeypatch):
    right_forward, right_backward = launch.forward, launch.backward

    def spoil(function, which):
        def wrong(*arguments):
            results = function(*arguments)
            results[which].view(-1)[-1] += 0.125
            return results

        return wrong

    device = torch.device(DEVICE)
    for which in range(3):
        monkeypatch.setattr(launch, "forward", spoil(right_forward, which))
        assert not check.forward_is_exact(device, 9, 16, 16, torch.float32, True, True, 1, "tf32x3")
        monkeypatch.setattr(launch, "backward", spoil(right_backward, which))
        assert not check.backward_is_exact(device, 9, 16, 16, torch.float32, True, True, 1, "tf32x3")


@pytest.mark.parametrize("precision", ["tf32x3", "ieee", "tf32"])
def test_the_exact_test_sees_tf32_where_more_is_promised(precision, monkeypatch):
    """The interpreter knows no tf32: one factor is cut off instead."""
    right = {"forward": launch.forward, "backward": launch.backward}
    arguments = (torch.device(DEVICE), 9, 16, 20, torch.float32, True, True, 1, precision)

    def cut_off(name, which):
        def run(*given):
            changed = list(given)
            changed[which] = (given[which].view(torch.int32) & -0x2000).view(torch.float32)
            return right[name](*changed)

        return run

    for name, is_exact, factors in (
        ("forward", check.forward_is_exact, (0, 1, 2)),
        ("backward", check.backward_is_exact, (0, 3, 4, 5)),
    ):
        for which in factors:
            monkeypatch.setattr(launch, name, cut_off(name, which))
            assert is_exact(*arguments) == (precision == "tf32"), (name, which)


@pytest.mark.parametrize(
    "call",
    [
        Call(1, ("1", "any", "16", "unaligned"), sets=("shared", "unaligned"), c="unaligned"),
        Call(
            3,
            ("any", "16", "any", "aligned"),
            v=("16", "any", "any", "unaligned"),
            grad_row=None,
            c="aligned",
        ),
    ],
)
def test_the_exact_test_of_other_variants(call):
    arguments = (torch.device(DEVICE), 7, 12, 20, torch.float32, True, True, 2, "tf32x3", call)
    assert check.forward_is_exact(*arguments)
    assert check.backward_is_exact(*arguments)
