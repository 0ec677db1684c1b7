"""The device, precision and processes of a run, and its folder, which the first process writes."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import torch

from natpp.errors import SettingError, did_you_mean
from natpp.folder import Folder
from natpp.run import Run

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PRECISIONS = {"auto": "", "32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


def make_fabric(device: str = "auto", precision: str = "auto") -> Fabric:
    """Device, precision and processes: those of `torchrun` if started by it, else one process."""
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy

    if device not in ("auto", "cpu") and not device.startswith("cuda"):
        raise SettingError(f"unknown device {device!r}. {did_you_mean(device, ['auto', 'cpu', 'cuda'])}")
    cuda = torch.cuda.is_available() and device != "cpu"
    if device.startswith("cuda") and not cuda:
        raise SettingError("this machine has no CUDA device: use --device cpu, or auto")
    if device.removeprefix("cuda").removeprefix(":") not in ("auto", "cpu", "") and not device[5:].isdigit():
        raise SettingError(f"unknown device {device!r}, expected cuda or cuda:N")
    if precision not in PRECISIONS:
        raise SettingError(f"unknown precision {precision!r}. {did_you_mean(precision, PRECISIONS)}")
    if precision == "16" and not cuda:
        raise SettingError("precision 16 needs a GPU: use 32, or bf16")
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it would log the settings
    wanted = PRECISIONS[precision] or ("bf16-mixed" if cuda else "32-true")
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    several = processes > 1
    fabric = Fabric(
        accelerator="cuda" if cuda else "cpu",
        devices=[int(device[5:])] if device.startswith("cuda:") and not several else _local(processes),
        num_nodes=processes // _local(processes),
        strategy=DDPStrategy(find_unused_parameters=True) if several else "auto",
        precision=wanted,  # type: ignore[arg-type]
    )
    if several:
        fabric.launch()
    return fabric


def open_folder(run: Run, settings: dict[str, Any], fabric: Fabric) -> Folder:
    """The run's folder; if there are several processes, only the first writes into it."""
    if fabric.global_rank:
        return Folder(None, settings)
    return Folder(run.out, settings, resume=run.resume, tensorboard=run.tensorboard)


def leave(fabric: Fabric) -> None:
    """Exit together: a process that exits while another still communicates with it can crash that one."""
    if fabric.world_size > 1:
        fabric.barrier()
        torch.distributed.destroy_process_group()


def _local(processes: int) -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", processes))
