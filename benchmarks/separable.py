"""Separable convolutions and networks of them: natpp's kernels against torch's, in the same run.

- operations: `sep_conv_3x3`, `sep_conv_5x5` and others, forward and backward in bf16, repeated inside a CUDA graph;
  torch's own in contiguous and channels-last memory with cudnn.benchmark, and with torch.compile. Bytes are the
  activations that the kernels read and write, against the measured memory bandwidth of an H200.
- short: short training runs of `darts` (5 cells, 16 channels, batch 128), 16 side by side: milliseconds per
  architecture step, with capture subtracted, and the kernels of one step, counted and timed.
- supernet: a weight step with 16 architectures and 512 images in total, thirteen operations, 8 cells, 20 channels.
- tune: the same operations with other tile sizes and numbers of warps, registers, stages and programs, and the time of
  each kernel.
- mixture: short training runs of random cells (8 cells, 16 channels, batch 128), 16 side by side, with the same
  choices: the best choice for many programs at once may differ from that for one operation.

`python benchmarks/separable.py [--json FILE | --keep] [--only operations …] [--no-compile] [--smoke]`
Other parts already in the file are kept. Without a GPU only the small form (--smoke) works, to check that it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from keep import add_flags, file_of, machine
from replays import microseconds
from torch import Tensor, nn

import natpp
from natpp import kernels
from natpp.arch.modules import BatchNorm2d, MaxPool2d
from natpp.arch.networks import setting
from natpp.arch.ops import Place
from natpp.arch.space import CellSpace
from natpp.data.batches import Batches
from natpp.data.images import Images
from natpp.nets.network import build_network
from natpp.registry import OPS
from natpp.runs.fabric import make_fabric
from natpp.scorers.supernet import SharedWeights, WeightsConfig
from natpp.training.branch import Branch
from natpp.training.recipe import ShortConfig
from natpp.training.together import Trial, train_together

BANDWIDTH = 4.8e12  # bytes a second, of an H200
OPERATIONS = (
    ("sep_conv_3x3", (128, 16, 32, 32), 1),
    ("sep_conv_5x5", (128, 16, 32, 32), 1),
    ("sep_conv_3x3", (512, 20, 32, 32), 1),
    ("sep_conv_5x5", (512, 20, 32, 32), 1),
    ("sep_conv_3x3", (128, 32, 16, 16), 1),
    ("sep_conv_3x3", (128, 64, 8, 8), 1),
    ("sep_conv_5x5", (128, 32, 32, 32), 2),
    ("dil_conv_3x3", (128, 16, 32, 32), 1),
    ("dil_conv_5x5", (128, 16, 32, 32), 1),
    ("conv_1x1", (128, 64, 32, 32), 1),
    ("conv_3x3", (128, 16, 32, 32), 1),
    ("conv_3x3", (128, 32, 16, 16), 1),
    ("conv_3x3", (128, 64, 8, 8), 1),
    ("max_pool_3x3", (128, 32, 32, 32), 2),
    ("max_pool_3x3", (128, 16, 32, 32), 1),
    ("max_pool_5x5", (128, 16, 32, 32), 1),
)
MUST = OPERATIONS[:4]
TUNED: tuple[dict[str, Any], ...] = (  # of natpp.kernels.geometry, merged and steps
    {},
    {"MOST_PROGRAMS": 264},
    {"MOST_PROGRAMS": 792},
    {"PRODUCTS": {"maxnreg": 128}, "MOST_PROGRAMS": 528},
    {"PRODUCTS": {"maxnreg": 255}, "MOST_PROGRAMS": 264},
    {"PRODUCTS": {"num_warps": 8, "maxnreg": 128}},
    {"PRODUCTS": {"num_stages": 2}},
    {"PRODUCTS": {"num_stages": 4}},
    {"STRIPS": 64},
    {"BREADTH": 32},
    {"WIDE": 4},
    {"TALL": (64, 64)},
    {"MULTIPLIED": 1},
    {"MULTIPLIED": 4},
    {"LONG": 16},
    {"LONG": 64},
    {"NUMBERS": 8192},
    {"COPIED": 1},
    {"COPIED": 8},
)
SMALL = (("sep_conv_3x3", (2, 4, 6, 6), 1), ("max_pool_3x3", (2, 4, 6, 6), 2))


def module_of(op: str, shape: Sequence[int], stride: int, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The operation as in short training runs: convolutions in half precision, no running statistics."""
    torch.manual_seed(0)
    module = OPS[op].build(Place(shape[1], shape[1], stride, (shape[2], shape[3]))).to(device)
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            part.to(dtype)
        if isinstance(part, nn.BatchNorm2d):
            part.track_running_stats, part.running_mean, part.running_var = False, None, None
            part.num_batches_tracked = None
    return module


def units(op: str, stride: int) -> tuple[float, float]:
    """Activations that the kernels read and write, forward and backward, in multiples of x, without zero padding."""
    small = 1 / stride**2
    if "pool" in op:  # with one byte for every two of the output
        return 1 + 1.5 * small, 1 + 1.5 * small
    if op == "conv_1x1":  # multiplied, normalized; sums, through the norm, gradient of x, gradient of weights
        return (1 + small) + 2 * small, 2 * small + 3 * small + (small + 2) + (1 + small)
    # Copied and multiplied; normalized; sums. Then through the norm (to the places of x, as what follows has it), the
    # gradient of x (also reads what was multiplied), that of the weights.
    forward, normalized, sums, backward = 2 + (1 + small), 2 * small, 2 * small, (2 * small + 1) + 3 + 2
    if "sep" not in op:
        return forward + normalized, sums + backward
    second = 4 * small, 3 * small + 4 * small + 2 * small  # the same, small; the sums for the norm before it read y
    return forward + second[0] + normalized, sums + second[1] + backward


def run_of(
    module: Callable[[Tensor], Tensor], x: Tensor, weights: Sequence[Tensor], backward: bool
) -> Callable[[], None]:
    """The function to time."""
    with torch.no_grad():
        dy = torch.randn_like(module(x))

    def run() -> None:
        with contextlib.nullcontext() if backward else torch.no_grad():
            y = module(x)
            if backward:
                torch.autograd.grad(y, [x, *weights], dy)

    return run


def ours(op: str, shape: Sequence[int], stride: int, device: torch.device, repeat: int) -> dict[str, float]:
    """Forward only, forward and backward, and the first call of both, which compiles."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    x = torch.randn(*shape, device=device).to(dtype, memory_format=torch.channels_last).requires_grad_()
    module = module_of(op, shape, stride, device, dtype)
    weights = list(module.parameters())
    both, first = microseconds(run_of(module, x, weights, True), device, repeat)
    forward, _ = microseconds(run_of(module, x, weights, False), device, repeat)
    return {"microseconds": both, "forward_microseconds": forward, "first_call_seconds": first}


def theirs(
    op: str, shape: Sequence[int], stride: int, device: torch.device, repeat: int, ways: Sequence[str]
) -> dict[str, dict[str, float | str]]:
    """Torch's own kernels: contiguous, channels_last, compiled."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    built = module_of(op, shape, stride, device, dtype)
    parts = list(built) if isinstance(built, nn.Sequential) else [built]
    module = nn.Sequential(*(_plain(part) for part in copy.deepcopy(parts)))
    weights = list(module.parameters())
    found: dict[str, dict[str, float | str]] = {}
    for name in ways:
        memory = torch.contiguous_format if name == "contiguous" else torch.channels_last
        x = torch.randn(*shape, device=device).to(dtype, memory_format=memory).requires_grad_()
        try:
            way = torch.compile(module) if name == "compiled" else module
            both, _ = microseconds(run_of(way, x, weights, True), device, repeat)
            forward, _ = microseconds(run_of(way, x, weights, False), device, repeat)
            found[name] = {"microseconds": both, "forward_microseconds": forward}
        except Exception as error:  # a compiler may not be there, or not be captured: the others count
            if name != "compiled":
                raise
            found[name] = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"}
    return found


def _plain(part: nn.Module) -> nn.Module:
    """Torch's class in place of natpp's, with the same tensors."""
    for own, plain in ((BatchNorm2d, nn.BatchNorm2d), (MaxPool2d, nn.MaxPool2d)):
        if type(part) is own:
            part.__class__ = plain
    return part


def operations(device: torch.device, smoke: bool, compiled: bool) -> list[dict[str, Any]]:
    """Every operation at its shapes."""
    rows = []
    for op, shape, stride in SMALL if smoke else OPERATIONS:
        repeat = 3 if smoke else 20
        mine = ours(op, shape, stride, device, repeat)
        other = theirs(op, shape, stride, device, repeat, ("contiguous", "channels_last"))
        best = min(float(one["microseconds"]) for one in other.values())
        best_forward = min(float(one["forward_microseconds"]) for one in other.values())
        size = 2 * torch.Size(shape).numel()
        amount = size * sum(units(op, stride))
        rows.append(
            {
                "op": op,
                "shape": list(shape),
                "stride": stride,
                "natpp": mine,
                "torch": other,
                "ratio": best / mine["microseconds"],
                "forward_ratio": best_forward / mine["forward_microseconds"],
                "bytes": amount,
                "share_of_bandwidth": 1e6 * amount / BANDWIDTH / mine["microseconds"],
            }
        )
        print(line(rows[-1]), flush=True)
    for row, (op, shape, stride) in zip(rows, MUST if compiled else (), strict=False):  # last: it may break the device
        row["torch"] |= theirs(op, shape, stride, device, 20, ("compiled",))
        print(f"{op} {shape}: {row['torch']['compiled']}", flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    """One operation as a readable line."""
    others = ", ".join(
        f"{name}: {one['error']}"
        if "error" in one
        else f"{name} {one['microseconds']:.1f} ({one['forward_microseconds']:.1f})"
        for name, one in row["torch"].items()
    )
    mine = row["natpp"]
    return (
        f"{row['op']:13} {'x'.join(map(str, row['shape'])):>14} /{row['stride']}: natpp {mine['microseconds']:.1f} "
        f"({mine['forward_microseconds']:.1f}) us, {100 * row['share_of_bandwidth']:.0f} % of the bandwidth, "
        f"first call {mine['first_call_seconds']:.1f} s; torch {others}; {row['ratio']:.2f} times as fast "
        f"(forward {row['forward_ratio']:.2f})"
    )


@contextlib.contextmanager
def changed(choices: Mapping[str, Any]) -> Iterator[None]:
    """Use other tile sizes, numbers of programs and kernel options inside this context."""
    if not choices:
        yield
        return
    from natpp.kernels import geometry, merged, steps

    before = []
    for name, value in choices.items():
        for module in (geometry, merged, steps):
            if hasattr(module, name):
                before.append((module, name, getattr(module, name)))
                setattr(module, name, {**merged.PRODUCTS, **value} if name == "PRODUCTS" else value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def tune(device: torch.device, smoke: bool) -> list[dict[str, Any]]:
    """The operations that must be fast, with other choices, and the time of each kernel."""
    rows: list[dict[str, Any]] = []
    if device.type != "cuda":
        return rows
    for choices in TUNED:
        for op, shape, stride in MUST[:1] if smoke else (*MUST, OPERATIONS[5]):
            with changed(choices):
                found = ours(op, shape, stride, device, 20)
                module = module_of(op, shape, stride, device, torch.bfloat16)
                x = torch.randn(*shape, device=device).to(torch.bfloat16, memory_format=torch.channels_last)
                run = run_of(module, x.requires_grad_(), list(module.parameters()), True)
                parts = kernels_of(run)["dearest"]
            rows.append({"op": op, "shape": list(shape), "choices": choices, **found, "kernels": parts})
            each = ", ".join(f"{one['name']} {one['microseconds']:.1f}/{one['count']}" for one in parts)
            print(
                f"{choices}: {op} {shape} {found['microseconds']:.1f} ({found['forward_microseconds']:.1f}) us; {each}",
                flush=True,
            )
    return rows


def random_batches(count: int, size: int, device: torch.device) -> Batches:
    """Random bytes with random labels."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(256, size=(count + 100, 3, size, size), dtype=np.uint8)
    labels = generator.integers(10, size=count + 100)
    return Batches(Images("random", 10, pixels[:count], labels[:count], pixels[count:], labels[count:]), device)


def short(device: torch.device, smoke: bool) -> dict[str, Any]:
    """Milliseconds per architecture step with many side by side, with natpp's kernels and with torch's."""
    together, batch = (2, 8) if smoke else (16, 128)
    images = random_batches(200 if smoke else 20_000, 16 if smoke else 32, device)
    where = setting("cifar", channels=4 if smoke else 16, cells=3 if smoke else 5, size=images.size)
    arch = natpp.load("darts")
    builds = [lambda: build_network(arch, where)] * together
    found: dict[str, Any] = {"together": together, "batch": batch, "channels": where.channels, "cells": where.cells}
    steps = (1, 2) if smoke else (20, 120)
    config = ShortConfig(batch=batch, together=together)
    for name, way in (("natpp", contextlib.nullcontext), ("plain", kernels.plain)):
        with way():
            found[name] = timed(builds, images, config, steps, device)
            if device.type == "cuda":
                found[name]["kernels"] = counted(builds[0], images, config, device)
        print(f"short trainings, {name}: {found[name]}", flush=True)
    if device.type == "cuda":
        found["reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30
    found["ratio"] = (
        found["plain"]["milliseconds_an_architecture_step"] / found["natpp"]["milliseconds_an_architecture_step"]
    )
    return found


def timed(
    builds: Sequence[Callable[[], nn.Module]],
    images: Batches,
    config: ShortConfig,
    steps: tuple[int, int],
    device: torch.device,
) -> dict[str, float]:
    """Time of a step of each network side by side, from the difference between many and few steps."""
    few, many = steps
    spent = []
    for count in (few, few, many):  # once before, so that kernels are compiled and chosen
        _wait(device)
        start = time.perf_counter()
        train_together(builds, list(range(len(builds))), Trial(images, replace(config, steps=count), device))
        _wait(device)
        spent.append(time.perf_counter() - start)
    a_step = (spent[2] - spent[1]) / (many - few)
    return {
        "milliseconds_an_architecture_step": 1000 * a_step / len(builds),
        "first_seconds": spent[0],
        "seconds_besides": spent[1] - few * a_step,
    }


def mixture(device: torch.device, smoke: bool) -> list[dict[str, Any]]:
    """Time of a step of random cells side by side, for every choice of kernel options."""
    together, batch = (2, 8) if smoke else (16, 128)
    images = random_batches(200 if smoke else 20_000, 16 if smoke else 32, device)
    where = setting("cifar", channels=4 if smoke else 16, cells=3 if smoke else 8, size=images.size)
    drawn = CellSpace().draw(together, np.random.default_rng(0))
    builds = [functools.partial(build_network, arch, where) for arch in drawn]
    config = ShortConfig(batch=batch, together=together, clip=5.0, augment=True)
    rows = []
    for choices in TUNED if device.type == "cuda" else TUNED[:1]:
        with changed(choices):
            found = timed(builds, images, config, (1, 2) if smoke else (10, 60), device)
        rows.append({"choices": choices, **found})
        print(f"{choices}: {found['milliseconds_an_architecture_step']:.3f} ms", flush=True)
    return rows


def counted(
    build: Callable[[], nn.Module], images: Batches, config: ShortConfig, device: torch.device
) -> dict[str, Any]:
    """The kernels of one step of one network: their number, and the slowest ones, timed alone, in us."""
    inputs, targets = Trial(images, config, device).feed().batch(0)
    number = torch.zeros(1, dtype=torch.int64, device=device)
    rate = torch.full((1,), config.learning_rate, device=device)
    branch = Branch(build, 0, config, device)
    return kernels_of(lambda: branch.step(inputs, targets, number, rate))


def kernels_of(run: Callable[[], object]) -> dict[str, Any]:
    """The kernels of a function on a GPU: their number, and the slowest ones, in microseconds."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(2):
        run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
        run()
        torch.cuda.synchronize()
    count: Counter[str] = Counter()
    spent: dict[str, float] = defaultdict(float)
    for event in profiled.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            count[event.name[:90]] += 1
            spent[event.name[:90]] += event.time_range.elapsed_us()
    names = sorted(spent, key=lambda name: -spent[name])[:30]
    dearest = [{"name": name, "count": count[name], "microseconds": spent[name]} for name in names]
    return {"count": sum(count.values()), "microseconds": sum(spent.values()), "dearest": dearest}


def supernet(device: torch.device, smoke: bool) -> dict[str, Any]:
    """Milliseconds of a weight step with 16 architectures and 512 images in total, thirteen operations."""
    fabric = make_fabric()
    images = random_batches(200 if smoke else 20_000, 16 if smoke else 32, device)
    config = WeightsConfig(architectures=2 if smoke else 16, batch=2 if smoke else 32, epochs=200)
    where = setting("cifar", channels=4 if smoke else 20, cells=3 if smoke else 8, size=images.size)
    found: dict[str, Any] = {"architectures": config.architectures, "batch": config.batch}
    for name, way in (("natpp", contextlib.nullcontext), ("plain", kernels.plain)):
        with way():
            shared = SharedWeights(CellSpace((4, 5)), where, images, config, fabric, seed=0)
            steps = 2 if smoke else shared.steps_a_graph

            def seconds(count: int, shared: SharedWeights = shared) -> float:
                _wait(device)
                start = time.perf_counter()
                for _ in range(count):
                    shared.step()
                _wait(device)
                return time.perf_counter() - start

            found[name] = {"seconds_of_the_first_step": seconds(1)}  # with all that is compiled
            found[name]["milliseconds_a_replay"] = 1000 * seconds(steps - 1) / (steps - 1)
            shared.weights.steps = steps
            seconds(1)  # another graph may have kernels that the first has not
            shared.weights.steps = 2 * steps
            found[name]["milliseconds_a_step"] = 1000 * seconds(steps) / steps  # its capture included
            found[name]["steps_a_graph"] = steps
            found[name]["reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30 if device.type == "cuda" else 0.0
            del shared, seconds
        print(f"supernet, {name}: {found[name]}", flush=True)
    return found


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


OTHERS: dict[str, Callable[[torch.device, bool], Any]] = {
    "short": short,
    "supernet": supernet,
    "tune": tune,
    "mixture": mixture,
}
PARTS = ("operations", *OTHERS)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS[:3], help="parts to run")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--smoke", action="store_true", help="a small form that also runs on a CPU")
    options = parser.parse_args(arguments)
    file = file_of(options, "separable", small=options.smoke)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not options.smoke:
        raise SystemExit("there is no GPU: the kernels are for GPUs. --smoke shows that the benchmark runs")
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True
        example = torch.zeros(2, 16, 4, 4, device=device).to(memory_format=torch.channels_last)
        if not kernels.fast(example):
            raise SystemExit("natpp's kernels cannot be used here; the log says why")
    found: dict[str, Any] = {}
    if file and file.exists():  # parts that are not measured now are kept
        found = json.loads(file.read_text(encoding="utf-8"))
    found["machine"] = machine()
    found["smoke"] = options.smoke
    for part in options.only:
        start = time.perf_counter()
        if part == "operations":
            found[part] = operations(device, options.smoke, compiled=not options.no_compile and device.type == "cuda")
        else:
            found[part] = OTHERS[part](device, options.smoke)
        print(f"{part}: {time.perf_counter() - start:.0f} s", flush=True)
        if file:  # after every part, so that what is there is kept
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
