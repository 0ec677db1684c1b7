"""Weights trained elsewhere, loaded into a network of the zoo: from a file, or from a mapping of tensors."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from natpp.errors import FormatError, SettingError, counted, shortened

NESTED = ("state_dict", "model", "net")  # keys under which training scripts store the weights
RENAMED = (("module.", ""), ("linear.", "fc."))  # prefixes of other projects' names, and ours
LISTED = 3  # names in a message


def load_weights(network: nn.Module, weights: str | Path | Mapping[str, Tensor]) -> None:
    """Load weights into a network in place; an error names what is missing, unknown or of another shape.

    A file is safetensors or a checkpoint of torch, which is read with `weights_only=True`.
    """
    given: Mapping[str, Any] = weights if isinstance(weights, Mapping) else _read(Path(weights))
    given = next((given[key] for key in NESTED if isinstance(given.get(key), Mapping)), given)
    wanted = network.state_dict()
    found: dict[str, Tensor] = {}
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise SettingError(
                f"the weights have {shortened(str(name))} of type {type(tensor).__name__}, expected names and tensors"
            )
        found[_renamed(name, wanted)] = tensor
    counters = {name for name in wanted if name.endswith(".num_batches_tracked")}  # not in every file, and not needed
    missing = [name for name in wanted if name not in found and name not in counters]
    unknown = [name for name in found if name not in wanted]
    other = [
        f"{name} ({_sides(found[name])}, expected {_sides(wanted[name])})"
        for name in wanted
        if name in found and found[name].shape != wanted[name].shape
    ]
    wrong = [
        f"{what} {_listed(names)}"
        for what, names in (("missing:", missing), ("unknown:", unknown), ("of another shape:", other))
        if names
    ]
    if wrong:
        raise FormatError(f"the weights do not fit the network; {'; '.join(wrong)}")
    network.load_state_dict(found, strict=False)


def _read(file: Path) -> Mapping[str, Any]:
    """The content of a file of weights."""
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        content = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise FormatError(f"cannot read the weights {shortened(str(file))}: {error.strerror or error}") from None
    except (SafetensorError, RuntimeError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise FormatError(
            f"{shortened(str(file))} is not a safetensors file or a torch checkpoint of tensors alone, or it is "
            f"damaged ({type(error).__name__})"
        ) from None
    if not isinstance(content, Mapping):
        raise FormatError(
            f"{shortened(str(file))} holds a value of type {type(content).__name__}, expected names and tensors: "
            "save model.state_dict()"
        )
    return content


def _renamed(name: str, wanted: Mapping[str, Tensor]) -> str:
    """The network's name for a tensor."""
    for theirs, ours in RENAMED:
        if name not in wanted and name.startswith(theirs):
            name = ours + name.removeprefix(theirs)
    return name


def _listed(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {counted(more, 'more tensor')}" if more > 0 else "")


def _sides(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "one number"
