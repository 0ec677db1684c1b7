"""Write constraints.txt: the exact version of everything that the `dev` and `triton` extras install.

`make constraints` runs it. uv resolves from package metadata alone, so nothing installed here has a say. Python 3.10
gets lines of its own, because some packages no longer support it. Versions in the file are kept while they still fit;
`make constraints UPGRADE=--upgrade` takes the newest ones.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILE = ROOT / "constraints.txt"
HEAD = """\
# Versions that `make` installs, on every Python that natpp supports. Written by `make constraints`: do not edit.
"""
CUDA = ("nvidia-", "cuda-")  # torch pins its own CUDA packages, and its CPU build has none


def resolved(python: str, options: list[str]) -> dict[str, str]:
    """The version of each package on one version of Python, by name."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "--extra", "dev", "--extra", "triton"]
    command += ["--python-version", python, "--python-platform", "linux", "--no-annotate", "--no-header", "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "constraints.txt"
        found.write_text(FILE.read_text())  # uv keeps these versions where it can
        subprocess.run([*command, "--output-file", str(found), *options], cwd=ROOT, check=True)  # noqa: S603
        lines = [line.split("==") for line in found.read_text().splitlines()]
    return {name: version for name, version in lines if not name.startswith(CUDA)}


def merged(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """One line a package, or one for Python 3.10 and one for later versions where they differ."""
    lines = []
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) == new.get(name):
            lines.append(f"{name}=={new[name]}")
            continue
        for versions, comparison in ((new, ">="), (old, "<")):
            if name in versions:
                lines.append(f'{name}=={versions[name]}; python_version {comparison} "3.11"')
    return lines


if __name__ == "__main__":
    options = sys.argv[1:]
    lines = merged(resolved("3.10.11", options), resolved("3.11.9", options))
    FILE.write_text(HEAD + "".join(f"{line}\n" for line in lines))
