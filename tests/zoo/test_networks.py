"""The hand-crafted networks: what every one promises, and what is known of each."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn

import natpp
from experiments import zoo
from natpp.errors import SettingError, UnknownNameError
from natpp.registry import MODELS, ZOO
from natpp.zoo import Model, network
from natpp.zoo.networks.resnet import PaddedShortcut
from natpp.zoo.networks.shufflenet import ChannelShuffle

ROOT = Path(__file__).parent.parent.parent
NAMES = (
    *("vgg16", "vgg16_imagenet", "resnet20", "resnet56", "resnet18", "resnet50", "shufflenet", "shufflenet_imagenet"),
    *("mobilenetv2", "mobilenetv2_imagenet", "lresnet34e_ir", "mobilefacenet"),
)
BATCH_NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))


def images(model: Model, count: int) -> Tensor:
    """Images that a network takes, smaller than its own where a mean over all pixels allows it."""
    sides = model.input_shape[1:] if model.embeds else (min(64, side) for side in model.input_shape[1:])
    return torch.randn(count, model.input_shape[0], *sides, generator=torch.Generator().manual_seed(0))


def test_names() -> None:
    assert set(NAMES) <= set(MODELS)
    assert not set(MODELS) & set(ZOO)


@every_model
def test_counts_and_published_rows(model: Model) -> None:
    with torch.device("meta"):
        found = natpp.cost(model.build(), example_input=torch.empty(1, *model.input_shape))
    assert (found.params, found.madds) == (model.params, model.madds)
    assert all(row.method is None for row in model.published)
    assert len(model.published) == 1 or model.name not in NAMES
    assert model.source
    assert model.note


@every_model
def test_outputs(model: Model) -> None:
    with torch.device("meta"):
        assert model.build()(torch.empty(2, *model.input_shape)).shape == (2, model.outputs)
        if not model.embeds:
            assert network(model.name, 7)(torch.empty(2, *model.input_shape)).shape == (2, 7)


@every_model
def test_tracing_gives_the_same_function(model: Model) -> None:
    built = model.build().eval()
    traced = fx.symbolic_trace(built)
    x = images(model, 1)
    with torch.no_grad():
        expected = built(x)
        assert torch.equal(traced(x), expected)
    assert expected.isfinite().all()


@every_model
def test_no_layer_is_used_twice(model: Model) -> None:
    with torch.device("meta"):
        calls = [node.target for node in fx.symbolic_trace(model.build()).graph.nodes if node.op == "call_module"]
    assert len(calls) == len(set(calls))


@every_model
def test_every_parameter_learns(model: Model) -> None:
    torch.manual_seed(0)
    built = model.build().train()
    out = built(images(model, 4))
    assert 0.01 < out.std() < 10  # fresh weights neither lose nor blow up the signal
    (out * torch.randn_like(out)).sum().backward()
    still = [name for name, parameter in built.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert not still


def test_wrong_input() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown model 'resnet21'\. Did you mean 'resnet20'\?"):
        network("resnet21")
    for classes in (0, -1, 2.0, True, "10"):
        with pytest.raises(SettingError, match="expected a whole number from 1 up"):
            network("resnet20", classes)  # type: ignore[arg-type]
    with pytest.raises(
        SettingError, match="mobilefacenet outputs an embedding of 128 numbers, so classes does not apply"
    ):
        network("mobilefacenet", 10)


def test_the_list_needs_no_torch() -> None:
    code = "import sys, natpp.cli; natpp.cli.main(['zoo']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "lresnet34e_ir" in done.stdout


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "zoo.md").read_text(encoding="utf-8") == zoo.page()


def test_shuffled_channels() -> None:
    x = torch.arange(6.0).view(1, 6, 1, 1)
    assert ChannelShuffle(3)(x).flatten().tolist() == [0, 2, 4, 1, 3, 5]


def test_padded_shortcut() -> None:
    x = torch.arange(32.0).view(1, 2, 4, 4)
    out = PaddedShortcut(2, 4, 2)(x)
    assert out.shape == (1, 4, 2, 2)
    assert out[0, 1].tolist() == [[0, 2], [8, 10]]
    assert not out[0, 0].any()
    assert not out[0, 3].any()


def keys_of(convs: list[str], norms: list[str], biased: list[str]) -> set[str]:
    return {
        *(f"{name}.weight" for name in convs),
        *(f"{name}.{entry}" for name in norms for entry in BATCH_NORM),
        *(f"{name}.{entry}" for name in biased for entry in ("weight", "bias")),
    }


@pytest.mark.parametrize(("name", "depths", "convs"), [("resnet18", (2, 2, 2, 2), 2), ("resnet50", (3, 4, 6, 3), 3)])
def test_resnet_has_the_parameter_names_of_torchvision(name: str, depths: tuple[int, ...], convs: int) -> None:
    blocks = [f"layer{stage}.{index}" for stage, depth in enumerate(depths, 1) for index in range(depth)]
    downsampled = [f"layer{stage}.0.downsample" for stage in (1, 2, 3, 4) if stage > 1 or convs == 3]
    names = range(1, convs + 1)
    expected = keys_of(
        ["conv1", *(f"{block}.conv{i}" for block in blocks for i in names), *(f"{name}.0" for name in downsampled)],
        ["bn1", *(f"{block}.bn{i}" for block in blocks for i in names), *(f"{name}.1" for name in downsampled)],
        ["fc"],
    )
    found = on_meta(name).state_dict()
    assert set(found) == expected
    assert len(found) == {"resnet18": 122, "resnet50": 320}[name]
    assert found["layer2.0.downsample.0.weight"].shape == ((128, 64, 1, 1) if convs == 2 else (512, 256, 1, 1))
    assert found["layer4.1.conv2.weight"].shape == (512, 512, 3, 3)


def test_vgg16_has_the_parameter_names_of_torchvision() -> None:
    found = on_meta("vgg16_imagenet").state_dict()
    convs = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)
    expected = keys_of([], [], [f"features.{i}" for i in convs] + [f"classifier.{i}" for i in (0, 3, 6)])
    assert set(found) == expected
    assert found["features.28.weight"].shape == (512, 512, 3, 3)
    assert found["classifier.0.weight"].shape == (4096, 25088)


def test_mobilenetv2_has_the_parameter_names_of_torchvision() -> None:
    found = on_meta("mobilenetv2_imagenet").state_dict()
    convs, norms = ["features.0.0", "features.18.0"], ["features.0.1", "features.18.1"]
    for block in range(1, 18):
        inside = f"features.{block}.conv"
        expanded = 1 if block == 1 else 2  # the first block does not expand
        convs += [*(f"{inside}.{i}.0" for i in range(expanded)), f"{inside}.{expanded}"]
        norms += [*(f"{inside}.{i}.1" for i in range(expanded)), f"{inside}.{expanded + 1}"]
    assert set(found) == keys_of(convs, norms, ["classifier.1"])
    assert len(found) == 314
    assert found["features.2.conv.1.0.weight"].shape == (96, 1, 3, 3)
    assert found["features.17.conv.2.weight"].shape == (320, 960, 1, 1)


@pytest.mark.parametrize(
    ("name", "some"),
    [
        ("vgg16", {"features.0.weight", "features.1.running_mean", "features.40.weight", "classifier.6.bias"}),
        ("resnet56", {"conv1.weight", "layer1.0.conv1.weight", "layer3.8.bn2.bias", "fc.weight"}),
        ("shufflenet", {"stem.conv.weight", "stage2.0.branch.conv1.weight", "stage4.3.branch.bn3.bias", "fc.bias"}),
        ("mobilenetv2", {"features.0.0.weight", "features.17.conv.2.weight", "classifier.1.weight"}),
        ("lresnet34e_ir", {"conv1.weight", "layer1.0.downsample.0.weight", "layer4.2.prelu.weight", "bn3.bias"}),
        ("mobilefacenet", {"conv1.conv.weight", "stage3.5.expand.prelu.weight", "depthwise.weight", "linear_bn.bias"}),
    ],
)
def test_names_people_rely_on(name: str, some: set[str]) -> None:
    assert some <= set(on_meta(name).state_dict())


def on_meta(name: str) -> nn.Module:
    with torch.device("meta"):
        return network(name)
