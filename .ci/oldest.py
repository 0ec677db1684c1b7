"""Print the oldest version of each dependency that pyproject.toml promises to work with, as constraints for pip."""

import re
from pathlib import Path

text = (Path(__file__).parent.parent / "pyproject.toml").read_text()
listed = text.split("\ndependencies = [\n")[1].split("\n]")[0]  # tomllib needs Python 3.11, and this runs on 3.10
for line in listed.splitlines():
    name, version = re.fullmatch(r' *"([\w-]+)>=([\d.]+)",', line).groups()
    print(f"{name}=={version}")
