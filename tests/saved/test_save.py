"""Results in folders: written whole, made again by natpp and without it, and nothing that lies there is run."""

import copy
import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

import natpp
from natpp.arch import modules as own
from natpp.core.result import Result
from natpp.decisions.term import FadeIn, shortcut
from natpp.errors import FormatError, SettingError
from natpp.fx.modes import ByMode
from natpp.fx.rewrite import rewrite
from natpp.fx.trace import trace
from natpp.report.page import write_report
from natpp.saved.content import content_of
from natpp.saved.describe import describe
from natpp.saved.source import module_source
from natpp.saved.values import decode, encode
from natpp.saved.vocabulary import function_named, name_of
from tests.fx.fx_models import SMALL
from tests.fx.promises import assert_same, assert_same_module, outputs, random_policy, warmed, written_module
from tests.optimizing import by_policy

X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@fx.wrap
def doubled(x: Tensor) -> Tensor:
    return x * 2


class Own(nn.Module):
    """Its way depends on data: it stays whole."""

    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("unsaved", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale * self.weight + self.unsaved if x.sum() < 1e9 else x


class Secret(Own):
    """Its argument cannot be read from it."""

    def __init__(self, half: float):
        super().__init__(2 * half)


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class Mixed(nn.Module):
    def __init__(self, part: nn.Module | None = None, function: bool = False):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 5, padding=2)
        self.own = part or nn.Identity()
        self.head = nn.Conv2d(8, 4, 3, padding=1)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        x = self.own(torch.relu(self.conv(x)))
        return self.head(doubled(x) if self.function else x)


def optimized(module: nn.Module, example: object = X, seed: int = 1) -> Result:
    return by_policy(module, example, random_policy(seed), mode="sample", seed=seed)


def unchanged(module: nn.Module, example: object = X) -> Result:
    """A result with nothing changed."""
    result = optimized(module, example)
    return replace(result, after=rewrite(result.subject.traced))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return optimized(warmed(SMALL["resnet"](), X)).save(tmp_path / "saved")


def edited(folder: Path, change: object) -> Path:
    file = folder / "architecture.json"
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))
    return folder


# What is written.


def test_the_folder_tells_what_was_done(tmp_path: Path) -> None:
    result = optimized(SMALL["resnet"]())
    folder = result.save(tmp_path / "saved")
    assert sorted(file.name for file in folder.iterdir()) == ["architecture.json", "model.py", "weights.safetensors"]
    data = json.loads((folder / "architecture.json").read_text())
    assert data["cost_after"]["madds"] == result.cost_after.madds
    assert data["settings"] == result.settings
    assert data["versions"] == {"natpp": natpp.__version__, "torch": torch.__version__}
    assert [change["name"] for change in data["changes"]] == [change.name for change in result.changes]
    terms = [(term["before"], term["after"]) for block in data["groups"] for term in block["decisions"]]
    pairs = zip(result.subject.blocks, result.subject.block_ops(result.plan), strict=True)
    assert terms == [pair for block, ops in pairs for pair in zip(block.ops, ops, strict=True)]
    terms = [term for block in data["groups"] for term in block["decisions"] if term["name"] == "layer2.0.conv1"]
    assert terms[0]["places"] == [{"channels": [8, 16], "stride": 2, "size": [16, 16]}]
    assert len({file.stat().st_mode for file in folder.iterdir()}) == 1


def test_the_python_file_needs_no_natpp_and_reads_well(saved: Path) -> None:
    code = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "natpp":
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import torch, model
x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
torch.save(model.load()(x).detach(), "out.pt")
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=saved)
    found = torch.load(saved / "out.pt", weights_only=True)
    assert torch.equal(found, natpp.restore(saved)(X))
    text = (saved / "model.py").read_text()
    assert "class ResNet(Part):" in text
    assert 'self._put("layer1.0.' in text
    assert "        x = self.conv1(x)\n" in text
    assert "natpp." not in text


def test_values_are_let_go_when_they_are_not_read_any_more() -> None:
    module = nn.Sequential(*(nn.Linear(4, 4) for _ in range(20)))
    text = module_source(content_of(rewrite(trace(module, torch.randn(1, 4))), torch.randn(1, 4)))
    assert text.count(" = self[") == 20  # one name serves the whole chain
    assert "y = " not in text


def test_everything_besides_weights_comes_back(tmp_path: Path) -> None:
    class Details(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)
            self.norm = nn.BatchNorm2d(8)
            self.frozen = nn.Conv2d(8, 8, 3, padding=1)
            self.tied = nn.Conv2d(8, 8, 3, padding=1)
            self.tied.weight = self.frozen.weight
            self.scale = nn.Parameter(torch.randn(()))
            self.register_buffer("grid", torch.arange(16.0), persistent=False)
            self.register_buffer("kept", torch.ones(16))

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(self.conv(x))
            x = F.dropout(self.tied(self.frozen(x)), 0.5, self.training)
            return (x * self.scale + self.grid * self.kept)[..., 1:-1, ::2]

    module = Details().to(memory_format=torch.channels_last)
    module.frozen.requires_grad_(False)
    module.eval()
    module.conv.train()
    result = unchanged(module)
    folder = result.save(tmp_path / "saved")
    for made in (natpp.restore(folder), written_module(folder).load()):
        assert_same_module(made, result.module, X)
        assert made.tied.weight is made.frozen.weight
        assert torch.equal(made.grid, module.grid)
        assert "grid" not in made.state_dict()
        assert {path for path, part in made.named_modules() if part.training} == {"conv"}
        assert made.conv.weight.is_contiguous(memory_format=torch.channels_last)
    half = unchanged(copy.deepcopy(module).bfloat16(), X.bfloat16())
    folder = half.save(tmp_path / "half")
    for made in (natpp.restore(folder), written_module(folder).load()):
        assert_same_module(made, half.module, X.bfloat16())


def test_a_part_with_two_names_stays_one(tmp_path: Path) -> None:
    result = unchanged(nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1)).eval())
    list(result.module.graph.nodes)[2].target = "under.another"
    result.module.add_module("under", nn.Module())
    result.module.under.add_module("another", result.module.get_submodule("0"))
    result.module.recompile()
    result.module.delete_all_unused_submodules()
    folder = result.save(tmp_path / "saved")
    for made in (natpp.restore(folder), written_module(folder).load()):
        assert_same_module(made, result.module, X)
        assert made.get_submodule("0") is made.under.another


def test_arguments_and_outputs_of_all_kinds(tmp_path: Path) -> None:
    class Kinds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)

        def forward(self, x: Tensor, *more: Tensor, factor: float = 2.0, **named: Tensor) -> dict[str, object]:
            y = self.conv(x) * factor
            y[:, 0] = more[0]
            y = y.masked_fill(y < -1, float("-inf")).clamp(min=-5).to(torch.float64)
            y = y + torch.zeros(x.shape[0], 1, 1, 1, device=x.device)
            size = x.shape[2] // 2
            total = -(y.sum((2, 3)).float() ** 2) + (1 - named["bias"])
            values, places = torch.max(total, 1)
            return {"low": y[:, :, :size, 1:], "pair": (values, [places, size]), "shape": tuple(x.shape)}

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Kinds()

        def forward(self, x: Tensor, *more: Tensor, scale: float = 3.0) -> dict[str, object]:
            return self.inner(x, *more, factor=scale, bias=x.mean((2, 3))[:, :1])

    result = unchanged(Outer().eval(), (X, X[:, 0]))
    folder = result.save(tmp_path / "saved")
    for made in (natpp.restore(folder), written_module(folder).load()):
        assert_same(outputs(made, (X, X[:, 0])), outputs(result.module, (X, X[:, 0])))


def test_a_module_traced_by_torch_export(tmp_path: Path) -> None:
    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 5, padding=2)
            self.head = nn.Conv2d(8, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.conv(x))
            if not issubclass(type(x), Tensor):
                raise TypeError
            return self.head(F.dropout(x, 0.5, self.training))

    result = optimized(Chosen().eval())
    assert "torch.export" in result.notes[0]
    folder = result.save(tmp_path / "saved")
    for made in (natpp.restore(folder), written_module(folder).load()):
        assert_same_module(made, result.module, X)


# Parts of the user's own.


def test_parts_that_can_be_imported_are(tmp_path: Path) -> None:
    module = Mixed(Own(3.0), function=True).eval()
    module.own.unsaved.fill_(0.5)
    result = optimized(module)
    folder = result.save(tmp_path / "saved")
    assert "from test_save import Own" in (folder / "model.py").read_text()
    assert_same_module(written_module(folder).load(), result.module, X)
    with pytest.raises(SettingError, match=r"custom parts \(own, .*natpp.restore\(folder, module="):
        natpp.restore(folder)
    assert_same_module(natpp.restore(folder, Mixed(Own(3.0), function=True)), result.module, X)
    with pytest.raises(SettingError, match="no submodule own of type Own"):
        natpp.restore(folder, Mixed(nn.Identity(), function=True))


def test_parts_that_cannot_be_written_are_taken_from_the_original(tmp_path: Path) -> None:
    module = Mixed(Secret(3.0)).eval()
    result = optimized(module)
    folder = result.save(tmp_path / "saved")
    assert 'original.get_submodule("own")' in (folder / "model.py").read_text()
    again = Mixed(Secret(3.0))
    for made in (natpp.restore(folder, again), written_module(folder).load(again)):
        assert_same_module(made, result.module, X)
        assert made.own is not again.own


def test_a_function_that_cannot_be_imported_leaves_the_file_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(doubled, "__module__", "__main__")
    module = Mixed(function=True).eval()
    result = optimized(module)
    with caplog.at_level(logging.WARNING, "natpp"):
        folder = result.save(tmp_path / "saved")
    assert "model.py was not written: doubled of __main__ cannot be imported by another program" in caplog.text
    assert not (folder / "model.py").exists()
    assert_same_module(natpp.restore(folder, module), result.module, X)


# What goes wrong.


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    result = optimized(SMALL["vgg"]())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(natpp.NatppError, match="holds other files"):
        result.save(tmp_path / "mine")
    with pytest.raises(natpp.NatppError, match="is a file"):
        result.save(tmp_path / "mine" / "thesis.txt")
    with pytest.raises(natpp.NatppError, match="does not exist"):
        result.save(tmp_path / "nowhere" / "saved")
    assert [file.name for file in tmp_path.rglob("*")] == ["mine", "thesis.txt"]
    (tmp_path / "empty").mkdir()
    result.save(tmp_path / "empty")
    other = optimized(SMALL["resnet"]())
    other.save(tmp_path / "empty")  # a result may take the place of another
    assert_same_module(natpp.restore(tmp_path / "empty"), other.module, X)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["empty", "mine"]


def test_nothing_is_left_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = optimized(SMALL["vgg"]())
    result.save(tmp_path / "saved")
    before = (tmp_path / "saved" / "architecture.json").read_text()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(natpp.NatppError, match="No space left"):
        optimized(SMALL["resnet"]()).save(tmp_path / "saved")
    with pytest.raises(natpp.NatppError, match="No space left"):
        result.save(tmp_path / "other")
    monkeypatch.undo()
    replace, calls = os.replace, []

    def second_fails(*paths: str) -> None:
        calls.append(paths)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        replace(*paths)

    monkeypatch.setattr(os, "replace", second_fails)
    with pytest.raises(natpp.NatppError, match="Input/output"):
        optimized(SMALL["resnet"]()).save(tmp_path / "saved")
    assert [file.name for file in tmp_path.iterdir()] == ["saved"]
    assert (tmp_path / "saved" / "architecture.json").read_text() == before


def test_what_has_no_form_in_a_file_is_named(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)

        def forward(self, x: Tensor, mode: object = None) -> Tensor:
            return self.conv(x)

    result = optimized(Odd())
    node = next(node for node in result.module.graph.nodes if node.op == "call_module")
    node.meta = {}
    broken = copy.deepcopy(result.module)
    next(iter(broken.graph.nodes)).args = (nn.ReLU,)
    with pytest.raises(natpp.NatppError, match="a value of type type"):
        replace(result, after=broken).save(tmp_path / "saved")
    with pytest.raises(SettingError, match="expected the module that natpp made"):
        replace(result, after=nn.ReLU()).save(tmp_path / "saved")
    assert not list(tmp_path.iterdir())


EVIL = [
    {"op": "call_function", "target": "os:system", "args": ["touch owned"]},
    {"op": "call_function", "target": "torch.load", "args": ["owned"]},
    {"op": "call_function", "target": "torch.hub.load", "args": ["owned"]},
    {"op": "call_function", "target": "torch.from_file", "args": ["owned"]},
    {"op": "call_function", "target": "builtins.eval", "args": ["1"]},
    {"op": "call_function", "target": "torch.ops.aten.from_file.default", "args": ["owned"]},
    {"op": "call_function", "target": "torch.ops.aten.add.__getattribute__", "args": ["__class__"]},
    {"op": "call_function", "target": "builtins.getattr", "args": [{"node": "x"}, "__class__"]},
    {"op": "call_method", "target": "numpy", "args": [{"node": "x"}]},
    {"op": "call_method", "target": "__reduce__", "args": [{"node": "x"}]},
    {"op": "call_method", "target": "view(__import__('os'))", "args": [{"node": "x"}]},
    {"op": "call_module", "target": "conv1\"), print('owned", "args": [{"node": "x"}]},
    {"op": "get_attr", "target": 'a").b("', "args": []},
    {"op": "placeholder", "target": "a=print('owned')", "args": []},
    {"op": "placeholder", "target": "lambda", "args": []},
    {"op": "call_function", "target": "torch.relu", "args": [{"made": "os:system", "of": ["touch owned"]}]},
    {"op": "call_function", "target": "torch.relu", "args": [{"torch": "hub"}]},
    {"op": "call_function", "target": "torch.relu", "args": [{"node": "x"}], "kwargs": {"a=print()": 1}},
    {"op": "exec", "target": "x", "args": []},
]


@pytest.mark.parametrize("step", EVIL, ids=[str(number) for number in range(len(EVIL))])
def test_a_file_from_elsewhere_can_ask_for_nothing_but_sums(step: dict, saved: Path) -> None:
    def poison(data: dict) -> None:
        data["module"]["graph"].insert(1, {"name": "evil", "kwargs": {}} | step)

    with pytest.raises(FormatError):
        natpp.restore(edited(saved, poison))


def test_layers_from_elsewhere_are_those_of_torch(saved: Path, tmp_path: Path) -> None:
    def other(kind: str) -> object:
        return lambda data: data["module"]["layers"]["fc"].update({"class": kind})

    (saved / "model.py").write_text("raise SystemExit('this was run')")  # nobody looks at it
    assert natpp.restore(saved)(X).shape == (2, 5)

    for kind in ("os.system", "torch.hub", "torch.nn.functional", "natpp.Policy", "torch.nn.init", "Linear"):
        with pytest.raises(FormatError):
            natpp.restore(edited(saved, other(kind)))
    edited(saved, other("torch.nn.Linear"))
    with pytest.raises(FormatError, match="not a valid module name"):
        natpp.restore(edited(saved, lambda data: data["module"].update(name="A:\n print()")))


def test_folders_of_natpp_0_1_are_restored(saved: Path) -> None:
    """How results are told has changed since, how modules are written has not."""
    before = natpp.restore(saved)

    def older(data: dict[str, Any]) -> None:
        module = data["module"]
        data.clear()
        data.update(format="natpp module", version=1, module=module)

    assert_same_module(natpp.restore(edited(saved, older)), before, X)
    with pytest.raises(FormatError, match=r"was written by natpp 0\.1"):
        write_report(saved, saved.parent / "report.html")


def test_damaged_folders_are_one_clear_line(saved: Path, tmp_path: Path) -> None:
    for folder, message in (
        (tmp_path / "nothing", "is not the folder of a saved module"),
        (tmp_path, "is not the folder of a saved module"),
    ):
        with pytest.raises(FormatError, match=message):
            natpp.restore(folder)
    good = (saved / "architecture.json").read_text()
    for text, message in (("{", "is not valid JSON"), ("[]", "not a saved module"), ("{}", "not a saved module")):
        (saved / "architecture.json").write_text(text)
        with pytest.raises(FormatError, match=message):
            natpp.restore(saved)
    for change, message in (
        (lambda data: data.update(version=99), "version 99"),
        (lambda data: data["module"].pop("graph"), "damaged"),
        (lambda data: data["module"]["graph"].pop(3), "damaged"),
        (lambda data: data["module"]["layers"].pop("fc"), "damaged"),
        (lambda data: data["module"]["layers"]["fc"]["arguments"].update(out_features=7), "damaged"),
        (lambda data: data["module"]["layers"]["fc"]["arguments"].update(out_features="many"), "damaged"),
    ):
        (saved / "architecture.json").write_text(good)
        with pytest.raises(FormatError, match=message):
            natpp.restore(edited(saved, change))
    (saved / "architecture.json").write_text(good)
    (saved / "weights.safetensors").write_bytes(b"no tensors")
    with pytest.raises(FormatError, match="cannot read"):
        natpp.restore(saved)


# The words of a file.


class OtherInit(nn.Conv2d):
    def __init__(self, width: int):
        super().__init__(3, width, 3, padding=1)


class OtherWay(nn.Conv2d):
    def _conv_forward(self, *args: Tensor) -> Tensor:
        return super()._conv_forward(*args) + 1


LAYERS = [
    *(nn.Conv2d(3, 8, (3, 5), 2, padding="valid"), nn.ConvTranspose2d(4, 8, 4, 2, 1), nn.Conv1d(3, 4, 3, groups=1)),
    *(nn.BatchNorm2d(8, affine=False), nn.BatchNorm1d(8, track_running_stats=False), nn.GroupNorm(2, 8)),
    *(nn.LayerNorm((8, 3), bias=False), nn.LayerNorm(4, elementwise_affine=False), nn.InstanceNorm2d(4, affine=True)),
    *(nn.LeakyReLU(0.2), nn.PReLU(5), nn.GELU("tanh"), nn.Hardtanh(-2, 2), nn.Softmax(1), nn.Threshold(0.1, 20.0)),
    *(nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.AdaptiveAvgPool2d((1, None)), nn.Dropout(0.3), nn.Identity()),
    *(nn.Flatten(), nn.Unflatten(1, (2, 2)), nn.Linear(3, 4, bias=False), nn.Embedding(10, 3, padding_idx=0)),
    *(nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True), nn.GRU(3, 4), nn.RNN(3, 4, nonlinearity="relu")),
    *(nn.MultiheadAttention(8, 2, bias=False, kdim=4, vdim=5), nn.TransformerEncoderLayer(8, 2, 16, activation="gelu")),
    *(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2), nn.PixelShuffle(2)),
    *(nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), nn.ReflectionPad2d((1, 2, 3, 4))),
    *(nn.Sequential(nn.ReLU(), nn.Linear(2, 3)), FadeIn(), ByMode(True, False), own.FactorizedConv2d(4, 1)),
    *(own.Layers(nn.ReLU(), nn.Linear(2, 3)), own.MaxPool2d(3, 2)),
    *(own.FactorizedConv2d(4, 6), own.BatchNorm2d(4), own.AvgPool2d(3, 2), shortcut(4, 8, 2, torch.zeros(1))),
    *(OtherInit(4), nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)).eval().parametrizations),
]


@pytest.mark.parametrize("layer", LAYERS[:-1], ids=lambda layer: type(layer).__name__)
def test_layers_are_described_so_that_they_can_be_made_again(layer: nn.Module) -> None:
    found = describe(layer)
    assert found is not None
    assert found.known
    made = found.make()
    assert {name: tensor.shape for name, tensor in made.state_dict().items()} == {
        name: tensor.shape for name, tensor in layer.state_dict().items()
    }
    if not isinstance(layer, own.BatchNorm2d | own.AvgPool2d | own.Layers | own.MaxPool2d | OtherInit):
        assert repr(made) == repr(layer)


def test_layers_that_are_more_than_their_arguments_are_not_described() -> None:
    hooked = nn.Linear(2, 2)
    hooked.register_forward_hook(lambda *_: None)
    marked = nn.ReLU()
    marked.forward = lambda x: x
    assert describe(hooked) is None
    assert describe(marked) is None
    assert describe(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))) is None
    found = describe(OtherWay(3, 4, 3))
    assert found is not None
    assert not found.known
    assert describe(natpp.leaf(nn.ReLU())).known


def test_classes_of_others_are_not_tried_out_by_guessing() -> None:
    made = []

    class Loads(nn.Module):
        def __init__(self, width: int, pretrained: bool = True):
            super().__init__()
            made.append(self)
            self.width = width

    assert describe(Loads(3)) is None
    assert len(made) == 1


def test_values_have_an_exact_form() -> None:
    values = [
        *(None, True, 3, -2.5, float("inf"), "a'\"b", 1j, ..., torch.float16, torch.channels_last, torch.device("cpu")),
        *((1, (2,)), [1, [2]], {"a": (1,), 2: [3]}, slice(1, None, 2), range(3), torch.Size((1, 2)), torch.strided),
    ]
    for value in values:
        data = json.loads(json.dumps(encode(value)))
        assert decode(data, str, str) == value
    with pytest.raises(natpp.NatppError, match="a value of type object"):
        encode(object())
    pair = decode(encode(Pair(1, 2)), str, lambda address: {"test_save:Pair": Pair}[address])
    assert pair == Pair(1, 2)


def test_functions_have_names_and_names_functions() -> None:
    for function in (torch.relu, F.relu, F.gelu, F.max_pool2d, torch.cat, torch.ops.aten.conv2d.default, getattr):
        name = name_of(function)
        assert name is not None
        assert function_named(name) == function
    for function in (torch.load, eval, os.system, torch.compile, doubled, torch.jit.load, torch.from_file):
        assert name_of(function) is None
    assert name_of(F.relu) == "torch.nn.functional.relu"
