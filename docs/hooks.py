"""What is made by code on the pages: while the site is built, the commands' help, from the parsers themselves.

Examples stand in the pages as well as in `examples/`, so that pages can be read anywhere. `python docs/hooks.py` writes
them anew, after a line such as `<!-- examples/add_op.py -->`; a test checks that they are the same.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any
from unittest import mock

DOCS = Path(__file__).parent
MARK = "<!-- commands -->"
EXAMPLE = re.compile(r"(<!-- (examples/\w+\.py)(?:: (.+?))? -->\n```python\n)(.*?)(```\n)", re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page as it is; where the mark stands, every command with its flags."""
    return markdown.replace(MARK, commands()) if MARK in markdown else markdown


def commands() -> str:
    """An overview of the commands, and a section for each."""
    from natpp.cli import VERBS
    from natpp.cli.flags import summary

    rows = [f"| [`natpp {verb}`](#natpp-{verb}) | {summary(command)} |" for verb, command in VERBS.items()]
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


def with_examples(markdown: str) -> str:
    """The page with its examples as they stand in their files: whole, or from a line `# --- name` to the next such."""
    return EXAMPLE.sub(lambda found: found[1] + example(found[2], found[3]) + found[5], markdown)


def example(file: str, section: str | None) -> str:
    """The text of an example, or of a section of it."""
    text = (DOCS.parent / file).read_text(encoding="utf-8")
    if section is None:
        return text
    sections = dict(part.split("\n", 1) for part in text.split("\n# --- ")[1:])
    return sections[section].strip("\n") + "\n"


if __name__ == "__main__":
    for page in DOCS.glob("*.md"):
        page.write_text(with_examples(page.read_text(encoding="utf-8")), encoding="utf-8")
