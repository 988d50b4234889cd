"""Everything about the kernels that needs a GPU, in one command of under six minutes.

    python benchmarks/gpu_check.py --out DIR

Writes DIR/kernels.json and DIR/kernels.md: versions and the card's ceilings, exact-integer tests (also with
another ptxas, where there is one), the table of errors against float64, determinism, graph replay, memory
checks, times beside eager torch, torch.compile and flash-linear-attention, and the whole step, eager and as one
CUDA graph, on a plain-torch model and, where transformer-lens is installed, a HookedTransformer. Needs torch,
triton and numpy. Without a CUDA device it says so and measures nothing. Exit code 1:
something is wrong; the report says what.

transformer-lens and flash-linear-attention take part where they can be imported. To a machine that can fetch nothing
they travel in the folder `.gpu-packages` of the checkout (or `--packages`), which is looked in last:

    pip install --target .gpu-packages --no-deps flash-linear-attention fla-core einops
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# The package need not be installed: a checkout is enough.
sys.path[:0] = [str(HERE), str(HERE.parent / "kernels"), str(HERE.parent)]

import torch  # noqa: E402
from gpu_report import Report, Section  # noqa: E402

import mechplateau_kernels as mk  # noqa: E402

BUDGET_S = 345.0
WORKERS = 12
TITLES = [
    "Ceilings of the card", "Exact integers and errors against float64", "Cosines against float64",
    "Second derivatives", "Determinism", "Attention of any length against float64",
    "Graph replay and waiting", "Whole step: graph against eager", "Whole step: times",
    "Whole step: times on a HookedTransformer", "Times: cosines", "Times: attention",
    "Times: attention of any length",
    "Exact integers with another ptxas", "Memory checks",
]  # fmt: skip
RESERVE_S = 90.0  # of the budget, kept by the timings for the checks after them


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for kernels.json and kernels.md")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds the whole check may take")
    parser.add_argument(
        "--packages", type=Path, default=HERE.parent / ".gpu-packages",
        help="folder of packages that are not installed (default: .gpu-packages of the checkout)",
    )  # fmt: skip
    parser.add_argument("--tasks", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.tasks is not None:
        return _worker(json.loads(arguments.tasks), arguments.out)

    if arguments.packages.is_dir():
        # Last, so that what is installed on the machine wins.
        sys.path.append(str(arguments.packages.resolve()))
    report = Report(arguments.out, arguments.budget)
    report.environment = environment()
    if not torch.cuda.is_available():
        print("No CUDA device is visible: nothing was measured.")
        for title in TITLES:
            report.skip(title, "no CUDA device")
        return 0

    # Imported here: they import triton, which a machine without a GPU may not have.
    import gpu_correctness
    import gpu_long
    import gpu_step
    import gpu_timings

    ceilings: dict[str, float] = {}
    paper: dict[str, float] = {}
    work = dict(zip(TITLES, [
        lambda section: measure_ceilings(section, ceilings),
        lambda section: correctness(section, report),
        lambda section: gpu_correctness.cosine_tolerances(section, "cuda"),
        lambda section: gpu_correctness.second_derivatives(section, "cuda"),
        lambda section: gpu_correctness.determinism(section, "cuda"),
        lambda section: gpu_long.correctness(section, "cuda"),
        gpu_correctness.graphs_and_waiting,
        gpu_step.trajectory,
        lambda section: gpu_step.times(section, paper),
        lambda section: gpu_step.times_on_hooked(section, paper),
        lambda section: gpu_timings.cosine(section, ceilings, lambda: report.left() - RESERVE_S),
        lambda section: gpu_timings.attention(section, ceilings, lambda: report.left() - RESERVE_S),
        lambda section: gpu_long.times(section, ceilings, lambda: report.left() - RESERVE_S),
        lambda section: other_ptxas(section, report),
        lambda section: memory_checks(section, report),
    ], strict=True))  # fmt: skip
    for title in TITLES:
        report.run(title, work[title], needs_s=10.0)
    report.environment["self_checks"] = mk.backend_report()["self_checks"]
    report.write()
    print(f"Written to {report.folder}/kernels.json and kernels.md")
    return 1 if report.failed() else 0


def environment() -> dict[str, Any]:
    """Versions, card and commit: what a number is worth nothing without."""
    facts: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "cuda (torch)": torch.version.cuda,
        "commit": _output("git", "-C", str(HERE), "rev-parse", "--short", "HEAD"),
        "changed since": bool(
            _output("git", "-C", str(HERE), "status", "--porcelain", "--untracked-files=no")
        ),
    }
    for peer in ("transformer-lens", "flash-linear-attention"):
        try:
            facts[peer] = importlib.metadata.version(peer)
        except importlib.metadata.PackageNotFoundError:
            facts[peer] = None
    try:
        import triton

        ptxas = triton.knobs.nvidia.ptxas
        facts |= {"triton": triton.__version__, "ptxas": f"{ptxas.version} ({ptxas.path})"}
    except ImportError:
        facts["triton"] = None
    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        facts |= {
            "card": card.name, "compute capability": f"{card.major}.{card.minor}",
            "multiprocessors": card.multi_processor_count, "memory GiB": round(card.total_memory / 2**30, 1),
            "L2 MiB": round(getattr(card, "L2_cache_size", 0) / 2**20, 1),
            "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        }  # fmt: skip
    else:
        facts["card"] = None
    return facts


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def measure_ceilings(section: Section, ceilings: dict[str, float]) -> None:
    from kernel_timing import copy_bytes_per_second, matmul_flops_per_second

    ceilings["copy"] = copy_bytes_per_second()
    ceilings["bf16"] = matmul_flops_per_second(torch.bfloat16)
    ceilings["tf32"] = matmul_flops_per_second(torch.float32, tf32=True)
    ceilings["fp32"] = matmul_flops_per_second(torch.float32)
    section.rows += [
        {"ceiling": "copy, bytes read and written", "value": ceilings["copy"] / 1e12, "unit": "TB/s"},
        *(
            {"ceiling": f"8192³ product, {kind}", "value": ceilings[kind] / 1e12, "unit": "TFLOP/s"}
            for kind in ("bf16", "tf32", "fp32")
        ),
    ]


def correctness(section: Section, report: Report) -> None:
    """Compiles and tests everything, several processes at a time: compiling is what takes the time."""
    import gpu_correctness as c

    exact = [(1, 16, 16), (16, 64, 64), (17, 40, 24), (32, 256, 256), (33, 48, 48), (64, 256, 256)]
    tasks = [["exact", shape, mode] for shape in exact for mode in range(len(c.MODES))]
    tasks += [["tolerance", shape, mode] for shape in c.SHAPES for mode in range(len(c.MODES))]
    deadline = time.monotonic() + min(120.0, report.left() - 60)
    section.rows += _in_processes([tasks[i::WORKERS] for i in range(WORKERS)], section, deadline, {})


def other_ptxas(section: Section, report: Report) -> None:
    """The exact tests with the CUDA toolkit's assembler instead of the one that came with triton."""
    toolkit = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    path = shutil.which("ptxas") or shutil.which(f"{toolkit}/bin/ptxas")
    if path is None:
        section.notes.append("No other ptxas was found.")
        return
    version = (_output(path, "--version") or "?").splitlines()[-1]
    section.notes.append(f"{path}: {version}")
    tasks = [["exact", shape, mode] for shape in [(32, 256, 256), (64, 256, 256)] for mode in (0, 4)]
    with tempfile.TemporaryDirectory() as cache:
        variables = {"TRITON_PTXAS_PATH": path, "TRITON_CACHE_DIR": cache}
        deadline = time.monotonic() + min(40.0, report.left() - 10)
        section.rows += _in_processes([[task] for task in tasks], section, deadline, variables)


def _in_processes(
    shares: Sequence[Sequence[Any]], section: Section, deadline: float, variables: dict[str, str]
) -> list[dict[str, Any]]:
    """Rows of all shares; a share that breaks or runs late is named in the notes and is a failure."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for i, tasks in enumerate(shares):
            out, log = Path(folder) / f"{i}.json", Path(folder) / f"{i}.log"
            command = [
                sys.executable,
                str(Path(__file__).resolve()),
                "--tasks",
                json.dumps(tasks),
                "--out",
                str(out),
            ]
            with log.open("w") as stream:
                process = subprocess.Popen(
                    command, stdout=stream, stderr=subprocess.STDOUT, env=os.environ | variables
                )
            running.append((tasks, process, out, log))
        for tasks, process, out, log in running:
            try:
                code: int | str = process.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                code = "out of time"
            done = json.loads(out.read_text()) if out.exists() else []
            rows += done
            if code != 0:
                end = " ".join(log.read_text().split())[-600:]
                section.notes.append(f"Worker ended with {code} after {len(done)} rows of {tasks}: {end}")
                rows.append({"op": "worker", "ok": False})
    return rows


def _worker(tasks: Sequence[Any], out: Path) -> int:
    """Some of the correctness tasks; rows are written after each, so that a crash loses only its own."""
    import gpu_correctness as c

    rows: list[dict[str, Any]] = []
    for kind, shape, mode in tasks:
        section = Section("")
        if kind == "exact":
            c.exact_integers(section, "cuda", [tuple(shape)], [c.MODES[mode]])
        else:
            c.tolerances(section, "cuda", [tuple(shape)], [c.MODES[mode]])
        rows += [{"test": kind, **row} for row in section.rows]
        out.write_text(json.dumps(rows))
        torch.cuda.empty_cache()
    return 0


def memory_checks(section: Section, report: Report) -> None:
    """compute-sanitizer over small shapes with tails in every dimension."""
    tool = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if tool is None:
        section.notes.append("compute-sanitizer was not found.")
        return
    tasks = json.dumps([["exact", (1, 16, 16), 0], ["exact", (33, 48, 48), 0]])
    for name, seconds in (("memcheck", 50.0), ("racecheck", 25.0)):
        with tempfile.TemporaryDirectory() as folder:
            command = [
                tool,
                "--tool",
                name,
                "--error-exitcode",
                "9",
                # Torch asks the driver about things and expects some of the answers to be errors.
                *(["--report-api-errors", "no"] if name == "memcheck" else []),
                sys.executable,
                str(Path(__file__).resolve()),
            ]
            command += ["--tasks", tasks, "--out", f"{folder}/rows.json"]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=max(5.0, min(seconds, report.left() - 5)),
                    env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                section.notes.append(f"{name}: not finished in the time there was")
                continue
            summary = [line.strip("= \n") for line in done.stdout.splitlines() if "SUMMARY" in line]
            refused = not summary or "not supported" in done.stdout
            if refused:
                section.notes.append(f"{name} refused to work here: {(done.stdout + done.stderr)[-400:]}")
            else:
                section.rows.append({"tool": name, "summary": summary[-1], "ok": done.returncode == 0})


if __name__ == "__main__":
    sys.exit(main())
