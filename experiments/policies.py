"""The policies that ship: `nat` and `nat++`, learned on every score at hand that is not set aside.

    python experiments/policies.py learn --runs FOLDER [--round 2] [--only nat++]
    python experiments/policies.py ship --runs FOLDER
    python experiments/policies.py ship --runs FOLDER --round 4 --name cifar10_accurate

The first needs no GPU: it fits the value model on the short trainings of `truth_cells.py search` and `schedules` and on
the longer trainings of cells that are not set aside, learns both policies on it, and keeps them in FOLDER with a fixed
map fitted on the same score and `policies_1.json`. In the second round it also knows the cells set aside, judged by
then, and all that `worth.py` trained in the first, in the fourth the training losses of the first table of random
architectures. With caution: a predicted improvement counts only less half a standard deviation of itself, so that what
the value model is not sure to improve stays; the fixed map, a control, is fitted without caution from the third round
on, since `crossed.py` finds it stronger so. A saving counts too: a little for `nat++`, so that of two that are as good
the cheaper one is chosen, and more for `nat`, since little of what it allows, a skip or nothing, was expected to
improve anything. The second puts the files and their model cards into the package under a name, with what `worth.py
judge` or the `judge` of tables found, and what is told of them into `results/policies.json`; those of the first round
are `cifar10`, those of the fourth `cifar10_accurate`. `--smoke` learns for a few steps.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from answers import MAPPED, Knowledge, fitted_constant, map_from_json, map_to_json
from cells import KINDS_DRAWN, Pool
from together import read_trained
from truth_cells import SCHEDULES, WHERE, compared_models, pick_of_search
from truth_nasbench201 import machine
from values import (
    BY_LOSS,
    CAUTION,
    FIRST_MODELS,
    LATER_MODELS,
    MODELS,
    Known,
    Pick,
    before,
    best_of,
    came_from,
    cheap_scores,
    dear_scores,
    loss_scores,
    value_model,
)

import natpp
from natpp import policies as shipped
from natpp.arch.cost import counts
from natpp.arch.graph import Architecture
from natpp.arch.networks import setting
from natpp.files import write_whole
from natpp.methods.learning import LearnConfig, Learner
from natpp.methods.policy import PolicyMethod
from natpp.methods.random import Random
from natpp.nets.policy import Policy, PolicyConfig
from natpp.registry import OPS, ZOO
from natpp.runs.phases import phases
from natpp.runs.search import Search
from natpp.scorers.base import Gain, Score, Scores, Task
from natpp.scorers.predicted import PredictConfig, Prediction, ascended
from natpp.seeds import Use, generator, number, torch_generator
from natpp.subjects.cells import Row
from natpp.subjects.many import Inputs

RESULTS = Path(__file__).parent / "results"
NAMES = {"nat++": "{}", "nat": "{}_nat"}  # under which they ship
NAME = "cifar10"  # of those that answer where none is named: what they learned from
FILES = {"nat++": "policy_{}_natpp.safetensors", "nat": "policy_{}_nat.safetensors"}  # by round, in a folder of runs
TOLD = "policies_{}.json"  # what is told of them, by round
POOL, FRESH, SEED = 4000, 200, 0
CAUTIONS = (0.0, 0.25, 0.5, 1.0)  # that were compared, on so many fresh inputs:
CLIMBED = 40
LARGEST = 4 << 20  # bytes of a policy file


def learn_config(number: int, *, smoke: bool) -> LearnConfig:
    """How policies of a round learn; as `crossed.py` finds, those that learn for longer only learn its errors."""
    usual = phases(Search(), free=False).learn  # as a search does
    if smoke:
        return replace(usual, steps=4)
    if number == 1:
        return replace(usual, steps=3000)
    if number == 2:
        return replace(usual, steps=2000, inputs=64, samples=8, policy=PolicyConfig(depth=4, width=128))
    return replace(usual, steps=300, inputs=32, samples=8)


def prices(number: int) -> dict[str, float]:
    """What all living MAdds are worth in a round, in deviations of the normal scale."""
    return {"nat++": 0.25 if number < BY_LOSS else 0.1, "nat": 1.0}


def learn(arguments: argparse.Namespace) -> None:
    runs: Path = arguments.runs
    pick = pick_of_search(runs)
    cheap, dear, losses, models = known_before(runs, arguments.round)
    model, price = picked_model(models), prices(arguments.round)
    prediction = value_model(cheap, dear, model, losses=losses)
    pool, fresh = (12, 4) if arguments.smoke else (POOL, FRESH)
    archs = Pool(aside=True).draw(pool + fresh, generator(SEED, Use.DRAW, 12))
    config = learn_config(arguments.round, smoke=arguments.smoke)
    found: dict[str, Any] = {
        "round": arguments.round,
        "cheap_scores": len(cheap),
        "dear_scores": len(dear),
        "loss_scores": len(losses),
        "pick": asdict(pick),
        "model": model,
        "models": models,
        "caution": CAUTION,
        "prices": price,
        "pool": pool,
        "kinds_drawn": KINDS_DRAWN,
        "learn": asdict(config),
        "seed": SEED,
        "machine": machine(),
    }
    settings, found["policies"] = json.loads(json.dumps(found)), {}
    for rule in [arguments.only] if arguments.only else FILES:
        file = runs / FILES[rule].format(arguments.round)
        began = time.perf_counter()
        task = Task(rule, setting("cifar"), strict=True)
        train, test = Inputs(archs[:pool], task, tuple(OPS)), Inputs(archs[pool:], task, tuple(OPS))
        reward = priced(prediction.reward(), price[rule])
        policy = learned(train, prediction, price[rule], config)
        said = {"rule": rule, "data": "cifar10", "caution": CAUTION, "price": price[rule], "seed": SEED}
        policy.save(file, said)
        rows = {"policy": PolicyMethod(rule, config, policy).one_shot(test, reward, np.random.default_rng(0))}
        if rule == "nat++":
            constant = fitted_constant(
                train, prediction, sample=4 if arguments.smoke else MAPPED, careful=arguments.round < 3
            )
            found["constant"] = map_to_json(constant)
            found["cautions"] = by_caution(archs[pool:][: 2 if arguments.smoke else CLIMBED], prediction)
            rows["constant"] = constant.one_shot(test, prediction.reward(), np.random.default_rng(0))
            for stem in ("search", "supernet", "paper"):  # what those learned that had to be quick
                for quick in sorted(runs.glob(f"{stem}_[0-9].safetensors"))[:1]:
                    method = PolicyMethod(rule, config, Policy.load(quick))
                    rows[f"policy of {stem}"] = method.one_shot(test, prediction.reward(), np.random.default_rng(0))
        rows["random best of 10"] = Random(10).one_shot(test, reward, np.random.default_rng(0))
        found["policies"][rule] = {
            "seconds": time.perf_counter() - began,
            "bytes": file.stat().st_size,
            "sha256": hash_of(file),
            "fresh_inputs": {name: on_fresh(test, some, prediction) for name, some in rows.items()},
            "zoo": on_zoo(policy, rule),
        }
        print(
            f"{rule}: {found['policies'][rule]['seconds']:.0f} s, {found['policies'][rule]['fresh_inputs']}", flush=True
        )
    told = runs / TOLD.format(arguments.round)
    kept = json.loads(told.read_text()) if told.exists() else {}
    if all(kept.get(name) == value for name, value in settings.items()):  # that of the other rule may be there
        found = kept | found | {"policies": kept["policies"] | found["policies"]}
    write_whole(told, json.dumps(found, indent=1) + "\n")


def known_before(runs: Path, number: int) -> tuple[Known, Known, Known, dict[str, Any]]:
    """Cheap and dear scores and losses that there are before a round, and how well value models do on dear ones."""
    pick = pick_of_search(runs)
    cheap = cheap_scores(runs, list(SCHEDULES).index(pick.schedule), pick.fitting)
    dear, losses = dear_scores(runs, number), loss_scores(runs, number) if number >= BY_LOSS else {}
    origin = came_from(runs, before(number)) if number > 1 else {}
    names = FIRST_MODELS if number < 3 else MODELS if number < BY_LOSS else LATER_MODELS
    return cheap, dear, losses, compared_models(cheap, dear, origin, names, losses)


def picked_model(models: Mapping[str, Any]) -> str:
    """The value model that policies learn on."""
    return best_of(models) if models else "short"


def by_caution(archs: Sequence[Architecture], prediction: Prediction) -> dict[float, dict[str, float]]:
    """What climbing finds for `nat++` with more and more caution, where it is kept only if it is sure to improve."""
    inputs = Inputs(archs, Task("nat++", setting("cifar"), strict=True), tuple(OPS))
    indices, found, rows = list(range(len(inputs))), {}, None
    for caution in CAUTIONS:
        gains = functools.partial(prediction.gains, caution=caution)
        rows = ascended(inputs, indices, Gain(gains), rows)  # from what less caution found
        sure = gains(archs, [inputs.transformed(index, row) for index, row in enumerate(rows)]) > 0
        kept = [row if good else one.ops for row, good, one in zip(rows, sure, inputs.encoded, strict=True)]
        found[caution] = on_fresh(inputs, kept, prediction) | {"inputs_changed": float(sure.mean())}
    return found


def priced(reward: Score | Gain, price: float) -> Score | Gain:
    """Improvements that a value model is sure of, and the share of living MAdds that is saved, at a price."""
    if price == 0:
        return reward
    if not isinstance(reward, Gain):
        raise ValueError("a price is put on gains, which only a value model with caution gives")

    def gains(before: Sequence[Architecture], after: Sequence[Architecture]) -> Scores:
        old, new = (np.array([counts(arch, WHERE).live_madds for arch in archs]) for archs in (before, after))
        return np.asarray(reward.of(before, after) + price * (1 - new / np.maximum(old, 1)))

    return Gain(gains)


def learned(inputs: Inputs, prediction: Prediction, price: float, config: LearnConfig) -> Policy:
    """A policy that learned on a prediction."""
    learner = Learner(inputs.ops, config, number(SEED, Use.START, 12))
    known: Score | Gain | None = None
    while learner.steps < config.steps:
        step = learner.steps
        found = prediction.reward(step / config.steps)
        if found != known:  # else what it said is remembered
            known, reward = found, priced(found, price)
        learner.step(inputs, reward, generator(SEED, Use.LEARN, 12, step), torch_generator(SEED, Use.LEARN, 12, step))
    return learner.policy.eval()


def on_fresh(inputs: Inputs, rows: list[Row], prediction: Prediction) -> dict[str, float]:
    """Of inputs that nothing was learned on: predicted improvement, share of edges that change, change of cost."""
    after = [inputs.transformed(index, row) for index, row in enumerate(rows)]
    mean, _ = prediction.differences(inputs.archs, after)
    changed = [float((row != one.ops).mean()) for row, one in zip(rows, inputs.encoded, strict=True)]
    madds = [[counts(arch, WHERE).live_madds for arch in archs] for archs in (inputs.archs, after)]
    return {
        "expected_improvement": float(mean.mean()),
        "expected_improvement_less_doubt": float(prediction.gains(inputs.archs, after).mean()),
        "edges_changed": float(np.mean(changed)),
        "madds_change": float(np.mean(np.divide(madds[1], np.maximum(madds[0], 1))) - 1),
    }


def on_zoo(policy: Policy, rule: str) -> dict[str, dict[str, Any]]:
    """What becomes of every cell of the zoo: edges that change, and cost."""
    found = {}
    for name in ZOO:
        result = natpp.optimize(name, policy, rule)
        found[name] = {
            "changes": len(result.changes),
            "live_madds": result.cost_after.live_madds / result.cost_before.live_madds,
            "live_params": result.cost_after.live_params / result.cost_before.live_params,
        }
    return found


def learned_in(runs: Path, number: int | None = None) -> tuple[dict[str, Any], dict[str, Path]]:
    """What is told of the policies of a round, by default the last of a folder, and their files by rule.

    Those that ship serve where a folder with scores has none of their round.
    """
    learned = sorted(int(file.stem[-1]) for file in runs.glob(TOLD.format("[0-9]")))
    number = learned[-1] if number is None and learned else number
    if number in learned:
        told, files = runs / TOLD.format(number), {rule: runs / name.format(number) for rule, name in FILES.items()}
        said: dict[str, Any] = json.loads(told.read_text())
    else:
        told = RESULTS / "policies.json"
        ships = json.loads(told.read_text())
        whose = next((name for name, one in ships.items() if one["round"] == number), NAME)
        files = {rule: shipped.FOLDER / f"{name.format(whose)}.safetensors" for rule, name in NAMES.items()}
        said = ships[whose]
    if not (runs / "longer.json").exists() or number not in (None, said["round"]):
        raise SystemExit("there are no policies yet: run policies.py learn first, with the same folder and round")
    hashes = {rule: one["sha256"] for rule, one in said["policies"].items()}
    if hashes != {rule: hash_of(file) for rule, file in files.items() if file.exists()} or set(hashes) != set(FILES):
        raise SystemExit(f"the policies are not all those of {told.name}: run policies.py learn for both rules")
    return said, files


def hash_of(file: Path) -> str:
    """What tells a file from others."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def mark_of(runs: Path, number: int | None = None) -> str:
    """What tells policies of a round, by default the last, and their fixed map from others."""
    said, files = learned_in(runs, number)
    whole = [*map(hash_of, files.values()), said["constant"], said["model"], said["cheap_scores"], said["dear_scores"]]
    whole += [said["loss_scores"]] if said.get("loss_scores") else []
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]


def knowledge(runs: Path, number: int | None = None) -> Knowledge:
    """What was learned in a round, by default the last, with the value model that it was learned on."""
    said, files = learned_in(runs, number)
    cheap, dear, losses, model = learned_from(runs, number)
    prediction = value_model(cheap, dear, model, losses=losses, config=PredictConfig(caution=said["caution"]))
    policies = {rule: Policy.load(file) for rule, file in files.items()}
    return Knowledge(policies, map_from_json(said["constant"]), prediction, frozenset(cheap | dear | losses))


def learned_from(runs: Path, number: int | None = None) -> tuple[Known, Known, Known, str]:
    """Cheap and dear scores and losses that policies of a round, by default the last, learned from, and the model."""
    said, _ = learned_in(runs, number)
    pick = Pick(**said["pick"])
    cheap = cheap_scores(runs, list(SCHEDULES).index(pick.schedule), pick.fitting)
    losses = loss_scores(runs, said["round"]) if said.get("loss_scores") else {}
    dear = dear_scores(runs, said["round"])
    if [len(cheap), len(dear), len(losses)] != [said["cheap_scores"], said["dear_scores"], said.get("loss_scores", 0)]:
        raise SystemExit(f"the folder has other trainings than policies of round {said['round']} learned from")
    return cheap, dear, losses, said["model"]


def ship(arguments: argparse.Namespace) -> None:
    """Put policies and cards into the package, and what is told of them into the results."""
    said, files = learned_in(arguments.runs, arguments.round)
    worth = arguments.out / "worth.json"
    rounds = json.loads(worth.read_text())["rounds"] if worth.exists() else {}
    table, cells = arguments.out / "table_random.json", arguments.out / "table_cells.json"
    tables = json.loads(table.read_text())["rounds"] if table.exists() else {}
    measured = rounds.get(str(said["round"]), {})
    for table_round, one in tables.items():
        if one["policies"] == said["round"]:  # more cells, and test accuracy
            measured |= {key: one[key] for key in ("inputs", "methods", "differences")} | {"tested": True}
            published = json.loads(cells.read_text())["rounds"] if cells.exists() else {}
            if table_round in published:
                measured["published"] = published[table_round]["cells"]
    said["gpu"] = (read_trained(arguments.runs / "longer.json")[0].get("machine") or {}).get("gpu")
    for rule, name in NAMES.items():
        content = files[rule].read_bytes()
        if len(content) > LARGEST:
            raise SystemExit(f"the policy for {rule} has {len(content):,} bytes, expected at most {LARGEST:,}")
        file = arguments.package / f"{name.format(arguments.name)}.safetensors"
        write_whole(file, content)
        write_whole(file.with_suffix(".md"), card(file.stem, rule, said, measured))
    told = arguments.out / "policies.json"
    others = json.loads(told.read_text()) if told.exists() else {}
    write_whole(told, json.dumps(others | {arguments.name: said}, indent=1) + "\n")


def card(name: str, rule: str, said: Mapping[str, Any], measured: Mapping[str, Any]) -> str:
    """The model card of a policy, from what was measured."""
    one = said["policies"][rule]
    fresh = one["fresh_inputs"]
    touched = sum(row["changes"] > 0 for row in one["zoo"].values())
    first = said["round"] == 1
    set_aside = "; a third of the cells was set aside and is in none of them" if first else ""
    losses = f"; training losses of {said['loss_scores']}" if said.get("loss_scores") else ""
    unseen = "test images were not looked at"
    if losses:
        unseen = "of some losses all 50,000 for weights; no score is of test images"
    named = "" if name == NAMES[rule].format(NAME) else f"--policy {name} "
    lines = [
        f"# Policy `{name}`: rule `{rule}`, CIFAR-10",
        "",
        "Written by `experiments/policies.py` from what it measured.",
        "",
        "## What it is for",
        "",
        "One shot for a cell architecture: which operation of every edge to replace by one that costs no more and that"
        f" the rule allows, `natpp optimize ARCH {named}--rule {rule}`. It knows all {len(OPS)} operations, and cells"
        " of any number of nodes; 4 and 5 are what it learned on, null-rich hand-crafted blocks among them.",
        "",
        "## What it must not be used for",
        "",
        "- As a promise of accuracy: train what it gives, and the original beside it.",
        "- For images that are nothing like CIFAR-10's, or networks far deeper than those below: `natpp search`"
        " learns a policy on your own images.",
        "- To rank architectures: it says what to change, not how good something is.",
        "",
        "## How it was learned",
        "",
        "| | |",
        "|---|---|",
        f"| data | CIFAR-10, 45,000 training images for weights, 5,000 for scores; {unseen} |",
        f"| scores | {said['cheap_scores']} short trainings ({said['pick']['schedule']}; loss:"
        f" {said['pick']['losses']}), {said['dear_scores']} trainings of 15 epochs{set_aside}{losses} |",
        f"| value model | `{said['model']}`, picked by folds over these |",
        f"| caution | a predicted improvement counts less {said['caution']} of its standard deviations |",
        f"| price | a saved share of living multiply-adds counts {said['prices'][rule]} times as much |",
        f"| inputs | {said['pool']:,}: "
        + ", ".join(f"{share:.0%} {kind}" for kind, share in said["kinds_drawn"].items())
        + " |",
        f"| learning | {said['learn']['steps']:,} steps of {said['learn']['inputs']} inputs and"
        f" {said['learn']['samples']} samples, learning rate {said['learn']['learning_rate']}, seed {said['seed']},"
        f" {one['seconds']:.0f} s on a CPU ({said['machine']['processor']}) |",
        "| budget | strict: neither living parameters nor multiply-adds rise |",
        f"| hardware of the trainings | {said['gpu'] or 'CPU'} |",
        f"| versions | natpp {said['machine']['natpp']}, torch {said['machine']['torch']} |",
        f"| size | {one['bytes']:,} bytes |",
        "",
        "## Results",
        "",
        "On fresh inputs, by the value model (in standard deviations of the normal scale of accuracies):",
        "",
        "| | expected improvement | less the doubt | edges changed | MAdds |",
        "|---|---|---|---|---|",
    ]
    for name, figures in fresh.items():
        lines.append(
            f"| {name} | {figures['expected_improvement']:+.2f} | {figures['expected_improvement_less_doubt']:+.2f} |"
            f" {figures['edges_changed']:.0%} | {figures['madds_change']:+.0%} |"
        )
    lines += ["", f"Of the {len(one['zoo'])} cells of the zoo it changes {touched}."]
    if measured and (rule == "nat++" or measured.get("tested")):
        lines += ["", *measured_lines(rule, measured)]
    else:
        lines += ["", "No network that it changed had been trained from scratch when this was written."]
    return "\n".join(lines) + "\n"


def measured_lines(rule: str, measured: Mapping[str, Any]) -> list[str]:
    """Of trained networks: what became of fresh inputs and of published cells."""
    longer = "trained by the longer recipe; points of validation accuracy:"
    lines = [longer.replace("; ", ", ").capitalize(), ""]
    tested = measured.get("tested", False)
    if measured.get("inputs"):
        saved = -measured["methods"][rule]["live_madds_change"]
        lines[0] = f"{measured['inputs']} fresh random cells, which it gave {saved:.0%} fewer multiply-adds, " + (
            "trained by the recipe of the tables; points of test accuracy:"
            if tested
            else f"and published ones, {longer}"
        )
    differences = measured.get("differences", {})
    if rule == "nat":
        differences = {"`nat` over the inputs": measured["methods"][rule]["over_input"]}
    for name, figures in differences.items():
        lines.append(f"- {name}: {figures['value']:+.2f} (95 % from {figures['low']:+.2f} to {figures['high']:+.2f})")
    published, kind = measured.get("harm", {}) if rule == "nat++" else {}, "ours"
    if tested:
        published, kind = measured.get("published", {}), f"ours, `{rule}`"
        lines += ["", "Published cells, by the same recipe:", ""] if published else []
    for name, kinds in published.items():
        if kind in kinds:
            one, same = kinds[kind], kinds[kind].get("trainings") == kinds["input"].get("trainings", [])
            change = "left as it is" if same else f"{one['change']:+.2f} over {one['seeds']} seeds"
            lines.append(f"- `{name}`: {change}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("learn")
    one.add_argument("--only", choices=list(FILES), help="the policy of one rule: two processes learn both at once")
    one.add_argument("--smoke", action="store_true")
    one.set_defaults(command=learn)
    other = commands.add_parser("ship")
    other.add_argument("--out", type=Path, default=RESULTS, help="folder of results")
    other.add_argument("--package", type=Path, default=shipped.FOLDER, help="where policies ship from")
    other.add_argument("--name", default=NAME, help="under which they ship; that for nat has _nat after it")
    other.set_defaults(command=ship)
    for each in (one, other):
        each.add_argument("--runs", type=Path, required=True, help="the folder of truth_cells.py")
        each.add_argument("--round", type=int, default=1, help="of worth.py that it is learned for")
    arguments = parser.parse_args()
    arguments.command(arguments)


if __name__ == "__main__":
    main()
