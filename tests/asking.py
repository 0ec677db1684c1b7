"""Searches from settings by name, whichever value they belong to."""

from typing import Any

import natpp
from natpp.config import fields_of
from natpp.nets.policy import Policy
from natpp.run import Run
from natpp.runs.search import Search

OF_RUN = {*fields_of(Run), "watch", "say"}


def searched(task: Any = None, **settings: Any) -> Policy:
    """A policy by a search with such settings."""
    run = Run(**{name: settings.pop(name) for name in OF_RUN & settings.keys()})
    config = Search(**{name: settings.pop(name) for name in fields_of(Search).keys() & settings.keys()})
    settings["on"] = settings.pop("arch", settings.pop("space", "cells"))
    return natpp.search(task, config, run=run, **settings)
