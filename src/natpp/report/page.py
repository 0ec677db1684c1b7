"""The report page of a result or a search: a single HTML file without external resources.

All user input, including names and paths, is treated as text: the template escapes it, the JSON for the script cannot
contain a tag, and the page's content security policy blocks other scripts and all requests.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from natpp.errors import FormatError, NatppError
from natpp.files import write_whole
from natpp.report.charts import cost_text
from natpp.report.contents import page_of
from natpp.report.rows import turn
from natpp.report.sources import read_source

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = Path(__file__).parent / "template"
MARK = "<!doctype html>\n<!-- natpp report -->"
LARGEST = 2_000_000  # maximum bytes of a page
DAMAGE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


def write_report(
    source: Mapping[str, Any] | str | Path, path: str | Path, *, trained: Sequence[str | Path] = ()
) -> Path:
    """Write the page of a result's data, or of a file or folder that holds a result; returns the page's path.

    `trained` are folders of `natpp train`; their test accuracies are shown. An existing file is only replaced if it is
    an earlier report.
    """
    check_target(path)
    page = report_html(read_source(source) if isinstance(source, str | Path) else source, trained=trained)
    write_whole(path, page)
    return Path(path)


def check_target(path: str | Path) -> None:
    """Raise an error if a report cannot be written here; called before any work is done."""
    path = Path(path)
    if not path.absolute().parent.is_dir():
        raise NatppError(f"the folder {str(path.parent)!r} does not exist. Create it first, or choose another path")
    if path.is_dir():
        raise NatppError(f"{str(path)!r} is a folder, expected the path of a file for the report")
    try:
        with path.open("rb") as file:
            earlier = file.read(len(MARK)) == MARK.encode()
    except FileNotFoundError:
        return
    except OSError as error:
        raise NatppError(f"cannot write {str(path)!r}: {error.strerror}") from None
    if not earlier:
        raise NatppError(f"the file {str(path)!r} exists and is not a natpp report. Choose another name")


def report_html(source: Mapping[str, Any], *, trained: Sequence[str | Path] = ()) -> str:
    """The page as text, at most 2 MB; for a very large result, the page says what was left out."""
    for limit in (None, 2000, 500, 100, 20):
        try:
            page = _rendered(page_of(source, trained, limit)).encode("utf-8", "replace").decode()
        except NatppError:
            raise
        except DAMAGE as error:
            reason = str(error).strip() or type(error).__name__
            raise FormatError(
                f"the result is damaged or from another version of natpp: {type(error).__name__}: {reason}"
            ) from error
        if len(page.encode()) <= LARGEST:
            return page
    raise NatppError("the report would exceed 2 MB")


# The template.


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(FOLDER)
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"cost": cost_text, "turn": turn}
    return made


def _rendered(page: Mapping[str, Any]) -> str:
    from natpp import __version__

    script, style = ((FOLDER / name).read_text(encoding="utf-8") for name in ("script.js", "style.css"))
    known = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = _json({"book": page["book"], "copies": [one["text"] for one in page["copies"]]})
    template = _environment().get_template("page.html")
    return f"{MARK}\n" + template.render(
        page, style=style, script=script, script_hash=known, data=data, natpp=__version__
    )


def _json(data: Any) -> str:
    """JSON for a script element; it cannot contain the start of a tag or comment."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
