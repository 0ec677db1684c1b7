"""Calls with equal keys make values of the same shapes, so that only the first one is run."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import natpp
from natpp.fx.alike import call_key
from natpp.fx.fake import Values
from natpp.fx.trace import trace
from natpp.fx.traced import VALUE

X = torch.randn(2, 4, 6, 6)


@natpp.leaf
class Stranger(nn.Module):
    def __init__(self, step: int = 1) -> None:
        super().__init__()
        self.step, self.inner = step, nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[:, :, :: self.step]


def hooked() -> nn.Module:
    layer = nn.GELU()
    layer.register_forward_hook(lambda module, given, made: made[:, :2])
    return layer


def test_keys_tell_calls_apart_that_may_make_other_shapes() -> None:
    mode = FakeTensorMode()
    x, wide, flipped = map(mode.from_tensor, (X, X[:, :, :, :3], X.to(memory_format=torch.channels_last)))

    def key(target: object, *args: object, **more: object) -> object:
        return call_key(target, args, more)

    assert key(nn.Conv2d(4, 4, 3), x) == key(nn.Conv2d(4, 4, 3), x) is not None
    assert key(Stranger(), x) == key(Stranger(), x) is not None
    assert key(F.gelu, x) == key(F.gelu, x) is not None
    different = [
        *(key(nn.Conv2d(4, 4, 3), one) for one in (x, wide, flipped)),
        *(key(layer, x) for layer in (nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 8, 3), nn.Dropout(), nn.Identity())),
        *(key(layer, x) for layer in (nn.Dropout().eval(), Stranger(), Stranger(2))),
        *(key(F.max_pool2d, x, size) for size in (1, 2, 1.0, True)),
        *(key(name, x, 1) for name in ("unsqueeze", "flatten")),
        key("flatten", x, start_dim=1),
    ]
    assert None not in different
    assert len(set(different)) == len(different)


@pytest.mark.parametrize("target", [hooked(), len, lambda x: x], ids=["hooked", "len", "lambda"])
def test_calls_that_may_do_anything_have_no_key(target: object) -> None:
    assert call_key(target, (FakeTensorMode().from_tensor(X),), {}) is None


def test_a_repeated_call_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[str] = []
    own = Values.run

    def counted(self: Values, node: torch.fx.Node, watch: Callable[[], object]) -> object:
        run.append(str(node.target))
        return own(self, node, watch)  # type: ignore[arg-type]

    monkeypatch.setattr(Values, "run", counted)
    trace(nn.Sequential(*(Stranger() for _ in range(3)), nn.GELU(), nn.GELU()).eval(), X)
    assert run == ["0", "3"]


class Changing(nn.Module):
    """Views, and calls that change a value or its shape in place."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            y = x.transpose(1, 2).clone()
            y.unsqueeze_(0)
            y += 1
            z = y.squeeze_(0).relu_()
            one, two = z.chunk(2, 1)
            x = torch.cat([two, one], 1).transpose(1, 2) + x.max(1, keepdim=True).values
        return x.permute(0, 2, 3, 1)


def test_values_are_those_of_calls_that_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def shapes() -> list[object]:
        def told(made: object) -> object:
            if isinstance(made, tuple | list):
                return [told(one) for one in made]
            return (made.shape, made.stride(), made.dtype) if isinstance(made, Tensor) else made

        return [told(node.meta.get(VALUE)) for node in trace(Changing(), X).graph.nodes]

    found = shapes()
    monkeypatch.setattr(Values, "key", lambda *_: None)
    assert found == shapes()
