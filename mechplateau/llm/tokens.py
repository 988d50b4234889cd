"""The prompts as token ids: each checkpoint's own tokenizer turns them into its own.

transformers takes the tokenizer that lies with a checkpoint, and so it is here. A checkpoint without one, or
with one that cannot be read, is given the first that the series has, and its verdict says so. A tokenizer that
adds something after a text, as some end each text with end-of-text, is refused: the models would generate after the
end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechplateau.errors import CheckpointError, ConfigError
from mechplateau.llm.loading import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from mechplateau.llm.sources import Source

_FILES = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.model",
    "config.json",
)
"""What transformers makes a tokenizer of."""


@dataclass(frozen=True)
class PromptTokens:
    """The prompts for one checkpoint."""

    ids: list[list[int]]
    tokenizer: PreTrainedTokenizerBase | None
    """None where the prompts were given as ids."""
    notes: tuple[str, ...] = ()
    """Whose tokenizer it is, where it is not the checkpoint's own."""

    @property
    def digest(self) -> str:
        """SHA-256 of the ids: numbers hold for these only."""
        return hashlib.sha256(json.dumps(self.ids).encode()).hexdigest()

    def text(self, token: int) -> str | None:
        """A token as text; its number where there is no tokenizer, `#` and its number where the tokenizer does not
        have it; None if it is undefined (negative)."""
        if token < 0:
            return None
        if self.tokenizer is None:
            return str(token)
        # Vocabularies are often padded: the model has tokens that the tokenizer has no text for.
        return str(self.tokenizer.decode([token])) if token < len(self.tokenizer) else f"#{token}"


class Tokenization:
    """Turns the prompts into tokens for one checkpoint after the other."""

    def __init__(
        self, source: Source, prompts: Sequence[Any], tokenizer_folder: Path | None, labels: Sequence[str]
    ) -> None:
        """Tokenize for the first checkpoint, so that what is wrong with all of them is said at once.

        Raises:
            CheckpointError: `tokenizer_folder` has no readable tokenizer.
            ConfigError: no checkpoint has one, or one that adds something after a text.
        """
        self._source, self._prompts = source, prompts
        self._last: tuple[str, PromptTokens] | None = None
        self._owner: str | None = None
        if not isinstance(prompts[0], str):
            self._shared = PromptTokens([list(prompt) for prompt in prompts], None)
        elif tokenizer_folder is not None:
            self._shared = self._tokens(load_tokenizer(tokenizer_folder), str(tokenizer_folder))
        else:
            self._shared = self._first(labels)

    def of(self, label: str) -> PromptTokens:
        """The prompts for a checkpoint.

        Raises:
            CheckpointError: its files cannot be had, or its tokenizer adds something after a text.
        """
        if self._owner is None:
            return self._shared
        folder = self._source.tokenizer_folder(label)
        if folder is None:
            why = "no tokenizer of its own"
        else:
            try:
                return self._own(folder)
            except ConfigError as error:
                raise CheckpointError(str(error)) from None
            except CheckpointError as error:
                why = str(error)
        return replace(self._shared, notes=(f"{why}; that of {self._owner} is used",))

    def _first(self, labels: Sequence[str]) -> PromptTokens:
        """By the first of the checkpoints' tokenizers that can be read."""
        damaged = ""
        for label in labels:
            try:
                folder = self._source.tokenizer_folder(label)
            except (CheckpointError, OSError):
                continue
            if folder is None:
                continue
            try:
                tokens = self._own(folder)
            except CheckpointError as error:
                damaged = damaged or f" ({error})"
            else:
                self._owner = label
                return tokens
        raise ConfigError(
            f"{self._source.name}: no {'readable ' if damaged else ''}tokenizer with the checkpoints or beside "
            f"them{damaged}; point to a folder that has one (--tokenizer), or check the checkpoints alone "
            "(--identity-only)"
        )

    def _own(self, folder: Path) -> PromptTokens:
        """By the tokenizer in a folder; the last one is kept, as most series have but one."""
        try:
            key = _content(folder)
        except OSError as error:
            raise CheckpointError(f"{folder}: no readable tokenizer ({error.strerror or error})") from None
        if self._last is None or self._last[0] != key:
            self._last = key, self._tokens(load_tokenizer(folder), str(folder))
        return self._last[1]

    def _tokens(self, tokenizer: PreTrainedTokenizerBase, where: str) -> PromptTokens:
        texts = list(self._prompts)
        ids = tokenizer(texts)["input_ids"]
        bare = tokenizer(texts[:1], add_special_tokens=False)["input_ids"][0]
        if bare and ids[0][-1] != bare[-1]:
            added = tokenizer.convert_ids_to_tokens(ids[0][-1])
            raise ConfigError(
                f"{where}: the tokenizer ends each prompt with {added!r}, so the models would generate after the end "
                "of a text; point to a folder with one that does not (--tokenizer), or give the prompts as token ids"
            )
        return PromptTokens(ids, tokenizer)


def tokenizer_files(folder: Path) -> list[Path]:
    """All that transformers would make a tokenizer of a folder from."""
    return sorted({path for pattern in _FILES for path in folder.glob(pattern) if path.is_file()})


def _content(folder: Path) -> str:
    """Hash of everything that makes up the tokenizer."""
    digest = hashlib.sha256()
    for path in tokenizer_files(folder):
        digest.update(f"{path.name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()
