"""mechplateau: study how transformers learn — the loss plateau, measured, intervened on and opened up.

    run = mechplateau.example("mws")                  # a finished run to begin with; or load_run("runs/mws-…")
    model = run.model("during")                       # a TransformerLens HookedTransformer
    logits, cache = model.run_with_cache(run.task.sample(8, seed=0)[:, :-1])

Everyday names live here and are imported when first used: `import mechplateau` costs nothing.
"""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any

from mechplateau._lazy import install, lazy_names
from mechplateau.progress import quiet_in_notebooks

if TYPE_CHECKING:
    from mechplateau.config import RunConfig as RunConfig
    from mechplateau.errors import UserError as UserError
    from mechplateau.measurements import register_measurement as register_measurement
    from mechplateau.models import build_model as build_model
    from mechplateau.models import generate as generate
    from mechplateau.models import load_reference_checkpoint as load_reference_checkpoint
    from mechplateau.models import observe as observe
    from mechplateau.models import register_model_kind as register_model_kind
    from mechplateau.runs import Run as Run
    from mechplateau.runs import example as example
    from mechplateau.runs import list_runs as list_runs
    from mechplateau.runs import load_checkpoint as load_checkpoint
    from mechplateau.runs import load_run as load_run
    from mechplateau.tasks import SequenceTask as SequenceTask
    from mechplateau.tasks import Target as Target
    from mechplateau.tasks import Task as Task
    from mechplateau.tasks import TaskBase as TaskBase
    from mechplateau.tasks import register_task as register_task
    from mechplateau.training import train as train

_HOMES = {
    "Run": "runs",
    "RunConfig": "config",
    "SequenceTask": "tasks",
    "Target": "tasks",
    "Task": "tasks",
    "TaskBase": "tasks",
    "UserError": "errors",
    "build_model": "models",
    "example": "runs",
    "generate": "models",
    "list_runs": "runs",
    "load_checkpoint": "runs",
    "load_reference_checkpoint": "models",
    "load_run": "runs",
    "observe": "models",
    "register_measurement": "measurements",
    "register_model_kind": "models",
    "register_task": "tasks",
    "save_report": "report",
    "train": "training",
}

__all__ = [*_HOMES, "__version__"]

install()
quiet_in_notebooks()
_find, __dir__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    return metadata.version("mechplateau") if name == "__version__" else _find(name)
