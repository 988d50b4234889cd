"""A text's vocabulary and tokens, kept in the user's cache, since making them of megabytes takes many seconds.

A file is named by the content of its text, the sizes of the vocabularies, the version of `tokenizers` and `MADE`, and
carries a hash of what it holds. One that is damaged, or is another program's, is made again. It lies where Hugging
Face's libraries keep such files (`HF_ASSETS_CACHE`, or below `HF_HOME`), and can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from mechplateau.files import open_safetensors, write_whole

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LEAST, MOST = 1_000_000, 100_000_000
"""Characters of a text that is kept: a shorter one is made in a moment, a longer one would fill the cache."""

MADE = 1
"""Raise it with each change of what is made of a text, so that no file from before is read."""

logger = logging.getLogger("mechplateau")


class Made(NamedTuple):
    """What is made of a text: the larger vocabulary, and the tokens of both parts in the smaller one."""

    wide: Tokenizer
    train: Int[Tensor, " tokens"]
    test: Int[Tensor, " tokens"]


def kept_or_made(content: str, sizes: tuple[int, int], length: int, make: Callable[[], Made]) -> Made:
    """What is kept of this text, or else what `make` makes, which is then kept.

    Args:
        content: which text.
        sizes: of the vocabulary and of the larger one.
        length: characters of the text.
    """
    path = _path(content, sizes) if LEAST <= length <= MOST else None
    if path is None:
        return make()
    found = _read(path)
    if found is None:
        found = make()
        _write(path, found)
    return found


def _path(content: str, sizes: tuple[int, int]) -> Path | None:
    """Where it is kept; None where there can be no cache: no home, or one that cannot be written to."""
    import tokenizers
    from huggingface_hub import cached_assets_path, constants

    try:
        folder = cached_assets_path(
            "mechplateau",
            namespace="corpora",
            subfolder=f"{tokenizers.__version__}-{MADE}",
            assets_dir=constants.HF_ASSETS_CACHE,
        )
    except (OSError, RuntimeError, ValueError) as error:  # ValueError: a file is where the folder should
        logger.debug("no cache of texts: %s", error)
        return None
    return folder / f"{content}-{sizes[0]}-{sizes[1]}.safetensors"


def _read(path: Path) -> Made | None:
    """None where it is not there, or is not what was written."""
    from tokenizers import Tokenizer

    try:
        if not path.is_file():
            return None
        with open_safetensors(path) as (file, texts):
            parts = {name: file.get_tensor(name) for name in ("train", "test")}
        wide = texts.get("wide", "")
        if texts.get("sha256") != _hash(path.name, wide, parts["train"], parts["test"]):
            return None
        return Made(Tokenizer.from_str(wide), parts["train"].long(), parts["test"].long())
    except Exception as error:  # of another program's file, NumPy and tokenizers raise many kinds
        logger.debug("%s: made again (%s)", path, error)
        return None


def _write(path: Path, made: Made) -> None:
    """A full disk is no reason to stop: it is made again the next time."""
    from safetensors.torch import save_file

    wide = made.wide.to_str()
    parts = {"train": made.train.to(torch.int32), "test": made.test.to(torch.int32)}
    texts = {"wide": wide, "sha256": _hash(path.name, wide, parts["train"], parts["test"])}
    try:
        # `write_whole` would write to what a link leads to, and wait for the reader of a pipe.
        if path.is_symlink() or (path.exists() and not path.is_file()):
            return
        write_whole(path, lambda temporary: save_file(parts, str(temporary), metadata=texts))
    except Exception as error:  # safetensors has errors of its own beside the system's
        logger.debug("%s: not kept (%s)", path, error)


def _hash(name: str, wide: str, train: Tensor, test: Tensor) -> str:
    digest = hashlib.sha256()
    for part in (name.encode(), wide.encode(), train.numpy().tobytes(), test.numpy().tobytes()):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


__all__ = ["LEAST", "MADE", "MOST", "Made", "kept_or_made"]
