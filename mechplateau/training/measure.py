"""What is measured at an evaluation step, from one teacher-forced forward and one cached generation.

Columns of the table (r counts outputs from 0; null where undefined; definitions in `mechplateau.metrics`):

| column | measured on | what |
|---|---|---|
| step | | updates done |
| loss | teacher-forced | next-token cross-entropy over the whole sequence, nats |
| accuracy | generated | share of right tokens, all outputs |
| accuracy_out_{r} | generated | share of right tokens at output r |
| loss_out_{r} | teacher-forced | cross-entropy of output r, nats |
| repetition, repetition_data | generated; true outputs | repetition frequency ρ |
| entropy, entropy_data | generated; true outputs | entropy of a sequence's outputs, nats |
| alpha_1 | generated | share of outputs equal to the first |
| alpha_1_{part}_{i} | generated | likewise within the i-th half or quarter (tasks whose outputs come in blocks) |
| count_check | generated | share of the true values that occur as often as they should (permutation) |
| apm_{target} | teacher-forced | attention progress; apm_{target}_L{layer} where several layers share a target |
| apm_zero_count | teacher-forced | sequences without any attention in a target's rows (their progress is 0) |
| cos_{location}, cos_{location}_{group} | teacher-forced | mean cosine of hidden states over the task's pairs |
| cos_out_{r} | teacher-forced | mean cosine of output r's final hidden state with all later ones |
| norm_{location}, stable_rank_{location} | teacher-forced | only with `evaluation.locations: all` |

`evaluation.samples` fresh sequences serve for everything; with `paper`, loss, loss_out, accuracy_out, alpha_1,
apm and cos are of the training batch, and accuracy, repetition, entropy of 64 fresh sequences.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechplateau import metrics
from mechplateau.metrics.similarity import count_pairs
from mechplateau.models.records import Observation, Trainable, locations
from mechplateau.objectives import Batch, tokens_of
from mechplateau.tasks import Task
from mechplateau.training.targets import AttentionTargets

PAPER_FRESH = 64

Value = Tensor | None


class Measurer:
    """Measures a model on a task; prepared once, then called at every evaluation step.

    Args:
        task: the task.
        n_layers: depth of the model.
        where: "final", or "all" to compare hidden states everywhere.
        device: of the model.
    """

    def __init__(self, task: Task, n_layers: int, where: Literal["final", "all"], device: torch.device):
        self.task = task
        self.places = locations(n_layers) if where == "all" else ("final",)
        self.everywhere = where == "all"
        # Counted here, once: a number read from the device at every call could not be captured in a CUDA graph.
        self._pairs = {
            group: (pairs.to(device), count_pairs(pairs)) for group, pairs in task.collapse_pairs.items()
        }
        self._rows = torch.tensor(task.output_rows, device=device)
        self._targets = AttentionTargets(task, n_layers, device)
        self._names: tuple[str, ...] = ()

    def columns(self) -> tuple[str, ...]:
        """Names of the table's columns, in order."""
        n = self.task.n_outputs
        cosines = [f"cos_{place}{_suffix(group)}" for place in self.places for group in self._pairs]
        extra = [f"{kind}_{place}" for kind in ("norm", "stable_rank") for place in self.places]
        return (
            "step",
            "loss",
            "accuracy",
            *(f"accuracy_out_{r}" for r in range(n)),
            *(f"loss_out_{r}" for r in range(n)),
            "repetition",
            "repetition_data",
            "entropy",
            "entropy_data",
            "alpha_1",
            *(f"alpha_1_{name}_{i}" for name, parts in self.task.output_parts.items() for i in range(parts)),
            *(("count_check",) if self.task.counts_values else ()),
            *(tracked.column for tracked in self._targets.tracked),
            "apm_zero_count",
            *cosines,
            *(f"cos_out_{r}" for r in range(n)),
            *(extra if self.everywhere else ()),
        )

    @torch.no_grad()
    def row(
        self,
        model: Trainable,
        step: int,
        batch: Batch,
        fresh: Batch | None = None,
    ) -> dict[str, float | int | None]:
        """One row of the table, copied to the host in one go.

        Args:
            model: in eval mode.
            step: updates done.
            batch: the examples measured.
            fresh: other examples for accuracy, repetition and entropy (the authors' way); None: the same.
        """
        given = (batch,) if fresh is None else (batch, fresh)
        return self.row_of(self.numbers(model, *given), step)

    @property
    def fixed_shapes(self) -> bool:
        """Whether a CUDA graph can hold `numbers`: Ω is the same for every sequence."""
        return self._targets.same_for_all

    @torch.no_grad()
    def numbers(
        self,
        model: Trainable,
        batch: Batch,
        fresh: Batch | None = None,
    ) -> Float[Tensor, " numbers"]:
        """All numbers of a row, still on the device, without waiting for it; arguments as for `row`."""
        values = self._values(model, batch)
        if fresh is not None:
            others = tokens_of(fresh)
            values |= self._generation_values(self._generate(model, others), self._outputs(others))
        defined = {name: value for name, value in values.items() if value is not None}
        self._names = tuple(defined)
        return torch.stack([value.double() for value in defined.values()])

    def row_of(self, numbers: Float[Tensor, " numbers"], step: int) -> dict[str, float | int | None]:
        """The row of what `numbers` last gave."""
        # A number that is not finite (a diverged loss, say) is undefined: null, as in every other place.
        row: dict[str, float | int | None] = {
            name: number
            for name, number in zip(self._names, numbers.tolist(), strict=True)
            if math.isfinite(number)
        }
        row |= {"step": step, "apm_zero_count": int(row.get("apm_zero_count") or 0)}
        return {column: row.get(column) for column in self.columns()}

    @torch.no_grad()
    def maps(self, model: Trainable, batch: Batch) -> dict[str, Tensor]:
        """Pictures: `pattern.L{layer}` `[head, query, key]`, the batch mean, and `cosine.{location}`
        `[n_outputs, n_outputs]`."""
        seen = model.observe(batch.inputs, at=self.places, keep_patterns=True)
        pictures = {f"pattern.L{layer}": record.map().mean(0) for layer, record in enumerate(seen.records)}
        for place in self.places:
            pictures[f"cosine.{place}"] = metrics.cosine_matrix(seen.hidden[place][:, self._rows])
        return pictures

    def _values(self, model: Trainable, batch: Batch) -> dict[str, Value]:
        targets = self._targets.of(batch)
        seen = model.observe(batch.inputs, metric_sets=targets.sets, at=self.places)
        true = self._outputs(tokens_of(batch))
        generated = model.generate_on(seen, self.task.prompt_length, self.task.n_outputs)
        values: dict[str, Value] = {"loss": self.task.objective.loss(seen.outputs, batch)}
        losses = metrics.loss_per_output(seen.logits[:, self._rows], true)
        broken = (generated < 0).any()
        right = metrics.accuracy_per_output(generated, true)
        for r in range(self.task.n_outputs):
            values[f"accuracy_out_{r}"] = _unless(broken, right[r])
            values[f"loss_out_{r}"] = losses[r]
        values |= self._generation_values(generated, true)
        values["alpha_1"] = _unless(broken, metrics.match_to_first(generated))
        for name, parts in self.task.output_parts.items():
            shares = metrics.match_to_first_by_part(generated, parts)
            if shares is not None:
                values |= {f"alpha_1_{name}_{i}": _unless(broken, shares[i]) for i in range(parts)}
        if self.task.counts_values:
            whole = generated.clamp(min=0)
            values["count_check"] = _unless(broken, metrics.count_check(whole, true, self.task.vocab_size))
        values |= targets.progress(seen)
        values["apm_zero_count"] = targets.silent(seen)
        values |= self._similarity_values(seen)
        return values

    def _generate(self, model: Trainable, tokens: Tensor) -> Tensor:
        prompt = tokens[:, : self.task.prompt_length]
        return model.generate_on(model.observe(prompt, at=()), self.task.prompt_length, self.task.n_outputs)

    def _generation_values(self, generated: Tensor, true: Tensor) -> dict[str, Value]:
        vocab = self.task.vocab_size
        broken = (generated < 0).any()
        generated = generated.clamp(min=0)
        values = {
            "accuracy": metrics.accuracy(generated, true),
            "repetition": metrics.repetition_frequency(generated),
            "repetition_data": metrics.repetition_frequency(true),
            "entropy": metrics.sequence_entropy(generated, vocab),
            "entropy_data": metrics.sequence_entropy(true, vocab),
        }
        of_model = ("accuracy", "repetition", "entropy")
        return {name: _unless(broken, v) if name in of_model else v for name, v in values.items()}

    def _similarity_values(self, seen: Observation) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for place in self.places:
            hidden = seen.hidden[place][:, self._rows]
            matrix = metrics.cosine_matrix(hidden)
            for group, (pairs, n_pairs) in self._pairs.items():
                values[f"cos_{place}{_suffix(group)}"] = metrics.mean_cosine(matrix, pairs, n_pairs)
            if place == "final":
                later = metrics.cosine_per_output(matrix)
                if later is not None:
                    values |= {f"cos_out_{r}": later[r] for r in range(self.task.n_outputs - 1)}
            if self.everywhere:
                values[f"norm_{place}"] = metrics.mean_norm(hidden)
                rank = metrics.stable_rank(hidden)
                values[f"stable_rank_{place}"] = None if rank is None else rank[0]
        return values

    def _outputs(self, tokens: Tensor) -> Int[Tensor, "batch n_outputs"]:
        return tokens[:, self.task.prompt_length :]


def _unless(broken: Tensor, value: Value) -> Value:
    """Not a number, so null in the table, where the model's own numbers are broken: no 0 or 1 is made up."""
    return None if value is None else torch.where(broken, torch.nan, value.double())


def _suffix(group: str) -> str:
    return f"_{group}" if group else ""
