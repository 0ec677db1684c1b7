"""A module as an ONNX file, checked in onnxruntime against the module itself."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves, tree_map

from natpp.errors import NatppError, SettingError
from natpp.files import write_whole
from natpp.fx.traced import batch_of, copied
from natpp.nets.call import call

NEEDED = ("onnx", "onnxscript", "onnxruntime")
MOST = 2**31 - 2**20  # bytes of weights that one file can hold
OTHER_BATCHES = (1, 3)  # of the random inputs, where the batch size is free


@dataclass(frozen=True)
class Exported:
    """An ONNX file, and how close onnxruntime comes to the module.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
        >>> found = natpp.export(model, "model.onnx", torch.randn(1, 3, 8, 8))
        >>> found.path.name, found.inputs, found.any_batch, found.difference < 1e-5
        ('model.onnx', {'input': ('batch', 3, 8, 8)}, True, True)
    """

    path: Path
    opset: int
    inputs: dict[str, tuple[int | str, ...]]
    """names and shapes; a dimension with a name may have any size"""
    any_batch: bool
    """whether the batch size may change; if not, it is that of the example"""
    difference: float
    """largest absolute difference of an output from the module's, on the example and two random inputs"""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"path": str(self.path)}

    def __str__(self) -> str:
        shapes = ", ".join(f"{name} ({', '.join(map(str, shape))})" for name, shape in self.inputs.items())
        near = f"onnxruntime differs from the module by at most {self.difference:.2g} on 3 inputs"
        return f"{self.path}: opset {self.opset}, {shapes}; {near}"


def write_onnx(module: nn.Module, example: Any, path: str | Path, tolerance: float = 1e-3) -> Exported:
    """Write a module in evaluation mode as an ONNX file, unless onnxruntime computes something else.

    The largest difference may be `tolerance` times the largest output (or times 1, if that is larger). The batch size
    stays free if `torch.export` can keep it so.
    """
    _check_installed()
    size = sum(one.numel() * one.element_size() for one in (*module.parameters(), *module.buffers()))
    if size > MOST:
        raise SettingError(f"the module has {size / 2**30:.1f} GiB of weights, and an ONNX file holds at most 2")
    module = copied({"": module})[""].cpu().eval()
    example = tree_map(lambda leaf: leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf, example)
    try:
        made, any_batch = _written(module, example, any_batch=True), True
        difference = _difference(module, example, made, tolerance, OTHER_BATCHES)
    except Exception:  # probably a fixed batch size; any other cause raises again below
        made, any_batch = _written(module, example, any_batch=False), False
        difference = _difference(module, example, made, tolerance, (batch_of(example),) * 2)
    write_whole(path, made)
    session = _session(made)
    inputs = {one.name: tuple(one.shape) for one in session.get_inputs()}
    return Exported(Path(path), _opset(made), inputs, any_batch, difference)


def _check_installed() -> None:
    missing = []
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    if missing:
        raise NatppError(f"ONNX files need {' and '.join(missing)}: pip install 'natpp[onnx]'")


def _written(module: nn.Module, example: Any, *, any_batch: bool) -> bytes:
    """The bytes of the file."""
    shapes = None
    if any_batch:
        own = batch_of(example)
        if own == 1:  # torch.export takes a dimension of size 1 for a fixed one
            example = _of_size(example, 2)
        batch = Dim("batch")
        arguments = _arguments(example)
        shapes = tree_map(lambda leaf: {0: batch} if _has_batch(leaf, batch_of(example)) else None, arguments)
        shapes = shapes[0] or shapes[1]
    args, kwargs = _arguments(example)
    with _quiet():
        try:
            program = torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False)
            made = torch.onnx.export(program, dynamo=True, verbose=False, dynamic_shapes=shapes)
        except Exception as error:  # whatever torch finds in the user's module
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise NatppError(f"{type(module).__name__} cannot be written as ONNX: {reason}") from error
    assert made is not None
    for graph in (made.model.graph, *(function.graph for function in made.model.functions.values())):
        for node in graph:
            node.metadata_props.clear()  # stack traces, with paths of this machine
    buffer: Any = io.BytesIO()
    made.save(buffer)
    return bytes(buffer.getvalue())


@torch.no_grad()
def _difference(module: nn.Module, example: Any, made: bytes, tolerance: float, batches: tuple[int, ...]) -> float:
    """The largest difference on the example and on a random input of each batch size; an error if it is too large."""
    session, largest = _session(made), 0.0
    names = [one.name for one in session.get_inputs()]
    chance = torch.Generator().manual_seed(0)
    for given in (example, *(_random(_of_size(example, count), chance) for count in batches)):
        wanted = [leaf for leaf in tree_leaves(call(module, given)) if isinstance(leaf, Tensor)]
        leaves = (leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor))
        found = session.run(None, {name: leaf.numpy() for name, leaf in zip(names, leaves, strict=True)})
        for one, other in zip(found, wanted, strict=True):
            expected = other.double().numpy()
            off = float(np.abs(one.astype(np.float64) - expected).max(initial=0.0))
            most = tolerance * max(1.0, float(np.abs(expected).max(initial=0.0)))
            if not off <= most:
                raise NatppError(
                    f"onnxruntime differs from the module by {off:.3g}, where at most {most:.3g} is allowed "
                    f"(tolerance {tolerance:g}): nothing was written"
                )
            largest = max(largest, off)
    return largest


def _session(made: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    return onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])


def _opset(made: bytes) -> int:
    import onnx

    return int(next(one.version for one in onnx.load_from_string(made).opset_import if not one.domain))


def _arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, dict):
        return (), example
    return tuple(example) if isinstance(example, tuple | list) else (example,), {}


def _has_batch(leaf: Any, count: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == count


def _of_size(example: Any, count: int) -> Any:
    """The example with another batch size: its rows, again and again."""
    own = batch_of(example)

    def sized(leaf: Any) -> Any:
        return leaf[torch.arange(count) % own] if _has_batch(leaf, own) else leaf

    return tree_map(sized, example)


def _random(example: Any, chance: torch.Generator) -> Any:
    """Normal numbers with the example's mean and deviation; integers are the example's, shuffled."""

    def drawn(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if not leaf.is_floating_point():
            return leaf.flatten()[torch.randperm(leaf.numel(), generator=chance)].view(leaf.shape)
        spread = leaf.std(correction=0).item() if leaf.numel() else 0.0
        return (leaf.mean() + (spread or 1.0) * torch.randn(leaf.shape, generator=chance)).to(leaf.dtype)

    return tree_map(drawn, example)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the remarks of the exporter."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
