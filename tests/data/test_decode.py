"""Pictures decoded: which part of them is used, warnings that are none of ours, and torchvision where it is."""

import sys
import threading
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from natpp.data import decode
from natpp.data.decode import (
    TRIES,
    UnreadableError,
    middle_of_photograph,
    middle_part,
    random_part,
    read_picture,
    scaled,
)


def test_the_middle() -> None:
    assert middle_part(9, 4) == (2, 0, 6, 4)
    assert middle_part(4, 9) == (0, 2, 4, 6)
    assert middle_of_photograph(256, 256) == (16, 16, 240, 240)  # 224 of 256
    assert middle_of_photograph(512, 256) == (144, 16, 368, 240)


def test_a_photograph_is_scaled_to_eight_sevenths_and_cut(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((320, 256))
    once = scaled(picture, middle_of_photograph(*picture.size), 28)
    whole = picture.resize((40, 32), Image.Resampling.BILINEAR).crop((6, 2, 34, 30))
    assert once.shape == (3, 28, 28)
    assert np.abs(once.astype(int) - np.asarray(whole).transpose(2, 0, 1)).max() <= 2


def test_random_parts_have_the_area_and_shape_they_should() -> None:
    draws = torch.rand(3000, TRIES, 4, generator=torch.Generator().manual_seed(0)).tolist()
    width, height = 400, 300
    parts = np.array([random_part(width, height, draw) for draw in draws])
    wide, tall = parts[:, 2] - parts[:, 0], parts[:, 3] - parts[:, 1]
    assert parts.min() >= 0
    assert (parts[:, 2].max(), parts[:, 3].max()) == (width, height)
    area, ratio = wide * tall / (width * height), wide / tall
    assert 0.079 < area.min() < 0.09
    assert area.max() > 0.97
    assert abs(area[area < 0.5].mean() - 0.29) < 0.01  # uniform, where every shape fits
    assert 0.74 < ratio.min() < 0.76
    assert 1.31 < ratio.max() < 1.35
    assert abs(np.log(ratio[area < 0.5]).mean()) < 0.01
    assert abs(np.corrcoef(parts[:, 0], parts[:, 1])[0, 1]) < 0.5
    for start, end, most in ((0, 2, width), (1, 3, height)):  # as much room before as after, on average
        assert abs((parts[:, start] - (most - parts[:, end])).mean()) < most / 50


def test_a_part_that_never_fits_is_the_largest_in_the_middle() -> None:
    whole = [[1.0, 0.5, 0.0, 0.0]] * TRIES  # a square of the picture's area
    assert random_part(400, 100, whole) == (133, 0, 266, 100)
    assert random_part(100, 400, whole) == (0, 133, 100, 266)
    assert random_part(1, 300, whole) == (0, 149, 1, 150)
    assert random_part(110, 100, whole) == (0, 0, 110, 100)  # whose own ratio is allowed
    assert random_part(8, 8, whole) == (0, 0, 8, 8)


def broken_exif(file: Path) -> None:
    Image.new("L", (4, 4), 77).save(file, exif=b"Exif\0\0II*\0\x08\0\0\0\x05\0")


def test_in_a_thread_a_warning_is_no_reason_to_leave_an_image_out(tmp_path: Path) -> None:
    broken_exif(tmp_path / "1.jpg")
    found: list[Any] = []
    before = list(warnings.filters)
    assert before[0][0] == "error"  # so the tests have it
    thread = threading.Thread(target=lambda: found.append(read_picture(str(tmp_path / "1.jpg")).getpixel((0, 0))))
    thread.start()
    thread.join()
    assert found == [(77, 77, 77)]
    assert list(warnings.filters) == before


class Decoder(types.ModuleType):
    """As much of torchvision.io as is used, on top of Pillow; the wrong way round, so that it can be told from it."""

    class ImageReadMode:
        RGB = "RGB"

    @staticmethod
    def read_file(path: str) -> bytes:
        return Path(path).read_bytes()

    @staticmethod
    def decode_jpeg(data: bytes, mode: str) -> torch.Tensor:
        import io

        if b"broken" in data:
            raise RuntimeError("Image is incomplete\nor truncated")
        with Image.open(io.BytesIO(data)) as picture:
            return torch.from_numpy(np.array(picture.convert(mode))).permute(2, 0, 1).flip(0)


def test_torchvision_decodes_where_it_can_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    io = Decoder("torchvision.io")
    package = types.ModuleType("torchvision")
    package.io = io  # type: ignore[attr-defined]
    rng = np.random.default_rng(0)
    pixels = np.asarray(Image.fromarray(rng.integers(0, 256, (2, 2, 3), dtype=np.uint8)).resize((8, 6)))
    for name in ("color.jpg", "color.png"):
        Image.fromarray(pixels).save(tmp_path / name)
    Image.fromarray(pixels).convert("CMYK").save(tmp_path / "cmyk.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "color.jpg").read_bytes() + b"broken")
    names = ("color.jpg", "color.png", "cmyk.jpg")
    monkeypatch.setitem(sys.modules, "torchvision", None)  # as if it was not there
    decode._torchvision.cache_clear()
    without = [np.asarray(read_picture(str(tmp_path / name))) for name in names]
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.io", io)
    decode._torchvision.cache_clear()
    color, png, cmyk = (np.asarray(read_picture(str(tmp_path / name))) for name in names)
    assert color.shape == without[0].shape == (6, 8, 3)
    assert (color[:, :, ::-1] == without[0]).all()
    assert (png == without[1]).all()  # not a JPEG
    assert (cmyk == without[2]).all()  # not a plain one
    with pytest.raises(UnreadableError, match="Image is incomplete or truncated"):
        read_picture(str(tmp_path / "cut.jpg"))
    monkeypatch.undo()
    decode._torchvision.cache_clear()


def test_a_torchvision_made_for_another_torch_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "torchvision":
                raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    decode._torchvision.cache_clear()
    Image.new("RGB", (2, 2), (50, 50, 50)).save(tmp_path / "1.jpg")
    assert read_picture(str(tmp_path / "1.jpg")).getpixel((0, 0)) == (50, 50, 50)
    monkeypatch.undo()
    decode._torchvision.cache_clear()
