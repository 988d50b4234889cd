"""Language: the next token of a text, and of random segments that repeat themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar, Literal, Self

import torch
from jaxtyping import Int
from pydantic import Field, model_validator
from torch import Tensor

from mechplateau.errors import ConfigError
from mechplateau.objectives import NextToken, Objective, TokenBatch
from mechplateau.tasks.base import TaskBase, register_task
from mechplateau.tasks.corpus import (
    END,
    LEAST_VOCABULARY,
    Corpus,
    content_of,
    corpus,
    folder_texts,
    library_texts,
)

_SMALL = {"n_layers": 2, "n_heads": 4, "d_model": 64}
_WARMED = {"schedule": "warmup", "warmup_steps": 20}


@register_task
class Text(TaskBase):
    """Rows of text: the end-of-text token, then `n_ctx` tokens from a random place of the training part.

    A share of the rows can be random instead: a segment of uniform tokens, repeated until it fills the row, which can
    only be predicted from the context (by an induction head, say). The text is identified by a hash of its
    content, which is part of a run's name: a run with another text is another run.

    Source: arXiv 2402.02364, section 3.1 (on other text; the repeated rows are ours).
    """

    unhashed: ClassVar = frozenset({"folder", "text_bytes"})

    name: Literal["text"] = "text"
    folder: str | None = Field(None, min_length=1)
    """Folder of text files; null: the source of Python's standard library, without its tests."""
    text_bytes: int | None = Field(None, ge=1)
    """Documents are read until they make up so many bytes; null: all of them."""
    content: str | None = Field(None, pattern="^[0-9a-f]{16}$")
    """Which text it is, a hash; null: that of the text as it is now, which is filled in."""
    vocab_size: int = Field(512, ge=LEAST_VOCABULARY, le=2**20)
    """Number of tokens: end of text, 256 bytes, and pairs that are merged."""
    wide_vocab_size: int = Field(4096, ge=LEAST_VOCABULARY, le=2**20)
    """Size of the vocabulary that this one is the first part of; its further strings are the common n-grams."""
    n_ctx: int = Field(128, ge=6, le=2**16)
    """Tokens that the model sees, the end-of-text token in front included."""
    repeated: float = Field(0.0, ge=0, le=1)
    """Share of training rows that are a random segment, repeated."""
    segment: tuple[int, int] = (8, 31)
    """Least and greatest length of such a segment."""

    words: ClassVar = "Next token of a text"
    title_fields: ClassVar = ("n_ctx", "vocab_size")
    model_kinds: ClassVar = ("attention_only",)
    default_training: ClassVar = {"optimizer": "adamw", "weight_decay": 0.05, "decay": "all"}
    presets: ClassVar = {
        "lm-bigram": {
            "task": {"text_bytes": 8_500_000},
            "model": _SMALL,
            "training": {**_WARMED, "steps": 3000, "lr": 0.003, "batch_size": 16},
            "evaluation": {"log_spaced": 30, "every": 60},
            "checkpoints": {"every": 250},
        },
        "lm-induction": {
            "task": {"text_bytes": 8_500_000, "n_ctx": 64, "repeated": 0.5},
            "model": _SMALL,
            "training": {**_WARMED, "steps": 2000, "lr": 0.005, "batch_size": 32},
            "evaluation": {"log_spaced": 20, "every": 50},
            "checkpoints": {"every": 125},
        },
        "lm-paper": {
            "task": {"n_ctx": 1024, "vocab_size": 5000, "wide_vocab_size": 50_000},
            "training": {"steps": 50_000, "lr": 0.001, "batch_size": 100},
            "evaluation": {"every": 100},
            "checkpoints": {"every": 500},
        },
    }
    """lm-bigram: bigrams, then n-grams with positions, in about two minutes on one thread. lm-induction: the same with
    repeated rows, and an induction head at the end, in about a minute. lm-paper: the paper's sizes, for a GPU and a
    folder with much text."""

    llc_settings: ClassVar = {
        "published": {
            "step_size": 1e-3,
            "n_beta": 21.7,
            "localization": 100.0,
            "batch_size": 16,
            "chains": 2,
            "draws": 50,
            "burn_in": 50,
        },
    }
    """published: the paper's, with fewer and shorter chains and smaller batches (its are 100 rows)."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.wide_vocab_size < self.vocab_size:
            raise ValueError(
                f"wide_vocab_size: expected at least vocab_size = {self.vocab_size}, got {self.wide_vocab_size}"
            )
        least, most = self.segment
        if not 1 <= least <= most:
            raise ValueError(
                f"segment: expected two lengths from 1, the smaller one first, got {list(self.segment)}"
            )
        if self.content is None:
            try:
                self.__dict__["content"] = content_of(self.texts())
            except ConfigError as error:
                raise ValueError(str(error).removeprefix("task.")) from None
        return self

    def texts(self) -> Sequence[str]:
        """The documents as they are at present.

        Raises:
            ConfigError: there is no text.
        """
        if self.folder is None:
            return library_texts(self.text_bytes)
        return folder_texts(self.folder, self.text_bytes)

    def corpus(self) -> Corpus:
        """The text as tokens; made once a process.

        Raises:
            ConfigError: the text is no longer the one of this configuration, is shorter than a row, or does not support
                so many tokens.
        """
        return _loaded(self)

    def prepare(self) -> None:
        """Read the text and make its vocabulary; raises what `corpus` does."""
        self.corpus()

    @property
    def objective(self) -> Objective:
        return NextToken()

    @property
    def measurement_names(self) -> tuple[str, ...]:
        return ("loss", "language_behavior", "language_heads", "language_weights")

    @property
    def trivial_loss(self) -> float:
        """Entropy of a single token of the training part, in nats; of repeated rows, that of a uniform one."""
        counts = torch.bincount(self.corpus().train, minlength=self.vocab_size).double()
        unigram = float(torch.special.entr(counts / counts.sum()).sum())
        return (1 - self.repeated) * unigram + self.repeated * math.log(self.vocab_size - 1)

    @property
    def token_labels(self) -> tuple[str, ...]:
        """What to show for each token of the vocabulary."""
        return self.corpus().labels

    def evaluation_batch(
        self, n: int, generator: torch.Generator | None = None, device: str | torch.device = "cpu"
    ) -> TokenBatch:
        """A fixed set of rows of text that is not trained on, the same at every step of every run of this task."""
        return self.held_out(n, torch.Generator().manual_seed(_EVALUATION_SEED)).to(device)

    def held_out(self, n: int, generator: torch.Generator, device: torch.device | str = "cpu") -> TokenBatch:
        """Rows of the part of the text that is not trained on."""
        return TokenBatch(self._windows(self.corpus().test, n, generator, torch.device(device)))

    def random_tokens(
        self, n: int, length: int, generator: torch.Generator, device: torch.device | str = "cpu"
    ) -> Int[Tensor, "n length"]:
        """Uniform tokens, all but the end of text."""
        return torch.randint(1, self.vocab_size, (n, length), generator=generator, device=device)

    def repeated_rows(
        self, n: int, generator: torch.Generator, device: torch.device | str = "cpu"
    ) -> Int[Tensor, "n row"]:
        """Rows `[end of text, segment, segment, …]`, each with a random segment of a random length."""
        least, most = self.segment
        segments = self.random_tokens(n, most, generator, device)
        lengths = torch.randint(least, most + 1, (n, 1), generator=generator, device=device)
        places = torch.arange(self.n_ctx, device=device) % lengths
        return _after_end(segments.gather(1, places))

    def _batch(self, n: int, generator: torch.Generator, device: torch.device) -> TokenBatch:
        n_repeated = int(n * self.repeated)
        parts = []
        if n_repeated < n:
            parts.append(self._windows(self.corpus().train, n - n_repeated, generator, device))
        if n_repeated:
            parts.append(self.repeated_rows(n_repeated, generator, device))
        return TokenBatch(torch.cat(parts))

    def _windows(
        self, tokens: Tensor, n: int, generator: torch.Generator, device: torch.device
    ) -> Int[Tensor, "n row"]:
        last = len(tokens) - self.n_ctx
        starts = torch.randint(last + 1, (n, 1), generator=generator, device=device)
        places = starts + torch.arange(self.n_ctx, device=device)
        return _after_end(tokens.to(device)[places])


_EVALUATION_SEED = 20_240_202


def _after_end(tokens: Int[Tensor, "n length"]) -> Int[Tensor, "n row"]:
    return torch.cat([tokens.new_full((len(tokens), 1), END), tokens], dim=1)


@lru_cache(maxsize=4)
def _loaded(task: Text) -> Corpus:
    texts = task.texts()
    found = content_of(texts)
    if found != task.content:
        where = "Python's standard library" if task.folder is None else task.folder
        raise ConfigError(
            f"task.content: the text of {where} is no longer the one this run was configured with (expected hash "
            f"{task.content}, got {found}); bring that text back, or start another run without content"
        )
    made = corpus(texts, task.vocab_size, task.wide_vocab_size)
    for part, tokens in (("training", made.train), ("held-out", made.test)):
        if len(tokens) < task.n_ctx:
            raise ConfigError(
                f"task.n_ctx: expected at most {len(tokens)}, the tokens of the text's {part} part, got {task.n_ctx}; "
                "take a shorter context or more text"
            )
    return made


__all__ = ["Text"]
