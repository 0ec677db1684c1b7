"""Images on a device: split, normalized, moved and mirrored as the generators say."""

import numpy as np
import pytest
import torch

from natpp.data.batches import Augment, Batches, augmented
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
