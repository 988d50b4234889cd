"""From the tensors of a checkpoint to a model of transformers, strictly, and to its tokenizer.

The model is filled from the very tensors that were hashed, so what is measured is what was identified. Every
tensor must be there, in its shape, and nothing may be left over; code that comes with a checkpoint is never
run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechplateau.devices import device_named
from mechplateau.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_model(
    folder: Path, state: Mapping[str, Tensor], *, dtype: str = "float32", device: str = "cpu"
) -> PreTrainedModel:
    """The causal language model that a checkpoint folder's configuration describes, with these tensors.

    Args:
        folder: a checkpoint folder with its `config.json`.
        state: its tensors (`read_weights(folder)`).
        dtype: the type to run it in.
        device: where to put it.

    Returns:
        the model, in eval mode, without gradients.

    Raises:
        CheckpointError: no or an unknown configuration, one that needs its own code, or tensors that are
            missing, left over or of another shape.
    """
    import torch
    import transformers

    where = device_named(device)
    config = _read_config(folder)
    architectures = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in architectures:
        raise CheckpointError(
            f"{folder}: expected a causal language model, got a {config.model_type} configuration"
        )
    cls = architectures[type(config)]
    _check_activation(folder, config)
    with quiet():
        try:
            model, info = cls.from_pretrained(
                None,
                config=config,
                state_dict=dict(state),
                dtype=getattr(torch, dtype),
                output_loading_info=True,
            )
        # A configuration from outside can fail anywhere in the making of a model.
        except Exception as error:
            raise CheckpointError(
                f"{folder}: the tensors do not fit {cls.__name__} ({_first_line(error)})"
            ) from None
    problems = [
        f"{word} {', '.join(sorted(map(str, info[key]))[:4])}"
        for key, word in (
            ("missing_keys", "missing"),
            ("unexpected_keys", "left over"),
            ("mismatched_keys", "of another shape"),
            ("error_msgs", "errors:"),
        )
        if info.get(key)
    ]
    if problems:
        raise CheckpointError(f"{folder}: the tensors do not fit {cls.__name__}: {'; '.join(problems)}")
    return model.to(where).eval().requires_grad_(False)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer kept in a folder, without network and without code of its own.

    Raises:
        CheckpointError: there is none, or it cannot be read.
    """
    from transformers import AutoTokenizer

    # transformers would take the path of no folder for a name of the hub.
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no readable tokenizer (there is no such folder)")
    with quiet():
        try:
            return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        # Tokenizers are data in a dozen formats: whatever their readers raise means the same here.
        except Exception as error:
            raise CheckpointError(f"{folder}: no readable tokenizer ({_first_line(error)})") from None


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder keeps tokenizer files."""
    return any(
        (folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
    )


def end_of_text(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> list[int]:
    """Ids of the end-of-text token: the tokenizer's; without one, those of the generation settings.

    Ids beyond the vocabulary do not count: the model cannot generate them.
    """
    vocabulary = model.get_input_embeddings().num_embeddings
    for settings in (tokenizer, model.generation_config, model.config):
        ids = getattr(settings, "eos_token_id", None)
        known = [
            i for i in (ids if isinstance(ids, list) else [ids]) if i is not None and 0 <= i < vocabulary
        ]
        if known:
            return [int(i) for i in known]
    return []


def _read_config(folder: Path) -> Any:
    from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder}: no config.json")
    with quiet():
        try:
            return AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        # transformers validates with code of each architecture: any error says that it cannot be used.
        except Exception as error:
            raise CheckpointError(f"{folder}: config.json cannot be used ({_first_line(error)})") from None


def _check_activation(folder: Path, config: Any) -> None:
    """transformers looks an activation function up by its name, and an unknown one ends in that name alone."""
    from transformers.activations import ACT2FN

    text = config.get_text_config()
    for field in ("hidden_act", "hidden_activation", "activation_function"):
        name = getattr(text, field, None)
        if isinstance(name, str) and name not in ACT2FN:
            raise CheckpointError(
                f"{folder}: config.json: {field} {name!r} is not an activation function that transformers knows"
            )


def _first_line(error: BaseException) -> str:
    """What an error says, in one line: its first, and the next one where the first only announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[:2]).rstrip(" ,;") if lines[0].endswith(":") else lines[0]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars and load reports: what they say is checked and said in one line."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
