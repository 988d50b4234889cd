"""Models: sizes → a TransformerLens HookedTransformer with linear or softmax attention.

Names are imported when first used: TransformerLens costs seconds, and configurations do not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechplateau._lazy import lazy_names
from mechplateau.models import attention_only_kind as attention_only_kind  # registers its kind
from mechplateau.models import encoder_kind as encoder_kind  # registers its kind
from mechplateau.models import gpt as gpt  # registers its kind
from mechplateau.models import regressor_kind as regressor_kind  # registers its kind
from mechplateau.models.config import AttentionKind, ModelConfig, ModelConfigBase
from mechplateau.models.encoder_config import EncoderConfig
from mechplateau.models.kinds import ModelKind, model_kinds, register_model_kind
from mechplateau.models.records import Observation, Trainable, locations

if TYPE_CHECKING:
    from mechplateau.models.generation import generate as generate
    from mechplateau.models.observation import observe as observe
    from mechplateau.models.reference import load_reference_checkpoint as load_reference_checkpoint
    from mechplateau.models.transformer import HookedGPT as HookedGPT
    from mechplateau.models.transformer import build_model as build_model

_HOMES = {
    "HookedGPT": "transformer",
    "build_model": "transformer",
    "generate": "generation",
    "load_reference_checkpoint": "reference",
    "observe": "observation",
}

__all__ = [
    "AttentionKind",
    "EncoderConfig",
    "ModelConfig",
    "ModelConfigBase",
    "ModelKind",
    "Observation",
    "Trainable",
    "locations",
    "model_kinds",
    "register_model_kind",
    *_HOMES,
]


def _check(name: str) -> None:
    from mechplateau.models.versions import check_hooked_transformer

    check_hooked_transformer(f"mechplateau.models.{name}")


__getattr__, __dir__ = lazy_names(__name__, _HOMES, _check)
