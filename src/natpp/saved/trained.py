"""The files of a training: the weights, with the architecture of a network, and `result.json`.

The folder of a fine-tuned result also has a folder `module`, in the format of a saved result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from natpp.arch.formats import from_dict
from natpp.arch.networks import Setting
from natpp.errors import FormatError, SettingError
from natpp.files import write_whole
from natpp.fx.traced import copied
from natpp.nets.network import build_network

NETWORK, MODULE, RESULT = "network.safetensors", "module.safetensors", "result.json"
SAVED = "module"


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


def read_result(folder: Path) -> dict[str, Any]:
    """What a training wrote about itself; empty for a folder of something else."""
    file = folder / RESULT
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise FormatError(f"{str(file)!r} is damaged: {error}") from None
    return found


def restore_trained(folder: Path, module: nn.Module | None = None) -> nn.Module:
    """The network that a training from scratch wrote, in evaluation mode, or a copy of a module with its weights."""
    if (folder / NETWORK).is_file():
        weights, mark = _read(folder / NETWORK)
        try:
            notes = json.loads(mark)
            made: nn.Module = build_network(from_dict(notes["architecture"]), Setting(**notes["setting"])).eval()
        except (ValueError, LookupError, TypeError) as error:
            raise FormatError(f"{str(folder / NETWORK)!r} is damaged: {error}") from None
    elif module is None:
        raise SettingError(
            f"{str(folder)!r} has the weights of a fine-tuned module, but not the module: pass the model that was "
            f"fine-tuned, natpp.restore({str(folder)!r}, module=model)"
        )
    else:
        weights, made = _read(folder / MODULE)[0], copied({"": module})[""].cpu()
    try:
        made.load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise FormatError(f"the weights in {str(folder)!r} do not fit the module: {reason}") from None
    return made


def _read(file: Path) -> tuple[dict[str, Tensor], str]:
    """The weights in a file, and its mark."""
    try:
        with safe_open(file, "pt") as found:
            weights = {name: found.get_tensor(name).clone() for name in found.keys()}  # noqa: SIM118 (no dict)
            return weights, (found.metadata() or {}).get("natpp", "")
    except (OSError, SafetensorError) as error:
        raise FormatError(f"cannot read {str(file)!r}: {error}") from None
