"""The policies that ship, `nat` and `nat++`: learned on all scores that are not set aside.

Needs: the folder of images_cells; a CPU, half an hour

`learn` fits the value model on the short trainings of images_cells and on longer trainings of cells that are not set
aside, learns a policy for each rule on it, and keeps both in the folder with a fixed map that is fitted on the same
score. From the second round on the model also knows the cells set aside, judged by then, and everything that
judge_policies trained in earlier rounds; in the fourth, training losses of the first round of table_random.

Learning is cautious: an improvement counts minus half its standard deviation, so edges stay as they are where the value
model is unsure. The fixed map, a control, is fitted without caution from the third round on, because `crossed` finds it
stronger so. Savings count, too: a little for `nat++`, so that the cheaper of two equals wins, and more for `nat`, whose
changes (a skip or nothing) were hardly expected to improve anything.

`ship` puts files and model cards into the package, with what judge_policies or the tables found. The policies of
round 1 ship as `cifar10`, those of round 4 as `cifar10_accurate` (`--round 4 --name cifar10_accurate`).
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

import natpp
from experiments.lib import values
from experiments.lib.answers import MAPPED, answers_of, fitted_constant, map_to_json
from experiments.lib.cells import KINDS_DRAWN, Pool
from experiments.lib.learned import FILES, NAME, NAMES, TOLD, hash_of, learned_in, pick_of_search
from experiments.lib.machine import machine
from experiments.lib.schedules import Known
from experiments.lib.settings import RESULTS, Experiment, Keeps, read_results, write_results
from experiments.lib.trainer import read_trained
from natpp import policies as shipped
from natpp.arch.graph import Architecture
from natpp.arch.networks import setting
from natpp.config import At
from natpp.core.scores import Gain, Score, Scores
from natpp.core.subject import Row
from natpp.files import write_whole
from natpp.methods.learning import LearnConfig, Learner
from natpp.methods.policy import PolicyMethod
from natpp.methods.random import Random
from natpp.methods.rounds import ascended
from natpp.nets.policy import Policy, PolicyConfig
from natpp.registry import OPS, ZOO
from natpp.runs.phases import phases
from natpp.runs.search import Search
from natpp.scorers.predicted import Prediction
from natpp.seeds import Use, generator, number, torch_generator
from natpp.subjects.cells import Frame, cells_of
from natpp.subjects.many import Subjects

POOL, FRESH, SEED = 4000, 200, 0
CAUTIONS = (0.0, 0.25, 0.5, 1.0)  # compared on CLIMBED fresh inputs
CLIMBED = 40
LARGEST = 4 << 20  # bytes of a policy file


@dataclass(frozen=True, kw_only=True)
class ShipPolicies(Keeps):
    out: Path = RESULTS / "ship_policies.json"
    round: Annotated[int, At(least=1)] = 1
    """round of judge_policies that the policies are learned for"""
    only: Literal["nat++", "nat"] | None = None
    """learn the policy of one rule only; two processes can learn both at once"""
    package: Path = shipped.FOLDER
    """folder of shipped policies"""
    name: str = NAME
    """name of the shipped policy; the one for nat gets _nat appended"""


def learn_config(number: int, *, smoke: bool) -> LearnConfig:
    """How policies of a round learn; `crossed` finds that longer learning fits errors of the value model."""
    usual = phases(Search(), free=False).learn  # as in a search
    if smoke:
        return replace(usual, steps=4)
    if number == 1:
        return replace(usual, steps=3000)
    if number == 2:
        return replace(usual, steps=2000, inputs=64, samples=8, policy=PolicyConfig(depth=4, width=128))
    return replace(usual, steps=300, inputs=32, samples=8)


def prices(number: int) -> dict[str, float]:
    """The worth of all living MAdds in a round, in standard deviations of the score."""
    return {"nat++": 0.25 if number < values.BY_LOSS else 0.1, "nat": 1.0}


def learn(settings: ShipPolicies) -> None:
    """Learn and keep the policies of a round."""
    runs: Path = settings.runs
    pick = pick_of_search(runs)
    cheap, dear, losses, models = known_before(runs, settings.round)
    model, price = picked_model(models), prices(settings.round)
    prediction = values.value_model(cheap, dear, model, losses=losses)
    pool, fresh = (12, 4) if settings.smoke else (POOL, FRESH)
    archs = Pool(aside=True).draw(pool + fresh, generator(SEED, Use.DRAW, 12))
    config = learn_config(settings.round, smoke=settings.smoke)
    found: dict[str, Any] = {
        "round": settings.round,
        "cheap_scores": len(cheap),
        "dear_scores": len(dear),
        "loss_scores": len(losses),
        "pick": asdict(pick),
        "model": model,
        "models": models,
        "caution": values.CAUTION,
        "prices": price,
        "pool": pool,
        "kinds_drawn": KINDS_DRAWN,
        "learn": asdict(config),
        "seed": SEED,
        "machine": machine(),
    }
    same, found["policies"] = json.loads(json.dumps(found)), {}
    for rule in [settings.only] if settings.only else FILES:
        file = runs / FILES[rule].format(settings.round)
        began = time.perf_counter()
        cells = cells_of(archs, Frame(rule, setting("cifar")), tuple(OPS))
        train, test = Subjects(cells[:pool]), Subjects(cells[pool:])
        reward = priced(prediction.reward(), price[rule])
        policy = learned(train, prediction, price[rule], config)
        said = {"rule": rule, "data": "cifar10", "caution": values.CAUTION, "price": price[rule], "seed": SEED}
        policy.save(file, said)
        method = PolicyMethod(rule, learned=policy)
        rows = {"policy": answers_of(method, test, reward, np.random.default_rng(0))}
        if rule == "nat++":
            constant = fitted_constant(
                train, prediction, sample=4 if settings.smoke else MAPPED, careful=settings.round < 3
            )
            found["constant"] = map_to_json(constant)
            found["cautions"] = by_caution(archs[pool:][: 2 if settings.smoke else CLIMBED], prediction)
            rows["constant"] = answers_of(constant, test, prediction.reward(), np.random.default_rng(0))
            for stem in ("search", "supernet", "paper"):  # policies of the timed searches
                for quick in sorted(runs.glob(f"{stem}_[0-9].safetensors"))[:1]:
                    method = PolicyMethod(rule, learned=Policy.load(quick))
                    rows[f"policy of {stem}"] = answers_of(method, test, prediction.reward(), np.random.default_rng(0))
        rows["random best of 10"] = answers_of(Random(10), test, reward, np.random.default_rng(0))
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
    told = runs / TOLD.format(settings.round)
    kept = read_results(told)
    if all(kept.get(name) == value for name, value in same.items()):  # the other rule may be there
        found = kept | found | {"policies": kept["policies"] | found["policies"]}
    write_results(told, found)


def known_before(runs: Path, number: int) -> tuple[Known, Known, Known, dict[str, Any]]:
    """Cheap scores, dear scores and losses before a round, and the agreement of value models with the dear ones."""
    cheap = values.cheap_scores(runs, pick_of_search(runs))
    dear, losses = (
        values.dear_scores(runs, number),
        values.loss_scores(runs, number) if number >= values.BY_LOSS else {},
    )
    origin = values.came_from(runs, values.before(number)) if number > 1 else {}
    names = values.FIRST_MODELS if number < 3 else values.MODELS if number < values.BY_LOSS else values.LATER_MODELS
    return cheap, dear, losses, values.compared_models(cheap, dear, origin, names, losses)


def picked_model(models: Mapping[str, Any]) -> str:
    """The name of the value model that policies learn on."""
    return values.best_of(models) if models else "short"


def by_caution(archs: Sequence[Architecture], prediction: Prediction) -> dict[float, dict[str, float]]:
    """What hill climbing finds for `nat++` with growing caution; changes count only where they surely improve."""
    subjects = Subjects(cells_of(archs, Frame("nat++", setting("cifar")), tuple(OPS)))
    indices, found, rows = list(range(len(subjects))), {}, None
    for caution in CAUTIONS:
        gains = functools.partial(prediction.gains, caution=caution)
        rows = ascended(subjects, indices, Gain(gains), rows)  # starts from the result of less caution
        sure = gains(archs, [subjects.transformed(index, row) for index, row in enumerate(rows)]) > 0
        kept = [row if good else own for row, good, own in zip(rows, sure, subjects.before, strict=True)]
        found[caution] = on_fresh(subjects, kept, prediction) | {"inputs_changed": float(sure.mean())}
    return found


def priced(reward: Score | Gain, price: float) -> Score | Gain:
    """Cautious improvements, plus the saved share of living MAdds times a price."""
    if price == 0:
        return reward
    if not isinstance(reward, Gain):
        raise ValueError("a price needs gains, which only a value model with caution gives")

    def gains(before: Sequence[Architecture], after: Sequence[Architecture]) -> Scores:
        old, new = values.live_madds(before), values.live_madds(after)
        return np.asarray(reward.of(before, after) + price * (1 - new / np.maximum(old, 1)))

    return Gain(gains)


def learned(subjects: Subjects, prediction: Prediction, price: float, config: LearnConfig) -> Policy:
    """A policy learned on a prediction."""
    learner = Learner(subjects.ops, config, number(SEED, Use.START, 12))
    known: Score | Gain | None = None
    while learner.steps < config.steps:
        step = learner.steps
        found = prediction.reward(step / config.steps)
        if found != known:  # else remembered scores are reused
            known, reward = found, priced(found, price)
        learner.step(subjects, reward, generator(SEED, Use.LEARN, 12, step), torch_generator(SEED, Use.LEARN, 12, step))
    return learner.policy.eval()


def on_fresh(subjects: Subjects, rows: list[Row], prediction: Prediction) -> dict[str, float]:
    """On fresh inputs: predicted improvement, share of changed edges, change of cost."""
    inputs, after = subjects.given, [subjects.transformed(index, row) for index, row in enumerate(rows)]
    mean, _ = prediction.differences(inputs, after)
    changed = [float((row != own).mean()) for row, own in zip(rows, subjects.before, strict=True)]
    madds = values.live_madds(inputs), values.live_madds(after)
    return {
        "expected_improvement": float(mean.mean()),
        "expected_improvement_less_doubt": float(prediction.gains(inputs, after).mean()),
        "edges_changed": float(np.mean(changed)),
        "madds_change": float(np.mean(np.divide(madds[1], np.maximum(madds[0], 1))) - 1),
    }


def on_zoo(policy: Policy, rule: str) -> dict[str, dict[str, Any]]:
    """For each cell of the zoo: number of changes, and cost relative to the original."""
    found = {}
    for name in ZOO:
        result = natpp.optimize(name, policy, decisions=natpp.Decisions(rule))
        found[name] = {
            "changes": len(result.changes),
            "live_madds": result.cost_after.live_madds / result.cost_before.live_madds,
            "live_params": result.cost_after.live_params / result.cost_before.live_params,
        }
    return found


def ship(settings: ShipPolicies) -> None:
    """Put policies and model cards into the package, and their description into the results."""
    said, files = learned_in(settings.runs, settings.round)
    package = settings.runs / "package" if settings.smoke and settings.package == shipped.FOLDER else settings.package
    rounds, tables, published = (
        read_results(settings.out.with_stem(name)).get("rounds", {})
        for name in ("judge_policies", "table_random", "table_cells")
    )
    package.mkdir(parents=True, exist_ok=True)
    measured = rounds.get(str(said["round"]), {})
    for table_round, one in tables.items():
        if one["policies"] == said["round"]:  # more cells, and test accuracy
            measured |= {key: one[key] for key in ("inputs", "methods", "differences")} | {"tested": True}
            if table_round in published:
                measured["published"] = published[table_round]["cells"]
    said["gpu"] = (read_trained(settings.runs / "longer.json")[0].get("machine") or {}).get("gpu")
    for rule, name in NAMES.items():
        content = files[rule].read_bytes()
        if len(content) > LARGEST:
            raise SystemExit(f"the policy for {rule} has {len(content):,} bytes, expected at most {LARGEST:,}")
        file = package / f"{name.format(settings.name)}.safetensors"
        write_whole(file, content)
        write_whole(file.with_suffix(".md"), card(file.stem, rule, said, measured))
    write_results(settings.out, read_results(settings.out) | {settings.name: said})


def card(name: str, rule: str, said: Mapping[str, Any], measured: Mapping[str, Any]) -> str:
    """The model card of a policy."""
    one = said["policies"][rule]
    fresh = one["fresh_inputs"]
    touched = sum(row["changes"] > 0 for row in one["zoo"].values())
    first = said["round"] == 1
    set_aside = "; a third of the cells was held out from all of these" if first else ""
    losses = f"; training losses of {said['loss_scores']}" if said.get("loss_scores") else ""
    unseen = "test images were not used"
    if losses:
        unseen = "for some losses all 50,000 for weights; test images were not used for any score"
    named = f"--rule {rule}" if name == NAMES[rule].format(NAME) else f"--method {rule}:policy={name}"
    lines = [
        f"# Policy `{name}`: rule `{rule}`, CIFAR-10",
        "",
        "Generated by `experiments/policies.py`.",  # its name when these cards were published
        "",
        "## Intended use",
        "",
        "Replaces operations of a cell architecture in one shot, following the rule and without raising the cost:"
        f" `natpp optimize ARCH {named}`. It knows all {len(OPS)} operations and accepts cells with any"
        " number of nodes. It was learned on cells with 4 and 5 nodes, including null-rich hand-crafted blocks.",
        "",
        "## Do not use it",
        "",
        "- To promise an accuracy. Train both the original and the result to compare them.",
        "- For images very different from CIFAR-10's, or networks much deeper than those below. Learn your own policy"
        " with `natpp search` instead.",
        "- To rank architectures. It suggests changes; it does not say how good an architecture is.",
        "",
        "## How it was learned",
        "",
        "| | |",
        "|---|---|",
        f"| data | CIFAR-10, 45,000 training images for weights, 5,000 for scores; {unseen} |",
        f"| scores | {said['cheap_scores']} short training runs ({said['pick']['schedule']}; loss:"
        f" {said['pick']['losses']}), {said['dear_scores']} of 15 epochs{set_aside}{losses} |",
        f"| value model | `{said['model']}`, picked by cross-validation over these |",
        f"| caution | {said['caution']} standard deviations are subtracted from each predicted improvement |",
        f"| price | saving all live multiply-adds is worth {said['prices'][rule]} standard deviations of accuracies |",
        f"| inputs | {said['pool']:,}: "
        + ", ".join(f"{share:.0%} {kind}" for kind, share in said["kinds_drawn"].items())
        + " |",
        f"| learning | {said['learn']['steps']:,} steps of {said['learn']['inputs']} inputs and"
        f" {said['learn']['samples']} samples, learning rate {said['learn']['learning_rate']}, seed {said['seed']},"
        f" {one['seconds']:.0f} s on a CPU ({said['machine']['processor']}) |",
        "| budget | strict: neither live parameters nor live multiply-adds increase |",
        f"| training hardware | {said['gpu'] or 'CPU'} |",
        f"| versions | natpp {said['machine']['natpp']}, torch {said['machine']['torch']} |",
        f"| size | {one['bytes']:,} bytes |",
        "",
        "## Results",
        "",
        "On new inputs, estimated by the value model (in standard deviations of the normal scale of accuracies):",
        "",
        "| | expected improvement | minus doubt | edges changed | MAdds |",
        "|---|---|---|---|---|",
    ]
    for name, figures in fresh.items():
        lines.append(
            f"| {name} | {figures['expected_improvement']:+.2f} | {figures['expected_improvement_less_doubt']:+.2f} |"
            f" {figures['edges_changed']:.0%} | {figures['madds_change']:+.0%} |"
        )
    lines += ["", f"It changes {touched} of the {len(one['zoo'])} cells in the zoo."]
    if measured and (rule == "nat++" or measured.get("tested")):
        lines += ["", *measured_lines(rule, measured)]
    else:
        lines += ["", "None of its results had been trained from scratch when this card was written."]
    return "\n".join(lines) + "\n"


def measured_lines(rule: str, measured: Mapping[str, Any]) -> list[str]:
    """Lines of a card about trained networks: fresh inputs and published cells."""
    longer = "trained with the longer recipe; points of validation accuracy:"
    lines = [longer.replace("; ", ", ").capitalize(), ""]
    tested = measured.get("tested", False)
    if measured.get("inputs"):
        saved = -measured["methods"][rule]["live_madds_change"]
        lines[0] = f"{measured['inputs']} new random cells, with {saved:.0%} fewer multiply-adds on average, " + (
            "trained with the recipe of the tables; points of test accuracy:"
            if tested
            else f"and published cells, {longer}"
        )
    differences = measured.get("differences", {})
    if rule == "nat":
        differences = {"`nat` over the inputs": measured["methods"][rule]["over_input"]}
    for name, figures in differences.items():
        lines.append(f"- {name}: {figures['value']:+.2f} (95 % CI {figures['low']:+.2f} to {figures['high']:+.2f})")
    published, kind = measured.get("harm", {}) if rule == "nat++" else {}, "ours"
    if tested:
        published, kind = measured.get("published", {}), f"ours, `{rule}`"
        lines += ["", "Published cells, with the same recipe:", ""] if published else []
    for name, kinds in published.items():
        if kind in kinds:
            one, same = kinds[kind], kinds[kind].get("trainings") == kinds["input"].get("trainings", [])
            change = "not changed" if same else f"{one['change']:+.2f} over {one['seeds']} seeds"
            lines.append(f"- `{name}`: {change}")
    return lines


EXPERIMENT = Experiment(ShipPolicies, (learn, ship), after="images_cells")
