"""Run function calls as tasks of a Ray cluster: the one at `RAY_ADDRESS`, or a local one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from natpp.errors import SettingError


class Cluster:
    """Runs calls wherever the cluster has room, on one GPU each if it has any."""

    def __init__(self, code: Path, excludes: Sequence[str] = ()) -> None:
        """`code` is the package folder that the functions are imported from; it is copied to the workers."""
        try:
            import ray
        except ImportError:
            raise SettingError("--ray needs Ray, which is not installed: pip install ray, or leave --ray out") from None
        self.ray = ray
        environment = {"py_modules": [str(code)], "excludes": list(excludes)}
        ray.init(ignore_reinit_error=True, runtime_env=environment)

    def start(self, function: Callable[..., Any], *given: Any) -> Any:
        """Call a function as soon as there is room; returns the job."""
        return self.ray.remote(num_gpus=int(torch.cuda.is_available()))(function).remote(*given)

    def finished(self, jobs: list[Any]) -> Iterator[tuple[Any, Any]]:
        """Jobs and their results, in the order in which they finish."""
        while jobs:
            (done, *_), jobs = self.ray.wait(jobs, num_returns=1)
            yield done, self.ray.get(done)
