"""Applying a policy: within rule and budget, with the reasons beside it."""

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import natpp
from natpp.arch.blueprints import alive_in
from natpp.arch.graph import Edge, Graph
from natpp.arch.networks import setting
from natpp.arch.ops import PAPER_OPS
from natpp.arch.rules import edge_names
from natpp.cli import main
from natpp.errors import NatppError
from natpp.methods.learning import LearnConfig, learn
from natpp.methods.policy import PolicyMethod
from natpp.nets.policy import Policy, PolicyConfig
from natpp.registry import OPS, ZOO
from natpp.subjects.cells import Frame, cells_of
from natpp.subjects.many import Subjects
from natpp.verbs import samples
from tests.methods.test_learning import OPS5, SMALL, STRICT, number


@pytest.fixture(scope="session")
def policy() -> Policy:
    torch.manual_seed(0)
    return Policy(PolicyConfig(width=16)).eval()


@pytest.mark.parametrize("name", list(ZOO))
@pytest.mark.parametrize("rule", ["nat", "nat++", "cost"])
def test_every_zoo_cell_stays_within_budget(name: str, rule: str, policy: Policy) -> None:
    for mode in ("greedy", "sample"):
        by, decisions = PolicyMethod(learned=policy, mode=mode), natpp.Decisions(rule)
        found = natpp.optimize(name, by, decisions=decisions, run=natpp.Run(seed=1))
        assert found.cost_after.live_params <= found.cost_before.live_params
        assert found.cost_after.live_madds <= found.cost_before.live_madds
        assert found.before == ZOO[name].arch
        kept = {"rule": rule, "budget": "strict", "mode": mode, "seed": 1, "name": name}
        assert {key: found.settings[key] for key in kept} == kept


def test_the_reasons_add_up(policy: Policy) -> None:
    found = natpp.optimize("vgg_block", policy)
    for kind, names in edge_names(found.before).items():
        for name, edge in zip(names, found.before.graph(kind).edges, strict=True):
            if edge.fixed:
                assert name not in found.probabilities
                continue
            probabilities, masked = found.probabilities[name], found.masked[name]
            assert sum(probabilities.values()) == pytest.approx(1, abs=1e-5)
            assert edge.op in probabilities
            assert set(probabilities) | set(masked) == set(OPS)
            assert not set(probabilities) & set(masked)
    first = {kind: names[0] for kind, names in edge_names(found.before).items()}
    assert found.masked[first["reduce"]]["skip_connect"] == "cost"  # null → skip is a convolution there
    assert found.masked[first["normal"]]["conv_3x3"] == "rule"


def test_log_prob_is_that_of_what_is_returned(policy: Policy) -> None:
    for arch in samples(10):
        found = natpp.optimize(arch, PolicyMethod(learned=policy, mode="sample"))
        total = 0.0
        for kind, names in edge_names(found.after).items():
            pairs = zip(names, found.after.graph(kind).edges, strict=True)
            total += sum(np.log(found.probabilities[name][edge.op]) for name, edge in pairs if not edge.fixed)
        assert found.log_prob == pytest.approx(total, rel=1e-4)


def test_a_repair_takes_back_the_least_probable_changes_until_it_fits() -> None:
    task = Frame("nat", setting(), strict=True)
    inputs = Subjects(cells_of([natpp.load("vgg_block")], task, tuple(OPS)))
    before, skip = inputs.before[0], tuple(OPS).index("skip_connect")
    wanted = np.where(before == tuple(OPS).index("null"), skip, before)  # every null becomes a skip
    assert not inputs.fits(0, wanted)
    changed = np.flatnonzero(wanted != before)
    probability = np.linspace(0.1, 0.9, len(before))
    repaired = inputs.repaired(0, wanted, probability)
    assert inputs.fits(0, repaired)
    kept = [edge for edge in changed if repaired[edge] == skip]
    assert kept == changed[len(changed) - len(kept) :].tolist()  # the most probable ones
    one_more = repaired.copy()
    one_more[changed[len(changed) - len(kept) - 1]] = skip
    assert not inputs.fits(0, one_more)
    assert inputs.repaired(0, before, probability) is before


def test_best_of_is_at_least_as_good_as_any_of_its_samples() -> None:
    policy = learn(Subjects(cells_of(SMALL, STRICT, OPS5)), number, LearnConfig(steps=20), np.random.default_rng(0))
    for arch in SMALL[::7]:
        options = {"decisions": natpp.Decisions(setting=STRICT.where), "run": natpp.Run(seed=3), "scorer": number}
        best, one = (
            natpp.optimize(arch, PolicyMethod(learned=policy, mode="best-of", samples=samples), **options)
            for samples in (8, 1)
        )
        assert number([best.after])[0] >= number([one.after])[0]


def test_the_command_writes_a_better_architecture(
    policy: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "policy.safetensors", tmp_path / "better.json"
    policy.save(file)
    assert main(["optimize", "darts", "--method", f"nat++:policy={file}", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    expected = natpp.optimize("darts", file)
    assert text == f"{expected}\n"
    assert natpp.load(out) == expected.after
    assert main(["optimize", "darts", "--method", f"nat++:policy={file},mode=sample", "--seed", "4", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (
        natpp.load(json.dumps(data["after"]))
        == natpp.optimize("darts", f"nat++:policy={file},mode=sample", run=natpp.Run(seed=4)).after
    )
    assert {"before", "changes", "cost_before", "cost_after", "log_prob", "groups"} <= set(data)
    assert [data["settings"][name] for name in ("seed", "rule", "policy")] == [4, "nat++", str(file)]
    assert all(set(one) == {"name", "kind", "before", "after", "probability"} for one in data["changes"])
    assert main(["optimize", "|nor_conv_3x3~0|", "--method", f"nat++:policy={file}"]) == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--method", "nat++:policy=cifar1"), "Did you mean 'cifar10'?"),
        (("--method", "nat++:policy=nowhere.safetensors"), "cannot read the policy"),
        (("--method", "nat++:mode=best-of", "--scorer", "supernet"), "needs the folder of a run that trained one"),
        (("--method", "nat++:mode=best-of", "--scorer", "short"), "networks are trained on images"),
        (("--method", "nat++:mode=gredy"), "Did you mean 'greedy'?"),
        (("--method", "nat+++"), "unknown method 'nat+++'. Did you mean 'nat++'?"),
        (("--method", "nat++:mode=best-of"), "nat++:mode=best-of chooses by scores: give a scorer, or a task"),
        (("--method", "tuned", "--task", "digits"), "tuned works on modules. For an architecture"),
        (("--budget", "strct"), "Did you mean 'strict'?"),
        (("--rule", "nut"), "Did you mean 'nat'?"),
        (("--method", "nat++:samples=0"), "samples is 0"),
        (("--method", "nat++:mode=sample", "--seed", "9" * 30), "expected a whole number from 0 to 2^63"),
        (("--seed", "-1"), "seed is -1"),
        (("--method", f"nat++:mode=best-of,samples={'9' * 30}"), "to 1e+06"),
        (("--method", "nat++:mode=best-of", "--scorer", "nowhere.csv"), "cannot read the table"),
        (("--out", "nowhere/x.json"), "the folder 'nowhere' does not exist"),
        (("--out", "x.json", "--report", "./x.json"), "--out and --report are both 'x.json'"),
    ],
)
def test_wrong_input_is_one_line(flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "darts", *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert captured.err.count("\n") == 1


def test_the_network_asked_for_is_the_network_used(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path / "policy")
    costs = []
    for network in ("auto", "cifar", "nasbench201"):
        arguments = ["--method", f"nat++:policy={tmp_path / 'policy'}", "--network", network, "--json"]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert main(["optimize", "|nor_conv_3x3~0|", *arguments]) == 0
        costs.append(json.loads(out.getvalue())["cost_before"]["params"])
    assert costs[0] == costs[2] != costs[1]


def test_a_scorer_goes_with_best_of(policy: Policy) -> None:
    with pytest.raises(NatppError, match="does not use a scorer: leave it out"):
        natpp.optimize("darts", policy, scorer=number)


def test_a_policy_for_another_space_says_so(tmp_path: Path) -> None:
    small = Policy(PolicyConfig(width=8), OPS5)
    with pytest.raises(NatppError, match="does not know the operation sep_conv_3x3"):
        natpp.optimize("darts", small)
    foreign = Policy(PolicyConfig(width=8), [*PAPER_OPS, "swirl"])
    with pytest.raises(NatppError, match="unknown operation 'swirl'"):
        natpp.optimize("darts", foreign)
    known = Policy(PolicyConfig(width=8), PAPER_OPS)
    assert set(natpp.optimize("darts", known).after.normal.ops) <= set(PAPER_OPS)


def test_no_answer_cuts_the_head_off_from_the_image() -> None:
    """A block that is one chain dies with any of its edges."""
    chain = natpp.load("vgg_block")
    task = Frame("nat++", setting("cifar"), strict=True)
    inputs = Subjects(cells_of([chain], task, tuple(OPS)))
    null = list(OPS).index("null")
    row = np.where(inputs.masks[0][:, null], null, inputs.before[0])
    assert not alive_in(inputs.transformed(0, row), task.where).reached[-1]
    probability = np.linspace(0.1, 0.9, len(row))
    repaired = inputs.transformed(0, inputs.repaired(0, row, probability))
    assert alive_in(repaired, task.where).reached[-1]
    loose = Subjects(cells_of([chain], Frame("nat++", setting("cifar"), strict=False), tuple(OPS)))
    assert loose.fits(0, row)  # the rule alone allows it


def test_changes_that_do_no_harm_survive_a_repair() -> None:
    edges = (Edge("conv_3x3", 0, 2), Edge("conv_3x3", 1, 2), Edge("skip_connect", 2, 3), Edge("null", 0, 3))
    graph = Graph(edges, (3,))
    arch = natpp.Architecture(graph, graph)
    inputs = Subjects(cells_of([arch], Frame("nat++", setting("cifar"), strict=True), tuple(OPS)))
    names = list(OPS)
    after = ["conv_1x1", "conv_3x3", "null", "null"]
    row = np.array([names.index(op) for op in after * 2])
    # The harmless change of the first edge is the least probable, so it goes first, and comes back.
    probability = np.array([0.1, 0.9, 0.5, 0.9] * 2)
    found = inputs.transformed(0, inputs.repaired(0, row, probability))
    assert found.normal.ops == ("conv_1x1", "conv_3x3", "skip_connect", "null")


@pytest.mark.parametrize("name", list(ZOO))
def test_the_policy_that_ships_keeps_every_published_cell_alive_and_no_dearer(name: str) -> None:
    found = natpp.optimize(name)
    where = setting("cifar" if found.before.reduce is not None else "nasbench201")
    assert alive_in(found.after, where).reached[-1] == alive_in(found.before, where).reached[-1]
    assert found.cost_after.live_params <= found.cost_before.live_params
    assert found.cost_after.live_madds <= found.cost_before.live_madds
