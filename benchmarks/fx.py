"""Speed of tracing, measuring and rewriting modules, and of `optimize` at half the multiply-adds.

Seconds on one core, the minimum of several rounds, and how they grow when the network doubles. With another checkout
(`--against`) also the speed-up over it: the two alternate.
`python benchmarks/fx.py [--against PATH] [--only NAME ...] [--rounds N] [--json FILE | --keep]`
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from keep import add_flags, file_of, machine
from torch import Tensor, nn

import natpp
from natpp.decisions.edits import block_edits
from natpp.fx.blocks import find_blocks
from natpp.fx.rewrite import rewrite
from natpp.fx.trace import trace
from natpp.nets.measure import module_cost

CHAINS = (40, 80, 160, 320)  # convolutions
ZOO = ("resnet50", "mobilenetv2_imagenet")
NAMES = (*(f"chain_{count}" for count in CHAINS), *ZOO)
STEPS = ("trace", "measure", "rewrite", "optimize")


class Residual(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + x)
        return out


def network(name: str) -> tuple[nn.Module, Tensor]:
    """A network with an example input: a chain of residual blocks, or a zoo network."""
    torch.manual_seed(0)
    if name.startswith("chain_"):
        blocks = (Residual(8) for _ in range(int(name.removeprefix("chain_")) // 2))
        return nn.Sequential(*blocks), torch.randn(1, 8, 16, 16)
    return natpp.zoo.network(name), torch.randn(1, 3, 224, 224)


def seconds(function: Callable[[], Any]) -> tuple[float, Any]:
    """CPU time of this process, so that other work on the machine matters little, and the function's result."""
    gc.collect()  # so that no step pays for what others left
    start = time.process_time()
    found = function()
    return time.process_time() - start, found


def measured(names: list[str]) -> dict[str, dict[str, float]]:
    """Seconds of each step for each network, in this process, after a warm-up."""
    torch.set_num_threads(1)
    warm, x = network("chain_40")
    natpp.optimize(warm, example_input=x, budget={"madds": 0.5})
    found = {}
    for name in names:
        module, x = network(name)
        row = dict.fromkeys(STEPS, 0.0)
        row["trace"], traced = seconds(lambda module=module, x=x: trace(module, x))
        row["measure"], _ = seconds(lambda module=module, x=x: module_cost(module, x))
        blocks = find_blocks(traced)
        ops = [block.ops for block in blocks]
        row["rewrite"], _ = seconds(
            lambda traced=traced, blocks=blocks, ops=ops: rewrite(traced, block_edits(blocks, ops))
        )
        row["optimize"], result = seconds(
            lambda module=module, x=x: natpp.optimize(module, example_input=x, budget={"madds": 0.5})
        )
        found[name] = row | {"madds": result.cost_after.madds, "params": result.cost_after.params}
    return found


def of_checkout(folder: Path, names: list[str]) -> dict[str, dict[str, float]]:
    """The same for the package in another checkout, in a separate process."""
    source = folder / "src" if (folder / "src").is_dir() else folder
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", "--only", *names]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    printed = subprocess.check_output(command, env=environment, cwd=folder, text=True)  # noqa: S603
    found: dict[str, dict[str, float]] = json.loads(printed.splitlines()[-1])
    return found


def least(rounds: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    return {name: {key: min(found[name][key] for found in rounds) for key in rounds[0][name]} for name in rounds[0]}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="folder of another checkout to compare with")
    parser.add_argument("--only", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--rounds", type=int, default=3)
    add_flags(parser)
    parser.add_argument("--worker", action="store_true", help="one round in this process, printed as JSON")
    options = parser.parse_args(arguments)
    file = file_of(options, "fx")
    if options.worker:
        print(json.dumps(measured(options.only)))
        return
    here = Path(natpp.__file__).parents[1]
    rounds: dict[Path, list[dict[str, dict[str, float]]]] = {here: []}
    if options.against is not None:
        rounds[options.against.resolve()] = []
    for _ in range(options.rounds):
        for folder, found in rounds.items():
            found.append(of_checkout(folder, options.only))
    new, *others = (least(found) for found in rounds.values())
    for number, (name, row) in enumerate(new.items()):
        before = new.get(f"chain_{int(name[6:]) // 2}" if name.startswith("chain_") else "")
        for step in STEPS:
            growth = f"  x {row[step] / before[step]:4.2f} of half the size" if before else ""
            faster = f"  {others[0][name][step] / row[step]:5.2f} times as fast" if others else ""
            print(f"{name:<22}{step:<10}{row[step]:8.3f} s{faster}{growth}")
        if others and any(others[0][name][key] != row[key] for key in ("madds", "params")):
            print(f"{name:<22}another answer: {others[0][name]}, here {row}")
        print() if number + 1 < len(new) else None
    if file:
        kept = {"machine": machine(), "rounds": options.rounds, "here": new}
        kept |= {"against": others[0]} if others else {}
        file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
