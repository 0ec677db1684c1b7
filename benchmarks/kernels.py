"""Batch norms and average pools: natpp's kernels against torch's, forward and backward, in channels-last bf16.

Each is repeated inside a CUDA graph, so that only kernels are timed, both in the same run. Bytes are the minimum to
move (batch norm: x twice, y; x and dy twice, dx. Pool: x, y; dy, dx), as a share of an H200's memory bandwidth;
tensors that stay in the cache can exceed it. Requires a GPU.
`python benchmarks/kernels.py [--json FILE | --keep] [--repeat 50]`
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable
from typing import Any

import torch
from keep import add_flags, file_of, machine
from replays import microseconds
from torch import Tensor

from natpp import kernels

BANDWIDTH = 4.8e12  # bytes a second, of an H200
SHAPES = ((128, 16, 32, 32), (128, 32, 16, 16), (128, 64, 8, 8), (96, 36, 32, 32))
SUPERNET = (20 * 32, 16, 32, 32)  # 20 architectures, 32 images each
Op = Callable[[Tensor, Tensor, Tensor], Tensor]  # images, weight and bias to images


def operations() -> dict[str, tuple[Op, int, tuple[tuple[int, ...], ...]]]:
    """For each name: the function, how many times x it moves, and the shapes."""
    return {
        "batch norm": (lambda x, weight, bias: kernels.batch_norm(x, weight, bias)[0], 8, SHAPES),
        "batch norm, 20 groups": (
            lambda x, weight, bias: kernels.batch_norm(x, weight, bias, groups=20)[0],
            8,
            (SUPERNET,),
        ),
        "average pool 3x3": (lambda x, weight, bias: kernels.average_pool(x, 3), 4, (*SHAPES, SUPERNET)),
    }


def theirs(name: str) -> Op:
    """Torch's own version; groups are laid out as channels."""
    groups = 20 if "groups" in name else 1

    def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if groups == 1:
            return torch.nn.functional.batch_norm(x, None, None, weight, bias, training=True)
        images, channels, height, width = x.shape  # the same memory as fewer images of more channels: as much work
        shape = images // groups, height, width, groups * channels
        wide = x.permute(0, 2, 3, 1).reshape(shape).permute(0, 3, 1, 2)
        weight, bias = weight.repeat(groups), bias.repeat(groups)
        y = torch.nn.functional.batch_norm(wide, None, None, weight, bias, training=True)
        return y.permute(0, 2, 3, 1).reshape(images, height, width, channels).permute(0, 3, 1, 2)

    def pool(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.nn.functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)

    return pool if "pool" in name else batch_norm


def run_of(op: Op, shape: tuple[int, ...], *, backward: bool) -> Callable[[], None]:
    """One pass over random images."""
    channels = shape[1]
    x, dy = (torch.randn(shape, device="cuda").to(torch.bfloat16, memory_format=torch.channels_last) for _ in range(2))
    weight, bias = torch.rand(channels, device="cuda"), torch.rand(channels, device="cuda")
    inputs = [one.requires_grad_() for one in (x, weight, bias)]

    def run() -> None:
        with contextlib.nullcontext() if backward else torch.no_grad():
            y = op(*inputs)
            if backward:
                torch.autograd.grad(y, inputs, dy, allow_unused=True)

    return run


def measure(name: str, op: Op, moved: int, shape: tuple[int, ...], repeat: int) -> dict[str, Any]:
    """Both kernels at one shape."""
    device = torch.device("cuda")
    ours, first = microseconds(run_of(op, shape, backward=True), device, repeat)
    ours_forward, _ = microseconds(run_of(op, shape, backward=False), device, repeat)
    other, _ = microseconds(run_of(theirs(name), shape, backward=True), device, repeat)
    other_forward, _ = microseconds(run_of(theirs(name), shape, backward=False), device, repeat)
    amount = moved * 2 * torch.Size(shape).numel()
    return {
        "op": name,
        "shape": list(shape),
        "natpp_microseconds": ours,
        "torch_microseconds": other,
        "natpp_forward_microseconds": ours_forward,
        "torch_forward_microseconds": other_forward,
        "ratio": other / ours,
        "bytes": amount,
        "share_of_bandwidth": amount / (ours * 1e-6) / BANDWIDTH,
        "first_call_seconds": first,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The results as a readable table."""
    lines = [
        f"{'op':22} {'shape':>16} {'natpp us':>9} {'torch us':>9} {'ratio':>6} {'forward':>15} {'of 4.8 TB/s':>12} "
        f"{'first s':>8}"
    ]
    for row in rows:
        forward = f"{row['natpp_forward_microseconds']:.1f} / {row['torch_forward_microseconds']:.1f}"
        lines.append(
            f"{row['op']:22} {'x'.join(map(str, row['shape'])):>16} {row['natpp_microseconds']:9.1f} "
            f"{row['torch_microseconds']:9.1f} {row['ratio']:6.2f} {forward:>15} "
            f"{100 * row['share_of_bandwidth']:10.0f} % {row['first_call_seconds']:8.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_flags(parser)
    parser.add_argument("--repeat", type=int, default=50, help="runs inside a graph")
    options = parser.parse_args()
    file = file_of(options, "kernels", small=not torch.cuda.is_available())
    found: dict[str, Any] = {"machine": machine(), "kernels": []}
    if not torch.cuda.is_available():
        print("there is no GPU: the kernels are for GPUs, so there is nothing to measure")
    else:
        example = torch.zeros(2, 16, 4, 4, device="cuda").to(memory_format=torch.channels_last)
        if not kernels.fast(example):
            raise SystemExit("natpp's kernels cannot be used here; the log says why")
        for name, (op, moved, shapes) in operations().items():
            found["kernels"] += [measure(name, op, moved, shape, options.repeat) for shape in shapes]
        print(table(found["kernels"]))
    if file:
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
