"""How a model developed: learning coefficients that say what they measured, stages, curvature, the path of training.

| question | tool | cost |
|---|---|---|
| how degenerate is the loss around these weights, and did the estimate measure that? | `llc` | two sets of chains |
| … over the checkpoints of a run | `llc_over_run` | that, times the checkpoints |
| … from losses along chains that were sampled already | `estimate`, `estimate_from` | none |
| … the chains themselves, to look at or continue | `sample`, `resume` | one set of chains |
| which settings give an estimate that means something? | `calibrate`, `calibrate_run` | `llc`, times the settings |
| is λ̂ over checkpoints more than the loss? | `affine_check` | none |
| where does a curve turn or pause, beside the loss? | `stages` | a fit |
| how curved is the loss here? | `hessian` | some tens of backward passes |
| which way did training go? | `trajectory` | checkpoints² products |
| does an estimator get the right number where it is known? | `toys` | seconds |

A model is a torch module, or parameters by name; its loss is any function `losses(model, batch)` whose mean counts.
Data are `Rows` (a data set), `Fresh` (new at every step) or a list of batches. Names are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechplateau._lazy import lazy_names

if TYPE_CHECKING:
    from mechplateau.development.affine import AffineCheck, affine_check
    from mechplateau.development.boundaries import Boundary, Stages, StagesBesideLoss, stages
    from mechplateau.development.calibration import calibrate, calibrate_run, kept_scans
    from mechplateau.development.curvature import Curvature, hessian
    from mechplateau.development.data import Fresh, Rows
    from mechplateau.development.estimator import Estimate, estimate, estimate_from
    from mechplateau.development.learning_coefficient import StepSizeWarning, default_n_beta, llc
    from mechplateau.development.llc_table import LlcTable
    from mechplateau.development.of_runs import llc_over_run
    from mechplateau.development.path import Trajectory, trajectory
    from mechplateau.development.sgld import resume, sample, sgld_step
    from mechplateau.development.traces import AllChainsLost, Sampling, Trace

_HOMES = {
    "AffineCheck": "affine",
    "AllChainsLost": "traces",
    "Boundary": "boundaries",
    "Curvature": "curvature",
    "Estimate": "estimator",
    "Fresh": "data",
    "LlcTable": "llc_table",
    "Rows": "data",
    "Sampling": "traces",
    "Stages": "boundaries",
    "StagesBesideLoss": "boundaries",
    "StepSizeWarning": "learning_coefficient",
    "Trace": "traces",
    "Trajectory": "path",
    "affine_check": "affine",
    "calibrate": "calibration",
    "calibrate_run": "calibration",
    "kept_scans": "calibration",
    "default_n_beta": "learning_coefficient",
    "estimate": "estimator",
    "estimate_from": "estimator",
    "hessian": "curvature",
    "llc": "learning_coefficient",
    "llc_over_run": "of_runs",
    "resume": "sgld",
    "sample": "sgld",
    "sgld_step": "sgld",
    "stages": "boundaries",
    "trajectory": "path",
}

__all__ = [
    "AffineCheck",
    "AllChainsLost",
    "Boundary",
    "Curvature",
    "Estimate",
    "Fresh",
    "LlcTable",
    "Rows",
    "Sampling",
    "Stages",
    "StagesBesideLoss",
    "StepSizeWarning",
    "Trace",
    "Trajectory",
    "affine_check",
    "calibrate",
    "calibrate_run",
    "default_n_beta",
    "estimate",
    "estimate_from",
    "hessian",
    "kept_scans",
    "llc",
    "llc_over_run",
    "resume",
    "sample",
    "sgld_step",
    "stages",
    "trajectory",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
