"""Text to train on, as tokens: any folder of text files, or the source of Python's standard library.

1. Documents are read in the order of their names; a hash of their content identifies the text.
2. A byte-level byte-pair vocabulary is trained on them. Its first entries and merges are a smaller vocabulary of the
   same kind, in which strings that are one token of the larger one are several: its common n-grams.
3. The last twentieth of each document is kept for evaluation. Both parts are joined by an end-of-text token.

What is made of a large text is kept for the next time (`kept_corpus`).
"""

from __future__ import annotations

import hashlib
import json
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechplateau.errors import ConfigError
from mechplateau.metrics.language import bigram_table
from mechplateau.tasks.kept_corpus import Made, kept_or_made

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"
END = 0
"""The token of the end of a text, which also begins every row."""
BYTES = 256
LEAST_VOCABULARY = BYTES + 1
"""One token a byte, and the end of text."""
GRAMS = 1000
"""How many common n-grams of a length are used, the most common ones."""

_SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib2to3"}

_LEAST_LIBRARY = 10_000
"""Bytes."""


def library_texts(size: int | None = None) -> list[str]:
    """The standard library's Python files in the order of their names, until they make up `size` bytes.

    Raises:
        ConfigError: less than 10,000 bytes are asked for, or there are no more.
    """
    if size is not None and size < _LEAST_LIBRARY:
        raise ConfigError(
            f"task.text_bytes: expected at least {_LEAST_LIBRARY:,} of the library, got {size:,}"
        )
    root = Path(sysconfig.get_paths()["stdlib"])
    parts = _first(
        (path.read_text(encoding="utf-8", errors="replace") for path in _library_sources(root)), size
    )
    if sum(len(part.encode()) for part in parts) < _LEAST_LIBRARY:
        raise ConfigError(f"{root}: this Python comes without the source of its library; use another one")
    return parts


def folder_texts(folder: str | Path, size: int | None = None) -> list[str]:
    """All UTF-8 text files below a folder in the order of their names, until they make up `size` bytes.

    Hidden files, links and what is no text are left out, and so are empty files.

    Raises:
        ConfigError: there is no such folder, or no text in it.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise ConfigError(f"task.folder: expected a folder of text files, got {folder}, which is none")
    parts = _first(_texts(root), size)
    if not parts:
        raise ConfigError(f"task.folder: expected a folder of text files, found no UTF-8 text in {folder}")
    return parts


def content_of(texts: Sequence[str]) -> str:
    """Which text this is: 16 hexadecimal digits of a SHA-256 over the documents and their borders."""
    digest = hashlib.sha256()
    for text in texts:
        plain = text.encode()
        digest.update(len(plain).to_bytes(8, "big"))
        digest.update(plain)
    return digest.hexdigest()[:16]


def train_bpe(texts: Sequence[str], vocab_size: int) -> Tokenizer:
    """A byte-level byte-pair tokenizer of at most `vocab_size` tokens: end of text, 256 bytes, then merges in order."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def nested(tokenizer: Tokenizer, vocab_size: int) -> Tokenizer:
    """The tokenizer that has only the first `vocab_size` entries, and the merges that make them."""
    from tokenizers import Tokenizer

    state = json.loads(tokenizer.to_str())
    kept = {token: index for token, index in state["model"]["vocab"].items() if index < vocab_size}
    state["model"]["vocab"] = kept
    state["model"]["merges"] = [
        merge
        for merge in state["model"]["merges"]
        if "".join(_pair(merge)) in kept and set(_pair(merge)) <= set(kept)
    ]
    return Tokenizer.from_str(json.dumps(state))


def common_grams(small: Tokenizer, wide: Tokenizer, n: int, most: int = GRAMS) -> Int[Tensor, "grams n"]:
    """Strings that are one token of the wide vocabulary and exactly n of the small one, as those n tokens.

    In the order of the wide vocabulary, hence the most common first.
    """
    found = []
    for index in range(small.get_vocab_size(), wide.get_vocab_size()):
        text = wide.decode([index])
        if wide.encode(text).ids != [index]:
            continue  # a piece of a character, which is no text of its own
        ids = small.encode(text).ids
        if len(ids) == n:
            found.append(ids)
            if len(found) == most:
                break
    return torch.tensor(found, dtype=torch.int64).view(-1, n)


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text as tokens.

    Attributes:
        tokenizer, wide: the vocabulary, and the larger one that it is a part of.
        train, test: tokens, int64, documents joined by the end-of-text token.
        content: which text it is.
    """

    tokenizer: Tokenizer
    wide: Tokenizer
    train: Int[Tensor, " tokens"]
    test: Int[Tensor, " tokens"]
    content: str

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.get_vocab_size()

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """What to show for each token: its text, with · for a space and ⏎ for a new line, or its bytes."""
        plain = [self.tokenizer.id_to_token(index) or "" for index in range(self.vocab_size)]
        return tuple(token.replace("Ġ", "·").replace("Ċ", "⏎").replace("ĉ", "→") for token in plain)

    @cached_property
    def bigrams(self) -> Float[Tensor, "vocab vocab"]:
        """q(next | token), counted on the training part; a row of zeros for a token that is not followed by any."""
        return bigram_table(self.train, self.vocab_size)

    @cached_property
    def grams(self) -> Mapping[int, Int[Tensor, "grams n"]]:
        """Common n-grams of 2, 3 and 4 tokens."""
        return {n: common_grams(self.tokenizer, self.wide, n) for n in (2, 3, 4)}


def corpus(texts: Sequence[str], vocab_size: int, wide_vocab_size: int) -> Corpus:
    """The corpus of these documents; made once for each text and vocabulary in a process.

    Raises:
        ConfigError: the text does not support so many tokens.
    """
    return _corpus(tuple(texts), vocab_size, wide_vocab_size)


@lru_cache(maxsize=2)
def _corpus(texts: tuple[str, ...], vocab_size: int, wide_vocab_size: int) -> Corpus:
    content = content_of(texts)
    made = kept_or_made(
        content,
        (vocab_size, wide_vocab_size),
        sum(map(len, texts)),
        lambda: _made(texts, vocab_size, wide_vocab_size),
    )
    return Corpus(nested(made.wide, vocab_size), made.wide, made.train, made.test, content)


def _made(texts: tuple[str, ...], vocab_size: int, wide_vocab_size: int) -> Made:
    wide = train_bpe(texts, wide_vocab_size)
    if wide.get_vocab_size() < wide_vocab_size:
        raise ConfigError(
            f"task.wide_vocab_size: expected at most {wide.get_vocab_size()} tokens, which is all this text supports, "
            f"got {wide_vocab_size}; take a smaller vocabulary or more text"
        )
    small = nested(wide, vocab_size)
    train: list[Tensor] = []
    test: list[Tensor] = []
    # `fast`: without each token's place in the text, which takes as long as the tokens.
    for encoding in small.encode_batch_fast(list(texts), add_special_tokens=False):
        ids = torch.tensor(encoding.ids, dtype=torch.int64)
        kept = len(ids) - len(ids) // 20
        for part, tokens in ((train, ids[:kept]), (test, ids[kept:])):
            if len(tokens):
                part += [tokens, torch.tensor([END])]
    nothing = torch.zeros(0, dtype=torch.int64)
    return Made(wide, torch.cat([nothing, *train]), torch.cat([nothing, *test]))


def _first(texts: Iterator[str], size: int | None) -> list[str]:
    parts: list[str] = []
    total = 0
    for text in texts:
        parts.append(text)
        total += len(text.encode())
        if size is not None and total >= size:
            break
    return parts


def _library_sources(folder: Path) -> Iterator[Path]:
    """Python files below a folder, depth first in the order of their names, without tests and installed packages."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink() and path.name not in _SKIPPED:
            yield from _library_sources(path)
        elif path.suffix == ".py":
            yield path


def _texts(folder: Path) -> Iterator[str]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.is_symlink():
            continue
        if path.is_dir():
            yield from _texts(path)
        elif path.is_file():
            try:
                text = path.read_bytes().decode("utf-8")
            except (UnicodeDecodeError, OSError):
                continue
            if text.strip() and "\0" not in text:
                yield text


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    """A merge's two parts, which some versions of tokenizers write as one string."""
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second


__all__ = [
    "END",
    "END_OF_TEXT",
    "LEAST_VOCABULARY",
    "Corpus",
    "common_grams",
    "content_of",
    "corpus",
    "folder_texts",
    "library_texts",
    "nested",
    "train_bpe",
]
