"""Studies: what a paper trains, draws and claims, figure by figure, and what was found.

Modules here are the engine, which knows no paper: recipes (what is trained), figures and panels, claims, and what makes
them (training, drawing, making) and keeps them (results). Each folder is a study: `plateau` is the loss plateau's.

To add a study, make a folder `NAME` with a module `study.py` that defines `STUDY`:

    STUDY = Study(
        name="NAME",
        title="…",
        recipes=[Recipe("base", "mytask", "what is special about it", {"training": {"steps": 500}})],
        figures=[Figure("3", "Title", ("base",), (Panel("Loss", "nats", lambda table: ["loss"]),))],
        claims=[Claim(study="NAME", id="3/drop", figure="3", text="…", recipe="base", number="drop", high=300)],
        numbers=lambda run, scale: {"drop": …},
        results=resources.files("mechplateau.studies.NAME") / "results",
    )

The command line then has `mechplateau figure NAME/3 --scale small`, `figures NAME`, `claims NAME`, `reproduce NAME`.
In a notebook, `register_study(STUDY)` makes one known. A figure that is not lines over steps has a `picture` in place
of panels; what it measures on checkpoints is a `CheckpointMeasure`. Scales are `paper` and the presets of the tasks.
"""

from mechplateau.studies.claims import Change, Claim, claims_table
from mechplateau.studies.figures import CheckpointMeasure, Elsewhere, Figure, Material
from mechplateau.studies.making import FigureResult, make_figure
from mechplateau.studies.panels import Panel
from mechplateau.studies.recipes import Recipe, Source
from mechplateau.studies.study import Study, register_study, study_named, study_names

__all__ = [
    "Change",
    "CheckpointMeasure",
    "Claim",
    "Elsewhere",
    "Figure",
    "FigureResult",
    "Material",
    "Panel",
    "Recipe",
    "Source",
    "Study",
    "claims_table",
    "make_figure",
    "register_study",
    "study_named",
    "study_names",
]
