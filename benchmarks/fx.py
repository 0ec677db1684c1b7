"""How long any module takes: trace, transform and rewrite, over a doubling series of sites, and a ResNet-50.

Ratios within one run. `python benchmarks/fx.py [--json FILE | --keep]`
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from typing import Any

import torch
from keep import add_flags, file_of, machine
from torch import Tensor, nn

import natpp
from natpp.fx.blocks import find_blocks
from natpp.fx.rewrite import rewrite
from natpp.fx.trace import trace

SERIES = (125, 250, 500, 1000)  # sites


class Residual(nn.Module):
    """Two convolutions of any kernels and a shortcut; one wide, it is a bottleneck."""

    def __init__(self, channels: int, inner: int, wide: int, kernels: tuple[int, ...], stride: int = 1):
        super().__init__()
        layers: list[nn.Module] = []
        widths = [channels, *[inner] * (len(kernels) - 1), wide]
        step = len(kernels) // 2 if len(kernels) > 2 else 0  # the stride is in the 3x3 of a bottleneck
        for number, kernel in enumerate(kernels):
            layers.append(
                nn.Conv2d(
                    *(widths[number], widths[number + 1], kernel, stride if number == step else 1, kernel // 2),
                    bias=False,
                )
            )
            layers.append(nn.BatchNorm2d(widths[number + 1]))
            if number < len(kernels) - 1:
                layers.append(nn.ReLU(inplace=True))
        self.branch = nn.Sequential(*layers)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels != wide:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.branch(x) + self.shortcut(x))


def resnet_50() -> nn.Module:
    blocks: list[nn.Module] = []
    channels = 64
    for stage, depth in enumerate((3, 4, 6, 3)):
        inner = 64 * 2**stage
        for index in range(depth):
            blocks.append(Residual(channels, inner, 4 * inner, (1, 3, 1), 2 if stage and not index else 1))
            channels = 4 * inner
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)),
        *blocks,
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)),
    )


def timed(module: nn.Module, image: Tensor, **options: Any) -> dict[str, float]:
    start = time.perf_counter()
    traced = trace(module, image)
    blocks = find_blocks(traced)
    between = time.perf_counter()
    rewrite(traced, blocks, [block.ops for block in blocks])
    written = time.perf_counter()
    result = natpp.optimize(module, example_input=image, **options)
    end = time.perf_counter()
    return {
        "trace_s": between - start,
        "rewrite_s": written - between,
        "optimize_s": end - written,
        "changes": len(result.changes),
        "madds": result.cost_after.madds / result.cost_before.madds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_flags(parser)
    options = parser.parse_args()
    file = file_of(options, "fx")
    found: dict[str, Any] = {"machine": machine(), "series": {}}
    natpp.optimize(nn.Sequential(nn.Conv2d(3, 3, 3, padding=1)), example_input=torch.randn(1, 3, 8, 8))  # warm-up
    found["resnet_50"] = timed(resnet_50(), torch.randn(1, 3, 224, 224))
    found["resnet_50"]["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    found["resnet_50_madds_0.6"] = timed(resnet_50(), torch.randn(1, 3, 224, 224), budget={"madds": 0.6})
    for share in (True, False):
        last = None
        for sites in SERIES:
            module = nn.Sequential(*(Residual(4, 4, 4, (3, 3)) for _ in range(sites // 2)))
            row = timed(module, torch.randn(1, 4, 8, 8), share_blocks=share)
            row["ratio"] = row["optimize_s"] / last if last else float("nan")
            last = row["optimize_s"]
            found["series"][f"{sites} sites, {'shared' if share else 'each block'}"] = row
    for name, row in {**found.pop("series"), **{key: found[key] for key in found if key.startswith("resnet")}}.items():
        print(f"{name:<28}", "  ".join(f"{key} {figure:.3g}" for key, figure in row.items()))
        found[name] = row
    if file:
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
