"""A trained ResNet-20 cut to 0.6 of its multiply-adds and fine-tuned for a fifth of its epochs.

Needs: CIFAR-10 and a GPU, 10 minutes; with --digits a CPU, minutes

Pieces, for each seed: `original` (40 epochs from scratch), `learned` (a policy learned on the network and its data,
fine-tuned), `policy` (the shipped policy, no data), `random` (a transformation drawn uniformly), `scratch` (the learned
architecture with fresh weights, trained for the epochs of a fine-tuning), `long` (the same for 40 epochs, one seed) and
`agreement` (both scorers against full fine-tunings of random transformations; one seed of CIFAR-10, all of digits).
5,000 training images are set aside for choices; the test images are read once for each network. Each finished piece is
kept, and the results are written from all of them. `--digits` writes `results/resnet20_digits.json`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import natpp
from experiments.lib.machine import machine
from experiments.lib.modules import fresh, images_of, no_opinion, trained
from experiments.lib.settings import RESULTS, Experiment, Images, Keeps, write_results
from natpp.arch.decisions import Decisions
from natpp.core import decision
from natpp.core.budget import Budget
from natpp.core.result import Result
from natpp.decisions.edits import block_edits
from natpp.fx.blocks import find_blocks
from natpp.fx.rewrite import rewrite
from natpp.fx.trace import trace
from natpp.methods.candidates import Candidates, View
from natpp.methods.policy import PolicyMethod
from natpp.methods.tuned import Tuned
from natpp.policies import default, load_named
from natpp.runs.fabric import make_fabric
from natpp.scorers.module_supernet import Expanded
from natpp.scorers.short import ShortTunings
from natpp.seeds import Use, number
from natpp.subjects.many import Subjects
from natpp.subjects.module import Module
from natpp.subjects.rows import perturbed
from natpp.training.losses import cross_entropy
from natpp.training.recalibrate import recalibrate
from natpp.training.recipe import Recipe, ShortConfig
from natpp.training.task import Task
from natpp.training.together import Trial

BUDGET = {"madds": 0.6}
PIECES = ("original", "learned", "policy", "random", "scratch", "long", "agreement")
ONCE = {"cifar10": ("long", "agreement"), "digits": ("long",)}  # pieces with the first seed only


@dataclass(frozen=True)
class Plan:
    """The settings of all pieces."""

    data: str = "cifar10"
    epochs: int = 40
    """epochs of the original"""
    tuned_epochs: int = 8
    """epochs of a fine-tuning: a fifth"""
    batch: int = 128
    learning_rate: float = 0.1
    tuned_learning_rate: float = 0.02
    taught: bool = True
    """whether fine-tunings also learn from the original, as a teacher"""
    weight_decay: float = 5e-4
    validation: int = 5000
    tune: Tuned = Tuned(evaluations=96, finalists=8, longer=5)
    schedule: ShortConfig = ShortConfig(steps=100, learning_rate=0.02, clip=5.0, together=16, augment=True)
    compared: int = 20
    """number of random transformations that scorers are compared on"""
    compared_epochs: int = 4
    """epochs of their full fine-tunings"""


DIGITS = Plan(
    data="digits",
    epochs=10,
    tuned_epochs=2,
    batch=64,
    validation=360,
    tune=Tuned(),
    schedule=ShortConfig(steps=32, batch=64, learning_rate=0.02, clip=5.0, augment=True),
)
SMOKE = Plan(
    data="digits",
    epochs=2,
    tuned_epochs=1,
    batch=64,
    validation=300,
    tune=Tuned(evaluations=3, rounds=1),
    schedule=ShortConfig(steps=2, batch=32, learning_rate=0.02, clip=5.0),
    compared=3,
    compared_epochs=1,
)


@dataclass(frozen=True, kw_only=True)
class Resnet20(Keeps, Images):
    out: Path = RESULTS / "resnet20.json"
    only: tuple[Literal["original", "learned", "policy", "random", "scratch", "long", "agreement"], ...] = PIECES
    """pieces to run"""
    seeds: tuple[int, ...] = (0, 1, 2)
    """seeds of the pieces"""
    digits: bool = False
    """on digits: minutes on a CPU"""

    @property
    def plan(self) -> Plan:
        """The settings of all pieces."""
        return SMOKE if self.smoke else DIGITS if self.digits else Plan()


class Pieces:
    """Images, device and settings that all pieces share."""

    def __init__(self, settings: Resnet20):
        self.plan, self.runs = settings.plan, settings.runs
        self.fabric = make_fabric()
        self.images = images_of(self.plan.data, settings.root, self.fabric.device, self.plan.validation)
        self.example = torch.zeros(1, 3, self.images.size, self.images.size)

    # Networks.

    def trained(
        self, module: nn.Module, epochs: int, learning_rate: float, seed: int, *, teacher: nn.Module | None = None
    ) -> dict[str, Any]:
        """Train a module in place; the result describes the training."""
        plan = self.plan
        recipe = Recipe(
            epochs=epochs,
            batch=plan.batch,
            learning_rate=learning_rate,
            nesterov=True,
            weight_decay=plan.weight_decay,
            cutout=0,
        )
        return trained(module, self.images, recipe, self.fabric, seed, teacher=teacher)

    def original(self, seed: int) -> nn.Module:
        """The trained network, on the CPU."""
        network = natpp.zoo.network("resnet20", classes=self.images.classes)
        network.load_state_dict(load_file(self.runs / f"original_{seed}.safetensors"))
        return network.eval()

    def result_of(self, ops: list[list[str]], seed: int) -> nn.Module:
        """The original with other operations, inherited weights and recomputed batch norm statistics."""
        traced = trace(self.original(seed), self.example)
        made = rewrite(traced, block_edits(find_blocks(traced), ops)).to(self.fabric.device)
        recalibrate(made, [self.images.take(np.arange(128) + 128 * place)[0] for place in range(8)])
        return made.cpu()

    def tuned(self, module: nn.Module, seed: int) -> dict[str, Any]:
        """Fine-tune a module in place."""
        teacher = self.original(seed) if self.plan.taught else None
        return self.trained(module, self.plan.tuned_epochs, self.plan.tuned_learning_rate, seed, teacher=teacher)

    def trial(self, seed: int) -> Trial:
        """Short fine-tunings of candidates."""
        return Trial(self.images, self.plan.schedule, self.fabric.device, seed, cross_entropy)

    # Pieces.

    def run_original(self, seed: int) -> dict[str, Any]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number(seed, Use.START, 2))
            network = natpp.zoo.network("resnet20", classes=self.images.classes)
        found = self.trained(network, self.plan.epochs, self.plan.learning_rate, seed)
        weights = {name: tensor.cpu().contiguous() for name, tensor in network.state_dict().items()}
        save_file(weights, self.runs / f"original_{seed}.safetensors")
        return found

    def run_learned(self, seed: int) -> dict[str, Any]:
        device, start = self.fabric.device, time.perf_counter()
        result = natpp.optimize(
            self.original(seed).to(device),
            self.plan.tune,
            BUDGET,
            example_input=self.example.to(device),
            task=Task(self.images),
            scorer=ShortTunings(self.trial(seed)),
            run=natpp.Run(seed=seed),
        )
        spent = time.perf_counter() - start
        scores = [one.score for one in result.learned.scored] if result.learned is not None else []
        found = {"policy": default(), "learning_seconds": spent, "scores": scores, **self._described(result)}
        return found | self.tuned(result.module.cpu(), seed)

    def run_policy(self, seed: int) -> dict[str, Any]:
        result = natpp.optimize(self.original(seed), budget=BUDGET, example_input=self.example)
        found = {"policy": default(), **self._described(result)}
        return found | self.tuned(self.result_of(_ops(result), seed), seed)

    def run_random(self, seed: int) -> dict[str, Any]:
        method, run = PolicyMethod(mode="sample", learned=no_opinion()), natpp.Run(seed=seed)
        result = natpp.optimize(self.original(seed), method, BUDGET, example_input=self.example, run=run)
        return self._described(result) | self.tuned(self.result_of(_ops(result), seed), seed)

    def run_scratch(self, seed: int, *, epochs: int | None = None) -> dict[str, Any]:
        kept = json.loads((self.runs / f"learned_{seed}.json").read_text())
        module = fresh(self.result_of(kept["ops"], seed), seed)
        return self.trained(module, epochs or self.plan.tuned_epochs, self.plan.learning_rate, seed)

    def run_long(self, seed: int) -> dict[str, Any]:
        return self.run_scratch(seed, epochs=self.plan.epochs)

    def run_agreement(self, seed: int) -> dict[str, Any]:
        """Random transformations: fully fine-tuned, and scored in both ways with the same number of steps."""
        plan, device = self.plan, self.fabric.device
        network = self.original(seed).to(device)
        policy = load_named()
        module = Module(trace(network, self.example.to(device)), Decisions(columns=policy.ops))
        view = View(Subjects([module], Budget(BUDGET)), policy)
        candidates = Candidates(view, view.limits)
        flat = np.where(module.mask, 0.0, -1e9)

        def draw(*numbers: int) -> decision.Plan:
            chance = np.random.default_rng([seed, *numbers])
            return candidates.drawn(perturbed(flat if numbers[-1] % 2 else view.table, chance, 3.0))

        some = [draw(0, place) for place in range(plan.compared)]
        found: dict[str, Any] = {}
        seconds: dict[str, float] = {}
        scorers: dict[str, Callable[[], list[float]]] = {
            "short": lambda: ShortTunings(self.trial(seed)).tuned([module.candidate(one) for one in some]),
            "supernet": lambda: self._supernet(module, self.trial(seed), some, draw),
        }
        for name, scored in scorers.items():
            start = time.perf_counter()
            found[name] = scored()
            seconds[name] = time.perf_counter() - start
        found["madds"] = [candidates.madds(plan) for plan in some]
        found["full"], found["accuracy"] = [], []
        for one in some:
            curve = self.trained(module.rewritten(one).cpu(), plan.compared_epochs, plan.tuned_learning_rate, seed)[
                "curve"
            ]
            found["full"].append(-curve[-1]["validation_loss"])
            found["accuracy"].append(curve[-1]["validation_accuracy"])
        agrees = {name: spearman(found[name], found["full"]) for name in ("short", "supernet", "madds")}
        return {"scores": found, "spearman": agrees, "seconds": seconds}

    def _supernet(
        self, module: Module, trial: Trial, some: list[decision.Plan], draw: Callable[..., decision.Plan]
    ) -> list[float]:
        expanded = Expanded(module, trial, lambda step: draw(1, step))
        expanded.train(expanded.draw, self.plan.schedule.steps * len(some))
        return expanded.tuned([module.candidate(one) for one in some])

    @staticmethod
    def _described(result: Result) -> dict[str, Any]:
        before, after = result.cost_before, result.cost_after
        return {
            "ops": _ops(result),
            "changes": [[change.name, change.before, change.after] for change in result.changes],
            "share_of_madds": after.madds / before.madds,
            "share_of_params": after.params / before.params,
        }


def spearman(one: list[float], other: list[float]) -> float:
    """Rank correlation."""
    ranks = [np.argsort(np.argsort(values, kind="stable")) for values in (one, other)]
    return float(np.corrcoef(*ranks)[0, 1])


def _ops(result: Result) -> list[list[str]]:
    """Per block, the operations of a result."""
    return [list(row) for row in result.subject.block_ops(result.plan)]


def gather(runs: Path, plan: Plan) -> dict[str, Any]:
    """All finished pieces."""
    pieces: dict[str, Any] = {}
    for piece in PIECES:
        files = sorted(runs.glob(f"{piece}_*.json"))
        if files:
            pieces[piece] = [json.loads(file.read_text()) for file in files]
    machines = [one["machine"] for some in pieces.values() for one in some]
    return {"plan": asdict(plan), "machine": machines[0] if machines else machine(), "pieces": pieces}


def measure(settings: Resnet20) -> None:
    """Run the pieces that are missing and write the results."""
    plan, pieces = settings.plan, None
    for piece in (piece for piece in PIECES if piece in settings.only):
        for seed in settings.seeds[:1] if piece in ONCE[plan.data] else settings.seeds:
            file = settings.runs / f"{piece}_{seed}.json"
            if file.exists():
                continue
            pieces = pieces or Pieces(settings)
            start = time.perf_counter()
            found = {"seed": seed, **getattr(pieces, f"run_{piece}")(seed), "machine": machine()}
            write_results(file, found)
            said = (
                f"{found['test_accuracy']:.2f} % on the test images" if "test_accuracy" in found else found["spearman"]
            )
            print(f"{piece} {seed}: {said}, {time.perf_counter() - start:.0f} s", flush=True)
    digits = settings.digits and settings.out == Resnet20.out
    write_results(settings.out.with_stem("resnet20_digits") if digits else settings.out, gather(settings.runs, plan))


EXPERIMENT = Experiment(Resnet20, (measure,))
