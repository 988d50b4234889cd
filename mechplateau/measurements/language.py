"""What is recorded of an attention-only language model: its behavior on fixed sequences, its heads, its positions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from mechplateau.measurements import language_values
from mechplateau.measurements.base import Measurement, Need, Seen, Setting, Value, register_measurement
from mechplateau.measurements.columns import Column
from mechplateau.measurements.language_probes import LanguageProbes, language_probes
from mechplateau.models.attention_only_config import AttentionOnlyConfig
from mechplateau.models.config import ModelConfigBase
from mechplateau.objectives import Batch
from mechplateau.tasks import TaskBase
from mechplateau.tasks.text import Text


class OfText(Measurement):
    """Base of what is measured of a language model on sequences of its own."""

    needs: ClassVar[frozenset[Need]] = frozenset()

    def __init__(self, setting: Setting):
        super().__init__(setting)
        assert isinstance(setting.task, Text)
        assert isinstance(setting.model, AttentionOnlyConfig)
        self.task, self.sizes = setting.task, setting.model

    @classmethod
    def misfit(cls, task: TaskBase, model: ModelConfigBase) -> str | None:
        if not isinstance(task, Text):
            return f"it needs a task of text, and {task.name} is none"
        if not isinstance(model, AttentionOnlyConfig):
            return f"a model of kind {model.kind} has no positions that can be left out"
        return super().misfit(task, model)

    @property
    def fixed_shapes(self) -> bool:
        return False  # its hooks and sequences of its own are no part of a graph

    @cached_property
    def probes(self) -> LanguageProbes:
        """The sequences, on the model's device."""
        return language_probes(self.task, self.setting.device)

    @property
    def heads(self) -> tuple[str, ...]:
        """L0H0, L0H1, …"""
        layers, heads = range(self.sizes.n_layers), range(self.sizes.n_heads)
        return tuple(f"L{layer}H{head}" for layer in layers for head in heads)


@register_measurement
class LanguageBehavior(OfText):
    """Losses on text, common n-grams and repeated tokens, and without position embeddings."""

    name: ClassVar[str] = "language_behavior"

    def columns(self) -> tuple[Column, ...]:
        columns = [
            Column("test_loss", "nats", "next-token loss on held-out text"),
            Column(
                "bigram_score", "nats", "cross-entropy from the training text's bigrams to the predictions"
            ),
            Column("bigram_excess", "nats", "bigram_score minus the bigrams' entropy at the same positions"),
            Column(
                "icl",
                "nats",
                "loss in the last fifth of the context minus that at 5 to 15 % of it",
                "a part is empty",
            ),
            Column("position_delta", "nats", "loss without position embeddings minus loss, all positions"),
        ]
        for p in language_values.POSITIONS:
            if p <= self.task.n_ctx:
                columns += [
                    Column(f"loss_{p}", "nats", f"loss of token {p} of held-out rows"),
                    Column(f"position_delta_{p}", "nats", f"position_delta at token {p}"),
                ]
        for n in (2, 3, 4):
            none = f"the vocabulary has no common {n}-grams"
            columns += [
                Column(f"gram_loss_{n}", "nats", f"loss of the last token of common {n}-grams", none),
                Column(f"gram_score_{n}", "1", f"loss of token {n} of text over gram_loss_{n}", none),
                Column(f"gram_score_overall_{n}", "1", f"test_loss over gram_loss_{n}", none),
            ]
        return (
            *columns,
            Column(
                "repeat_gain",
                "nats",
                "loss of a random half minus that of its repetition, 8 tokens into each",
                "halves of 8",
            ),
            Column("repeat_cos", "cosine", "mean cosine of final hidden states in the repetition"),
            Column("repeat_repetition", "share", "predictions in the repetition that equal the one before"),
        )

    def measure(self, seen: Seen, batch: Batch) -> Mapping[str, Value]:
        return language_values.behavior(seen.model, self.probes, self.bigrams, self.floor)

    @cached_property
    def bigrams(self) -> Tensor:
        """q(next | token) of the training text, `[vocab, vocab]` on the model's device."""
        return self.task.corpus().bigrams.to(self.setting.device)

    @cached_property
    def floor(self) -> Tensor:
        """The lowest bigram score on the probes' text; it is the same for every model."""
        return language_values.floor_of(self.probes, self.bigrams)


@register_measurement
class LanguageHeads(OfText):
    """What heads attend to, and how they compose."""

    name: ClassVar[str] = "language_heads"

    def columns(self) -> tuple[Column, ...]:
        columns = []
        for head in self.heads:
            columns.append(
                Column(f"previous_token_{head}", "share", "attention to the token before, on random tokens")
            )
        for target, what in (("B", "the token after the earlier A"), ("A", "the earlier A")):
            for head in self.heads:
                columns.append(
                    Column(f"prefix_{target}_{head}", "share", f"attention of the second A to {what}")
                )
        layers, heads = range(self.sizes.n_layers), range(self.sizes.n_heads)
        for kind in "QKV" if self.sizes.n_layers > 1 else "":
            columns += [
                Column(f"composition_{kind}_mean", "1", f"{kind}-composition, mean over pairs of heads"),
                Column(f"composition_{kind}_max", "1", f"{kind}-composition, largest of all pairs of heads"),
            ]
            columns += [
                Column(
                    f"composition_{kind}_L{writer}H{a}_L{reader}H{b}",
                    "1",
                    f"how much {kind} of the second head reads of the first",
                    "a head's weights are zero",
                )
                for reader in layers
                for writer in range(reader)
                for a in heads
                for b in heads
            ]
        return tuple(columns)

    def measure(self, seen: Seen, batch: Batch) -> Mapping[str, Value]:
        return language_values.heads(seen.model, self.probes)


@register_measurement
class LanguageWeights(OfText):
    """The spread of the position embedding, and the size of the weights."""

    name: ClassVar[str] = "language_weights"

    def columns(self) -> tuple[Column, ...]:
        shares = min(3, self.task.n_ctx, self.sizes.d_model)
        return (
            *(
                Column(f"position_share_{i}", "share", f"variance of positions along principal component {i}")
                for i in range(1, shares + 1)
            ),
            Column("weight_norm", "1", "norm of all trained weights"),
        )

    def measure(self, seen: Seen, batch: Batch) -> Mapping[str, Value]:
        return language_values.position_weights(seen.model)


__all__ = ["LanguageBehavior", "LanguageHeads", "LanguageWeights"]
