"""Models and inputs as people who have not read the manual give them."""

import pickle
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import natpp
from natpp.decisions.edits import block_edits
from natpp.errors import NatppError
from natpp.fx.blocks import find_blocks
from natpp.fx.rewrite import rewrite
from natpp.fx.trace import trace
from natpp.report.page import write_report
from tests.fx.fx_models import SMALL, BasicBlock
from tests.fx.promises import TORCH_2_6, assert_same, no_change_is_no_change, outputs, written_module

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def small() -> nn.Sequential:
    convs = nn.Conv2d(3, 4, 5, padding=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1)
    return nn.Sequential(*convs, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


class Functional(nn.Module):
    """A convolution and a sum that no submodule does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3, 5, 5) / 9)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.relu(F.conv2d(x, self.weight, padding=2))


# What a module has beside its forward.


def test_hooks_of_the_module_itself_are_part_of_it() -> None:
    module = small().eval()
    module.register_forward_pre_hook(lambda part, given: (given[0] * 2,))
    module.register_forward_hook(lambda part, given, found: found + 1)
    traced = no_change_is_no_change(module, X)
    assert any("Sequential has hooks" in note for note in traced.notes)


def test_hooks_of_a_part_that_is_looked_into_are_noted() -> None:
    module, seen = SMALL["resnet"]().eval(), []
    module.layer1.register_forward_hook(lambda part, given, found: seen.append(found))
    traced = no_change_is_no_change(module, torch.randn(2, 3, 16, 16))
    assert any(note.startswith("layer1 has hooks") for note in traced.notes)


def test_a_forward_put_on_the_module_is_the_one_that_counts() -> None:
    module = small().eval()

    def other(self: nn.Module, x: Tensor, scale: float = 3.0) -> Tensor:
        return self[0](x) * scale

    module.forward = types.MethodType(other, module)
    assert_same(outputs(rewrite(trace(module, X)), X), outputs(module, X))


@pytest.mark.skipif(TORCH_2_6, reason="torch.export of torch 2.6 rejects a forward that assigns to attributes")
def test_what_a_forward_keeps_is_forgotten_after_tracing() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 5, padding=2)
            self.steps, self.last, self.maps = 0, None, []
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.steps += 1
            self.last = self.conv(x)
            self.maps.append(self.last)
            self.count = self.count + 1
            return self.last

    module = Keeps()
    trace(module, X)
    assert (module.steps, module.last, module.maps) == (0, None, [])
    assert type(module.count) is Tensor
    assert module.count.item() == 0


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_part_compiled_by_torch_jit_stays_whole_and_goes_on_learning() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 5, padding=2), torch.jit.script(nn.Conv2d(4, 4, 3, padding=1)), nn.ReLU())
    result = natpp.optimize(module, budget="strict", example_input=X)
    assert "1 is kept whole: it is compiled by torch.jit" in result.notes
    assert all(parameter.is_leaf and parameter.requires_grad for parameter in result.module.parameters())
    data = [(X, torch.zeros(2, 4, 8, 8))]
    tuned = natpp.finetune(result, natpp.Task(data, data, loss=F.mse_loss), "tune:epochs=1").module
    assert not torch.equal(tuned.state_dict()["1.weight"], module[1].weight)
    with pytest.raises(NatppError, match=r"compiled by torch\.jit: give the module it was compiled from"):
        natpp.optimize(module[1], budget="strict", example_input=torch.randn(1, 4, 8, 8))


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_weight_norm_of_the_old_kind_is_restored(tmp_path: Path) -> None:
    module = nn.Sequential(torch.nn.utils.weight_norm(nn.Conv2d(3, 4, 3, padding=1)), nn.Conv2d(4, 4, 5, padding=2))
    module(X)  # now its weight is no leaf of autograd, which torch refuses to copy
    before = module[0].weight
    same = rewrite(trace(module, X))
    assert module[0].weight is before
    assert_same(outputs(same, X), outputs(module, X))
    result = natpp.optimize(module, budget="strict", example_input=X)
    restored = natpp.restore(result.save(tmp_path / "saved"), module=module)
    assert_same(outputs(restored, X), outputs(result.module, X))


def test_layers_that_are_called_twice_are_named() -> None:
    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = small()

        def forward(self, one: Tensor, other: Tensor) -> Tensor:
            return self.encoder(one) - self.encoder(other)

    result = natpp.optimize(Siamese(), budget="strict", example_input=(X, X))
    assert "encoder.0, encoder.3: called more than once, and left unchanged" in result.notes


# What is kept.


@pytest.mark.parametrize("keep", [[nn.Module], nn.Module, iter([Functional])])
def test_a_kept_type_keeps_what_the_module_itself_computes(keep: object) -> None:
    result = natpp.optimize(
        Functional(), budget="strict", example_input=torch.randn(1, 3, 8, 8), decisions=natpp.Decisions(keep=keep)
    )
    assert not result.changes
    assert result.notes == ("there is nothing here that natpp can replace",)
    assert len(result.settings["keep"]) == 1


def test_a_kept_type_is_kept_where_torch_export_traces() -> None:
    class Rounds(nn.Module):  # torch.fx cannot follow it
        def __init__(self) -> None:
            super().__init__()
            self.block = BasicBlock(3, 3)
            self.conv = nn.Conv2d(3, 4, 5, padding=2)

        def forward(self, x: Tensor) -> Tensor:
            if not issubclass(type(x), Tensor):  # as the type of a stand-in is not
                raise TypeError("expected a tensor")
            return self.conv(self.block(x))

    result = natpp.optimize(Rounds(), budget="strict", example_input=X, decisions=natpp.Decisions(keep=(BasicBlock,)))
    assert "it was traced by torch.export" in result.notes[0]
    assert {change.name for change in result.changes} == {"conv"}


# What is given.


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyConv2d(4, 3, padding=1))


def compiled() -> nn.Module:
    return torch.compile(small(), backend="eager")


def broken() -> nn.Module:
    module = small()
    for parameter in module.parameters():
        nn.init.constant_(parameter, float("inf"))
    return module


@pytest.mark.parametrize(
    ("make", "options", "said"),
    [
        (small, {"example_input": (1, 3, 8, 8)}, r"is a shape, expected a tensor: torch\.randn\(1, 3, 8, 8\)"),
        (small, {"example_input": X.numpy()}, "of type ndarray, expected a tensor"),
        (small, {"budget": ["madds"]}, r"budget is \['madds'\], expected 'strict', 'rule' or limits such as"),
        (small, {"decisions": natpp.Decisions(keep=(3,))}, "keep takes names of parts and types of modules, not 3"),
        (small, {"task": natpp.Task.inputs([(X, torch.zeros(2))])}, "does not run on batch 0 .*: .* without targets"),
        (small, {"budget": {"madds": 1e-4}}, r"asked for, the nearest allowed result has [\d,]+ \(0\.\d{3} of the"),
        (lazy, {}, "0 has no weights yet: call the module once"),
        (compiled, {}, r"compiled by torch\.compile: give its _orig_mod"),
        (broken, {"budget": {"madds": 0.5}}, r"the weights of \d are not all finite"),
    ],
)
def test_wrong_input_is_one_line(make: object, options: dict, said: str) -> None:
    with pytest.raises(NatppError, match=said) as error:
        natpp.optimize(make(), **{"budget": "strict", "example_input": X} | options)
    assert "\n" not in str(error.value)


def test_share_blocks_is_advised_only_where_blocks_are_shared() -> None:
    for share, advised in ((True, True), (None, False)):
        with pytest.raises(NatppError) as error:
            natpp.optimize(
                small(), example_input=X, budget={"madds": 1e-4}, decisions=natpp.Decisions(share_blocks=share)
            )
        assert ("share_blocks" in str(error.value)) is advised


def test_what_torch_exported_is_refused() -> None:
    exported = torch.export.export(small().eval(), (X,)).module()
    with pytest.raises(NatppError, match=r"comes from torch\.export and has no modes"):
        natpp.optimize(exported, budget="strict", example_input=X)


def test_torch_logs_nothing_where_natpp_says_what_is_wrong(capfd: pytest.CaptureFixture) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(2))
    with pytest.raises(NatppError, match="too small"):
        natpp.optimize(module, budget="strict", example_input=torch.randn(1, 3, 1, 1))
    assert capfd.readouterr().err == ""


# From a result to a folder.


def test_data_that_is_not_a_number_is_refused() -> None:
    data = [(X * float("nan"), torch.tensor([0, 1]))] * 2
    asked = {"example_input": X, "task": natpp.Task(data, data), "scorer": "short:steps=1"}
    with pytest.raises(NatppError, match="of all candidates is not a number"):
        natpp.optimize(small(), "tuned:evaluations=2", "strict", **asked)


class Pyramid(nn.Module):
    """One pooling, called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.pool, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(5, 1, 2), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.pool(x)
        z = self.pool(y)
        return self.last(torch.cat([x, y, z, self.pool(z)], dim=1))


@pytest.mark.parametrize("changed", range(3))
def test_a_pooling_that_is_called_often_changes_where_it_was_changed(changed: int) -> None:
    module = Pyramid().eval()
    traced = trace(module, X)
    blocks = find_blocks(traced)
    rows = [list(block.ops) for block in blocks]
    pools = [(row, index) for row in rows for index, op in enumerate(row) if op == "max_pool_5x5"]
    assert len(pools) == 3
    row, index = pools[changed]
    row[index] = "max_pool_3x3"
    found = rewrite(traced, block_edits(blocks, rows))
    values = [module.first(X)]
    for number in range(3):
        kernel = 3 if number == changed else 5
        values.append(F.max_pool2d(values[-1], kernel, 1, kernel // 2))
    torch.testing.assert_close(found(X), module.last(torch.cat(values, dim=1)))


def test_a_convolution_that_works_its_weights_over_stays_as_it_is() -> None:
    class Standardized(nn.Conv2d):
        def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            return super()._conv_forward(x, weight - weight.mean((1, 2, 3), keepdim=True), bias)

    module = nn.Sequential(Standardized(3, 4, 5, padding=2), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1)).eval()
    result = natpp.optimize(module, example_input=X, budget={"madds": 0.9})
    assert type(result.module.get_submodule("0")) is Standardized
    assert [change.name for change in result.changes if not change.name.startswith("2")] == []


def test_a_train_of_its_own_is_noted() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = small()

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x)

        def train(self, mode: bool = True) -> nn.Module:
            super().train(mode)
            self.layers[1].eval()
            return self

    result = natpp.optimize(Frozen().eval(), budget="strict", example_input=X)
    assert "Frozen overrides train(), but the result does not: its train() applies to every part" in result.notes
    assert not any("train()" in note for note in natpp.optimize(small().eval(), budget="strict", example_input=X).notes)


@pytest.mark.parametrize(
    ("name", "whose"),
    [
        ("graph", "torch.fx.GraphModule reserves"),
        ("meta", "torch.fx.GraphModule reserves"),
        ("class", "is a Python keyword"),
    ],
)
def test_names_that_code_cannot_have_are_told(name: str, whose: str) -> None:
    module = nn.Module()
    module.add_module(name, nn.Conv2d(3, 4, 3, padding=1))
    module.forward = types.MethodType(lambda self, x: self._modules[name](x), module)
    with pytest.raises(NatppError, match=f"the layer '{name}' has a name that {whose}.*: give it another one"):
        natpp.optimize(module.eval(), budget="strict", example_input=X)


def test_being_written_anew_saves_no_memory() -> None:
    class Holding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = small()

        def forward(self, x: Tensor) -> Tensor:
            held = [x]
            for layer in self.layers:
                held.append(layer(held[-1]))
            return held[-1]

    module = Holding().eval()
    result = natpp.optimize(module, example_input=X, budget={"madds": 1})
    assert not result.changes
    assert result.cost_after == result.cost_before
    assert result.cost_before.peak_memory_bytes < natpp.cost(module, example_input=X).peak_memory_bytes


def test_a_layer_in_a_plain_list_is_told() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.others = nn.Conv2d(3, 4, 3, padding=1), [nn.Conv2d(4, 4, 3, padding=1)]

        def forward(self, x: Tensor) -> Tensor:
            return nn.ReLU()(self.others[0](self.first(x)))

    with pytest.raises(NatppError, match=r"Listed calls a Conv2d that is not registered: .* nn\.ModuleList"):
        natpp.optimize(Listed().eval(), budget="strict", example_input=X)
    inside = nn.Sequential(Listed(), nn.Conv2d(4, 4, 3, padding=1)).eval()
    no_change_is_no_change(inside, X)  # where the part as a whole stays


@pytest.mark.parametrize("budget", ["strict", {"madds": 0.8}])
def test_a_result_can_be_pickled(budget: object) -> None:
    result = natpp.optimize(small().eval(), example_input=X, budget=budget)
    again = pickle.loads(pickle.dumps(result.module))  # noqa: S301 (our own)
    assert torch.equal(again(X), result.module(X))


def test_a_part_called_put_is_saved_and_runs(tmp_path: Path) -> None:
    module = nn.ModuleDict({"put": small()})
    module.forward = types.MethodType(lambda self, x: self["put"](x), module)
    result = natpp.optimize(module.eval(), budget="strict", example_input=X)
    result.save(tmp_path / "saved")
    assert torch.equal(written_module(tmp_path / "saved").load()(X), result.module(X))


def test_a_fine_tuned_result_is_saved_as_the_result_is(tmp_path: Path) -> None:
    data = [(X, torch.tensor([0, 1], dtype=torch.int32))] * 2
    result = natpp.optimize(small(), example_input=X, budget={"madds": 0.6})
    tuned = natpp.finetune(result, natpp.Task(data, data), "tune:epochs=1")
    restored = natpp.restore(tuned.save(tmp_path / "tuned"))
    for page in (tuned.report(tmp_path / "tuned.html"), write_report(tmp_path / "tuned", tmp_path / "again.html")):
        said = page.read_text(encoding="utf-8")
        assert "validation accuracy, %" in said
        assert "fine-tuned on list for 1 epoch;" in said
    assert_same(outputs(restored.eval(), X), outputs(tuned.module.eval(), X))
    assert not torch.equal(restored.state_dict()["6.weight"], result.module.state_dict()["6.weight"])
    own = natpp.finetune(small(), data, "tune:epochs=1")
    assert {file.name for file in own.save(tmp_path / "own").iterdir()} == {"module.safetensors", "result.json"}
    with pytest.raises(NatppError, match=r"only a fine-tuned result of natpp\.optimize has a report"):
        own.report(tmp_path / "own.html")


# What a forward switches.


class Switches(nn.Module):
    def __init__(self, context: object):
        super().__init__()
        self.context = context
        self.first, self.second = nn.Conv2d(3, 4, 5, padding=2), nn.Conv2d(4, 4, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        with self.context():
            x = self.first(x)
        return self.second(x.float())


def half() -> object:
    return torch.autocast("cpu", torch.bfloat16)


def test_autocast_in_a_part_keeps_it_whole() -> None:
    traced = no_change_is_no_change(nn.Sequential(Switches(half), nn.Conv2d(4, 4, 3, padding=1)), X)
    assert "0 (Switches) is kept whole: it switches torch.autocast" in traced.notes[0]


def test_autocast_in_the_forward_itself_is_refused() -> None:
    with pytest.raises(NatppError, match=r"its own forward stops it \(it switches torch\.autocast"):
        natpp.optimize(Switches(half), budget="strict", example_input=X)


def test_gradients_that_a_forward_switches_off_are_noted() -> None:
    traced = no_change_is_no_change(Switches(torch.no_grad), X)
    assert traced.notes == ("its forward switches gradients off or on for some parts: the result leaves that to you",)
    with torch.no_grad():
        assert not trace(small(), X).notes  # the caller's own


def test_chance_that_only_training_draws_is_left_out_of_a_module_in_eval_mode() -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(BasicBlock(3, 3) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                if not self.training or torch.rand(()) < 0.5:
                    x = block(x)
            return x

    module = Skips().eval()
    traced = trace(module, X)
    assert_same(outputs(rewrite(traced), X), outputs(module, X))
    assert traced.notes == (
        "in training mode its own forward makes it take another path; the result keeps the eval-mode path",
    )
    with pytest.raises(NatppError, match=r"it draws random numbers.* Call its eval\(\) first"):
        trace(module.train(), X)


def test_a_part_that_can_neither_be_followed_in_training_nor_stay_whole_is_what_it_is_in_eval_mode() -> None:
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: Tensor, dropped: np.ndarray) -> Tensor:
            x = self.conv(x)
            return x * torch.from_numpy(dropped) if self.training else x

    class Columns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.column = Drops()

        def forward(self, x: Tensor) -> Tensor:
            return self.column(x, np.ones(1, dtype=np.float32))  # a graph holds no arrays

    module = Columns().eval()
    traced = trace(module, X)
    assert_same(outputs(rewrite(traced), X), outputs(module, X))
    assert traced.notes == (
        "in training mode its part column makes it take another path; the result keeps the eval-mode path",
    )
    with pytest.raises(NatppError, match="its part column stops it"):
        trace(module.train(), X)


def test_parameters_that_the_forward_does_not_read_are_named() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1))
    module.mask_token = nn.Parameter(torch.zeros(3))
    assert trace(module, X).notes == ("mask_token: not read by the forward in eval mode, and left out of the result",)


def test_a_part_that_gives_as_much_as_the_data_says_is_kept_whole() -> None:
    class Points(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.nonzero(x > 0)

    traced = no_change_is_no_change(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), Points()), X)
    assert traced.notes == ("1 (Points) is kept whole: its control flow depends on the data in a tensor",)


def test_constants_that_torch_export_finds_in_a_part_stay_out_of_the_state_dict() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.tensor([1.0, 2.0, 3.0])[:, None, None]

    class Rounds(nn.Module):  # torch.fx cannot follow it
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), Scaled())

        def forward(self, x: Tensor) -> Tensor:
            if not issubclass(type(x), Tensor):
                raise TypeError("expected a tensor")
            return self.part(x)

    module = Rounds().eval()
    traced = trace(module, X)
    same = rewrite(traced)
    assert "it was traced by torch.export" in traced.notes[0]
    assert same.state_dict().keys() == module.state_dict().keys()
    assert_same(outputs(same, X), outputs(module, X))
