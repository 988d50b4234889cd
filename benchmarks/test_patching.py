"""A full hook × position patching sweep at paper size, against a loop of single patches by TransformerLens's hooks.

Two models of the paper's size with random weights, 64 sequences, every hook that fires at each of the 32 positions.
The loop is timed at every sixteenth position and counted sixteen times; both sides' numbers are compared where both
have them. Nothing is asserted about time: a busy machine is not a failure.
"""

from __future__ import annotations

import pytest
import torch
from side_by_side import TABLE, alternate

from mechplateau import RunConfig, build_model
from mechplateau.circuits import patch_sweep

SEQUENCES = 64
EVERY = 16


def test_a_sweep_at_paper_size(benchmark):
    config = RunConfig.for_task("mws")
    task = config.task
    recipient, donor = (
        build_model(
            config.model,
            vocab_size=task.vocab_size,
            n_ctx=task.n_ctx,
            generator=torch.Generator().manual_seed(seed),
        ).eval()
        for seed in (0, 1)
    )
    tokens, rows = task.sample(SEQUENCES, seed=0), list(task.output_rows)
    right = tokens[:, [row + 1 for row in rows], None]
    hooks = list(recipient.run_with_cache(tokens[:1, :-1])[1].cache_dict)

    @torch.no_grad()
    def loop() -> dict[tuple[str, int], float]:
        """Loss after patching each hook at some positions, one forward each."""
        _, given = donor.run_with_cache(tokens[:, :-1])
        losses = {}
        for name in hooks:
            for position in range(0, task.n_input, EVERY):

                def patch(activation, hook, name=name, position=position):
                    by_head = name.endswith(("hook_pattern", "hook_attn_scores"))
                    where = (slice(None), slice(None), position) if by_head else (slice(None), position)
                    activation = activation.clone()
                    activation[where] = given[name][where]
                    return activation

                logits = recipient.run_with_hooks(tokens[:, :-1], fwd_hooks=[(name, patch)])
                losses[name, position] = -logits[:, rows].log_softmax(-1).gather(-1, right).mean().item()
        return losses

    def sweep():
        return patch_sweep(recipient, donor, tokens, rows=rows, progress=None)

    table = sweep().table.set_index(["hook", "position"])
    assert len(table) == len(hooks) * task.n_input
    for key, loss in loop().items():
        assert table.loc[key, "loss"] == pytest.approx(loss, abs=1e-5), key
    reference, ours = alternate(loop, sweep, rounds=3)
    ratio = TABLE.faster(
        f"patching sweep, {len(hooks)} hooks × {task.n_input} positions",
        "loop of patches",
        (reference * EVERY, ours),
        5,
    )
    benchmark.extra_info["ratio"] = round(ratio, 2)
    benchmark.pedantic(sweep, rounds=1, iterations=1)
