"""What mkdocs asks for while it builds the site: the commands' help, from the parsers themselves."""

from __future__ import annotations

import contextlib
import io
import os
from typing import Any
from unittest import mock

MARK = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page as it is; where the mark stands, every command with its flags."""
    return markdown.replace(MARK, commands()) if MARK in markdown else markdown


def commands() -> str:
    """An overview of the commands, and a section for each."""
    from natpp.cli import VERBS
    from natpp.cli.flags import summary

    rows = [f"| [`natpp {verb}`](#natpp-{verb}) | {summary(flags)} |" for verb, (flags, _) in VERBS.items()]
    parts = ["| command | |\n|---|---|\n" + "\n".join(rows)]
    parts += [f"## natpp {verb}\n\n```text\n{plain_help(verb)}\n```" for verb in VERBS]
    return "\n\n".join(parts) + "\n"


def plain_help(verb: str) -> str:
    """What `natpp VERB --help` prints, without its rules."""
    from natpp.cli import main

    said = io.StringIO()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": "92", "NO_COLOR": "1"}),
        contextlib.redirect_stdout(said),
        contextlib.suppress(SystemExit),
    ):
        main([verb, "--help"])
    lines = [line.rstrip() for line in said.getvalue().splitlines()]
    return "\n".join(line for line in lines if line.strip("- ") or not line).strip()  # without rules under headings
