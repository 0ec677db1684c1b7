"""How a result is written: an architecture into a file, a module into a folder, either as a page.

The writers register themselves, and so does what lists the layers of a module. Torch is imported only for modules.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from natpp.arch.formats import to_json
from natpp.core.result import Result
from natpp.files import write_whole
from natpp.registry import LAYERS, WRITERS
from natpp.report.page import write_report

if TYPE_CHECKING:
    from natpp.saved.onnx import Exported


def write_architecture(result: Result, file: Path) -> Path:
    """Write an architecture as JSON, with how it was found; the file."""
    write_whole(file, to_json(result.after, result.to_dict()) + "\n")
    return file


def write_module(result: Result, folder: Path) -> Path:
    """Write a module as weights, graph and Python file; the folder."""
    from natpp.saved.save import save_result

    return save_result(result, folder)


def write_onnx(result: Result, file: Path, tolerance: float = 1e-3) -> Exported:
    """Write a module as an ONNX file, checked in onnxruntime; how close it comes."""
    from natpp.saved import onnx

    return onnx.write_onnx(result.module, result.subject.traced.example, file, tolerance)  # type: ignore[attr-defined]


def write_page(result: Result, file: Path, *trained: str | Path) -> Path:
    """Write the report of a result, with the accuracies of trainings; the file."""
    return write_report(result.to_dict(), file, trained=trained)


def list_layers(result: Result) -> list[dict[str, Any]]:
    """The layers of a module before and after, with what each costs."""
    from natpp.saved.layers import layers_of

    return layers_of(result)


WRITERS.add("architecture", write_architecture)
WRITERS.add("module", write_module)
WRITERS.add("onnx", write_onnx)
WRITERS.add("page", write_page)
LAYERS.add("module", list_layers)
