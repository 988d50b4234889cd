"""Interventions: changes to a model while it trains. One file each; `base` defines what one is."""

from mechplateau.interventions.attention_scale import AttentionScale
from mechplateau.interventions.base import (
    Handle,
    Intervention,
    intervention_class,
    intervention_kinds,
    register_intervention,
)
from mechplateau.interventions.freeze import Freeze
from mechplateau.interventions.imposed_pattern import ImposedPattern
from mechplateau.interventions.optimal_init import OptimalInit
from mechplateau.interventions.progress_reward import ProgressReward

__all__ = [
    "AttentionScale",
    "Freeze",
    "Handle",
    "ImposedPattern",
    "Intervention",
    "OptimalInit",
    "ProgressReward",
    "intervention_class",
    "intervention_kinds",
    "register_intervention",
]
