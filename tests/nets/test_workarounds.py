"""Average pools whose gradients are right in any memory format, and grouped convolutions that are dense."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from natpp.data.feeds import fast_format
from natpp.nets.workarounds import MOST_GROUPS, Workarounds, workarounds

LAST = torch.channels_last


def steps_of(output: Tensor, name: str = "AvgPool2DBackward0") -> list[Any]:
    """Steps of the backward pass with a name."""
    found, waiting = [], [output.grad_fn]
    while waiting:
        step = waiting.pop()
        if step is not None:
            found += [step] if step.name() == name else []
            waiting += [one for one, _ in step.next_functions]
    return found


def images(device: str = "cpu", channels: int = 3) -> Tensor:
    x = torch.randn(2, channels, 7, 6, generator=torch.Generator().manual_seed(0)).to(device)
    return x.contiguous(memory_format=LAST).requires_grad_()


class Both(nn.Module):
    """A pool of every kind, and a grouped convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.grouped = nn.Conv2d(4, 6, 1, groups=2)
        self.pool = nn.AvgPool2d(3, stride=1, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.grouped(self.conv(x)))
        return functional.avg_pool2d(functional.avg_pool2d(x, 3, padding=(1, 0), stride=1), 2, 2, ceil_mode=True)


@given(
    kernel=st.integers(2, 5),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    ceil=st.booleans(),
    counted=st.booleans(),
    named=st.booleans(),
)
def test_pools_are_those_of_torch(
    kernel: int, stride: int, padding: int, ceil: bool, counted: bool, named: bool
) -> None:
    padding = min(padding, kernel // 2)
    given = {"stride": stride, "padding": padding, "ceil_mode": ceil, "count_include_pad": counted}
    x, plain = images(), images().detach().contiguous().requires_grad_()
    expected = functional.avg_pool2d(plain, kernel, **given)
    with Workarounds():
        if named:
            found = functional.avg_pool2d(input=x, kernel_size=kernel, **given)
        else:
            found = functional.avg_pool2d(x, kernel, *given.values())
    assert torch.equal(found, expected)
    assert found.is_contiguous(memory_format=LAST)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    gradients = [torch.autograd.grad((one * weights).sum(), start)[0] for one, start in ((found, x), (expected, plain))]
    torch.testing.assert_close(*gradients)


def test_padded_pools_work_on_contiguous_images() -> None:
    module = Both().to(memory_format=LAST)
    assert [step._saved_self.is_contiguous() for step in steps_of(module(images()))] == [False] * 3
    with Workarounds():
        output = module(images())
    seen = [step._saved_self.is_contiguous() for step in steps_of(output)]
    assert seen == [False, True, True]  # the last one has no padding: there is nothing wrong with it
    assert output.is_contiguous(memory_format=LAST)


@given(
    groups=st.integers(1, MOST_GROUPS + 1),
    channels_in=st.integers(1, 3),
    channels_out=st.integers(1, 3),
    kernel=st.sampled_from([1, 3]),
    stride=st.integers(1, 2),
    padding=st.sampled_from([0, 1]),
    biased=st.booleans(),
    named=st.booleans(),
)
def test_grouped_convolutions_are_those_of_torch(
    groups: int, channels_in: int, channels_out: int, kernel: int, stride: int, padding: int, biased: bool, named: bool
) -> None:
    conv = nn.Conv2d(groups * channels_in, groups * channels_out, kernel, stride, padding, 1, groups, bias=biased)
    conv.to(memory_format=LAST)
    x, parameters = images(channels=groups * channels_in), list(conv.parameters())
    given = {"stride": stride, "padding": padding, "groups": groups}
    expected = functional.conv2d(x, conv.weight, conv.bias, **given)
    with Workarounds():
        found = functional.conv2d(input=x, weight=conv.weight, bias=conv.bias, **given) if named else conv(x)
    torch.testing.assert_close(found, expected)
    dense = kernel == 1 and channels_in > 1 and groups <= MOST_GROUPS
    (step,) = steps_of(found, "ConvolutionBackward0")
    assert step._saved_groups == (1 if dense else groups)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    both = [torch.autograd.grad((one * weights).sum(), [x, *parameters]) for one in (found, expected)]
    torch.testing.assert_close(*both)


def test_groups_that_do_not_fit_are_refused_as_torch_does() -> None:
    with Workarounds(), pytest.raises(RuntimeError, match="divisible by 2"):
        functional.conv2d(images(channels=4), torch.ones(5, 2, 1, 1), groups=2)


def test_images_that_are_contiguous_and_those_without_a_batch_stay_so() -> None:
    x = torch.randn(2, 3, 6, 6)
    with Workarounds():
        assert functional.avg_pool2d(x, 3, 1, 1).is_contiguous()
        assert torch.equal(functional.avg_pool2d(x[0], 3, 1, 1), functional.avg_pool2d(x, 3, 1, 1)[0])
        grouped = nn.Conv2d(4, 4, 1, groups=2)(torch.randn(2, 4, 6, 6))
        assert grouped.is_contiguous()
        assert [step._saved_groups for step in steps_of(grouped, "ConvolutionBackward0")] == [2]


def test_they_are_for_gpus() -> None:
    assert isinstance(workarounds(torch.device("cuda")), Workarounds)
    assert not isinstance(workarounds(torch.device("cpu")), Workarounds)
    assert fast_format(torch.device("cuda")) == LAST
    assert fast_format(torch.device("cpu")) == torch.contiguous_format


@pytest.mark.gpu
def test_gradients_on_a_gpu_are_those_of_a_cpu() -> None:
    module = Both().to(memory_format=LAST)
    expected = torch.autograd.grad(module(images()).square().sum(), list(module.parameters()))
    module.to("cuda")
    with workarounds(torch.device("cuda")):
        output = module(images("cuda"))
    for one, other in zip(torch.autograd.grad(output.square().sum(), list(module.parameters())), expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-2, atol=1e-2)  # its convolutions may be in TF32
