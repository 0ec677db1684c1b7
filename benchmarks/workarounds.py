"""Training steps of ShuffleNet with dense instead of grouped 1x1 convolutions, against torch's own.

Repeated inside a CUDA graph, so that only kernels are timed, both in the same run: ShuffleNet for 32 x 32 with the
groups and channels of its paper, 128 random images, bf16 in channels-last memory, as in training side by side.
Without a GPU it runs in a small form, only to check that it runs.
`python benchmarks/workarounds.py [--json FILE | --keep] [--repeat 5]`
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from keep import add_flags, file_of, machine
from replays import microseconds
from torch import Tensor

from natpp.data.feeds import fast_format
from natpp.nets import workarounds
from natpp.runs.fabric import make_fabric
from natpp.training.branch import Branch
from natpp.training.loop import fastest_kernels
from natpp.training.recipe import ShortConfig
from natpp.zoo.networks.shufflenet import STAGE_2_CHANNELS, ShuffleNet

DEVICE = make_fabric().device
LARGE = DEVICE.type == "cuda"


def batch() -> tuple[Tensor, Tensor]:
    """A batch of random images and labels, the same for every step."""
    images = torch.randn(128 if LARGE else 2, 3, 32, 32, device=DEVICE).to(memory_format=fast_format(DEVICE))
    return images.bfloat16() if LARGE else images, torch.randint(10, images.shape[:1], device=DEVICE)


def milliseconds(groups: int, most: int, images: Tensor, labels: Tensor, repeat: int) -> float:
    """Milliseconds of a step in which convolutions of at most `most` groups are computed densely."""
    config = ShortConfig(steps=1, batch=len(images))
    branch = Branch(lambda: ShuffleNet(10, groups=groups, small=True), 0, config, DEVICE)
    step, rate = torch.zeros(1, dtype=torch.int64, device=DEVICE), torch.full((1,), 1e-3, device=DEVICE)
    with fastest_kernels(DEVICE), mock.patch.object(workarounds, "MOST_GROUPS", most):
        return microseconds(lambda: branch.step(images, labels, step, rate), DEVICE, repeat)[0] / 1000


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser)
    parser.add_argument("--repeat", type=int, default=5, help="steps of a graph")
    arguments = parser.parse_args(given)
    file = file_of(arguments, "workarounds", small=not LARGE)
    torch.manual_seed(0)
    given, rows = batch(), list[dict[str, Any]]()
    for groups, channels in STAGE_2_CHANNELS.items():
        if groups > 1:
            plain, dense = (milliseconds(groups, most, *given, arguments.repeat) for most in (1, groups))
            rows.append({"groups": groups, "channels": channels, "torch_ms": plain, "dense_ms": dense})
            print(f"{groups} groups, {channels} channels: {plain:.2f} ms, dense {dense:.2f} ms, {plain / dense:.2f} x")
    if file:
        file.write_text(json.dumps({"machine": machine(), "steps": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
