"""The loop of a training."""

import torch
from torch import nn

from natpp.evaluate.loop import fast_format


def test_padded_average_pools_of_torch_stay_out_of_channels_last_memory() -> None:
    gpu = torch.device("cuda")
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AvgPool2d(2), nn.MaxPool2d(3, padding=1))
    assert fast_format(plain, gpu) == torch.channels_last
    assert fast_format(plain, torch.device("cpu")) == torch.contiguous_format
    assert fast_format(nn.Sequential(plain, nn.AvgPool2d(3, padding=1)), gpu) == torch.contiguous_format
