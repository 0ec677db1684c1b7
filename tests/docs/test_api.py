"""Every public name stands in the API reference, and its example runs."""

import doctest
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import natpp
import natpp.zoo

ROOT = Path(__file__).parent.parent.parent
NAMES = re.findall(r"^::: (\S+)", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), flags=re.MULTILINE)


def examples(name: str) -> list[doctest.Example]:
    return doctest.DocTestParser().get_examples(inspect.getdoc(pkgutil.resolve_name(name)) or "", name)


def test_every_public_name_is_told() -> None:
    assert {f"natpp.{name}" for name in natpp.__all__} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    known: dict[str, Any] = {"natpp": natpp, "torch": torch}
    found = doctest.DocTest(examples(name), known, name, None, None, None)
    assert found.examples, f"{name} has no example"
    said: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL).run(found, out=said.append)
    assert not said, "".join(said)
