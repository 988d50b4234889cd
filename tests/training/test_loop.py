"""The loop: reproducible to the bit, blind to being measured, and exact about what intervenes when."""

from __future__ import annotations

import math
import signal

import pandas as pd
import pytest
import torch

from mechplateau.errors import RunError, UserError
from mechplateau.interventions import AttentionScale, Handle, Intervention, register_intervention
from mechplateau.interventions.attention_scale import scaled_entries
from mechplateau.report.overview import overview
from mechplateau.report.story import story_of
from mechplateau.runs import RunWriter, load_run, writer
from mechplateau.training import RunInterrupted, loop, train
from mechplateau.training.seeding import generator_for

from .conftest import tiny


def same_weights(one, other, which="after"):
    first, second = one.weights(which), other.weights(which)
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_is_bitwise_reproducible(tmp_path, config):
    one = train(config, runs_dir=tmp_path / "a")
    other = train(config, runs_dir=tmp_path / "b")
    for step in one.steps:
        assert same_weights(one, other, step)
    pd.testing.assert_frame_equal(one.metrics, other.metrics, check_exact=True)
    assert (one.path / "checkpoints/step_000012.safetensors").read_bytes() == (
        other.path / "checkpoints/step_000012.safetensors"
    ).read_bytes()


def test_a_seed_changes_weights_and_data(tmp_path):
    one, other = train(tiny(), runs_dir=tmp_path), train(tiny(seed=1), runs_dir=tmp_path)
    assert not same_weights(one, other, 0)
    assert one.metrics["loss"].iloc[-1] != other.metrics["loss"].iloc[-1]


def test_measuring_never_changes_training(tmp_path):
    everything = tiny(evaluation={"every": 1, "locations": "all"}, checkpoints={"every": 1})
    paper = tiny(evaluation={"every": 3, "samples": "paper"})
    nothing = tiny(evaluation={"every": 1000}, checkpoints={"every": 1000})
    state = torch.get_rng_state()
    runs = [train(config, runs_dir=tmp_path) for config in (everything, paper, nothing)]
    assert torch.equal(torch.get_rng_state(), state)
    assert same_weights(runs[0], runs[1])
    assert same_weights(runs[0], runs[2])
    assert len(runs[2].metrics) == 2


def test_training_lowers_the_loss_on_an_easy_task(tmp_path):
    run = train(tiny(training={"steps": 150, "lr": 2e-2}), runs_dir=tmp_path)
    assert run.metrics["loss"].iloc[-1] < run.metrics["loss"].iloc[0] - 0.2


def test_a_run_that_diverges_says_so_once(tmp_path, caplog):
    run = train(tiny(training={"lr": 1e30}), runs_dir=tmp_path)
    assert run.metrics["loss"].isna().sum() > 1
    told = [record.getMessage() for record in caplog.records if "diverged" in record.getMessage()]
    first = int(run.metrics.loc[run.metrics["loss"].isna(), "step"].iloc[0])
    assert told == [f"{run.path}: the loss at step {first} is not a finite number: training has diverged"]
    assert run.signs.diverged_at == first
    assert story_of(run).sentence.endswith(
        f"From step {first} on it is not a finite number: training has diverged."
    )
    assert overview([run])["state"].tolist() == ["finished, diverged"]


def test_the_first_loss_is_that_of_a_uniform_guess(tmp_path, config):
    run = train(config, runs_dir=tmp_path)
    assert run.metrics["loss"].iloc[0] == pytest.approx(math.log(config.task.vocab_size), abs=0.02)


def test_one_update_is_adam_on_the_next_token_loss(tmp_path):
    """Against an update written out by hand: first step of Adam moves each weight by lr · g / (|g| + eps)."""
    config = tiny(training={"steps": 1, "lr": 1e-2})
    run = train(config, runs_dir=tmp_path)
    model = run.model(0)
    generator = generator_for(0, "train", 1, torch.device("cpu"))
    tokens = config.task.sample(config.training.batch_size, generator)
    log_probabilities = model(tokens[:, :-1]).log_softmax(-1)
    loss = -log_probabilities.gather(-1, tokens[:, 1:, None]).mean()
    loss.backward()
    after = run.weights(1)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            g = parameter.grad
            expected = parameter.detach() - 1e-2 * g / (g.abs() + 1e-8)
            torch.testing.assert_close(after[name], expected, rtol=1e-3, atol=1e-6)


def test_the_fixed_unembedding_bias_stays_zero(tmp_path, config):
    assert (train(config, runs_dir=tmp_path).weights()["unembed.b_U"] == 0).all()


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_every_optimizer_trains_and_resumes(tmp_path, optimizer):
    settings = {"optimizer": optimizer, "lr": 0.05 if optimizer == "sgd" else 1e-2, "weight_decay": 0.1}
    if optimizer == "sgd":
        settings["momentum"] = 0.9
    config = tiny(training=settings)
    whole = train(config, runs_dir=tmp_path / "whole")
    _stopped_at(config, tmp_path / "cut", 7)
    resumed = train(config, runs_dir=tmp_path / "cut")
    assert same_weights(whole, resumed)
    pd.testing.assert_frame_equal(whole.metrics, resumed.metrics, check_exact=True)


def _stopped_at(config, runs_dir, step):
    """Train up to a step, then stop as Ctrl-C does."""

    class Stop:
        def on_step(self, reached, row):
            if reached == step:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(RunInterrupted, match=f"stopped at step {step}"):
        train(config, runs_dir=runs_dir, listeners=[Stop()])
    assert load_run(runs_dir / config.run_name).status == "interrupted"


@pytest.mark.parametrize("decay", ["linear", "all"])
def test_adamw_decays_linear_weights_only_or_everything(tmp_path, decay):
    """With a gradient of zero everywhere only decay moves weights; here: compare with and without decay."""
    settings = {"steps": 1, "optimizer": "adamw", "decay": decay}
    plain = train(tiny(training=settings), runs_dir=tmp_path)
    decayed = train(tiny(training={**settings, "weight_decay": 0.5}), runs_dir=tmp_path)
    before, one, other = plain.weights(0), plain.weights(1), decayed.weights(1)
    for name in one:
        linear = ".W_" in name and not name.startswith(("embed", "pos_embed"))
        frozen = name == "unembed.b_U"
        moves = linear or (decay == "all" and not frozen)
        expected = one[name] - (1e-2 * 0.5 * before[name] if moves else 0)
        torch.testing.assert_close(other[name], expected, rtol=1e-5, atol=1e-7)


def test_a_finished_run_is_returned_as_it_is(tmp_path, config):
    run = train(config, runs_dir=tmp_path)
    times = {path: path.stat().st_mtime_ns for path in run.path.rglob("*.safetensors")}
    train(config, runs_dir=tmp_path)
    # Also where there is not what training it would ask for.
    again = train(config, runs_dir=tmp_path, device="cuda:99", cuda_graph=True)
    assert again.path == run.path
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*.safetensors")} == times


def test_a_clipped_gradient_has_the_asked_norm(tmp_path):
    config = tiny(training={"clip_norm": 1e-3, "optimizer": "sgd", "lr": 1.0, "steps": 1})
    run = train(config, runs_dir=tmp_path)
    before, after = run.weights(0), run.weights(1)
    norms = torch.stack([(after[name] - before[name]).norm() for name in before])
    assert norms.norm() == pytest.approx(1e-3, rel=1e-3)


@register_intervention
class Recorder(Intervention):
    """Notes when it is attached and removed."""

    kind: str = "test_recorder"

    def check(self, task, model):
        pass

    def attach(self, model, task):
        EVENTS.append(("on", self.start))
        return Handle(lambda: EVENTS.append(("off", self.start)))


EVENTS: list = []


def test_interventions_come_and_go_at_their_steps(tmp_path):
    EVENTS.clear()
    seen = {}

    class Watch:
        def on_step(self, step, row):
            seen[step] = list(EVENTS)

    interventions = [{"kind": "test_recorder", "start": 3, "stop": 5}, {"kind": "test_recorder", "start": 5}]
    train(tiny(training={"steps": 8}, interventions=interventions), runs_dir=tmp_path, listeners=[Watch()])
    assert seen[2] == []
    assert seen[3] == seen[4] == [("on", 3)]
    assert seen[5] == [("on", 3), ("off", 3), ("on", 5)]
    assert EVENTS == [("on", 3), ("off", 3), ("on", 5), ("off", 5)]


def test_what_begins_at_a_resumed_step_begins_once(tmp_path):
    """An intervention's beginning was saved with the step it belongs to."""
    config = tiny(interventions=[{"kind": "test_shift", "start": 5}])
    whole = train(config, runs_dir=tmp_path / "whole")
    _stopped_at(config, tmp_path / "cut", 5)
    assert same_weights(whole, train(config, runs_dir=tmp_path / "cut"))


@register_intervention
class Shift(Intervention):
    """Adds one to the embeddings where it begins."""

    kind: str = "test_shift"

    def check(self, task, model):
        pass

    def begin(self, model, task):
        with torch.no_grad():
            model.embed.W_E.add_(1)

    def attach(self, model, task):
        return Handle(lambda: None)


def test_a_factor_of_one_is_bitwise_the_baseline(tmp_path, config):
    baseline = train(config, runs_dir=tmp_path)
    scaled = train(tiny(interventions=[{"kind": "attention_scale", "c": 1.0}]), runs_dir=tmp_path)
    assert same_weights(baseline, scaled)
    pd.testing.assert_frame_equal(baseline.metrics, scaled.metrics, check_exact=True)


def test_a_factor_from_a_step_on_changes_nothing_before_it(tmp_path, config):
    baseline = train(config, runs_dir=tmp_path)
    scaled = train(tiny(interventions=[{"kind": "attention_scale", "c": 10, "start": 6}]), runs_dir=tmp_path)
    assert same_weights(baseline, scaled, 4)
    pd.testing.assert_frame_equal(baseline.metrics[:6], scaled.metrics[:6], check_exact=True)
    # From step 6 on, the measured attention is the scaled one (weights are still equal at step 6).
    assert scaled.metrics["apm_window"][6] > baseline.metrics["apm_window"][6]
    assert not same_weights(baseline, scaled, 8)


def test_the_factor_leaves_the_partial_solution_alone():
    config = tiny()
    (mask,) = scaled_entries(config.task, 1, None).values()
    expected = torch.zeros(9, 9, dtype=torch.bool)
    for r in (1, 2, 3):  # output 0 is a copy
        expected[4 + r, [r - 1, r]] = True
    assert torch.equal(mask, expected)
    assert AttentionScale(c=2.0).active(0)


def test_unknown_devices_are_one_line(tmp_path, config):
    for device in ("tpu", "mps", "cuda:99"):
        with pytest.raises(UserError, match=r"^device: "):
            train(config, runs_dir=tmp_path, device=device)
    assert not (tmp_path / config.run_name).exists()


def test_threads_are_restored_and_recorded(tmp_path):
    before = torch.get_num_threads()
    run = train(tiny(training={"steps": 1}), runs_dir=tmp_path, threads=2)
    assert torch.get_num_threads() == before
    assert run.sessions[0]["threads"] == 2
    for threads in (0, -1, 10**11):
        with pytest.raises(UserError, match=f"threads: expected 1 to 1024, got {threads}"):
            train(tiny(seed=9), runs_dir=tmp_path, threads=threads)
    assert not (tmp_path / tiny(seed=9).run_name).exists()


@pytest.mark.parametrize("seconds", [0.0, 3600.0])
def test_a_crash_costs_minutes_however_far_apart_checkpoints_are(tmp_path, monkeypatch, seconds):
    """Without checkpoints on the way, a run goes on from what it saved by the clock."""
    config = tiny(checkpoints={"every": 1000})
    whole = train(config, runs_dir=tmp_path / "whole")
    monkeypatch.setattr(loop, "SAVED_EVERY", seconds)

    class Crash:
        def on_step(self, step, row):
            if step == 7:
                raise RuntimeError("the power fails")

    class Steps(list):
        def on_step(self, step, row):
            self.append(step)

    with pytest.raises(RuntimeError, match="power"):
        train(config, runs_dir=tmp_path, listeners=[Crash()])
    steps = Steps()
    again = train(config, runs_dir=tmp_path, listeners=[steps])
    assert steps[0] == (8 if seconds == 0 else 1)
    assert again.steps == whole.steps == (0, 12)
    assert same_weights(whole, again)
    pd.testing.assert_frame_equal(whole.metrics, again.metrics, check_exact=True)


def test_the_clock_starts_anew_at_every_save(tmp_path, monkeypatch):
    """With 50 s a step and 120 s between saves, every third step is saved."""
    now, saved = [0.0], []
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    save = RunWriter.save

    def noted(self, step, *rest):
        saved.append(step)
        save(self, step, *rest)

    monkeypatch.setattr(RunWriter, "save", noted)

    class Slow:
        def on_step(self, step, row):
            now[0] += 50

    train(tiny(checkpoints={"every": 1000}), runs_dir=tmp_path, listeners=[Slow()])
    assert saved == [0, 3, 6, 9, 12]


def test_a_second_process_is_refused(tmp_path, config, monkeypatch):
    monkeypatch.setattr(writer, "LOCK_PATIENCE", 0.3)
    with RunWriter(config, tmp_path), pytest.raises(RunError, match="another process is working on this run"):
        train(config, runs_dir=tmp_path)


def test_a_resumed_run_uses_the_threads_it_began_with(tmp_path, config):
    seen = []

    class Stop:
        def on_step(self, reached, row):
            seen.append(torch.get_num_threads())
            if reached == 5 and len(seen) == 6:
                signal.raise_signal(signal.SIGTERM)

    with pytest.raises(RunInterrupted):
        train(config, runs_dir=tmp_path, threads=2, listeners=[Stop()])
    train(config, runs_dir=tmp_path, listeners=[Stop()])
    assert set(seen) == {2}


def test_several_sigterms_are_one_wish(tmp_path, config):
    """The end of a parent with several threads can send more than one; the save must not be cut short."""

    class Stop:
        def on_step(self, reached, row):
            if reached == 5:
                for _ in range(3):
                    signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RunInterrupted):
        train(config, runs_dir=tmp_path, listeners=[Stop()])
    assert load_run(tmp_path / config.run_name).status == "interrupted"
    assert signal.getsignal(signal.SIGTERM) is before


def test_bfloat16_is_offered_only_where_it_gains(tmp_path, monkeypatch):
    config = tiny(training={"precision": "bfloat16"})
    monkeypatch.setattr(loop, "bfloat16_gains", lambda device: False)
    with pytest.raises(UserError, match=r"training\.precision: bfloat16 is only slower here"):
        train(config, runs_dir=tmp_path)
    monkeypatch.setattr(loop, "bfloat16_gains", lambda device: True)
    run, full = train(config, runs_dir=tmp_path), train(tiny(), runs_dir=tmp_path)
    assert all(tensor.dtype == torch.float32 for tensor in run.weights().values())
    assert not same_weights(run, full)
    difference = (run.metrics["loss"] - full.metrics["loss"]).abs().max()
    assert difference < 0.05


def test_measuring_where_checkpoints_are_kept_changes_nothing_else(tmp_path):
    config = tiny(evaluation={"at": "checkpoints"}, checkpoints={"every": 5, "log_spaced": 3})

    class Stop(Exception):
        pass

    class Stopper:
        def on_step(self, step, row):
            if step == 6:
                raise Stop

    with pytest.raises(Stop):
        train(config, runs_dir=tmp_path, listeners=[Stopper()])
    run = train(config, runs_dir=tmp_path)
    whole = train(tiny(checkpoints={"every": 5, "log_spaced": 3}), runs_dir=tmp_path)
    assert run.metrics["step"].tolist() == list(run.steps) == [0, 1, 3, 5, 10, 12]
    there = whole.metrics[whole.metrics["step"].isin(run.steps)].reset_index(drop=True)
    pd.testing.assert_frame_equal(run.metrics, there, check_exact=True)
    assert same_weights(run, whole)
