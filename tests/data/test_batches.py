"""Images on a device: split, normalized, moved and mirrored as the generators say."""

import numpy as np
import pytest
import torch

from natpp.data.batches import Augment, Batches, augmented, cut_out
from natpp.data.images import Images
from natpp.data.sets import load_images
from natpp.errors import SettingError


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
    with pytest.raises(SettingError, match="4 x 2, not square"):
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
