"""TransformerLens's `generate` on our models: with its cache, without it, and ours give the same tokens."""

from __future__ import annotations

import pytest
import torch

from mechplateau.errors import UserError
from mechplateau.models import generate

from .conftest import make_model, make_tokenizer

GREEDY = {"do_sample": False, "stop_at_eos": False, "verbose": False}


@pytest.fixture(params=["linear", "softmax"])
def longer(request):
    return make_model(request.param, n_ctx=16)


@pytest.mark.parametrize("length", [1, 5, 9])
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("tokenizer", [None, "left", "right"])
def test_greedy_tokens_are_ours(longer, length, cached, tokenizer):
    if tokenizer is not None:
        longer.set_tokenizer(make_tokenizer(), default_padding_side=tokenizer)
    prompt = torch.randint(2, 11, (3, length), generator=torch.Generator().manual_seed(length))
    ours = generate(longer, prompt, 7)
    theirs = longer.generate(prompt, max_new_tokens=7, use_past_kv_cache=cached, **GREEDY)
    assert torch.equal(theirs, torch.cat([prompt, ours], dim=1))
    stream = longer.generate_stream(prompt, max_new_tokens=7, use_past_kv_cache=cached, **GREEDY)
    assert torch.equal(torch.cat(list(stream), dim=1), theirs)
    embedded = longer.generate(
        longer.embed(prompt), max_new_tokens=7, use_past_kv_cache=cached, return_type="tokens", **GREEDY
    )
    assert torch.equal(embedded, ours)


@pytest.mark.parametrize("cached", [True, False])
def test_a_padded_batch_is_each_prompt_by_itself(longer, cached):
    longer.set_tokenizer(make_tokenizer(), default_padding_side="left")
    texts = ["t4", "t2 t7 t3 t3 t9", "t10 t5 t6"]
    batch = longer.generate(
        texts, max_new_tokens=6, use_past_kv_cache=cached, return_type="tokens", prepend_bos=False, **GREEDY
    )
    assert (batch[0, :4] == 0).all()  # padding, on the left
    for text, row in zip(texts, batch, strict=True):
        prompt = longer.to_tokens(text, prepend_bos=False)
        assert torch.equal(row[-6:], generate(longer, prompt, 6)[0])
    with pytest.raises(UserError, match="prompt: expected no padding"):
        generate(longer, batch[:, :5], 6)


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_a_stream_goes_on_as_it_began_whatever_the_model_does_meanwhile(attention):
    model = make_model(attention, n_layers=1, n_heads=1, n_ctx=16)
    with torch.no_grad():
        model.unembed.W_U[:, 0] *= 3  # so that it generates the token 0, which is the tokenizer's padding
    model.set_tokenizer(make_tokenizer(), default_padding_side="left")
    prompt = torch.tensor([[2, 7, 3, 9]])
    ours = generate(model, prompt, 8)
    assert (ours[:, :-1] == 0).any()
    stream = model.generate_stream(prompt, max_new_tokens=8, max_tokens_per_yield=1, **GREEDY)
    pieces = []
    for piece in stream:
        pieces.append(piece)
        model.generate(prompt, max_new_tokens=1, **GREEDY)
    assert torch.equal(torch.cat(pieces, dim=1)[:, 4:], ours)
    assert not model._generating


def test_hooks_on_the_embedding_act_while_it_generates(longer):
    def other(embedded, hook):
        return embedded.flip(-1)

    prompt = torch.arange(2, 7)[None]
    plain = generate(longer, prompt, 6)
    with longer.hooks(fwd_hooks=[("hook_embed", other)]):
        ours = generate(longer, prompt, 6)
        for cached in (True, False):
            theirs = longer.generate(prompt, max_new_tokens=6, use_past_kv_cache=cached, **GREEDY)
            assert torch.equal(theirs[:, 5:], ours)
    assert not torch.equal(plain, ours)


def test_no_token_is_made_up_from_logits_that_are_not_numbers(longer):
    with torch.no_grad():
        longer.unembed.W_U[0, 0] = torch.nan
    with pytest.raises(UserError, match="not numbers"):
        longer.generate(torch.arange(4)[None], max_new_tokens=2, **GREEDY)
    assert not longer.unembed._forward_hooks


def test_a_sequence_longer_than_the_context_is_one_line(longer):
    tokens = torch.zeros(2, 17, dtype=torch.long)
    with pytest.raises(UserError, match=r"tokens: this model sees 16 positions .n_ctx., got sequences of 17"):
        longer(tokens)
    with pytest.raises(UserError, match=r"tokens: this model sees 16 positions .n_ctx., got sequences of 17"):
        longer(tokens, attention_mask=torch.ones_like(tokens))
    mask = torch.ones_like(tokens)
    mask[0, 0] = 0
    with pytest.raises(UserError, match=r"tokens: this model sees 16 positions .n_ctx., got sequences of 17"):
        longer(tokens, attention_mask=mask)
    mask[:, 0] = 0
    assert longer(tokens, attention_mask=mask).shape == (2, 17, 11)  # 16 tokens and a pad
    with pytest.raises(UserError, match=r"sees 16 positions"):
        longer.generate(tokens[:, :14], max_new_tokens=5, **GREEDY)
