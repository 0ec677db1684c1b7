"""The machine and versions that a result was measured with."""

from __future__ import annotations

import platform
from typing import Any

import torch

import natpp


def machine() -> dict[str, Any]:
    """Versions, processor and GPU."""
    return {
        "natpp": natpp.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.machine(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
