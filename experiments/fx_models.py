"""Models of torchvision and timm put through `natpp.optimize`: which are traced, and what becomes of them.

Needs: torchvision and timm, no download; a CPU, seconds to minutes for each model

Each model has random weights. It is built, traced, optimized by the default policy, rewritten with nothing changed,
saved and restored, in a process of its own with a time limit. Results are written after each model, and models with
results are not run again. A missing library is reported. The small form takes three networks of natpp's zoo.
"""

from __future__ import annotations

import importlib
import json
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

import natpp
from experiments.lib.apart import Worker
from experiments.lib.machine import machine
from experiments.lib.settings import RESULTS, Experiment, Settings, read_results, write_results
from natpp.config import At
from natpp.core.result import Result
from natpp.errors import SettingError
from natpp.fx.rewrite import rewrite
from natpp.fx.sites import Site
from natpp.fx.traced import TraceError
from natpp.policies import DEFAULT
from natpp.registry import MODELS

TORCHVISION = (
    *("alexnet", "vgg11", "vgg16_bn", "resnet18", "resnet34", "resnet50", "resnet101", "wide_resnet50_2"),
    *("resnext50_32x4d", "squeezenet1_0", "squeezenet1_1", "densenet121", "densenet169", "inception_v3", "googlenet"),
    *("shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large"),
    *("mnasnet0_5", "mnasnet1_0", "efficientnet_b0", "efficientnet_b1", "efficientnet_v2_s", "regnet_x_400mf"),
    *("regnet_y_400mf", "convnext_tiny", "vit_b_16", "swin_t", "swin_v2_t", "maxvit_t", "fcn_resnet50"),
    *("deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large", "r3d_18"),
)
TIMM = (
    *("resnet26", "resnet50d", "seresnet50", "skresnet18", "res2net50_26w_4s", "resnest14d", "cspresnet50"),
    *("cspdarknet53", "darknet53", "dla34", "dpn68", "hrnet_w18_small", "ese_vovnet19b_dw", "efficientnet_b0"),
    *("tf_efficientnet_b0", "mobilenetv2_100", "mobilenetv3_large_100", "fbnetc_100", "mnasnet_100", "ghostnet_100"),
    *("lcnet_050", "tinynet_e", "regnetx_002", "regnety_002", "repvgg_a0", "mobileone_s0", "rexnet_100"),
    *("convnext_atto", "convnextv2_atto", "edgenext_xx_small", "mobilevit_xxs", "efficientformer_l1", "fastvit_t8"),
    *("levit_128s", "poolformer_s12", "vit_tiny_patch16_224", "deit_tiny_patch16_224", "mixer_s32_224"),
    *("resmlp_12_224", "swin_tiny_patch4_window7_224", "xception41", "inception_v4", "nf_resnet50", "selecsls42b"),
    *("gernet_s", "hardcorenas_a", "pvt_v2_b0", "tresnet_m", "coatnet_nano_rw_224", "visformer_tiny"),
)
SMOKE = ("zoo:resnet20", "zoo:shufflenet", "zoo:mobilenetv2")


def torchvision_model(name: str) -> tuple[nn.Module, Any]:
    """A model of torchvision with random weights, and an input that it takes."""
    models = importlib.import_module("torchvision.models")
    module = _first(
        lambda: models.get_model(name, weights=None, weights_backbone=None),  # for segmentation and detection
        lambda: models.get_model(name, weights=None),
    )
    home = type(module).__module__
    if ".detection." in home:
        return module, ([torch.rand(3, 320, 320)],)
    if ".video." in home:
        return module, torch.randn(1, 3, 16, 224 if "mvit" in name else 112, 224 if "mvit" in name else 112)
    if ".optical_flow." in home:
        return module, (torch.randn(1, 3, 128, 128), torch.randn(1, 3, 128, 128))
    side = 299 if name == "inception_v3" else 224
    return module, torch.randn(1, 3, side, side)


def timm_model(name: str) -> tuple[nn.Module, Any]:
    """A model of timm with random weights, and an input that it takes."""
    timm = importlib.import_module("timm")
    module = timm.create_model(name, pretrained=False)
    config = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None) or {}
    return module, torch.randn(1, *(config.get("input_size") or (3, 224, 224)))


def zoo_model(name: str) -> tuple[nn.Module, Any]:
    """A network of natpp's zoo."""
    model = MODELS[name]
    return model.build(), torch.randn(1, *model.input_shape)


SOURCES: dict[str, Callable[[str], tuple[nn.Module, Any]]] = {
    "torchvision": torchvision_model,
    "timm": timm_model,
    "zoo": zoo_model,
}


@dataclass(frozen=True, kw_only=True)
class FxModels(Settings):
    out: Path = RESULTS / "fx_models.json"
    models: tuple[str, ...] = ()
    """SOURCE:NAME, where SOURCE is torchvision, timm or zoo; default: the list of the results page"""
    all: Literal["torchvision", "timm"] | None = None
    """run every model of a library"""
    limit: Annotated[float, At(above=0)] = 300.0
    """seconds for each model"""

    def check(self) -> None:
        for word in self.models:
            if word.partition(":")[0] not in SOURCES:
                raise SettingError(f"models has {word!r}, expected torchvision:NAME, timm:NAME or zoo:NAME")

    def words(self) -> tuple[str, ...]:
        """The models to run."""
        if self.models or self.smoke:
            return self.models or SMOKE
        if self.all:
            return everything(self.all)
        return (*(f"torchvision:{name}" for name in TORCHVISION), *(f"timm:{name}" for name in TIMM))


def measured(word: str) -> dict[str, Any]:
    """The row of one model; an error is a row too, with its reason."""
    source, _, name = word.partition(":")
    torch.manual_seed(0)
    row: dict[str, Any] = {"model": word, "state": "missing"}
    try:
        module, example = SOURCES[source](name)
        module.eval()
        row |= {"state": "broken", "input": _shape(example)}
        with torch.no_grad():
            given = _outputs(module, example)
        row |= {"state": "failed", "params": sum(tensor.numel() for tensor in module.parameters())}
        start = time.perf_counter()
        result = natpp.optimize(module, budget="strict", example_input=example)
        row["seconds"] = time.perf_counter() - start
        row |= _told(result)
        row |= _checked(module, example, given, result)
        row["state"] = "traced"
    except TraceError as error:
        row |= {"state": "refused", "reason": _line(error)}
    except Exception as error:  # unknown models may raise anything; the table shows it
        row |= {"reason": _line(error), "traceback": traceback.format_exc().splitlines()[-12:]}
    return row


def _told(result: Result) -> dict[str, Any]:
    sites = [term.site for block in result.subject.blocks for _, term in block.terms if isinstance(term.site, Site)]
    return {
        "sites": len(sites),
        "blocks": len(result.subject.blocks),
        "changes": len(result.changes),
        "params_after": result.cost_after.params,
        "madds": result.cost_before.madds,
        "madds_after": result.cost_after.madds,
        "by_export": any("torch.export" in note for note in result.notes),
        "notes": list(result.notes),
    }


def _checked(module: nn.Module, example: Any, given: Any, result: Result) -> dict[str, Any]:
    """Checks: unchanged is equal to the bit, a change keeps shapes and raises no cost, a saved result restores."""
    found = _cut(module, example)
    with torch.no_grad():
        found["bit_equal"] = _same(_outputs(rewrite(result.subject.traced), example), given)
        after = _outputs(result.module, example)
        found["same_shapes"] = _shapes(after) == _shapes(given)
        found["no_dearer"] = (
            result.cost_after.params <= result.cost_before.params
            and result.cost_after.madds <= result.cost_before.madds
        )
        try:
            with tempfile.TemporaryDirectory() as place:
                folder = result.save(Path(place) / "saved")
                data = json.loads((folder / "architecture.json").read_text())
                found["given"] = data["module"]["given"]
                found["file"] = (folder / "model.py").exists()
                original = module if found["given"] else None
                found["restored"] = _same(_outputs(natpp.restore(folder, original), example), after)
        except Exception as error:  # kept as the reason why it could not be saved
            found |= {"restored": False, "not_restored": _line(error)}
    return found


def _cut(module: nn.Module, example: Any) -> dict[str, Any]:
    """The share of multiply-adds left under a budget of 0.6, or why it cannot be met."""
    try:
        result = natpp.optimize(module, budget=0.6, example_input=example)
    except Exception as error:  # an unreachable budget is a result, too
        return {"cut": None, "not_cut": _line(error)}
    return {"cut": result.cost_after.madds / max(result.cost_before.madds, 1)}


def _outputs(module: nn.Module, example: Any) -> Any:
    torch.manual_seed(0)
    return tree_flatten(module(*example) if isinstance(example, tuple) else module(example))


def _same(first: Any, second: Any) -> bool:
    if len(first[0]) != len(second[0]):
        return False
    pairs = zip(first[0], second[0], strict=True)
    return all(torch.equal(one, other) if isinstance(one, Tensor) else one == other for one, other in pairs)


def _shapes(outputs: Any) -> list[Any]:
    return [(tuple(one.shape), one.dtype) if isinstance(one, Tensor) else one for one in outputs[0]]


def _shape(example: Any) -> list[list[int]]:
    return [list(leaf.shape) for leaf in tree_flatten(example)[0] if isinstance(leaf, Tensor)]


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _first(*ways: Callable[[], nn.Module]) -> nn.Module:
    """The result of the first call that accepts its arguments."""
    for way in ways[:-1]:
        try:
            return way()
        except (TypeError, ValueError):
            continue
    return ways[-1]()


def run(words: Sequence[str], out: Path, limit: float) -> dict[str, Any]:
    """The table, written after every model."""
    found = read_results(out) or {"models": {}}
    worker: Worker | None = None
    for word in words:
        if found["models"].get(word, {"state": "missing"})["state"] == "missing":
            worker = worker or Worker(measured)
            start = time.perf_counter()
            row = worker.ask(word, limit)
            if row is None:
                spent = time.perf_counter() - start
                reason = f"not done in {limit:.0f} s" if spent >= limit else "the process died, perhaps out of memory"
                row, worker = {"model": word, "state": "failed", "reason": reason}, None
            found["models"][word] = row
            found |= {"machine": versions(), "policy": DEFAULT, "limit_s": limit}
            write_results(out, found)
        print(said(found["models"][word]), flush=True)
    if worker is not None:
        worker.end()
    return found


def said(row: dict[str, Any]) -> str:
    if row["state"] != "traced":
        return f"{row['model']}: {row['state']}, {row['reason']}"
    return (
        f"{row['model']}: {row['sites']} sites, {row['changes']} changes, {row['madds'] / 1e6:,.1f} → "
        f"{row['madds_after'] / 1e6:,.1f} M MAdds, {row['seconds']:.1f} s, unchanged is "
        f"{'equal' if row['bit_equal'] else 'NOT EQUAL'}, restored is {'equal' if row['restored'] else 'NOT EQUAL'}"
    )


def versions() -> dict[str, Any]:
    """The machine, with the versions of both libraries."""
    found = machine() | {"cores": os.cpu_count(), "threads": torch.get_num_threads()}
    for name in ("torchvision", "timm"):
        try:
            found[name] = importlib.import_module(name).__version__
        except Exception as error:  # torchvision may be installed and not fit this torch
            found[name] = f"none ({type(error).__name__})"
    return found


def everything(source: str) -> tuple[str, ...]:
    """All models that a library lists."""
    library = importlib.import_module("torchvision.models" if source == "torchvision" else "timm")
    return tuple(f"{source}:{name}" for name in library.list_models())


def measure(settings: FxModels) -> None:
    """Run the models that have no results yet."""
    words = settings.words()
    found = run(words, settings.out, settings.limit)["models"]
    states = [found[word]["state"] for word in words]
    print(", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)))


EXPERIMENT = Experiment(FxModels, (measure,))
