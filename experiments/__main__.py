"""Run an experiment: `python -m experiments NAME [STEP] [--smoke] [flags]`; without a name, list them all."""

from __future__ import annotations

import ast
import importlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import tyro

from experiments.lib.settings import HERE, Experiment, Keeps, Settings, Step
from experiments.lib.small import kept_apart
from natpp.errors import NatppError, did_you_mean

NEEDS = "Needs: "  # starts the line of a docstring with what an experiment needs and how long it takes
USAGE = "usage: python -m experiments NAME [STEP] [--smoke] [flags]; NAME --help shows its steps and flags"


def files() -> dict[str, Path]:
    """The file of every experiment, by name."""
    found = [*HERE.glob("*.py"), *HERE.glob("choices/*.py")]
    return {file.stem: file for file in sorted(found, key=lambda one: one.stem) if not file.stem.startswith("__")}


def described(file: Path) -> str:
    """The docstring of an experiment, read without importing it."""
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""


def listed() -> str:
    """A line for each experiment: its name, what it measures, what it needs and how long it takes."""
    lines = [USAGE, ""]
    for name, file in files().items():
        what, *others = described(file).splitlines()
        needs = next((line.removeprefix(NEEDS) for line in others if line.startswith(NEEDS)), "")
        lines.append(f"{name:<20} {what.rstrip('.')} [{needs.rstrip('.')}]")
    return "\n".join(lines)


def experiment(name: str) -> Experiment:
    """An experiment by name."""
    if name not in files():
        raise SystemExit(f"unknown experiment {name!r}. {did_you_mean(name, files())}")
    parts = files()[name].relative_to(HERE.parent).with_suffix("").parts
    found: Experiment = importlib.import_module(".".join(parts)).EXPERIMENT
    return found


def settings_of(name: str, step: Step, words: Sequence[str]) -> Settings:
    """The settings that flags ask for, apart from published results where they are of the small form."""
    known = experiment(name)
    one = f" {step.__name__}" if len(known.steps) > 1 else ""
    settings = tyro.cli(
        known.settings,
        prog=f"python -m experiments {name}{one}",
        description=described(files()[name]),
        args=list(words),
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    published = next(field.default for field in known.settings.__dataclass_fields__.values() if field.name == "out")
    return kept_apart(settings, published)


def run(name: str, words: Sequence[str]) -> None:
    """Run one step of an experiment, or all steps of its small form."""
    known = experiment(name)
    steps = {step.__name__: step for step in known.steps}
    step = next(iter(steps)) if len(steps) == 1 else next(iter(words), "")
    given = words if len(steps) == 1 else words[1:]
    if "--smoke" in words and (len(steps) == 1 or step.startswith("-")) and not {"-h", "--help"} & {*words}:
        run_small(name, words)
    elif step in steps:
        steps[step](settings_of(name, steps[step], given))
    elif step in ("-h", "--help"):
        lines = [f"  {one:<10} {(steps[one].__doc__ or '').splitlines()[0]}" for one in steps]
        print("\n".join([described(files()[name]), "", "steps (STEP --help shows the flags):", *lines]))
    else:
        wrong = f"unknown step {step!r}. {did_you_mean(step, steps)}" if step else f"steps: {', '.join(steps)}."
        raise SystemExit(f"{wrong} Give one of them, or --smoke to run the small form of all")


def run_small(name: str, words: Sequence[str]) -> None:
    """Run all steps in their small form; without a folder of runs, in one that is removed afterwards.

    An experiment that continues another one then runs that one first.
    """
    known = experiment(name)
    if not issubclass(known.settings, Keeps) or any(word.partition("=")[0] == "--runs" for word in words):
        for step in known.steps:
            step(settings_of(name, step, words))
        return
    chain = [name]
    while (before := experiment(chain[0]).after) is not None:
        chain.insert(0, before)
    with tempfile.TemporaryDirectory() as folder:
        for one in chain:
            run_small(one, [*(words if one == name else ["--smoke"]), "--runs", folder])


def main(words: Sequence[str] | None = None) -> None:
    """Do what a command line asks for; wrong input is answered in one line."""
    given = list(sys.argv[1:] if words is None else words)
    if not given or given[0] in ("-h", "--help"):
        print(listed())
        return
    try:
        run(given[0], given[1:])
    except NatppError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
