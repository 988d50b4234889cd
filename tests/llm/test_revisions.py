from __future__ import annotations

import pytest

from mechplateau.errors import ConfigError
from mechplateau.llm.revisions import Revision, StepChoice, arrange, missing_steps, parse_revision


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("step512", Revision("step512", 512)),
        ("stage1-step150-tokens1B", Revision("stage1-step150-tokens1B", 150, stage=1, tokens=10**9)),
        (
            "stage2-ingredient3-step1000-tokens5B",
            Revision("stage2-ingredient3-step1000-tokens5B", 1000, stage=2, ingredient=3, tokens=5 * 10**9),
        ),
        ("step1000-tokens4B", Revision("step1000-tokens4B", 1000, tokens=4 * 10**9)),
        ("step738020-tokens3095B", Revision("step738020-tokens3095B", 738020, tokens=3095 * 10**9)),
        ("checkpoint-500", Revision("checkpoint-500", 500)),
        ("global_step7", Revision("global_step7", 7)),
        ("step_000120", Revision("step_000120", 120)),
        ("ckpt-500", Revision("ckpt-500", 500)),
        ("ckpt_500", Revision("ckpt_500", 500)),
        ("1000", Revision("1000", 1000)),
        ("0000120", Revision("0000120", 120)),
        ("step1k", Revision("step1k", 1000)),
        ("step-2M", Revision("step-2M", 2_000_000)),
        ("step=1000", Revision("step=1000", 1000)),
        ("Step_3", Revision("Step_3", 3)),
        ("iteration-7", Revision("iteration-7", 7)),
        ("step1.5k", None),
        ("step1kb", None),
        ("-1", None),
        ("1e3", None),
        ("main", Revision("main", None)),
        ("step", None),
        ("step512-old", None),
        ("stage1", None),
        ("mystep5", None),
        ("step-5/../x", None),
    ],
)
def test_names_are_parsed(label: str, expected: Revision | None) -> None:
    assert parse_revision(label) == expected


def test_arrange_sorts_by_number_and_sets_the_final_weights_aside() -> None:
    listing = arrange(["step16", "step2", "main", "README", "step0", "step2"])
    assert [revision.step for revision in listing.revisions] == [0, 2, 16]
    assert listing.final == Revision("main", None)


def test_arrange_keeps_one_stage() -> None:
    labels = ["stage1-step0-tokens0B", "stage1-step150-tokens1B", "stage2-ingredient1-step0-tokens0B"]
    listing = arrange(labels)
    assert [revision.label for revision in listing.revisions] == labels[:2]
    assert listing.left_out == (labels[2],)
    assert [revision.label for revision in arrange(labels, stage=2).revisions] == [labels[2]]
    with pytest.raises(ConfigError, match=r"no stage 3; stages there: \[1, 2\]"):
        arrange(labels, stage=3)


def test_two_names_for_one_step_are_refused() -> None:
    with pytest.raises(ConfigError, match="are both step 5"):
        arrange(["step5", "checkpoint-5"])


def test_bare_numbers_are_steps_only_by_themselves() -> None:
    assert [revision.step for revision in arrange(["1000", "500", "main"]).revisions] == [500, 1000]
    listing = arrange(["step0", "step512", "20240131"])
    assert [revision.step for revision in listing.revisions] == [0, 512]
    assert listing.nameless == ("20240131",)
    with pytest.raises(ConfigError, match=r"'step1000' and 'step1k' are both step 1000"):
        arrange(["step1000", "step1k"])


def test_step_choice_reads_numbers_and_ranges() -> None:
    revisions = arrange(["step0", "step1", "step4", "step100", "step5000"]).revisions
    picked, absent = StepChoice.parse("0,2, 50-200").pick(revisions)
    assert [revision.step for revision in picked] == [0, 100]
    assert absent == [2]
    assert len(StepChoice.parse("all").pick(revisions)[0]) == 5


@pytest.mark.parametrize("text", ["", "a", "1,,2", "1-", "-3", "9-1", "1.5"])
def test_step_choice_refuses_what_it_cannot_read(text: str) -> None:
    with pytest.raises(ConfigError, match="steps:"):
        StepChoice.parse(text)


@pytest.mark.parametrize(
    ("steps", "missing"),
    [
        ([0, 1, 2, 4, 8, 16, 32, 64, 256, 512], [128]),
        ([0, 1, 2, 64, 256, 512], [4, 8, 16, 32, 128]),
        ([1, 4, 16, 64], []),
        ([1, 2, 1024, 2048], []),
        ([1, 4, 64, 256], [16]),
        ([0, 1000, 2000, 4000, 5000, 6000], [3000]),
        ([0, 1, 2, 4, 8, 16, 32, 64, 256, 512, 1000, 2000, 3000, 6000, 7000, 8000], [128, 4000, 5000]),
        # The paper's own selection and the demonstration's grid are complete.
        ([0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 4000, 8000, 10000], []),
        ([0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024], []),
        ([0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, *range(1000, 144000, 1000)], []),
        ([7, 100, 1234, 1300, 9999], []),
        ([0], []),
        ([], []),
    ],
)
def test_missing_steps_follow_from_the_spacing(steps: list[int], missing: list[int]) -> None:
    assert missing_steps(steps) == missing


def test_numbers_beyond_any_table_describe_no_step() -> None:
    listing = arrange(["step1", f"step{2**63 - 1}", f"step{2**63}", "stage1-step3-tokens99999999T", "notes"])
    assert [revision.step for revision in listing.revisions] == [1, 2**63 - 1]
    assert listing.nameless == ("notes", "stage1-step3-tokens99999999T", f"step{2**63}")


@pytest.mark.parametrize("number", ["9" * 30, "9" * 5000, str(2**63)])
def test_steps_beyond_any_table_are_refused_before_anything_is_measured(number: str) -> None:
    for text in (f"0,{number}", f"0-{number}"):
        with pytest.raises(ConfigError, match=f"steps: expected numbers up to {2**63 - 1}, got '") as caught:
            StepChoice.parse(text)
        assert len(str(caught.value)) < 200
    assert parse_revision(f"step{number}") is parse_revision(number) is None


def test_final_weights_under_two_names_are_said() -> None:
    listing = arrange(["step0", "main", "final"])
    assert (listing.final, listing.nameless) == (Revision("main", None), ("final",))
