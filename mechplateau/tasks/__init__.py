"""Tasks: what a model learns. One file a family; each registers itself by name."""

from mechplateau.tasks.base import Target, Task, pairs_among, register_task, task_class, task_names
from mechplateau.tasks.mws import MovingWindowSum

__all__ = [
    "MovingWindowSum",
    "Target",
    "Task",
    "pairs_among",
    "register_task",
    "task_class",
    "task_names",
]
