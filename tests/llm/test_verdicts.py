from __future__ import annotations

import pytest
import torch

from mechplateau.llm.identity import identify
from mechplateau.llm.verdicts import Known, judge

State = dict[str, torch.Tensor]


def state(time: float, seed: int = 0) -> State:
    """Three matrices, a vector and a constant at a moment of a smooth path."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"w1": (20, 30), "w2": (30, 20), "w3": (10, 10), "bias": (30,)}
    path = {
        name: [torch.randn(shape, generator=generator) for _ in range(3)] for name, shape in shapes.items()
    }
    moved = {name: a + time * b + 0.2 * time**2 * c for name, (a, b, c) in path.items()}
    return {**moved, "ones": torch.ones(5)}


def series(states: dict[int, State]) -> list[Known]:
    return [Known(f"step{step}", step, identify(tensors)) for step, tensors in states.items()]


def smooth(steps: list[int]) -> dict[int, State]:
    return {step: state(0.1 * i) for i, step in enumerate(steps)}


STEPS = [0, 1, 2, 4, 8, 16, 32, 64, 128]


def flags(states: dict[int, State], final: Known | None = None) -> dict[str, list[str]]:
    known = series(states)
    verdicts = judge(known, final or known[-1], last_label=known[-1].label)
    return {label: verdict.flags for label, verdict in verdicts.items() if verdict.flags}


def test_a_sound_series_is_not_doubted() -> None:
    known = series(smooth(STEPS))
    verdicts = judge(known, known[-1], last_label="step128")
    assert not any(verdict.doubtful for verdict in verdicts.values())
    assert verdicts["step0"].distance is None
    direct = [
        sum(float((one[name] - other[name]).square().sum()) for name in one) ** 0.5
        for one, other in ((state(0.1), state(0.2)), (state(0.2), state(0.3)), (state(0.1), state(0.3)))
    ]
    norm = sum(float(tensor.square().sum()) for tensor in state(0.1).values()) ** 0.5
    assert verdicts["step2"].distance == pytest.approx(direct[0] / norm, rel=1e-5)
    assert verdicts["step2"].detour == pytest.approx((direct[0] + direct[1]) / direct[2], rel=1e-5)


def test_random_walks_and_noise_are_not_doubted() -> None:
    torch.manual_seed(0)
    walk, states = state(0.0), {}
    for step in STEPS:
        walk = {name: tensor + 0.01 * torch.randn_like(tensor) for name, tensor in walk.items()}
        states[step] = walk
    assert flags(states) == {}
    noise = {step: {n: t + 0.01 * torch.randn_like(t) for n, t in state(0.0).items()} for step in STEPS}
    assert flags(noise) == {}


def test_warm_up_is_not_a_jump() -> None:
    """Distances that quadruple while steps double, as a rate that rises linearly makes them."""
    assert flags({step: state(1e-6 * step**2) for step in STEPS}) == {}


def test_a_long_interval_is_not_a_jump() -> None:
    """At the same pace, 57 steps lead 57 times as far as one."""
    assert flags({step: state(0.001 * step) for step in (0, 1, 2, 3, 60, 61, 62)}) == {}
    assert flags({step: state(0.001 * step) for step in (0, 1, 2, 3, 60, 120)}) == {}


def test_copies_and_copies_of_the_final_weights() -> None:
    states = smooth(STEPS)
    states[0] = states[1] = states[2]
    states[32] = states[128]
    known = series(states)
    verdicts = judge(known, known[-1], last_label="step128")
    assert {label: v.flags for label, v in verdicts.items() if v.flags} == {
        "step0": ["duplicate"],
        "step1": ["duplicate"],
        "step2": ["duplicate"],
        "step32": ["equals_final"],
    }
    assert verdicts["step0"].same_as == ["step1", "step2"]
    short = known[0].identity.hash[:12]
    assert verdicts["step1"].notes == [f"same weights as step0, step2, hash {short}"]
    assert verdicts["step32"].notes == [
        f"equals the final weights (step128), hash {known[-1].identity.hash[:12]}"
    ]
    assert verdicts["step128"].same_as == ["step32"]


def test_the_last_step_may_equal_the_published_weights() -> None:
    states = smooth(STEPS)
    main = Known("main", None, identify(states[128]))
    assert flags(states, main) == {}
    states[16] = states[128]
    assert flags(states, main) == {"step16": ["equals_final"]}


def test_only_the_last_step_of_the_whole_series_may() -> None:
    """Where the selection ends early, its last checkpoint has no right to equal the published weights."""
    states = smooth(STEPS[:4])
    known = series(states)
    main = Known("main", None, known[-1].identity)
    verdicts = judge(known, main, last_label="step128")
    assert verdicts["step4"].flags == ["equals_final"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_rounded_copy_is_the_same_and_said_to_be(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    states = smooth(STEPS)
    states[4] = {key: tensor.to(dtype) for key, tensor in states[2].items()}
    known = series(states)
    verdicts = judge(known, known[-1], last_label="step128")
    assert verdicts["step2"].flags == verdicts["step4"].flags == ["duplicate"]
    assert verdicts["step2"].same_as == ["step4"]
    assert f"stored as {name} there, float32 here: equal once rounded to {name}" in verdicts["step2"].notes[0]
    states[4] = {key: tensor.to(dtype) for key, tensor in states[2].items()}
    states[2] = {key: tensor.float() for key, tensor in states[4].items()}
    known = series(states)
    note = judge(known, known[-1], last_label="step128")["step2"].notes[0]
    assert f"stored as {name} there, float32 here: the same numbers" in note


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_series_of_mixed_types_is_not_doubted(dtype: torch.dtype) -> None:
    states = smooth(STEPS)
    mixed = {
        s: {k: t.to(dtype) if i % 2 else t for k, t in w.items()} for i, (s, w) in enumerate(states.items())
    }
    assert flags(mixed) == {}


@pytest.mark.parametrize("name", ["w1", "w3", "bias"])
def test_a_tensor_of_the_final_weights(name: str) -> None:
    states = smooth(STEPS)
    states[8][name] = states[128][name]
    known = series(states)
    verdicts = judge(known, known[-1], last_label="step128")
    assert {label: v.flags for label, v in verdicts.items() if v.flags} == {"step8": ["foreign_tensor"]}
    assert verdicts["step8"].notes[0].startswith(f"1 of 5 tensors are those of step128 ({name}), hash ")


def test_a_tensor_of_another_step_is_blamed_on_the_one_off_the_path() -> None:
    states = smooth(STEPS)
    states[64]["w1"] = states[2]["w1"]
    assert flags(states) == {"step64": ["foreign_tensor"]}
    states = smooth(STEPS)
    states[2]["w1"] = states[64]["w1"]
    assert flags(states) == {"step2": ["foreign_tensor"]}


def test_a_tensor_of_a_step_that_has_copies() -> None:
    states = smooth(STEPS)
    states[0] = states[1] = states[2]
    states[32] = {**states[32], "w2": states[0]["w2"]}
    found = flags(states)
    assert found["step32"] == ["foreign_tensor"]
    assert found["step1"] == ["duplicate"]


def test_a_matrix_that_stands_still_between_neighbors_is_named_on_both() -> None:
    states = smooth(STEPS)
    states[8]["w1"] = states[4]["w1"]
    assert flags(states) == {"step4": ["foreign_tensor"], "step8": ["foreign_tensor"]}
    # All matrices may, where only vectors are trained for a while.
    states = smooth(STEPS)
    states[8] |= {name: states[4][name] for name in ("w1", "w2", "w3")}
    assert flags(states) == {}
    # A vector may: in half precision a small update can vanish.
    states = smooth(STEPS)
    states[8]["bias"] = states[4]["bias"]
    assert flags(states) == {}


def test_frozen_tensors_are_no_evidence() -> None:
    states = smooth(STEPS)
    for tensors in states.values():
        tensors["w2"] = states[0]["w2"]
    assert flags(states) == {}


def test_a_checkpoint_of_another_run_jumps() -> None:
    states = smooth(STEPS)
    states[16] = state(0.5, seed=1)
    known = series(states)
    verdicts = judge(known, known[-1], last_label="step128")
    assert {label: v.flags for label, v in verdicts.items() if v.flags} == {"step16": ["jump"]}
    assert "far from both neighbors: the way step8 → step16 → step32 is" in verdicts["step16"].notes[0]


def test_a_matrix_of_another_run_is_found_though_the_whole_hardly_moves() -> None:
    states = smooth(STEPS)
    states[16]["w3"] = state(0.5, seed=1)["w3"]
    assert flags(states) in ({"step16": ["foreign_tensor"]}, {"step16": ["jump"]})
    heavy = {step: {**tensors, "w1": 50 * tensors["w1"]} for step, tensors in states.items()}
    assert flags(heavy) == {"step16": ["foreign_tensor"]}


def test_a_first_or_last_checkpoint_of_another_run_jumps() -> None:
    states = smooth(STEPS)
    states[0] = state(0.0, seed=1)
    assert flags(states) == {"step0": ["jump"]}
    states = smooth(STEPS)
    states[128] = state(0.8, seed=1)
    assert flags(states) == {"step128": ["jump"]}


def test_a_change_of_run_is_flagged_where_it_happens() -> None:
    states = {step: state(0.1 * i, seed=i // 5) for i, step in enumerate(STEPS)}
    assert flags(states) == {"step16": ["jump"]}


def test_fewer_than_three_checkpoints_can_still_be_copies() -> None:
    assert flags({0: state(0.0)}) == {}
    assert flags({0: state(0.0), 1: state(0.1)}) == {}
    assert flags({0: state(0.0), 1: state(0.0)}) == {"step0": ["equals_final"]}


def test_a_checkpoint_of_another_model_is_compared_with_nothing() -> None:
    states = smooth(STEPS)
    wider = {name: torch.cat([tensor, tensor]) for name, tensor in states[8].items()}
    known = series({**states, 8: wider})
    verdicts = judge(known, known[-1], last_label="step128")
    assert {label: verdict.flags for label, verdict in verdicts.items() if verdict.flags} == {
        "step8": ["other_model"]
    }
    assert verdicts["step8"].notes == [
        "its tensors are not those of step0: 5 have another name or shape (bias, ones, w1 and 2 more)"
    ]
    undefined = [label for label, verdict in verdicts.items() if verdict.distance is None]
    assert undefined == ["step0", "step8", "step16"]
    assert verdicts["step16"].detour is None


def test_a_checkpoint_without_one_of_the_tensors() -> None:
    states = smooth(STEPS)
    del states[8]["w2"]
    assert flags(states) == {"step8": ["other_model"]}


def test_final_weights_of_another_model_are_the_odd_ones() -> None:
    small = {name: tensor[:5] for name, tensor in state(1.0).items()}
    final = Known("main", None, identify(small))
    assert flags(smooth(STEPS), final) == {"main": ["other_model"]}


def test_tied_tensors_stored_once_or_twice_are_the_same_model() -> None:
    states = {step: {**tensors, "head": tensors["w1"]} for step, tensors in smooth(STEPS).items()}
    for step in (2, 8, 128):
        del states[step]["head"]
    assert flags(states) == {}
    states[16] = {**states[128], "head": states[128]["w1"]}
    assert flags(states)["step16"] == ["equals_final"]
