from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mechplateau.errors import ConfigError, RunError
from mechplateau.llm import DemoConfig, analyze_series, train_demo
from mechplateau.llm.demo import END_OF_TEXT, library_texts, train_tokenizer
from mechplateau.llm.weights import read_weights

TINY = DemoConfig(
    d_model=16,
    n_layers=1,
    n_heads=2,
    vocab_size=300,
    context=16,
    batch=4,
    steps=6,
    warmup=2,
    text_bytes=20_000,
)


def test_steps_are_about_twenty_and_logarithmic() -> None:
    steps = DemoConfig().checkpoint_steps()
    assert steps == [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
    assert DemoConfig(steps=5).checkpoint_steps() == [0, 1, 2, 3, 4, 5]


def test_the_text_is_the_library_of_this_python() -> None:
    texts = library_texts(100_000)
    assert sum(len(text.encode()) for text in texts) >= 100_000
    assert sum(len(text.encode()) for text in texts[:-1]) < 100_000
    assert any("def " in text and '"""' in text for text in texts)


def test_the_tokenizer_round_trips_and_ends_texts() -> None:
    tokenizer = train_tokenizer(library_texts(20_000), 300)
    text = "    def f(x):\n\treturn 'Grüße 🙂'\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer(text + END_OF_TEXT)["input_ids"][-1] == tokenizer.eos_token_id == 0


def test_a_series_is_trained_saved_and_analyzed(tmp_path: Path, heard) -> None:
    folder = train_demo(tmp_path / "demo", TINY, progress=heard)
    losses = [float(word.removeprefix("loss ")) for word in heard.words]
    assert [(done, total) for _, done, total in heard.counts] == [(step, 6) for step in range(1, 7)]
    assert losses[0] == pytest.approx(torch.log(torch.tensor(300.0)).item(), abs=0.2)
    analysis = analyze_series(folder, prompts=["Why is the sky blue?", "def main():"])
    assert analysis.table["step"].tolist() == [0, 1, 2, 3, 4, 6]
    assert set(analysis.table["verdict"]) == {"ok"}
    assert analysis.table["cos_final"].notna().all()
    # Done already: nothing is trained again; other settings are not mixed in.
    train_demo(folder, TINY, progress=heard)
    assert len(heard.words) == len(losses) == 6
    with pytest.raises(ConfigError, match="other settings"):
        train_demo(folder, DemoConfig(steps=7))


def test_training_is_reproducible_and_leaves_the_generator_alone(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    one, other = (train_demo(tmp_path / name, TINY) for name in ("one", "other"))
    assert torch.equal(torch.get_rng_state(), state)
    first, second = read_weights(one / "step6"), read_weights(other / "step6")
    assert all(torch.equal(first[name], second[name]) for name in first)
    start = read_weights(one / "step0")
    assert not any(torch.equal(first[name], start[name]) for name in first)


def test_an_interrupted_training_starts_over(tmp_path: Path, heard) -> None:
    def interrupt(step: int) -> None:
        if step == 3:
            raise KeyboardInterrupt

    heard.then = interrupt
    with pytest.raises(KeyboardInterrupt):
        train_demo(tmp_path / "demo", TINY, progress=heard)
    folder = train_demo(tmp_path / "demo", TINY)
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == [
        "step0",
        "step1",
        "step2",
        "step3",
        "step4",
        "step6",
    ]


def test_two_trainings_do_not_share_a_folder(tmp_path: Path, heard) -> None:
    def second(step: int) -> None:
        with pytest.raises(RunError, match="another process is training the demonstration there"):
            train_demo(tmp_path, TINY)

    heard.then = second
    train_demo(tmp_path, TINY, progress=heard)
    assert train_demo(tmp_path, TINY) == tmp_path


def test_what_a_demonstration_did_not_begin_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "step0").mkdir()
    (tmp_path / "step0" / "mine.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="holds something else than a demonstration"):
        train_demo(tmp_path, TINY)
    assert (tmp_path / "step0" / "mine.txt").read_text() == "years of work"


def test_a_note_that_is_no_text_is_other_settings(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="holds a demonstration with other settings"):
        train_demo(tmp_path, TINY)
