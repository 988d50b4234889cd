"""Attention transfer: what moves between which tasks, and that it takes the plateau away as in the paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import pandas as pd
import pytest
import torch

from mechplateau.circuits.transfer import plateau_left, transferred
from mechplateau.config import RunConfig
from mechplateau.errors import ConfigError, UserError
from mechplateau.signs import Plateau
from mechplateau.tasks import OneOutputPerInput, Target, Task, pairs_among, register_task
from mechplateau.training import train

from .trained import toy


@register_task
class Doubled(OneOutputPerInput):
    """x₀ … x₅, SEP, y₀ … y₅ with y_i = 2 x_i mod 7: as long as the toy task, over another vocabulary."""

    name: Literal["doubled-for-tests"] = "doubled-for-tests"
    n: int = 6
    varies: bool = False

    @property
    def vocab_size(self) -> int:
        return 8

    def _sample(self, batch, generator, device):
        x = torch.randint(0, 7, (batch, self.n), generator=generator, device=device)
        return torch.cat([x, torch.full((batch, 1), 7, device=device), 2 * x % 7], dim=1)

    def attention_targets(self, tokens):
        mask = torch.eye(self.n, self.n_input, dtype=torch.bool)
        return (
            Target("own", None, self.output_rows, mask.expand(len(tokens) if self.varies else 1, -1, -1)),
        )

    @property
    def collapse_pairs(self):
        return {"": pairs_among(list(range(self.n)), self.n)}


@register_task
class Translated(Doubled):
    """The same, which knows that its separator is the toy task's."""

    name: Literal["translated-for-tests"] = "translated-for-tests"

    def token_map(self, source: Task) -> Mapping[int, int] | None:
        return {7: source.p, 1: 2} if source.name == "mws" else None


def other(name="doubled-for-tests", **sections):
    same = toy().data()
    return RunConfig.parse(
        {
            **{key: same[key] for key in ("model", "training", "evaluation", "checkpoints")},
            "task": {"name": name},
            **sections,
        }
    )


def test_a_runs_own_attention_takes_its_plateau_away(toy_run, tmp_path):
    """Figure 5 of arXiv 2506.13688, small: KQ takes plateau and collapse away, KQOV more so, MLP does not."""
    baseline = toy_run.phases.plateau
    assert baseline.found
    peak = {"none": toy_run.metrics["cos_final"].max()}
    left = {}
    for parts in ("KQ", "KQOV", "MLP", "pattern"):
        config = toy(training={"steps": 160 if parts == "MLP" else 100})
        run = train(transferred(config, toy_run, parts), runs_dir=tmp_path, threads=1)
        peak[parts] = run.metrics["cos_final"].max()
        left[parts] = plateau_left(run.metrics, baseline)
        if parts != "MLP":
            assert run.metrics["accuracy"].iloc[-1] > 0.9
            assert run.metrics["apm_window"].iloc[0] > 0.6  # it begins where the source's attention ended
    assert left["KQ"].left == left["KQOV"].left == left["pattern"].left == 0
    assert left["KQOV"].reached < left["KQ"].reached < baseline.onset
    assert left["MLP"].reached is None
    assert peak["none"] > 0.95
    assert peak["KQ"] < 0.85
    assert peak["KQOV"] < 0.6
    assert peak["MLP"] > 0.95


def test_within_a_task_all_of_the_part_moves(toy_run):
    config = transferred(toy(seed=1), toy_run, "KQ", freeze=False)
    (intervention,) = config.interventions
    assert (intervention.parts, intervention.freeze, intervention.token_rows) == (("KQ",), False, None)
    assert "embed.W_E" in intervention.tensors()
    during = transferred(toy(), toy_run, "KQ", step="during")
    assert during.interventions[0].sha256 != intervention.sha256


def test_across_tasks_only_attention_ln1_and_positions_move(toy_run):
    (intervention,) = transferred(other(), toy_run, "KQOV").interventions
    attention = {f"blocks.0.attn.{kind}_{letter}" for kind in "Wb" for letter in "QKVO"}
    assert set(intervention.parts) == attention | {"blocks.0.ln1.w", "blocks.0.ln1.b", "pos_embed.W_pos"}
    with pytest.raises(
        UserError, match="from mws to doubled-for-tests, only attention, LN1 and positions move"
    ):
        transferred(other(), toy_run, "MLP")
    with pytest.raises(UserError, match="and embeddings where doubled-for-tests states a token map"):
        transferred(other(), toy_run, ["embed.W_E"])


def test_token_rows_move_where_the_task_states_a_map(toy_run, tmp_path):
    config = transferred(other("translated-for-tests", training={"steps": 1}), toy_run, "KQ")
    assert config.interventions[0].token_rows == ((1, 2), (7, 13))
    run = train(config, runs_dir=tmp_path, threads=1)
    there = toy_run.weights()
    moved = run.weights(0)
    assert torch.equal(moved["embed.W_E"][7], there["embed.W_E"][13])
    assert torch.equal(moved["embed.W_E"][1], there["embed.W_E"][2])
    assert torch.equal(moved["blocks.0.attn.W_Q"], there["blocks.0.attn.W_Q"])
    # Windows of another length have the same numbers, so there all rows move.
    same_numbers = transferred(toy(task={"k": 3}), toy_run, "KQ")
    assert same_numbers.interventions[0].token_rows == tuple((token, token) for token in range(14))


def test_refusals_name_both_shapes(toy_run):
    with pytest.raises(UserError, match=r"source: expected a run .* got str"):
        transferred(toy(), str(toy_run.path), "KQ")
    with pytest.raises(
        UserError, match=r"positions of shape \[13, 64\] in mws do not fit \[9, 64\] in doubled-for-tests"
    ):
        transferred(other(task={"name": "doubled-for-tests", "n": 4}), toy_run, "KQ")
    with pytest.raises(ConfigError, match=r"attn\.W_Q has shape \[1, 64, 64\] there and \[2, 64, 32\] here"):
        transferred(toy(model={"n_heads": 2}), toy_run, "KQ")
    with pytest.raises(ConfigError, match=r"pattern\.L0 \[1, 12, 12\].*of \[1, 8, 8\]"):
        transferred(other(task={"name": "doubled-for-tests", "n": 4}), toy_run, "pattern")
    with pytest.raises(ConfigError, match="the Ω of doubled-for-tests varies"):
        transferred(other(task={"name": "doubled-for-tests", "varies": True}), toy_run, "pattern")


PLATEAU = Plateau(True, 20, 60, 40.0, 2.0, 1.0, 0.9, "")


def table(losses):
    return pd.DataFrame({"step": np.arange(0, 10 * len(losses), 10), "loss": losses})


@pytest.mark.parametrize(
    ("losses", "left", "reached"),
    [
        ([3.0, 2.0, 2.0, 2.0, 2.0, 1.6, 1.4, 1.0], 1.0, 60),
        ([3.0, 1.4, 1.2, 1.0, 1.0, 1.0, 1.0, 1.0], 0.0, 10),
        ([3.0, 2.0, 1.9, 1.8, 1.3, 1.0, 1.0, 1.0], 0.5, 40),
        ([3.0, 1.0, 2.0, 2.0, 2.0, 2.0, 1.4, 1.0], 1.0, 60),  # a single spike is no fall
    ],
)
def test_what_is_left_is_counted_from_the_baselines_onset(losses, left, reached):
    found = plateau_left(table(losses), PLATEAU)
    assert (found.left, found.reached, found.why) == (left, reached, None)
    assert found.ratio == reached / PLATEAU.drop


def test_where_it_is_undefined_it_says_why():
    stuck = plateau_left(table([3.0, 2.0, 2.0, 2.0]), PLATEAU)
    assert (stuck.left, stuck.reached) == (None, None)
    assert plateau_left(table([]), PLATEAU).why == "nothing was measured yet"
    assert "not come half-way down within 30 steps" in stuck.why
    none = plateau_left(
        table([3.0, 1.0]), Plateau(False, None, None, None, None, 1.0, 0.1, "It falls steadily.")
    )
    assert none.left is None
    assert none.why == "the baseline has no plateau (It falls steadily.)"


def test_the_two_halves_of_kq_are_all_of_it(toy_run):
    def moved(parts):
        return set(transferred(toy(seed=1), toy_run, parts).interventions[0].tensors())

    assert moved("QK_only") == {f"blocks.0.attn.{kind}_{of}" for kind in "Wb" for of in "QK"}
    assert moved("QK_only") | moved("inputs") == moved("KQ")
    assert not moved("QK_only") & moved("inputs")
    assert moved("attention") | moved("inputs") == moved("KQOV")
