from __future__ import annotations

import hashlib
import struct

import pytest
import torch

from mechplateau.errors import CheckpointError
from mechplateau.llm import identity as identity_module
from mechplateau.llm.identity import Identity, identify


def test_the_hash_is_what_the_definition_says() -> None:
    identity = identify({"w": torch.tensor([[1.5, -0.0]])})
    tensor = hashlib.sha256(b"(1, 2)" + struct.pack("<2f", 1.5, 0.0)).hexdigest()
    assert identity.tensors["w"].hash == tensor
    assert identity.hash == hashlib.sha256(f"w\0{tensor}\n".encode()).hexdigest()


def test_the_hash_depends_on_values_shapes_and_names_only() -> None:
    w = torch.randn(3, 4)
    base = identify({"w": w, "v": torch.ones(2)})
    assert identify({"v": torch.ones(2), "w": w.clone().t().contiguous().t()}).hash == base.hash
    assert identify({"w": w.double(), "v": torch.ones(2)}).hash == base.hash
    changed = w.clone()
    changed[2, 3] += 1e-6
    assert identify({"w": changed, "v": torch.ones(2)}).hash != base.hash
    assert identify({"w": w.reshape(4, 3), "v": torch.ones(2)}).hash != base.hash
    assert identify({"x": w, "v": torch.ones(2)}).hash != base.hash


def test_constants_of_the_architecture_are_left_out() -> None:
    w = {"h.0.attention.dense.bias": torch.randn(3)}
    extra = {
        "h.0.attention.bias": torch.tril(torch.ones(2, 2)),
        "h.0.attention.masked_bias": torch.tensor(-1e9),
        "h.0.attention.rotary_emb.inv_freq": torch.ones(2),
        "steps": torch.tensor(3),
    }
    assert identify({**w, **extra}).hash == identify(w).hash
    with pytest.raises(CheckpointError, match="no floating-point tensor"):
        identify(extra)


@pytest.mark.parametrize(
    "name", ["h.0.attn.c_attn.bias", "h.0.xattn.bias", "h.0.attn.bias", "h.0.my_rotary_emb.inv_freq"]
)
def test_a_trained_tensor_is_not_taken_for_a_mask(name: str) -> None:
    """GPT-2's real biases end like the names of its mask buffers; a mask is a square, a bias is not."""
    one, other = ({"h.0.attn.c_attn.weight": torch.ones(3), name: torch.full((48,), x)} for x in (0.0, 1.0))
    assert identify(one).hash != identify(other).hash
    assert identify({name: torch.full((48,), torch.nan)}).nonfinite == [name]


def test_masks_are_told_by_name_and_shape() -> None:
    w = {"h.0.attn.c_attn.weight": torch.ones(3)}
    masks = {"h.0.attn.bias": torch.ones(1, 1, 4, 4).tril(), "h.0.crossattention.masked_bias": torch.ones(1)}
    assert identify({**w, **masks}).hash == identify(w).hash
    # Tensors without a mask's name or shape count.
    for name, tensor in (("bias", torch.ones(4, 4)), ("h.0.attn.bias", torch.ones(2, 4, 4))):
        assert identify({**w, name: tensor}).hash != identify(w).hash


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_rounded_copy_agrees_at_the_coarser_type(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    w = torch.randn(50, 50)
    fine, coarse, widened = (
        identify({"w": w}),
        identify({"w": w.to(dtype)}),
        identify({"w": w.to(dtype).float()}),
    )
    assert fine.agreement(coarse) == name == coarse.agreement(fine)
    assert widened.agreement(coarse) == "float32"
    assert fine.hash != coarse.hash == widened.hash
    # Both in float32: different numbers are different, however close.
    assert fine.agreement(widened) is None
    assert fine.dtype == "float32"
    assert coarse.dtype == name


def test_other_weights_do_not_agree_at_any_type() -> None:
    one, other = (identify({"w": torch.randn(50, 50).to(t)}) for t in (torch.float32, torch.bfloat16))
    assert one.agreement(other) is None
    assert identify({"w": torch.ones(2)}).agreement(identify({"v": torch.ones(2)})) is None


def test_large_tensors_are_hashed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"w": torch.randn(7, 9), "ones": torch.ones(11)}
    whole = identify(state)
    monkeypatch.setattr(identity_module, "_CHUNK", 4)
    pieces = identify(state)
    assert pieces.record() == whole.record()
    assert pieces.tensors["ones"].constant
    assert not pieces.tensors["w"].constant


def test_infinities_are_found() -> None:
    w = torch.randn(5)
    w[3] = torch.nan
    assert identify({"w": w, "v": torch.ones(1)}).nonfinite == ["w"]


def test_distances_are_exact_for_small_and_close_for_large_tensors() -> None:
    torch.manual_seed(0)
    one = {"small": torch.randn(30, 40), "large": torch.randn(300, 400)}
    other = {name: tensor + 0.1 * torch.randn_like(tensor) for name, tensor in one.items()}
    a, b = identify(one), identify(other)
    true = {name: float((one[name] - other[name]).square().sum()) for name in one}
    assert a.squared_distance(b, "small") == pytest.approx(true["small"], rel=1e-5)
    assert a.squared_distance(b, "large") == pytest.approx(true["large"], rel=0.1)
    assert a.squared_distance(b) == pytest.approx(sum(true.values()), rel=0.1)
    assert a.squared_norm() == pytest.approx(sum(float(t.square().sum()) for t in one.values()), rel=0.1)
    assert a.squared_distance(a) == 0


def test_records_round_trip() -> None:
    identity = identify({"w": torch.randn(3, 4), "v": torch.ones(5, dtype=torch.float16)})
    again = Identity.from_record(identity.record(), identity.sketch)
    assert again == identity
    assert again.hash == identity.hash


@pytest.mark.parametrize(
    ("name", "tensor", "kind"),
    [
        ("h.0.mlp.weight", torch.ones(3, 4, dtype=torch.int8), "int8"),
        ("h.0.mlp.weight", torch.ones(4, 4, dtype=torch.uint8), "uint8"),
        ("h.0.mlp.qweight", torch.ones(3, 4, dtype=torch.int32), "int32"),
        ("h.0.mlp.weight", torch.ones(3, dtype=torch.complex64), "complex64"),
    ],
)
def test_weights_that_are_no_floating_point_numbers_are_refused(name, tensor, kind: str) -> None:
    """Left out, two steps that differ in nothing else would be called the same."""
    with pytest.raises(
        CheckpointError, match=rf"{name} is stored as {kind}; expected floating-point weights"
    ):
        identify({"w": torch.ones(2), name: tensor})


def test_whole_numbers_that_are_no_weights_are_left_out() -> None:
    w = {"w": torch.randn(3)}
    extra = {
        "h.0.attn.causal_mask": torch.ones(1, 1, 4, 4, dtype=torch.uint8).tril(),
        "h.0.attn.bias": torch.ones(4, 4, dtype=torch.uint8).tril(),
        "embeddings.position_ids": torch.arange(8)[None],
        "seen": torch.tensor(3),
        "mask": torch.ones(2, 4, dtype=torch.bool),
    }
    assert identify({**w, **extra}).hash == identify(w).hash


def test_distances_of_weights_whose_squares_overflow() -> None:
    one, other = identify({"w": torch.full((4,), 3e30)}), identify({"w": torch.full((4,), -3e38)})
    assert one.squared_norm() == pytest.approx(3.6e61)
    assert one.squared_distance(other) == pytest.approx(3.6e77)
