"""Rows of a table measured in a process of its own, which may be killed without harm to the others."""

from __future__ import annotations

import multiprocessing
import resource
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

Measured = Callable[[str], dict[str, Any]]  # the row of a model; a function of a module, so that it can be sent


class Worker:
    """A process that measures one model at a time and can be killed."""

    def __init__(self, measured: Measured, *, gigabytes: float | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, measured, gigabytes), daemon=True)
        self.process.start()
        theirs.close()
        self.connection.recv()  # wait until it has imported everything

    def ask(self, word: str, limit: float) -> dict[str, Any] | None:
        """The row of a model; None if the process was killed or died."""
        try:
            self.connection.send(word)
            if self.connection.poll(limit):
                row: dict[str, Any] = self.connection.recv()
                return row
        except (EOFError, OSError):
            pass
        self.end()
        return None

    def end(self) -> None:
        self.process.kill()
        self.process.join()


def serve(connection: Connection, measured: Measured, gigabytes: float | None) -> None:
    warnings.simplefilter("ignore")  # warnings of models
    if gigabytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (int(gigabytes * 2**30),) * 2)
    connection.send("ready")
    while word := connection.recv():
        connection.send(measured(word))
