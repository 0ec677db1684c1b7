"""Settings and helpers that all tests share."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from PIL import Image

from natpp.data.batches import Batches
from natpp.data.images import Images

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


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """A folder of 30 pictures of mixed sizes, striped across or down, 10 of them in val, the others in train."""
    folder = tmp_path / "stripes"
    for number in range(30):
        across = number % 2 == 0
        file = folder / ("val" if number % 6 < 2 else "train") / ("across" if across else "down") / f"{number:02}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.zeros((40 + number, 44 + number % 5, 3), dtype=np.uint8)
        (pixels if across else pixels.transpose(1, 0, 2))[:: 2 + number % 3] = 200
        Image.fromarray(pixels).save(file)
    return folder


@pytest.fixture(scope="session")
def stripes() -> Batches:
    """80 images of 8 x 8 pixels, striped across or down in noise; 20 of them are set aside for validation."""
    pixels = np.random.default_rng(0).integers(0, 100, size=(80, 3, 8, 8))
    labels = np.arange(80) % 2
    pixels[labels == 0, :, ::2] += 120
    pixels[labels == 1, :, :, ::2] += 120
    given = pixels.astype(np.uint8), labels.astype(np.int64)
    return Batches(Images("stripes", 2, *given, given[0][:4], given[1][:4]))
