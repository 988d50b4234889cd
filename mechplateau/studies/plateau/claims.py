"""The paper's claims, each as a number of runs and the range it must lie in.

A claim is checked on the summaries (`summary.summarize`) of one recipe's runs, one a seed, or on their ratio to
the same number of another recipe: of its run of the same seed, or where there is none, the median over its seeds. It
holds where the median over seeds lies in the range.
Figures from 101 on are ours, and so is what they are held against. Some of it was written after the first runs: that
with attention frozen at random the task is solved later (before, we had expected that it is not solved); of rewarded
attention that its progress triples, that there is a plateau all the same, and what counts as a weaker collapse.
Values "paper" are the paper's or those of a run of the authors' code; where neither gives one, the range is ours:
what would have to be seen for the sentence to be true.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mechplateau.studies.plateau.recipes import RECIPES, Scale
from mechplateau.studies.plateau.summary import Numbers

Verdict = Literal["holds", "fails", "undefined", "not yet run"]
Summaries = Mapping[str, Sequence[Numbers]]
"""Recipe → the numbers of its runs, one a seed."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper that a number can contradict.

    Attributes:
        figure: the figure it belongs to.
        text: the sentence.
        recipe: whose runs are looked at.
        number: which of their numbers.
        low, high: the range in which it is true; None: no bound.
        paper: what the paper says, in its words or numbers; "" where it gives none.
        over: a recipe to whose same number it is compared, as a ratio.
        small: another range at the small scale; None: the same.
    """

    figure: int
    text: str
    recipe: str
    number: str
    low: float | None
    high: float | None
    paper: str = ""
    over: str | None = None
    small: tuple[float | None, float | None] | None = None

    def range(self, scale: Scale) -> tuple[float | None, float | None]:
        """Lower and upper bound at this scale."""
        return self.small if scale == "small" and self.small is not None else (self.low, self.high)

    @property
    def measured(self) -> str:
        """What is measured, in words: the number, and of what."""
        return f"{self.number} of {self.recipe}" + (f" / {self.over}" if self.over else "")


@dataclass(frozen=True)
class Outcome:
    """A claim and what was found.

    Attributes:
        claim: the claim.
        values: one a seed that has it defined, in the order of the runs.
        runs: number of runs looked at.
        verdict: of the median.
        unsolved: how many of the runs ended before they had solved their task, maybe in the middle of their drop.
    """

    claim: Claim
    values: tuple[float, ...]
    runs: int
    verdict: Verdict
    unsolved: int = 0

    @property
    def value(self) -> float | None:
        """Median over seeds; None where it is nowhere defined."""
        return statistics.median(self.values) if self.values else None


def check(claim: Claim, summaries: Summaries, scale: Scale = "paper") -> Outcome:
    """Look at the runs there are."""
    runs = summaries.get(claim.recipe, ())
    base = summaries.get(claim.over, ()) if claim.over else ()
    if not runs or (claim.over and not base):
        return Outcome(claim, (), len(runs), "not yet run")
    unsolved = sum(map(_never_solved, runs))
    values = [value for run in runs if (value := run.get(claim.number)) is not None]
    if claim.over:
        values = [ratio for run in runs if (ratio := _ratio(claim.number, run, base)) is not None]
    if not values:
        return Outcome(claim, (), len(runs), "undefined", unsolved)
    low, high = claim.range(scale)
    middle = statistics.median(values)
    inside = (low is None or middle >= low) and (high is None or middle <= high)
    return Outcome(claim, tuple(values), len(runs), "holds" if inside else "fails", unsolved)


def _ratio(number: str, run: Numbers, base: Sequence[Numbers]) -> float | None:
    """A run's number over that of the base's run of the same seed, which shares its data and most of its initial
    weights; over the median where that seed was not run."""
    value, seed = run.get(number), run.get("seed")
    same = [other for other in base if seed is not None and other.get("seed") == seed]
    below = [found for other in same or base if (found := _divisor(number, other)) is not None]
    divisor = statistics.median(below) if below else None
    return value / divisor if value is not None and divisor else None


def _divisor(number: str, run: Numbers) -> float | None:
    """A run's number, unless it is only a lower bound: nothing can be said to take longer than what never ended."""
    return None if number == "took" and _never_solved(run) else run.get(number)


def _never_solved(run: Numbers) -> bool:
    return "solved_at" in run and run["solved_at"] is None


def check_all(
    summaries: Summaries, scale: Scale = "paper", figures: Iterable[int] | None = None
) -> list[Outcome]:
    """Every claim, or those of some figures."""
    wanted = None if figures is None else set(figures)
    return [check(claim, summaries, scale) for claim in CLAIMS if wanted is None or claim.figure in wanted]


def _signs(figure: int, recipe: str, cos: float = 0.8) -> Iterable[Claim]:
    """The plateau's signs, as the paper finds them in every set-up of moving window sum."""
    what = RECIPES[recipe].what
    yield Claim(figure, f"{what}: there is a plateau that ends in a drop", recipe, "plateau", 1, None)
    yield Claim(figure, f"{what}: hidden states collapse on it", recipe, "cos_peak", cos, None)
    yield Claim(figure, f"{what}: outputs repeat tokens", recipe, "repetition_excess", 2, None)
    text = f"{what}: attention progresses on the plateau, before the loss does"
    yield Claim(figure, text, recipe, "apm_plateau_gain", 1.2, None)


def _same_three(figure: int, recipe: str, partial: bool) -> Iterable[Claim]:
    """What the paper finds in every task: partial solution, repetition or low entropy, collapse."""
    what = RECIPES[recipe].what
    if partial:
        yield Claim(figure, f"{what}: the partial solution comes first", recipe, "partial_lead", 0.1, None)
    yield Claim(
        figure, f"{what}: outputs have a low entropy on the plateau", recipe, "entropy_share", None, 0.8
    )
    yield Claim(figure, f"{what}: hidden states collapse", recipe, "cos_peak", 0.6, None)


def _all_claims() -> Iterable[Claim]:
    yield Claim(
        2,
        "the loss stays on a plateau, then drops",
        "mws",
        "drop",
        150,
        210,
        "step 170-190, in four runs 155-205",
        small=(80, 300),
    )
    yield Claim(2, "the model ends right", "mws", "accuracy_end", 0.99, None, "1.0")
    yield Claim(
        2,
        "the partial solution (y0) comes first",
        "mws",
        "partial_at",
        None,
        90,
        "right after about 70 steps",
    )
    yield Claim(2, "… long before the drop", "mws", "partial_lead", 0.3, None)
    yield Claim(
        2,
        "outputs repeat tokens early on",
        "mws",
        "repetition_peak",
        0.3,
        0.85,
        "0.3-0.8, seed dependent",
        small=(0.3, None),
    )
    yield Claim(2, "hidden states collapse to nearly parallel", "mws", "cos_peak", 0.93, 1, "0.95-0.97")
    yield Claim(2, "… before step 120", "mws", "cos_peak_at", None, 120, "before step 120")
    yield Claim(2, "… and spread again before the drop", "mws", "cos_learned", None, 0.5)
    yield Claim(
        2,
        "attention progress rises on the plateau, ahead of the loss",
        "mws",
        "apm_gain",
        1.3,
        None,
        "0.08 to 0.12 at step 80",
    )
    yield Claim(
        2,
        "attention ends on the optimal positions",
        "mws",
        "apm_end",
        0.6,
        None,
        "0.7-0.8",
        small=(0.5, None),
    )

    yield Claim(3, "c = 10 shortens the plateau", "mws-c10", "took", None, 0.95, "much sooner", "mws")
    yield Claim(3, "… by much", "mws-c10", "took", None, 0.75, "much sooner", "mws")
    yield Claim(
        3, "c = 10 weakens the collapse", "mws-c10", "cos_peak", 0.3, 0.8, "about 0.6", small=(None, 0.96)
    )
    yield Claim(3, "c = 2.5 shortens the plateau", "mws-c2.5", "took", None, 0.95, "", "mws")
    yield Claim(4, "c = 0.5 lengthens the plateau", "mws-c0.5", "took", 1.1, None, "", "mws")
    yield Claim(4, "c = 0.2 lengthens the plateau", "mws-c0.2", "took", 1.5, None, "longer", "mws")
    yield Claim(
        4, "c = 0.2: hidden states collapse further", "mws-c0.2", "cos_peak", 0.95, None, "above 0.95"
    )
    yield Claim(
        4, "c = 0.2: repetition is high", "mws-c0.2", "repetition_peak", 0.5, None, "high and lasting"
    )

    yield Claim(5, "KQ optimal: the plateau is shorter", "mws-init-KQ", "took", None, 0.6, "", "mws")
    yield Claim(
        5,
        "KQ optimal: the collapse is weaker",
        "mws-init-KQ",
        "cos_peak",
        0.25,
        0.65,
        "about 0.45",
        small=(None, 0.8),
    )
    yield Claim(5, "KQOV optimal: no plateau", "mws-init-KQOV", "took", None, 0.4, "no plateau", "mws")
    yield Claim(
        5,
        "KQOV optimal: hardly any collapse",
        "mws-init-KQOV",
        "cos_peak",
        None,
        0.3,
        "about 0.15",
        small=(None, 0.5),
    )
    yield Claim(
        5,
        "MLP optimal: as without",
        "mws-init-MLP",
        "took",
        0.7,
        1.4,
        "like the baseline",
        "mws",
        small=(0.7, None),
    )
    yield Claim(
        5, "MLP optimal: the collapse stays", "mws-init-MLP", "cos_peak", 0.85, None, "like the baseline"
    )

    yield Claim(
        5,
        "another seed's MLP: the plateau stays too",
        "mws-init-MLP-other",
        "took",
        0.7,
        None,
        "",
        "mws",
    )

    yield Claim(6, "prefix sum: output 0 comes first", "prefix", "partial_lead", 0.1, None)
    yield Claim(
        6,
        "prefix sum: hidden states collapse",
        "prefix",
        "cos_peak",
        0.65,
        0.95,
        "about 0.80",
        small=(0.6, None),
    )
    yield Claim(6, "prefix sum: outputs have a low entropy", "prefix", "entropy_share", None, 0.75, "low")
    yield Claim(11, "prefix sum: attention progresses before the loss does", "prefix", "apm_gain", 1.2, None)
    yield from _same_three(12, "prefix-no-repeat", partial=True)

    yield Claim(7, "repeat 1: no plateau", "repeat-1", "plateau", None, 0, "no plateau")
    yield Claim(7, "repeat 1: outputs repeat the first", "repeat-1", "alpha_peak", 0.9, None, "→ 1")
    yield Claim(
        7,
        "repeat 1: hidden states start out similar",
        "repeat-1",
        "cos_first",
        0.3,
        0.7,
        "about 0.5 after one step",
        small=(None, None),
    )
    yield Claim(21, "repeat 2: outputs repeat more than they should", "repeat-2", "alpha_peak", 0.6, None)
    yield Claim(22, "repeat 4: outputs repeat more than they should", "repeat-4", "alpha_peak", 0.35, None)

    yield from _same_three(9, "addition", partial=True)
    yield from _same_three(10, "addition-plain", partial=True)
    yield from _same_three(13, "permutation", partial=False)
    yield Claim(
        13, "permutation: values come right before their order", "permutation", "count_check_peak", 0.5, None
    )
    for compose in (2, 3, 4):
        yield from _same_three(14, f"permutation-{compose}", partial=False)
    yield from _same_three(15, "histogram", partial=False)
    yield Claim(
        16, "histogram: attention progresses before the loss does", "histogram", "apm_gain", 1.2, None
    )
    yield from _same_three(17, "reverse", partial=False)
    yield from _same_three(18, "copy", partial=False)
    for mix in ("123_disjoint_454", "124_disjoint_444", "124_disjoint_453", "124_stair_653"):
        yield from _same_three(19, f"concat-{mix}", partial=True)

    yield Claim(
        20,
        "on the plateau, attention's output does not hold the answer",
        "mws-probe",
        "probe_plateau",
        None,
        0.5,
    )
    yield Claim(20, "… after it, it does", "mws-probe", "probe_end", 0.9, None)
    yield Claim(
        20, "shuffled labels: at chance", "mws-probe", "probe_shuffled", None, 0.12, "", small=(None, 0.2)
    )

    for figure, recipes in (
        (26, ("mws-n8", "mws-n24", "mws-k3", "mws-k4")),
        (27, ("mws-p19", "mws-p23")),
        (28, ("mws-width64", "mws-width128", "mws-heads2", "mws-heads4")),
        (29, ("mws-layers2", "mws-layers3")),
        (30, ("mws-softmax",)),
        (31, ("mws-sgd-lr0.03", "mws-sgd-lr0.1")),
        (34, ("mws-warmup",)),
        (35, ("mws-warmup-cosine",)),
        (36, ("mws-batch64",)),
        (37, ("mws-batch512",)),
        (38, ("mws-lr3e-05",)),
        (39, ("mws-lr0.0003",)),
        (40, ("mws-adamw",)),
    ):
        for recipe in recipes:
            yield from _signs(figure, recipe)

    for claim in _signs(32, "mws-muon"):
        # Its attention and hidden states are figure 33.
        yield replace(claim, figure=33) if claim.number in ("cos_peak", "apm_plateau_gain") else claim

    yield Claim(
        41,
        "the collapse is in what the block writes: after attention",
        "mws-locations",
        "cos_peak_L0_resid_mid",
        0.6,
        None,
    )
    yield Claim(41, "… and after the MLP", "mws-locations", "cos_peak_L0_resid_post", 0.8, None)
    yield Claim(42, "two layers: the collapse is at the end", "mws-locations-2", "cos_peak", 0.8, None)
    yield Claim(42, "… and at the first layer's end", "mws-locations-2", "cos_peak_L0_resid_post", 0.6, None)

    for start in (25, 50, 75, 100):
        yield Claim(
            43,
            f"c = 10 from step {start} on shortens the plateau",
            f"mws-c10-from{start}",
            "took",
            None,
            0.9,
            "",
            "mws",
            small=(None, 1.0),
        )

    yield Claim(
        101,
        "attention frozen at random: solved later",
        "mws-frozen-attention",
        "took",
        1.2,
        None,
        "",
        "mws",
    )
    for name, how in (("mws-reward0.1", "a small"), ("mws-reward1", "a large")):
        yield Claim(
            102,
            f"{how} reward for attention progress: attention progress has more than tripled half-way to the drop",
            name,
            "apm_gain",
            3,
            None,
        )
        yield Claim(102, f"{how} reward: there is a plateau all the same", name, "plateau", 1, None)
        yield Claim(
            102, f"{how} reward: the drop comes sooner", name, "learned_at", None, 0.9, "", "mws-reward0"
        )
        yield Claim(102, f"{how} reward: solved sooner", name, "took", None, 0.9, "", "mws-reward0")
        yield Claim(
            102, f"{how} reward: the collapse is weaker", name, "cos_peak", None, 0.95, "", "mws-reward0"
        )


CLAIMS: tuple[Claim, ...] = tuple(_all_claims())
