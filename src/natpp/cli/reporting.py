"""The command that writes a report: one page of a result, a saved module or a search."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from natpp.cli.flags import Common, Output
from natpp.cli.output import print_json
from natpp.report.page import check_target, write_report


@dataclass(frozen=True)
class Report(Common):
    """Write a report: one HTML page that shows a result or a search, with graphs, reasons, costs and curves."""

    what: Annotated[
        str,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="RUN|RESULT", help="a search's folder, a file that natpp optimize wrote, a saved module"),
    ]
    output: Output = "report.html"
    """the page to write; an earlier report there is replaced"""
    trained: Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN")] = ()
    """folders of natpp train whose test accuracies are told"""


def report(flags: Report) -> None:
    file = str(flags.output)
    check_target(file)
    write_report(flags.what, file, trained=flags.trained)
    if flags.json:
        print_json({"report": file, "bytes": Path(file).stat().st_size})
    else:
        print(f"report: {file}")
