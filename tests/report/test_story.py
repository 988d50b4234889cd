"""The story of a run: its title, a sentence, and events in order, all of them read off its signs."""

from __future__ import annotations

import mechplateau
from mechplateau.report import run_view
from mechplateau.views import render_report


def test_the_story_of_the_run_that_comes_with_the_package(tmp_path):
    run = mechplateau.example("mws", runs_dir=tmp_path)
    view = run_view(run, pictures=False)
    story, signs = view.story, run.signs
    assert story.title == "Moving window sum, n = 8, k = 2, p = 11, seed 0"
    assert f"from step {signs.plateau.onset} to step {signs.plateau.end}" in story.sentence
    assert story.sentence.endswith(f"The task is solved from step {signs.solved.step} on.")
    told = {event.text.split(" (")[0].split(";")[0]: event.step for event in story.events}
    assert told == {
        "the collapse peaks: hidden states are most parallel": signs.collapse.step,
        "outputs repeat most": signs.repetition.step,
        "the plateau begins": signs.plateau.onset,
        "output 0 right": signs.partial.step,
        "the loss drops": signs.plateau.drop,
        "solved": signs.solved.step,
    }
    steps = [event.step for event in story.events]
    assert steps == sorted(steps)
    assert story.collapse == signs.collapse.step
    assert story.signed
    assert story.floor == run.task.loss_floor
    assert run.metrics["loss"].min() > story.floor - 0.05
    page = render_report(view)
    assert f"<h1>{story.title}</h1>" in page
    assert f'<p class="run-name">{run.name}</p>' in page
    assert "What is Peak COS?" in page
