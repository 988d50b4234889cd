"""What happens inside the model: attention on Ω, and hidden states of the outputs; teacher-forced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from mechplateau import metrics
from mechplateau.measurements.base import Seen, Setting, Value, register_measurement
from mechplateau.measurements.columns import Column
from mechplateau.measurements.outputs import OfOutputs
from mechplateau.metrics.similarity import count_pairs
from mechplateau.objectives import Batch
from mechplateau.tasks import MatrixCompletion, SequenceTask

_NO_PROGRESS = "Ω has no row, or attention is not finite"


@register_measurement
class AttentionProgress(OfOutputs):
    """APM: the share of attention on Ω, for each target and the layers it is measured at."""

    name: ClassVar[str] = "attention_progress"
    needs: ClassVar = frozenset({"outputs", "attention"})

    @property
    def fixed_shapes(self) -> bool:
        return self.setting.targets.same_for_all

    def columns(self) -> tuple[Column, ...]:
        return (
            *(
                Column(
                    tracked.column,
                    "share",
                    "attention on Ω (attention progress)",
                    "Ω has no row, or attention is not finite",
                )
                for tracked in self.setting.targets.tracked
            ),
            Column(
                "apm_zero_count",
                "sequences",
                "sequences without any attention in a target's rows (their progress is 0)",
                dtype="int64",
            ),
        )

    def measure(self, seen: Seen, batch: Batch) -> Mapping[str, Value]:
        progress = seen.targets.progress(seen.observation)
        return {**progress, "apm_zero_count": seen.targets.silent(seen.observation)}


class OfHidden(OfOutputs):
    """Base of what is measured on the hidden states of the outputs."""

    needs: ClassVar = frozenset({"outputs", "hidden"})

    def __init__(self, setting: Setting):
        super().__init__(setting)
        self._rows = torch.tensor(self.task.output_rows, device=setting.device)

    def hidden(self, seen: Seen, place: str) -> Tensor:
        """Hidden states at the output rows, `[batch, n_outputs, d_model]`."""
        return seen.once(f"hidden {place}", lambda: seen.hidden[place][:, self._rows])

    def cosines(self, seen: Seen, place: str) -> Tensor:
        """Their cosine similarities, batch mean, `[n_outputs, n_outputs]`."""
        return seen.once(f"cosines {place}", lambda: metrics.cosine_matrix(self.hidden(seen, place)))


@register_measurement
class Similarity(OfHidden):
    """COS: mean cosine of the hidden states over the task's pairs of outputs."""

    name: ClassVar[str] = "similarity"

    def __init__(self, setting: Setting):
        super().__init__(setting)
        # Counted here, once: a number read from the device at every call could not be captured in a CUDA graph.
        self._pairs = {
            group: (pairs.to(setting.device), count_pairs(pairs))
            for group, pairs in self.task.collapse_pairs.items()
        }

    def columns(self) -> tuple[Column, ...]:
        return tuple(
            Column(
                f"cos_{place}{_suffix(group)}",
                "cosine",
                f"mean cosine of the hidden states at {place} over the task's pairs of outputs",
                "there is no such pair",
            )
            for place in self.setting.places
            for group in self._pairs
        )

    def measure(self, seen: Seen, batch: Batch) -> Mapping[str, Value]:
        return {
            f"cos_{place}{_suffix(group)}": metrics.mean_cosine(self.cosines(seen, place), pairs, n_pairs)
            for place in self.setting.places
            for group, (pairs, n_pairs) in self._pairs.items()
        }


@register_measurement
class SimilarityPerOutput(OfHidden):
    """Mean cosine of each output's final hidden state with all later ones."""

    name: ClassVar[str] = "similarity_per_output"

    def columns(self) -> tuple[Column, ...]:
        return tuple(
            Column(
                f"cos_out_{r}",
                "cosine",
                f"mean cosine of output {r}'s final hidden state with all later ones",
                "it is the last output",
            )
            for r in range(self.task.n_outputs)
        )

    def measure(self, seen: Seen, batch: Batch) -> Mapping[str, Value]:
        later = metrics.cosine_per_output(self.cosines(seen, "final"))
        return {} if later is None else {f"cos_out_{r}": later[r] for r in range(self.task.n_outputs - 1)}


@register_measurement
class HiddenSize(OfHidden):
    """Mean norm and stable rank of the hidden states; with `evaluation.locations: all`."""

    name: ClassVar[str] = "hidden_size"

    def columns(self) -> tuple[Column, ...]:
        if self.setting.where != "all":
            return ()
        places = self.setting.places
        return (
            *(Column(f"norm_{place}", "1", f"mean norm of the hidden states at {place}") for place in places),
            *(
                Column(
                    f"stable_rank_{place}",
                    "rank",
                    f"stable rank of the hidden states at {place}",
                    "all are 0",
                )
                for place in places
            ),
        )

    def measure(self, seen: Seen, batch: Batch) -> Mapping[str, Value]:
        values: dict[str, Value] = {}
        for place in self.setting.places if self.setting.where == "all" else ():
            values[f"norm_{place}"] = metrics.mean_norm(self.hidden(seen, place))
            rank = metrics.stable_rank(self.hidden(seen, place))
            values[f"stable_rank_{place}"] = None if rank is None else rank[0]
        return values


def keeps_pictures(setting: Setting) -> bool:
    """Whether pictures are kept at checkpoints: of a model that shows its attention, on a task of tokens, or of
    matrices of one size."""
    task = setting.task
    if isinstance(task, MatrixCompletion):
        return not task.mixture
    return isinstance(task, SequenceTask) and AttentionProgress.misfit(task, setting.model) is None


@torch.no_grad()
def pictures(model: Any, batch: Batch, setting: Setting) -> dict[str, Tensor]:
    """`pattern.L{layer}` `[head, query, key]`, the batch mean, and `cosine.{place}` `[n_outputs, n_outputs]`, of
    matrices `[cell, cell]`.

    None of them where `keeps_pictures` says so.
    """
    if not keeps_pictures(setting):
        return {}
    seen = model.observe(batch.inputs, at=setting.places, keep_patterns=True)
    kept = {f"pattern.L{layer}": record.map().mean(0) for layer, record in enumerate(seen.records)}
    for place in setting.places:
        hidden = seen.hidden[place]
        if isinstance(setting.task, SequenceTask):
            hidden = hidden[:, torch.tensor(setting.task.output_rows, device=setting.device)]
        kept[f"cosine.{place}"] = metrics.cosine_matrix(hidden)
    return kept


def _suffix(group: str) -> str:
    return f"_{group}" if group else ""


__all__ = [
    "AttentionProgress",
    "HiddenSize",
    "OfHidden",
    "Similarity",
    "SimilarityPerOutput",
    "keeps_pictures",
    "pictures",
]
