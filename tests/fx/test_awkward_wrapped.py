"""A forward in a wrapper that looks at what it is given and changes what comes out, and answers that are None."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import natpp
from natpp.fx.rewrite import rewrite
from natpp.fx.trace import trace
from tests.fx.promises import TORCH_2_6, assert_same, no_change_is_no_change, outputs


def recorded(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Adds a second answer where the caller asks for it by name."""

    @functools.wraps(forward)
    def wrapper(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        wanted = kwargs.pop("maps", False)
        found = forward(self, *args, **kwargs)
        return (found, self.seen) if wanted else found

    return wrapper


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    @recorded
    def forward(self, x: Tensor, scale: float = 2.0, maps: bool = False) -> Tensor:
        assert not maps
        self.seen = self.first(x)
        return self.second(self.seen) * scale


@dataclass
class Answer:
    features: Tensor
    maps: Tensor | None = None


@natpp.leaf
class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Answer, dict[str, Tensor | None]]:
        return Answer(self.conv(x)), {"mask": None}


class Asks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        answer, more = self.encoder(x)
        found = {"head": self.head(answer.features)}
        if answer.maps is not None:
            found["maps"] = answer.maps
        if more["mask"] is not None:
            found["mask"] = more["mask"]
        return found


X = torch.randn(2, 3, 6, 6)


@pytest.mark.parametrize("example", [X, (X, 3.0), {"x": X, "maps": True}, {"x": X, "scale": 0.5}])
def test_a_wrapper_gets_what_the_caller_gives(example: object) -> None:
    no_change_is_no_change(Wrapped(), example)


@pytest.mark.skipif(TORCH_2_6, reason="torch.export of torch 2.6 rejects a forward that assigns to attributes")
def test_a_wrapper_that_switches_autocast_is_not_left_out() -> None:
    class Half(Wrapped):
        forward = torch.autocast("cpu", torch.bfloat16)(Wrapped.forward)

    no_change_is_no_change(Half(), X)


def test_whether_an_answer_is_none_is_known() -> None:
    module = Asks().eval()
    assert_same(outputs(rewrite(trace(module, X)), X), outputs(module, X))
