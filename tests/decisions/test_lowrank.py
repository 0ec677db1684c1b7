"""Low-rank chains: they compute what they should, cost what is counted, and are nearest where inputs say it matters."""

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import natpp
from natpp.decisions.lowrank import Form, chain, channel_errors, composed, cost, error, factors, most
from natpp.errors import SettingError
from natpp.nets.measure import module_cost

KINDS = ("channel", "tucker", "spatial")
Layer = nn.Conv2d | nn.Linear


@st.composite
def layers(draw: Any, image: bool = False) -> Layer:
    """Small layers of every geometry."""
    inputs, outputs, bias = draw(st.integers(1, 6)), draw(st.integers(1, 6)), draw(st.booleans())
    torch.manual_seed(draw(st.integers(0, 9)))
    if not image and draw(st.booleans()):
        return nn.Linear(inputs, outputs, bias=bias, dtype=torch.double)
    pair = [tuple(draw(st.integers(low, high)) for _ in range(2)) for low, high in ((1, 3), (1, 3), (0, 2), (1, 2))]
    size, stride, padding, dilation = pair
    mode = draw(st.sampled_from(("zeros", "circular")))
    options = {"stride": stride, "padding": padding, "dilation": dilation, "padding_mode": mode}
    return nn.Conv2d(inputs, outputs, size, bias=bias, dtype=torch.double, **options)  # type: ignore[arg-type]


def forms(layer: Layer) -> list[Form]:
    """The full rank of every form that a layer can have."""
    found = [(kind, most(kind, layer.weight.shape)) for kind in KINDS]
    return [Form(kind, ranks) for kind, ranks in found if ranks]


def x_of(layer: Layer, count: int = 2) -> Tensor:
    shape = (count, layer.in_features) if isinstance(layer, nn.Linear) else (count, layer.in_channels, 9, 11)
    return torch.randn(shape, dtype=torch.double)


def moments(size: int, seed: int = 0) -> Tensor:
    """Second moments with directions of very different importance."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(size, size, dtype=torch.double, generator=generator)
    scaled = mixed * torch.logspace(0, -2, size, dtype=torch.double)
    return scaled @ scaled.T / size


@given(layers())
@settings(max_examples=60, deadline=None)
def test_full_rank_is_the_layer(layer: Layer) -> None:
    x = x_of(layer)
    for form in forms(layer):
        made = chain(layer, form)
        assert torch.allclose(made(x), layer(x), atol=1e-9, rtol=0)
        second, metric = moments(layer.weight[0].numel()), moments(len(layer.weight))
        weight = layer.weight.detach()
        left = error(weight, composed(factors(weight, form, second, metric)), second, metric)
        assert abs(left) <= 1e-12 * error(weight, torch.zeros_like(weight), second, metric)


@given(layers(), st.data())
@settings(max_examples=80, deadline=None)
def test_what_a_chain_costs_is_what_is_counted(layer: Layer, data: Any) -> None:
    layer.float()
    x, linear = x_of(layer).float(), isinstance(layer, nn.Linear)
    bare = copy.deepcopy(layer).to("meta")
    for full in forms(layer):
        form = Form(full.kind, tuple(data.draw(st.integers(1, rank)) for rank in full.ranks))
        out = layer(x)
        sizes = ((2,), (2,)) if linear else ((2, *x.shape[2:]), (2, *out.shape[2:]))
        kernel: Any = layer.kernel_size if isinstance(layer, nn.Conv2d) else (1, 1)
        counted = cost(form, x.shape[1], out.shape[1], kernel, *sizes, bias=layer.bias is not None)
        for one, given_x in ((chain(layer, form), x), (chain(bare, form), x.to("meta"))):
            found = module_cost(one, given_x)
            assert (found.params, found.madds) == counted
            assert one(given_x).shape == out.shape
            assert all(part.bias is None for part in list(one)[:-1])


@pytest.mark.parametrize("shape", [(12, 8, 3, 3), (8, 12, 3, 3), (10, 16, 1, 1), (16, 10), (9, 9, 5, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_errors_fall_with_the_rank(kind: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    weight = torch.randn(shape, dtype=torch.double)
    second, metric = moments(weight[0].numel()), moments(len(weight), 1)
    if not (limits := most(kind, shape)):
        return
    for given_second, given_metric in ((None, None), (second, None), (second, metric)):
        found = []
        for share in (0.25, 0.5, 0.75, 1):
            form = Form(kind, tuple(math.ceil(share * limit) for limit in limits))
            made = composed(factors(weight, form, given_second, given_metric))
            found.append(error(weight, made, given_second, given_metric))
        assert found == sorted(found, reverse=True)
        assert found[0] > 1e3 * abs(found[-1])


@pytest.mark.parametrize("shape", [(12, 8, 3, 3), (16, 10), (10, 16, 1, 1)])
def test_the_errors_of_all_channel_ranks_are_known_at_once(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    weight = torch.randn(shape, dtype=torch.double)
    second, metric = moments(weight[0].numel()), moments(len(weight), 1)
    errors = channel_errors(weight, second, metric)
    assert len(errors) == len(weight) + 1
    assert float(errors[0]) == pytest.approx(error(weight, torch.zeros_like(weight), second, metric))
    for rank in range(1, min(len(weight), weight[0].numel()) + 1):
        made = composed(factors(weight, Form("channel", (rank,)), second, metric))
        assert float(errors[rank]) == pytest.approx(error(weight, made, second, metric), rel=1e-4, abs=1e-9)


@given(st.integers(0, 99), st.sampled_from(KINDS), st.data())
@settings(max_examples=40, deadline=None)
def test_knowing_the_inputs_never_hurts(seed: int, kind: str, data: Any) -> None:
    torch.manual_seed(seed)
    layer = nn.Conv2d(data.draw(st.integers(2, 6)), data.draw(st.integers(2, 6)), 3, bias=False, dtype=torch.double)
    weight = layer.weight.detach()
    x = torch.randn(20, layer.in_channels, 6, 6, dtype=torch.double).cumsum(dim=-1)  # neighbours are alike
    x = x * torch.logspace(0, -1, layer.in_channels, dtype=torch.double)[:, None, None]
    rows = nn.functional.unfold(x, 3).transpose(1, 2).flatten(0, 1)
    rows = rows - rows.mean(dim=0)
    second = rows.T @ rows / len(rows)
    form = Form(kind, tuple(data.draw(st.integers(1, limit)) for limit in most(kind, weight.shape)))

    def wrong(other: Tensor) -> float:
        return float(((weight - other).flatten(1) @ rows.T).square().sum() / len(rows))

    made, plain = composed(factors(weight, form, second)), composed(factors(weight, form))
    assert wrong(made) == pytest.approx(error(weight, made, second), abs=1e-9)
    assert wrong(made) <= wrong(plain) * (1 + 1e-6) + 1e-9


def test_improving_the_first_factor_pays() -> None:
    torch.manual_seed(0)
    weight = torch.randn(12, 12, 3, 3, dtype=torch.double)
    second = moments(108)
    for form in (Form("tucker", (5, 6)), Form("spatial", (8,))):
        errors = [error(weight, composed(factors(weight, form, second, rounds=number)), second) for number in (0, 1, 3)]
        assert errors[0] > errors[1] > errors[2]


def test_a_chain_is_like_its_layer() -> None:
    layer = nn.Conv2d(6, 8, 3, padding=1).to(torch.bfloat16, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    layer.weight.requires_grad_(False)
    before = torch.random.get_rng_state()
    made = chain(layer, Form("tucker", (3, 4)))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert {one.dtype for one in made.parameters()} == {torch.bfloat16}
    assert [one.requires_grad for one in made.parameters()] == [False, False, False, True]
    assert made[1].weight.is_contiguous(memory_format=torch.channels_last)
    assert not any(part.training for part in made.modules())
    assert made[2].bias.data_ptr() != layer.bias.data_ptr()  # type: ignore[union-attr]
    same = nn.Conv2d(4, 4, 3, padding="same", dilation=(1, 2))
    for form in forms(same):
        assert torch.allclose(chain(same, form)(x := torch.randn(1, 4, 7, 8)), same(x), atol=1e-5)


class Padded(nn.Conv2d):
    """A convolution with its own padding, as some packages have."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.pad(x, (0, 1, 0, 1)))


@pytest.mark.parametrize(
    ("layer", "form", "said"),
    [
        (nn.Conv2d(4, 8, 3), Form("channel", (9,)), "ranks of 'channel 9' .* expected from 1 to 8"),
        (nn.Conv2d(4, 8, 3), Form("tucker", (4, 0)), "expected from 1 to 4 and 8"),
        (nn.Conv2d(4, 8, 3), Form("tucker", (4,)), "expected from 1 to 4 and 8"),
        (nn.Linear(4, 8), Form("spatial", (2,)), "has no form 'spatial'"),
        (Padded(4, 8, 3), Form("channel", (2,)), "Padded computes its output in its own way"),
        (nn.Conv2d(4, 8, 3, groups=2), Form("channel", (2,)), "with 2 groups has no low-rank form"),
    ],
)
def test_wrong_forms_are_one_line(layer: Layer, form: Form, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        chain(layer, form)


def test_a_form_is_read_as_it_is_written() -> None:
    for form in (Form("channel", (4,)), Form("tucker", (8, 12))):
        assert Form.read(str(form)) == form


class Chains(nn.Module):
    """One chain of each form."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.Conv2d(8, 6, 3)]
        self.body = nn.ModuleList(chain(one, Form(*form)) for one, form in zip(layers, FORMS, strict=True))
        self.head = chain(nn.Linear(6, 5), Form("channel", (2,)))

    def forward(self, x: Tensor) -> Tensor:
        for part in self.body:
            x = part(x).relu()
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


FORMS: Any = [("channel", (3,)), ("tucker", (4, 5)), ("spatial", (6,))]


def test_chains_are_saved_and_exported(tmp_path: Any) -> None:
    torch.manual_seed(0)
    module, x = Chains().eval(), torch.randn(2, 3, 12, 12)
    exported = torch.export.export(module, (x,)).module()
    assert torch.allclose(exported(x), module(x), atol=1e-6)
    result = natpp.optimize(module, budget=1.0, example_input=x)
    result.save(tmp_path / "chains.safetensors")
    restored = natpp.restore(tmp_path / "chains.safetensors")
    assert torch.equal(restored(x), result.module(x))
