"""Times of device work, free of launch gaps, and what the device can do at best.

`device_microseconds` captures calls over several input sets into one CUDA graph and times its replays, so that
host overhead does not count and, with sets larger together than the L2 cache, the inputs come from memory.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Times:
    """Microseconds of one call: median, and the 20th and 80th percentiles."""

    median: float
    p20: float
    p80: float


def _summary(samples: Sequence[float]) -> Times:
    ordered = sorted(samples)
    last = len(ordered) - 1
    return Times(statistics.median(ordered), ordered[round(0.2 * last)], ordered[round(0.8 * last)])


def device_microseconds(
    calls: Sequence[Callable[[], object]], replays: int = 30, calls_a_replay: int = 20
) -> Times:
    """Device time of one call, when the calls take turns; each is run three times first, to compile."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            for call in calls:
                call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls_a_replay):
            calls[i % len(calls)]()
    graph.replay()
    torch.cuda.synchronize()
    samples = []
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1000 / calls_a_replay)
    return _summary(samples)


def wall_microseconds(call: Callable[[], object], rounds: int = 30, calls_a_round: int = 20) -> Times:
    """Host time of one call, the device drained after each round: what an ungraphed loop pays."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    samples = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(calls_a_round):
            call()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - begin) * 1e6 / calls_a_round)
    return _summary(samples)


def best_in_turns(
    theirs: Callable[[], object], ours: Callable[[], object], rounds: int
) -> tuple[float, float]:
    """Seconds of one call of each on the host, in turns, the best of `rounds`.

    For work of a millisecond on a busy machine: a median there tells how busy it was.
    """
    best = [float("inf"), float("inf")]
    for _ in range(rounds + 1):
        for i, call in enumerate((theirs, ours)):
            begin = time.perf_counter()
            call()
            best[i] = min(best[i], time.perf_counter() - begin)
    return best[0], best[1]


def peak_memory_bytes(call: Callable[[], object]) -> int:
    """Most memory allocated at once by a call, beyond what was there before."""
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def copy_bytes_per_second(megabytes: int = 1024) -> float:
    """Memory bandwidth of a large copy, bytes read and bytes written counted."""
    source = torch.randn(megabytes * 2**18, device="cuda")
    target = torch.empty_like(source)
    times = device_microseconds([lambda: target.copy_(source)], replays=10, calls_a_replay=5)
    return 2 * source.numel() * 4 / (times.median * 1e-6)


def matmul_flops_per_second(dtype: torch.dtype, tf32: bool = False, size: int = 8192) -> float:
    """Rate of a large matrix product on random data."""
    a, b = (torch.randn(size, size, device="cuda").to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        times = device_microseconds([lambda: torch.mm(a, b, out=out)], replays=5, calls_a_replay=2)
    finally:
        torch.set_float32_matmul_precision(before)
    return 2 * size**3 / (times.median * 1e-6)


def device_name(device: str) -> str:
    """The card, or the processor and the number of threads."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
