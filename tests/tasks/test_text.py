"""The text task: rows, repeated rows, and which text a configuration is about."""

import math

import pytest
import torch

from mechplateau.config import RunConfig
from mechplateau.errors import ConfigError
from mechplateau.tasks.corpus import END
from mechplateau.tasks.text import Text

SIZES = {"vocab_size": 260, "wide_vocab_size": 270, "n_ctx": 16}


@pytest.fixture
def folder(tmp_path):
    for name in ("a", "b"):
        words = " ".join(f"{name}{i} the cat sat" for i in range(60))
        (tmp_path / f"{name}.txt").write_text(words, encoding="utf-8")
    return tmp_path


def text(where, **changes) -> Text:
    return Text.parse({**SIZES, "folder": str(where), **changes})


def test_rows_are_end_of_text_and_a_piece_of_the_training_part(folder, generator):
    task = text(folder)
    batch = task.batch(50, generator)
    assert batch.tokens.shape == (50, 17)
    assert (batch.tokens[:, 0] == END).all()
    windows = task.corpus().train.unfold(0, 16, 1)
    for row in batch.tokens[:, 1:]:
        assert (windows == row).all(1).any()
    held = task.held_out(20, generator).tokens
    windows = task.corpus().test.unfold(0, 16, 1)
    assert all((windows == row).all(1).any() for row in held[:, 1:])


def test_repeated_rows_repeat_a_segment_of_each_allowed_length(folder, generator):
    task = text(folder, segment=[2, 4], repeated=0.25)
    rows = task.repeated_rows(60, generator)
    assert (rows[:, 0] == END).all()
    assert (rows[:, 1:] != END).all()

    def period(row):
        return next(p for p in range(1, 17) if torch.equal(row[1 + p :], row[1:-p]))

    assert {period(row) for row in rows} == {2, 3, 4}
    batch = task.batch(8, generator).tokens
    assert [period(row) < 5 for row in batch] == [False] * 6 + [True] * 2


def test_the_trivial_loss_is_the_entropy_of_single_tokens(folder):
    counts = torch.bincount(text(folder).corpus().train)
    shares = (counts / counts.sum())[counts > 0]
    unigram = -float((shares * shares.log()).sum())
    assert text(folder).trivial_loss == pytest.approx(unigram, rel=1e-5)
    mixed = text(folder, repeated=0.5).trivial_loss
    assert mixed == pytest.approx((unigram + math.log(259)) / 2, rel=1e-5)


def test_the_text_counts_for_the_name_and_where_it_lies_does_not(folder, tmp_path_factory):
    task = text(folder)
    assert task.content is not None
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for path in folder.iterdir():
        (elsewhere / path.name).write_bytes(path.read_bytes())
    assert text(elsewhere).content_hash() == task.content_hash()
    assert Text.parse(task.data()) == task
    (elsewhere / "a.txt").write_text("something else", encoding="utf-8")
    assert text(elsewhere).content_hash() != task.content_hash()


def test_a_text_that_changed_is_refused_in_a_line(folder):
    task = text(folder)
    (folder / "b.txt").write_text("another text " * 40, encoding="utf-8")
    with pytest.raises(ConfigError, match=f"expected hash {task.content}") as error:
        task.corpus()
    assert "\n" not in str(error.value)


def test_a_text_shorter_than_a_row_is_refused_with_its_length(folder):
    with pytest.raises(
        ConfigError, match=r"n_ctx: expected at most \d+, the tokens of the text's held-out part"
    ):
        text(folder, n_ctx=300).corpus()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"folder": "/nowhere"}, "folder: "),
        ({"folder": ""}, "folder: "),
        ({"n_ctx": 5}, "n_ctx: "),
        ({"vocab_size": 256}, "vocab_size: "),
        ({"wide_vocab_size": 258}, "wide_vocab_size: expected at least vocab_size = 260"),
        ({"segment": [5, 4]}, "segment: "),
        ({"repeated": 1.5}, "repeated: "),
        ({"content": "abc"}, "content: "),
    ],
)
def test_wrong_settings_are_said_in_a_line(folder, wrong, said):
    with pytest.raises(ConfigError) as error:
        text(folder, **wrong)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_without_text_is_said_in_a_line(tmp_path):
    with pytest.raises(ConfigError, match=r"^folder: expected a folder of text files, found no UTF-8 text"):
        text(tmp_path)
    with pytest.raises(
        ConfigError, match=r"^task.folder: expected a folder of text files, found no UTF-8 text"
    ):
        RunConfig.for_task("text", task={"folder": str(tmp_path)})


def test_too_many_tokens_for_the_text_are_said_in_a_line(folder):
    with pytest.raises(ConfigError, match="which is all this text supports"):
        text(folder, wide_vocab_size=100_000).corpus()
