"""An export: the module of what is given, with an example input, written as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from natpp.core.result import Result
from natpp.errors import SettingError
from natpp.runs.evaluating import module_of
from natpp.runs.trainings import Trained, example_in
from natpp.saved.onnx import Exported, write_onnx
from natpp.saved.restore import read_saved


def run_export(
    of: nn.Module | Result | Trained | str | Path, path: str | Path, example_input: Any, tolerance: float
) -> Exported:
    """Write the module of a result, a training or a folder, or any module, as an ONNX file."""
    module, _ = module_of(of)
    if example_input is None:
        result = of.result if isinstance(of, Trained) else read_saved(of) if isinstance(of, str | Path) else of
        if not isinstance(result, Result | dict):
            raise SettingError("a module needs an example input: natpp.export(model, 'model.onnx', example_input=x)")
        example_input = example_in(result)
    return write_onnx(module, example_input, path, tolerance)
