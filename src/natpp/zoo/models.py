"""Hand-crafted networks by name, with their costs and published results.

A network is one entry here plus its code in `src/natpp/zoo/networks`, which is imported when the network is built.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from natpp.errors import SettingError
from natpp.registry import MODELS
from natpp.zoo.published import Published, rows_of

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Model:
    """A network of the zoo as described in its paper."""

    name: str
    make: Callable[[int], nn.Module]  # builds the module with this many outputs and fresh weights
    input_shape: tuple[int, int, int]  # channels, height, width
    outputs: int  # classes, or the length of an embedding
    params: int  # with the default number of outputs
    madds: int  # for one input of `input_shape`
    source: str
    note: str  # how our counts compare with the published ones, and why they differ
    embeds: bool = False  # whether the output is an embedding instead of logits
    original_params_m: float | None = None  # according to the network's own paper
    original_madds_m: float | None = None
    published: tuple[Published, ...] = ()  # its rows in the tables of the NAT++ paper

    def build(self, classes: int | None = None) -> nn.Module:
        """The network with fresh weights, optionally for another number of classes."""
        if classes is None:
            return self.make(self.outputs)
        if self.embeds:
            raise SettingError(
                f"{self.name} outputs an embedding of {self.outputs} numbers, so classes does not apply: leave it out"
            )
        if isinstance(classes, bool) or not isinstance(classes, int) or classes < 1:
            raise SettingError(f"classes is {classes!r}, expected a whole number from 1 up")
        return self.make(classes)


def network(
    name: str, classes: int | None = None, weights: str | Path | Mapping[str, Tensor] | None = None
) -> nn.Module:
    """A hand-crafted network as a plain module, by its name in the zoo, with fresh weights or those given.

    `weights` are a mapping from names to tensors, a safetensors file or a checkpoint of torch. Names may start with
    `module.`, and with `linear.` in place of `fc.`.

    Examples:
        >>> model = natpp.zoo.network("mobilenetv2", classes=5)
        >>> natpp.cost(model, example_input=torch.randn(1, 3, 32, 32)).madds
        87970048
        >>> again = natpp.zoo.network("mobilenetv2", classes=5, weights=model.state_dict())
    """
    found = MODELS[name].build(classes)
    if weights is not None:
        from natpp.zoo.checkpoints import load_weights

        load_weights(found, weights)
    return found


def _made(name: str, **settings: Any) -> Callable[[int], nn.Module]:
    """A function that makes a network of `natpp.zoo.networks`, given as `file:Class`; calling it imports the file."""

    def make(outputs: int) -> nn.Module:
        found: nn.Module = pkgutil.resolve_name(f"natpp.zoo.networks.{name}")(outputs, **settings)
        return found

    return make


VGG = "Simonyan and Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition (2014)"
RESNET = "He et al., Deep Residual Learning for Image Recognition (2015)"
SHUFFLENET = "Zhang et al., ShuffleNet: An Extremely Efficient Convolutional Neural Network for Mobile Devices (2017)"
MOBILENET = "Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks (2018)"
ARCFACE = "Deng et al., ArcFace: Additive Angular Margin Loss for Deep Face Recognition, first version (2018)"
MOBILEFACENET = "Chen et al., MobileFaceNets: Efficient CNNs for Accurate Real-Time Face Verification (2018)"

for _model in (
    Model(
        "vgg16", _made("vgg:VGG16", pooled=1, hidden=512, batch_norm=True), (3, 32, 32), 10,
        params=15_249_354, madds=313_725_952, source=VGG,
        note="The VGG paper has no CIFAR network. The row matches three linear layers, as in the paper, with 512 "
        "channels; with one linear layer, the network has 14,724,042 parameters. 313 is our 313.7, truncated.",
        published=rows_of(["VGG16"], None, "CIFAR"),
    ),
    Model(
        "vgg16_imagenet", _made("vgg:VGG16", pooled=7, hidden=4096, batch_norm=False), (3, 224, 224), 1000,
        params=138_357_544, madds=15_470_264_320, source=VGG,
        note="Without batch norm, as in the VGG paper; batch norm in place of biases would add 4,224 parameters. The "
        "convolutions have 15,346.6 M MAdds, the linear layers 123.6 M. The row is 1% higher; biases, activations and "
        "pooling together do not account for that much.",
        original_params_m=138, published=rows_of(["VGG16"], None, "ImageNet"),
    ),
    Model(
        "resnet20", _made("resnet:CifarResNet", depth=20), (3, 32, 32), 10,
        params=269_722, madds=40_551_040, source=RESNET,
        note="Shortcuts of option A (no parameters), as in the ResNet paper for CIFAR; projections would give 272,474 "
        "and 40.8 M, which rounds to the same.",
        original_params_m=0.27, published=rows_of(["ResNet20"], None, "CIFAR"),
    ),
    Model(
        "resnet56", _made("resnet:CifarResNet", depth=56), (3, 32, 32), 10,
        params=853_018, madds=125_485_696, source=RESNET,
        note="Option A. Counting two operations for each of the 532,480 batch norm outputs gives 126.6 M, which rounds "
        "to 127; ResNet20 then has 40.9 M, which also rounds to its row.",
        original_params_m=0.85, published=rows_of(["ResNet56"], None, "CIFAR"),
    ),
    Model(
        "resnet18", _made("resnet:ResNet", depths=(2, 2, 2, 2), bottleneck=False), (3, 224, 224), 1000,
        params=11_689_512, madds=1_814_073_344, source=RESNET,
        note="The parameters agree. 1,580 M is 13% less than our count and the ResNet paper's; we found no way of "
        "counting that gives it.",
        original_madds_m=1800, published=rows_of(["ResNet18"], None, "ImageNet"),
    ),
    Model(
        "resnet50", _made("resnet:ResNet", depths=(3, 4, 6, 3), bottleneck=True), (3, 224, 224), 1000,
        params=25_557_032, madds=4_089_184_256, source=RESNET,
        note="The stride is in the 3x3 convolution, as in torchvision's published weights. The ResNet paper has it in "
        "the first 1x1, which gives the same parameters and 3,858 M MAdds. 3,530 M is 9% less; like the row of "
        "ResNet18, we cannot explain it.",
        original_madds_m=3800, published=rows_of(["ResNet50"], None, "ImageNet"),
    ),
    Model(
        "shufflenet", _made("shufflenet:ShuffleNet", groups=3, small=True), (3, 32, 32), 10,
        params=914_338, madds=163_919_232, source=SHUFFLENET,
        note="The ShuffleNet paper has no CIFAR network. The row matches stages at 32, 16 and 8 pixels, and 8 groups "
        "instead of 3: 913,138 parameters and 161.7 M MAdds.",
        published=rows_of(["ShuffleNet"], None, "CIFAR"),
    ),
    Model(
        "shufflenet_imagenet", _made("shufflenet:ShuffleNet", groups=3, small=False), (3, 224, 224), 1000,
        params=1_865_728, madds=137_460_672, source=SHUFFLENET,
        note="The row matches 8 groups: `ShuffleNet(1000, groups=8, small=False)` has 2,434,768 parameters and 138.4 M "
        "MAdds. The ShuffleNet paper leaves out the linear layer: 136.5 M.",
        original_madds_m=137, published=rows_of(["ShuffleNet"], None, "ImageNet"),
    ),
    Model(
        "mobilenetv2", _made("mobilenet:MobileNetV2", small=True), (3, 32, 32), 10,
        params=2_236_682, madds=87_976_448, source=MOBILENET,
        note="The MobileNetV2 paper has no CIFAR network. The row matches a network with 1x1 convolutions that the "
        "paper does not have: as shortcuts of blocks with stride 1 that change the number of channels, and in the "
        "first block, which does not expand. With them, it has 2,296,922 parameters and 91.2 M MAdds; we follow the "
        "MobileNetV2 paper.",
        published=rows_of(["MobileNetV2"], None, "CIFAR"),
    ),
    Model(
        "mobilenetv2_imagenet", _made("mobilenet:MobileNetV2", small=False), (3, 224, 224), 1000,
        params=3_504_872, madds=300_774_272, source=MOBILENET,
        note="The row repeats the MobileNetV2 paper. Without scale and shift of batch norms, it has 3,470,760 "
        "parameters.",
        original_params_m=3.4, original_madds_m=300, published=rows_of(["MobileNetV2"], None, "ImageNet"),
    ),
    Model(
        "lresnet34e_ir", _made("face:LResNetEIR", depths=(3, 4, 6, 3)), (3, 112, 112), 512,
        params=34_139_328, madds=4_459_642_880, source=ARCFACE,
        note="Intel's conversion of the authors' weights has 34.1 M parameters and 8.93 G operations, counting a "
        "multiply and an add as two, which matches our network. We cannot explain the row of the NAT++ paper: 31.8 M "
        "parameters would remain without one of the 3x3 convolutions with 512 channels (2,359,296). 7,104 M "
        "operations, counted as in the row of MobileFaceNet, are 3,552 M MAdds, close to the 3,593 M of a network with "
        "the stride in the first convolution of a block; the ArcFace paper has it in the second.",
        embeds=True, published=rows_of(["LResNet34E-IR"], None, "face verification"),
    ),
    Model(
        "mobilefacenet", _made("face:MobileFaceNet"), (3, 112, 112), 128,
        params=1_003_136, madds=220_965_376, source=MOBILEFACENET,
        note="441 is twice our count, 441.9, truncated: a multiply and an add are counted as two. Folding the scales "
        "of batch norms into convolutions leaves 0.99 M parameters: 993,344.",
        embeds=True, original_params_m=0.99, published=rows_of(["MobileFaceNet"], None, "face verification"),
    ),
):  # fmt: skip
    MODELS.add(_model.name, _model)
