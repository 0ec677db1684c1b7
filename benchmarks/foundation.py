"""Speed of architectures, costs and policies.

Measures closed-form cost against building and counting, costs of many plans at once, sampling and masking thousands of
architectures, and a run of the default policy, from the shell and in Python. Ratios within one run.
`python benchmarks/foundation.py [--json FILE | --keep]`
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable

import numpy as np
import torch
from keep import add_flags, file_of, machine
from torch.utils.flop_counter import FlopCounterMode

import natpp
from natpp.arch.blueprints import drawing
from natpp.arch.cost import cost_of, counts
from natpp.arch.graph import Architecture
from natpp.arch.networks import setting
from natpp.arch.space import sample_batch
from natpp.nets.network import build_network
from natpp.policies import load_named
from natpp.registry import OPS

WHERE = setting("cifar")
PLANS = 512


def built_and_counted(arch: Architecture) -> tuple[int, int]:
    """Parameters and multiply-adds of the whole network, built and run on the meta device."""
    with torch.device("meta"):
        network = build_network(arch, WHERE, prune=False).eval()
        image = torch.empty(1, 3, WHERE.size, WHERE.size)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(image)
    return sum(parameter.numel() for parameter in network.parameters()), counter.get_total_flops() // 2


def seconds_each(run: Callable[[Architecture], object], archs: list[Architecture]) -> float:
    """Median seconds per call."""
    times = []
    for arch in archs:
        start = time.perf_counter()
        run(arch)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_flags(parser)
    options = parser.parse_args()
    file = file_of(options, "foundation")
    batch = sample_batch(300, nodes=4, generator=np.random.default_rng(0))
    archs = [batch[index] for index in range(300)]
    for arch in archs[:10]:
        found = cost_of(arch, WHERE)
        assert (found.params, found.madds) == built_and_counted(arch)
    built = seconds_each(built_and_counted, archs[10:40])
    whole = seconds_each(lambda arch: cost_of(arch, WHERE), archs[40:])
    counted = seconds_each(lambda arch: counts(arch, WHERE), archs[40:])
    _, blueprint, _, plan = drawing(natpp.load("darts"), WHERE)
    plans = np.random.default_rng(0).integers(len(OPS), size=(PLANS, len(plan)))
    at_once = statistics.median(timeit.repeat(lambda: blueprint.costs(plans), number=1, repeat=20))
    start = time.perf_counter()
    many = sample_batch(100_000, nodes=4, generator=np.random.default_rng(0))
    sampled = time.perf_counter() - start
    many.masks("nat++", channels=36)
    masked = time.perf_counter() - start - sampled
    policy = load_named()
    natpp.optimize("darts", policy)
    answered = seconds_each(lambda arch: natpp.optimize(arch, policy), [natpp.load("darts")] * 20)
    from_shell = seconds_each(
        lambda _: subprocess.run([sys.executable, "-m", "natpp", "optimize", "darts"], check=True, capture_output=True),
        archs[:5],
    )
    figures = {
        "build_on_meta_and_count_ms": 1000 * built,
        "params_and_madds_ms": 1000 * counted,
        "whole_cost_ms": 1000 * whole,
        f"cost_{PLANS}_plans_of_darts_ms": 1000 * at_once,
        "times_faster_params_and_madds": built / counted,
        "times_faster_whole_cost": built / whole,
        "sample_100000_s": sampled,
        "mask_100000_s": masked,
        "optimize_darts_ms": 1000 * answered,
        "optimize_darts_from_the_shell_s": from_shell,
        "network": "cifar, 36 channels, 20 cells",
        "machine": machine(),
    }
    for name, value in figures.items():
        print(f"{name:<32} {value:.4g}" if isinstance(value, float) else f"{name:<32} {value}")
    if file:
        file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
