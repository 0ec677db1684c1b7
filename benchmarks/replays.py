"""Time of a function inside a CUDA graph, where only kernels count."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def microseconds(run: Callable[[], object], device: torch.device, repeat: int) -> tuple[float, float]:
    """Time per run inside a graph of many runs, median of several replays, and the seconds of the first call.

    Without a GPU there is a single run, which is the first.
    """
    if device.type != "cuda":
        start = time.perf_counter()
        run()
        first = time.perf_counter() - start
        return 1e6 * first, first
    torch.cuda.synchronize()
    start = time.perf_counter()
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        run()
        torch.cuda.synchronize()
        first = time.perf_counter() - start
        run()
        run()
    torch.cuda.current_stream().wait_stream(aside)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeat):
            run()
    for _ in range(3):
        graph.replay()
    times = []
    for _ in range(10):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end) / repeat)
    graph.reset()
    return statistics.median(times), first
