"""Models of torchvision, timm and ultralytics cut to half of their multiply-adds by their weights alone.

Needs: torchvision, timm and ultralytics, no download; a CPU, half an hour

Fresh weights, no images. For each model: whether `natpp.optimize` meets half of the multiply-adds, how long it takes,
and whether the result is sound: same shapes, equal to the bit if nothing changes, equal once saved and restored, and
run by onnxruntime wherever the original is. Beside it, Torch-Pruning where it is installed: L1, global, in forty steps
until the target is met. Each side has a process of its own with limits on time and memory, and takes its turn on every
model; exports come last. Rows are written at once and not measured again. The small form takes three networks of
natpp's zoo.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.metadata
import itertools
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import natpp
from experiments.lib.apart import Worker
from experiments.lib.machine import machine
from experiments.lib.settings import RESULTS, Experiment, Settings, read_results, write_results
from natpp.config import At
from natpp.core.budget import BudgetError
from natpp.core.result import Result
from natpp.fx.rewrite import rewrite
from natpp.nets.measure import module_cost
from natpp.registry import MODELS

TORCHVISION = (
    *("resnet18", "resnet50", "vgg16_bn", "mobilenet_v2", "mobilenet_v3_small", "densenet121", "shufflenet_v2_x1_0"),
    *("squeezenet1_1", "mnasnet1_0", "efficientnet_b0", "regnet_y_400mf", "convnext_tiny", "swin_t", "vit_b_16"),
    *("googlenet", "inception_v3", "fcn_resnet50", "deeplabv3_mobilenet_v3_large", "ssdlite320_mobilenet_v3_large"),
    "fasterrcnn_resnet50_fpn",
)
TIMM = (
    *("ghostnet_100", "repvgg_a0", "mixnet_s", "hrnet_w18_small", "dla34", "resnest14d", "fbnetc_100"),
    *("poolformer_s12", "tf_efficientnetv2_b0", "mobilevit_s", "cspresnet50", "edgenext_xx_small"),
)
ULTRALYTICS = ("yolov8n", "yolo11n")
SMOKE = ("zoo:resnet20", "zoo:shufflenet", "zoo:mobilenetv2")
BACKBONES = ("ssdlite320_mobilenet_v3_large", "fasterrcnn_resnet50_fpn")  # detectors, whose backbones are taken
SIDES = {
    "inception_v3": 299,
    "ssdlite320_mobilenet_v3_large": 320,
    "yolov8n": 320,
    "yolo11n": 320,
    "tf_efficientnetv2_b0": 192,
    "mobilevit_s": 256,
    "cspresnet50": 256,
    "edgenext_xx_small": 256,
}
SHARE = 0.5
QUICK = 10.0  # what takes fewer seconds is timed three times
PACKAGES = ("torchvision", "timm", "ultralytics", "torch-pruning", "onnx", "onnxscript", "onnxruntime")
STEPS = 40  # of Torch-Pruning, up to nine tenths of all channels
CLOSE = 1e-3  # the largest difference from onnxruntime, as a share of the largest output
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Coverage(Settings):
    out: Path = RESULTS / "coverage.json"
    models: tuple[str, ...] = ()
    """SOURCE:NAME, where SOURCE is torchvision, timm, ultralytics or zoo; default: the list of the results page"""
    limit: Annotated[float, At(above=0)] = 300.0
    """seconds for each row"""
    memory: Annotated[float, At(above=0)] = 16.0
    """GiB of address space for each row"""

    def words(self) -> tuple[str, ...]:
        """The models to run."""
        if self.models or self.smoke:
            return self.models or SMOKE
        lists = {"torchvision": TORCHVISION, "timm": TIMM, "ultralytics": ULTRALYTICS}
        return tuple(f"{source}:{name}" for source, names in lists.items() for name in names)


# Models.


def torchvision_model(name: str) -> nn.Module:
    """A model of torchvision, or the backbone of a detector."""
    try:
        models = importlib.import_module("torchvision.models")
    except RuntimeError:  # without its compiled operators it can be imported once they are declared
        for operator in ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou) -> Tensor")
        models = importlib.import_module("torchvision.models")
    parts = {"weights_backbone": None} if name in (*BACKBONES, "fcn_resnet50", "deeplabv3_mobilenet_v3_large") else {}
    fresh = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    made: Any = models.get_model(name, weights=None, **parts, **fresh)
    found: nn.Module = made.backbone if name in BACKBONES else made
    return found


def timm_model(name: str) -> nn.Module:
    """A model of timm."""
    torchvision_model("resnet18")  # timm imports torchvision
    made: nn.Module = importlib.import_module("timm").create_model(name, pretrained=False)
    return made


def ultralytics_model(name: str) -> nn.Module:
    """A detector of ultralytics."""
    torchvision_model("resnet18")
    made: nn.Module = importlib.import_module("ultralytics.nn.tasks").DetectionModel(f"{name}.yaml", verbose=False)
    return made


def zoo_model(name: str) -> nn.Module:
    """A network of natpp's zoo."""
    return MODELS[name].build()


SOURCES: dict[str, Callable[[str], nn.Module]] = {
    "torchvision": torchvision_model,
    "timm": timm_model,
    "ultralytics": ultralytics_model,
    "zoo": zoo_model,
}


def model_of(word: str) -> tuple[nn.Module, Tensor]:
    """A model in eval mode with fresh weights, always the same, and an input."""
    source, _, name = word.partition(":")
    torch.manual_seed(0)
    module = SOURCES[source](name).eval()
    shape = MODELS[name].input_shape if source == "zoo" else (3, *(SIDES.get(name, 224),) * 2)
    return module, torch.randn(1, *shape)


# Rows.


def measured(word: str) -> Row:
    """What natpp makes of a model; an error is a row, too, with its reason."""
    row: Row = {"state": "missing"}
    try:
        module, x = model_of(word)
        row["state"] = "failed"
        result = _timed(row, lambda: _optimized(module, x))
        if isinstance(result, BudgetError):
            return row | {"state": "not met", "share": (1 + result.above) * SHARE, "reason": _line(result)}
        before, after = result.cost_before.madds, result.cost_after.madds
        row |= {"madds": before, "share": after / before, "notes": list(result.notes)}
        row |= {"kinds": sorted({change.kind for change in result.changes}), **_checked(module, x, result)}
        row["state"] = "met" if after <= SHARE * before else "not met"
    except Exception as error:  # unknown models may raise anything; the table shows it
        row["reason"] = _line(error)
    return row


def exports(word: str) -> Row:
    """Whether onnxruntime runs the model, and what natpp makes of it; empty if it does, else the reason."""
    row: Row = {"state": "missing"}
    try:
        module, x = model_of(word)
        row["state"] = "failed"
        made = natpp.optimize(module, budget={"madds": SHARE}, example_input=x).module
        with tempfile.TemporaryDirectory() as place:
            row["given"] = _exported(module, x, Path(place) / "given.onnx")
            row["made"] = _exported(made, x, Path(place) / "made.onnx")
        row["state"] = "runs" if not row["made"] else "failed" if not row["given"] else "the original fails"
    except Exception as error:  # the same
        row["reason"] = _line(error)
    return row


def rival(word: str) -> Row:
    """What Torch-Pruning makes of it."""
    row: Row = {"state": "missing"}
    try:
        pruning = importlib.import_module("torch_pruning")
        module, x = model_of(word)
        row["state"] = "failed"
        before, shapes = module_cost(module, x).madds, _shapes(module, x)
        pruned = _timed(row, lambda: _pruned(pruning, copy.deepcopy(module), x))
        row["share"] = module_cost(pruned, x).madds / before
        row["shapes"] = _shapes(pruned, x) == shapes
        row["state"] = "met" if row["share"] <= SHARE and row["shapes"] else "not met"
    except Exception as error:  # the same
        row["reason"] = _line(error)
    return row


def _timed(row: Row, make: Callable[[], Any]) -> Any:
    """What is made; its seconds go into the row, the median of three if they are few."""
    taken, worked = list[float](), list[float]()
    while not taken or (len(taken) < 3 and taken[0] < QUICK):
        start, start_cpu = time.perf_counter(), time.process_time()
        made = make()
        taken.append(time.perf_counter() - start)
        worked.append(time.process_time() - start_cpu)
    row |= {"seconds": statistics.median(taken), "cpu_seconds": statistics.median(worked)}
    return made


def _optimized(module: nn.Module, x: Tensor) -> Result | BudgetError:
    try:
        return natpp.optimize(module, budget={"madds": SHARE}, example_input=x)
    except BudgetError as error:
        return error


def _checked(module: nn.Module, x: Tensor, result: Result) -> Row:
    """Checks of a result: shapes, unchanged, saved and restored."""
    made = result.module
    given, after = _outputs(module, x), _outputs(made, x)
    found: Row = {
        "shapes": [one.shape for one in after] == [one.shape for one in given],
        "unchanged": _same(_outputs(rewrite(result.subject.traced), x), given),
    }
    with tempfile.TemporaryDirectory() as place:
        try:
            restored = natpp.restore(result.save(Path(place) / "saved"), module)
            found["restored"] = _same(_outputs(restored, x), after)
        except Exception as error:  # kept as the reason
            found |= {"restored": False, "not_restored": _line(error)}
    return found


def _exported(module: nn.Module, x: Tensor, file: Path) -> str:
    """Whether onnxruntime computes the same: empty if it does, else the reason."""
    try:
        torch.onnx.export(module, (x,), file, verbose=False)
        session = importlib.import_module("onnxruntime").InferenceSession(file)
        theirs = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        pairs = zip(_outputs(module, x), map(torch.from_numpy, theirs), strict=True)
        worst = max(float((one - other).abs().max() / one.abs().max()) for one, other in pairs)
        return "" if worst <= CLOSE else f"differs by {worst:.1g}"
    except Exception as error:  # not every model can be exported
        return _line(error)


def _pruned(pruning: Any, module: nn.Module, x: Tensor) -> nn.Module:
    """Torch-Pruning in small steps, until the target is met."""
    target = pruning.utils.count_ops_and_params(module, x)[0] * SHARE
    pruner = pruning.pruner.MagnitudePruner(
        module,
        x,
        importance=pruning.importance.MagnitudeImportance(p=1),
        global_pruning=True,
        pruning_ratio=0.9,
        max_pruning_ratio=0.9,
        iterative_steps=STEPS,
        ignored_layers=_last_layers(module, x),
    )
    for _ in range(STEPS):
        pruner.step()
        if pruning.utils.count_ops_and_params(module, x)[0] <= target:
            break
    return module


def _last_layers(module: nn.Module, x: Tensor) -> list[nn.Module]:
    """The layers that make the outputs, whose channels have to stay: the last weights on every way to an output."""
    waiting = [one.grad_fn for one in tree_leaves(module(x)) if isinstance(one, Tensor)]
    seen, held = set[Any](), set[int]()
    while waiting:
        step = waiting.pop()
        if step is None or step in seen:
            continue
        seen.add(step)
        weighted = any(word in step.name() for word in ("Convolution", "mmBackward", "MmBackward", "Linear"))
        for before, _ in step.next_functions:
            if before is None:
                continue
            if weighted:
                reads = (
                    [before, *(one for one, _ in before.next_functions)] if "TBackward" in before.name() else [before]
                )
                held |= {id(one.variable) for one in reads if hasattr(one, "variable")}
            else:
                waiting.append(before)
    return [part for part in module.modules() if any(id(one) in held for one in part.parameters(recurse=False))]


def _outputs(module: nn.Module, x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return [one for one in tree_leaves(module(x)) if isinstance(one, Tensor)]


def _shapes(module: nn.Module, x: Tensor) -> list[torch.Size]:
    return [one.shape for one in _outputs(module, x)]


def _same(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"


# The table.

MEASURED: dict[str, Callable[[str], Row]] = {"natpp": measured, "torch_pruning": rival, "onnx": exports}


def run(settings: Coverage) -> dict[str, Any]:
    """The table, written after every row."""
    found = read_results(settings.out) or {"models": {}}
    workers: dict[str, Worker] = {}
    timed = itertools.product(settings.words(), ("natpp", "torch_pruning"))
    for word, side in (*timed, *((word, "onnx") for word in settings.words())):
        rows = found["models"].setdefault(word, {})
        if rows.get(side, {"state": "missing"})["state"] != "missing":
            continue
        if side not in workers:
            workers[side] = Worker(MEASURED[side], gigabytes=settings.memory)
        start = time.perf_counter()
        row = workers[side].ask(word, settings.limit)
        if row is None:
            spent = time.perf_counter() - start
            late = f"not done in {settings.limit:.0f} s"
            row = {"state": "failed", "reason": late if spent >= settings.limit else "the process died"}
            del workers[side]
        rows[side] = row
        found |= {"machine": machine() | {"cores": os.cpu_count(), "threads": torch.get_num_threads()} | versions()}
        write_results(settings.out, found)
        print(f"{side} {word}: {said(row)}", flush=True)
    for worker in workers.values():
        worker.end()
    return found


def versions() -> dict[str, str]:
    """The versions of the packages that are installed."""
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def said(row: Row) -> str:
    """A row in words."""
    failed = wrong(row)
    share = f", {row['share']:.3f} of the MAdds in {row['seconds']:.1f} s" if "share" in row else ""
    reason = f", {row['reason']}" if "reason" in row else ""
    return f"{row['state']}{share}{reason}{', NOT RIGHT: ' + ', '.join(failed) if failed else ''}"


def wrong(row: Row) -> list[str]:
    """The checks that a row does not pass."""
    return [name for name in ("shapes", "unchanged", "restored") if row.get(name) is False]


def measure(settings: Coverage) -> None:
    """Measure the rows that are missing."""
    found = run(settings)["models"]
    for side in ("natpp", "torch_pruning"):
        met = [row for row in (found[word][side] for word in settings.words()) if row["state"] == "met"]
        told = [f"{side}: {len(met)} of {len(settings.words())} met", f"{sum(not wrong(row) for row in met)} right"]
        for key, unit in (("seconds", "s"), ("cpu_seconds", "s of the processor")) if met else ():
            told.append(f"median {statistics.median(row[key] for row in met):.2f} {unit}")
        print(", ".join(told))
    states = Counter(found[word]["onnx"]["state"] for word in settings.words())
    print("onnx:", ", ".join(f"{count} {state}" for state, count in states.most_common()))


EXPERIMENT = Experiment(Coverage, (measure,))
