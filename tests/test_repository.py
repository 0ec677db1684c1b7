"""What a stranger finds in the repository agrees with itself: wheel, workflows, versions, templates, links."""

import importlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from shutil import copy, copytree, ignore_patterns
from typing import Any

import pytest
import yaml

from natpp.arch import ops
from natpp.registry import OPS
from natpp.testing import check_op

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "natpp"
MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli").loads(
    (ROOT / "pyproject.toml").read_text()
)["project"]
PYTHONS = [
    version
    for classifier in PROJECT["classifiers"]
    for version in re.findall(r"^Programming Language :: Python :: (3\.\d+)$", classifier)
]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "benchmarks" / "README.md"]
FORMS = sorted(file for file in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if file.name != "config.yml")


def read(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in WORKFLOWS:
        yield from read(file)["jobs"].items()


def test_the_wheel_has_every_file_of_the_package(tmp_path: Path) -> None:
    copytree(PACKAGE, tmp_path / "src" / "natpp", ignore=ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        copy(ROOT / name, tmp_path)
    build = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").iterdir()
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("natpp/")}
    files = [file for file in PACKAGE.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert held == {f"natpp/{file.relative_to(PACKAGE).as_posix()}" for file in files}
    for pattern in ("policies/*.safetensors", "policies/*.md", "report/template/*", "zoo/*.json", "py.typed"):
        assert any(Path(name).match(pattern) for name in held), pattern


def test_workflows_run_every_python_that_is_promised() -> None:
    assert dict(jobs())["test"]["strategy"]["matrix"]["python"] == PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"


def test_workflows_run_targets_of_the_makefile() -> None:
    targets = set()
    for _, job in jobs():
        matrix = job.get("strategy", {}).get("matrix", {})
        for step in job["steps"]:
            if "run" in step:
                (target,) = re.fullmatch(r"make PYTHON=python (\S.*)", step["run"]).groups()  # type: ignore[union-attr]
                targets |= set(matrix["target"]) if target == "${{ matrix.target }}" else {target}
    assert targets == {"test", "oldest", "lint", "docs", "wheel"}
    assert all(f"\n{target}:" in MAKEFILE for target in targets)


def test_workflows_may_only_read_and_end_in_time() -> None:
    for file in WORKFLOWS:
        assert read(file)["permissions"] == {"contents": "read"}
        assert "concurrency" in read(file)
    for name, job in jobs():
        assert job["timeout-minutes"] <= 60, name
        assert "permissions" not in job, name
        for step in job["steps"]:
            assert re.fullmatch(r"actions/[\w-]+@v\d+", step.get("uses", "actions/none@v1")), step


def test_the_oldest_versions_are_those_that_are_promised() -> None:
    printed = subprocess.run([sys.executable, ROOT / ".ci" / "oldest.py"], check=True, capture_output=True, text=True)
    assert printed.stdout.split() == [one.replace(">=", "==") for one in PROJECT["dependencies"]]


def test_constraints_name_every_dependency() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert "make constraints" in lines[0]
    pinned = {line.split("==")[0] for line in lines[1:]}
    extras = PROJECT["optional-dependencies"].values()
    asked = [*PROJECT["dependencies"], *(one for extra in extras for one in extra)]
    assert {re.split(r"[\[<>=]", one)[0] for one in asked} - {"natpp"} <= pinned


def test_hooks_before_a_commit_are_those_of_make_lint() -> None:
    recipe = MAKEFILE.split("\nlint:")[1].split("\n\n")[0]
    commands = [line.removeprefix("$(BIN)/").removesuffix(" .") for line in recipe.split("\n\t")[1:]]
    (repo,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [hook["entry"].removesuffix(" --force-exclude") for hook in repo["hooks"]] == commands


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_issue_forms_have_the_fields_they_need(form: Path) -> None:
    found = read(form)
    assert {"name", "description", "body"} <= found.keys() <= {"name", "description", "body", "labels", "title"}
    fields = [field for field in found["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len({field["attributes"]["label"] for field in fields})
    assert any(field.get("validations", {}).get("required") for field in fields)
    for field in found["body"]:
        assert field["type"] in {"markdown", "textarea", "input", "dropdown", "checkboxes"}
        known = {"value"} if field["type"] == "markdown" else {"label", "description", "placeholder", "render"}
        assert set(field["attributes"]) <= known


def test_the_citation_names_both_papers() -> None:
    found = read(ROOT / "CITATION.cff")
    assert (found["title"], found["license"]) == (PROJECT["name"], PROJECT["license"])
    papers = [(paper["authors"][0]["family-names"], len(paper["authors"])) for paper in found["references"]]
    assert papers == [("Guo", 7), ("Guo", 8)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"`[^`]+`", "", page.read_text(encoding="utf-8"))  # code may look like a link
    links = re.findall(r"\]\(([^)#\s]+)", text)
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_contributing_names_targets_of_the_makefile() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`make (\w+)`", text))
    assert named >= {"test", "lint"}
    assert all(f"\n{target}:" in MAKEFILE for target in named)


def test_the_operation_of_contributing_keeps_its_promises() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^ *(Op\(.*\)),$", text, flags=re.MULTILINE)
    names = dict(vars(ops))  # as if the line were in that file
    exec(f"op = {line}", names)  # noqa: S102
    name = names["op"].name
    if name in OPS:  # someone is following the page
        return
    OPS.add(name, names["op"])
    try:
        check_op(name)
    finally:
        OPS.remove(name)
