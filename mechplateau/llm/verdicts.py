"""Are the checkpoints of a series what their names say? A verdict on each, from their contents alone.

In this order, each looking only at what the ones before let pass:

1. **Other models.** Checkpoints whose tensors have other names or shapes than those of most (in doubt: of the
   final weights) are flagged `other_model`, and compared with nothing. A tied tensor may be stored once or
   twice.
2. **Copies.** Checkpoints with the same content. One that equals the final weights is flagged `equals_final`
   (except the last step itself, which should); the others of a group are all flagged `duplicate`: at most one
   of them can be genuine, and the content does not say which.
3. **Foreign tensors.** A trained tensor that two checkpoints share although it differs in between (flag
   `foreign_tensor`) belongs to one of them at most: not to the one that is far off the path there, and in
   doubt it is named on both. The same for a matrix that stood still between neighbors while other matrices
   moved. Tensors that are constant, or equal in all checkpoints, are not evidence.
4. **Jumps.** With d(i, j) the distance of two checkpoints, the detour of an inner checkpoint is
   (d(i−1, i) + d(i, i+1)) / d(i−1, i+1): 1 on a straight line, at most √2 on a random walk, 2 for independent
   checkpoints. Above 3 it is flagged `jump`, the worst first, until none is left. Then an interval whose
   distance is more than 4 times that of each neighboring interval (scaled up by the ratio of their lengths in
   steps, if the interval is longer) is flagged at its later end, or at its start if it is the first one. The
   detour of each matrix by itself is held to the same limit (flag `foreign_tensor`): a tensor may come from
   outside the series.
5. **Other tokenizers.** A checkpoint whose tokenizer turns the prompts into other tokens than those of most (in
   doubt: of the last one) is flagged `other_tokenizer`: its numbers cannot be compared with the others'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from mechplateau.llm.identity import Identity

DETOUR_LIMIT = 3.0
JUMP_LIMIT = 4.0
_CLEARLY = 1.5
"""How much farther off the path one of two owners of a tensor must be to be called the wrong one."""


@dataclass(frozen=True)
class Known:
    """A checkpoint whose content is known."""

    label: str
    step: int | None
    identity: Identity
    prompt_ids: str | None = None
    """Hash of the prompts' token ids; None if the checkpoint was not measured."""


@dataclass
class Verdict:
    """What is known about one checkpoint; no flag means that no inconsistency with its name was found."""

    flags: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    same_as: list[str] = field(default_factory=list)
    """Labels of the checkpoints with the same content."""
    distance: float | None = None
    """‖w − w_previous‖ / ‖w_previous‖, the previous one being the step before it in the series."""
    detour: float | None = None
    """(d(i−1, i) + d(i, i+1)) / d(i−1, i+1) over the steps next to it in the series."""

    @property
    def doubtful(self) -> bool:
        """Whether the checkpoint may not be what its name says."""
        return bool(self.flags)

    def flag(self, name: str, note: str) -> None:
        """Add a flag (once) and the sentence that explains it."""
        if name not in self.flags:
            self.flags.append(name)
        self.notes.append(note)


def judge(
    series: Sequence[Known], final: Known | None = None, *, last_label: str | None = None
) -> dict[str, Verdict]:
    """A verdict on each checkpoint of a series, and on the final weights.

    Args:
        series: the known checkpoints in order of their steps.
        final: the published final weights; they may be an element of `series`.
        last_label: name of the last step of the whole series, which is expected to equal the final weights.

    Returns:
        verdicts by label, `final` included.
    """
    everyone = [
        *series,
        *([final] if final is not None and final.label not in {k.label for k in series} else []),
    ]
    verdicts = {known.label: Verdict() for known in everyone}
    _other_models(everyone, final, verdicts)
    _paths(series, verdicts)
    _copies(everyone, final, last_label, verdicts)
    same_model = [known for known in series if "other_model" not in verdicts[known.label].flags]
    if final is not None and "other_model" in verdicts[final.label].flags:
        final = None
    _foreign_tensors(_without_copies(same_model, verdicts), final, verdicts)
    _jumps([known for known in same_model if not verdicts[known.label].doubtful], verdicts)
    _other_tokenizers(everyone, verdicts)
    return verdicts


def _other_models(everyone: Sequence[Known], final: Known | None, verdicts: Mapping[str, Verdict]) -> None:
    if not everyone:
        return
    groups: list[list[Known]] = []
    for known in everyone:
        for group in groups:
            if not known.identity.differences(group[0].identity):
                group.append(known)
                break
        else:
            groups.append([known])
    end = final.label if final is not None else everyone[-1].label
    usual = max(groups, key=lambda group: (len(group), end in [known.label for known in group]))
    for group in groups:
        if group is usual:
            continue
        for known in group:
            names = known.identity.differences(usual[0].identity)
            verdicts[known.label].flag(
                "other_model",
                f"its tensors are not those of {usual[0].label}: {len(names)} have another name or shape "
                f"({_some(names)})",
            )


def _other_tokenizers(everyone: Sequence[Known], verdicts: Mapping[str, Verdict]) -> None:
    measured = [known for known in everyone if known.prompt_ids is not None]
    groups: dict[str | None, list[Known]] = {}
    for known in measured:
        groups.setdefault(known.prompt_ids, []).append(known)
    usual = max(groups.values(), key=lambda group: (len(group), measured[-1] in group), default=[])
    for group in groups.values():
        if group is usual:
            continue
        for known in group:
            verdicts[known.label].flag(
                "other_tokenizer",
                f"its tokenizer turns the prompts into other tokens than that of {usual[0].label}, so its numbers "
                "cannot be compared",
            )


def _paths(series: Sequence[Known], verdicts: Mapping[str, Verdict]) -> None:
    """Distances and detours, where they are those of one model."""
    comparable = [not one.identity.differences(other.identity) for one, other in pairwise(series)]
    for i, known in enumerate(series):
        if i and comparable[i - 1]:
            norm = series[i - 1].identity.squared_norm() ** 0.5
            if norm:
                verdicts[known.label].distance = _distance(series[i - 1], known) / norm
            if i < len(series) - 1 and comparable[i]:
                verdicts[known.label].detour = _detour(series[i - 1], known, series[i + 1])


def _copies(
    everyone: Sequence[Known], final: Known | None, last_label: str | None, verdicts: Mapping[str, Verdict]
) -> None:
    for group in _groups(everyone):
        labels = [known.label for known in group]
        if len(group) < 2:
            continue
        is_final = final is not None and final.label in labels
        for known in group:
            verdict = verdicts[known.label]
            verdict.same_as = [label for label in labels if label != known.label]
            if final is not None and is_final:
                if known.label in (final.label, last_label):
                    continue
                verdict.flag(
                    "equals_final",
                    f"equals the final weights ({final.label}){_storage(known, final)}, "
                    f"hash {known.identity.hash[:12]}",
                )
            else:
                others = ", ".join(
                    f"{other.label}{_storage(known, other)}" for other in group if other.label != known.label
                )
                verdict.flag("duplicate", f"same weights as {others}, hash {known.identity.hash[:12]}")


def _without_copies(series: Sequence[Known], verdicts: Mapping[str, Verdict]) -> list[Known]:
    """Each content once: a tensor may also have strayed from a checkpoint that has copies."""
    seen: set[str] = set()
    kept = []
    for known in series:
        verdict = verdicts[known.label]
        if "equals_final" not in verdict.flags and known.label not in seen:
            kept.append(known)
            seen.update(verdict.same_as)
    return kept


def _storage(known: Known, other: Known) -> str:
    """How two equal checkpoints differ in storage, in words; empty if they do not."""
    mine, theirs = known.identity.dtype, other.identity.dtype
    if mine == theirs:
        return ""
    level = known.identity.agreement(other.identity)
    how = "the same numbers" if level in (None, "float32") else f"equal once rounded to {level}"
    return f" (stored as {theirs} there, {mine} here: {how})"


def _groups(everyone: Sequence[Known]) -> list[list[Known]]:
    groups: list[list[Known]] = []
    for known in everyone:
        for group in groups:
            if any(known.identity.agreement(other.identity) for other in group):
                group.append(known)
                break
        else:
            groups.append([known])
    return groups


def _foreign_tensors(kept: Sequence[Known], final: Known | None, verdicts: Mapping[str, Verdict]) -> None:
    owners = list(kept)
    if final is not None and not any(
        known.label == final.label or known.identity.agreement(final.identity) for known in kept
    ):
        owners.append(final)
    if len(owners) < 3:
        return
    found: dict[tuple[str, str], list[str]] = {}
    for name in _shared_names(owners):
        for wrong, right in _strangers(name, owners, final):
            found.setdefault((wrong, right), []).append(name)
    total = len(owners[0].identity.tensors)
    for (wrong, right), names in found.items():
        verdicts[wrong].flag(
            "foreign_tensor",
            f"{len(names)} of {total} tensors are those of {right} ({_some(names)}), "
            f"hash {_by_label(owners, wrong).identity.tensors[names[0]].hash[:12]}",
        )


def _strangers(name: str, owners: Sequence[Known], final: Known | None) -> Iterator[tuple[str, str]]:
    """Pairs (checkpoint where the tensor does not belong, checkpoint it is shared with)."""
    tensors = [known.identity.tensors[name] for known in owners]
    if all(tensor.constant for tensor in tensors) or all(t.agreement(tensors[0]) for t in tensors):
        return
    for i, j in _equal_pairs(name, owners):
        apart = any(not tensors[k].agreement(tensors[i]) for k in range(i + 1, j))
        # A vector may stay unchanged for a step in half precision; a matrix among moving matrices does not.
        still = j == i + 1 and len(tensors[i].shape) >= 2 and _others_move(name, owners[i], owners[j])
        if not apart and not still:
            continue
        # The end of a series is taken for what it says: everything else is measured against it.
        if (final is not None and owners[j].label == final.label) or (j == len(owners) - 1 and apart):
            yield owners[i].label, owners[j].label
            continue
        off_i, off_j = (_detour_at(name, owners, k) if apart else None for k in (i, j))
        if off_i is None or off_j is None or max(off_i, off_j) < _CLEARLY * min(off_i, off_j):
            yield owners[i].label, owners[j].label
            yield owners[j].label, owners[i].label
        elif off_i > off_j:
            yield owners[i].label, owners[j].label
        else:
            yield owners[j].label, owners[i].label


def _equal_pairs(name: str, owners: Sequence[Known]) -> Iterator[tuple[int, int]]:
    """Each checkpoint with the next one that has the same tensor."""
    for i, known in enumerate(owners):
        mine = known.identity.tensors[name]
        if mine.constant:
            continue
        for j in range(i + 1, len(owners)):
            if mine.agreement(owners[j].identity.tensors[name]):
                yield i, j
                break


def _others_move(name: str, one: Known, other: Known) -> bool:
    return any(
        len(tensor.shape) >= 2 and not tensor.constant and not tensor.agreement(other.identity.tensors[key])
        for key, tensor in one.identity.tensors.items()
        if key != name and key in other.identity.tensors
    )


def _shared_names(owners: Sequence[Known]) -> list[str]:
    names = set(owners[0].identity.tensors)
    for known in owners[1:]:
        names &= set(known.identity.tensors)
    return sorted(names)


def _jumps(kept: Sequence[Known], verdicts: Mapping[str, Verdict]) -> None:
    path = list(kept)
    while len(path) > 2:
        detours = [_detour(path[i - 1], path[i], path[i + 1]) or 0.0 for i in range(1, len(path) - 1)]
        worst = max(range(len(detours)), key=detours.__getitem__)
        if detours[worst] <= DETOUR_LIMIT:
            break
        before, known, after = path[worst : worst + 3]
        verdicts[known.label].flag(
            "jump",
            f"far from both neighbors: the way {before.label} → {known.label} → {after.label} is "
            f"{detours[worst]:.1f} times the distance {before.label} → {after.label} "
            f"(expected below {DETOUR_LIMIT:g})",
        )
        path.remove(known)
    _lone_jumps(path, verdicts)
    intervals = [
        (_distance(one, other), max((other.step or 0) - (one.step or 0), 1)) for one, other in pairwise(path)
    ]
    for i, (distance, length) in enumerate(intervals):
        nearby = [intervals[j] for j in (i - 1, i + 1) if 0 <= j < len(intervals)]
        expected = max((d * max(1.0, length / gap) for d, gap in nearby), default=0.0)
        if expected and distance > JUMP_LIMIT * expected:
            flagged = path[0] if i == 0 else path[i + 1]
            verdicts[flagged.label].flag(
                "jump",
                f"the distance {path[i].label} → {path[i + 1].label} is {distance / expected:.1f} times what "
                f"the neighboring intervals suggest (expected below {JUMP_LIMIT:g})",
            )


def _lone_jumps(path: Sequence[Known], verdicts: Mapping[str, Verdict]) -> None:
    """Flag matrices that are far from both neighbors where the checkpoint as a whole is not."""
    for before, known, after in zip(path, path[1:], path[2:], strict=False):
        detours = {
            name: _detour(before, known, after, name)
            for name in _shared_names((before, known, after))
            if len(known.identity.tensors[name].shape) >= 2
        }
        far = {
            name: detour for name, detour in detours.items() if detour is not None and detour > DETOUR_LIMIT
        }
        if far:
            worst = max(far, key=far.__getitem__)
            verdicts[known.label].flag(
                "foreign_tensor",
                f"{_some(sorted(far))} far from both neighbors: for {worst} the way {before.label} → "
                f"{known.label} → {after.label} is {far[worst]:.1f} times the distance {before.label} → "
                f"{after.label} (expected below {DETOUR_LIMIT:g})",
            )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _detour_at(name: str, owners: Sequence[Known], k: int) -> float | None:
    return _detour(owners[k - 1], owners[k], owners[k + 1], name) if 0 < k < len(owners) - 1 else None


def _detour(before: Known, known: Known, after: Known, tensor: str | None = None) -> float | None:
    direct = _distance(before, after, tensor)
    if not direct:
        return None
    return (_distance(before, known, tensor) + _distance(known, after, tensor)) / direct


def _distance(one: Known, other: Known, tensor: str | None = None) -> float:
    return one.identity.squared_distance(other.identity, tensor) ** 0.5


def _by_label(owners: Sequence[Known], label: str) -> Known:
    return next(known for known in owners if known.label == label)
