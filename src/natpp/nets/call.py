"""Call any module with a tensor, a tuple of arguments or a dict of named arguments."""

from __future__ import annotations

from typing import Any

from torch import nn


def call(module: nn.Module, inputs: Any) -> Any:
    """The output of a module for these inputs."""
    if isinstance(inputs, dict):
        return module(**inputs)
    if isinstance(inputs, tuple | list):
        return module(*inputs)
    return module(inputs)
