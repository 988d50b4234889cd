"""What a study trains: configurations by name, at the paper's size and at the sizes that the tasks' presets give.

A recipe is a configuration without its seed. A scale is `paper`, or the name of a preset of the recipe's task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mechplateau.config import (
    SEEDS,
    CheckpointConfig,
    EvaluationConfig,
    RunConfig,
    task_presets,
    task_settings,
)
from mechplateau.errors import UserError
from mechplateau.runs import is_or_says_finished, load_run
from mechplateau.schema import laid_over

PAPER = "paper"
"""The scale of the recipes' own settings."""
AS_THE_AUTHORS = "as the authors"
OURS_BECAUSE = "ours, because "
Settings = Mapping[str, Any]


class NotReady(UserError):
    """A recipe whose source is not trained yet."""


@dataclass(frozen=True)
class Source:
    """The finished run that another one starts from.

    Attributes:
        recipe: its recipe.
        settings: an intervention without its `source`, which becomes the path of that run's last checkpoint.
        seed_offset: how much larger the seed of that run is. 0: both begin alike.
    """

    recipe: str
    settings: Settings
    seed_offset: int = 0


@dataclass(frozen=True)
class Recipe:
    """A run to train, without its seed.

    Attributes:
        name: unique in the study; names its rows in the table of results.
        task: the task's name.
        what: what is special about it, in a few words (the legend of a figure).
        settings: sections of the configuration at the paper's size, where they differ from the task's own.
        at: scale → further settings at that scale, over those of the task's preset.
        start: the finished run that it starts from.
        setup: `AS_THE_AUTHORS`, or `OURS_BECAUSE` with the reason and what theirs is; "" where nothing is said.
        same_as: another recipe that is the same training at the paper's size, number for number: its configuration is
            equal but for what is measured and kept.

    Raises:
        ValueError: the set-up says neither.
    """

    name: str
    task: str
    what: str
    settings: Settings = field(default_factory=dict)
    at: Mapping[str, Settings] = field(default_factory=dict)
    start: Source | None = None
    setup: str = ""
    same_as: str | None = None

    def __post_init__(self) -> None:
        if self.setup not in ("", AS_THE_AUTHORS) and not self.setup.startswith(OURS_BECAUSE):
            raise ValueError(
                f"recipe {self.name}: setup: expected {AS_THE_AUTHORS!r} or {OURS_BECAUSE!r} with a reason, "
                f"got {self.setup!r}"
            )

    def data(self, seed: int, scale: str) -> dict[str, Any]:
        """The configuration as plain data, without what it starts from.

        Raises:
            UserError: the scale is neither `paper` nor a preset of the task.
        """
        data = laid_over(task_settings(self.task), self.settings)
        if scale != PAPER:
            data = laid_over(laid_over(data, task_settings(self.task, scale)), self.at.get(scale, {}))
        return {**data, "seed": seed}

    def steps(self, scale: str) -> int:
        """The number of updates: fewer than the schedule counts on, where the recipe stops the run before."""
        training = RunConfig.parse(self.data(0, scale)).training
        return training.steps if training.stop_at is None else training.stop_at

    def source(self, seed: int) -> tuple[str, int] | None:
        """Recipe and seed of the run that it starts from, if any."""
        return None if self.start is None else (self.start.recipe, seed + self.start.seed_offset)


Recipes = Mapping[str, Recipe]


def trains_like(recipe: Recipe, seed: int = 0) -> str | None:
    """What decides the weights of a recipe's run at the paper's size, as a hash: its configuration without what is
    measured and kept. None for one that starts from another's run."""
    if recipe.start is not None:
        return None
    config = RunConfig.parse(recipe.data(seed, PAPER))
    return config.model_copy(
        update={"evaluation": EvaluationConfig(), "checkpoints": CheckpointConfig()}
    ).content_hash()


def config_of(recipes: Recipes, name: str, seed: int, scale: str, runs_dir: Path) -> RunConfig:
    """The configuration of a recipe.

    Raises:
        NotReady: the run it starts from is not finished in `runs_dir`, lacks its last checkpoint, or cannot be.
    """
    recipe = recipes[name]
    data = recipe.data(seed, scale)
    source = recipe.source(seed)
    if recipe.start is not None and source is not None:
        begin, source_seed = source
        if source_seed >= SEEDS:
            raise NotReady(f"{name}: expected a seed below {SEEDS - recipe.start.seed_offset}, got {seed}")
        folder = runs_dir / config_of(recipes, begin, source_seed, scale, runs_dir).run_name
        if not is_or_says_finished(folder):
            raise NotReady(
                f"{name} with seed {seed} starts from the finished run of {begin} with seed {source_seed}; "
                "train that first"
            )
        run = load_run(folder)
        if run.reached not in run.steps:
            raise NotReady(
                f"{folder}: its checkpoint of step {run.reached} is missing, and {name} starts from it; put a copy "
                "back, or delete the run's folder to train it again"
            )
        begun = {**recipe.start.settings, "source": str(run.checkpoint_path(run.reached))}
        data["interventions"] = [*data.get("interventions", ()), begun]
    return RunConfig.parse(data)


def needed(recipes: Recipes, names: Sequence[str]) -> tuple[str, ...]:
    """These recipes and those that they start from, sources first."""
    ordered: dict[str, None] = {}
    for name in names:
        if (start := recipes[name].start) is not None:
            ordered.setdefault(start.recipe)
        ordered.setdefault(name)
    return tuple(ordered)


def waves(
    recipes: Recipes, names: Sequence[str], seeds: Sequence[int]
) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """The runs (recipe, seed) that these recipes take with these seeds: those that start from nothing, among them
    what others start from, and then the others."""
    everything = needed(recipes, names)
    first = [(name, seed) for name in everything if recipes[name].start is None for seed in seeds]
    second = [(name, seed) for name in everything if recipes[name].start is not None for seed in seeds]
    for name, seed in second:
        source = recipes[name].source(seed)
        if source is not None and source not in first:
            first.append(source)
    return first, second


def scales_of(recipes: Iterable[Recipe]) -> tuple[str, ...]:
    """`paper`, and the presets that the tasks of all these recipes have."""
    found: dict[str, None] | None = None
    for task in dict.fromkeys(recipe.task for recipe in recipes):
        own = task_presets(task)
        found = dict.fromkeys(name for name in (own if found is None else found) if name in own)
    return (PAPER, *(found or ()))


def checked_scale(name: str, recipes: Iterable[Recipe]) -> str:
    """The name of a scale that all these recipes have.

    Raises:
        UserError: they do not.
    """
    scales = scales_of(recipes)
    if name not in scales:
        *others, last = scales
        known = f"{', '.join(others)} or {last}" if others else last
        raise UserError(f"scale: expected {known}, got {name!r}")
    return name
