"""Calls on a Ray cluster, with a stand-in for Ray that runs them at once."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from natpp.errors import SettingError
from natpp.runs.workers import Cluster


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


def test_a_missing_ray_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingError, match="pip install ray, or leave --ray out"):
        Cluster(tmp_path)
