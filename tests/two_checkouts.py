"""Do two checkouts train the same runs, to the bit?

    python tests/two_checkouts.py OTHER_CHECKOUT [THIS_CHECKOUT] [--steps 12]

Both checkouts train the same short runs on this machine, each in a process of its own: one of every task that both
know, and on moving window sums one of every optimizer, schedule and intervention. Compared are the runs' names, every
tensor that they kept (weights, maps, what is needed to resume) and the table, column by column. Nothing is stored:
processors differ in their bits, so both sides have to run here.

Prints one line a run, and ends with 1 where anything differs. It is a tool for refactorings, not a test of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TASKS: dict[str, dict[str, Any]] = {
    "mws": {},
    "prefix": {},
    "addition": {},
    "histogram": {},
    "permutation": {},
    "copy": {},
    "reverse": {},
    "repeat": {"blocks": 2},
    "concat_mws": {},
}
TEXT = "text"
"""The folder of the text, which lies beside the runs."""
OTHER_KINDS: dict[str, dict[str, Any]] = {
    "matrix_completion": {"fields": {"m": 3, "n": 4, "rank": 1}, "model": {"n_layers": 1, "n_heads": 2, "d_model": 16}},
    "matrix_completion_gpt": {"fields": {"m": 3, "n": 4, "rank": 1}, "model": {"n_layers": 1, "d_model": 16}},
    "in_context_regression": {
        "fields": {"d": 2, "n_pairs": 3}, "model": {"n_heads": 2, "d_model": 16}, "training": {"schedule": "one_cycle"}
    },
    "text": {
        "fields": {
            "folder": TEXT, "vocab_size": 262, "wide_vocab_size": 275, "n_ctx": 12, "repeated": 0.5, "segment": [2, 5]
        },
        "model": {"n_heads": 2, "d_model": 16},
    },
}  # fmt: skip
"""Tasks with models of their own, which earlier checkouts do not have."""
SMALL_MODEL = {"d_model": 32, "n_heads": 2, "n_layers": 2}
SMALL_TRAINING = {"batch_size": 32}


def configurations(steps: int, source: Path | None) -> dict[str, dict[str, Any]]:
    """What to train, by a name for the eye: settings of a RunConfig."""
    training = {**SMALL_TRAINING, "steps": steps}
    runs: dict[str, dict[str, Any]] = {}

    def add(name: str, task: str = "mws", **changes: Any) -> None:
        fields = changes.pop("fields", TASKS.get(task, {}))
        given = {"task": {"name": task, **fields}, "model": SMALL_MODEL, "seed": 3, **changes}
        given["training"] = {**training, **changes.get("training", {})}
        given["checkpoints"] = {"every": max(1, steps // 2)}
        runs[name] = given

    for task in TASKS:
        add(f"task {task}", task, evaluation={"locations": "all"})
    for task, own in OTHER_KINDS.items():
        add(f"task {task}", task, evaluation={"every": 2}, **own)
    add("task mws, samples as the authors'", evaluation={"samples": "paper"})
    add("task mws, softmax", model={**SMALL_MODEL, "attention": "softmax"})
    add("task mws, one head, width 48", model={"d_model": 48})
    for optimizer in ("adamw", "sgd", "muon"):
        add(f"optimizer {optimizer}", training={"optimizer": optimizer, "weight_decay": 0.01})
    for schedule in ("warmup", "warmup_cosine"):
        add(f"schedule {schedule}", training={"schedule": schedule, "warmup_steps": steps // 2})
    add("clipping", training={"clip_norm": 0.5})
    begin, end = steps // 3, 2 * steps // 3
    interventions: dict[str, dict[str, Any]] = {
        "attention_scale": {"kind": "attention_scale", "c": 2.5, "start": begin, "stop": end},
        "attention_scale, softmax": {"kind": "attention_scale", "c": 0.2},
        "freeze": {"kind": "freeze", "parts": ["KQ"], "start": 0, "stop": end},
        "progress_reward": {"kind": "progress_reward", "weight": 0.5, "ramp": begin, "start": 1},
    }
    if source is not None:
        checkpoint = f"checkpoints/step_{steps:06d}.safetensors"
        interventions["optimal_init"] = {
            "kind": "optimal_init", "source": str(source / checkpoint), "parts": ["MLP", "embeddings"], "stop": end
        }  # fmt: skip
        interventions["imposed_pattern"] = {
            "kind": "imposed_pattern", "source": str(source / checkpoint.replace("checkpoints", "maps"))
        }  # fmt: skip
    for name, intervention in interventions.items():
        model = {**SMALL_MODEL, "attention": "softmax"} if "softmax" in name else SMALL_MODEL
        add(f"intervention {name}", model=model, interventions=[intervention])
    return runs


def trained(steps: int, folder: Path) -> dict[str, dict[str, str]]:
    """Train everything with the mechplateau that Python finds; what came out, as hashes by run and part."""
    from mechplateau import RunConfig, train
    from mechplateau.tasks import task_names

    Path(TEXT).mkdir()
    words = " ".join(
        f"the cat{i % 7} sat on mat{i * i % 11}, and {i * 37 % 101} others did." for i in range(400)
    )
    Path(TEXT, "a.txt").write_text(words, encoding="utf-8")
    if missing := {*task_names()} - {*TASKS, *OTHER_KINDS}:
        sys.exit(f"no run of {', '.join(sorted(missing))}: add one to TASKS or OTHER_KINDS in {__file__}")
    found: dict[str, dict[str, str]] = {}
    first = configurations(steps, None)["task mws"]
    source = train(RunConfig.parse(first), runs_dir=folder, threads=1).path
    for name, given in configurations(steps, source).items():
        if given["task"]["name"] not in task_names():
            continue
        run = train(RunConfig.parse(given), runs_dir=folder, threads=1)
        found[name] = {"name": run.path.name, **_hashes(run.path, run.metrics)}
    return found


def _hashes(folder: Path, table: Any) -> dict[str, str]:
    from safetensors.torch import load_file

    parts = {}
    for path in sorted(folder.rglob("*.safetensors")):
        for name, tensor in sorted(load_file(path).items()):
            content = tensor.contiguous().numpy().tobytes()
            parts[f"{path.relative_to(folder)}: {name}"] = _digest(content)
    for column in table.columns:
        parts[f"table: {column}"] = _digest(table[column].to_numpy().tobytes())
    return parts


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _trained_by(checkout: Path, steps: int) -> dict[str, dict[str, str]]:
    paths = os.pathsep.join([str(checkout), str(checkout / "kernels")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        # The same relative folder on both sides: where a source lies must not tell them apart.
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", "--steps", str(steps)]
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{checkout}: its runs ended with {done.returncode}; see its messages above")
    answer = json.loads(done.stdout.splitlines()[-1])
    if not Path(answer["package"]).is_relative_to(checkout):
        sys.exit(
            f"{checkout}: Python took mechplateau from {answer['package']}; expected it from the checkout"
        )
    return answer["runs"]


def main() -> int:
    parser = argparse.ArgumentParser(description="Do two checkouts train the same runs, to the bit?")
    parser.add_argument("checkouts", nargs="*", type=Path, help="the other checkout, and this one (here)")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        import mechplateau

        package = str(Path(mechplateau.__file__).resolve())
        print(json.dumps({"package": package, "runs": trained(asked.steps, Path("runs"))}))
        return 0
    if not 1 <= len(asked.checkouts) <= 2:
        parser.error("give the folder of the other checkout, and of this one if it is not the script's own")
    here = Path(__file__).resolve().parents[1]
    one, two = [path.resolve() for path in [*asked.checkouts, here][:2]]
    before, after = _trained_by(one, asked.steps), _trained_by(two, asked.steps)
    different = 0
    for name in before | after:
        if name in before.keys() ^ after.keys():
            print(f"{name:45} not compared: one checkout does not have it")
            continue
        parts = before[name] | after[name]
        wrong = [part for part in parts if before[name].get(part) != after[name].get(part)]
        different += bool(wrong)
        alone = before[name].keys() ^ after[name].keys()
        wrong = [f"{part} (one checkout does not have it)" if part in alone else part for part in wrong]
        shown = "the same" if not wrong else f"{len(wrong)} of {len(parts)} differ: {', '.join(wrong[:4])}"
        print(f"{name:45} {shown}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
