"""Settings and helpers that all tests share."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)  # tiny tensors: more threads only get in each other's way

settings.register_profile(
    "natpp", deadline=None, derandomize=True, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("natpp")


@pytest.fixture
def data_folder() -> Path:
    """The folder of real data; tests that need it skip where it is not."""
    folder = os.environ.get("NATPP_DATA")
    if not folder:
        pytest.skip("NATPP_DATA is not set: real data was looked for nowhere")
    if not Path(folder).is_dir():
        pytest.skip(f"NATPP_DATA is {folder!r}, which is no folder")
    return Path(folder)
