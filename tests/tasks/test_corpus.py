"""Text as tokens: nested vocabularies, what counts as text, and which text it is."""

import pytest
import torch

from mechplateau.errors import ConfigError
from mechplateau.tasks import corpus as c

TEXT = "the cat sat on the mat. the rat sat on the hat. " * 40


@pytest.fixture(scope="module")
def made():
    return c.corpus([TEXT, "the bat. " * 100], 262, 275)


def test_a_nested_vocabulary_is_the_first_part_of_the_larger_one(made):
    vocabularies = [tokenizer.get_vocab() for tokenizer in (made.tokenizer, made.wide)]
    assert [len(v) for v in vocabularies] == [262, 275]
    assert {token: i for token, i in vocabularies[1].items() if i < 262} == vocabularies[0]
    # Each encodes and gives back the whole text; the larger one needs fewer tokens.
    lengths = []
    for tokenizer in (made.tokenizer, made.wide):
        ids = tokenizer.encode(TEXT).ids
        assert tokenizer.decode(ids) == TEXT
        lengths.append(len(ids))
    assert lengths[1] < lengths[0]
    # What the small one makes is what training to that size makes.
    assert c.train_bpe([TEXT, "the bat. " * 100], 262).get_vocab() == vocabularies[0]


def test_common_grams_are_one_token_of_the_larger_vocabulary(made):
    for n, grams in made.grams.items():
        assert grams.shape[1] == n
        for ids in grams.tolist():
            assert len(made.wide.encode(made.tokenizer.decode(ids)).ids) == 1
    assert len(made.grams[2])


def test_a_twentieth_of_each_document_is_kept_for_evaluation(made):
    ids = made.tokenizer.encode(TEXT).ids
    kept = len(ids) - len(ids) // 20
    assert made.train[:kept].tolist() == ids[:kept]
    assert made.train[kept] == c.END
    assert made.test[: len(ids) // 20].tolist() == ids[kept:]
    assert (made.train == c.END).sum() == (made.test == c.END).sum() == 2
    assert made.bigrams.shape == (262, 262)
    assert len(made.labels) == made.vocab_size
    assert "·the" in made.labels


def test_a_folder_is_read_in_the_order_of_names_and_only_its_text(tmp_path):
    (tmp_path / "b.txt").write_text("second", encoding="utf-8")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.md").write_text("first é", encoding="utf-8")
    (tmp_path / ".hidden").write_text("hidden", encoding="utf-8")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "nul").write_bytes(b"a\x00b")
    (tmp_path / "empty").write_text("\n", encoding="utf-8")
    assert c.folder_texts(tmp_path) == ["first é", "second"]
    assert c.folder_texts(tmp_path, size=3) == ["first é"]


def test_a_folder_without_text_is_said_in_a_line(tmp_path):
    with pytest.raises(ConfigError, match="found no UTF-8 text in"):
        c.folder_texts(tmp_path)
    with pytest.raises(ConfigError, match="which is none"):
        c.folder_texts(tmp_path / "missing")


def test_content_tells_texts_and_their_borders_apart():
    hashes = {c.content_of(texts) for texts in (["ab", "c"], ["a", "bc"], ["abc"], ["abd"])}
    assert len(hashes) == 4
    assert c.content_of(["ab", "c"]) == c.content_of(["ab", "c"])


def test_more_tokens_than_the_text_supports_are_refused_with_the_number():
    with pytest.raises(ConfigError, match=r"wide_vocab_size: expected at most \d+ tokens"):
        c.corpus(["abab"], 260, 4096)


def test_the_library_is_read_without_its_tests():
    texts = c.library_texts(200_000)
    assert sum(len(text.encode()) for text in texts) >= 200_000
    assert torch.tensor([len(text) for text in texts]).sum() < 400_000
