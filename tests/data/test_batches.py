"""Images on a device: split, normalized, moved and mirrored as the generators say."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from natpp.data import batches, folders
from natpp.data.batches import Augment, Batches, augmented, cut_out
from natpp.data.folders import read_folder
from natpp.data.images import Images
from natpp.data.pictures import Pictures
from natpp.data.sets import load_images
from natpp.errors import FormatError, SettingError


def test_the_two_parts_are_disjoint_and_normalized() -> None:
    digits = load_images("digits")
    batches = Batches(digits)
    assert (len(batches), len(batches.validation), batches.size, batches.classes) == (1078, 359, 8, 10)
    images, labels = batches.take(np.arange(len(batches)))
    assert abs(images.mean().item()) < 1e-4
    assert abs(images.std().item() - 1) < 1e-2
    seen = {image.numpy().tobytes() for image in images}
    again = [image.numpy().tobytes() in seen for image in batches.validation]
    assert sum(again) == 0
    learn, choose = digits.split(359)
    assert torch.equal(labels, torch.from_numpy(digits.train_labels[learn]))
    assert torch.equal(batches.validation_labels, torch.from_numpy(digits.train_labels[choose]))


def test_the_validation_part_is_at_most_5000() -> None:
    pixels = np.zeros((30_000, 3, 2, 2), dtype=np.uint8)
    images = Images("many", 2, pixels, np.zeros(30_000, dtype=np.int64), pixels[:1], np.zeros(1, dtype=np.int64))
    assert len(Batches(images).validation) == 5000
    assert len(Batches(images, validation=10).validation) == 10
    oblong = np.zeros((8, 3, 2, 4), dtype=np.uint8)
    with pytest.raises(SettingError, match="4 x 2, expected squares"):
        Batches(Images("oblong", 2, oblong, np.zeros(8, dtype=np.int64), oblong, np.zeros(8, dtype=np.int64)))


def test_an_image_moves_over_zeros_and_is_mirrored() -> None:
    image = torch.arange(1.0, 10).view(1, 1, 3, 3).expand(200, 2, 3, 3)
    moved = augmented(image, Augment(shift=1, flip=False), torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(image[0], (1, 1, 1, 1))
    possible = {
        tuple(padded[:, row : row + 3, column : column + 3].flatten().tolist())
        for row in range(3)
        for column in range(3)
    }
    assert {tuple(one.flatten().tolist()) for one in moved} == possible  # all nine, and nothing else
    mirrored = augmented(image, Augment(shift=0, flip=True), torch.Generator().manual_seed(0))
    both = {tuple(one.flatten().tolist()) for one in mirrored}
    assert both == {tuple(image[0].flatten().tolist()), tuple(image[0].flip(2).flatten().tolist())}


def test_generators_decide_everything() -> None:
    batches = Batches(load_images("digits"))
    order = batches.order(np.random.default_rng(3))
    assert sorted(order.tolist()) == list(range(len(batches)))
    assert np.array_equal(order, batches.order(np.random.default_rng(3)))
    once, again, other = (batches.take(order[:20], torch.Generator().manual_seed(seed))[0] for seed in (1, 1, 2))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert not batches.augment.flip  # a mirrored digit is no digit


def test_a_square_is_cut_out_around_a_pixel() -> None:
    image = torch.ones(3, 2, 5, 6)
    found = cut_out(image, 4, torch.tensor([2, 0, 4]), torch.tensor([2, 5, 3]))  # rows, columns
    expected = image.clone()
    expected[0, :, 0:4, 0:4] = 0
    expected[1, :, 0:2, 3:6] = 0
    expected[2, :, 2:5, 1:5] = 0
    assert torch.equal(found, expected)
    odd = cut_out(image[:1], 3, torch.tensor([2]), torch.tensor([2]))
    assert torch.equal(odd[0, 0] == 0, torch.nn.functional.pad(torch.ones(3, 3), (1, 2, 1, 1)) == 1)


def test_cutting_out_comes_after_the_other_draws() -> None:
    image = torch.rand(50, 3, 8, 8) + 1
    plain, cut = (
        augmented(image, Augment(shift=1, flip=True, cutout=side), torch.Generator().manual_seed(4)) for side in (0, 4)
    )
    changed = (plain != cut).all(dim=1)
    assert torch.equal(torch.where(changed[:, None], torch.zeros(()), plain), cut)
    assert changed.sum(dim=(1, 2)).max() == 4 * 4


def test_no_validation_part_and_the_test_images_in_batches() -> None:
    digits = load_images("digits")
    batches = Batches(digits, validation=0)
    assert (len(batches), len(batches.validation), len(batches.validation_labels)) == (1437, 0, 0)
    parts = list(batches.test_batches(100))
    assert [len(labels) for _, labels in parts] == [100, 100, 100, 60]
    assert torch.equal(torch.cat([labels for _, labels in parts]), torch.from_numpy(digits.test_labels))
    pixels = torch.cat([images for images, _ in parts])
    assert torch.equal(pixels, batches.normalized(torch.from_numpy(digits.test)))


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Forty photographs of mixed sizes in two classes of unequal size, in train and val."""
    rng = np.random.default_rng(0)
    for number in range(40):
        part = "val" if number % 4 == 0 else "train"
        file = tmp_path / part / ("ant", "bee")[number % 3 == 0] / f"{number:02}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((20 + number % 7, 16 + number % 9), Image.Resampling.BICUBIC).save(file)
    return tmp_path


def cut(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: content.index(b"\xff\xda") + 20])  # the header is whole


def test_what_is_kept_on_the_host_is_the_same() -> None:
    digits = load_images("digits")
    held, kept = (Batches(digits, held=held) for held in (True, False))
    assert held.held
    assert not kept.held
    assert len(held) == len(kept)
    assert held.fingerprint == kept.fingerprint
    assert torch.equal(held.validation, kept.validation)
    order = held.order(np.random.default_rng(0))
    for start in range(0, 60, 20):
        chosen, following = order[start : start + 20], order[start + 20 : start + 40]
        one, other = (images.take(chosen, torch.Generator().manual_seed(start)) for images in (held, kept))
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
        kept.take_ahead(following if start else following[::-1], torch.Generator())  # also where it was a wrong guess
        held.take_ahead(following, torch.Generator())  # does nothing
    one, other = (torch.cat([pixels for pixels, _ in images.test_batches(100)]) for images in (held, kept))
    assert torch.equal(one, other)


def test_large_arrays_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = load_images("digits")
    assert Batches(digits).held
    monkeypatch.setattr(batches, "LARGEST_COPY", 1078 * 3 * 64 - 1)
    assert not Batches(digits).held
    monkeypatch.setattr(batches, "LARGEST_COPY", 1078 * 3 * 64)
    assert Batches(digits).held


def test_a_part_of_a_batch_is_that_part_of_the_whole() -> None:
    augment = Augment(shift=1, flip=True, cutout=2)
    for held in (True, False):
        images = Batches(load_images("digits"), augment=augment, held=held)
        chosen = np.arange(20)
        whole, labels = images.take(chosen, torch.Generator().manual_seed(5))
        for rank in range(3):
            mine = slice(rank, None, 3)
            part, some = images.take(chosen, torch.Generator().manual_seed(5), mine)
            assert torch.equal(part, whole[mine])
            assert torch.equal(some, labels[mine])


def test_photographs_are_cropped_by_the_generator(photographs: Path) -> None:
    images = Batches(load_images("imagenet", photographs, size=8), validation=6)
    assert images.augment == Augment(shift=0, flip=True, crop=True)
    assert (images.held, len(images), images.validation.shape) == (False, 24, (6, 3, 8, 8))
    chosen = np.arange(10)
    plain, labels = images.take(chosen)
    assert torch.equal(plain, images.take(chosen)[0])
    once = images.take(chosen, torch.Generator().manual_seed(1))[0]
    images.take_ahead(chosen, torch.Generator().manual_seed(1))
    again, same = images.take(chosen, torch.Generator().manual_seed(1))
    assert torch.equal(once, again)
    assert torch.equal(labels, same)
    images.take_ahead(chosen, torch.Generator().manual_seed(1))  # a wrong guess
    other = images.take(chosen, torch.Generator().manual_seed(2))[0]
    assert (other != once).flatten(1).any(dim=1).all()
    part = images.take(chosen, torch.Generator().manual_seed(1), slice(1, None, 2))[0]
    assert torch.equal(part, once[1::2])
    with pytest.raises(SettingError, match="digits is not such a data set"):
        Batches(load_images("digits"), augment=Augment(shift=0, flip=True, crop=True))


def test_what_was_begun_is_what_is_taken(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = Batches(load_images("imagenet", photographs, size=8), validation=0)
    read: list[str] = []
    decoded = Pictures.decoded

    def counted(self: Pictures, *given: Any) -> Any:
        read.append(threading.current_thread().name)
        return decoded(self, *given)

    monkeypatch.setattr(Pictures, "decoded", counted)
    images.take_ahead(np.arange(4), torch.Generator().manual_seed(1))
    images.take(np.arange(4), torch.Generator().manual_seed(1))
    assert len(read) == 1
    assert read[0].startswith("natpp-ahead")
    images.take(np.arange(4), torch.Generator().manual_seed(1))
    assert read[1] == threading.current_thread().name


def test_large_folders_are_moved_as_ever(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Batches(read_folder(photographs, 8))
    monkeypatch.setattr(folders, "HELD", 0)
    left = Batches(read_folder(photographs, 8))
    assert (held.held, left.held) == (True, False)
    assert left.augment == held.augment == Augment(shift=1, flip=True)
    assert torch.equal(left.validation, held.validation)
    chosen = np.arange(12)
    one, other = (images.take(chosen, torch.Generator().manual_seed(1)) for images in (held, left))
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])
    one, other = (torch.cat([pixels for pixels, _ in images.test_batches(3)]) for images in (held, left))
    assert torch.equal(one, other)


def test_statistics_of_many_on_disk_are_those_of_some(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = load_images("imagenet", photographs, size=8)
    decoded: list[int] = []
    monkeypatch.setattr(batches, "SAMPLE", 3)
    take = Pictures.take
    monkeypatch.setattr(Pictures, "take", lambda self, numbers: decoded.extend(numbers.tolist()) or take(self, numbers))
    some = Batches(images, validation=0)
    assert decoded == [0, 14, 29]
    pixels = torch.from_numpy(np.asarray(images.train[np.array(decoded)])).double() / 255
    assert some._mean.flatten().tolist() == pytest.approx(pixels.mean(dim=(0, 2, 3)).tolist(), rel=1e-5)
    assert some._spread.flatten().tolist() == pytest.approx(pixels.std(dim=(0, 2, 3), correction=0).tolist(), rel=1e-5)


def test_the_fingerprint_of_files(photographs: Path) -> None:
    def fingerprint(**how: Any) -> str:
        return Batches(load_images("imagenet", photographs, size=8), **how).fingerprint

    first = fingerprint()
    assert fingerprint() == first
    assert fingerprint(seed=1) != first
    assert Batches(load_images("imagenet", photographs, size=9)).fingerprint != first
    file = photographs / "train" / "ant" / "01.jpg"
    file.write_bytes(file.read_bytes() + b"\0")
    assert fingerprint() != first


def test_what_turns_out_damaged_is_told_and_left_out(photographs: Path) -> None:
    whole = Batches(load_images("imagenet", photographs, size=8), validation=6)
    for number in (5, 8, 13, 22, 37):
        cut(next(photographs.rglob(f"{number:02}.jpg")))
    said: list[str] = []
    images = load_images("imagenet", photographs, size=8, say=said.append)
    assert images.skipped == ()  # their first bytes are fine
    found = Batches(images, validation=6)
    tested = torch.cat([labels for _, labels in found.test_batches(4)])
    assert len(tested) == 10 - 1
    _, choose = images.split(6)
    assert isinstance(images.train, Pictures)
    wrong = {number for number, name in enumerate(images.train.names) if name[-6:-4] in ("05", "13", "22", "37")}
    assert len(found.validation) == 6 - len(wrong & set(choose.tolist()))
    assert len(found.validation_labels) == len(found.validation)
    pixels, labels = found.take(np.arange(len(found)), torch.Generator().manual_seed(0))
    expected = whole.take(np.arange(len(found)))[1]
    assert torch.equal(labels, expected)
    assert pixels.isfinite().all()
    assert len(said) == 5
    assert all(line.startswith("cannot read the image ") for line in said)
    assert sorted(set(images.train.damaged)) == sorted(wrong)
    for file in photographs.rglob("val/*/*.jpg"):
        cut(file)
    with pytest.raises(FormatError, match="none of the test images of imagenet can be read"):
        list(Batches(load_images("imagenet", photographs, size=8, say=said.append)).test_batches(4))
