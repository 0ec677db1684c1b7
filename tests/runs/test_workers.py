"""Calls on a Ray cluster, with a stand-in for Ray that runs them at once, and short trainings by them."""

import functools
import importlib.util
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import natpp
from natpp.cli import main
from natpp.errors import NatppError, SettingError
from natpp.runs import workers
from natpp.runs.fabric import make_fabric
from natpp.runs.workers import Cluster, SharedScorer
from natpp.scorers.base import Scorer
from natpp.scorers.short import ShortScorer
from natpp.testing import check_scorer
from natpp.training.outcome import Outcome
from natpp.training.recipe import ShortConfig
from natpp.training.task import Task

ARCHS = [natpp.load(name) for name in ("resnet_block", "vgg_block", "natpp_vgg_block", "darts", "enas")]
SHORT = ("--nodes=2,3", "--train-steps=2", "--batch=64", "--channels=2", "--cells=1", "--evaluations=8", "--steps=3")


def test_jobs_come_back_as_they_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ray, started = ModuleType("ray"), {}

    def remote(**_: object) -> Any:
        return lambda function: SimpleNamespace(remote=lambda *given: SimpleNamespace(result=function(*given)))

    ray.__dict__.update(
        init=lambda **options: started.update(options),
        remote=remote,
        wait=lambda jobs, num_returns: (jobs[-num_returns:], jobs[:-num_returns]),  # the last one ends first
        get=lambda job: job.result,
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    cluster = Cluster(tmp_path, ("results",))
    assert started["runtime_env"] == {"py_modules": [str(tmp_path)], "excludes": ["results"]}
    jobs = [cluster.start(pow, 2, power) for power in (1, 2, 3)]
    assert [(jobs.index(job), result) for job, result in cluster.finished(jobs)] == [(2, 8), (1, 4), (0, 2)]


def test_a_failed_task_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class RayError(Exception):
        pass

    def get(_: object) -> None:
        raise RayError("ray::train_apart()\n  File …\nOSError: there is no folder")

    ray = ModuleType("ray")
    ray.__dict__.update(
        init=lambda **_: None,
        wait=lambda jobs, num_returns: (jobs, []),
        get=get,
        exceptions=SimpleNamespace(RayError=RayError),
        cluster_resources=lambda: {"CPU": 3.0 * torch.get_num_threads(), "GPU": 2.0},
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(NatppError, match=r"^a task on the Ray cluster failed: OSError: there is no folder$"):
        list(Cluster(tmp_path).finished([1]))
    assert [Cluster(tmp_path, gpu=gpu).room for gpu in (False, True)] == [3, 2]


def test_a_missing_ray_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingError, match="Ray is not installed: pip install ray"):
        Cluster(tmp_path)


class Apart:
    """Workers that run each call here, on copies as another process gets them; the last one ends first."""

    def __init__(self, *_: object, room: int = 2, **__: object) -> None:
        self.room, self.results = room, list[Any]()

    @property
    def called(self) -> int:
        return len(self.results)

    def share(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def start(self, function: Callable[..., Any], shared: bytes, *given: Any) -> int:
        shared, given = pickle.loads(shared), pickle.loads(pickle.dumps(given))  # noqa: S301 (bytes from here)
        self.results.append(function(shared, *given))
        return len(self.results) - 1

    def finished(self, jobs: list[int]) -> Iterator[tuple[int, Any]]:
        return ((job, self.results[job]) for job in reversed(jobs))


def scorer(kind: Callable[..., ShortScorer] = ShortScorer, **more: Any) -> ShortScorer:
    images = Task.named("digits").batches("cpu")
    where = natpp.arch.networks.setting("cifar", channels=2, cells=1, size=images.size, classes=images.classes)
    return kind(images, where, ShortConfig(batch=32, steps=2, together=2, augment=True), make_fabric("cpu"), **more)


def untimed(outcomes: list[Outcome]) -> list[tuple[Any, ...]]:
    return [(one.value, one.loss, one.accuracy, one.curve) for one in outcomes]


def test_workers_give_the_scores_of_trainings_here(tmp_path: Path) -> None:
    here = untimed(scorer(seed=3).outcomes(ARCHS))
    for room in (1, 2, 9):
        store = tmp_path / f"{room}.jsonl"
        apart = Apart(room=room)
        assert untimed(scorer(functools.partial(SharedScorer, apart), seed=3, store=store).outcomes(ARCHS)) == here
        assert apart.called == {1: 3, 2: 3, 9: 5}[room]  # groups of at most two a worker
        again = scorer(functools.partial(SharedScorer, Apart()), seed=3, store=store)
        assert untimed(again.outcomes(ARCHS)) == here
        assert again.workers.called == 0


def test_a_shared_scorer_keeps_its_promises() -> None:
    def made(limit: int | None = None) -> Scorer:
        found = scorer(functools.partial(SharedScorer, Apart()))
        found.limit = limit
        return found

    check_scorer(made, ARCHS[:3])


def test_a_search_by_workers_is_the_search_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "Cluster", Apart)
    given = ["search", "--task", "digits", "--device", "cpu", *SHORT]
    for name, more in (("here", []), ("apart", ["--workers", "ray"])):
        assert main([*given, "--out", str(tmp_path / name), *more]) == 0
    policies = {(tmp_path / name / "policy.safetensors").read_bytes() for name in ("here", "apart")}
    assert len(policies) == 1
    assert main([*given, "--out", str(tmp_path / "apart"), "--resume"]) == 0  # with or without workers


def test_workers_are_for_short_trainings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["search", "--task", "digits", "--workers", "ray", "--out", str(tmp_path / "run")]
    assert main([*given, "--scorer", "supernet"]) == 2
    assert "workers is ray, but scores come from supernet: only short trainings" in capsys.readouterr().err
    assert main([*given[:-3], "rai", *given[-2:]]) == 2
    assert "workers" in capsys.readouterr().err
    assert main(["train", "darts", *given[1:]]) == 2
    assert "unknown flag --workers" in capsys.readouterr().err
    with pytest.raises(SettingError, match="workers is ray, but this is a single training"):
        natpp.train("darts", "digits", run=natpp.Run(workers="ray"))
    assert not (tmp_path / "run").exists()
    with pytest.raises(SettingError, match="torchrun has also started processes"):
        workers.on_ray(SimpleNamespace(world_size=2))


def test_scores_by_workers_are_those_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "Cluster", Apart)
    by, cells = "short:steps=1,channels=2,cells=1", ["darts", "|nor_conv_3x3~0|"]
    here, apart = (
        natpp.score(cells, by, task="digits", run=natpp.Run(device="cpu", workers=where)) for where in ("here", "ray")
    )
    assert untimed(apart) == untimed(here)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install ray")
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_gives_the_scores_of_trainings_here() -> None:
    here = scorer(seed=3).outcomes(ARCHS)
    cluster = Cluster(Path(natpp.__file__).parent)
    try:
        apart = scorer(functools.partial(SharedScorer, cluster), seed=3).outcomes(ARCHS)
    finally:
        cluster.ray.shutdown()
    assert untimed(apart) == untimed(here)
