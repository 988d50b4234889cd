"""Claims and their outcomes, in words: lines for a terminal, a page of Markdown, and one line of counts."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from mechplateau.studies.claims import Change, Outcome, Verdict
from mechplateau.studies.recipes import AS_THE_AUTHORS, PAPER
from mechplateau.studies.study import Study

_COUNTED: Mapping[Verdict, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "fails": ("fails", "fail"),
    "holds so far": ("holds so far", "hold so far"),
    "fails so far": ("fails so far", "fail so far"),
    "undefined": ("is undefined", "are undefined"),
    "not yet run": ("was not yet run", "were not yet run"),
}
OLD_DEFINITION = (
    "Old definition: these runs have no table on record; their numbers are as they were defined then."
)


def counts(outcomes: Sequence[Outcome]) -> str:
    """How many claims hold, fail, and so on, as a sentence; of those that are decided, how many by one seed."""
    if not outcomes:
        return "No claims are made about this."
    found = Counter(outcome.verdict for outcome in outcomes)
    single = Counter(outcome.verdict for outcome in outcomes if _of_one_seed(outcome))
    told = [
        f"{found[name]} {words[found[name] > 1]}" + (f" ({single[name]} by one seed)" if single[name] else "")
        for name, words in _COUNTED.items()
        if found[name]
    ]
    return f"Of {len(outcomes)} claims {', '.join(told)}."


def verdict_told(outcome: Outcome) -> str:
    """The verdict; marked where it is that of one seed, which says nothing of others."""
    return f"{outcome.verdict}, one seed" if _of_one_seed(outcome) else outcome.verdict


def _of_one_seed(outcome: Outcome) -> bool:
    """Whether a claim is decided, and by a single run."""
    return outcome.verdict in ("holds", "fails") and outcome.runs == 1


def range_told(outcome: Outcome, scale: str) -> str:
    """What is measured, and the range in which the claim is true."""
    low, high = outcome.claim.range(scale)
    name = outcome.claim.measured
    if high is None:
        return f"{name} ≥ {low:g}"
    return f"{name} ≤ {high:g}" if low is None else f"{name} in {low:g} – {high:g}"


def found_told(outcome: Outcome, scale: str) -> str:
    """Median, smallest and largest value over the seeds; which of them were not solved."""
    unsolved = f"; {outcome.unsolved} of {outcome.runs} not solved" if outcome.unsolved else ""
    if outcome.value is None:
        return f"–{unsolved}"
    value = _number(outcome.value, outcome.claim.range(scale))
    if len(outcome.values) == 1:
        return f"{value}{unsolved}"
    return f"{value} ({_number(min(outcome.values))} – {_number(max(outcome.values))}){unsolved}"


def seeds_told(outcome: Outcome) -> str:
    """In how many seeds it is so, of how many, and how many decide where that is more."""
    if not outcome.runs:
        return f"0 of {outcome.claim.seeds}"
    more = f", {outcome.claim.seeds} decide" if outcome.claim.seeds > outcome.runs else ""
    return f"{outcome.inside} of {outcome.runs}{more}"


def paper_told(outcome: Outcome) -> str:
    """What the paper or its authors' code says, and which of the two."""
    claim = outcome.claim
    return f"{claim.paper} ({claim.source})" if claim.paper else ""


def lines_told(study: Study, outcome: Outcome, scale: str, width: int = 80) -> list[str]:
    """A claim in a few lines of at most this width: sentence and verdict, range, what the paper says, what was found,
    set-up, changes. A figure whose name is longer than its column has a line of its own."""
    claim, recipe = outcome.claim, study.recipes[outcome.claim.recipe]
    indent = " " * 5
    verdict = verdict_told(outcome)
    head = textwrap.wrap(claim.text, width - len(indent) - len(verdict) - 2)
    fits = len(claim.figure) < len(indent)
    first = f"{claim.figure if fits else '':<{len(indent)}}{head[0]}"
    lines = [
        *([] if fits else [claim.figure]),
        f"{first:<{width - len(verdict)}}{verdict}",
        *(indent + line for line in head[1:]),
    ]
    details = [f"expected  {range_told(outcome, scale)}"]
    if claim.paper:
        details.append(f"paper     {paper_told(outcome)}")
    seeds = "1 seed" if outcome.runs == 1 else f"{outcome.runs} seeds"
    if outcome.runs:
        more = f"; {claim.seeds} decide" if claim.seeds > outcome.runs else ""
        details.append(
            f"found     {found_told(outcome, scale)}; in range in {outcome.inside} of {seeds}{more}"
        )
    if recipe.setup:
        details.append(f"set-up    {recipe.setup}")
    if claim.changes:
        seen = " and ".join(str(change.after) for change in claim.changes)
        runs = "1 run" if seen == "1" else f"{seen} runs"
        details.append(f"changed   after {runs} had been seen; --markdown shows what and why")
    for detail in details:
        lines += textwrap.wrap(detail, width, initial_indent=indent, subsequent_indent=indent + " " * 10)
    return lines


def claims_page(study: Study, outcomes: Sequence[Outcome], scale: str = PAPER) -> str:
    """The claims as Markdown: how many hold, the table, the set-ups, and what was changed after runs had been seen."""
    marks = _marks(outcomes)
    parts = [counts(outcomes), _table(study, outcomes, scale, marks)]
    if any(outcome.old for outcome in outcomes):
        parts.append(f"† {OLD_DEFINITION}")
    parts += [_set_ups(study, outcomes), _changed(marks), _retired(study)]
    return "\n\n".join(filter(None, parts))


def _marks(outcomes: Iterable[Outcome]) -> dict[Change, int]:
    """Change → its number, in the order in which they are met."""
    marks: dict[Change, int] = {}
    for outcome in outcomes:
        for change in outcome.claim.changes:
            marks.setdefault(change, len(marks) + 1)
    return marks


def _table(study: Study, outcomes: Sequence[Outcome], scale: str, marks: dict[Change, int]) -> str:
    rows = []
    for outcome in outcomes:
        claim, setup = outcome.claim, study.recipes[outcome.claim.recipe].setup
        changed = "".join(f" [{marks[change]}]" for change in claim.changes)
        rows.append(
            (
                claim.figure,
                claim.text + changed,
                {"": "", AS_THE_AUTHORS: AS_THE_AUTHORS}.get(setup, "ours"),
                range_told(outcome, scale),
                paper_told(outcome),
                found_told(outcome, scale) + ("†" if outcome.old else ""),
                seeds_told(outcome),
                verdict_told(outcome),
            )
        )
    return _markdown(
        (
            "figure",
            "claim",
            "set-up",
            "expected",
            "paper",
            "found: median (range)",
            "seeds in range",
            "verdict",
        ),
        rows,
    )


def _set_ups(study: Study, outcomes: Sequence[Outcome]) -> str:
    named = dict.fromkeys(
        name for outcome in outcomes for name in (outcome.claim.recipe, outcome.claim.over) if name
    )
    rows = [(name, study.recipes[name].what, study.recipes[name].setup) for name in named]
    if not any(setup for _, _, setup in rows):
        return ""
    table = _markdown(("run", "what", "set-up"), rows)
    return "\n\n".join(filter(None, ("## Set-ups", study.setup, table)))


def _changed(marks: dict[Change, int]) -> str:
    if not marks:
        return ""
    rows = [(f"[{mark}]", str(change.after), change.was, change.because) for change, mark in marks.items()]
    about = "Numbers in brackets belong to the claims above. Runs are those that had been seen by then."
    table = _markdown(("", "after runs", "before", "changed, because"), rows)
    return f"## Changed after runs had been seen\n\n{about}\n\n{table}"


def _retired(study: Study) -> str:
    if not study.retired:
        return ""
    together: dict[Change, list[str]] = {}
    for id, change in study.retired.items():
        together.setdefault(change, []).append(id)
    rows = [
        (", ".join(ids), str(change.after), change.was, change.because) for change, ids in together.items()
    ]
    table = _markdown(("claims", "after runs", "before", "gone, because"), rows)
    return f"## Claims that stood here once\n\n{table}"


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [" | ".join(head), "|".join("---" for _ in head), *(" | ".join(map(_cell, row)) for row in rows)]
    return "\n".join(
        f"| {lines[0]} |" if i == 0 else f"|{line}|" if i == 1 else f"| {line} |"
        for i, line in enumerate(lines)
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _number(value: float, bounds: Sequence[float | None] = ()) -> str:
    """Three significant digits; more where the value would else look as if it were on a bound it misses."""
    if float(value).is_integer() and abs(value) >= 2:
        return str(int(value))
    digits = 3
    while digits < 6 and value not in bounds and float(f"{value:.{digits}g}") in bounds:
        digits += 1
    return f"{value:.{digits}g}"
