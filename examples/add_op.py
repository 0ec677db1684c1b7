"""A new operation: one depthwise and one pointwise convolution; the paper's sep_conv has two of each."""

import torch

import natpp
from natpp.arch.layers import BatchNorm, Chain, Conv, ReLU
from natpp.arch.ops import Op, Place
from natpp.registry import OPS
from natpp.testing import check_op


def layers(place: Place) -> Chain:
    """Its layers at a place. Both the module and the cost are derived from them."""
    inside, outside, stride = place.channels_in, place.channels_out, (place.stride, place.stride)
    depthwise = Conv(inside, inside, (3, 3), stride, groups=inside)
    return ReLU(), depthwise, Conv(inside, outside), BatchNorm(outside)


OPS.add("light_conv_3x3", Op("light_conv_3x3", family="sep_conv", kernel=3, layers=layers))
check_op("light_conv_3x3")  # right shapes, exact cost, finite gradients, in cells and modules

darts = natpp.load("darts")
ops = [op.replace("sep_conv", "light_conv") for op in darts.normal.ops]
light = darts.with_ops({"normal": ops, "reduce": darts.reduce.ops})
print(f"{natpp.cost(darts).madds:,} → {natpp.cost(light).madds:,} MAdds")
print(natpp.build(light, "cifar:channels=4,cells=3")(torch.randn(1, 3, 32, 32)).shape)
