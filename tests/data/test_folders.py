"""Folders of images: exact pixels from every kind of picture, and a line for all that is left out or refused."""

import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from natpp.data import folders
from natpp.data.folders import read_folder
from natpp.data.pictures import Pictures
from natpp.data.sets import load_images
from natpp.errors import FormatError, NatppError, SettingError

Write = Callable[[Path], object]


def paint(file: Path, color: int | tuple[int, ...], size: tuple[int, int] = (4, 4), mode: str = "RGB") -> None:
    """A picture of one colour."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(file)


def paint_parts(folder: Path, *parts: str) -> None:
    """Two images of the classes cat and dog in each part, told apart by red (part), green (class) and blue (image)."""
    for part, name in enumerate(parts):
        for number in range(4):
            label, index = divmod(number, 2)
            paint(folder / name / ("cat", "dog")[label] / f"{index}.png", (part, label, index))


def colors(pixels: np.ndarray) -> list[list[int]]:
    assert (pixels == pixels[:, :, :1, :1]).all()
    return pixels[:, :, 0, 0].tolist()


@pytest.mark.parametrize("held_out", ["test", "val", "validation"])
def test_a_folder_of_parts(held_out: str, tmp_path: Path) -> None:
    paint_parts(tmp_path / "pets", "train", held_out)
    (tmp_path / "pets" / "README.md").write_text("pets")
    found = read_folder(tmp_path / "pets")
    assert (found.name, found.classes) == ("pets", 2)
    assert found.train.shape == found.test.shape == (4, 3, 4, 4)
    assert colors(found.train) == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]]
    assert colors(found.test) == [[1, 0, 0], [1, 0, 1], [1, 1, 0], [1, 1, 1]]
    assert found.train_labels.tolist() == found.test_labels.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("validation", ["val", "validation"])
def test_with_a_test_part_the_validation_images_are_trained_on(validation: str, tmp_path: Path) -> None:
    paint_parts(tmp_path, "train", validation, "test")
    found = read_folder(tmp_path)
    assert [red for red, _, _ in colors(found.train)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [red for red, _, _ in colors(found.test)] == [2, 2, 2, 2]
    assert found.train_labels.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]


def test_a_fifth_of_each_class_is_set_apart(tmp_path: Path) -> None:
    for label, (name, count) in enumerate((("ant", 10), ("bee", 2), ("cow", 9))):
        for index in range(count):
            paint(tmp_path / name / f"{index:02}.png", (label, index, 0))
    found = read_folder(tmp_path)
    assert np.bincount(found.test_labels).tolist() == [2, 1, 1]
    assert np.bincount(found.train_labels).tolist() == [8, 1, 8]
    assert sorted(colors(np.concatenate([found.train, found.test]))) == [
        [label, index, 0] for label, count in enumerate((10, 2, 9)) for index in range(count)
    ]
    assert [label for label, _, _ in colors(found.test)] == found.test_labels.tolist()
    again = read_folder(tmp_path)
    assert (again.train == found.train).all()
    assert (again.test == found.test).all()


def test_classes_are_numbered_by_sorted_name_and_other_files_left_alone(tmp_path: Path) -> None:
    for name, color in (("b", 2), ("a", 1), ("B", 0)):
        for part in ("train", "test"):
            paint(tmp_path / part / name / "1.PNG", (color,) * 3)
    (tmp_path / "train" / "a" / "labels.txt").write_text("no image")
    (tmp_path / "train" / "a" / ".hidden.png").write_text("no image")
    (tmp_path / "train" / ".cache").mkdir()
    (tmp_path / ".git").mkdir()
    found = read_folder(tmp_path)
    assert found.train_labels.tolist() == [0, 1, 2]
    assert colors(found.train) == [[0, 0, 0], [1, 1, 1], [2, 2, 2]]


def test_links_are_followed(tmp_path: Path) -> None:
    paint_parts(tmp_path / "there", "train", "test")
    (tmp_path / "here" / "train" / "cat").mkdir(parents=True)
    (tmp_path / "here" / "test").symlink_to(tmp_path / "there" / "test")
    (tmp_path / "here" / "train" / "dog").symlink_to(tmp_path / "there" / "train" / "dog")
    (tmp_path / "here" / "train" / "cat" / "0.png").symlink_to(tmp_path / "there" / "train" / "cat" / "1.png")
    assert colors(read_folder(tmp_path / "here").train) == [[0, 0, 1], [0, 1, 0], [0, 1, 1]]


def palette(transparency: int | bytes | None = None) -> Write:
    def write(file: Path) -> None:
        picture = Image.new("P", (4, 4), 1)
        picture.putpalette([9, 9, 9, 10, 200, 30])
        picture.save(file, **({} if transparency is None else {"transparency": transparency}))

    return write


def grey_16(file: Path) -> None:
    Image.fromarray(np.full((4, 4), 0x80FF, dtype=np.uint16)).save(file)


def moving(file: Path) -> None:
    frames = [Image.new("RGB", (4, 4), (value,) * 3) for value in (0, 255)]
    frames[0].save(file, save_all=True, append_images=frames[1:])


def grey_16_ppm(file: Path) -> None:
    file.write_bytes(b"P5 4 4 65535\n" + b"\x80\xff" * 16)


KINDS: dict[str, tuple[Write, list[int]]] = {
    "rgb.png": (lambda file: paint(file, (10, 200, 30)), [10, 200, 30]),
    "rgb.bmp": (lambda file: paint(file, (10, 200, 30)), [10, 200, 30]),
    "rgb.ppm": (lambda file: paint(file, (10, 200, 30)), [10, 200, 30]),
    "rgb.webp": (lambda file: Image.new("RGB", (4, 4), (10, 200, 30)).save(file, lossless=True), [10, 200, 30]),
    "grey.png": (lambda file: paint(file, 77, mode="L"), [77, 77, 77]),
    "grey.jpg": (lambda file: paint(file, 77, mode="L"), [77, 77, 77]),
    "grey.jpeg": (lambda file: paint(file, 77, mode="L"), [77, 77, 77]),
    "bits.png": (lambda file: paint(file, 1, mode="1"), [255, 255, 255]),
    "grey and alpha.png": (lambda file: paint(file, (200, 51), mode="LA"), [40, 40, 40]),
    "clear.png": (lambda file: paint(file, (200, 100, 50, 0), mode="RGBA"), [0, 0, 0]),
    "half clear.png": (lambda file: paint(file, (200, 100, 50, 51), mode="RGBA"), [40, 20, 10]),
    "clear colour.png": (
        lambda file: Image.new("RGB", (4, 4), (1, 2, 3)).save(file, transparency=(1, 2, 3)),
        [0, 0, 0],
    ),
    "cmyk.jpg": (lambda file: paint(file, (0, 0, 0, 155), mode="CMYK"), [100, 100, 100]),
    "palette.png": (palette(), [10, 200, 30]),
    "palette.gif": (palette(), [10, 200, 30]),
    "clear palette.png": (palette(1), [0, 0, 0]),
    "half clear palette.png": (palette(b"\xff\x33"), [2, 40, 6]),
    "16 bits.png": (grey_16, [128, 128, 128]),
    "16 bits.ppm": (grey_16_ppm, [128, 128, 128]),
    "moving.gif": (moving, [0, 0, 0]),
    "by another name.png": (
        lambda file: Image.new("L", (4, 4), 77).save(file, format="JPEG"),
        [77, 77, 77],
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_picture_becomes_rgb_bytes(name: str, tmp_path: Path) -> None:
    write, color = KINDS[name]
    paint_parts(tmp_path, "train", "test")
    (tmp_path / "train" / "cat" / "0.png").unlink()
    write(tmp_path / "train" / "cat" / name)
    found = read_folder(tmp_path)
    assert color in colors(found.train[found.train_labels == 0])


def test_a_picture_is_read_the_right_way_up(tmp_path: Path) -> None:
    paint_parts(tmp_path, "train", "test")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "train" / "cat" / "0.png")
    for size in (None, 4):
        assert (read_folder(tmp_path, size=size).train[0] == pixels.transpose(2, 0, 1)).all()


def test_broken_exif_data_is_no_matter(tmp_path: Path) -> None:
    paint_parts(tmp_path, "train", "test")
    file = tmp_path / "train" / "cat" / "2.jpg"
    Image.new("L", (4, 4), 77).save(file, exif=b"Exif\0\0II*\0\x08\0\0\0\x05\0")
    with pytest.warns(UserWarning, match="EXIF"), Image.open(file):
        pass
    assert colors(read_folder(tmp_path).train)[2] == [77, 77, 77]


def test_a_size_crops_the_middle_and_scales(tmp_path: Path) -> None:
    paint_parts(tmp_path, "train", "test")
    wide = np.arange(4 * 9 * 3, dtype=np.uint8).reshape(4, 9, 3)
    Image.fromarray(wide).save(tmp_path / "train" / "cat" / "0.png")
    Image.fromarray(wide.transpose(1, 0, 2).copy()).save(tmp_path / "train" / "cat" / "1.png")
    stripes = np.zeros((8, 8, 3), dtype=np.uint8)
    stripes[:, ::2] = 240
    Image.fromarray(stripes).save(tmp_path / "train" / "dog" / "0.png")
    paint(tmp_path / "train" / "dog" / "1.png", (1, 2, 3), size=(1, 300))
    found = read_folder(tmp_path, size=4)
    middle = wide[:, 2:6].transpose(2, 0, 1)  # of columns 0 to 8, the odd one out is on the right
    assert (found.train[0] == middle).all()
    assert (found.train[1] == middle.transpose(0, 2, 1)).all()
    assert (found.train[2][:, :, 1:-1] == 120).all()  # antialiased: stripes become their mean
    assert colors(found.train[3:]) == [[1, 2, 3]]
    assert found.test.shape == (4, 3, 4, 4)
    assert read_folder(tmp_path, size=2).train.shape == (4, 3, 2, 2)
    assert read_folder(tmp_path, size=7).train.shape == (4, 3, 7, 7)


def cut(name: str, keep: float) -> Write:
    """A good folder but for one file, of which the first part is left."""

    def write(folder: Path) -> None:
        pixels = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "test" / "dog" / name)
        content = (folder / "test" / "dog" / name).read_bytes()
        (folder / "test" / "dog" / name).write_bytes(content[: int(len(content) * keep)])

    return write


def only(*names: str) -> Write:
    """The parts of these names only."""

    def write(folder: Path) -> None:
        for part in ("train", "test"):
            if part not in names:
                (folder / part).rename(folder.parent / f"no {part}")
        paint_parts(folder, *names)

    return write


def without(name: str) -> Write:
    def write(folder: Path) -> None:
        for file in (folder / name).iterdir():
            file.unlink()
        (folder / name).rmdir()

    return write


def single_class(folder: Path) -> None:
    without("train/dog")(folder)
    without("test/dog")(folder)


def emptied(folder: Path) -> None:
    without("test/dog")(folder)
    (folder / "test" / "dog").mkdir()
    (folder / "test" / "dog" / "labels.txt").write_text("no image")


def single_image(folder: Path) -> None:
    only()(folder)
    paint(folder / "cat" / "1.png", (1, 2, 3))
    paint(folder / "cat" / "2.png", (1, 2, 3))
    paint(folder / "dog" / "1.png", (1, 2, 3))


REFUSED: dict[str, tuple[Write, str]] = {
    "empty": (only(), "'FOLDER' has no class folders: expected train/CLASS/*.png"),
    "empty part": (
        lambda folder: [only("train")(folder), (folder / "val").mkdir()],
        "'FOLDER/val' has no class folders",
    ),
    "no class folders": (
        lambda folder: [only()(folder), paint(folder / "1.png", 0)],
        "'FOLDER' has no class folders: expected train/CLASS/*.png",
    ),
    "nothing held out": (only("train"), "but no 'test' or 'val' or 'validation': give 'FOLDER/train' instead"),
    "nothing to train": (only("val"), "'FOLDER' has a folder 'val' but no 'train'"),
    "two validations": (only("train", "val", "validation"), "the same part twice among 'train', 'val', 'validation'"),
    "a part linked": (
        lambda folder: (folder / "val").symlink_to(folder / "test"),
        "the same part twice among 'train', 'test', 'val'",
    ),
    "one class": (single_class, "'FOLDER/train' has the single class 'cat', expected two or more"),
    "no images": (emptied, "the class folder 'FOLDER/test/dog' has no images"),
    "deeper": (
        lambda folder: paint(folder / "test" / "cow" / "images" / "1.png", 0),
        "the class folder 'FOLDER/test/cow' has no images",
    ),
    "one image": (single_image, "the class 'dog' has a single image 'dog/1.png': it needs a second one"),
    "not in test": (
        lambda folder: paint(folder / "train" / "cow" / "1.png", 0),
        "the class 'cow' of 'FOLDER' is in 'train' but not in 'test'",
    ),
    "not in train": (
        lambda folder: paint(folder / "test" / "cow" / "1.png", 0),
        "the class 'cow' of 'FOLDER' is in 'test' but not in 'train'",
    ),
    "not in val": (
        lambda folder: [paint(folder / "val" / name / "1.png", 0) for name in ("cat", "cow", "dog")],
        "the class 'cow' of 'FOLDER' is in 'val' but not in 'train'",
    ),
    "other size": (
        lambda folder: paint(folder / "test" / "cat" / "5.png", 0, size=(5, 5)),
        "'FOLDER/train/cat/0.png' is 4 x 4 but 'FOLDER/test/cat/5.png' is 5 x 5: size=N crops and resizes",
    ),
    "wide": (
        lambda folder: paint(folder / "train" / "cat" / "0.png", 0, size=(4, 6)),
        "'FOLDER/train/cat/0.png' is 4 x 6, expected a square: size=N crops and resizes",
    ),
    "wide later": (
        lambda folder: paint(folder / "train" / "cat" / "1.png", 0, size=(4, 6)),
        "'FOLDER/train/cat/0.png' is 4 x 4 but 'FOLDER/train/cat/1.png' is 4 x 6",
    ),
    "a class unreadable": (
        lambda folder: [(folder / "test" / "dog" / f"{index}.png").write_text("a dog") for index in range(2)],
        "none of the 2 test images of the class in 'FOLDER/test/dog' can be read: test/dog/0.png (not an image",
    ),
    "a class damaged": (
        lambda folder: [
            (folder / "train" / "dog" / "0.png").unlink(),
            (folder / "train" / "dog" / "1.png").write_bytes((folder / "test" / "dog" / "1.png").read_bytes()[:-30]),
        ],
        "the only training image of the class in 'FOLDER/train/dog' cannot be read: train/dog/1.png (",
    ),
    "all unreadable": (
        lambda folder: [file.write_text("a pet") for file in folder.rglob("*.png")],
        "none of the 2 training images of the class in 'FOLDER/train/cat' can be read: train/cat/0.png (not an image",
    ),
}
SKIPPED: dict[str, tuple[Write, str]] = {
    "no image": (
        lambda folder: (folder / "train" / "cat" / "2.jpg").write_text("a cat"),
        "train/cat/2.jpg (not an image, or damaged)",
    ),
    "no bytes": (
        lambda folder: (folder / "train" / "cat" / "2.gif").write_bytes(b""),
        "train/cat/2.gif (not an image, or damaged)",
    ),
    "other format": (
        lambda folder: Image.new("L", (4, 4)).save(folder / "train" / "cat" / "2.png", format="TIFF"),
        "train/cat/2.png (not an image, or damaged)",
    ),
    "fractions": (
        lambda folder: Image.new("F", (4, 4)).save(folder / "train" / "cat" / "2.ppm"),
        "train/cat/2.ppm (its pixels are floating-point numbers, expected bytes)",
    ),
    "a folder": (
        lambda folder: (folder / "train" / "cat" / "2.png").mkdir(),
        "train/cat/2.png (Is a directory)",
    ),
    "a dead link": (
        lambda folder: (folder / "train" / "cat" / "2.png").symlink_to("nowhere"),
        "train/cat/2.png (No such file or directory)",
    ),
    **{
        f"cut {suffix}": (cut(f"2.{suffix}", 0.8), f"test/dog/2.{suffix} (")
        for suffix in ("png", "bmp", "gif", "ppm", "jpg")
    },
    "cut webp": (cut("2.webp", 0.5), "test/dog/2.webp ("),
}


@pytest.mark.parametrize("name", SKIPPED)
def test_what_cannot_be_read_is_named_and_left_out(name: str, tmp_path: Path) -> None:
    write, words = SKIPPED[name]
    paint_parts(tmp_path / "pets", "train", "test")
    write(tmp_path / "pets")
    for size in (None, 4):
        found = read_folder(tmp_path / "pets", size)
        assert (len(found.train), len(found.test)) == (4, 4)
        assert found.train_labels.tolist() == found.test_labels.tolist() == [0, 0, 1, 1]
        (line,) = found.skipped
        assert line.startswith(words)
        assert found.left_out == f"1 of 9 images of pets could not be read and is left out: {line}"
        assert "\n" not in line


def test_a_line_names_a_few_and_counts_the_rest(tmp_path: Path) -> None:
    paint_parts(tmp_path / "pets", "train", "test")
    assert read_folder(tmp_path / "pets").left_out is None
    for index in range(7):
        (tmp_path / "pets" / "train" / "cat" / f"x{index}.png").write_bytes(b"")
    found = read_folder(tmp_path / "pets")
    assert len(found.skipped) == 7
    assert found.left_out is not None
    assert found.left_out.startswith("7 of 15 images of pets could not be read and are left out: train/cat/x0.png (no")
    assert found.left_out.endswith("train/cat/x4.png (not an image, or damaged), and 2 more")


@pytest.mark.parametrize("damage", [lambda content: b"no image", lambda content: content[:-30]])
def test_what_is_left_out_moves_no_other_image(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    for label, name in enumerate(("ant", "bee")):
        for index in range(25):
            paint(tmp_path / name / f"{index:02}.png", (label, index, 0))
    whole = read_folder(tmp_path)
    for index in range(0, 25, 4):
        file = tmp_path / "ant" / f"{index:02}.png"
        file.write_bytes(damage(file.read_bytes()))
    left = read_folder(tmp_path)
    assert len(left.skipped) == 7
    for before, after in ((whole.train, left.train), (whole.test, left.test)):
        assert colors(after) == [color for color in colors(before) if color[0] == 1 or color[1] % 4]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    write, words = REFUSED[name]
    folder = tmp_path / "pets"
    paint_parts(folder, "train", "test")
    write(folder)
    with pytest.raises(FormatError, match=re.escape(words.replace("FOLDER", str(folder)))) as caught:
        read_folder(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("side", [5, 6])  # above the limit Pillow warns, above twice the limit it raises
def test_a_picture_of_too_many_pixels_is_left_out(side: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paint_parts(tmp_path, "train", "test")
    paint(tmp_path / "train" / "cat" / "2.png", 0, size=(side, side))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 16)
    for action in ("ignore", "error"):  # as a program may have chosen
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            found = read_folder(tmp_path, size=4)
        assert len(found.train) == 4
        assert re.match(r"train/cat/2.png \(it has .*more than (twice )?the limit of 16( pixels)?\)", found.skipped[0])


def test_more_than_fits_stays_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paint_parts(tmp_path, "train", "test")
    assert isinstance(read_folder(tmp_path, size=1 << 15).train, Pictures)  # 24 GiB
    monkeypatch.setattr(folders, "HELD", 8 * 3 * 4 * 4)
    held = read_folder(tmp_path)
    assert isinstance(held.train, np.ndarray)
    monkeypatch.setattr(folders, "HELD", 8 * 3 * 4 * 4 - 1)
    left = read_folder(tmp_path)
    assert isinstance(left.train, Pictures)
    assert isinstance(left.test, Pictures)
    assert left.train.shape == held.train.shape
    assert (left.train[:] == held.train).all()
    assert (left.test[np.array([3, 0])] == held.test[[3, 0]]).all()
    assert left.train_labels.tolist() == held.train_labels.tolist()
    with pytest.raises(SettingError, match="stay on disk"):
        left.save(tmp_path / "pets.safetensors")


def test_processes_of_a_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 4 << 18}  # 4 GiB
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert folders._room() == 2 << 30
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert folders._room() == 1 << 29
    monkeypatch.delattr(os, "sysconf")
    assert folders._room() == folders.HELD


def test_no_folder_and_no_size(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"folder '.*nowhere' does not exist"):
        read_folder(tmp_path / "nowhere")
    paint_parts(tmp_path, "train", "test")
    for size in (0, -4):
        with pytest.raises(SettingError, match=f"size is {size}, expected 1 pixel or more"):
            read_folder(tmp_path, size=size)


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paint_parts(tmp_path, "train", "test")
    listed = os.listdir

    def listdir(folder: Path) -> list[str]:
        if folder.name == "cat":
            raise PermissionError(13, "Permission denied")
        return listed(folder)

    monkeypatch.setattr(os, "listdir", listdir)
    with pytest.raises(FormatError, match=r"cannot read the folder '.*cat': Permission denied"):
        read_folder(tmp_path)


def test_a_folder_is_data_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paint_parts(tmp_path / "digits", "train", "test")
    monkeypatch.chdir(tmp_path)
    for name in (str(tmp_path / "digits"), "./digits", Path("digits")):
        assert load_images(name).train.shape == (4, 3, 4, 4)
        assert load_images(name, size=2).train.shape == (4, 3, 2, 2)
    assert load_images("digits").train.shape == (1437, 3, 8, 8)  # a known name is the known set
    assert load_images("digits", size=8).train.shape == (1437, 3, 8, 8)
    with pytest.raises(SettingError, match="size is 4, but the images of digits are 8 x 8"):
        load_images("digits", size=4)
    with pytest.raises(SettingError, match=r"digits is built in, so root .'here'. does not apply: leave it out"):
        load_images("digits", "here")
    with pytest.raises(
        SettingError, match=r"'\./digits' is an image folder, so root .'here'. does not apply: leave it out"
    ):
        load_images("./digits", "here")
    for name in ("pets", "", "x" * 5000, "./pets"):
        with pytest.raises(NatppError, match=r"unknown data set .* Or give the path of an image folder"):
            load_images(name)
    with pytest.raises(FormatError, match=r"folder 'cifar10' does not exist"):
        load_images(Path("cifar10"))


def test_the_order_is_that_of_names(tmp_path: Path) -> None:
    for index in np.random.default_rng(0).permutation(20).tolist():
        paint(tmp_path / "cat" / f"{index:02}.png", (0, index, 0))
        paint(tmp_path / "dog" / f"{index:02}.png", (1, index, 0))
    found = read_folder(tmp_path)
    assert colors(found.train) == sorted(colors(found.train))
    assert colors(found.test) == sorted(colors(found.test))


def test_imagenet_is_a_folder_of_photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("train", "val"):
        paint(tmp_path / part / "n01" / "1.JPEG", 200, size=(9, 5), mode="L")
        paint(tmp_path / part / "n02" / "1.JPEG", 90, size=(7, 30), mode="L")
        paint(tmp_path / part / "n02" / "2.JPEG", 90, size=(16, 16), mode="L")
    (tmp_path / "test").mkdir()
    paint(tmp_path / "test" / "1.JPEG", 0)  # ImageNet's own test images have no classes
    (tmp_path / "val" / "n02" / "2.JPEG").write_text("no image")
    found = load_images("imagenet", tmp_path)
    assert (found.name, found.classes) == ("imagenet", 2)
    assert isinstance(found.train, Pictures)
    assert isinstance(found.test, Pictures)
    assert (found.train.shape, found.test.shape) == ((3, 3, 224, 224), (2, 3, 224, 224))
    assert found.skipped == ("val/n02/2.JPEG (not an image, or damaged)",)
    small = load_images("imagenet", tmp_path, size=8)
    assert colors(small.train[:]) == [[200] * 3, [90] * 3, [90] * 3]
    assert small.test_labels.tolist() == [0, 1]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NatppError, match=r"imagenet needs its folder: imagenet:root=DIR, with train/CLASS"):
        load_images("imagenet")
    (tmp_path / "imagenet").mkdir()
    with pytest.raises(NatppError, match=r"Did you mean imagenet:root=\./imagenet"):
        load_images("imagenet")
    with pytest.raises(FormatError, match="folder 'nowhere' does not exist"):
        load_images("imagenet", "nowhere")
    with pytest.raises(FormatError, match="'imagenet' has no folder 'train': expected train/CLASS"):
        load_images("imagenet", "imagenet")
    (tmp_path / "imagenet" / "train").mkdir()
    with pytest.raises(FormatError, match="'imagenet' has no folder 'val': expected train/CLASS"):
        load_images("imagenet", "imagenet")
    (tmp_path / "imagenet" / "val").mkdir()
    layout = re.escape("expected train/CLASS/*.JPEG and val/CLASS/*.JPEG") + "$"
    with pytest.raises(FormatError, match=f"'imagenet/train' has no class folders: {layout}"):
        load_images("imagenet", "imagenet")
    for name in ("n01", "n02"):
        (tmp_path / "imagenet" / "train" / name).mkdir()
    with pytest.raises(FormatError, match=f"the class folder 'imagenet/train/n01' has no images: {layout}"):
        load_images("imagenet", "imagenet")
    with pytest.raises(SettingError, match="size is 0"):
        load_images("imagenet", tmp_path, size=0)
