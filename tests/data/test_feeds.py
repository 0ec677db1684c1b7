"""Feeds: what each step sees, from images and from loaders, made in one part that a captured graph can replay."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from natpp.data.batches import Batches
from natpp.data.feeds import DrawnFeed, ImageFeed, LoaderFeed, in_parts
from natpp.data.loader import Loaded
from natpp.data.sets import load_images
from natpp.errors import SettingError
from natpp.runs.fabric import make_fabric

CPU = torch.device("cpu")


def drawn(images: Batches, **settings: Any) -> DrawnFeed:
    return DrawnFeed(images, CPU, **({"steps": 6, "batch": 16, "seed": 3} | settings))


def test_a_graph_can_make_any_step_from_what_was_fetched(stripes: Batches) -> None:
    """The number of the step is a tensor, and images held on the device need no fetching."""
    held = drawn(stripes, augment=True)
    kept = drawn(Batches(stripes._images, held=False), augment=True)
    kept.fetch(0)  # as for a first step that warms up
    number = torch.zeros(1, dtype=torch.int64)
    for step in range(6):
        nothing, (pixels,) = held.fetch(step), kept.fetch(step)
        assert nothing == ()
        one, other = held.make(number, ()), kept.make(number, (pixels,))
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
        assert all(torch.equal(*pair) for pair in zip(held.batch(step), one, strict=True))
        number.add_(1)


def test_photographs_are_fed_in_random_parts(photographs: Path) -> None:
    images = Batches(load_images("imagenet", photographs, size=8))
    seen = []
    for augment, seed in ((True, 0), (True, 0), (True, 1), (False, 0)):
        feed = drawn(images, batch=4, augment=augment, seed=seed)
        feed.numbers[1] = feed.numbers[0]
        seen += [feed.fetch(step)[0] for step in range(2)]
    first, second, again, _, other, _, plain, still = seen
    assert torch.equal(first, again)
    assert not torch.equal(first, second)  # the same images, in another step
    assert not torch.equal(first, other)
    assert torch.equal(plain, still)


def test_validation_batches_are_nearly_equal_parts(stripes: Batches) -> None:
    assert [len(labels) for _, labels in drawn(stripes, validation_batch=8).validation()] == [7, 7, 6]
    (half, _), *_ = drawn(stripes, half=True).validation()
    assert half.dtype == torch.bfloat16
    assert list(drawn(Batches(stripes._images, validation=0)).validation()) == []
    assert list(in_parts(torch.empty(0, 3), torch.empty(0), 4)) == []


def test_batches_of_a_loader_are_kept_and_fed(stripes: Batches) -> None:
    batches = [stripes.take(np.arange(8) + 8 * place) for place in range(4)]
    few = [stripes.take(np.arange(3))]
    single = stripes.take(np.arange(1))
    kept = Loaded.of([*batches, *few], [(stripes.validation, stripes.validation_labels), *few, single], 6)
    assert len(kept.train) == 6  # from a second pass, without the small one
    assert kept.samples == len(stripes.validation) + 3  # without the single one
    feed = LoaderFeed(kept.train, kept.validation, CPU)
    for step in (*range(6), 0, 1, 4):  # in order, again, and somewhere else
        inputs, targets = feed.batch(step)
        assert torch.equal(inputs, batches[step % 4][0])
        assert torch.equal(targets, batches[step % 4][1])
    double = [({"x": torch.ones(2, 3, dtype=torch.float64), "n": 1}, torch.tensor([0, 1]))]
    inputs, targets = LoaderFeed(double, None, CPU, single=True).batch(0)
    assert (inputs["x"].dtype, inputs["n"], targets.dtype) == (torch.float32, 1, torch.int64)


def test_an_epoch_sees_each_image_once(stripes: Batches) -> None:
    fabric = make_fabric("cpu")
    feed = ImageFeed(stripes, 16, 2, fabric, seed=0)
    assert (feed.steps_an_epoch, feed.samples_an_epoch, feed.total) == (3, 48, 6)
    chosen = np.concatenate([feed._chosen(step) for step in range(3)])
    assert len(set(chosen.tolist())) == 48
    assert not np.array_equal(feed._chosen(0), feed._chosen(3))
    again = ImageFeed(stripes, 16, 2, fabric, seed=0)
    assert all(torch.equal(*pair) for pair in zip(again.batch(4), feed.batch(4), strict=True))
    assert len(list(feed.test())) == 1
    with pytest.raises(SettingError, match="1 training images, expected at least 2"):
        ImageFeed(Batches(stripes._images, validation=79), 16, 1, fabric, seed=0)
