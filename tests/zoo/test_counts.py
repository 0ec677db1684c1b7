"""Parameters and MAdds of the hand-crafted networks added up by hand, layer by layer from their papers.

Nothing here builds a network: sizes and channels are written down again, and so are the other ways of counting or
building that explain published figures.
"""

from collections.abc import Sequence

import pytest
import torch

import natpp
from natpp.registry import MODELS
from natpp.zoo.networks.shufflenet import ShuffleNet


class Tally:
    """Sums of layers: parameters, multiply-adds, and how many numbers batch norms put out."""

    def __init__(self) -> None:
        self.params = self.madds = self.normed = 0

    def conv(
        self, channels_in: int, channels_out: int, kernel: int, size: int, *, groups: int = 1, norm: bool = True
    ) -> None:
        """A convolution onto size x size pixels, with a batch norm or else a bias."""
        weights = channels_in // groups * channels_out * kernel * kernel
        self.params += weights + (2 if norm else 1) * channels_out
        self.madds += weights * size * size
        self.normed += channels_out * size * size if norm else 0

    def linear(self, inputs: int, outputs: int) -> None:
        self.params += inputs * outputs + outputs
        self.madds += inputs * outputs

    @property
    def counts(self) -> tuple[int, int]:
        return self.params, self.madds


def expected(name: str) -> tuple[int, int]:
    return MODELS[name].params, MODELS[name].madds


def rounded(tally: Tally) -> tuple[float, float]:
    """In millions, as the tables print them."""
    return round(tally.params / 1e6, 1), round(tally.madds / 1e6)


def vgg16(size: int, linear: Sequence[int], *, norm: bool) -> Tally:
    tally, before = Tally(), 3
    for channels in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        if channels:
            tally.conv(before, channels, 3, size, norm=norm)
            before = channels
        else:
            size //= 2
    before *= size * size
    for outputs in linear:
        tally.linear(before, outputs)
        before = outputs
    return tally


def test_vgg16() -> None:
    assert vgg16(32, (512, 512, 10), norm=True).counts == expected("vgg16") == (15_249_354, 313_725_952)
    assert vgg16(32, (10,), norm=True).params == 14_724_042
    imagenet = vgg16(224, (4096, 4096, 1000), norm=False)
    assert imagenet.counts == expected("vgg16_imagenet") == (138_357_544, 15_470_264_320)
    assert vgg16(224, (4096, 4096, 1000), norm=True).params - imagenet.params == 4_224
    assert imagenet.madds - 15_346_630_656 == 25_088 * 4096 + 4096 * 4096 + 4096 * 1000


def cifar_resnet(blocks: int, *, projections: bool = False) -> Tally:
    tally, before = Tally(), 16
    tally.conv(3, 16, 3, 32)
    for channels, size in ((16, 32), (32, 16), (64, 8)):
        for _ in range(blocks):
            tally.conv(before, channels, 3, size)
            tally.conv(channels, channels, 3, size)
            if projections and before != channels:
                tally.conv(before, channels, 1, size)
            before = channels
    tally.linear(64, 10)
    return tally


def test_resnets_for_cifar() -> None:
    small, large = cifar_resnet(3), cifar_resnet(9)
    assert small.counts == expected("resnet20") == (269_722, 40_551_040)
    assert large.counts == expected("resnet56") == (853_018, 125_485_696)
    projected = cifar_resnet(3, projections=True)
    assert projected.params == 272_474
    assert rounded(projected) == rounded(small) == (0.3, 41)
    assert large.normed == 532_480
    assert round((large.madds + 2 * large.normed) / 1e6) == 127
    assert round((small.madds + 2 * small.normed) / 1e6) == 41


def imagenet_resnet(depths: Sequence[int], *, bottleneck: bool, stride_in_1x1: bool = False) -> Tally:
    tally, before, size = Tally(), 64, 56
    tally.conv(3, 64, 7, 112)
    for stage, depth in enumerate(depths):
        width = 64 * 2**stage
        after = 4 * width if bottleneck else width
        for block in range(depth):
            halved = size // 2 if stage and not block else size
            if bottleneck:
                tally.conv(before, width, 1, halved if stride_in_1x1 else size)
                tally.conv(width, width, 3, halved)
                tally.conv(width, after, 1, halved)
            else:
                tally.conv(before, width, 3, halved)
                tally.conv(width, width, 3, halved)
            if before != after:
                tally.conv(before, after, 1, halved)
            before, size = after, halved
    tally.linear(before, 1000)
    return tally


def test_resnets_for_imagenet() -> None:
    assert imagenet_resnet((2, 2, 2, 2), bottleneck=False).counts == expected("resnet18") == (11_689_512, 1_814_073_344)
    assert imagenet_resnet((3, 4, 6, 3), bottleneck=True).counts == expected("resnet50") == (25_557_032, 4_089_184_256)
    as_in_the_paper = imagenet_resnet((3, 4, 6, 3), bottleneck=True, stride_in_1x1=True)
    assert rounded(as_in_the_paper) == (25.6, 3858)


def shufflenet(groups: int, channels: int, size: int, stem_size: int, sizes: Sequence[int], classes: int) -> Tally:
    tally, before = Tally(), 24
    tally.conv(3, 24, 3, stem_size)
    for stage, (units, halved) in enumerate(zip((4, 8, 4), sizes, strict=True)):
        after = channels * 2**stage
        for unit in range(units):
            width, new = after // 4, after if unit else after - before
            tally.conv(before, width, 1, size, groups=groups if stage or unit else 1)
            tally.conv(width, width, 3, halved, groups=width)
            tally.conv(width, new, 1, halved, groups=groups)
            before, size = after, halved
    tally.linear(before, classes)
    return tally


def test_shufflenet() -> None:
    small, large = (32, 32, (32, 16, 8), 10), (56, 112, (28, 14, 7), 1000)
    assert shufflenet(3, 240, *small).counts == expected("shufflenet")
    assert shufflenet(3, 240, *large).counts == expected("shufflenet_imagenet")
    assert round((shufflenet(3, 240, *large).madds - 960_000) / 1e6, 1) == 136.5


@pytest.mark.parametrize(("small", "size", "classes"), [(True, 32, 10), (False, 224, 1000)])
def test_the_published_shufflenet_has_eight_groups(small: bool, size: int, classes: int) -> None:
    with torch.device("meta"):
        cost = natpp.cost(ShuffleNet(classes, groups=8, small=small), example_input=torch.empty(1, 3, size, size))
    row = MODELS["shufflenet" if small else "shufflenet_imagenet"].published[0]
    sizes = (32, 32, (32, 16, 8), 10) if small else (56, 112, (28, 14, 7), 1000)
    assert shufflenet(8, 384, *sizes).counts == (cost.params, cost.madds)
    assert cost.params == (913_138 if small else 2_434_768)
    assert (round(cost.params / 1e6, 1), int(cost.madds / 1e6)) == (row.params_m, row.madds_m)


def mobilenetv2(size: int, strides: Sequence[int], classes: int, *, more_1x1: bool = False) -> Tally:
    tally, before = Tally(), 32
    tally.conv(3, 32, 3, size)
    for stage, (after, blocks) in enumerate(((16, 1), (24, 2), (32, 3), (64, 4), (96, 3), (160, 3), (320, 1))):
        for block in range(blocks):
            width = 6 * before if stage else before
            if stage or more_1x1:
                tally.conv(before, width, 1, size)
            size //= 1 if block else strides[stage]
            tally.conv(width, width, 3, size, groups=width)
            tally.conv(width, after, 1, size)
            if more_1x1 and strides[stage] == 1 and before != after:
                tally.conv(before, after, 1, size)
            before = after
    tally.conv(320, 1280, 1, size)
    tally.linear(1280, classes)
    return tally


def test_mobilenetv2() -> None:
    imagenet = mobilenetv2(112, (1, 2, 2, 2, 1, 2, 1), 1000)
    assert imagenet.counts == expected("mobilenetv2_imagenet") == (3_504_872, 300_774_272)
    assert mobilenetv2(32, (1, 1, 2, 2, 1, 2, 1), 10).counts == expected("mobilenetv2")
    widened = mobilenetv2(32, (1, 1, 2, 2, 1, 2, 1), 10, more_1x1=True)
    row = MODELS["mobilenetv2"].published[0]
    assert widened.params == 2_296_922
    assert rounded(widened) == (row.params_m, row.madds_m)


def lresnet34e_ir(*, stride_in_first: bool = False) -> Tally:
    tally, before, size = Tally(), 64, 112
    tally.conv(3, 64, 3, 112)
    tally.params += 64  # PReLU
    for after, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            halved = size if block else size // 2
            tally.params += 2 * before + after  # batch norm of the input, PReLU
            tally.conv(before, after, 3, halved if stride_in_first else size)
            tally.conv(after, after, 3, halved)
            if not block:
                tally.conv(before, after, 1, halved)
            before, size = after, halved
    tally.linear(512 * 7 * 7, 512)
    tally.params += 2 * 512 + 2 * 512
    return tally


def mobilefacenet() -> Tally:
    tally, before, size = Tally(), 64, 56
    tally.conv(3, 64, 3, 56)
    tally.conv(64, 64, 3, 56, groups=64)
    prelus = 64 + 64
    for expansion, after, blocks, stride in (
        (2, 64, 5, 2),
        (4, 128, 1, 2),
        (2, 128, 6, 1),
        (4, 128, 1, 2),
        (2, 128, 2, 1),
    ):
        for block in range(blocks):
            width = expansion * before
            tally.conv(before, width, 1, size)
            size //= 1 if block else stride
            tally.conv(width, width, 3, size, groups=width)
            tally.conv(width, after, 1, size)
            prelus += 2 * width
            before = after
    tally.conv(128, 512, 1, 7)
    tally.conv(512, 512, 7, 1, groups=512)
    tally.conv(512, 128, 1, 1)
    tally.params += prelus + 512
    return tally


def test_face_networks() -> None:
    assert lresnet34e_ir().counts == expected("lresnet34e_ir") == (34_139_328, 4_459_642_880)
    assert rounded(lresnet34e_ir(stride_in_first=True)) == (34.1, 3593)
    assert round((34_139_328 - 512 * 512 * 9) / 1e6, 1) == MODELS["lresnet34e_ir"].published[0].params_m
    assert mobilefacenet().counts == expected("mobilefacenet") == (1_003_136, 220_965_376)
    assert int(2 * mobilefacenet().madds / 1e6) == MODELS["mobilefacenet"].published[0].madds_m
    scales = 64 + 64 + 5 * (128 + 128 + 64) + (256 + 256 + 128) + 6 * (256 + 256 + 128)
    scales += (512 + 512 + 128) + 2 * (256 + 256 + 128) + 512 + 512 + 128
    assert mobilefacenet().params - scales == 993_344
