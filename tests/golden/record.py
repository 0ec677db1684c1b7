"""The golden record: what natpp answers, as JSON, so that a refactor can show that no answer changed.

`OMP_NUM_THREADS=1 python tests/golden/record.py FILE` writes the full record of the natpp on PYTHONPATH, all bits
included; `--only PATTERN` records the entries whose names match. `python tests/golden/record.py --compare A B`
prints the keys that differ between two full records made on the same machine, and exits with 1 if there are any.

`python tests/golden/record.py --keep` rewrites `kept.json`, the small part that `test_golden.py` makes again: plans,
costs and names exactly, other figures to six digits. Do that only for a deliberate change of answers.

Everything goes through natpp's public API and command line, and all of that through the first section below: when a
signature or the form of a result changes, change it there. Wording is left out: reasons, notes, titles.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import io
import itertools
import json
import math
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

import natpp
from natpp.arch.rules import edge_names
from natpp.methods.policy import PolicyMethod
from natpp.methods.tuned import Tuned
from natpp.registry import METHODS, RECIPES, SCORERS
from natpp.runs.scoring import Table
from natpp.training.losses import cross_entropy

# ---------------------------------------------------------------------------------------------------------------------
# The adapter: all calls of natpp, and all that reads its results. Nothing below this section knows a signature.
# ---------------------------------------------------------------------------------------------------------------------


def optimize_cell(arch: Any, **asked: Any) -> Any:
    """The result for an architecture; None where natpp refuses, as with a budget that cannot be met."""
    with contextlib.suppress(natpp.NatppError):
        return natpp.optimize(arch, **optimizing(asked))


def optimize_module(module: nn.Module, example: Any, **asked: Any) -> Any:
    """The result for a module, learned on data where `train` is among what is asked; None where natpp refuses."""
    with contextlib.suppress(natpp.NatppError):
        return natpp.optimize(module, example_input=example, **optimizing(asked))


def optimizing(asked: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `natpp.optimize`: a method, what may be decided, a task, a scorer and a run."""
    policy, rule = asked.pop("policy", None), asked.pop("rule", None)
    keep = asked.pop("keep", ())
    found: dict[str, Any] = {"run": natpp.Run(seed=asked.pop("seed", 0)), "budget": asked.pop("budget", "strict")}
    found["decisions"] = natpp.Decisions(
        rule,
        keep=keep if isinstance(keep, str) else tuple(keep),
        share_blocks=asked.pop("share_blocks", None),
        setting=asked.pop("network", None),
    )
    scorer, reward = asked.pop("scorer", None), asked.pop("reward", None)
    short = {new: asked.pop(old) for old, new in (("train_steps", "steps"), ("learning_rate",) * 2) if old in asked}
    train, val, batches = asked.pop("train", None), asked.pop("val", None), asked.pop("batches", None)
    if train is not None:
        loss = asked.pop("loss", None)
        found["task"] = train if isinstance(train, str) else natpp.Task(train, val, loss=loss or cross_entropy)
        found["scorer"] = replace(SCORERS[scorer or "short"], **short)
        found["method"] = replace(METHODS["tuned"], **part_of(Tuned, asked), policy=policy)
        found["decisions"] = replace(found["decisions"], kinds=("operation", "term"))  # all there were
    else:
        found["task"] = None if batches is None else natpp.Task.inputs(batches)
        found["scorer"] = Table(scorer, reward) if reward is not None else scorer
        given = {"learned": policy} if isinstance(policy, nn.Module) else {"policy": policy}
        found["method"] = PolicyMethod(**given, **part_of(PolicyMethod, asked))
    if asked:
        raise TypeError(f"the record asks for {', '.join(asked)}")
    return found


def part_of(config: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """The settings that belong to a config, taken out of all that are asked for."""
    return {one.name: asked.pop(one.name) for one in fields(config) if one.name in asked}


def search(data: str | None = "digits", **asked: Any) -> Any:
    """A learned policy."""
    run, config = part(natpp.Run, asked, device="cpu"), part(natpp.Search, asked)
    data = f"{data}:root={asked.pop('root')}" if "root" in asked else data
    on = asked.pop("arch", asked.pop("space", "cells"))
    return natpp.search(data, config, on=on, run=run, **asked)


def score(archs: Sequence[Any], data: str | None = "digits", **asked: Any) -> list[Any]:
    """Scores of architectures."""
    run, asked["steps"] = part(natpp.Run, asked, device="cpu"), asked.pop("train_steps", None)
    scorer = asked.pop("scorer", None)
    short = part(natpp.Short, asked)
    return natpp.score(archs, short if scorer in (None, "short") else scorer, task=data, run=run, **asked)


def train(arch: Any, **asked: Any) -> Any:
    """A network trained from scratch on digits."""
    run, name = part(natpp.Run, asked, device="cpu"), asked.pop("recipe", "quick")
    return natpp.train(arch, "digits", replace(RECIPES.given(name), **asked), run=run)


def finetune(model: Any, data: Any, val: Any = None, **asked: Any) -> Any:
    """A fine-tuned module."""
    run, loss = part(natpp.Run, asked, device="cpu"), asked.pop("loss", cross_entropy)
    task = data if isinstance(data, str) else natpp.Task(data, val, loss=loss)
    teacher = asked.pop("teacher", None)
    return natpp.finetune(model, task, replace(RECIPES["tune"], **asked), teacher=teacher, run=run)


def part(config: Any, asked: dict[str, Any], **usual: Any) -> Any:
    """The settings that belong to a config, taken out of all that are asked for."""
    return config(**usual | part_of(config, asked))


def command(*words: str) -> str:
    """Standard output of `python -m natpp`, run in this process."""
    out, before = io.StringIO(), sys.argv
    sys.argv = ["natpp", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            runpy.run_module("natpp", run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        if stop.code:
            raise RuntimeError(f"natpp {' '.join(words)} ended with {stop.code}") from None
    finally:
        sys.argv = before
    return out.getvalue()


def command_json(*words: str) -> Any:
    """What a command prints with --json."""
    return json.loads(command(*words, "--json", "--quiet"))


def cost_row(cost: Any) -> list[int]:
    """Parameters and multiply-adds as listed and alive, and peak memory, of a Cost or its JSON."""
    data = cost if isinstance(cost, Mapping) else asdict(cost)
    return [data[name] for name in ("params", "madds", "live_params", "live_madds", "peak_memory_bytes")]


def arch_plan(arch: Any) -> dict[str, str]:
    """The edges of every cell with their operations, of an Architecture."""
    return {
        kind: " ".join(f"{edge.source}>{edge.target}:{edge.op}{'!' if edge.fixed else ''}" for edge in graph.edges)
        + f" = {graph.concat}"
        for kind, graph in arch.cells()
    }


def cell_answer(result: Any) -> Any:
    """What became of an architecture; "refused" where nothing did."""
    if result is None:
        return "refused"
    return {
        "plan": arch_plan(result.after),
        "cost_before": cost_row(result.cost_before),
        "cost_after": cost_row(result.cost_after),
        "log_prob": result.log_prob,
        "bits": per_edge(result.before, result.probabilities, result.masked, result.subject.ops),
    }


def per_edge(arch: Any, chances: Mapping[str, Any], masked: Mapping[str, Any], ops: Sequence[str]) -> Any:
    """What a policy could choose and what it could not, per cell and edge: a fixed edge keeps what it has by rule."""
    words = {"rule": "rule", "cost": "budget"}
    names, found = edge_names(arch), {"probabilities": {}, "masked": {}}
    for kind, graph in arch.cells():
        pairs = list(zip(names[kind], graph.edges, strict=True))
        found["probabilities"][kind] = [{edge.op: 1.0} if edge.fixed else chances[name] for name, edge in pairs]
        found["masked"][kind] = [
            dict.fromkeys((op for op in ops if op != edge.op), "rule")
            if edge.fixed
            else {op: words[why] for op, why in masked[name].items()}
            for name, edge in pairs
        ]
    return found


def placed(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The places of a result's JSON, group by group."""
    return [place for group in data["groups"] for place in group["decisions"]]


def told(place: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Of the options at a place those that have a probability, a cost or a reason why not."""
    return {one["value"]: one[what] for one in place["options"] if what in one}


def edge_change(change: Mapping[str, Any]) -> dict[str, Any]:
    """A changed edge with its cell and its nodes, which its name tells."""
    cell, source, _, target = change["name"].split()[:4]
    sides = {side: change[side] for side in ("before", "after")}
    return {"cell": cell, "from": int(source), "to": int(target), **sides}


def term_row(place: Mapping[str, Any]) -> dict[str, Any]:
    """A place of a block as it has been recorded from the start."""
    keys = ("from", "to", "before", "after", "name")
    row = {key: place[key] for key in keys} | {"alive": [side is not None for side in place["spent"]], "site": None}
    if place["places"]:
        own = {place["before"]: place["spent"][0]} if place["spent"][0] is not None else {}
        row |= {"site": place["name"], **place["places"][0], "costs": told(place, "cost") | own}
    return row


def module_answer(result: Any, example: Any) -> Any:
    """What became of a module: its changes, costs, weights and outputs; "refused" where nothing did."""
    if result is None:
        return "refused"
    return {
        "changes": [f"{one.name}: {one.before} > {one.after}" for one in result.changes],
        "cost_before": cost_row(result.cost_before),
        "cost_after": cost_row(result.cost_after),
        "log_prob": result.log_prob,
        "chances": [one.probability for one in result.changes],
        "output": magnitude(outputs(result.module, example)),
        "bits": {
            "weights": weights_hash(result.module.state_dict()),
            "names": text_hash(" ".join(result.module.state_dict())),
            "outputs": tensors_hash(outputs(result.module, example)),
            "probabilities": result.probabilities,
            "masked": {name: sorted(ops) for name, ops in result.masked.items()},
        },
    }


def learned_answer(result: Any, example: Any) -> Any:
    """The same of what was learned on data, with its scores: all of it bits, since choices hang on last digits."""
    if result is None:
        return "refused"
    found = result.learned
    return {
        "original": found.original,
        "first_score": found.scored[0].score,
        "bits": {
            "result": module_answer(result, example),
            "scores": [one.score for one in found.scored],
            "ops": [one.ops for one in found.scored],
            "madds": [one.madds for one in found.scored],
            "best": found.best,
            "expected": found.expected,
            "curve": found.policy_curve,
            "finals": {str(index): value for index, value in found.finals.items()},
            "policy": weights_hash(found.policy.state_dict()),
        },
    }


def outcome_answer(outcome: Any) -> Any:
    """A score of an architecture, without its time."""
    data = outcome if isinstance(outcome, Mapping) else asdict(outcome)
    bits = {"accuracy": data["accuracy"], "curve": list(data["curve"]), "test_accuracy": data["test_accuracy"]}
    return {"value": data["value"], "loss": data["loss"], "scored": data["reason"] is None, "bits": bits}


def saved_answer(folder: Path, original: nn.Module, example: Any) -> Any:
    """What `result.save` wrote: the tensors, the graph, and the outputs of what is made from it in both ways."""
    data = json.loads((folder / "architecture.json").read_text())
    spec = importlib.util.spec_from_file_location("golden_written", folder / "model.py")
    assert spec is not None
    assert spec.loader is not None
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    return {
        "files": sorted(file.name for file in folder.iterdir()),
        "changes": [f"{one['name']}: {one['before']} > {one['after']}" for one in data["changes"]],
        "costs": [cost_row(data["cost_before"]), cost_row(data["cost_after"])],
        "terms": [[block["name"], *(one["after"] for one in block["decisions"])] for block in data["groups"]],
        "bits": {
            "tensors": {file.name: file_hash(file) for file in sorted(folder.glob("*.safetensors"))},
            "module": data["module"],
            "blocks": block_rows(data),
            "restored": tensors_hash(outputs(natpp.restore(folder, original), example)),
            "written": tensors_hash(outputs(written.load(), example)),
        },
    }


def block_rows(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The blocks of a module's result as they have been recorded from the start."""
    return [
        {key: block[key] for key in ("name", "kind")}
        | {"outputs": list(natpp.load(json.dumps(block["before"])).normal.merged_concat or ())}
        | {"terms": [term_row(one) for one in block["decisions"]]}
        for block in data["groups"]
    ]


def cell_json_answer(data: Mapping[str, Any]) -> Any:
    """The answer in the JSON of an architecture's result."""
    return {
        "after": data["after"],
        "changes": [edge_change(one) for one in data["changes"]],
        "costs": [cost_row(data["cost_before"]), cost_row(data["cost_after"])],
        "log_prob": data["log_prob"],
        "bits": per_edge(
            natpp.load(json.dumps(data["before"])),
            *({place["name"]: told(place, what) for place in placed(data)} for what in ("probability", "why_not")),
            [option["value"] for option in placed(data)[0]["options"]],
        ),
    }


def module_json_answer(data: Mapping[str, Any]) -> Any:
    """The answer in the JSON of a module's result."""
    return {
        "changes": [f"{one['name']}: {one['before']} > {one['after']}" for one in data["changes"]],
        "costs": [cost_row(data["cost_before"]), cost_row(data["cost_after"])],
        "log_prob": data["log_prob"],
        "bits": {
            "probabilities": {place["name"]: told(place, "probability") for place in placed(data)},
            "terms": [block["terms"] for block in block_rows(data)],
        },
    }


def page_answer(page: Path) -> Any:
    """The figures on a report: those written out in full, and those it holds for its drawings."""
    text = page.read_text()
    held = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert held is not None
    seen = re.sub(r"<[^>]+>", " ", re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL))
    return {
        "bits": {
            "seen": sorted(set(re.findall(r"\b\d{1,3}(?:,\d{3})+\b", seen))),
            "held": sorted({number for number in numbers(json.loads(held[1])["book"]) if math.isfinite(number)}),
        }
    }


def run_answer(folder: Path) -> Any:
    """What a run's folder holds: curves and scores without times, the best architecture, the result, weights."""

    def rows(name: str) -> list[Any]:
        file = folder / name
        lines = file.read_text().splitlines() if file.exists() else []
        return [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in lines]

    result, best = folder / "result.json", folder / "architecture.json"
    found = json.loads(result.read_text()) if result.exists() else {}
    return {
        "metrics": rows("metrics.jsonl"),
        "scores": rows("scores.jsonl"),
        "best": json.loads(best.read_text()) if best.exists() else None,
        "result": cell_json_answer(found) if "after" in found else untimed(found.get("curve")),
        "tensors": {file.name: file_hash(file) for file in sorted(folder.glob("*.safetensors"))},
    }


# ---------------------------------------------------------------------------------------------------------------------
# Figures and hashes.
# ---------------------------------------------------------------------------------------------------------------------


def text_hash(text: str) -> str:
    """A sha256 of a text."""
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def tensors_hash(tensors: Sequence[Tensor]) -> str:
    """A sha256 of the bytes of tensors, their shapes and types."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype} ".encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return "sha256:" + digest.hexdigest()


def weights_hash(state: Mapping[str, Any]) -> str:
    """The same of a state dict, in its order."""
    return tensors_hash([tensor for tensor in state.values() if isinstance(tensor, Tensor)])


def file_hash(file: Path) -> str:
    """The same of a safetensors file: names and tensors, without its notes."""
    with safe_open(str(file), framework="pt") as held:
        found = {name: held.get_tensor(name) for name in sorted(held.keys())}
    return tensors_hash(list(found.values())) + text_hash(" ".join(found))[6:]


def outputs(module: nn.Module, example: Any) -> list[Tensor]:
    """What a module gives in evaluation mode, which it is left in."""
    given = example if isinstance(example, tuple) else (example,)
    with torch.no_grad():
        found = module.eval()(*given)
    return [found] if isinstance(found, Tensor) else list(found)


def magnitude(tensors: Sequence[Tensor]) -> float:
    """The sum of absolute values."""
    return sum(tensor.double().abs().sum().item() for tensor in tensors)


def numbers(value: Any) -> Iterator[float]:
    """All numbers in JSON data."""
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from numbers(one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def untimed(rows: Any) -> Any:
    """Rows of a curve without their times."""
    return rows and [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


# ---------------------------------------------------------------------------------------------------------------------
# Entries: each is made in a fresh folder. What is kept is all of an entry but its "bits".
# ---------------------------------------------------------------------------------------------------------------------

Entry = Callable[[Path], Any]
ENTRIES: dict[str, Entry] = {}
KEPT: set[str] = set()
HERE = Path(__file__).parent
KEPT_FILE = HERE / "kept.json"


def entry(name: str, *, kept: bool = False) -> Callable[[Entry], Entry]:
    """Registers a function that makes an entry of the record."""

    def add(make: Entry) -> Entry:
        assert name not in ENTRIES
        ENTRIES[name] = make
        KEPT.update({name} if kept else ())
        return make

    return add


# Cells.

RESNET_LIKE = "|nor_conv_3x3~0|+|none~0|nor_conv_3x3~1|+|skip_connect~0|none~1|none~2|"
BUSY = "|nor_conv_1x1~0|+|nor_conv_3x3~0|avg_pool_3x3~1|+|nor_conv_3x3~0|nor_conv_3x3~1|nor_conv_1x1~2|"
ZOO = (
    *("darts", "enas", "naonet", "vgg_block", "resnet_block", "mobilenetv2_block", "nat_darts", "natpp_enas"),
    *("natpp_naonet", "natpp_vgg_block", "pc_darts_cifar", "nasnet", "amoebanet", "pnas", "snas", "nat_resnet_block"),
)
SAMPLED = {f"sampled_{nodes}_{seed}": (nodes, seed) for nodes in (2, 3, 4, 5) for seed in (0, 1)}
CELLS: dict[str, Any] = {
    **{name: name for name in ZOO},
    **{name: natpp.sample(nodes=nodes, seed=seed) for name, (nodes, seed) in SAMPLED.items()},
    "nasbench201_resnet": RESNET_LIKE,
    "nasbench201_busy": BUSY,
}
BUDGETS: dict[str, Any] = {
    "strict": "strict",
    "rule": "rule",
    **{f"madds {share}": {"madds": share} for share in (0.8, 0.6, 0.4)},
    "params and madds": {"params": 0.7, "madds": 0.75},
    "memory": {"memory": 0.8},
}
KEPT_CELLS = (
    *("darts", "naonet", "resnet_block", "pnas"),
    *("sampled_2_1", "sampled_4_0", "sampled_5_1", "nasbench201_busy"),
)


def cell_entry(name: str, folder: Path) -> Any:
    arch = CELLS[name]
    return {
        "before": arch_plan(natpp.load(arch) if isinstance(arch, str) else arch),
        **{budget: cell_answer(optimize_cell(arch, budget=asked)) for budget, asked in BUDGETS.items()},
    }


for _name in CELLS:
    entry(f"cells/{_name}", kept=_name in KEPT_CELLS)(partial(cell_entry, _name))


@entry("cells/ways", kept=True)
def cell_ways(folder: Path) -> Any:
    """Rules, shipped policies, draws, and the best of several by a function and by a table."""
    table = made_up_table(folder)
    some = {name: CELLS[name] for name in ("darts", "sampled_5_0", "nasbench201_busy")}
    asked: dict[str, dict[str, Any]] = {
        **{f"rule {rule}": {"rule": rule} for rule in ("nat", "cost")},
        **{f"policy {name}": {"policy": name} for name in ("cifar10_accurate", "cifar10_nat", "cifar10_accurate_nat")},
        **{f"sample {seed}": {"mode": "sample", "seed": seed} for seed in range(4)},
        "sample, rule": {"mode": "sample", "budget": "rule"},
        "sample, madds": {"mode": "sample", "seed": 5, "budget": {"madds": 0.5}},
        "best-of": {"mode": "best-of", "samples": 6, "scorer": count_convolutions},
        "best-of, madds": {"mode": "best-of", "samples": 4, "scorer": count_convolutions, "budget": {"madds": 0.7}},
    }
    found = {
        f"{name}, {way}": cell_answer(optimize_cell(arch, **how))
        for (name, arch), (way, how) in itertools.product(some.items(), asked.items())
    }
    two = natpp.load("|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_1x1~1|")
    by_table = optimize_cell(two, mode="best-of", samples=5, scorer=str(table), reward="val")
    return found | {"best-of, table": cell_answer(by_table)}


def count_convolutions(archs: Sequence[Any]) -> Any:
    """A score: fewer convolutions are better."""
    import numpy as np

    return np.array([-sum("conv" in op for _, graph in arch.cells() for op in graph.ops) for arch in archs], float)


@entry("cells/networks", kept=True)
def cell_networks(folder: Path) -> Any:
    """Costs in other networks, and what is built: its outputs, and its first weights."""
    found: dict[str, Any] = {}
    for name in ("darts", "naonet", "sampled_3_0"):
        arch = CELLS[name]
        found[f"{name}, imagenet"] = cost_row(natpp.cost(arch, "imagenet:channels=16,cells=5,classes=7,size=64"))
        torch.manual_seed(0)
        network = natpp.build(arch, "cifar:channels=4,cells=3")
        images = torch.randn(2, 3, 32, 32)
        answer = outputs(network, images)
        found[f"{name}, built"] = {
            "parameters": sum(one.numel() for one in network.parameters()),
            "output": magnitude(answer),
            "bits": {"weights": weights_hash(network.state_dict()), "outputs": tensors_hash(answer)},
        }
        drawn = re.sub(r">[^<]*<", "><", natpp.draw(arch))
        found[f"{name}, drawn"] = {"bits": {"shapes": text_hash(drawn)}}
    return found


# Modules.


class Grouped(nn.Module):
    """Residual blocks with grouped convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.first, self.second = self.block(), self.block()
        self.head = nn.Linear(16, 5)

    def block(self) -> nn.Sequential:
        return nn.Sequential(
            *(nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 16, 3, padding=1, groups=4, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 16, 5, padding=2, groups=2), nn.BatchNorm2d(16)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.relu(x + self.first(x))
        return self.head(torch.relu(x + self.second(x)).mean((2, 3)))


class Sums(nn.Module):
    """Sums of several branches, one inside the other, with a convolution used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.wide, self.small = nn.Conv2d(12, 12, 5, padding=2), nn.Conv2d(12, 12, 1)
        self.twice = nn.Conv2d(12, 12, 3, padding=1)
        self.pool, self.last = nn.MaxPool2d(3, 1, 1), nn.Conv2d(12, 12, 3, padding=1)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        y = torch.relu(self.wide(x) + self.small(x) + self.pool(x))
        z = y + self.last(torch.relu(self.twice(y))) + x
        return self.head(torch.relu(self.twice(z)).mean((2, 3)))


class Depthwise(nn.Module):
    """Separable convolutions, also with stride, and inverted residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True))
        self.first, self.down, self.second = self.unit(8, 8, 1), self.unit(8, 16, 2), self.unit(16, 16, 1)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, 5))

    def unit(self, channels: int, width: int, stride: int) -> nn.Sequential:
        hidden = 3 * channels
        return nn.Sequential(
            *(nn.Conv2d(channels, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(inplace=True)),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            *(nn.BatchNorm2d(hidden), nn.ReLU6(inplace=True)),
            *(nn.Conv2d(hidden, width, 1, bias=False), nn.BatchNorm2d(width)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.down(x + self.first(x))
        return self.head(x + self.second(x))


class Concatenated(nn.Module):
    """Branches that are concatenated, twice, and pooled in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = self.branches(3), self.branches(18)
        self.pool, self.mix = nn.MaxPool2d(2), nn.Conv2d(18, 10, 3, padding=1)

    def branches(self, channels: int) -> nn.ModuleList:
        return nn.ModuleList(
            nn.Sequential(nn.Conv2d(channels, 6, side, padding=side // 2), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
            for side in (1, 3, 5)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.cat([branch(x) for branch in self.first], 1))
        x = torch.cat([branch(x) for branch in self.second], 1)
        return self.mix(x).mean((2, 3))


class TwoInputs(nn.Module):
    """Two inputs that meet, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 8, 5, padding=2), nn.Conv2d(1, 8, 3, padding=1)
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 5, 1, 2))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.relu(self.left(x)) + torch.relu(self.right(y))
        return both + self.body(both), both.mean((2, 3))


def zoo_network(name: str) -> nn.Module:
    return natpp.zoo.network(name)


SMALL = (3, 32, 32)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...], str]] = {
    "resnet20": (partial(zoo_network, "resnet20"), (SMALL,), "layer2"),
    "resnet56": (partial(zoo_network, "resnet56"), (SMALL,), "layer1"),
    "mobilenetv2": (partial(zoo_network, "mobilenetv2"), (SMALL,), "features.16"),
    "shufflenet": (partial(zoo_network, "shufflenet"), (SMALL,), "stage4.1"),
    "vgg16": (partial(zoo_network, "vgg16"), (SMALL,), "features.0"),
    "resnet18": (partial(zoo_network, "resnet18"), ((3, 64, 64),), "layer4"),
    "mobilefacenet": (partial(zoo_network, "mobilefacenet"), ((3, 112, 112),), "conv2"),
    "grouped": (Grouped, (SMALL,), "second"),
    "sums": (Sums, (SMALL,), "small"),
    "depthwise": (Depthwise, (SMALL,), "first"),
    "concatenated": (Concatenated, ((3, 16, 16),), "second"),
    "two_inputs": (TwoInputs, ((3, 16, 16), (1, 16, 16)), "left"),
}
KEPT_NETWORKS = ("resnet20", "mobilenetv2", "shufflenet", "grouped", "sums", "depthwise", "concatenated", "two_inputs")
CHANCES = {"params": 0.8, "madds": 0.8}


def made(name: str) -> tuple[nn.Module, Any, str]:
    """A network with weights of a fixed seed, an example input of two images, and a part of it."""
    make, shapes, part = NETWORKS[name]
    torch.manual_seed(0)
    module = make()
    chance = torch.Generator().manual_seed(1)
    images = tuple(torch.randn((2, *shape), generator=chance) for shape in shapes)
    return module, images if len(images) > 1 else images[0], part


def network_entry(name: str, asked: Mapping[str, Any], folder: Path) -> Any:
    module, example, part = made(name)
    how = {key: part if value == "PART" else value for key, value in asked.items()}
    return module_answer(optimize_module(module, example, **how), example)


WAYS: dict[str, dict[str, Any]] = {
    "strict": {},
    "madds 0.6": {"budget": {"madds": 0.6}},
    "shared": {"budget": {"madds": 0.6}, "share_blocks": True},
    "keep": {"keep": "PART", "budget": {"madds": 0.85}},
    "not shared": {"share_blocks": False},
    "rule": {"budget": "rule"},
    "params and madds": {"budget": CHANCES},
    "memory": {"budget": {"memory": 0.95}},
    "nat": {"rule": "nat"},
    "sample": {"mode": "sample", "seed": 3},
    "sample, madds": {"mode": "sample", "seed": 4, "budget": {"madds": 0.75}},
}
for _name, _way in itertools.product(NETWORKS, WAYS):
    if _way == "memory" and sum(math.prod(shape) for shape in NETWORKS[_name][1]) > 4000:
        continue  # it takes seconds
    _kept = _name in KEPT_NETWORKS and _way in tuple(WAYS)[:4]
    entry(f"networks/{_name}/{_way}", kept=_kept)(partial(network_entry, _name, WAYS[_way]))


@entry("networks/saved", kept=True)
def saved_networks(folder: Path) -> Any:
    """Folders that results are saved to, and what is made from them; statistics from batches; reports."""
    found = {}
    for name in ("resnet20", "mobilenetv2", "grouped", "sums", "concatenated", "two_inputs"):
        module, example, _ = made(name)
        result = optimize_module(module, example, budget={"madds": 0.7}, batches=[example] * 2)
        result.report(folder / f"{name}.html")
        found[name] = {
            "result": module_answer(result, example),
            "saved": saved_answer(result.save(folder / name), module, example),
            "page": page_answer(folder / f"{name}.html"),
        }
    return found


@entry("networks/kept by type")
def kept_by_type(folder: Path) -> Any:
    """Parts protected by their type, by several names, and marked as leaves."""
    module, example, _ = made("resnet20")
    block = type(module.get_submodule("layer1.0"))
    by_type = module_answer(optimize_module(module, example, keep=[block, "conv1"]), example)
    by_names = module_answer(optimize_module(module, example, keep=["layer1", "layer3"]), example)
    natpp.leaf(module.get_submodule("layer1"))
    return {"type": by_type, "names": by_names, "leaf": module_answer(optimize_module(module, example), example)}


# Learning.

SHORT: dict[str, Any] = {
    "nodes": (2, 3),
    "train_steps": 2,
    "batch": 64,
    "channels": 2,
    "cells": 1,
    "evaluations": 12,
    "steps": 12,
}
SUPERNET: dict[str, Any] = {
    "scorer": "supernet",
    "nodes": (2, 3),
    "epochs": 1,
    "architectures": 4,
    "batch": 8,
    "channels": 2,
    "cells": 1,
    "evaluations": 16,
    "steps": 12,
}
PAPER: dict[str, Any] = {"preset": "paper", "nodes": (2, 3), "epochs": 2, "batch": 64, "channels": 2, "cells": 1}
SEARCHES: dict[str, dict[str, Any]] = {
    "best": SHORT,
    "supernet": SUPERNET,
    "paper": PAPER,
    "nasbench201": SHORT | {"space": "nasbench201"},
    "nasbench201, supernet": SUPERNET | {"space": "nasbench201"},
    "one architecture": SHORT | {"arch": "vgg_block", "evaluations": 16},
    "one cell": SHORT | {"arch": RESNET_LIKE},
    "one architecture, supernet": SUPERNET | {"arch": "resnet_block"},
    "priced": SHORT | {"price": {"madds": 2.0, "params": 0.5}, "caution": 1.0, "budget": "rule", "seed": 1},
    "nat, extras": SHORT | {"rule": "nat", "extras": True, "random_share": 0.5, "seed": 2},
}


class Crashed(Exception):
    """Raised in the middle of a run to end it."""


def ending(moment: int, how: str) -> Callable[..., None]:
    """A watch that ends a run at the so-many-th word of it: by an error, or by a signal."""
    told = itertools.count(1)

    def watch(*_: object) -> None:
        if next(told) == moment:
            if how == "crash":
                raise Crashed
            os.kill(os.getpid(), signal.SIGTERM)

    return watch


def resumed(run: Callable[..., Any], out: Path, moment: int, how: str) -> Any:
    """A run that was ended at a moment and then resumed; whether it had to be."""
    ended = False
    try:
        run(out=out, watch=ending(moment, how))
    except (Crashed, natpp.NatppError):
        ended = True
    return ended, run(out=out, resume=True)


def policy_answer(policy: Any, folder: Path) -> Any:
    return {"ops": list(policy.ops), "policy": weights_hash(policy.state_dict()), "run": run_answer(folder)}


def search_entry(name: str, folder: Path) -> Any:
    return {"bits": policy_answer(search(**SEARCHES[name], out=folder / "run"), folder / "run")}


for _name in SEARCHES:
    entry(f"search/{_name}")(partial(search_entry, _name))


def resumed_entry(name: str, moment: int, how: str, folder: Path) -> Any:
    ended, policy = resumed(partial(search, **SEARCHES[name]), folder / "run", moment, how)
    return {"ended": ended, "bits": policy_answer(policy, folder / "run")}


for _name, _moment, _how in (
    *(("best", 3, "crash"), ("best", 8, "crash"), ("supernet", 20, "signal"), ("supernet", 42, "crash")),
    *(("paper", 9, "signal"), ("nasbench201", 14, "signal"), ("one architecture", 10, "crash")),
):
    entry(f"search/{_name}, resumed after {_moment} by {_how}")(partial(resumed_entry, _name, _moment, _how))


@entry("search/by scores", kept=True)
def search_by_scores(folder: Path) -> Any:
    """Which architectures are drawn, what short trainings say of them, and how the curves begin."""
    asked = SHORT | {"evaluations": 8, "random_share": 1.0, "steps": 1}
    policy = search(**asked, out=folder / "run")
    found = run_answer(folder / "run")
    rows = [{name: row[name] for name in ("mark", "arch", "value", "loss")} for row in found["scores"]]
    curve = [row for row in found["metrics"] if row["phase"] == "policy"]
    return {
        "scores": rows[:6],  # all drawn; the last two are choices of the policy
        "entropy": curve[0]["entropy"],
        "bits": policy_answer(policy, folder / "run"),
    }


@entry("search/then used")
def search_then_used(folder: Path) -> Any:
    """A run's policy optimizes, its supernet scores and serves as a scorer, its page is written."""
    run = folder / "run"
    search(**SUPERNET | {"nodes": (4, 5)}, out=run)
    best_of = optimize_cell("enas", policy=run, mode="best-of", samples=3, scorer=run)
    again = search(None, scorer=run, nodes=(4,), evaluations=10, steps=3)
    one = folder / "one"
    search(**SEARCHES["one architecture"], out=one)
    command("report", str(run), "-o", str(folder / "run.html"))
    command("report", str(one), "-o", str(folder / "one.html"))
    table = {"scorer": str(made_up_table(folder, 3)), "reward": "val", "space": "nasbench201"}
    tables = [search(None, **table, steps=10), search(None, **table, steps=5, evaluations=20, budget="rule")]
    return {
        "optimized": cell_answer(optimize_cell("enas", policy=run)),
        "best-of": cell_answer(best_of),
        "scores": [outcome_answer(one) for one in score(["darts", natpp.sample(nodes=4), "enas"], None, scorer=run)],
        "policies": [weights_hash(policy.state_dict()) for policy in (again, *tables)],
        "pages": [page_answer(folder / "run.html")["bits"]["seen"], page_answer(folder / "one.html")["bits"]["seen"]],
    }


@entry("score", kept=True)
def scores(folder: Path) -> Any:
    """Short trainings, and the file that they are kept in."""
    store = folder / "scores.jsonl"
    archs = ["darts", "vgg_block", RESNET_LIKE, "natpp_darts"]
    found = score(archs, store=store, train_steps=3, channels=4, cells=2)
    again = score(archs[:2], store=store, train_steps=3, channels=4, cells=2)
    other = score([natpp.sample(seed=3)], train_steps=2, channels=4, cells=2, seed=5)
    kept = [json.loads(line) for line in store.read_text().splitlines()]
    return {
        "outcomes": [outcome_answer(one) for one in (*found, *other)],
        "again": [outcome_answer(one) for one in again],
        "kept": [{"mark": row["mark"], "arch": row["arch"], "value": row["value"]} for row in kept],
    }


@entry("learned/short")
def learned_short(folder: Path) -> Any:
    """The policy tuned on a module by short fine-tunings."""
    module, example, part = made("resnet20")
    asked = {"train": "digits", "train_steps": 2, "evaluations": 6}
    cut = optimize_module(module, example, **asked, budget={"madds": 0.6})
    kept = optimize_module(module, example, **asked, keep=part, seed=1)
    cut.report(folder / "page.html")
    return {
        "madds": learned_answer(cut, example),
        "keep": learned_answer(kept, example),
        "saved": {"bits": saved_answer(cut.save(folder / "saved"), module, example)},
        "page": page_answer(folder / "page.html"),
    }


@entry("learned/first scores", kept=True)
def learned_first(folder: Path) -> Any:
    """The score of a small module as it is, and of its first candidate."""
    module, example, _ = made("grouped")
    return learned_answer(
        optimize_module(module, example, **stripes_twice(), train_steps=2, evaluations=2, budget={"madds": 0.7}),
        example,
    )


@entry("learned/supernet")
def learned_supernet(folder: Path) -> Any:
    """The same by a supernet made of the module."""
    module, example, _ = made("resnet20")
    asked = {"train": "digits", "train_steps": 2, "evaluations": 6, "scorer": "supernet"}
    small, small_example, _ = made("depthwise")
    return {
        "madds": learned_answer(optimize_module(module, example, **asked, budget={"madds": 0.6}), example),
        "loader": learned_answer(
            optimize_module(
                small, small_example, **stripes_twice(), scorer="supernet", evaluations=5, train_steps=2, seed=2
            ),
            small_example,
        ),
    }


def stripes_twice() -> dict[str, Any]:
    """Batches to learn from and to choose by."""
    return {"train": stripes(6, 0), "val": stripes(2, 1)}


def stripes(batches: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Batches of two kinds of stripes in noise, of 32 pixels a side."""
    chance = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(batches):
        images, labels = torch.randn(16, 3, 32, 32, generator=chance), torch.arange(16) % 2
        images[labels == 0, :, ::2] += 1.5
        images[labels == 1, :, :, ::2] += 1.5
        found.append((images, labels))
    return found


def trained_answer(found: Any, folder: Path) -> Any:
    return {
        "loss": found.curve[0]["loss"],
        "bits": {
            "curve": untimed(found.curve),
            "test_accuracy": found.test_accuracy,
            "weights": weights_hash(found.module.state_dict()),
            "run": run_answer(folder),
        },
    }


TRAINING = {"epochs": 2, "batch": 128, "channels": 4, "cells": 2}


@entry("train", kept=True)
def trainings(folder: Path) -> Any:
    """Trainings from scratch."""
    plain = train("vgg_block", **TRAINING | {"epochs": 1}, out=folder / "plain")
    return {"plain": trained_answer(plain, folder / "plain")}


@entry("train/ways")
def training_ways(folder: Path) -> Any:
    """Trainings with an average of weights and images set aside, also resumed; one of a single cell."""
    asked = TRAINING | {"epochs": 3, "ema": 0.9, "validation": 100, "learning_rate": 0.05, "seed": 3}
    more = train("darts", **asked, out=folder / "more")
    found = {"more": trained_answer(more, folder / "more")}
    cell = train(RESNET_LIKE, **TRAINING | {"cells": 1}, out=folder / "cell")
    found["cell"] = trained_answer(cell, folder / "cell")
    for moment, how in ((1, "crash"), (1, "signal"), (2, "crash")):
        out = folder / f"{moment} {how}"
        ended, again = resumed(partial(train, "darts", **asked), out, moment, how)
        found[f"resumed after {moment} by {how}"] = {"ended": ended, **trained_answer(again, out)}
    return found


def tuned_answer(found: Any, example: Any, folder: Path | None = None) -> Any:
    return {
        "loss": found.curve[0]["loss"],
        "bits": {
            "curve": untimed(found.curve),
            "weights": weights_hash(found.module.state_dict()),
            "outputs": tensors_hash(outputs(found.module, example)),
            "run": None if folder is None else run_answer(folder),
        },
    }


@entry("finetune", kept=True)
def tunings(folder: Path) -> Any:
    """Fine-tuning of a result with the original as teacher."""
    module, example, _ = made("grouped")
    result = optimize_module(module, example, budget={"madds": 0.7})
    asked = {"epochs": 1, "teacher": module, "ema": 0.5, "seed": 1}
    return tuned_answer(finetune(result, stripes(3, 0), stripes(1, 1), **asked), example)


@entry("finetune/ways")
def tuning_ways(folder: Path) -> Any:
    """Fine-tuning on digits, saved and restored, resumed, and by a loss of one's own."""
    module, example, _ = made("resnet20")
    result = optimize_module(module, example, budget={"madds": 0.6})
    by_name = finetune(result, "digits", epochs=2, teacher=module, label_smoothing=0.1, out=folder / "run")
    by_name.report(folder / "page.html")
    by_loss = finetune(module, stripes(4, 0), epochs=2, loss=squared, learning_rate=0.01, clip=1.0)
    ended, again = resumed(partial(finetune, result, "digits", epochs=2, ema=0.9), folder / "again", 1, "signal")
    return {
        "digits": tuned_answer(by_name, example, folder / "run"),
        "saved": {"bits": saved_answer(by_name.save(folder / "saved"), module, example)},
        "page": page_answer(folder / "page.html"),
        "loss": tuned_answer(by_loss, example),
        "resumed": {"ended": ended, **tuned_answer(again, example, folder / "again")},
    }


def squared(output: Tensor, target: Tensor) -> Tensor:
    """A loss of one's own."""
    return (output - nn.functional.one_hot(target, output.shape[1])).square().mean()


# Methods on a made-up table.

TABLE_OPS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")


def made_up_table(folder: Path, nodes: int = 2) -> Path:
    """All cells of NAS-Bench-201 with so many nodes after the input (125 with two), with made-up accuracies."""
    rows = ["arch,val,test"]
    for ops in itertools.product(range(5), repeat=nodes * (nodes + 1) // 2):
        value = 50 + sum((1.5, 0.7, 1.1)[i % 3] * op for i, op in enumerate(ops))
        value += sum((7, 3, 11, 5)[i % 4] * op for i, op in enumerate(ops)) % 13 * 0.6
        left = iter(ops)
        texts = (
            "|".join(f"{TABLE_OPS[next(left)]}~{source}" for source in range(node)) for node in range(1, nodes + 1)
        )
        rows.append(f"{'+'.join(f'|{text}|' for text in texts)},{value:.4f},{value + sum(ops) % 5 * 0.3:.4f}")
    file = folder / f"table_{nodes}.csv"
    file.write_text("\n".join(rows) + "\n")
    return file


def benchmark(folder: Path, methods: str, *more: str) -> Any:
    columns = ("--reward", "val", "--score", "test", "--holdout", "25")
    found = command_json(
        "benchmark", "nasbench201", "--table", str(made_up_table(folder)), *columns, "--method", methods, *more
    )
    for row in found["methods"].values():
        if row is not None:
            del row["seconds"]
    return found


@entry("benchmark/simple", kept=True)
def benchmark_simple(folder: Path) -> Any:
    """Methods that learn little or nothing."""
    methods = "constant,random,random-best-of-10,evolution"
    return {
        "rule": benchmark(folder, methods, "--seeds", "2"),
        "strict": benchmark(folder, methods, "--seeds", "2", "--budget", "strict", "--split-seed", "1"),
        "nat": benchmark(folder, methods, "--seeds", "1", "--rule", "nat"),
    }


@entry("benchmark/few scores")
def benchmark_few(folder: Path) -> Any:
    """Methods that are told few scores, the others being predicted."""
    return {"bits": benchmark(folder, "constant,random-best-of-10,evolution", "--evaluations", "20", "--seeds", "2")}


@entry("benchmark/policies")
def benchmark_policies(folder: Path) -> Any:
    """Methods that learn a policy."""
    return {
        "both": {"bits": benchmark(folder, "nat++,nat", "--seeds", "1")},
        "strict": {"bits": benchmark(folder, "nat++", "--seeds", "1", "--budget", "strict", "--evaluations", "25")},
        "paper": {"bits": benchmark(folder, "nat++", "--seeds", "1", "--preset", "paper")},
    }


# The command line.


@entry("command/zoo", kept=True)
def command_zoo(folder: Path) -> Any:
    """What is there by name, and what it costs."""
    names = ("params", "madds", "live_params", "live_madds", "peak_memory_bytes", "input_shape", "outputs", "kind")
    return {
        name: {key: row[key] for key in names if key in row} | {"published": len(row["published"])}
        for name, row in command_json("zoo").items()
    }


@entry("command/transitions", kept=True)
def command_transitions(folder: Path) -> Any:
    """What operations may become, and what they cost."""
    places = {"usual": (), "strided": ("--channels", "16", "--stride", "2", "--size", "9")}
    return {
        f"{rule}, {name}": command_json("transitions", "--rule", rule, *place)
        for rule, (name, place) in itertools.product(("nat", "nat++", "cost"), places.items())
    }


@entry("command/architectures", kept=True)
def command_architectures(folder: Path) -> Any:
    """Costs, forms, nodes and draws of architectures."""
    network = ("--network", "imagenet", "--channels", "8", "--cells", "4", "--classes", "9", "--size", "64")
    shown = command_json("show", "natpp_darts", "--against", "darts")
    return {
        "cost": [command_json("cost", *words) for words in (("darts",), ("enas", *network), (RESNET_LIKE,))],
        "cost of nasbench201": command_json("cost", RESNET_LIKE, "--network", "nasbench201"),
        "convert": {
            **{name: command_json("convert", name, "--to", "json")["text"] for name in ("darts", "naonet", BUSY)},
            **{f"{name}, genotype": command_json("convert", name, "--to", "genotype")["text"] for name in ("nasnet",)},
            "nasbench201": command_json("convert", BUSY, "--to", "nasbench201")["text"],
        },
        "show": shown | {"changes": [edge_change(one) for one in shown["changes"]]},
        "sample": command_json("sample", "--nodes", "5", "--seed", "7", "--count", "3"),
        "sampled": command("sample", "--seed", "1").strip(),
    }


@entry("command/optimize", kept=True)
def command_optimize(folder: Path) -> Any:
    """Architectures and networks of the zoo, with the files that are written."""
    cell, saved = folder / "cell.json", folder / "saved"
    flags = ("--budget", "madds=0.6,params=0.9", "--keep", "layer3,conv1", "--classes", "7", "--seed", "3")
    found = {
        "darts": cell_json_answer(command_json("optimize", "darts", "--out", str(cell))),
        "imagenet": cell_json_answer(
            command_json("optimize", "naonet", "--network", "imagenet", "--budget", "madds=0.7,params=0.8")
        ),
        "sampled": cell_json_answer(
            command_json("optimize", BUSY, "--method", "nat++:mode=sample", "--seed", "4", "--budget", "rule")
        ),
        "resnet20": module_json_answer(command_json("optimize", "resnet20", *flags, "--out", str(saved))),
    }
    command("optimize", "naonet", "--report", str(folder / "page.html"))
    command("report", str(saved), "-o", str(folder / "saved.html"))
    pages = [page_answer(folder / name) for name in ("page.html", "saved.html")]
    return found | {
        "file": arch_plan(natpp.load(cell)),
        "cost": cost_row(command_json("cost", "resnet20", "--classes", "7")),
        "pages": pages,
        "bits": {"tensors": {file.name: file_hash(file) for file in sorted(saved.glob("*.safetensors"))}},
    }


@entry("command/learning")
def command_learning(folder: Path) -> Any:
    """Runs by the command line, and a model from a file of one's own."""
    small = ("--channels", "2", "--cells", "1")
    run, scratch, model = folder / "run", folder / "train", folder / "golden_model.py"
    words = ("--nodes", "2,3", "--train-steps", "2", "--batch", "64", "--evaluations", "8", "--steps", "4", *small)
    searched = command_json("search", "--task", "digits", "--out", str(run), *words, "--device", "cpu")
    scored = command_json("score", "darts", "enas", "--task", "digits", "--train-steps", "2", *small)
    trained = command_json("train", "darts", "--task", "digits", "--out", str(scratch), "--epochs", "1", *small)
    model.write_text(
        "from torch import nn\n\n\ndef make():\n"
        "    return nn.Sequential(nn.Conv2d(3, 8, 5, padding=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))\n"
    )
    own = command_json("optimize", f"{model}:make", "--input", "1,3,16,16", "--budget", "madds=0.8")
    process = subprocess.run(
        [sys.executable, "-m", "natpp", "optimize", "enas", "--json"], capture_output=True, text=True, check=True
    )
    return {
        "search": {"choices": searched["choices"], "run": run_answer(run)},
        "score": [outcome_answer(row) for row in scored],
        "train": {"accuracy": trained["test_accuracy"], "curve": untimed(trained["curve"]), "run": run_answer(scratch)},
        "own": module_json_answer(own),
        "process": cell_json_answer(json.loads(process.stdout)),
    }


# ---------------------------------------------------------------------------------------------------------------------
# The two forms of a record, and how they are compared.
# ---------------------------------------------------------------------------------------------------------------------


def answer(name: str) -> Any:
    """An entry made now, as plain JSON data."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        return json.loads(json.dumps(ENTRIES[name](Path(folder))))


def kept_form(value: Any) -> Any:
    """An answer without its bits, its figures to six digits."""
    if isinstance(value, dict):
        return {name: kept_form(one) for name, one in value.items() if name != "bits"}
    if isinstance(value, list):
        return [kept_form(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def differences(before: Any, after: Any, where: str = "", *, tolerance: float = 0.0) -> Iterator[str]:
    """Where two answers differ, a line each; figures may differ by a relative tolerance, and a tenth of it besides."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            if name in before and name in after:
                yield from differences(before[name], after[name], f"{where}.{name}", tolerance=tolerance)
            else:
                yield f"{where}.{name}: only {'before' if name in before else 'after'}"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{where}[{index}]", tolerance=tolerance)
    elif tolerance and isinstance(before, float) and isinstance(after, int | float) and not isinstance(after, bool):
        if not math.isclose(before, after, rel_tol=tolerance, abs_tol=tolerance / 10):
            yield f"{where}: {before!r} → {after!r}"
    elif json.dumps(before) != json.dumps(after):  # NaN is equal to itself there
        yield f"{where}: {json.dumps(before)[:200]} → {json.dumps(after)[:200]}"


def write(file: Path, record: Mapping[str, Any]) -> None:
    """A record as JSON, a line an entry."""
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in record.items())
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main() -> int:
    """Records or compares; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, help="file to write the full record to")
    parser.add_argument("--keep", action="store_true", help="rewrite kept.json")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"), help="compare two full records")
    parser.add_argument("--only", default="", metavar="PATTERN", help="record only entries whose names match")
    asked = parser.parse_args()
    if asked.compare:
        found = list(differences(*(json.loads(file.read_text(encoding="utf-8")) for file in asked.compare)))
        print("\n".join(found) if found else "no difference")
        return 1 if found else 0
    if asked.keep == (asked.file is not None):
        parser.error("give either FILE, --keep or --compare A B")
    if os.environ.get("OMP_NUM_THREADS") != "1":
        parser.error("set OMP_NUM_THREADS=1: sums over several threads are rounded otherwise")
    torch.set_num_threads(1)
    print(f"recording {natpp.__file__}", file=sys.stderr)
    record, failed = {}, 0
    for name in [name for name in ENTRIES if re.search(asked.only, name) and (not asked.keep or name in KEPT)]:
        begin = time.perf_counter()
        try:
            record[name] = kept_form(answer(name)) if asked.keep else answer(name)
        except Exception as error:  # the others are recorded all the same
            traceback.print_exc()
            record[name], failed = {"raised": type(error).__name__}, failed + 1
        print(f"{time.perf_counter() - begin:7.2f} s  {name}", file=sys.stderr, flush=True)
    if asked.keep and failed:
        return 1
    write(KEPT_FILE if asked.keep else asked.file, record)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
