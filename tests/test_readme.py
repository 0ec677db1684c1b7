"""What the README and the docs promise holds."""

import re
from pathlib import Path

import natpp
from natpp.cli import VERBS
from natpp.registry import NETWORKS, OPS

ROOT = Path(__file__).parent.parent


def test_the_examples_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})  # noqa: S102


def test_every_verb_is_named() -> None:
    text = (ROOT / "README.md").read_text()
    assert all(f"\nnatpp {verb} " in text for verb in VERBS)


def test_what_make_demo_prints_is_what_the_readme_shows() -> None:
    text = (ROOT / "README.md").read_text()
    shown = str(natpp.optimize("darts")).splitlines()
    assert "\n".join(shown[:3]) in text
    assert "\n".join(shown[-3:]) in text


def test_the_docs_name_every_flag_of_a_search() -> None:
    text = (ROOT / "docs" / "search.md").read_text()
    for flag in ("scorer", "evaluations", "minutes", "price", "arch", "nodes", "extras", "preset", "resume", "size"):
        assert f"--{flag}" in text
    for name in ("config.json", "metrics.jsonl", "checkpoint.pt", "policy.safetensors", "scores.jsonl"):
        assert f"`{name}`" in text


def test_the_docs_name_every_network_and_the_defaults() -> None:
    text = (ROOT / "docs" / "foundation.md").read_text()
    for name, skeleton in NETWORKS.items():
        default = skeleton.default
        assert f"| `{name}` | {default.channels} channels, {default.cells} cells" in text
    assert len(OPS) == 19  # "the thirteen of the paper and six extras"
