"""Tasks: what a model learns. One file a family; each registers itself by name."""

from mechplateau.tasks.addition import Addition
from mechplateau.tasks.base import TaskBase, register_task, task_class, task_names
from mechplateau.tasks.concat import ConcatenatedWindows
from mechplateau.tasks.copying import Copy, Reverse
from mechplateau.tasks.histogram import Histogram
from mechplateau.tasks.in_context_regression import InContextRegression, RegressionBatch
from mechplateau.tasks.matrix_completion import MatrixCompletion, MatrixCompletionGPT
from mechplateau.tasks.mws import MovingWindowSum
from mechplateau.tasks.permutation import Permutation
from mechplateau.tasks.prefix import PrefixSum
from mechplateau.tasks.repeat import Repeat
from mechplateau.tasks.sequence import (
    OneOutputPerInput,
    SequenceTask,
    Target,
    Task,
    mask_of,
    pairs_among,
    sample_numbers,
    sequence_task,
    sequences,
    targets_of,
)
from mechplateau.tasks.text import Text

__all__ = [
    "Addition",
    "ConcatenatedWindows",
    "Copy",
    "Histogram",
    "InContextRegression",
    "MatrixCompletion",
    "MatrixCompletionGPT",
    "MovingWindowSum",
    "OneOutputPerInput",
    "Permutation",
    "PrefixSum",
    "RegressionBatch",
    "Repeat",
    "Reverse",
    "SequenceTask",
    "Target",
    "Task",
    "TaskBase",
    "Text",
    "mask_of",
    "pairs_among",
    "register_task",
    "sample_numbers",
    "sequence_task",
    "sequences",
    "targets_of",
    "task_class",
    "task_names",
]
