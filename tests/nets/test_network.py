"""Networks: they train, prune to the same function, keep names, and can be compiled and exported."""

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from torch import nn

import natpp
from natpp.arch.formats import parse
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting, setting
from natpp.errors import NatppError, SettingError
from natpp.nets.network import Network, build_network, dropped
from natpp.registry import ZOO
from tests.strategies import architectures, settings_of


def with_trained_statistics(network: Network) -> Network:
    """Batch norms as training leaves them: nothing at its initial value, so that a stray bias would show."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias)
    return network.eval()


@settings(max_examples=60)
@given(architectures(), settings_of())
def test_pruned_and_full_network_are_one_function(arch: Architecture, where: Setting) -> None:
    torch.manual_seed(0)
    full = with_trained_statistics(build_network(arch, where, prune=False))
    pruned = build_network(arch, where).eval()
    weights = full.state_dict()
    assert set(pruned.state_dict()) <= set(weights)
    pruned.load_state_dict({name: weights[name] for name in pruned.state_dict()})
    images = torch.randn(2, 3, where.size, where.size)
    with torch.no_grad():
        assert torch.equal(full(images), pruned(images))


def test_silence_stays_silent() -> None:
    """A node that hears nothing is zero, and an edge from it adds nothing, not its batch norm's bias."""
    arch = parse(
        "Genotype(normal=[('null', 0), ('null', 1), ('conv_3x3', 2), ('skip_connect', 1)], normal_concat=[2, 3], "
        "reduce=[('null', 0), ('null', 1), ('conv_3x3', 2), ('skip_connect', 1)], reduce_concat=[2, 3])"
    )
    network = with_trained_statistics(natpp.build(arch, "cifar:channels=4,cells=1", prune=False))
    cell = network.blocks["cell_0"]
    value = torch.randn(1, 12, 8, 8)
    out = cell(value, value)
    assert out.shape == (1, 16, 4, 4)  # the silent node keeps its place
    assert torch.equal(out[:, :8], torch.zeros(1, 8, 4, 4))
    assert torch.equal(out[:, 8:], cell.edges["3"](cell.inputs["1"](value)))


def test_no_path_gives_a_constant() -> None:
    for network in ("cifar", "imagenet", "nasbench201"):
        model = with_trained_statistics(natpp.build("|none~0|", setting(network, channels=4, cells=2, classes=3)))
        first, second = model(torch.randn(2, 3, 32, 32)), model(torch.randn(2, 3, 32, 32))
        assert first.shape == (2, 3)
        assert torch.equal(first, second)


@pytest.mark.parametrize("name", list(ZOO))
@pytest.mark.parametrize("size", [32, 64])
def test_every_zoo_entry_runs_forward_and_backward(name: str, size: int) -> None:
    torch.manual_seed(0)
    for network in ("cifar", "imagenet"):
        model = natpp.build(name, setting(network, channels=4, cells=3, classes=5))
        logits = model(torch.randn(2, 3, size, size))
        assert logits.shape == (2, 5)
        nn.functional.cross_entropy(logits, torch.tensor([0, 1])).backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_a_network_learns() -> None:
    """Eight images by heart: a wrong wire somewhere would show as a loss that stays."""
    torch.manual_seed(0)
    model = natpp.build("natpp_darts", "cifar:channels=8,cells=3,classes=4")
    images, labels = torch.randn(8, 3, 16, 16), torch.arange(8) % 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(40):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


def test_defaults_are_the_published_networks() -> None:
    assert sum(p.numel() for p in natpp.build("darts").parameters()) == 3349342
    assert sum(p.numel() for p in natpp.build("darts", "imagenet").parameters()) == 4718752


def test_a_nasbench201_network_has_no_input_convs() -> None:
    model = natpp.build("|nor_conv_3x3~0|", "nasbench201:cells=1")
    assert [name for name, _ in model.named_parameters() if ".inputs." in name] == []
    assert [name for name in model.blocks if name.startswith("residual")] == ["residual_1", "residual_2"]


@pytest.mark.parametrize("network", ["cifar", "imagenet", "nasbench201"])
def test_the_size_of_the_image_changes_no_weight(network: str) -> None:
    """Built for one size, it serves every other, down to a single pixel."""
    small, usual = (natpp.build("darts", setting(network, channels=4, cells=3, size=size)) for size in (1, None))
    usual.load_state_dict(small.state_dict())
    for size in (1, 5, 32):
        images = torch.randn(1, 3, size, size)
        assert torch.equal(small.eval()(images), usual.eval()(images))


def test_drop_path_drops_whole_images_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    out = dropped(torch.ones(4000, 2, 3, 3), 0.25)
    kinds = out.flatten(1)
    assert ((kinds == kinds[:, :1]).all(dim=1)).all()
    assert out.mean().item() == pytest.approx(1, abs=0.05)
    assert (kinds[:, 0] == 0).float().mean().item() == pytest.approx(0.25, abs=0.03)


def test_drop_path_is_off_in_eval_mode_and_spares_skips() -> None:
    torch.manual_seed(0)
    model = natpp.build("darts", "cifar:channels=4,cells=3")
    model.drop_path = 0.9
    images = torch.randn(2, 3, 16, 16)
    model.eval()
    assert torch.equal(model(images), model(images))
    model.train()
    assert not torch.equal(model(images), model(images))
    model.drop_path = 0.0
    assert torch.equal(model(images), model(images))
    skips = natpp.build("|skip_connect~0|", "nasbench201:channels=4,cells=1")
    skips.drop_path = 0.9
    assert torch.equal(skips(images), skips(images))
    with pytest.raises(SettingError, match=r"drop_path is 1\.0"):
        model.drop_path = 1.0


def test_the_auxiliary_head_serves_its_sizes_and_refuses_others() -> None:
    for network, size in (("cifar", 32), ("cifar", 40), ("imagenet", 224)):
        model = natpp.build("darts", setting(network, channels=4, cells=3, classes=5, size=size), auxiliary=True)
        logits, extra = model(torch.randn(2, 3, size, size))
        assert logits.shape == extra.shape == (2, 5)
        assert model.eval()(torch.randn(2, 3, size, size)).shape == (2, 5)
    with pytest.raises(SettingError, match="images of 64 x 64 give it 16 x 16"):
        natpp.build("darts", "cifar:size=64", auxiliary=True)
    with pytest.raises(SettingError, match="it was given 16 x 16"):
        natpp.build("darts", "cifar:channels=4,cells=3", auxiliary=True)(torch.randn(2, 3, 64, 64))
    with pytest.raises(SettingError, match="nasbench201 network has no auxiliary head"):
        natpp.build("darts", "nasbench201", auxiliary=True)
    with pytest.raises(SettingError, match="nothing live"):
        natpp.build("|none~0|", auxiliary=True)


def test_costs_leave_the_auxiliary_head_out() -> None:
    plain = natpp.build("darts", "cifar:channels=4,cells=3")
    extra = natpp.build("darts", "cifar:channels=4,cells=3", auxiliary=True)
    names = {name for name, _ in extra.named_parameters()} - {name for name, _ in plain.named_parameters()}
    assert names
    assert all(name.startswith("auxiliary.") for name in names)


def test_a_network_can_be_copied_and_saved(tmp_path: Path) -> None:
    model = natpp.build("enas", "cifar:channels=4,cells=2").eval()
    images = torch.randn(1, 3, 8, 8)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(images), model(images))
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    fresh = natpp.build("enas", "cifar:channels=4,cells=2").eval()
    fresh.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(fresh(images), model(images))


EXPORTED = [("natpp_naonet", "cifar", 2), ("vgg_block", "nasbench201", 1), ("nasnet", "imagenet", 1)]


@pytest.mark.parametrize(("name", "network", "cells"), EXPORTED)
def test_torch_export(name: str, network: str, cells: int) -> None:
    model = natpp.build(name, setting(network, channels=4, cells=cells, classes=3)).eval()
    images = torch.randn(2, 3, 33, 33)
    exported = torch.export.export(model, (images,), dynamic_shapes={"images": {0: torch.export.Dim("batch")}})
    for batch in (2, 5):
        images = torch.randn(batch, 3, 33, 33)
        torch.testing.assert_close(exported.module()(images), model(images))


@pytest.mark.parametrize(("name", "network", "cells"), EXPORTED)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's own
def test_onnx_gives_the_same_in_onnxruntime(name: str, network: str, cells: int, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    if torch.__version__.startswith("2.6."):
        pytest.skip("the ONNX exporter of torch 2.6 fails on most networks")
    model = with_trained_statistics(natpp.build(name, setting(network, channels=4, cells=cells, classes=3)))
    images = torch.randn(2, 3, 33, 33)
    file = tmp_path / "network.onnx"
    torch.onnx.export(model, (images,), file, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(file)
    (out,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    torch.testing.assert_close(torch.from_numpy(out), model(images).detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "network", "cells"), EXPORTED)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_torch_compile_traces_the_whole_graph(name: str, network: str, cells: int) -> None:
    torch._dynamo.reset()
    model = natpp.build(name, setting(network, channels=4, cells=cells, classes=3)).eval()
    images = torch.randn(2, 3, 16, 16)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), model(images))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_torch_compile_with_the_default_backend_trains() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = natpp.build("|nor_conv_3x3~0|", "nasbench201:channels=4,cells=1,classes=3")
    images = torch.randn(2, 3, 8, 8)
    reference = copy.deepcopy(model)
    torch.compile(model, fullgraph=True)(images).square().sum().backward()
    reference(images).square().sum().backward()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(NatppError, match="channels is 0"):
        natpp.build("darts", "cifar:channels=0")
    with pytest.raises(NatppError, match="unknown network"):
        natpp.build("darts", "mnist")
