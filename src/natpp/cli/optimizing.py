"""Flags of natpp optimize: those for architectures and those for models."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from natpp import verbs
from natpp.arch.where import Where
from natpp.cli.subjects import load_architecture, make_module, parse_budget
from natpp.config import Among, At, Config, Form
from natpp.data.named import Data
from natpp.errors import NatppError, SettingError
from natpp.registry import RULES

if TYPE_CHECKING:
    from natpp.core.result import Result


@dataclass(frozen=True)
class OfModels(Config):
    """Flags for a model."""

    input: Annotated[str | None, Form("1,3,224,224")] = None
    """of a model: the shape of its input; several with semicolons between"""
    keep: Annotated[str | None, Form("layer4,head")] = None
    """of a model: parts that stay as they are, separated by commas"""
    share_blocks: bool = True
    """of a model: decide for every block separately, as under a budget with limits"""
    measure_latency: bool = False
    """of a model: measure the time of a forward pass before and after"""


@dataclass(frozen=True)
class Chosen(Config):
    """How a change is chosen."""

    policy: Annotated[str | None, Form("NAME|FILE|RUN")] = None
    """a policy that ships, a policy's file or a run's folder; by default the one that ships"""
    rule: Annotated[str, Among(RULES)] = "nat++"
    """nat, nat++ or cost"""
    mode: str = "greedy"
    """greedy: the likeliest transitions; sample: draw once for every edge; best-of: the best draw by a scorer"""
    samples: int = 10
    """number of draws of best-of"""
    scorer: Annotated[str | None, Form("short|RUN|TABLE")] = None
    """scorer of best-of: short trainings on data, a run's folder (its supernet), a table of trained networks"""
    reward: str = "val_200"
    """column of the table to use as the score"""
    store: Annotated[str | None, Form("FILE")] = None
    """file to save and reuse scores of short trainings in"""
    seed: Annotated[int, At(least=0)] = 0
    """seed of the draws"""
    budget: Annotated[str, Form("strict|rule|madds=0.6,…")] = "strict"
    """strict: living parameters and MAdds do not rise; rule: what the rule allows; or limits on params, madds,
    memory (bytes) or latency (ms), as in madds=0.6: a fraction up to 1 of the current cost, or an absolute number"""


def better_architecture(
    word: str, chosen: Chosen, models: OfModels, where: Where, images: Data, out: str | None
) -> Result:
    """Optimize an architecture, unless the output would overwrite another kind of file."""
    if word.endswith(".py"):
        load_architecture(word)  # raises: the function is missing
    refuse_other(models.to_flags(), "can only be given with a model, not with an architecture")
    if out is not None and os.path.isfile(out) and os.path.getsize(out):
        try:
            load_architecture(os.path.abspath(out))
        except NatppError:
            raise SettingError(f"{out!r} exists and is not an architecture: move it, or choose another file") from None
    budget, arch = parse_budget(chosen.budget), load_architecture(word)
    return verbs.optimize(
        arch,
        chosen.policy,
        chosen.rule,
        chosen.mode,
        chosen.samples,
        chosen.scorer,
        chosen.seed,
        budget,
        network=where.setting("cifar" if arch.reduce is not None else "nasbench201"),
        reward=chosen.reward,
        data=images.data,
        root=images.root,
        store=chosen.store,
    )


def better_module(word: str, chosen: Chosen, models: OfModels, where: Where, images: Data) -> Result:
    """Optimize a model."""
    own = Chosen(chosen.policy, chosen.rule, chosen.mode, seed=chosen.seed, budget=chosen.budget)
    others = [*replace(where, classes=None).to_flags(), *chosen.to_flags(own), *images.to_flags()]
    refuse_other(others, "can only be given with an architecture, not with a model")
    budget = parse_budget(chosen.budget)
    module, example = make_module(word, models.input, classes=where.classes, seed=chosen.seed)
    return verbs.optimize(
        module,
        chosen.policy,
        chosen.rule,
        chosen.mode,
        example_input=example,
        seed=chosen.seed,
        budget=budget,
        keep=[name.strip() for name in models.keep.split(",")] if models.keep else (),
        share_blocks=None if models.share_blocks else False,
        measure_latency=models.measure_latency,
    )


def refuse_other(flags: list[str], why: str) -> None:
    """Reject flags of the other kind of subject."""
    if flags:
        raise SettingError(f"{flags[0]} {why}")
