"""The numbers that the study's claims are about. λ̂ is the paired estimate. Undefined is None.

| number | what |
|---|---|
| steps, onset, drop | of the table: `signs` |
| scan_settings | settings (ε, γ, nβ) that were tried at the checkpoint on the plateau |
| scan_local, scan_sliding, scan_saturated, scan_undetermined | how many of them have this verdict |
| local_on_plateau | checkpoints from onset to drop whose estimate, of the whole model, is local |
| llc_start, llc_during, llc_end | λ̂ of the whole model at the first, the middle one on the plateau, and the last |
| llc_rise | llc_end − llc_during |
| llc_peak_over_end | largest λ̂ / llc_end |
| affine_r, affine_slope | of λ̂ on the loss over the checkpoints: correlation; slope / −nβ |
| llc_lead, attention_lead | step at which the loss is half-way from the plateau to the end − the same of λ̂, of |
| | attention progress; as a share of the loss's |
| attention_before_llc | attention_lead − llc_lead |
| partial | correlation of λ̂ with attention progress, given the loss, without step 0 |
| mlp_over_attention_peak | λ̂ of the MLPs / of attention, at the checkpoint where the whole model's is largest |
| attention_over_mlp_before | λ̂ of attention / of the MLPs, at the last checkpoint before the drop |

"Half-way" is between the first checkpoint at or after the onset and the last one, the first time that it is crossed, on
straight lines between checkpoints. A ratio to a λ̂ that is not positive is undefined. With fewer than five checkpoints,
as at the paper's size, only the numbers of steps, scan, local_on_plateau, start, during, end and rise are defined.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mechplateau.config import RunConfig
from mechplateau.development import affine_check
from mechplateau.runs import Run
from mechplateau.signs import loss_column, plateau
from mechplateau.studies.development.coefficients import CHAINS, WHOLE, estimated, is_measured, scanned
from mechplateau.studies.numbers import Numbers

_FEWEST = 5
_OVER_TRAINING = (
    *("llc_peak_over_end", "affine_r", "affine_slope", "partial", "llc_lead", "attention_lead"),
    *("attention_before_llc", "mlp_over_attention_peak", "attention_over_mlp_before"),
)
"""Numbers that mean nothing with fewer checkpoints than `_FEWEST`."""
VERDICTS = ("local", "sliding", "saturated", "undetermined")


def numbers(run: Run, scale: str) -> Numbers:
    """What is read off the table, and off what was estimated before."""
    found = numbers_of_table(run.metrics, run.config)
    if not is_measured(run, scale):
        return found
    found |= of_coefficients(estimated(run, scale), found["onset"], found["drop"], run.phases.during)
    scan = scanned(run) if scale != "paper" else None
    return found | ({} if scan is None else of_scan(scan))


def columns_read(config: RunConfig, names: Sequence[str]) -> list[str]:
    """The columns that `numbers_of_table` looks at."""
    return [name for name in names if name == loss_column(config.task)]


def numbers_of_table(metrics: pd.DataFrame, config: RunConfig) -> Numbers:
    """What the table of a run of this configuration gives."""
    found = plateau(metrics, loss_column(config.task))
    return {"steps": int(metrics["step"].iloc[-1]), "onset": found.onset, "drop": found.drop}


def of_scan(scan: pd.DataFrame) -> Numbers:
    """How many settings have which verdict."""
    counts = {f"scan_{verdict}": int((scan["verdict"] == verdict).sum()) for verdict in VERDICTS}
    return {"scan_settings": len(scan), **counts}


def of_coefficients(
    table: pd.DataFrame, onset: float | None, drop: float | None, during: int | None
) -> Numbers:
    """The numbers over checkpoints, from the table of `estimated`."""
    parts = {str(name): lines.sort_values("step") for name, lines in table.groupby("part")}
    whole = parts[WHOLE]
    steps, llc = whole["step"].to_numpy(float), _floats(whole["paired"])
    loss, progress = _floats(whole["loss"]), _floats(whole["attention_progress"])
    on_plateau = np.zeros(len(steps), bool)
    if onset is not None and drop is not None:
        on_plateau = (steps >= onset) & (steps < drop)
    local = whole["verdict"].to_numpy() == "local"
    middle = _nearest(steps, on_plateau, during)
    check = affine_check(_floats(whole["llc"]).tolist(), loss.tolist(), CHAINS["n_beta"])
    found: Numbers = {
        "local_on_plateau": int(local[on_plateau].sum()) if on_plateau.any() else None,
        "llc_start": _value(llc[0]),
        "llc_during": None if middle is None else _value(llc[middle]),
        "llc_end": _value(llc[-1]),
        "llc_peak_over_end": _ratio(np.nanmax(llc), llc[-1]) if np.isfinite(llc).any() else None,
        "affine_r": check.r,
        "affine_slope": None if check.slope is None else -check.slope / CHAINS["n_beta"],
        "partial": partial_correlation(llc[1:], progress[1:], loss[1:]),
    }  # fmt: skip
    if len(steps) < _FEWEST:
        return (
            found
            | dict.fromkeys(_OVER_TRAINING)
            | {"llc_rise": _minus(found["llc_end"], found["llc_during"])}
        )
    found["llc_rise"] = _minus(found["llc_end"], found["llc_during"])
    return found | _leads(steps, loss, llc, progress, onset) | _components(parts, drop)


def half_way(steps: np.ndarray, values: np.ndarray) -> float | None:
    """The step at which values first cross the middle of their first and last, on straight lines; None if never."""
    if len(values) < 2 or not np.isfinite(values).all() or values[0] == values[-1]:
        return None
    share = (values - values[0]) / (values[-1] - values[0])
    above = np.flatnonzero(share >= 0.5)
    last = int(above[0])  # the last one is at 1
    low, high = share[last - 1], share[last]
    return float(steps[last - 1] + (0.5 - low) / (high - low) * (steps[last] - steps[last - 1]))


def partial_correlation(x: np.ndarray, y: np.ndarray, given: np.ndarray) -> float | None:
    """Correlation of what is left of x and of y after a straight line in `given`; None with fewer than 5 points."""
    whole = np.isfinite(x) & np.isfinite(y) & np.isfinite(given)
    if whole.sum() < 5:
        return None
    design = np.stack([np.ones(whole.sum()), given[whole]], axis=1)
    left = [
        values[whole] - design @ np.linalg.lstsq(design, values[whole], rcond=None)[0] for values in (x, y)
    ]
    sizes = [float(np.linalg.norm(values)) for values in left]
    scales = [float(np.linalg.norm(values[whole])) for values in (x, y)]
    if any(size <= 1e-9 * scale for size, scale in zip(sizes, scales, strict=True)):
        return None
    return float(left[0] @ left[1] / (sizes[0] * sizes[1]))


def _leads(
    steps: np.ndarray, loss: np.ndarray, llc: np.ndarray, progress: np.ndarray, onset: float | None
) -> Numbers:
    names = ("llc_lead", "attention_lead", "attention_before_llc")
    if onset is None:
        return dict.fromkeys(names)
    after = steps >= onset
    moved, of_llc, of_attention = (half_way(steps[after], values[after]) for values in (loss, llc, progress))
    lead, attention = _ahead(of_llc, moved), _ahead(of_attention, moved)
    return dict(zip(names, (lead, attention, _minus(attention, lead)), strict=True))


def _ahead(own: float | None, loss: float | None) -> float | None:
    return None if own is None or not loss else (loss - own) / loss


def _components(parts: dict[str, pd.DataFrame], drop: float | None) -> Numbers:
    """Of a run whose components were measured."""
    names = ("mlp_over_attention_peak", "attention_over_mlp_before")
    if not {"mlp", "attention"} <= set(parts):
        return dict.fromkeys(names)
    whole, mlp, attention = (_floats(parts[name]["paired"]) for name in (WHOLE, "mlp", "attention"))
    peak = int(np.nanargmax(whole)) if np.isfinite(whole).any() else None
    before = None if drop is None else np.flatnonzero(parts[WHOLE]["step"].to_numpy(float) < drop)
    return {
        names[0]: None if peak is None else _ratio(mlp[peak], attention[peak]),
        names[1]: None
        if before is None or not len(before)
        else _ratio(attention[before[-1]], mlp[before[-1]]),
    }


def _nearest(steps: np.ndarray, among: np.ndarray, wanted: int | None) -> int | None:
    if wanted is None or not among.any():
        return None
    return int(np.argmin(np.where(among, np.abs(steps - wanted), np.inf)))


def _floats(column: pd.Series) -> np.ndarray:
    return pd.to_numeric(column).to_numpy(dtype=float, na_value=np.nan)


def _value(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None


def _ratio(above: float, below: float) -> float | None:
    return float(above / below) if np.isfinite(above) and below > 0 else None


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


__all__ = [
    "columns_read",
    "half_way",
    "numbers",
    "numbers_of_table",
    "of_coefficients",
    "of_scan",
    "partial_correlation",
]
