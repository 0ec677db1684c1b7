"""Calls as tasks of a Ray cluster (the one at `RAY_ADDRESS`, or a local one), and short trainings by such calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting
from natpp.data.batches import Batches
from natpp.errors import NatppError, SettingError
from natpp.run import Run
from natpp.runs.fabric import make_fabric
from natpp.scorers.short import ShortScorer
from natpp.training.outcome import Outcome
from natpp.training.recipe import ShortConfig

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Cluster:
    """Runs calls wherever the cluster has room: each on one GPU, or on as many CPU cores as there are threads here."""

    def __init__(self, code: Path, excludes: Sequence[str] = (), *, gpu: bool | None = None) -> None:
        """`code` is the package folder that the functions are imported from; it is copied to the workers."""
        try:
            import ray
        except ImportError:
            raise SettingError("Ray is not installed: pip install ray, or leave out workers") from None
        self.ray, self.gpu = ray, torch.cuda.is_available() if gpu is None else gpu
        environment = {"py_modules": [str(code)], "excludes": list(excludes)}
        ray.init(ignore_reinit_error=True, runtime_env=environment)

    @property
    def room(self) -> int:
        """Number of calls at a time."""
        found = self.ray.cluster_resources()
        return max(int(found.get("GPU", 1) if self.gpu else found.get("CPU", 1) / torch.get_num_threads()), 1)

    def share(self, value: Any) -> Any:
        """A value that several calls need, sent once."""
        return self.ray.put(value)

    def start(self, function: Callable[..., Any], *given: Any) -> Any:
        """Call a function as soon as there is room; returns the job."""
        needs = {"num_gpus": 1} if self.gpu else {"num_cpus": torch.get_num_threads()}
        return self.ray.remote(**needs)(function).remote(*given)

    def finished(self, jobs: list[Any]) -> Iterator[tuple[Any, Any]]:
        """Jobs and their results, in the order in which they finish."""
        while jobs:
            (done, *_), jobs = self.ray.wait(jobs, num_returns=1)
            try:
                result = self.ray.get(done)
            except self.ray.exceptions.RayError as error:
                raise NatppError(f"a task on the Ray cluster failed: {str(error).strip().splitlines()[-1]}") from error
            yield done, result


class SharedScorer(ShortScorer):
    """Short trainings shared between workers; the scores are those of trainings here."""

    def __init__(
        self,
        workers: Cluster,
        images: Batches,
        where: Setting,
        config: ShortConfig,
        fabric: Fabric,
        *,
        seed: int = 0,
        store: str | Path | None = None,
        say: Callable[[str], None] | None = None,
    ):
        super().__init__(images, where, config, fabric, seed=seed, store=store, say=say)
        self.workers = workers
        self.together = config.together * workers.room

    @property
    def seconds_each(self) -> float:
        return super().seconds_each / self.workers.room

    @functools.cached_property
    def _common(self) -> Any:
        """The arguments that all calls share."""
        how = self.fabric.device.type, "bf16" if self.trial.in_half else "32", torch.get_num_threads()
        return self.workers.share((self.images.made, self.where, self.config, self.seed, how))

    def _trained(self, keys: list[Architecture]) -> dict[Architecture, Outcome]:
        room = min(self.workers.room, len(keys))
        groups = [keys[first::room] for first in range(room)]
        jobs = {self.workers.start(train_apart, self._common, some): some for some in groups}
        found: dict[Architecture, Outcome] = {}
        for job, outcomes in self.workers.finished(list(jobs)):
            for key, outcome in zip(jobs[job], outcomes, strict=True):
                self._keep(key, outcome)
                found[key] = outcome
        return found


def train_apart(common: Any, archs: list[Architecture]) -> list[Outcome]:
    """Outcomes of short trainings, in a worker."""
    images, where, config, seed, (device, precision, threads) = common
    torch.set_num_threads(threads)  # on a CPU, outcomes depend on it
    fabric = make_fabric(device, precision)
    scorer = ShortScorer(Batches(device=fabric.device, **images), where, config, fabric, seed=seed)
    scorer.together = len(archs)
    return scorer.outcomes(archs)


def on_ray(fabric: Fabric) -> Callable[..., ShortScorer]:
    """A function that makes scorers whose short trainings run on a Ray cluster."""
    if fabric.world_size > 1:
        raise SettingError("workers is ray, but torchrun has also started processes: use only one of them")
    cluster = Cluster(Path(__file__).parents[1], gpu=fabric.device.type == "cuda")
    return functools.partial(SharedScorer, cluster)


def check_here(run: Run, what: str) -> None:
    """Raise an error if workers are given, but there is nothing to share with them."""
    if run.workers != "here":
        raise SettingError(
            f"workers is {run.workers}, but {what}: only short trainings of architectures can be shared; "
            "leave out workers"
        )
