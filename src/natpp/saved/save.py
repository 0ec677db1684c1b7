"""Save a rewritten module to a folder: weights, architecture, and a Python file that builds it without natpp.

`weights.safetensors` is the state dict, and `constants.safetensors`, if present, holds the buffers that are not in it.
`architecture.json` has the graph, its layers, and what was changed at which cost. `model.py` is the module as plain
torch. Custom layers and functions are saved by name only; restoring them needs the original module.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, fx, nn

from natpp.arch.graph import NULL
from natpp.decisions.operation import cost as site_cost
from natpp.errors import NatppError, SettingError
from natpp.files import whole_folder
from natpp.fx.blocks import Block, Term
from natpp.fx.traced import batch_of
from natpp.saved.content import ARCHITECTURE, CONSTANTS, FORMAT, SOURCE, VERSION, WEIGHTS, Content, content_of
from natpp.saved.describe import CONTAINERS, Layer
from natpp.saved.source import module_source
from natpp.saved.values import UnwritableError, encode
from natpp.saved.vocabulary import address_of, name_of

if TYPE_CHECKING:
    from natpp.subjects.module_result import ModuleResult

LOG = logging.getLogger("natpp")


def save_result(result: ModuleResult, folder: str | Path) -> Path:
    """Write a result to a folder atomically; returns the folder."""

    module = result.module
    if not isinstance(module, fx.GraphModule):
        raise SettingError(f"cannot save a {type(module).__name__}: expected the module that natpp made")
    content = content_of(module, result.traced.example)
    try:
        source, missing = module_source(content), None
    except UnwritableError as error:
        source, missing = None, str(error)
    data = result_data(result) | {"missing": missing, "module": content_data(content)}
    with whole_folder(folder, ARCHITECTURE, (WEIGHTS, CONSTANTS, ARCHITECTURE, SOURCE)) as fresh:
        _write_tensors(fresh / WEIGHTS, module.state_dict())
        if content.constants:
            _write_tensors(fresh / CONSTANTS, content.constants)
        (fresh / ARCHITECTURE).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        if source is not None:
            (fresh / SOURCE).write_text(source, encoding="utf-8")
        for file in fresh.iterdir():
            file.chmod((fresh / ARCHITECTURE).stat().st_mode)  # safetensors makes files readable for their owner only
    if missing is not None:
        LOG.warning(
            "%s: %s was not written: %s. Restore it with natpp.restore(folder, module=original)",
            folder,
            SOURCE,
            missing,
        )
    elif content.given:
        parts = ", ".join(content.given[:3])
        LOG.warning("%s: %s are custom: restore with natpp.restore(folder, module=original)", folder, parts)
    return Path(folder)


def content_data(content: Content) -> dict[str, Any]:
    """The content of a module as JSON data."""
    module = content.module
    return {
        "name": type(module).__name__,
        "training": module.training,
        "modes": content.modes,
        "frozen": content.frozen,
        "channels_last": content.flipped,
        "same": dict(content.same),
        "given": content.given,
        "example": _form(content.example),
        "layers": {path: _layer_data(layer, module.get_submodule(path)) for path, layer in content.layers.items()},
        "tensors": {path: _tensor_data(content, path, tensor) for path, tensor in content.tensors.items()},
        "graph": [_node_data(node) for node in module.graph.nodes],
    }


def _layer_data(layer: Layer | None, part: nn.Module) -> dict[str, Any]:
    if layer is None or not layer.known:
        return {"given": address_of(type(part))}
    return _known_data(layer)


def _known_data(layer: Layer) -> dict[str, Any]:
    home = "torch.nn" if layer.of_torch else "natpp"
    data: dict[str, Any] = {"class": f"{home}.{layer.kind.__name__}"}
    if layer.kind in CONTAINERS:
        return data | {"parts": {name: _known_data(part) for name, part in layer.parts.items()}}
    data["arguments"] = {
        name: {"layer": _known_data(value)} if isinstance(value, Layer) else encode(value)
        for name, value in layer.arguments.items()
    }
    return data | ({"biased": True} if layer.biased else {})


def _tensor_data(content: Content, path: str, tensor: Tensor) -> dict[str, Any]:
    kind = "parameter" if isinstance(tensor, nn.Parameter) else "constant" if path in content.constants else "buffer"
    return {"kind": kind, "shape": list(tensor.shape)}


def _node_data(node: fx.Node) -> dict[str, Any]:
    target = node.target
    if node.op == "call_function":
        target = name_of(target) or address_of(target)
    return {
        "name": node.name,
        "op": node.op,
        "target": str(target),
        "args": [encode(value) for value in node.args],
        "kwargs": {name: encode(value) for name, value in node.kwargs.items()},
    }


def _form(example: Any) -> Any:
    """The structure of an example input as JSON data, without its values."""
    if isinstance(example, Tensor):
        return {"tensor": list(example.shape), "dtype": str(example.dtype).removeprefix("torch.")}
    if type(example) is dict:
        return {"dict": [[encode(key), _form(value)] for key, value in example.items()]}
    if type(example) is tuple:
        return {"tuple": [_form(value) for value in example]}
    return [_form(value) for value in example] if type(example) is list else encode(example)


def result_data(result: ModuleResult) -> dict[str, Any]:
    """The result as readable JSON data."""
    from natpp import __version__

    return {
        "format": FORMAT,
        "version": VERSION,
        "versions": {"natpp": __version__, "torch": torch.__version__},
        "settings": result.settings,
        "cost_before": result.cost_before.to_dict(),
        "cost_after": result.cost_after.to_dict(),
        "changes": [vars(change) for change in result.changes],
        "blocks": [_block_data(result, block, ops) for block, ops in zip(result.blocks, result.ops, strict=True)],
        "log_prob": result.log_prob,
        "probabilities": result.probabilities,
        "masked": result.masked,
        "measured": [*([] if result.learned is None else [result.learned.measured]), *result.measured],
        "learned": None if result.learned is None else result.learned.to_dict(),
        "notes": list(result.notes),
    }


def _block_data(result: ModuleResult, block: Block, ops: tuple[str, ...]) -> dict[str, Any]:
    """A block with its terms: what each was and is, and [parameters, multiply-adds] of its alternatives."""
    (before, _), (after, _) = block.alive(block.ops), block.alive(ops)
    gone = {change.name for change in result.changes if change.after == NULL}
    terms = []
    for index, ((target, term), op) in enumerate(zip(block.terms, ops, strict=True)):
        name = block.edge_name(index)
        data: dict[str, Any] = {"from": term.source, "to": target, "before": term.op, "after": op, "site": None}
        data |= {"name": name, "alive": [before[index], after[index] and name not in gone]}
        if term.site is not None:
            place = term.site.place
            data |= {"site": term.site.name, "channels": [place.channels_in, place.channels_out]}
            data |= {"stride": place.stride, "size": list(place.size)}
            kept = {**dict.fromkeys(result.probabilities.get(name, ())), term.op: None, op: None}
            data["costs"] = {other: list(_term_cost(result, term, other)) for other in kept}
        terms.append(data)
    return {"name": block.name, "kind": block.kind, "outputs": list(block.outputs), "terms": terms}


def _term_cost(result: ModuleResult, term: Term, op: str) -> tuple[int, int]:
    assert term.site is not None
    own = term.site.op if op == term.op else op  # a projection is listed as a skip in its block
    return site_cost(term.site, own, batch_of(result.traced.example), result.traced.parts)


def _write_tensors(file: Path, tensors: Mapping[str, Any]) -> None:
    written: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise UnwritableError(
                f"cannot save {name} of the state dict: it is a {type(tensor).__name__}, expected a tensor"
            )
        plain = tensor.detach().cpu().contiguous()
        storage = plain.untyped_storage()
        if storage.data_ptr() in taken or storage.nbytes() != plain.nbytes:
            plain = plain.clone()
        taken.add(storage.data_ptr())
        written[name] = plain
    try:
        save_file(written, file)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise NatppError(f"the weights cannot be written as safetensors: {error}") from error
