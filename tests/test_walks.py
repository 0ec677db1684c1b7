"""How much code one call goes through: the files and functions of natpp that a reader has to follow."""

import importlib
import json
import os
import pkgutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import natpp

LIMITS = {  # most files and functions: what they are now; lower them when a change brings them down
    "optimize darts": (38, 238),
    "search": (61, 486),
    "tuned": (85, 649),
}
PACKAGE = Path(natpp.__file__).parent


def optimize_darts() -> None:
    """`natpp optimize darts`."""
    from natpp.cli import main

    main(["optimize", "darts"])


def search() -> None:
    """The shortest `natpp search --task digits`."""
    from natpp.cli import main

    main(["search", "--task", "digits", "--evaluations", "4", "--train-steps", "2", "--steps", "3", "--out", "run"])


def tuned() -> None:
    """`natpp.optimize` of `resnet20`, learned on loaders under a budget."""
    import torch

    torch.manual_seed(0)
    images, labels = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))
    batches = [(images[at : at + 16], labels[at : at + 16]) for at in range(0, 64, 16)]
    task, scorer = natpp.Task(batches, batches), "short:steps=2"
    model, example = natpp.zoo.network("resnet20"), images[:1]
    decisions = natpp.Decisions(kinds=("operation", "term"))  # so that a policy is tuned
    given = {"example_input": example, "task": task, "scorer": scorer, "decisions": decisions}
    natpp.optimize(model, "tuned:evaluations=4", 0.6, **given)


WALKS: dict[str, Callable[[], None]] = {"optimize darts": optimize_darts, "search": search, "tuned": tuned}


def walked(name: str) -> list[tuple[str, str]]:
    """The functions of natpp that a call runs, as (file, name), without comprehensions and lambdas."""
    for module in pkgutil.walk_packages(natpp.__path__, "natpp."):  # what runs on import does not count
        if "__main__" not in module.name and not module.name.startswith("natpp.kernels."):
            importlib.import_module(module.name)
    found = set()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)) and not code.co_name.startswith("<"):
            found.add((os.path.relpath(code.co_filename, PACKAGE), code.co_name, code.co_firstlineno))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        WALKS[name]()
    finally:
        sys.setprofile(None)
    return sorted((file, function) for file, function, _ in found)


@pytest.mark.parametrize("name", WALKS)
def test_a_call_goes_through_little_code(name: str, tmp_path: Path) -> None:
    code = f"import json, sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_walks as walks; "
    code += f"json.dump(walks.walked({name!r}), open('walk.json', 'w'))"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    functions = json.loads((tmp_path / "walk.json").read_text())
    files = {file for file, _ in functions}
    counted = len(files), len(functions)
    assert all(count <= most for count, most in zip(counted, LIMITS[name], strict=True)), (counted, sorted(files))
