"""An attention pattern put in the place of the model's own: does the plateau need learned attention?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, cast

from torch import Tensor

from mechplateau.errors import ConfigError
from mechplateau.interventions.base import Handle, register_intervention
from mechplateau.interventions.from_file import FromFile, is_finite
from mechplateau.interventions.parts import chosen
from mechplateau.models.config import ModelConfig, ModelConfigBase
from mechplateau.models.kinds import kind_of
from mechplateau.tasks import TaskBase, sequence_task, targets_of


@register_intervention
class ImposedPattern(FromFile):
    """Replace every layer's attention pattern by a fixed one: the mean map that a run kept at a checkpoint.

    The pattern is the same for every sequence; keys and queries then have no effect and are not trained. It is
    used as `hook_pattern` in training, measurement and generation, and overrides a factor on Ω.
    """

    needs_attention: ClassVar[bool] = True

    kind: Literal["imposed_pattern"] = "imposed_pattern"

    @classmethod
    def taken_from(cls, tensors: Mapping[str, Tensor], fields: Mapping[str, Any]) -> dict[str, Tensor]:
        maps = {name: tensor for name, tensor in tensors.items() if name.startswith("pattern.L")}
        if not maps:
            raise ConfigError(
                f"{fields['source']} holds no attention maps; expected a file of a run's maps folder"
            )
        return maps

    def check(self, task: TaskBase, model: ModelConfigBase) -> None:
        sequences = sequence_task(task, "kind: imposed_pattern")
        if any(target.mask.shape[0] != 1 for target in targets_of(task)):
            raise ConfigError(
                f"kind: imposed_pattern is one pattern for all sequences, and the Ω of {task.name} varies; "
                "transfer the parameters (KQ) instead"
            )
        taken = self.tensors_if_there()
        if taken is None:
            return
        here = [cast(ModelConfig, model).n_heads, sequences.n_input, sequences.n_input]
        there = {name: list(tensor.shape) for name, tensor in sorted(taken.items())}
        if wrong := [name for name, tensor in sorted(taken.items()) if not is_finite(tensor)]:
            raise ConfigError(
                f"source: {self.source}: {', '.join(wrong)} holds other than finite real numbers"
            )
        if len(there) != model.n_layers or any(shape != here for shape in there.values()):
            shown = ", ".join(f"{name} {shape}" for name, shape in there.items())
            raise ConfigError(
                f"source: {self.source} does not fit: it has {shown} (head, query, key); "
                f"this model has {model.n_layers} layer(s) of {here}"
            )

    def held(self, task: TaskBase, model: ModelConfigBase) -> frozenset[str]:
        # No gradient reaches them.
        return frozenset(chosen(kind_of(model).roles.queries_and_keys, task, model))

    def attach(self, model: Any, task: TaskBase) -> Handle:
        maps = self.tensors()
        handles = []
        for layer, block in enumerate(model.blocks):
            device = block.attn.W_V.device
            handles.append(
                block.attn.hook_pattern.register_forward_hook(_imposing(maps[f"pattern.L{layer}"].to(device)))
            )

        def undo() -> None:
            for handle in handles:
                handle.remove()

        return Handle(undo)


def _imposing(pattern: Tensor):
    """A PyTorch hook that returns the needed rows of `pattern`; generation needs the last only."""

    def hook(module, inputs, output: Tensor) -> Tensor:
        queries, keys = output.shape[-2:]
        rows = pattern[:, keys - queries : keys, :keys].to(output.dtype)
        return rows.expand(output.shape[0], -1, -1, -1)

    return hook
