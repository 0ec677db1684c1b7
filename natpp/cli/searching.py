"""Commands that make architectures better: a policy applied, methods compared, data fetched."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from natpp import api
from natpp.arch.formats import to_dict, to_json
from natpp.cli.flags import Arch, NetworkFlags, Switch, Whole, WholeOrDefault, Word
from natpp.cli.output import new_table, print_json, print_table
from natpp.errors import SettingError, did_you_mean
from natpp.files import write_whole
from natpp.registry import RULES

if TYPE_CHECKING:
    from natpp.search.transform import Result


@dataclass(frozen=True)
class Optimize(NetworkFlags):
    """Make an architecture better by a learned policy: changes, costs before and after."""

    network: str = "auto"
    """cifar, imagenet or nasbench201; auto is cifar, and nasbench201 for an architecture of one cell"""
    arch: Arch = tyro.MISSING
    policy: str = tyro.MISSING
    """the policy's file"""
    rule: str = "nat++"
    """nat, nat++ or cost"""
    mode: str = "greedy"
    """greedy: the likeliest transitions; sample: once for every edge; best-of: the best of several by a scorer"""
    samples: Whole = 10
    """how many best-of draws"""
    scorer: Word = None
    """what best-of chooses by: a table of trained networks"""
    reward: str = "val_200"
    """column of the table that is the score"""
    seed: Whole = 0
    """seed of the draws"""
    budget: str = "strict"
    """strict: living parameters and MAdds do not rise; rule: what the rule allows"""
    json: Switch = False
    """print JSON"""
    out: Annotated[Word, tyro.conf.arg(aliases=("-o",), metavar="FILE")] = None
    """file to write the better architecture to, as JSON"""


def optimize(flags: Optimize) -> None:
    arch = api.load(flags.arch)
    scorer = None
    if flags.scorer is not None:
        from natpp.evaluate.table import TableScorer, read_table

        scorer = TableScorer(read_table(flags.scorer, [flags.reward]), flags.reward)
    usual = "cifar" if arch.reduce is not None else "nasbench201"
    network = usual if flags.network == "auto" else flags.network
    found = api.optimize(
        arch,
        flags.policy,
        flags.rule,
        flags.mode,
        flags.samples,
        scorer,
        flags.seed,
        flags.budget,
        network=replace(flags, network=network).setting(),
    )
    if flags.out is not None:
        write_whole(flags.out, to_json(found.after) + "\n")
    if flags.json:
        print_json(_result_json(found, flags))
    else:
        print(found)


def _result_json(found: Result, flags: Optimize) -> dict[str, Any]:
    return {
        "before": to_dict(found.before),
        "after": to_dict(found.after),
        "changes": [
            {
                "cell": change.cell,
                "from": change.before.source,
                "to": change.before.target,
                "before": change.before.op,
                "after": change.after.op,
            }
            for change in found.changes
        ],
        "cost_before": found.cost_before.to_dict(),
        "cost_after": found.cost_after.to_dict(),
        "log_prob": found.log_prob,
        "probabilities": found.probabilities,
        "masked": found.masked,
        "seed": flags.seed,
        "rule": flags.rule,
        "budget": flags.budget,
        "mode": flags.mode,
        "policy": flags.policy,
    }


@dataclass(frozen=True)
class Benchmark:
    """Compare methods on a table of trained networks: what each makes of held-out inputs."""

    which: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="nasbench201")]
    """the space of the table: nasbench201"""
    table: str
    """file with a column arch and columns of accuracies: Parquet or CSV"""
    reward: str = "val_200"
    """column that methods see"""
    score: str = "test_200"
    """column that they are judged by"""
    method: str = "nat++,nat,constant,random,random-best-of-10,evolution"
    """methods to compare, with commas between"""
    preset: str = "best"
    """how policies learn: best or paper"""
    rule: str = "nat++"
    """rule for methods that are not named for one: nat, nat++ or cost"""
    budget: str = "rule"
    """rule: what the rule allows; strict: also no rise in living parameters or MAdds"""
    evaluations: WholeOrDefault = None
    """most distinct architectures whose reward is looked up, the rest being predicted; auto is no limit"""
    holdout: Whole = 2000
    """inputs set aside for judging"""
    split_seed: Whole = 0
    """seed of the split"""
    seeds: Whole = 3
    """runs"""
    json: Switch = False
    """print JSON"""


def benchmark(flags: Benchmark) -> None:
    if flags.which != "nasbench201":
        raise SettingError(f"unknown space {flags.which!r}. {did_you_mean(flags.which, ['nasbench201'])}")
    if flags.budget not in ("rule", "strict"):
        raise SettingError(f"unknown budget {flags.budget!r}. {did_you_mean(flags.budget, ['rule', 'strict'])}")
    RULES[flags.rule]  # answers an unknown name
    from natpp.evaluate.benchmark import BenchmarkConfig
    from natpp.evaluate.benchmark import benchmark as run

    config = BenchmarkConfig(
        table=flags.table,
        reward=flags.reward,
        score=flags.score,
        methods=tuple(name.strip() for name in flags.method.split(",")),
        preset=flags.preset,
        rule=flags.rule,
        strict=flags.budget == "strict",
        evaluations=flags.evaluations,
        holdout=flags.holdout,
        split_seed=flags.split_seed,
        seeds=flags.seeds,
    )
    found = run(config)
    if flags.json:
        print_json(found)
        return
    print(
        f"inputs {found['inputs']:.2f}, best reachable by {flags.reward} {found['oracle_by_reward']:.2f}, "
        f"by {flags.score} {found['oracle_by_score']:.2f}"
    )
    table = new_table(
        "method", "one shot", "best of 10", "share of oracle", "live params", "live MAdds", "queries", "seconds"
    )
    for name, row in found["methods"].items():
        if row is None:
            table.add_row(name, *["–"] * 7)
            continue
        spreads = [f"{s['mean']:.2f} ± {s['sd']:.2f}" if s else "–" for s in (row["one_shot"], row["best_of_10"])]
        share = "–" if row["share_of_oracle"] is None else f"{row['share_of_oracle']:.1%}"
        changes = (f"{row[key]:+.1%}" for key in ("params_change", "madds_change"))
        table.add_row(name, *spreads, share, *changes, f"{row['queries']:,.0f}", f"{row['seconds']:.1f}")
    print_table(table)


@dataclass(frozen=True)
class Data:
    """Put a data set into a folder as one file, checked: from its home page, or from a file at hand."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="cifar10|cifar100|fashion-mnist")]
    """the data set"""
    root: str
    """folder to put it into"""
    source: Annotated[Word, tyro.conf.arg(name="from", metavar="PATH")] = None
    """archive or folder at hand: the Python or binary archive, mosaics with labels.json, batches"""


def data(flags: Data) -> None:
    from natpp.data.sets import store_images

    print(store_images(flags.name, flags.root, flags.source))
