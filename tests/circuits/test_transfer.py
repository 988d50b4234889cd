"""Attention transfer: what moves between which tasks, and that it takes the plateau away as in the paper."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Literal

import numpy as np
import pandas as pd
import pytest
import torch

from mechplateau.circuits import transfer
from mechplateau.circuits.transfer import plateau_left, transfer_controls, transfer_matrix, transferred
from mechplateau.config import RunConfig
from mechplateau.errors import ConfigError, UserError
from mechplateau.runs import load_run
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


def test_the_matrix_trains_each_pair_once_and_keeps_refusals(toy_run, tmp_path):
    heard = []
    short = {"steps": 30, "batch_size": 16}
    targets = {
        "mws": toy(training=short),
        "short": other(
            task={"name": "doubled-for-tests", "n": 4}, training={**toy().training.data(), **short}
        ),
    }
    matrix = transfer_matrix(
        {"mws": toy_run},
        targets,
        "KQ",
        runs_dir=tmp_path,
        threads=1,
        on_run=lambda *names: heard.append(names),
    )
    assert heard == [("mws", None), ("mws", "mws"), ("short", None)]
    trained, refused = matrix.table.iloc[0], matrix.table.iloc[1]
    assert trained["run"] is not pd.NA
    assert "baseline has no plateau" in trained["why"]
    assert refused["run"] is pd.NA
    assert "positions of shape [13, 64]" in refused["why"]
    assert matrix.table["left"].isna().all()
    assert matrix.grid().shape == (1, 2)
    assert list(matrix.grid().columns) == ["mws", "short"]


def test_the_matrix_says_which_runs_were_solved(monkeypatch):
    """A baseline that ends in the middle of its drop has a plateau too."""
    metrics = table([2.0] * 5 + [1.0] * 5)
    solved = {"baseline": None, "moved": 7}

    def trained(config, **options):
        return SimpleNamespace(
            phases=SimpleNamespace(plateau=PLATEAU), metrics=metrics, path=config, solved_at=solved[config]
        )

    monkeypatch.setattr(transfer, "train", trained)
    monkeypatch.setattr(transfer, "transferred", lambda *given, **options: "moved")
    line = transfer_matrix({"source": None}, {"target": "baseline"}).table.iloc[0]
    assert line["solved_at"] == 7
    assert line["baseline_solved_at"] is pd.NA
    assert line["baseline_drop"] == PLATEAU.drop


def test_the_two_halves_of_kq_are_all_of_it(toy_run):
    def moved(parts):
        return set(transferred(toy(seed=1), toy_run, parts).interventions[0].tensors())

    assert moved("QK_only") == {f"blocks.0.attn.{kind}_{of}" for kind in "Wb" for of in "QK"}
    assert moved("QK_only") | moved("inputs") == moved("KQ")
    assert not moved("QK_only") & moved("inputs")
    assert moved("attention") | moved("inputs") == moved("KQOV")


def test_controls_are_trained_beside_the_transfer(toy_run, tmp_path):
    """Few steps: which runs there are, and what each moves; what comes out is a matter of longer ones."""
    heard = []
    table = transfer_controls(
        toy_run,
        toy(seed=3, training={"steps": 4}),
        seeds=2,
        other=toy_run,
        runs_dir=tmp_path,
        threads=1,
        on_run=lambda seed, what: heard.append((seed, what)),
    )
    whats = ["KQ", "QK_only", "inputs", "step 0", "other run"]
    assert list(table["what"]) == whats * 2
    assert list(table["seed"]) == [3] * 5 + [4] * 5
    assert heard == [(seed, what) for seed in (3, 4) for what in ("nothing", *whats)]
    untrained = load_run(table["run"][3])
    first, start = untrained.weights(0), toy_run.weights(0)
    assert torch.equal(first["blocks.0.attn.W_Q"], start["blocks.0.attn.W_Q"])
    assert not torch.equal(first["blocks.0.mlp.W_in"], start["blocks.0.mlp.W_in"])
    assert table["why"].str.contains("no plateau").all()
    assert table["left"].isna().all()
    with pytest.raises(UserError, match="seeds: expected at least 1, got 0"):
        transfer_controls(toy_run, toy(), seeds=0)
