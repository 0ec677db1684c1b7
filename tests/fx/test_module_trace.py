"""Tracing: shapes, modes, what stays whole, what is refused."""

import copy
import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import natpp
from natpp.errors import SettingError
from natpp.fx.fake import plain_value
from natpp.fx.leaf import is_leaf
from natpp.fx.modes import ByMode
from natpp.fx.rewrite import rewrite
from natpp.fx.sites import Site, find_items
from natpp.fx.trace import trace
from natpp.fx.traced import TraceError, value
from natpp.nets.measure import module_cost
from tests.fx.fx_models import SMALL, BasicBlock, ResNet
from tests.fx.promises import keeps_promises, no_change_is_no_change, warmed, written_module


@pytest.mark.parametrize("name", SMALL)
def test_shapes_are_those_of_the_real_run(name: str) -> None:
    module, x = warmed(SMALL[name](), torch.randn(2, 3, 16, 16)), torch.randn(2, 3, 16, 16)
    traced = trace(module, x)
    seen = {}

    def note(path: str) -> Callable[..., None]:
        def hook(part: nn.Module, args: object, out: Tensor) -> None:
            seen[path] = out.shape

        return hook

    for path, part in module.named_modules():
        part.register_forward_hook(note(path))
    with torch.no_grad():
        module(x)
    called = [node for node in traced.graph.nodes if node.op == "call_module"]
    assert called
    assert all(value(node).shape == seen[node.target] for node in called if node.target.count("relu") == 0)


@pytest.mark.parametrize("training", [True, False])
def test_the_original_is_untouched(training: bool) -> None:
    module, x = SMALL["resnet"]().train(training), torch.randn(2, 3, 16, 16)
    module.layer1[0].eval()
    before, state = copy.deepcopy(module), {key: tensor.clone() for key, tensor in module.state_dict().items()}
    names = set(vars(module))
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    same = rewrite(trace(module, x))
    assert torch.equal(torch.rand(1), expected)  # no random number was drawn
    assert set(vars(module)) == names
    assert all(torch.equal(tensor, state[key]) for key, tensor in module.state_dict().items())
    modes = {path: part.training for path, part in before.named_modules()}
    assert {path: part.training for path, part in module.named_modules()} == modes
    assert all(part.training == modes[path] for path, part in same.named_modules())


def test_a_constant_made_in_the_forward_stays_out_of_the_module() -> None:
    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.tensor([1.0, 2.0, 3.0])[None, :, None, None]

    module = Constant()
    same = rewrite(trace(module, torch.randn(1, 3, 2, 2)))
    assert not [name for name in vars(module) if "constant" in name]
    assert not same.state_dict()
    x = torch.randn(2, 3, 2, 2)
    assert torch.equal(same(x), module(x))


def test_questions_about_shapes_are_answered() -> None:
    class Asks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert x.shape[1] == 4
            if x.dim() == 4 and len(x.shape) == 4 and x.dtype == torch.float32:
                x = x + 1
            total = x[:, :2]
            for part in x.chunk(2, dim=1):
                total = total + part
            return total.reshape(x.size(0), -1)

    traced = no_change_is_no_change(Asks(), torch.randn(3, 4, 5, 5))
    larger = torch.randn(7, 4, 5, 5)
    assert torch.equal(rewrite(traced)(larger), Asks()(larger))  # the batch may be another


class AsksForTypes(nn.Module):
    """Takes the first of several, where it is given several, and a mask where there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.lstm = nn.LSTM(6, 6)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if isinstance(mask, Tensor):
            x = x * mask
        x = self.first(x)
        x = self.second(x if torch.is_tensor(x) else x[0])
        rows = self.lstm(x.mean(1))
        if isinstance(rows, (list, tuple)):
            rows = rows[0]
        if isinstance(self.scale, nn.Parameter) and not isinstance(x, nn.Parameter):
            rows = rows * self.scale
        sides = [side if isinstance(side, int) else side[0] for side in x.shape[2:]]
        return x + rows.reshape(-1, 1, *sides)


def test_a_forward_that_asks_for_a_type_is_told_that_of_the_value() -> None:
    x, mask = torch.randn(2, 3, 6, 6), (torch.rand(2, 1, 6, 6) < 0.5).float()
    traced = no_change_is_no_change(AsksForTypes(), {"x": x, "mask": mask})
    assert not traced.notes
    assert isinstance.__module__ == "builtins"
    assert no_change_is_no_change(AsksForTypes(), x).notes == ()


def test_new_tensors_and_loops_over_sizes() -> None:
    class Makes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            grid = torch.zeros(x.shape[0], 1, x.shape[2], x.shape[3], device=x.device)
            grid[:, 0] = torch.arange(x.shape[3], dtype=x.dtype)
            for channel in range(x.shape[1]):
                grid = grid + x[:, channel : channel + 1]
            return torch.cat([x, grid], 1)

    traced = no_change_is_no_change(Makes(), torch.randn(2, 3, 5, 5))
    same, other = rewrite(traced), torch.randn(4, 3, 7, 7)
    assert torch.equal(same(other), Makes()(other))
    with pytest.raises(AssertionError, match="size of 3"):
        same(torch.randn(2, 4, 5, 5))


class Sized(nn.Module):
    """Goes by the sizes of what it is given: by whether a side can be halved, how often, and which is the shorter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        if height % 4 or width % 4:
            x = F.pad(x, (0, -width % 4, 0, -height % 4))
        x = skip = self.first(x)
        while x.shape[-1] > 8:
            x = F.max_pool2d(x, 2)
        x = self.second(x)
        if x.shape[2:] != skip.shape[2:]:
            x = F.interpolate(x, skip.shape[2:])
        side = min(height, width)
        return (x + skip)[:, :, :side, :side]


def test_a_condition_on_sizes_holds_for_every_call() -> None:
    module = Sized().eval()
    same = rewrite(no_change_is_no_change(module, torch.randn(2, 3, 14, 14)))
    for other in (torch.randn(5, 3, 14, 14), torch.randn(2, 3, 10, 10), torch.randn(1, 3, 14, 15)):
        assert torch.equal(same(other), module(other))
    line = Sized.forward.__code__.co_firstlineno
    for sides, said in {
        (16, 14): rf"14 % 4 was 2 \(test_module_trace\.py, line {line + 2}\): trace it again",
        (14, 18): rf"8 > 8 was False \(test_module_trace\.py, line {line + 5}\)",
        (14, 5): r"16 > 8 was True",
        (14, 13): r"14 < 14 was False",
    }.items():
        with pytest.raises(AssertionError, match=said):
            same(torch.randn(2, 3, *sides))
    same = rewrite(trace(module, torch.randn(2, 3, 8, 8)))
    with pytest.raises(AssertionError, match=r"8 % 4 was 0"):
        same(torch.randn(2, 3, 8, 10))
    with pytest.raises(AssertionError, match=r"8 > 8 was False"):
        same(torch.randn(2, 3, 8, 12))


def test_conditions_on_sizes_are_kept_in_files_and_deployed(tmp_path: Path) -> None:
    example = torch.randn(2, 3, 12, 12)
    keeps_promises(Sized(), example, seeds=2)
    folder = natpp.optimize(Sized(), budget="strict", example_input=example).save(tmp_path / "saved")
    for made in (natpp.restore(folder), written_module(folder).load()):
        with pytest.raises(AssertionError, match=r"12 % 4 was 0 \(test_module_trace\.py, line \d+\)"):
            made(torch.randn(2, 3, 12, 14))


def test_conditions_on_sizes_add_nothing_to_the_cost() -> None:
    example = torch.randn(2, 3, 12, 12)
    assert module_cost(rewrite(trace(Sized(), example)), example) == module_cost(Sized(), example)


def test_a_size_is_looked_up_as_the_number_it_is() -> None:
    class LooksUp(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = x * {3: 2.0, 1: 1.0}.get(x.shape[1], 0.0) + {(4, 5): 0.5}[x.shape[2], x.shape[3]]
            return x + 1 if x.dtype in {torch.float32} and x.shape[2] not in {5} else x

    same = rewrite(no_change_is_no_change(LooksUp(), torch.randn(2, 3, 4, 5)))
    other = torch.randn(7, 3, 4, 5)
    assert torch.equal(same(other), LooksUp()(other))
    with pytest.raises(AssertionError, match="size of 3"):
        same(torch.randn(2, 1, 4, 5))
    with pytest.raises(AssertionError, match="size of 5"):
        same(torch.randn(2, 3, 4, 6))


def test_what_a_forward_keeps_by_size_is_not_that_of_another_pass() -> None:
    @functools.cache
    def ramp(size: int) -> Tensor:
        return torch.arange(size) + size

    class Keeps(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + ramp(x.shape[3]) + ramp(x.shape[2])[:, None]

    x = torch.randn(2, 3, 5, 5)
    expected = x + torch.arange(5) + torch.arange(5)[:, None] + 10
    for _ in range(2):
        same = rewrite(no_change_is_no_change(Keeps(), x))
        assert torch.allclose(same(x), expected)
    assert torch.allclose(Keeps()(x), expected)
    assert ramp(5) is ramp(5)


def test_conditions_on_types_and_places_are_not_checked() -> None:
    class Typed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.dtype == torch.float32 and x.device.type == "cpu" and not x.is_cuda:
                x = x + 1
            return x * {True: 2, False: 3}[x.is_cuda]

    traced = no_change_is_no_change(Typed(), torch.randn(2, 3, 4, 4))
    assert torch._assert not in [node.target for node in traced.graph.nodes]


def test_chance_stays_chance() -> None:
    class Noise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.rand(x.shape[0], 1, 1, 1)

    same = rewrite(trace(Noise(), torch.randn(2, 3, 4, 4)))
    x = torch.zeros(3, 3, 4, 4)
    assert not torch.equal(same(x), same(x))


class DropPath(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * torch.empty(x.shape[0], 1, 1, 1).bernoulli_(0.5)


def test_what_goes_another_way_in_training_stays_whole() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), DropPath(), nn.Conv2d(4, 4, 3, padding=1), DropPath())
    traced = no_change_is_no_change(module, torch.randn(2, 3, 6, 6))
    assert [note.split(" ")[0] for note in traced.notes] == ["1"]  # one note for the class
    assert "training mode" in traced.notes[0] or "random" in traced.notes[0]


class DropConnect(nn.Module):
    """A block that drops its branch by chance in training, as EfficientNet-Lite writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        if self.training:
            y = y / 0.8 * torch.floor(0.8 + torch.rand([y.shape[0], 1, 1, 1]))
        return x + y


def test_a_block_that_drops_its_branch_in_training_is_looked_into() -> None:
    module, x = (
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), DropConnect(), DropConnect()).eval(),
        torch.randn(2, 3, 6, 6),
    )
    traced = trace(module, x)
    assert traced.notes == (
        "in training mode its part 1 makes it take another path; the result keeps the eval-mode path",
    )
    assert torch.equal(rewrite(traced)(x), module(x))
    result = natpp.optimize(module, budget=0.5, example_input=x)
    assert result.cost_after.madds <= 0.5 * result.cost_before.madds
    (note,) = trace(module.train(), x).notes
    assert note.startswith("1 (DropConnect) is kept whole")
    assert note.endswith("call its eval() first, so that natpp can look inside")


class Drawn(nn.Module):
    """A map times a number that Python or NumPy draw."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.conv, self.draw = nn.Conv2d(4, 4, 3, padding=1), draw

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) * self.draw()


class LayerDrop(nn.Module):
    """Layers that are skipped by chance while training."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if not self.training or random.random() > 0.5:
                x = layer(x)
        return x


@pytest.mark.parametrize("draw", [np.random.rand, np.random.randn, random.random])
def test_numbers_drawn_by_python_or_numpy_are_no_constants(draw: Callable[[], float]) -> None:
    x = torch.randn(2, 4, 6, 6)
    with pytest.raises(TraceError, match=r"its own forward stops it \(it draws random numbers, which would become"):
        trace(Drawn(draw), x)
    for part in (Drawn(draw), natpp.leaf(Drawn(draw))):
        module = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), part)
        traced = trace(module, x)
        whole = "1 (Drawn) is kept whole: it draws random numbers, which would become constants"
        assert traced.notes == (() if is_leaf(part) else (whole,))
        same = rewrite(traced)
        assert not torch.equal(same(x), same(x))


def test_layers_that_python_skips_by_chance_are_those_of_eval_mode() -> None:
    x = torch.randn(2, 4, 6, 6)
    for seed in range(8):
        random.seed(seed)
        with pytest.raises(TraceError, match=r"its own forward stops it .* Call its eval\(\) first"):
            trace(LayerDrop(), x)
        module = LayerDrop().eval()
        traced = trace(module, x)
        assert traced.notes == (
            "in training mode its own forward makes it take another path; the result keeps the eval-mode path",
        )
        assert torch.equal(rewrite(traced)(x), module(x))
        (note,) = trace(nn.Sequential(LayerDrop(), nn.Conv2d(4, 4, 1)), x).notes
        why = "it draws random numbers, which would become constants; "
        why += "call its eval() first, so that natpp can look inside"
        assert note == f"0 (LayerDrop) is kept whole: {why}"


class Auxiliary(nn.Module):
    """Another head, in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 2)
        self.auxiliary = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Flatten(), nn.LazyLinear(2))

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self.body(x)
        found = self.head(x.mean((2, 3)))
        return (found, self.auxiliary(x)) if self.training else found


def test_another_way_in_training_is_left_out_of_a_module_in_eval_mode() -> None:
    x, module = torch.randn(2, 3, 6, 6), Auxiliary()
    module(x)
    with pytest.raises(TraceError, match=r"its part auxiliary\.0 stops it"):
        trace(module, x)
    module.eval()
    traced = trace(module, x)
    (note,) = traced.notes
    assert (
        note == "in training mode its part auxiliary.0 makes it take another path; the result keeps the eval-mode path"
    )
    same = rewrite(traced)
    assert torch.equal(same(x), module(x))
    assert torch.equal(same.train()(x), module(x))
    assert not any("auxiliary" in name for name in same.state_dict())


def test_a_part_that_looks_at_data_stays_whole() -> None:
    class Looks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if x.sum() > 0 else x

    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), Looks(), nn.Conv2d(4, 4, 3, padding=1))
    traced = no_change_is_no_change(module, torch.randn(2, 3, 6, 6))
    assert "1 (Looks)" in traced.notes[0]
    assert "data" in traced.notes[0]


class Cropped(nn.Module):
    """A loop of Python over the numbers of a shape, which stand-ins cannot answer as `numpy` asks them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(BasicBlock(3, 8), nn.Dropout(0.3), BasicBlock(8, 8))
        self.last = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        side = int(np.sqrt(np.prod(x.shape[2:])))
        x = F.dropout(self.last(self.body(x[:, :, :side, :side])), 0.5, self.training)
        return {"map": x, "mean": x.mean((2, 3))}


def test_torch_export_is_the_second_way() -> None:
    example = torch.randn(3, 3, 8, 8)
    traced = keeps_promises(Cropped(), example, seeds=2)
    assert "torch.export" in traced.notes[0]
    sites = [item.name for item in find_items(traced) if isinstance(item, Site)]
    assert {"body.0.conv1", "body.2.conv2", "last"} <= set(sites)
    module = Cropped().eval()
    same, other = rewrite(trace(module, example)), torch.randn(5, 3, 8, 8)
    assert torch.equal(same(other)["map"], module(other)["map"])  # another batch


def test_a_forward_that_looks_at_data_itself_is_refused() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x)
            return x * 2 if x.sum() > 0 else x

    with pytest.raises(TraceError, match=r"Looks cannot be traced.*natpp\.leaf"):
        natpp.optimize(Looks(), budget="strict", example_input=torch.randn(2, 3, 6, 6))


def test_a_forward_with_a_path_for_training_is_refused_with_the_way_round() -> None:
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.aux = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 1, 1)

        def forward(self, x: Tensor) -> object:
            x = self.conv(x)
            return (x, self.aux(x)) if self.training else x

    with pytest.raises(TraceError, match="training"):
        trace(Auxiliary(), torch.randn(2, 3, 6, 6))


def test_a_leaf_is_not_looked_into() -> None:
    @natpp.leaf
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x)

    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), Whole(), natpp.leaf(nn.Sequential(nn.Conv2d(4, 4, 1))))
    called = [node.target for node in trace(module, torch.randn(1, 3, 4, 4)).graph.nodes if node.op == "call_module"]
    assert called == ["0", "1", "2"]


def test_a_wrong_example_says_what_is_wrong() -> None:
    with pytest.raises(SettingError, match="does not run on the example input"):
        trace(SMALL["resnet"](), torch.randn(1, 4, 8, 8))
    with pytest.raises(SettingError, match="does not fit"):
        trace(SMALL["resnet"](), (torch.randn(1, 3, 8, 8), 1))


def test_values_by_mode() -> None:
    part = ByMode(0.5, 0.0)
    assert part.train()() == 0.5
    assert part.eval()() == 0.0

    class Attends(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, x, x, dropout_p=0.3 if self.training else 0.0)

    traced = trace(Attends(), torch.randn(2, 2, 4, 4))
    constants = [part for part in traced.parts.values() if isinstance(part, ByMode)]
    assert [(part.in_training, part.otherwise) for part in constants] == [(0.3, 0.0)]


def test_a_module_without_data_can_be_traced() -> None:
    module = ResNet(BasicBlock, (2, 2, 2, 2), width=64, imagenet=True).to("meta")
    traced = trace(module, torch.empty(64, 3, 224, 224, device="meta"))
    assert value(next(node for node in traced.graph.nodes if node.target == "layer4.1.conv2")).shape == (64, 512, 7, 7)


def test_what_is_computed_of_buffers_alone_is_no_constant() -> None:
    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)
            self.register_buffer("first", torch.ones(8, 1, 1))
            self.register_buffer("second", torch.ones(8, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x) * (self.first + self.second)

    module, x = Counted().eval(), torch.randn(1, 3, 8, 8)
    same = rewrite(trace(module, x))
    assert same.state_dict().keys() == module.state_dict().keys()
    same.first.fill_(5)
    assert torch.equal(same(x), module.conv(x) * 6)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(3, 4, 3, padding=1), (2, 3, 8, 9)),
        (nn.Conv2d(4, 6, (3, 5), stride=(2, 1), padding=(0, 2), dilation=(2, 1), groups=2), (1, 4, 9, 7)),
        (nn.Conv2d(4, 4, 1, groups=4, bias=False), (1, 4, 1, 1)),
        (nn.Conv2d(1, 5, 2, stride=2), (3, 1, 5, 5)),
        (nn.Conv2d(3, 4, 1).to(memory_format=torch.channels_last), (2, 3, 8, 8)),
        (nn.BatchNorm2d(3), (2, 3, 4, 5)),
        (nn.ReLU(), (2, 3, 4, 5)),
        (nn.ReLU(inplace=True), (2, 3, 4, 5)),
    ],
)
def test_plain_layers_have_the_values_that_torch_gives_them(
    layer: nn.Module, shape: tuple[int, ...], layout: torch.memory_format, training: bool
) -> None:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    x = mode.from_tensor(torch.empty(shape).to(memory_format=layout))
    known = plain_value(layer.train(training), x)
    with mode, torch.no_grad():
        expected = layer(x)
    last = isinstance(layer, nn.Conv2d) and layer.weight.stride()[1] == 1  # channels last
    assert known is not None or last or layout is torch.channels_last
    if known is not None:
        for seen in ("shape", "dtype", "device", "requires_grad"):
            assert getattr(known, seen) == getattr(expected, seen)
        assert known.stride() == expected.stride()
        assert (known is x) == (expected is x)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(3, 4, 3, padding_mode="reflect", padding=1), (2, 3, 8, 8)),
        (nn.Conv2d(3, 4, 3, padding="same"), (2, 3, 8, 8)),
        (nn.Conv2d(3, 4, 3), (2, 5, 8, 8)),
        (nn.Conv2d(3, 4, 3), (2, 3, 2, 2)),
        (nn.Conv2d(3, 4, 3).double(), (2, 3, 8, 8)),
        (nn.BatchNorm2d(3), (2, 4, 8, 8)),
        (nn.ReLU(), (2, 3)),
        (nn.SiLU(), (2, 3, 8, 8)),
    ],
)
def test_other_layers_are_left_to_torch(layer: nn.Module, shape: tuple[int, ...]) -> None:
    assert plain_value(layer, FakeTensorMode().from_tensor(torch.empty(shape))) is None


class Follows(nn.Module):
    """Tells somebody whenever its forward runs."""

    def __init__(self, told: Callable[[nn.Module], object]):
        super().__init__()
        self.layer, self.told = nn.Conv2d(3, 3, 3, padding=1), told

    def forward(self, x: Tensor) -> Tensor:
        self.told(self)
        return self.layer(x)


class Freezes(Follows):
    """Has a `train` of its own, so that its forward may know the mode without asking for it."""

    def train(self, mode: bool = True) -> nn.Module:
        self.layer.train(mode)
        return super().train(mode)


@pytest.mark.parametrize(
    ("kind", "asks", "expected"),
    [
        (Follows, lambda part: None, [None]),
        (Follows, lambda part: part.training, [False, True]),
        (Follows, lambda part: getattr(part.layer, "training", None), [False, True]),
        (Follows, lambda part: part.layer.eval() and None, [None, None]),
        (Freezes, lambda part: None, [None, None]),
    ],
)
def test_a_forward_is_followed_in_both_modes_only_where_it_may_know_its_mode(
    kind: type[Follows], asks: Callable[[nn.Module], object], expected: list[object]
) -> None:
    runs: list[object] = []
    trace(kind(lambda part: runs.append(asks(part))), torch.randn(1, 3, 8, 8))
    assert runs == expected
    assert not hasattr(nn.Module, "training")


class Scaled(nn.Module):
    """Parameters and a buffer that the forward reads by itself; two names for one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.rand(3, 1, 1)) for _ in range(4))
        self.again = self.scales[1]
        self.register_buffer("shift", torch.rand(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        for scale in self.scales:
            x = x * scale + self.get_buffer("shift")
        return x - self.again


def test_parameters_are_found_without_a_walk_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[str] = []
    own = nn.Module.named_parameters

    def counted(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        walks.append(type(self).__name__)
        return own(self, *args, **kwargs)

    module, x = Scaled(), torch.randn(1, 3, 4, 4)
    monkeypatch.setattr(nn.Module, "named_parameters", counted)
    traced = trace(module, x)
    assert len(walks) < 4  # one for each parameter otherwise
    monkeypatch.undo()
    read = [str(node.target) for node in traced.graph.nodes if node.op == "get_attr"]
    assert sorted(read) == ["again", "scales.0", "scales.2", "scales.3", "shift"]
    assert torch.equal(rewrite(traced)(x), module(x))
