"""The baseline for language models must itself be right: against numbers worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace

import llm_baseline as baseline
import pytest
import torch


class Dictated:
    """Continues token t with t + 1 (modulo 10), and at text length n shows the state (cos n°·90, sin n°·90)."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def __call__(self, tokens: torch.Tensor, **kwargs: object) -> SimpleNamespace:
        self.lengths.append(tokens.shape[1])
        logits = torch.nn.functional.one_hot((tokens + 1) % 10, 10).float()
        angle = torch.arange(1, tokens.shape[1] + 1) * torch.pi / 2
        state = torch.stack([angle.cos(), angle.sin()], dim=-1)[None]
        return SimpleNamespace(logits=logits, hidden_states=[torch.full_like(state, torch.nan), state])


def test_every_token_costs_a_pass_over_the_whole_text() -> None:
    model = Dictated()
    baseline.collapse_and_repetition(model, [[1, 2], [3]], n_tokens=3)
    assert model.lengths == [2, 3, 4, 1, 2, 3]


def test_cosine_and_repetition() -> None:
    # States a quarter turn apart: cosines of neighbors 0, of the outer two −1.
    cosine, repetition = baseline.collapse_and_repetition(Dictated(), [[1, 2], [3]], n_tokens=3)
    assert cosine == pytest.approx(-1 / 3, abs=1e-6)
    assert repetition == 0


def test_end_of_text_is_suppressed() -> None:
    # Of equal logits the first wins: once 4 is ruled out, 3 is continued with 0.
    _, repetition = baseline.collapse_and_repetition(Dictated(), [[3]], n_tokens=2, end_of_text=4)
    assert repetition == 0
    _, repetition = baseline.collapse_and_repetition(Dictated(), [[9]], n_tokens=3, end_of_text=1)
    # 9 → 0, 0 → (1 ruled out) 0, 0 → 0.
    assert repetition == 1
