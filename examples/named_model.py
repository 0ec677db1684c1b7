"""Named models: make a published cell and a hand-crafted network cheaper in seconds, without data."""

from pathlib import Path

import torch

import natpp
from natpp.zoo import network

darts = natpp.optimize("darts")  # the default policy and the strict budget
print(darts)
Path("darts.svg").write_text(natpp.draw(darts.after, against="darts"), encoding="utf-8")

resnet = network("resnet20")  # a plain nn.Module with fresh weights; load your own first
result = natpp.optimize(resnet, example_input=torch.randn(1, 3, 32, 32), budget={"madds": 0.6})
print(f"resnet20: {len(result.changes)} changes, {result.cost_before.madds:,} → {result.cost_after.madds:,} MAdds")
