"""Each checkpoint's prompts go through its own tokenizer, as in transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from mechplateau.errors import ConfigError
from mechplateau.llm import analyze_series
from mechplateau.llm.tokens import PromptTokens

from .conftest import PROMPTS, column

END = "<|endoftext|>"


@pytest.fixture
def other(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """The same alphabet without merges: more tokens for the same text."""
    data = json.loads(tokenizer.backend_tokenizer.to_str())
    data["model"]["merges"] = []
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(data)), eos_token=END)


def framed(tokenizer: PreTrainedTokenizerFast, template: str) -> PreTrainedTokenizerFast:
    """With a post-processor that puts end-of-text before or after each text."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(END, backend.token_to_id(END))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, bos_token=END)


def test_each_checkpoint_has_its_own(make_series, other, tmp_path: Path) -> None:
    series = make_series([0, 1, 2])
    first = analyze_series(series, prompts=PROMPTS)
    other.save_pretrained(tmp_path / "other")
    all_other = analyze_series(series, prompts=PROMPTS, tokenizer=tmp_path / "other")
    other.save_pretrained(series / "step0")
    mixed = analyze_series(series, prompts=PROMPTS, folder=tmp_path / "out")
    assert column(mixed, "verdict") == {0: "other_tokenizer", 1: "ok", 2: "ok"}
    assert column(mixed, "note")[0] == (
        "its tokenizer turns the prompts into other tokens than that of step1, so its numbers cannot be compared"
    )
    assert not column(mixed, "joined")[1]
    for name in ("loss", "repetition", "cos_final"):
        assert column(mixed, name)[0] == column(all_other, name)[0]
        assert column(mixed, name)[1] == column(first, name)[1]
    assert mixed.examples["step0"] == all_other.examples["step0"]
    assert column(first, "loss")[0] != column(all_other, "loss")[0]


def test_a_checkpoint_without_one_is_given_that_of_another_and_it_is_said(make_series) -> None:
    series = make_series([0, 1, 2, 4])
    expected = analyze_series(series, prompts=PROMPTS)
    for path in (series / "step1").glob("tokenizer*"):
        path.unlink()
    (series / "step0" / "tokenizer.json").write_text("{")
    analysis = analyze_series(series, prompts=PROMPTS)
    assert column(analysis, "loss") == column(expected, "loss")
    notes = {step: str(note) for step, note in column(analysis, "note").items()}
    assert notes[1] == "no inconsistency found; no tokenizer of its own; that of step2 is used"
    assert "step0: no readable tokenizer (" in notes[0]
    assert notes[0].endswith("; that of step2 is used")
    assert notes[2] == "no inconsistency found"


def test_a_tokenizer_that_ends_prompts_is_refused(make_series, tokenizer) -> None:
    series = make_series([0, 1, 2])
    ends = framed(tokenizer, f"$A {END}")
    ends.save_pretrained(series / "step1")
    analysis = analyze_series(series, prompts=PROMPTS)
    assert column(analysis, "verdict") == {0: "ok", 1: "broken", 2: "ok"}
    message = (
        rf"step1: the tokenizer ends each prompt with '{END}', so the models would generate after the end"
    )
    assert message in str(column(analysis, "note")[1])
    ends.save_pretrained(series / "step0")
    with pytest.raises(ConfigError, match=r"step0: the tokenizer ends each prompt with .*--tokenizer"):
        analyze_series(series, prompts=PROMPTS)
    with pytest.raises(ConfigError, match="the tokenizer ends each prompt with"):
        analyze_series(series, prompts=PROMPTS, tokenizer=series / "step1")
    # One that begins them is transformers' way, and so is a text that ends so by itself.
    framed(tokenizer, f"{END} $A").save_pretrained(series / "step1")
    begun = analyze_series(series, prompts=[*PROMPTS, f"sun{END}"], tokenizer=series / "step1")
    assert set(column(begun, "verdict").values()) == {"ok"}


def test_tokens_that_the_tokenizer_does_not_have_are_shown_by_number(tokenizer) -> None:
    """Vocabularies are padded, and a fresh model chooses from all of them."""
    tokens = PromptTokens([[1]], tokenizer)
    assert [tokens.text(token) for token in (5, 350, -1)] == [tokenizer.decode([5]), "#350", None]
    assert [PromptTokens([[1]], None).text(token) for token in (350, -1)] == ["350", None]
