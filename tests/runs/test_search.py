"""A search from images to a policy: it runs, stops, goes on to the same bits, and refuses what is wrong."""

import contextlib
import functools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import natpp
from natpp.arch.networks import setting
from natpp.arch.space import CellSpace, nasbench201_space
from natpp.cli import main
from natpp.core.scores import Scores
from natpp.data.batches import Batches
from natpp.data.images import Images
from natpp.data.named import Data
from natpp.data.sets import load_images
from natpp.errors import FormatError, NatppError, SettingError
from natpp.folder import Folder, Interrupted
from natpp.methods.learning import best
from natpp.methods.policy import PolicyMethod
from natpp.methods.random import random_rows
from natpp.nets.policy import Policy, load_policy
from natpp.runs.fabric import make_fabric
from natpp.runs.phases import PRESETS, Phases
from natpp.runs.scoring import Wanted, as_scoring
from natpp.runs.search import Search
from natpp.runs.searching import STEPS_TO_PLAN, Searching
from natpp.scorers.base import Scorer
from natpp.scorers.predicted import PredictConfig
from natpp.scorers.short import ShortScorer, usual_schedule
from natpp.scorers.supernet import Weights, usual_setting
from natpp.seeds import Use, generator
from natpp.subjects.cells import Frame, cells_of
from natpp.subjects.many import Subjects
from tests.asking import searched

TINY: dict[str, Any] = {
    "scorer": "supernet",
    "nodes": (2, 3),
    "epochs": 3,
    "architectures": 4,
    "batch": 4,
    "channels": 2,
    "cells": 1,
    "evaluations": 24,
    "steps": 12,
}
SHORT = "--nodes=2,3 --train-steps=2 --batch=64 --channels=2 --cells=1 --evaluations=12 --steps=12"


def images(count: int = 64) -> Images:
    """Two kinds of stripes in noise."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 100, size=(count, 3, 8, 8))
    labels = np.arange(count) % 2
    pixels[labels == 0, :, ::2] += 120
    pixels[labels == 1, :, :, ::2] += 120
    return Images(
        "stripes", 2, pixels.astype(np.uint8), labels.astype(np.int64), pixels[:4].astype(np.uint8), labels[:4]
    )


@pytest.fixture(autouse=True)
def small_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few inputs and short fits; processes of their own have the real ones."""
    for name, made in list(PRESETS.items()):

        def small(*, made: Any = made, **given: Any) -> Phases:
            found = made(**given)
            learn = replace(found.learn, inputs=min(found.learn.inputs, 8), samples=min(found.learn.samples, 4))
            return replace(found, pool=60, learn=learn, predict=PredictConfig(rounds=2))

        monkeypatch.setitem(PRESETS, name, small)


def search(**settings: Any) -> Policy:
    return searched(images(), **TINY | settings)


def bits(policy: Policy) -> bytes:
    return b"".join(tensor.numpy().tobytes() for tensor in policy.state_dict().values())


@functools.cache
def undisturbed() -> bytes:
    """The policy of a search that nobody disturbed."""
    return bits(search())


class Crash(Exception):
    pass


def crash_at(moment: int):
    """A watch that ends everything, unsaved, at some moment."""
    told = []

    def watch(phase: str, done: int, total: int, figures: dict[str, float]) -> None:
        told.append(phase)
        if len(told) == moment:
            raise Crash

    return watch


def test_the_same_seed_gives_the_same_policy() -> None:
    assert bits(search()) == undisturbed() != bits(search(seed=1))


WAYS: dict[str, dict[str, Any]] = {
    "supernet": {},
    "short": {"scorer": "short", "train_steps": 2, "together": 5},
    "paper": {"preset": "paper", "steps": None},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_crash_at_any_moment_and_resume_give_the_same_policy(way: str, tmp_path: Path) -> None:
    settings = WAYS[way]
    phases: list[str] = []
    straight = bits(search(**settings, out=tmp_path / "straight", watch=lambda phase, *_: phases.append(phase)))
    assert (
        set(phases)
        == {
            "supernet": {"weights", "scores", "policy"},
            "short": {"scores", "policy"},
            "paper": {"weights", "policy"},
        }[way]
    )
    first = {phase: phases.index(phase) + 1 for phase in set(phases)}
    moments = {*first.values(), *(moment + 1 for moment in first.values()), len(phases) // 2, len(phases)}
    curves = (tmp_path / "straight" / "metrics.jsonl").read_text().splitlines()
    for moment in sorted(moments):
        out = tmp_path / str(moment)
        with pytest.raises(Crash):
            search(**settings, out=out, watch=crash_at(moment))
        assert bits(search(**settings, out=out, resume=True)) == straight
        again = (out / "metrics.jsonl").read_text().splitlines()
        if way != "short":  # scores that are in the store already come at once
            assert [_untimed(row) for row in again] == [_untimed(row) for row in curves]


def _untimed(row: str) -> dict[str, Any]:
    return {name: value for name, value in json.loads(row).items() if name != "seconds"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_after_the_step_with_everything_saved(number: int, tmp_path: Path) -> None:
    straight = undisturbed()

    def watch(phase: str, done: int, *_: object) -> None:
        if phase == "weights" and done == 5:
            os.kill(os.getpid(), number)

    with pytest.raises(Interrupted, match="--resume goes on") as stopped:
        search(out=tmp_path, watch=watch)
    assert stopped.value.status == 128 + number
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert state["weights"]["steps"] == 5  # in the middle of an epoch of three steps
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert bits(search(out=tmp_path, resume=True)) == straight


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    straight = search(out=tmp_path)

    def watch(*_: object) -> None:
        raise AssertionError

    assert bits(search(out=tmp_path, resume=True, watch=watch)) == bits(straight)
    loaded, notes = load_policy(tmp_path / "policy.safetensors")
    assert bits(loaded) == bits(straight)
    assert (notes["data"], notes["rule"], notes["seed"]) == ("stripes", "nat++", 0)


def test_a_policy_of_a_run_optimizes(tmp_path: Path) -> None:
    search(out=tmp_path / "run", extras=True)
    found = natpp.optimize("enas", tmp_path / "run")
    assert found.cost_after.live_madds <= found.cost_before.live_madds
    (tmp_path / "run" / "policy.safetensors").unlink()
    with pytest.raises(FormatError, match="has not ended"):
        natpp.optimize("enas", tmp_path / "run")


def test_one_given_architecture(tmp_path: Path) -> None:
    """Eq. (1): the policy is for that one, and the best of its choices by real scores is kept."""
    search(arch="vgg_block", out=tmp_path, evaluations=40)
    chosen = natpp.load(tmp_path / "architecture.json")
    before, after = natpp.cost("vgg_block"), natpp.cost(chosen)
    assert after.live_params <= before.live_params
    assert after.live_madds <= before.live_madds
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["phase"], last["inputs"]) == ("choices", 1)
    assert 30 < last["evaluations"] <= 40  # transformations of the one input, enough to learn from
    assert last["after"] >= last["before"]


@pytest.mark.parametrize("settings", [{"evaluations": 2}, {"evaluations": 15}, {"evaluations": None, "minutes": 0.02}])
def test_one_given_architecture_with_few_scores(settings: dict[str, Any], tmp_path: Path) -> None:
    search(arch="vgg_block", out=tmp_path, **settings)
    assert (tmp_path / "architecture.json").exists()


def test_one_given_architecture_by_free_scores(tmp_path: Path) -> None:
    searched(scorer=CountOps("skip_connect"), arch="vgg_block", steps=40, budget="rule", out=tmp_path, minutes=1)
    chosen = natpp.load(tmp_path / "architecture.json")
    assert CountOps("skip_connect")([chosen])[0] > CountOps("skip_connect")([natpp.load("vgg_block")])[0]


def test_a_scorers_own_limit_holds() -> None:
    class Dear(CountOps):
        free = False

    scorer = Dear("skip_connect")
    scorer.limit = 20
    searched(scorer=scorer, nodes=(2,), steps=3)
    assert 10 < scorer.queries <= 20


def test_the_limit_holds_and_some_of_it_goes_to_final_choices(tmp_path: Path) -> None:
    search(out=tmp_path, evaluations=30)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    last = rows[-1]
    assert (last["phase"], last["inputs"]) == ("choices", 1)
    assert 27 < last["evaluations"] <= 30
    assert max(row["step"] for row in rows if row["phase"] == "scores") <= 30


@pytest.mark.parametrize(("evaluations", "final"), [(12, 0), (20, 2), (30, 2), (45, 4)])
def test_no_score_is_kept_back_in_vain(evaluations: int, final: int) -> None:
    """A final choice takes two, before and after: of an odd number one would never be made."""

    class Dear(CountOps):
        free = False

    scorer, told = Dear("skip_connect"), []
    searched(
        scorer=scorer,
        nodes=(3,),
        steps=3,
        evaluations=evaluations,
        watch=lambda phase, done, total, _: told.append(total) if phase == "scores" else None,
    )
    assert told[0] == evaluations - final
    assert evaluations - 2 < scorer.queries <= evaluations  # a choice may have been scored before


class CountOps(Scorer):
    """Likes operations of a name."""

    free = True

    def __init__(self, name: str):
        super().__init__()
        self.name = name

    def key(self, arch: natpp.Architecture) -> natpp.Architecture:
        return arch

    def _score(self, archs: list[natpp.Architecture]) -> Scores:
        return np.array([sum(self.name in op for op in arch.normal.ops) for arch in archs], dtype=float)


def test_a_price_on_cost_makes_cheaper_choices() -> None:
    inputs = CellSpace((3,)).draw(20, np.random.default_rng(1))

    def mean_madds(price: float) -> float:
        policy = searched(scorer=CountOps("conv"), nodes=(3,), price={"madds": price}, steps=150)
        return float(np.mean([natpp.optimize(arch, policy).cost_after.live_madds for arch in inputs]))

    assert mean_madds(1000) < 0.8 * mean_madds(0)


def test_nasbench201_from_images_and_a_run_as_scorer(tmp_path: Path) -> None:
    search(space="nasbench201", out=tmp_path / "run")
    with pytest.raises(NatppError, match="unknown data set 'stripes'"):
        as_scoring(tmp_path / "run").make(Wanted("cifar", Data()))  # its images were given as a value
    policy = searched("digits", space="nasbench201", out=tmp_path / "digits", **{**TINY, "nodes": (4,)})
    scorer = as_scoring(tmp_path / "digits").make(Wanted("nasbench201", Data()))
    state = torch.load(tmp_path / "digits" / "checkpoint.pt", weights_only=True)
    known = {natpp.load(text): score for text, score in state["known"]}
    drawn = nasbench201_space().draw(60, generator(0, Use.DRAW, 0))
    some = [arch for arch in drawn if arch.essence() in known]
    assert len(some) > 5
    assert np.abs(scorer(some) - [known[arch.essence()] for arch in some]).max() < 0.6  # two images of 359
    arch = drawn[0]
    result = natpp.optimize(arch, PolicyMethod(learned=policy, mode="best-of", samples=3), scorer=tmp_path / "digits")
    assert result.cost_after.live_madds <= result.cost_before.live_madds
    again = searched(scorer=tmp_path / "digits", space="nasbench201", evaluations=20, steps=5)
    assert again.ops == policy.ops


def test_the_share_of_random_scores_is_a_setting() -> None:
    def asked(share: float) -> list[float]:
        scorer = CountOps("skip_connect")
        searched(scorer=scorer, nodes=(3,), steps=1, evaluations=30, random_share=share)
        return scorer(list(scorer.known)).tolist()

    drawn, mostly_chosen = asked(1.0), asked(0.2)
    assert len(drawn) == len(mostly_chosen) == 30
    assert np.mean(mostly_chosen) > np.mean(drawn) + 1  # those that are chosen have more of what is liked
    with pytest.raises(SettingError, match=r"random_share is 1\.5, expected a number above 0 to 1"):
        searched("digits", random_share=1.5)


def test_with_caution_a_search_changes_less() -> None:
    inputs = CellSpace((3,)).draw(20, np.random.default_rng(1))

    def changed(caution: float | None) -> int:
        asked = {"budget": "rule", "steps": 100, "evaluations": 12, "caution": caution}
        policy = searched(scorer=CountOps("conv"), nodes=(3,), **asked)
        return sum(len(natpp.optimize(arch, policy, budget="rule").changes) for arch in inputs)

    assert changed(2.0) < changed(None)


def test_a_search_by_a_scorer_of_ones_own() -> None:
    skips = CountOps("skip_connect")
    policy = searched(scorer=skips, nodes=(3,), steps=250)
    inputs = CellSpace((3,)).draw(30, np.random.default_rng(5))
    after = [natpp.optimize(arch, policy, budget="rule").after for arch in inputs]
    assert skips(after).mean() > skips(inputs).mean() + 1.5


def test_a_loss_that_is_no_number_stops_with_its_step_and_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = undisturbed()
    step = Weights.step

    def broken(self: Weights, archs: Any, pixels: torch.Tensor, *rest: Any) -> torch.Tensor:
        return step(self, archs, pixels * (float("nan") if self.steps == 7 else 1), *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Weights, "step", broken)
        with pytest.raises(NatppError, match=r"the loss in step 7 is not a number, with the architecture \{"):
            search(out=tmp_path)
    assert bits(search(out=tmp_path, resume=True)) == straight


def test_out_of_memory_says_what_to_lower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Weights.step

    def full(self: Weights, *given: Any) -> torch.Tensor:
        if self.steps == limit:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return step(self, *given)

    monkeypatch.setattr(Weights, "step", full)
    advice = "lower --batch, --architectures, --channels or --cells"
    limit = 0
    with pytest.raises(NatppError, match=f"out of memory on cpu in step 0: {advice}$"):
        search(out=tmp_path)
    limit = 4  # in the second epoch
    with pytest.raises(NatppError, match=rf"out of memory on cpu in step 4: {advice}\. The last checkpoint is kept$"):
        search(out=tmp_path)
    with pytest.raises(NatppError, match=r"The last checkpoint is kept$"):  # that of before
        search(out=tmp_path, resume=True)


def test_a_run_is_not_overwritten_nor_resumed_with_other_settings(tmp_path: Path) -> None:
    search(out=tmp_path)
    kept = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(SettingError, match="already holds a run"):
        search(out=tmp_path)
    with pytest.raises(SettingError, match="started with seed 0, not 1"):
        search(out=tmp_path, seed=1, resume=True)
    with pytest.raises(SettingError, match="started with epochs 3, not 4"):
        search(out=tmp_path, epochs=4, resume=True)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == kept


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    straight = undisturbed()
    with pytest.raises(Crash):
        search(out=tmp_path, watch=crash_at(9))
    checkpoint = tmp_path / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    assert bits(search(out=tmp_path, resume=True)) == straight
    for name in ("checkpoint.pt", "previous.pt"):
        (tmp_path / name).write_bytes(b"nonsense")
    with pytest.raises(FormatError, match="is damaged, and so is the one before it, if any: start again"):
        search(out=tmp_path, resume=True)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(FormatError, match="it is not JSON"):
        search(out=tmp_path, resume=True)


def test_a_folder_that_holds_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"versions": 3}')
    with pytest.raises(NatppError, match="holds other files"):
        search(out=tmp_path)
    with pytest.raises(NatppError, match="is a file, expected a folder"):
        search(out=tmp_path / "config.json")
    assert (tmp_path / "config.json").read_text() == '{"versions": 3}'
    assert len(list(tmp_path.iterdir())) == 1


def test_a_run_that_never_began_can_be_started_anew(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        search(out=tmp_path, watch=crash_at(1))
    (tmp_path / "checkpoint.pt").unlink(missing_ok=True)
    search(out=tmp_path, seed=1)
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == 1


def test_resume_starts_a_run_that_is_not_there(tmp_path: Path) -> None:
    assert bits(search(out=tmp_path / "new", resume=True)) == undisturbed()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"preset": "bset"}, "Did you mean 'best'"),
        ({"rule": "nut"}, "Did you mean 'nat'"),
        ({"space": "cell"}, "Did you mean 'cells'"),
        ({"budget": "strct"}, "Did you mean 'strict'"),
        ({"nodes": (0,)}, "each a whole number from 1 up"),
        ({"seed": -1}, "seed is -1"),
        ({"evaluations": 1}, "evaluations is 1"),
        ({"evaluations": 3.5}, "evaluations is 3.5"),
        ({"channels": 0}, "channels is 0"),
        ({"epochs": 0}, "from 1 up"),
        ({"batch": 1}, "batch is 1, expected a whole number from 2 up"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"device": "cuda:x"}, "CUDA|expected cuda"),
        ({"precision": "8"}, "unknown precision '8'"),
        ({"precision": "16", "device": "cpu"}, "precision 16 needs a GPU"),
        ({"price": {"latency": 1.0}}, "expected a mapping from params or madds to a number from 0 up"),
        ({"price": {"madds": -1.0}}, "from 0 up"),
        ({"scorer": "supernetz"}, "Did you mean 'supernet'"),
        ({"minutes": -1.0, "evaluations": None}, "minutes is -1.0"),
        ({"minutes": "1"}, "minutes is '1', expected a number"),
        ({"scorer": "short", "train_steps": -1}, "from 1 up"),
        ({"scorer": "nowhere.csv"}, "cannot read the table"),
        ({"resume": True}, "need a folder for the run"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(NatppError, match=words):
        search(**settings)


def test_wrong_data_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cifar10.safetensors").write_bytes(b"half a file")
    (tmp_path / "empty").mkdir()
    for flags, words in (
        (["--task", "digit"], "Did you mean 'digits'"),
        (["--task", "cifar10"], "natpp data cifar10 --root DIR"),
        (["--task", f"cifar10:root={tmp_path / 'empty'!s}"], "cifar10 is not in"),
        (["--task", f"cifar10:root={tmp_path!s}"], "damaged"),
        (["--task", str(tmp_path / "empty")], "has no class folders"),
        ([], "give a task, such as digits or cifar10:root=DIR, or an existing scorer"),
        (["--task", "digits:root=here"], "does not apply: leave it out"),
        (["--task", "digits", "--nodes", "x"], "nodes is 'x'"),
        (["--task", "digits", "--price", "madds"], "expected a mapping from params or madds"),
        (["--task", "digits", "--price", "foo=1"], "expected a mapping from params or madds"),
        (["--task", str(tmp_path / "cifar10.safetensors")], "is a file, expected"),
        (["--task", "digits", "--store", str(tmp_path / "nowhere" / "scores")], "Create it first"),
        (["--task", "digits", "--store", str(tmp_path / "cifar10.safetensors")], "is not a file of scores"),
    ):
        assert main(["search", "--out", str(tmp_path / "run"), *flags]) == 2
        said = capsys.readouterr().err
        assert words in said
        assert said.count("\n") == 1
        assert not (tmp_path / "run").exists()


def test_a_supernet_for_another_space_is_refused(tmp_path: Path) -> None:
    searched("digits", out=tmp_path, **TINY)
    scorer = as_scoring(tmp_path).make(Wanted("cifar", Data()))
    with pytest.raises(SettingError, match="no weights for"):
        scorer([natpp.sample(5, seed=1)])
    weights = tmp_path / "supernet.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(FormatError, match="damaged"):
        as_scoring(tmp_path).make(Wanted("cifar", Data()))
    weights.unlink()
    with pytest.raises(FormatError, match="has not ended"):
        as_scoring(tmp_path).make(Wanted("cifar", Data()))
    with pytest.raises(FormatError, match="is not a run"):
        as_scoring(tmp_path.parent).make(Wanted("cifar", Data()))


def test_a_training_is_no_search(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"recipe": {"epochs": 1}}))  # what natpp train writes, in short
    with pytest.raises(FormatError, match="is a training, not a search"):
        as_scoring(tmp_path).make(Wanted("cifar", Data()))
    with pytest.raises(FormatError, match="is a training, not a search"):
        natpp.optimize("darts", tmp_path)


def test_settings_survive_the_way_through_json() -> None:
    asked = Search(nodes=(3,), price={"madds": 1.0})
    assert Search.from_json(asked.to_json()) == asked


def test_curves_for_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    search(out=tmp_path, tensorboard=True)
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_a_run_keeps_the_curves_in_step_with_the_checkpoint(tmp_path: Path) -> None:
    run = Folder(tmp_path, {"seed": 0, "versions": {"natpp": "0"}})
    run.log({"phase": "a", "step": 1})
    run.save({})
    run.log({"phase": "a", "step": 2})
    again = Folder(tmp_path, {"seed": 0, "versions": {"natpp": "0"}}, resume=True)
    assert again.load() == {"rows": 1}
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1


def arguments(out: Path, *more: str) -> list[str]:
    return ["search", "--task", "digits", "--out", str(out), *SHORT.split(), *more]


def command(out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "natpp", *arguments(out, *more)]


ALONE = os.environ | {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, float]:
    """The policy of a search that nobody disturbed, and its seconds."""
    out = tmp_path_factory.mktemp("straight") / "run"
    start = time.monotonic()
    subprocess.run(command(out), check=True, env=ALONE, capture_output=True)
    return (out / "policy.safetensors").read_bytes(), time.monotonic() - start


@pytest.mark.xdist_group("straight")
def test_kill_9_at_three_random_moments_and_resume(straight: tuple[bytes, float], tmp_path: Path) -> None:
    expected, seconds = straight
    out = tmp_path / "killed"
    moments = random.Random()  # truly random, different every time
    for _ in range(3):
        process = subprocess.Popen(command(out, "--resume"), env=ALONE, stderr=subprocess.PIPE)
        time.sleep(moments.uniform(0.2, 0.9) * seconds)
        process.kill()
        process.communicate()
    subprocess.run(command(out, "--resume"), check=True, env=ALONE, capture_output=True)
    assert (out / "policy.safetensors").read_bytes() == expected


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_exits_as_signals_ask(number: int, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(tmp_path / "run", "--scorer=supernet", "--epochs=1000"), env=ALONE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    process.stderr.readline()  # the first step is done
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "--resume goes on" in said
    assert (tmp_path / "run" / "checkpoint.pt").exists()


def test_a_search_ends_in_the_time_there_is(tmp_path: Path) -> None:
    start = time.monotonic()
    said: list[str] = []
    small = {"nodes": (2,), "channels": 2, "cells": 1, "train_steps": 1, "batch": 8}
    searched(images(), minutes=0.02, steps=10**6, out=tmp_path, say=said.append, **small)
    assert time.monotonic() - start < 30
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert sum(row["phase"] == "scores" for row in rows) > 0
    trained = len((tmp_path / "scores.jsonl").read_text().splitlines())
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert 8 <= trained <= max(state["evaluations"], 16)  # the first ones at least
    assert state["learner"]["steps"] == state["steps"] < 10**6
    assert said[0] == f"there is time for {state['steps']} of 1000000 steps of the policy: more minutes may help it"


def test_a_search_that_took_longer_than_asked_says_so(tmp_path: Path) -> None:
    start = time.monotonic()
    said: list[str] = []
    small = {"nodes": (2,), "channels": 2, "cells": 1, "train_steps": 1, "batch": 8, "steps": STEPS_TO_PLAN}
    searched(images(), minutes=1e-4, out=tmp_path, say=said.append, **small)
    told = re.fullmatch(r"the search took (.*) seconds, more than its limit of 0\.006", said[-1])
    assert told is not None
    assert 0.05 < float(told[1]) <= time.monotonic() - start + 0.1
    said.clear()
    searched(images(), minutes=1e-4, out=tmp_path, say=said.append, resume=True, **small)
    assert said == []  # it is over
    searched(scorer=CountOps("conv"), nodes=(2,), steps=2, minutes=60, say=said.append)
    assert said == []


@pytest.mark.parametrize("way", ["supernet", "paper"])
def test_shared_weights_end_in_the_time_there_is(way: str, tmp_path: Path) -> None:
    start = time.monotonic()
    said: list[str] = []
    settings = WAYS[way] | {"minutes": 0.1, "epochs": 10**6, "evaluations": None, "out": tmp_path}
    search(**settings, say=said.append)
    assert time.monotonic() - start < 30
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert 2 < state["weights"]["steps"] == state["weight_steps"] < 10**5
    assert f"there is time for {state['weight_steps']} of 3000000 steps of the shared weights" in said[0]
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row for row in rows if row["phase"] == "weights"][-1]["step"] == state["weight_steps"]
    if way == "paper":
        assert state["learner"]["steps"] == state["steps"]
        assert f" and {state['steps']} of 4000000 of the policy: more minutes" in said[0]
        assert state["steps"] / 4 == pytest.approx(state["weight_steps"] / 3, abs=1)  # epochs of both


def test_of_many_minutes_shared_weights_take_what_their_epochs_need(tmp_path: Path) -> None:
    """Planned or not, nothing is cut that there is time for."""
    for epochs in (3, 10):  # fewer and more steps than tell how fast they are
        search(epochs=epochs, minutes=60, out=tmp_path / str(epochs))
        state = torch.load(tmp_path / str(epochs) / "checkpoint.pt", weights_only=True)
        assert state["weights"]["steps"] == 3 * epochs
        assert state["weight_steps"] == (30 if epochs == 10 else None)
    straight = bits(search(**WAYS["paper"] | {"epochs": 10}))
    assert bits(search(**WAYS["paper"] | {"epochs": 10}, minutes=60)) == straight


class Clock:
    """A second a look."""

    def __init__(self) -> None:
        self.looks = 0

    def perf_counter(self) -> float:
        self.looks += 1
        return float(self.looks)

    def monotonic(self) -> float:
        return time.monotonic()


@pytest.mark.parametrize("way", ["supernet", "paper"])
def test_a_plan_of_shared_weights_is_kept_when_resumed(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = WAYS[way] | {"minutes": 1.6, "epochs": 1000}

    def timed(**more: Any) -> bytes:
        with monkeypatch.context() as patch:
            clock = Clock()
            patch.setattr("natpp.runs.searching.time", clock)
            patch.setattr("natpp.runs.jobs.time", clock)
            if "resume" in more:
                patch.setattr(Searching, "_plan_weights", lambda *_: pytest.fail("planned again"))
            return bits(search(**settings, **more))

    phases: list[str] = []
    straight = timed(out=tmp_path / "straight", watch=lambda phase, *_: phases.append(phase))
    planned = torch.load(tmp_path / "straight" / "checkpoint.pt", weights_only=True)["weight_steps"]
    assert phases.count("weights") == planned
    assert STEPS_TO_PLAN + 5 < planned < 3000
    place = [number for number, phase in enumerate(phases, 1) if phase == "weights"]
    for moment in (place[STEPS_TO_PLAN + 2], len(phases)):
        out = tmp_path / str(moment)
        with pytest.raises(Crash):
            timed(out=out, watch=crash_at(moment))
        assert timed(out=out, resume=True) == straight


def test_of_many_minutes_a_search_takes_what_its_evaluations_need() -> None:
    class Dear(CountOps):
        free = False

    for evaluations in (4, 30):  # fewer and more than the first ones
        scorer = Dear("skip_connect")
        searched(scorer=scorer, minutes=60, evaluations=evaluations, nodes=(2,), steps=STEPS_TO_PLAN + 1)
        assert evaluations - 3 <= scorer.queries <= evaluations


def two_processes(*arguments: str) -> None:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*start, *arguments], env=ALONE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr[:3000]} … {done.stderr[-2000:]}"


def test_two_processes_take_the_steps_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One architecture each gives the gradients of two in one process."""
    short = ["--scorer=supernet", "--epochs=1", "--architectures=2", "--batch=128", "--steps=3", "--precision=32"]
    monkeypatch.undo()  # the real presets, as the two have them
    assert main(arguments(tmp_path / "one", *short)) == 0
    two_processes(*command(tmp_path / "two", *short)[1:])
    one, two = (
        torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["weights"]["supernet"]
        for name in ("one", "two")
    )
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, two[name], rtol=1e-3, atol=2e-5)
    assert (tmp_path / "two" / "policy.safetensors").exists()


@pytest.mark.xdist_group("straight")
def test_two_processes_share_short_trainings_and_choose_as_one(
    straight: tuple[bytes, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was stopped in one process is resumed by two; the policy is the same to the bit."""
    monkeypatch.undo()  # the real presets, as the two have them
    with monkeypatch.context() as patch:
        patch.setattr("natpp.cli.commands.shown_progress", lambda: contextlib.nullcontext(crash_at(1)))
        with pytest.raises(Crash):  # some are scored
            main(arguments(tmp_path / "two"))
    two_processes(*command(tmp_path / "two", "--resume")[1:])
    assert (tmp_path / "two" / "policy.safetensors").read_bytes() == straight[0]


def test_fabric_knows_its_devices() -> None:
    assert make_fabric("cpu").device.type == "cpu"
    if not torch.cuda.is_available():
        with pytest.raises(SettingError, match="no CUDA device"):
            make_fabric("cuda")


@pytest.mark.slow
def test_a_short_search_on_digits_beats_random_on_held_out_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both trained on what the search learned from, with other first weights, and judged on images it never saw."""
    monkeypatch.undo()  # the real presets
    digits = load_images("digits")
    learn, held_out = digits.split(400, seed=1)
    seen = Images("digits", 10, digits.train[learn], digits.train_labels[learn], digits.test, digits.test_labels)
    policy = searched(seen, evaluations=120, steps=300)
    task = Frame("nat++", setting("cifar"))
    inputs = Subjects(cells_of(CellSpace((4,)).draw(24, np.random.default_rng(9)), task, policy.ops))
    greedy = PolicyMethod("nat++", best(), policy).one_shot(inputs, lambda _: np.empty(0), np.random.default_rng(9))
    chance = [rows[0] for rows in random_rows(inputs, 1, np.random.default_rng(9))]
    batches = Batches(seen, validation=1)
    batches.validation = batches.normalized(torch.from_numpy(digits.train[held_out]))
    batches.validation_labels = torch.from_numpy(digits.train_labels[held_out])
    where = usual_setting("cifar", batches, "short")
    judge = ShortScorer(batches, where, usual_schedule(batches), make_fabric("cpu"), seed=100)

    def mean_score(rows: list[Any]) -> float:
        return float(judge([inputs.transformed(index, row) for index, row in enumerate(rows)]).mean())

    assert mean_score(greedy) > mean_score(chance)
