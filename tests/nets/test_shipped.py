"""Policies that ship: small files, one for every rule, that answer for every cell of the zoo."""

from pathlib import Path

import pytest

import natpp
from natpp import policies
from natpp.policies import BY_RULE, card, default, load_named, names
from natpp.registry import RULES, ZOO


def test_every_rule_has_a_policy_that_is_there() -> None:
    assert set(BY_RULE) <= set(RULES)
    assert set(BY_RULE.values()) <= set(names())
    assert default("of-my-own") == BY_RULE["nat++"]
    for name in names():
        assert (policies.FOLDER / f"{name}.safetensors").stat().st_size < 4 << 20


@pytest.mark.parametrize("rule", list(BY_RULE))
def test_the_policy_of_a_rule_answers_for_every_cell_of_the_zoo(rule: str) -> None:
    policy = load_named(None, rule)
    for name in ZOO:
        result = natpp.optimize(name, policy, decisions=natpp.Decisions(rule))
        assert result.cost_after.live_madds <= result.cost_before.live_madds
        assert result.cost_after.live_params <= result.cost_before.live_params


def test_the_rule_says_which_policy_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in policies.FOLDER.glob("*.safetensors"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
        (tmp_path / "mine.safetensors").write_bytes(file.read_bytes())
    (tmp_path / "mine.md").write_text("# Mine\n")
    monkeypatch.setattr(policies, "FOLDER", tmp_path)
    monkeypatch.setattr(policies, "BY_RULE", BY_RULE | {"nat": "mine"})
    assert natpp.optimize("darts", "nat").settings["policy"] == "mine"
    assert natpp.optimize("darts").settings["policy"] == BY_RULE["nat++"]
    assert card("mine") == "# Mine\n"
    assert card("no-such") is None
