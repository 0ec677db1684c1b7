"""What a folder of runs has learned: the schedule that was picked, and policies with their value model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.lib import values
from experiments.lib.answers import Knowledge, fitted_constant, map_from_json
from experiments.lib.schedules import LOSSES, SCHEDULES, Known, Pick, loss_of, stem_of
from experiments.lib.settings import RESULTS, Keeps
from experiments.lib.trainer import arch_of, read_trained
from natpp import policies as shipped
from natpp.arch.space import CellSpace
from natpp.nets.policy import Policy
from natpp.registry import OPS
from natpp.scorers.predicted import PredictConfig, Prediction
from natpp.subjects.cells import Frame, cells_of
from natpp.subjects.many import Subjects

MOST_SECONDS = 3.5  # per short training on a GPU, for a schedule to be picked
NAMES = {"nat++": "{}", "nat": "{}_nat"}  # of shipped policies, by rule
NAME = "cifar10"  # the default policy
FILES = {"nat++": "policy_{}_natpp.safetensors", "nat": "policy_{}_nat.safetensors"}  # by round, in a folder of runs
TOLD = "policies_{}.json"  # description of the policies of a round


def tried(runs: Path) -> dict[str, dict[str, Any]]:
    """How well each schedule agrees with longer trainings, over the cells that are not set aside."""
    dear, came_from = values.dear_scores(runs), values.parents()
    found: dict[str, dict[str, Any]] = {}
    for name in SCHEDULES:
        said, kept = read_trained(runs / f"{stem_of(name)}.json")
        rows = {
            key: row for row in kept.values() if row["value"] is not None and (key := arch_of(row).essence()) in dear
        }
        if not rows:
            continue
        truth = [dear[arch] for arch in rows]
        pairs = values.pairs_among(list(rows), came_from)
        found[name] = {
            losses: values.agreement(
                [-loss_of(row, share) for row in rows.values()], truth, values.live_madds(list(rows)), pairs
            )
            for losses, share in LOSSES.items()
        }
        found[name] |= {
            "trained": len(rows),
            "seconds_each": float(np.mean([row["seconds"] for row in rows.values()])),
            "mean_accuracy": float(np.mean([row["accuracy"] for row in rows.values()])),
            "recipe": said["recipe"],
            "machine": said["machine"],
        }
    return found


def picked(runs: Path) -> Pick:
    """The schedule and losses with the best agreement among schedules that are quick enough."""
    found = {name: one for name, one in tried(runs).items() if one["seconds_each"] <= MOST_SECONDS} or tried(runs)
    if not found:
        raise SystemExit("there is no schedule to pick: run train and schedules first, with the same folder")
    each = {f"{name}\n{losses}": one[losses] for name, one in found.items() for losses in LOSSES}
    name, losses = values.best_of(each).split("\n")
    return Pick(name, losses)


def pick_of_search(runs: Path) -> Pick:
    """The schedule and losses of searches: those picked for the first one."""
    files = sorted(runs.glob("search_[0-9]*.json"))
    return Pick(**json.loads(files[0].read_text())["pick"]) if files else picked(runs)


def learned_in(runs: Path, number: int | None = None) -> tuple[dict[str, Any], dict[str, Path]]:
    """The description of the policies of a round, by default the last of a folder, and their files by rule.

    A folder that has scores but no policies of the round gets the shipped ones.
    """
    learned = sorted(int(file.stem[-1]) for file in runs.glob(TOLD.format("[0-9]")))
    number = learned[-1] if number is None and learned else number
    if number in learned:
        told, files = runs / TOLD.format(number), {rule: runs / name.format(number) for rule, name in FILES.items()}
        said: dict[str, Any] = json.loads(told.read_text())
    else:
        told = RESULTS / "ship_policies.json"
        ships = json.loads(told.read_text())
        whose = next((name for name, one in ships.items() if one["round"] == number), NAME)
        files = {rule: shipped.FOLDER / f"{name.format(whose)}.safetensors" for rule, name in NAMES.items()}
        said = ships[whose]
    if not (runs / "longer.json").exists() or number not in (None, said["round"]):
        raise SystemExit("there are no policies yet: run ship_policies learn first, with the same folder and round")
    hashes = {rule: one["sha256"] for rule, one in said["policies"].items()}
    if hashes != {rule: hash_of(file) for rule, file in files.items() if file.exists()} or set(hashes) != set(FILES):
        raise SystemExit(f"the policies do not all match {told.name}: run ship_policies learn for both rules")
    return said, files


def hash_of(file: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def mark_of(runs: Path, number: int | None = None) -> str:
    """A hash of the policies of a round, by default the last, with their fixed map and value model."""
    said, files = learned_in(runs, number)
    whole = [*map(hash_of, files.values()), said["constant"], said["model"], said["cheap_scores"], said["dear_scores"]]
    whole += [said["loss_scores"]] if said.get("loss_scores") else []
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]


def knowledge(runs: Path, number: int | None = None) -> Knowledge:
    """The policies and fixed map of a round, by default the last, and the value model that they learned on."""
    said, files = learned_in(runs, number)
    cheap, dear, losses, model = learned_from(runs, number)
    prediction = values.value_model(cheap, dear, model, losses=losses, config=PredictConfig(caution=said["caution"]))
    policies = {rule: Policy.load(file) for rule, file in files.items()}
    return Knowledge(policies, map_from_json(said["constant"]), prediction, frozenset(cheap | dear | losses))


def learned_from(runs: Path, number: int | None = None) -> tuple[Known, Known, Known, str]:
    """Cheap scores, dear scores, losses and value model that the policies of a round learned from."""
    said, _ = learned_in(runs, number)
    cheap = values.cheap_scores(runs, Pick(**said["pick"]))
    losses = values.loss_scores(runs, said["round"]) if said.get("loss_scores") else {}
    dear = values.dear_scores(runs, said["round"])
    if [len(cheap), len(dear), len(losses)] != [said["cheap_scores"], said["dear_scores"], said.get("loss_scores", 0)]:
        raise SystemExit(f"the folder has other trainings than the policies of round {said['round']} learned from")
    return cheap, dear, losses, said["model"]


def known_in(settings: Keeps, number: int | None = None) -> Knowledge:
    """What ship_policies learned in a round, by default the last; the small form has a stand-in for it."""
    if unlearned(settings):
        return learned_nothing()
    return knowledge(settings.runs, None if settings.smoke else number)


def mark_in(settings: Keeps, number: int | None = None) -> str:
    """A mark of these policies."""
    return "" if unlearned(settings) else mark_of(settings.runs, None if settings.smoke else number)


def unlearned(settings: Keeps) -> bool:
    """Whether the small form runs in a folder without policies."""
    return bool(settings.smoke) and not any(settings.runs.glob("policies_[0-9].json"))


def learned_nothing() -> Knowledge:
    """Policies with fresh weights and a score that counts convolutions, for the small form."""
    archs = CellSpace().draw(12, np.random.default_rng(0))
    counted = [float(sum("conv" in op for _, graph in arch.cells() for op in graph.ops)) for arch in archs]
    prediction = Prediction(archs, np.array(counted), PredictConfig(caution=1.0))
    subjects = Subjects(cells_of(archs[:3], Frame("nat++", values.WHERE), tuple(OPS)))
    constant = fitted_constant(subjects, prediction)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        policies = {rule: Policy().eval() for rule in ("nat", "nat++")}
    return Knowledge(policies, constant, prediction, frozenset(arch.essence() for arch in archs))
