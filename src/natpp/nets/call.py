"""Calling any module: what it takes is a tensor, a tuple of arguments or a dict of named ones."""

from __future__ import annotations

from typing import Any

from torch import nn


def call(module: nn.Module, inputs: Any) -> Any:
    """What a module gives for inputs."""
    if isinstance(inputs, dict):
        return module(**inputs)
    if isinstance(inputs, tuple | list):
        return module(*inputs)
    return module(inputs)
