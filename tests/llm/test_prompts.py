from __future__ import annotations

from pathlib import Path

import pytest

from mechplateau.errors import ConfigError
from mechplateau.llm.prompts import choose, load_prompts


def test_a_hundred_questions_come_along() -> None:
    prompts = load_prompts()
    assert len(prompts) == len(set(prompts)) == 100
    assert all(prompt.endswith("?") and 15 <= len(prompt) <= 80 for prompt in prompts)


def test_a_text_file_is_one_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes("one\r\n\n  two \u2028 still two\nthree".encode())
    assert load_prompts(str(path)) == ["one", "  two \u2028 still two", "three"]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"\n \n", None])
def test_files_without_prompts_are_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "prompts.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="prompts"):
        load_prompts(str(path))


def test_the_choice_is_the_first_or_seeded() -> None:
    prompts = [str(i) for i in range(50)]
    assert choose(prompts, 3, None) == ["0", "1", "2"]
    drawn = choose(prompts, 10, 4)
    assert drawn == choose(prompts, 10, 4) != choose(prompts, 10, 5)
    assert len(set(drawn)) == 10
    assert set(choose(prompts, 99, 0)) == set(prompts)


def test_arc_easy_is_the_test_split_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked = []

    def load_dataset(*args: str, **kwargs: str) -> dict[str, list[str]]:
        asked.append((*args, kwargs))
        return {"question": ["a?", "b?"]}

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert load_prompts("arc-easy") == ["a?", "b?"]
    assert asked == [("allenai/ai2_arc", "ARC-Easy", {"split": "test"})]


def test_arc_easy_without_a_network_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def load_dataset(*args: str, **kwargs: str) -> None:
        raise ConnectionError("Couldn't reach 'allenai/ai2_arc' on the Hub\nmore")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(ConfigError) as caught:
        load_prompts("arc-easy")
    assert "is not at hand (Couldn't reach 'allenai/ai2_arc' on the Hub); give a text file" in str(
        caught.value
    )


def test_the_mark_of_some_editors_and_their_line_ends_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"\xef\xbb\xbfWhy ice?\r\n\r\nsun\r\n")
    assert load_prompts(path) == ["Why ice?", "sun"]


def test_retries_without_a_network_are_not_reported_one_by_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import logging

    import datasets

    client = logging.getLogger("huggingface_hub")
    level = client.level

    def load_dataset(*args: str, **kwargs: str) -> None:
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 1s")
        raise ConnectionError("no")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(ConfigError, match="not at hand"):
        load_prompts("arc-easy")
    assert not caplog.records
    assert client.level == level


def test_a_name_that_no_file_can_have_is_one_line() -> None:
    for name in ("a\0b", "x" * 300, ""):
        with pytest.raises(ConfigError, match="prompts: expected default, arc-easy or a text file"):
            load_prompts(name)
