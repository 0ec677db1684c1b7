"""Where and how a long run executes, and what it reports: one value shared by all long-running verbs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from natpp.config import At, Config, Form, Plain

Watch = Callable[[str, int, int, dict[str, float]], None]  # phase, steps done, of how many, figures
Say = Callable[[str], None]  # a line that the user should see


@dataclass(frozen=True)
class Run(Config):
    """Where it runs and where it is kept.

    Examples:
        >>> natpp.Run(out="runs/a", seed=3).changed()
        {'out': 'runs/a', 'seed': 3}
    """

    out: Annotated[str | Path | None, Form("RUN")] = None
    """folder to keep the run in: settings, curves, checkpoints, the result"""
    resume: bool = False
    """continue the run in the folder; start it if there is none"""
    seed: Annotated[int, At(0, 2**63 - 1)] = 0
    """seed of everything random"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    precision: Literal["auto", "32", "bf16", "16"] = "auto"
    """auto (bf16 on a GPU), 32, bf16 or 16"""
    workers: Literal["here", "ray"] = "here"
    """where short trainings run: here (in all processes that torchrun started, if any), or ray: as tasks on the Ray
    cluster at RAY_ADDRESS, or on a local one"""
    tensorboard: bool = False
    """write curves for TensorBoard too"""
    watch: Annotated[Watch | None, Plain] = None
    """called with the phase, the steps done, of how many, and figures"""
    say: Annotated[Say | None, Plain] = None
    """called with a line that the user should see"""
