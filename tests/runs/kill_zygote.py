"""Runs in a process of its own: warm once, then forks a child for every run that is killed or resumed.

Usage: kill_zygote.py FOLDER. Kills one run at each of many moments with SIGKILL, resumes it, and compares what
comes out with an uninterrupted run, to the byte. Prints one line of JSON: what was killed where.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

from mechplateau import files
from mechplateau.config import RunConfig
from mechplateau.models.transformer import build_model
from mechplateau.runs import checkpoints, load_run
from mechplateau.runs.layout import Layout
from mechplateau.training import train

torch.set_num_threads(1)  # a pool of threads does not survive a fork

STEPS, EVERY = 40, 10
CONFIG = RunConfig.for_task(
    "mws",
    task={"n": 3, "k": 2, "p": 5, "max_num": 4},
    model={"d_model": 8},
    training={"steps": STEPS, "batch_size": 4, "lr": 1e-2},
    evaluation={"every": 5, "samples": 4},
    checkpoints={"every": EVERY},
)
RANDOM_KILLS, SAVE_KILLS = 14, 8


class Announce:
    """Tells the parent of every step, and keeps the optimizer's last state, which a finished run deletes."""

    def __init__(self, pipe, keep: Path):
        self.pipe, self.keep = pipe, keep

    def on_step(self, step, row):
        os.write(self.pipe, f"{step}\n".encode())
        if step == STEPS:
            state = next(self.keep.parent.glob(f"runs/*/resume/step_{STEPS:06d}.safetensors"))
            shutil.copy(state, self.keep)


def hang_in_save(pipe, number: int, where: str) -> None:
    """In the `number`-th atomic write, stop at a point inside it, say so, and wait to be killed."""
    count = 0
    sync, replace, save = files.sync_to_disk, os.replace, checkpoints.save_file

    def stop():
        os.write(pipe, b"saving\n")
        time.sleep(60)

    def counted(point, call, *arguments, **named):
        nonlocal count
        if point == where:
            count += 1
            if count == number:
                if point == "half":
                    call(*arguments, **named)
                    path = Path(arguments[1])
                    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
                stop()
        return call(*arguments, **named)

    files.sync_to_disk = lambda path: counted("sync", sync, path)
    os.replace = lambda one, other: counted("replace", replace, one, other)
    checkpoints.save_file = lambda *a, **k: counted("half", save, *a, **k)


def child(folder: Path, hang: tuple[int, str] | None) -> tuple[int, int]:
    """Fork a training process; returns its pid and the pipe it announces steps on."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    os.close(reading)
    code = 1
    try:
        if hang is not None:
            hang_in_save(writing, *hang)
        train(
            CONFIG, runs_dir=folder / "runs", listeners=[Announce(writing, folder / "optimizer.safetensors")]
        )
        code = 0
    finally:
        os._exit(code)


def finish(folder: Path) -> None:
    pid, pipe = child(folder, None)
    while os.read(pipe, 4096):
        pass
    os.close(pipe)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, f"the resumed run in {folder} failed"


def kill_when(folder: Path, wanted: str, delay: float, hang: tuple[int, str] | None) -> None:
    pid, pipe = child(folder, hang)
    seen = b""
    while wanted.encode() not in seen.split(b"\n")[:-1]:
        data = os.read(pipe, 4096)
        assert data, f"the run ended before {wanted}"
        seen += data
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(pipe)


def digest(folder: Path) -> dict[str, str]:
    """Hashes of everything that must be equal; the table's contents, since Parquet's bytes need not be."""
    run = load_run(folder / "runs" / CONFIG.run_name)
    assert run.status == "finished"
    hashed = {
        str(path.relative_to(run.path)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.path.rglob("*.safetensors"))
    }
    hashed["optimizer"] = hashlib.sha256((folder / "optimizer.safetensors").read_bytes()).hexdigest()
    hashed["metrics"] = run.metrics.to_json(double_precision=15)
    return hashed


def check_survivors(folder: Path) -> int:
    """After a kill: every listed checkpoint is readable, and the newest state is at most one interval old."""
    root = folder / "runs" / CONFIG.run_name
    layout = Layout(root)
    for step in layout.checkpoint_steps():
        checkpoints.read_tensors(layout.checkpoint(step))
    for step in layout.resume_steps():
        checkpoints.read_tensors(layout.resume(step))
    return max(layout.resume_steps(), default=-1)


def main() -> None:
    root = Path(sys.argv[1])
    build_model(CONFIG.model, vocab_size=5, n_ctx=7)  # warm
    finish(root / "whole")
    expected = digest(root / "whole")
    chance = random.Random(11)
    kills = []
    for number in range(RANDOM_KILLS + SAVE_KILLS):
        folder = root / f"kill{number}"
        if number < RANDOM_KILLS:
            step = chance.randrange(0, STEPS - 1)
            kill_when(folder, str(step), chance.random() * 0.02, None)
            kind = f"after step {step}"
            newest = check_survivors(folder)
            assert newest >= step - EVERY, f"killed after step {step}, newest state is of step {newest}"
        else:
            where = ("sync", "replace", "half")[number % 3]
            # Atomic writes: two JSON files first, then three files a checkpoint, two of them tensors.
            nth = chance.randrange(2, 10 if where == "half" else 16)
            kill_when(folder, "saving", 0.0, (nth, where))
            kind = f"in save {nth}, at {where}"
            check_survivors(folder)
        if number % 4 == 0:  # killed twice
            kill_when(folder, str(STEPS - 3), 0.0, None)
        finish(folder)
        actual = digest(folder)
        different = [name for name in {*expected, *actual} if expected.get(name) != actual.get(name)]
        assert not different, f"killed {kind}: {different} differ from the uninterrupted run"
        leftovers = list(folder.rglob(".tmp*"))
        assert not leftovers, f"killed {kind}: {leftovers} left behind"
        kills.append(kind)
        shutil.rmtree(folder)
    print(json.dumps(kills))


if __name__ == "__main__":
    main()
