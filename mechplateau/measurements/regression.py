"""What is recorded of regression in context: predictions on fixed contexts, the weights' spread, where heads look."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

from mechplateau.measurements import regression_values
from mechplateau.measurements.base import Measurement, Need, Seen, Setting, Value, register_measurement
from mechplateau.measurements.columns import Column
from mechplateau.measurements.regression_values import (
    GAINS,
    RegressionProbes,
    knows_prior,
    regression_probes,
)
from mechplateau.models.config import ModelConfigBase
from mechplateau.models.regressor_config import RegressorConfig
from mechplateau.objectives import Batch
from mechplateau.tasks import TaskBase
from mechplateau.tasks.in_context_regression import InContextRegression

_SQUARE = "y²"


class OfRegression(Measurement):
    """Base of what is measured of a regression model on contexts of its own."""

    needs: ClassVar[frozenset[Need]] = frozenset()

    def __init__(self, setting: Setting):
        super().__init__(setting)
        assert isinstance(setting.task, InContextRegression)
        assert isinstance(setting.model, RegressorConfig)
        self.task, self.sizes = setting.task, setting.model

    @classmethod
    def misfit(cls, task: TaskBase, model: ModelConfigBase) -> str | None:
        if not isinstance(task, InContextRegression):
            return f"it needs regression in context, and {task.name} is none"
        if not isinstance(model, RegressorConfig):
            return f"a model of kind {model.kind} is not one of regression in context"
        return super().misfit(task, model)

    @property
    def fixed_shapes(self) -> bool:
        return False  # its contexts are no part of a graph

    @cached_property
    def probes(self) -> RegressionProbes:
        """The contexts, on the model's device."""
        return regression_probes(self.task, self.setting.device)


@register_measurement
class RegressionPredictions(OfRegression):
    """Errors, and how far predictions are from known predictors."""

    name: ClassVar[str] = "regression_predictions"

    def columns(self) -> tuple[Column, ...]:
        columns = [
            Column("mse", _SQUARE, "mean squared error on a fixed set"),
            Column("mse_above_zero", _SQUARE, "mse minus the error of answering 0 on the same set"),
            *(
                Column(f"mse_{k}", _SQUARE, f"squared error of pair {k}")
                for k in range(1, self.task.n_pairs + 1)
            ),
            Column("ridge_gap", _SQUARE, "mean squared distance from the ridge predictor"),
            Column(
                "task_prior_distance",
                _SQUARE,
                "squared distance from answering with the mean task, sum over pairs",
            ),
            *self._norm_and_gains("", ""),
        ]
        if knows_prior(self.task):
            columns.append(
                Column(
                    "prior_gap", _SQUARE, "mean squared distance from the best predictor of the known tasks"
                )
            )
        if 0 < self.task.noise < 1:
            columns += self._norm_and_gains("_quiet", ", on contexts with the noise σ⁴")
        return tuple(columns)

    def _norm_and_gains(self, ending: str, where: str) -> list[Column]:
        norm = Column(f"prediction_norm{ending}", _SQUARE, f"mean of ŷ²{where}")
        gains = [
            Column(
                f"icl_{a}_{b}{ending}",
                _SQUARE,
                f"error of pair {b} minus that of pair {a}{where}",
                "fewer pairs",
            )
            for a, b in GAINS
        ]
        return [norm, *gains]

    def measure(self, seen: Seen, batch: Batch) -> Mapping[str, Value]:
        return regression_values.predictions(seen.model, self.probes)


@register_measurement
class RegressionWeights(OfRegression):
    """The spread of embeddings and LayerNorm gains."""

    name: ClassVar[str] = "regression_weights"

    def columns(self) -> tuple[Column, ...]:
        columns = [Column("weight_norm", "1", "norm of all trained weights")]
        for name, what in (("embed", "token map"), ("positions", "position embedding")):
            columns += [
                Column(f"{name}_share_max", "share", f"largest σ²/Σσ² of the {what}"),
                Column(f"{name}_share_min", "share", f"smallest σ²/Σσ² of the {what}"),
                Column(f"{name}_effective_rank", "rank", f"exp of the entropy of these shares of the {what}"),
            ]
        rank = min(2, self.task.d_token, self.task.n_ctx, self.sizes.d_model)
        columns += [
            Column(f"alignment_{i}", "cosine", f"cosine {i} between the top {rank} directions of the two")
            for i in range(1, rank + 1)
        ]
        layers = range(self.sizes.n_layers)
        norms = ["ln_final", *(f"{norm}_L{layer}" for layer in layers for norm in ("ln1", "ln2"))]
        for norm in norms:
            columns += [
                *(
                    Column(f"{norm}_{what}", "1", f"{what} of the LayerNorm's gain")
                    for what in ("mean", "sd", "min", "max")
                ),
                Column(f"{norm}_small", "share", "gains below 0.1 in size"),
            ]
        return (
            *columns,
            Column("readout_small", "share", "coordinates that the output reads with less than 0.01"),
            Column("readout_top", "share", "share of the squared read-out that the top 5 coordinates hold"),
        )

    def measure(self, seen: Seen, batch: Batch) -> Mapping[str, Value]:
        return regression_values.weights(seen.model)


@register_measurement
class RegressionAttention(OfRegression):
    """Where heads look, from x tokens and from y tokens apart."""

    name: ClassVar[str] = "regression_attention"

    def columns(self) -> tuple[Column, ...]:
        last = self.task.n_ctx - 1
        what = {
            "entropy": "entropy of attention, as a share of what is possible",
            "variability": "half the distance of attention from its mean over contexts",
            "to_x": "attention to x tokens",
            "to_y": "attention to y tokens",
            **{f"back_{offset}": f"attention to {offset} tokens before" for offset in range(min(4, last))},
        }
        return tuple(
            Column(f"{name}_{kind}_L{layer}H{head}", "share", f"{words}, from {kind} tokens", "no such token")
            for layer in range(self.sizes.n_layers)
            for kind in "xy"
            if kind == "x" or last > 1
            for name, words in what.items()
            for head in range(self.sizes.n_heads)
        )

    def measure(self, seen: Seen, batch: Batch) -> Mapping[str, Value]:
        return regression_values.attention(seen.model, self.probes)


__all__ = ["RegressionAttention", "RegressionPredictions", "RegressionWeights"]
