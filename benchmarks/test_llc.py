"""Chains for learning coefficients: against devinterp where it is installed, and side by side against one by one.

Both sides see a data set of the same rows, with the same settings: 4 chains of 20 draws, batch 256 at the paper's
width, and no second set at 2nβ, which devinterp does not sample. Ours also takes each batch's loss at w*, once for all
chains. Both sides work on one thread, in processor time.
"""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from collections.abc import Iterator

import pytest
import torch
from side_by_side import TABLE, alternate

from mechplateau.config import RunConfig
from mechplateau.development import Rows, Sampling, llc, sample
from mechplateau.models import build_model

CHAINS, DRAWS = 4, 20
SETTINGS = {"step_size": 1e-5, "n_beta": 100.0, "localization": 100.0}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def setup(width, batch_size, n_batches=4):
    """A model of the moving-window-sum task, its loss by entry, and a data set."""
    config = RunConfig.for_task("mws")
    task = config.task
    torch.manual_seed(0)
    sizes = config.model.model_copy(update={"d_model": width})
    model = build_model(sizes, vocab_size=task.vocab_size, n_ctx=task.n_ctx)
    tokens = task.sample(n_batches * batch_size, torch.Generator().manual_seed(0))
    return model, Rows(tokens, batch_size=batch_size)


def by_entry(model, tokens):
    """`[batch, entry]`, cross-entropy of the next token."""
    logits = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")


def ours(model, data):
    return llc(
        model, by_entry, data, **SETTINGS, chains=CHAINS, draws=DRAWS, elasticity=False, step_check=False
    )


def theirs(model, data):
    from datasets import Dataset
    from devinterp.slt.sampling import sample as devinterp_sample

    rows = Dataset.from_dict({"input_ids": data.rows.tolist()}).with_format("torch")

    def run():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            devinterp_sample(
                model,
                rows,
                {},
                lr=SETTINGS["step_size"],
                n_beta=SETTINGS["n_beta"],
                localization=SETTINGS["localization"],
                num_chains=CHAINS,
                num_draws=DRAWS,
                batch_size=data.batch_size,
                num_init_loss_batches=data.n // data.batch_size,
                loss_fn=by_entry,
                device="cpu",
            )

    return run


@pytest.mark.parametrize(("name", "width", "batch_size"), [("paper width", 256, 256), ("small", 32, 64)])
def test_chains_beside_devinterp(name, width, batch_size):
    pytest.importorskip("devinterp")
    model, data = setup(width, batch_size)
    times = alternate(
        theirs(model, data), lambda: ours(model, data), rounds=1 if width > 64 else 3, clock=time.process_time
    )
    TABLE.costs(f"chains, {name}, {CHAINS} × {DRAWS}", "devinterp", times, 1.1)


def test_chains_side_by_side():
    model, data = setup(32, 64)
    sampling = Sampling(**SETTINGS, chains=CHAINS, draws=DRAWS)

    def run(**how):
        return lambda: sample(model, by_entry, data, sampling, **how)

    one_by_one = run(stacked=False, chains_at_once=1)
    for name, how in (("side by side", {"stacked": False}), ("stacked", {"stacked": True})):
        times = alternate(one_by_one, run(**how), clock=time.process_time)
        TABLE.costs(f"chains {name}, small", "one after the other", times)


_PEAK = """
import resource, sys, torch
sys.path.insert(0, sys.argv[2])
from test_llc import SETTINGS, by_entry, setup
from mechplateau.development import Sampling, sample
torch.set_num_threads(1)
model, data = setup(64, 64)
sample(model, by_entry, data, Sampling(**SETTINGS, chains=4, draws=int(sys.argv[1])))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def test_memory_over_draws(request):
    """The peak of a fresh process, with few draws and with many."""
    peaks = {}
    for draws in (10, 200):
        command = [sys.executable, "-c", _PEAK, str(draws), str(request.path.parent)]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[draws] = float(found.stdout.split()[-1])
    few, many = peaks.values()
    TABLE.notes.append(
        f"Peak memory of a process with 4 chains at width 64: {few:.0f} MB with 10 draws, {many:.0f} MB with 200."
    )
