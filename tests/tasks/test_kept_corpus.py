"""Vocabulary and tokens of a large text are made once, and are the same when they are read again."""

import pytest
import torch
from safetensors.torch import save_file

from mechplateau.tasks import corpus as c
from mechplateau.tasks import kept_corpus

TEXTS = ("the cat sat on the mat. the rat sat on the hat. " * 40, "é the bat. " * 100)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_corpus, "LEAST", 1)
    monkeypatch.setattr("huggingface_hub.constants.HF_ASSETS_CACHE", tmp_path)
    return tmp_path


def made():
    c._corpus.cache_clear()
    return c.corpus(TEXTS, 262, 275)


def no_training(texts, vocab_size):
    raise AssertionError("made again")


def test_a_kept_text_is_equal_to_one_that_is_made(cache, monkeypatch):
    first = made()
    monkeypatch.setattr(c, "train_bpe", no_training)
    again = made()
    for name in ("train", "test", "bigrams"):
        assert torch.equal(getattr(first, name), getattr(again, name)), name
        assert getattr(first, name).dtype == getattr(again, name).dtype
    assert first.labels == again.labels
    assert first.content == again.content
    assert all(torch.equal(first.grams[n], again.grams[n]) for n in (2, 3, 4))
    assert first.tokenizer.get_vocab() == again.tokenizer.get_vocab()
    assert first.wide.encode("the hat é").ids == again.wide.encode("the hat é").ids
    with pytest.raises(AssertionError, match="made again"):
        c.corpus(TEXTS, 261, 275)  # another size
    with pytest.raises(AssertionError, match="made again"):
        c.corpus((*TEXTS, "more"), 262, 275)  # another text
    assert len(list(cache.rglob("*.safetensors"))) == 1


@pytest.mark.parametrize("place", [20, -3], ids=["header", "tokens"])
def test_a_damaged_file_is_made_again(cache, monkeypatch, place):
    first = made()
    (file,) = cache.rglob("*.safetensors")
    whole = bytearray(file.read_bytes())
    whole[place] ^= 1
    file.write_bytes(bytes(whole))
    assert torch.equal(made().train, first.train)
    monkeypatch.setattr(c, "train_bpe", no_training)
    assert torch.equal(made().test, first.test)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int32], ids=str)
def test_another_programs_file_is_made_again(cache, monkeypatch, dtype):
    first = made()
    (file,) = cache.rglob("*.safetensors")
    one = torch.ones(3, dtype=dtype)
    # The second has the hash of what it holds, but no vocabulary.
    texts = {"sha256": kept_corpus._hash(file.name, "", one, one)} if dtype == torch.int32 else {"wide": "x"}
    save_file({"train": one, "test": one.clone()}, file, metadata=texts)
    assert torch.equal(made().train, first.train)
    monkeypatch.setattr(c, "train_bpe", no_training)
    assert torch.equal(made().test, first.test)


def test_a_file_that_may_not_be_looked_at_is_made_again(cache, monkeypatch):
    first = made()

    def refused(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(kept_corpus.Path, "is_file", refused)
    assert torch.equal(made().train, first.train)


def test_a_link_in_the_cache_does_not_lead_to_a_file_that_is_written(cache, tmp_path):
    first = made()
    (file,) = cache.rglob("*.safetensors")
    other = tmp_path / "diary.txt"
    other.write_text("mine")
    file.unlink()
    file.symlink_to(other)
    assert torch.equal(made().train, first.train)
    assert other.read_text() == "mine"


def test_what_another_version_made_is_not_read(cache, monkeypatch):
    made()
    monkeypatch.setattr(c, "train_bpe", no_training)
    monkeypatch.setattr(kept_corpus, "MADE", kept_corpus.MADE + 1)
    with pytest.raises(AssertionError, match="made again"):
        made()


def test_without_a_cache_it_is_made_each_time(cache, monkeypatch):
    cache.joinpath("mechplateau").write_text("no folder", encoding="utf-8")
    first = made()
    assert torch.equal(made().train, first.train)
    monkeypatch.setattr(kept_corpus, "_path", lambda content, sizes: cache / "mechplateau" / "x.safetensors")
    assert torch.equal(made().train, first.train)


def test_a_short_text_is_not_kept(cache, monkeypatch):
    monkeypatch.setattr(kept_corpus, "LEAST", 10_000)
    made()
    assert not list(cache.rglob("*.safetensors"))
