"""The files of a training: the weights, with the architecture of a network, and `result.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import nn

from natpp.files import write_whole

NETWORK, MODULE, RESULT = "network.safetensors", "module.safetensors", "result.json"


def write_trained(folder: Path, module: nn.Module, found: Mapping[str, Any]) -> None:
    """Write the weights of a network or module, and everything that was found about it."""
    network = "architecture" in found
    weights = {
        name: tensor.detach().cpu().clone().contiguous()
        for name, tensor in module.state_dict().items()
        if not (network and name.startswith("auxiliary."))  # for training only
    }
    notes = {"natpp": "network", "architecture": found["architecture"], "setting": found["network"]} if network else {}
    mark = json.dumps(notes) if network else "module"  # one entry: they have no order
    write_whole(folder / (NETWORK if network else MODULE), save(weights, metadata={"natpp": mark}))
    write_whole(folder / RESULT, json.dumps(found, indent=2) + "\n")
