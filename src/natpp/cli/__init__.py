"""The command line: one subcommand for each verb, its flags made from its parameters.

Wrong input gives one line on standard error and exit status 2. With --json only JSON goes to standard output.
Progress and remarks go to standard error, and --quiet turns them off.
"""

from __future__ import annotations

import io
import os
import shlex
import sys
from collections.abc import Sequence

from natpp import __version__
from natpp.cli import commands
from natpp.cli.flags import Command, parse, summary
from natpp.cli.optimizing import optimize
from natpp.cli.output import COMMAND, quietly
from natpp.errors import NatppError, SettingError, did_you_mean

VERBS: dict[str, Command] = {
    command.__name__: command
    for command in (
        *(commands.zoo, commands.show, commands.cost, commands.transitions, commands.convert, commands.sample),
        *(commands.search, commands.score, optimize, commands.benchmark, commands.train, commands.finetune),
        *(commands.evaluate, commands.export, commands.report, commands.data),
    )
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the result is the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # do not fail on an arrow that the terminal cannot show
    try:
        if not given or given[0] in ("-h", "--help"):
            print(_overview())
        elif given[0] == "--version":
            print(f"natpp {__version__}")
        elif given[0] not in VERBS:
            raise SettingError(f"unknown command {given[0]!r}. {did_you_mean(given[0], VERBS)}")
        else:
            run, quiet = parse(VERBS[given[0]], given[0], given[1:])
            COMMAND.set(shlex.join(["natpp", *given]))
            with quietly(quiet):
                run()
        if sys.stdout is not None:
            sys.stdout.flush()
    except NatppError as error:
        print(f"natpp: {' '.join(str(error).split())}", file=sys.stderr)
        return error.status
    except BrokenPipeError:  # the reader (head, say) has seen enough
        _silence_output()
    except OSError as error:
        _silence_output()
        print(f"natpp: cannot write the output: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _silence_output() -> None:
    """Standard output is closed: send Python's last flush to /dev/null."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _overview() -> str:
    width = max(len(verb) for verb in VERBS)
    lines = [f"  {verb:<{width}}  {summary(command)}" for verb, command in VERBS.items()]
    head = ("natpp, an architecture optimizer for PyTorch", "", "usage: natpp COMMAND [flags]", "")
    return "\n".join([*head, *lines, "", "natpp COMMAND --help lists the flags of a command."])
