"""Speed of training on a GPU: `natpp train` against a plain loop, a supernet step, short runs side by side.

Ratios within one run, on random images. Without a GPU it runs in a small form, only to check that it runs. The file is
written after every measurement, and what it already contains is not measured again, unless machine or version differ.
`python benchmarks/training.py [--json FILE | --keep] [--only train …]`
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from keep import add_flags, file_of, machine
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

import natpp
from natpp.arch.networks import setting
from natpp.arch.space import nasbench201_space
from natpp.data.batches import Batches
from natpp.data.images import Images
from natpp.nets.network import build_network
from natpp.registry import RECIPES
from natpp.runs.fabric import make_fabric
from natpp.scorers.supernet import SharedWeights, WeightsConfig
from natpp.training.branch import Branch, Build
from natpp.training.recipe import ShortConfig
from natpp.training.scratch import Training
from natpp.training.task import Task
from natpp.training.together import Trial, train_together

FABRIC = make_fabric()
DEVICE = FABRIC.device
LARGE = DEVICE.type == "cuda"
SEED = 0  # of images, weights, batches; architectures are drawn by the next one
Row = dict[str, Any]  # figures, and the settings they were measured with


def random_images(count: int) -> Images:
    """Random bytes with random labels."""
    generator = np.random.default_rng(SEED)
    size = 32 if LARGE else 16
    pixels = generator.integers(256, size=(count + 100, 3, size, size), dtype=np.uint8)
    labels = generator.integers(10, size=count + 100)
    return Images("random", 10, pixels[:count], labels[:count], pixels[count:], labels[count:])


def seconds_each(step: Callable[[], object], times: int, warm_up: int = 5) -> float:
    """Mean seconds of a step after warm-up."""
    for _ in range(warm_up):
        step()
    _wait()
    start = time.perf_counter()
    for _ in range(times):
        step()
    _wait()
    return (time.perf_counter() - start) / times


def train(batch: int) -> Row:
    """Images per second of DARTS with `natpp train`, and with a plain loop: NCHW, TF32, one launch per kernel."""
    if LARGE:
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
    recipe = replace(RECIPES["cifar-600"], batch=batch)
    if not LARGE:
        recipe = replace(recipe, batch=4, channels=4, cells=3, auxiliary=0, cutout=4)
    images = Task(random_images(20 * recipe.batch)).batches(DEVICE, recipe, validation=0)
    training = Training(natpp.load("darts"), images, recipe, FABRIC, SEED)
    training.total = 10**6
    times = 30 if LARGE else 2
    ours = seconds_each(training.step, times)
    reserved = _reserved()
    where = training.where
    del training
    if LARGE:
        torch.cuda.empty_cache()
    network = build_network(natpp.load("darts"), where, auxiliary=recipe.auxiliary > 0, drop_path=0.1).to(DEVICE)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.025, momentum=0.9, weight_decay=3e-4)
    order = np.random.default_rng(SEED)

    def plain() -> None:
        inputs, labels = images.take(
            order.permutation(len(images))[: recipe.batch], torch.Generator().manual_seed(SEED)
        )
        found = network(inputs)
        logits, extra = found if isinstance(found, tuple) else (found, None)
        loss = functional.cross_entropy(logits, labels)
        if extra is not None:
            loss = loss + 0.4 * functional.cross_entropy(extra, labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()

    theirs = seconds_each(plain, times)
    return {
        "batch": recipe.batch,
        "natpp_images_per_second": recipe.batch / ours,
        "plain_images_per_second": recipe.batch / theirs,
        "ratio": theirs / ours,
        "reserved_gib": reserved,
        "settings": {"recipe": asdict(recipe), "network": asdict(where), "precision": _precision()},
    }


def supernet(cells: int) -> Row:
    """Milliseconds of a weight step: 20 architectures of NAS-Bench-201, 32 images each."""
    config = WeightsConfig(architectures=20, batch=32 if LARGE else 2)
    images = Batches(random_images(20_000 if LARGE else 200), DEVICE)
    where = setting("nasbench201", channels=16 if LARGE else 4, cells=cells, size=images.size)
    shared = SharedWeights(nasbench201_space(), where, images, config, FABRIC, seed=SEED)
    return {
        "cells_a_stage": cells,
        "milliseconds": 1000 * seconds_each(shared.step, 30 if LARGE else 1),
        "settings": {"weights": asdict(config), "network": asdict(where), "precision": _precision()},
    }


def short(together: int) -> Row:
    """Milliseconds per architecture step with many side by side, with capture subtracted."""
    images = Batches(random_images(20_000 if LARGE else 200), DEVICE)
    where = setting("nasbench201", channels=16 if LARGE else 4, cells=2 if LARGE else 1, size=images.size)
    archs = nasbench201_space().draw(together, np.random.default_rng(SEED + 1))
    builds = [lambda arch=arch: build_network(arch, where) for arch in archs]
    spent = []
    few, many = (50, 250) if LARGE else (1, 3)
    for steps in (few, few, many):  # once before, so that kernels are chosen and loaded
        config = ShortConfig(batch=128 if LARGE else 8, steps=steps, together=together)
        _wait()
        start = time.perf_counter()
        train_together(builds, list(range(together)), Trial(images, config, DEVICE, SEED))
        _wait()
        spent.append(time.perf_counter() - start)
    reserved = _reserved()
    a_step = (spent[2] - spent[1]) / (many - few)
    return {
        "together": together,
        "milliseconds_an_architecture_step": 1000 * a_step / together,
        "images_per_second": config.batch * together / a_step,
        "gigabytes_per_second": moved(builds, images, config) / a_step / 1e9,
        "seconds_besides": spent[1] - few * a_step,
        "reserved_gib": reserved,
        "settings": {"schedule": asdict(config), "network": asdict(where)},
    }


class Moved(TorchDispatchMode):
    """Bytes that operations read and write: each tensor once per operation, even if it is changed in place.

    Views and allocations do not count.
    """

    still = ("_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view and func.overloadpacket.__name__ not in self.still:
            self.count((args, kwargs, out))
        return out

    def count(self, values: Any) -> None:
        """Add the tensors among these; an expanded tensor counts with its actual memory."""
        tensors = {id(one): one for one in tree_leaves(values) if isinstance(one, Tensor)}
        self.total += sum(min(one.nbytes, one.untyped_storage().nbytes()) for one in tensors.values())


@contextlib.contextmanager
def counting() -> Iterator[Moved]:
    """Count the bytes of torch's operations and of Triton's kernels, which torch does not see, inside this context."""
    with Moved() as found, contextlib.ExitStack() as stack:
        if importlib.util.find_spec("triton") is not None:
            from triton.runtime.jit import KernelInterface

            usual = KernelInterface.__getitem__  # kernel[grid] gives what launches it

            def counted(kernel: Any, grid: Any) -> Callable[..., Any]:
                def launch(*args: Any, **kwargs: Any) -> Any:
                    found.count((args, kwargs))
                    with _disable_current_modes():  # Triton's interpreter, where it runs them, uses torch
                        return usual(kernel, grid)(*args, **kwargs)

                return launch

            stack.enter_context(mock.patch.object(KernelInterface, "__getitem__", counted))
        yield found


def moved(builds: Sequence[Build], images: Batches, config: ShortConfig) -> int:
    """Bytes that one step of all these networks moves."""
    inputs, targets = Trial(images, config, DEVICE, SEED).feed().batch(0)
    first, rate = (
        torch.zeros(1, dtype=torch.int64, device=DEVICE),
        torch.full((1,), config.learning_rate, device=DEVICE),
    )
    branches = [Branch(build, SEED, config, DEVICE) for build in builds]
    with counting() as found:
        for branch in branches:
            branch.step(inputs, targets, first, rate)
    return found.total


def _reserved() -> float:
    """Peak GiB of device memory since the last call, including what CUDA graphs hold."""
    if not LARGE:
        return 0.0
    most = torch.cuda.max_memory_reserved() / 2**30
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return float(most)


def _precision() -> str:
    return str(FABRIC.strategy.precision.precision)


def _wait() -> None:
    if LARGE:
        torch.cuda.synchronize()


def main(arguments: Sequence[str] | None = None) -> None:
    parts: dict[str, tuple[Callable[[int], Row], tuple[int, ...]]] = {
        "short": (short, (32, 64) if LARGE else (2,)),
        "supernet": (supernet, (5, 2) if LARGE else (1,)),
        "train": (train, (96, 256) if LARGE else (4,)),
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser)
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts), help="parts to run")
    options = parser.parse_args(arguments)
    file = file_of(options, "training", small=not LARGE)
    found: dict[str, Any] = {"machine": machine(), "seed": SEED}
    if file and file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        if before["machine"] != found["machine"]:
            raise SystemExit(
                f"{file} has figures of {before['machine']}, and this is {found['machine']}: name another file"
            )
        found |= before
    for name in options.only:
        measure, sizes = parts[name]
        rows = found.setdefault(name, [])
        for size in sizes[len(rows) :]:
            start = time.perf_counter()
            rows.append(measure(size))
            print(f"{name}: {rows[-1]}, {time.perf_counter() - start:.0f} s", flush=True)
            if file:
                file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
