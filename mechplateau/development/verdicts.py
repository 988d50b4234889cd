"""What an estimate may be taken for. Verdicts in the order in which they are looked for; the first that holds counts.

| verdict | when |
|---|---|
| `chain lost` | a chain went to infinity |
| `step too large` | ε(nβ·h_max + γ) ≥ 0.4 |
| `saturated` | E[L] ≥ the trivial loss, or elasticity > 0.5 |
| `sliding` | λ̂ < −2 chain sd |
| `local` | \\|elasticity\\| < 0.25, halves within 2 chain sd of each other, E[L] below the trivial loss |
| `undetermined` | none of these, or a number that is needed is missing |

λ̂ is the paired estimate where there is one.
"""

from __future__ import annotations

from dataclasses import dataclass

STEP_LIMIT = 0.4
SATURATED_ELASTICITY = 0.5
LOCAL_ELASTICITY = 0.25
VERDICTS = ("chain lost", "step too large", "saturated", "sliding", "local", "undetermined")


@dataclass(frozen=True)
class Evidence:
    """The numbers that a verdict rests on; fields as in `Estimate`.

    Attributes:
        halves: λ̂ over the first and the second half of the draws.
        doubled: chains at 2nβ: "sampled", "lost" (all of them) or "no".
        chains: how many, lost ones included.
    """

    llc: float
    chain_sd: float | None
    halves: tuple[float, float] | None
    mean_loss: float
    loss: float
    trivial_loss: float | None
    elasticity: float | None
    doubled: str
    stability: float | None
    lost: tuple[int, ...]
    chains: int


def judge(e: Evidence) -> tuple[str, str]:
    """The verdict, and a sentence with its number and what to try next."""
    if e.lost:
        names = ", ".join(map(str, e.lost))
        return (
            "chain lost",
            f"{len(e.lost)} of {e.chains} chains went to infinity (chain {names}) and were left out; "
            "try a tenth of the step size",
        )
    if e.stability is not None and e.stability >= STEP_LIMIT:
        return (
            "step too large",
            f"step_size (n_beta h_max + localization) = {e.stability:.3g}, at least {STEP_LIMIT}; "
            f"try a step size {STEP_LIMIT / 2 / e.stability:.2g} times this one",
        )
    if e.trivial_loss is not None and e.mean_loss >= e.trivial_loss:
        if e.loss >= e.trivial_loss:
            return (
                "saturated",
                f"the loss here, {e.loss:.4g}, is itself not below the trivial loss {e.trivial_loss:.4g}, so chains "
                "cannot be told from ones that have left; try a later checkpoint",
            )
        return (
            "saturated",
            f"mean loss along the chains {e.mean_loss:.4g}, not below the trivial loss {e.trivial_loss:.4g}: "
            "they have left the neighborhood; try a larger localization, or a smaller step size with it",
        )
    if e.elasticity is not None and e.elasticity > SATURATED_ELASTICITY:
        return (
            "saturated",
            f"elasticity {e.elasticity:.2f}, above {SATURATED_ELASTICITY}: the loss along the chains hardly depends "
            "on n_beta; try a larger n_beta, or another localization",
        )
    if e.chain_sd is not None and e.llc < -2 * e.chain_sd:
        return (
            "sliding",
            f"estimate {e.llc:.3g}, below −2 chain sd ({e.chain_sd:.2g}): chains go downhill from here, which is "
            "no minimum; train on, or take a larger localization and read it as a slope",
        )
    missing = _missing(e)
    return ("undetermined", missing) if missing else ("local", _local(e))


def _missing(e: Evidence) -> str:
    """Why an estimate can't be called local; empty where it can."""
    if e.chain_sd is None:
        return "a single chain has no standard deviation; run at least 2"
    if e.halves is None:
        return "one draw has no halves; take more"
    gap = abs(e.halves[0] - e.halves[1])
    if gap > 2 * e.chain_sd:
        return (
            f"halves differ by {gap:.3g}, more than 2 chain sd ({e.chain_sd:.2g}): the chains have not settled; "
            "try more draws and a longer burn-in"
        )
    if e.trivial_loss is None:
        return "no trivial loss was given to hold E[L] against; give trivial_loss (inf: there is none)"
    if e.doubled == "lost":
        return (
            "all chains at twice n_beta went to infinity, so there is no elasticity; try half the step size"
        )
    if e.doubled == "no":
        return "the elasticity was not sampled; run with elasticity=True"
    if e.elasticity is None:
        return (
            f"no elasticity, since an estimate is not positive (here {e.llc:.3g}); try more draws or chains"
        )
    if abs(e.elasticity) >= LOCAL_ELASTICITY:
        return (
            f"elasticity {e.elasticity:.2f}, not within ±{LOCAL_ELASTICITY}; try a larger n_beta with a step size "
            "as much smaller"
        )
    return ""


def _local(e: Evidence) -> str:
    below = (
        "" if e.trivial_loss == float("inf") else f", mean loss {e.mean_loss:.4g} below {e.trivial_loss:.4g}"
    )
    return f"elasticity {e.elasticity:.2f}, halves agree within 2 chain sd ({e.chain_sd:.2g}){below}"
