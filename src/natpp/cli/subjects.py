"""Read architectures and modules from the command line: a name, a file, a text, or a function of the user's file."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from natpp import verbs
from natpp.arch.load import load
from natpp.errors import FormatError, NatppError, SettingError, did_you_mean, shortened
from natpp.registry import MODELS, ZOO
from natpp.zoo.models import network

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor, nn

TEXT = "a zoo name, a file, '-' or the text itself"
MODEL = "a network of the zoo (NETWORK:weights=FILE: with these weights), or what a function in your own file returns"
LONGEST_NAME = 80  # of a subject in a report
FUNCTION = re.compile(r"(?P<file>.+\.py):(?P<name>\w+)")
NETWORK = re.compile(r"(?P<name>\w+)(:weights=(?P<weights>.+))?")


def is_module(word: str) -> bool:
    """Whether a word names a module: a network of the zoo, or FILE.py:FUNCTION. Anything else is an architecture."""
    return _network(word) is not None or FUNCTION.fullmatch(word) is not None


def _network(word: str) -> tuple[str, str | None] | None:
    """The network of the zoo that a word names, and the file of its weights, if any."""
    found = NETWORK.fullmatch(word)
    if found is None or (found["weights"] is None and word not in MODELS):
        return None
    MODELS[found["name"]]  # raises for an unknown name
    return found["name"], found["weights"]


def load_architecture(word: str) -> Any:
    """The architecture of a word; the error for an unknown one suggests the nearest architecture or network."""
    if os.path.isdir(word):
        raise FormatError(f"{shortened(word)} is {_folder_in_words(word)}")
    try:
        return load(word)
    except FormatError:
        if word.endswith(".py") and os.path.isfile(word):
            raise FormatError(
                f"{word!r} is not an architecture. For a model in it, "
                f"name the function that makes it: {word}:make_model"
            ) from None
        if not re.fullmatch(r"[\w+-]+", word) or os.path.exists(word):
            raise
        known = did_you_mean(word, [*ZOO, *MODELS])
        raise FormatError(
            f"unknown architecture {shortened(word)}. {known} Or give a file, '-' or the text itself."
        ) from None


def _folder_in_words(folder: str) -> str:
    """For a folder given in place of an architecture or model: what it holds, and what to do with it."""
    held = set(os.listdir(folder))
    if "policy.safetensors" in held:
        best = f"; the best one found is {folder}/architecture.json" if "architecture.json" in held else ""
        return f"the folder of a search: name an architecture, and add --method nat++:policy={folder}{best}"
    if {"network.safetensors", "module.safetensors"} & held:
        return f"the folder of a training: natpp.restore({folder!r}) gives the network, for use in Python"
    if {"architecture.json", "weights.safetensors"} <= held:
        return (
            f"the folder of a saved module: natpp report {folder} shows its costs, and natpp.restore({folder!r}) gives "
            "the module, for use in Python"
        )
    if "config.json" in held:
        return "the folder of a run that has not ended: continue it with --resume"
    return "a folder, expected an architecture (a name, a file, '-' or the text itself) or a model"


def make_module(word: str, shapes: str | None, *, classes: int | None = None, seed: int = 0) -> tuple[nn.Module, Any]:
    """The module that a word names, and an example input: of the shapes given, or of the network's own."""
    import torch

    given = None if shapes is None else parse_shapes(shapes)
    torch.manual_seed(seed)  # for the initial weights
    if (named := _network(word)) is not None:
        name, weights = named
        inputs = given or [(1, *MODELS[name].input_shape)]
        return network(name, classes, weights), _example(inputs, seed)
    if given is None:
        raise SettingError(f"{word} needs the shape of its input: --input 1,3,224,224")
    if classes is not None:
        raise SettingError(
            "classes can only be given with a network of the zoo: leave it out, or set it in your function"
        )
    return _made(word), _example(given, seed)


def make_example(shapes: str) -> Any:
    """A random input of the shapes given."""
    return _example(parse_shapes(shapes), 0)


def load_module(word: str, shapes: str | None, seed: int = 0) -> nn.Module:
    """The module that a word names, or that a folder of `natpp optimize -o` holds."""
    if os.path.isdir(word):
        return verbs.restore(word)
    if _network(word) is not None:
        return make_module(word, shapes, seed=seed)[0]
    if FUNCTION.fullmatch(word) is None:
        known = did_you_mean(word, MODELS)
        raise SettingError(f"{shortened(word)} is not a model. {known} Or give FILE.py:FUNCTION, or a result's folder.")
    return _made(word)


def parse_shapes(text: str) -> list[tuple[int, ...]]:
    """Shapes of inputs, `1,3,32,32` or several separated by `;`."""
    try:
        shapes = [tuple(int(side) for side in part.split(",")) for part in text.split(";")]
    except ValueError:
        shapes = []
    if not shapes or any(side < 1 for shape in shapes for side in shape):
        raise SettingError(
            f"input is {shortened(text)}, expected sizes separated by commas, such as 1,3,224,224; several inputs "
            "separated by semicolons: '1,3,32,32;1,1,32,32'"
        )
    return shapes


def refuse_other(flags: list[str], why: str) -> None:
    """Reject flags of the other kind of subject."""
    if flags:
        raise SettingError(f"{flags[0]} {why}")


def keep_other_files(out: str | None) -> None:
    """Refuse to overwrite a file that is not an architecture."""
    if out is not None and os.path.isfile(out) and os.path.getsize(out):
        try:
            load_architecture(os.path.abspath(out))
        except NatppError:
            raise SettingError(f"{out!r} exists and is not an architecture: move it, or choose another file") from None


def _example(shapes: list[tuple[int, ...]], seed: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(seed)
    made: list[Tensor] = []
    for shape in shapes:
        try:
            made.append(torch.randn(shape, generator=generator))
        except (RuntimeError, MemoryError):
            sides = ",".join(str(side) for side in shape)
            raise SettingError(f"an input of {sides} numbers does not fit into the memory here") from None
    return made[0] if len(made) == 1 else tuple(made)


def _made(word: str) -> nn.Module:
    """What the function of a file makes."""
    from torch import nn

    found = FUNCTION.fullmatch(word)
    assert found is not None
    file, name = Path(found["file"]), found["name"]
    with _told(f"{file} cannot be run", file):
        module = _run(file)
    if not hasattr(module, name):
        known = [
            key
            for key, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__
        ]
        near = f" {did_you_mean(name, known)}" if known else " It has none."
        raise SettingError(f"{file} has no function {name}.{near}")
    made = getattr(module, name)
    if not isinstance(made, nn.Module):
        if not callable(made):
            raise SettingError(
                f"{name} of {file} is of type {type(made).__name__}, expected a function that makes a torch.nn.Module"
            )
        with _told(f"{name} of {file} raised", file):
            made = made()
    if not isinstance(made, nn.Module):
        raise SettingError(
            f"{name} of {file} returned a value of type {type(made).__name__}, expected a torch.nn.Module"
        )
    return made


def _run(file: Path) -> ModuleType:
    """The user's file as a module, run as `python` would; what it prints goes to standard error."""
    if not file.is_file():
        raise SettingError(f"there is no file {shortened(str(file))}")
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # it may import files next to it
    name = file.stem if file.stem not in sys.modules else f"natpp_given_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextlib.contextmanager
def _told(what: str, file: Path) -> Iterator[None]:
    """Turn any error of the user's code into one line, with the line number in their file."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (NatppError, KeyboardInterrupt):
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename).absolute() == file.absolute()]
        lines = lines or ([error.lineno] if isinstance(error, SyntaxError) else [])
        where = f" (line {lines[-1]})" if lines else ""
        reason = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
        raise SettingError(f"{what}: {type(error).__name__}{f': {reason}' if reason else ''}{where}") from error
