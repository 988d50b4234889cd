"""Composition of all pairs of heads: TransformerLens's numbers, and chance."""

import math

import pytest
import torch

from mechplateau.metrics.composing import composition, composition_of


def heads(n: int, d_model: int, d_head: int, generator) -> dict[str, torch.Tensor]:
    shapes = {"W_Q": (n, d_model, d_head), "W_K": (n, d_model, d_head), "W_V": (n, d_model, d_head)}
    shapes["W_O"] = (n, d_head, d_model)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_scores_are_the_norms_of_the_products(kind, generator):
    first, second = heads(2, 12, 3, generator), heads(3, 12, 3, generator)
    found = composition_of(kind, first, second)
    for w in range(2):
        for r in range(3):
            ov = first["W_V"][w] @ first["W_O"][w]
            qk = second["W_Q"][r] @ second["W_K"][r].T
            read = {"Q": qk, "K": qk.T, "V": second["W_V"][r] @ second["W_O"][r]}[kind]
            expected = torch.linalg.norm(ov @ read) / torch.linalg.norm(ov) / torch.linalg.norm(read)
            assert float(found[w, r]) == pytest.approx(float(expected), rel=1e-4)


def test_random_heads_compose_by_chance(generator):
    first, second = heads(8, 64, 8, generator), heads(8, 64, 8, generator)
    mean = composition_of("K", first, second).square().mean().sqrt()
    assert float(mean) == pytest.approx(1 / math.sqrt(64), rel=0.05)


def test_one_direction_composes_fully_or_not_at_all_and_zeros_not_defined():
    along, across = torch.zeros(2, 1, 4, 1), torch.zeros(2, 1, 1, 4)
    along[0, 0, 0], along[1, 0, 1] = 1, 1
    across[0, 0, 0, 0], across[1, 0, 0, 1] = 1, 1
    assert composition((along[0], across[0]), (along[0], across[0])).tolist() == [[1.0]]
    assert composition((along[0], across[0]), (along[1], across[0])).tolist() == [[0.0]]
    assert composition((torch.zeros(1, 4, 1), across[0]), (along[0], across[0])).isnan().all()
