"""Settings as values: checks, JSON, text and help follow from annotated fields."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from natpp.config import Among, At, Config, Plain, helps
from natpp.errors import FormatError, SettingError
from natpp.registry import Registry

SIZES = {"small": 1, "large": 2}


@dataclass(frozen=True)
class Inner(Config):
    steps: Annotated[int, At(least=1)] = 10
    """gradient steps"""
    rate: Annotated[float, At(above=0)] = 0.5
    """of SGD"""


@dataclass(frozen=True)
class Outer(Config):
    """Everything that a field may be."""

    name: str
    """any word"""
    count: Annotated[int | None, At(least=2, most=2**63 - 1)] = None
    """how many: as many
    as there are"""
    share: Annotated[float, At(least=0, below=1)] = 0.25
    switch: bool = False
    kind: Literal["few", "many", "auto-many"] = "few"
    size: Annotated[str, Among(SIZES)] = "small"
    nodes: tuple[int, ...] = (4, 5)
    words: tuple[str, ...] = ()
    pair: tuple[int, str] | None = None
    price: Mapping[str, float] | None = None
    inner: Inner = Inner()
    other: Inner | None = None
    mixed: int | str | bool | None = None
    watch: Annotated[Callable[[int], None] | None, Plain] = field(default=None, compare=False)

    def check(self) -> None:
        if self.kind == "many" and self.count == 2:
            raise SettingError("many are more than 2")


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["auto", "true", "1", "a,b=c:d"]
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
INNERS = st.builds(Inner, st.integers(1, 10**9), st.floats(1e-300, 1e300))
OUTERS = st.builds(
    Outer,
    name=WORDS,
    count=st.none() | st.integers(3, 2**63 - 1),
    share=st.floats(0, 1, exclude_max=True),
    switch=st.booleans(),
    kind=st.sampled_from(["few", "many", "auto-many"]),
    size=st.sampled_from(sorted(SIZES)),
    nodes=st.lists(st.integers(), max_size=3).map(tuple),
    words=st.lists(WORDS, max_size=3).map(tuple),
    pair=st.none() | st.tuples(st.integers(), WORDS),
    price=st.none() | st.dictionaries(WORDS, FLOATS, max_size=3),
    inner=INNERS,
    other=st.none() | INNERS,
    mixed=st.none() | st.integers() | WORDS | st.booleans(),
)


@given(OUTERS)
@example(Outer("", words=("",), price={"": 1.0}, mixed="true"))
def test_json_and_text_come_back_equal(config: Outer) -> None:
    assert Outer.from_json(config.to_json()) == config
    assert Outer.parse(config.to_text()) == config
    base = Outer("base", inner=Inner(7), nodes=(1,), other=Inner(3))
    if config.other is not None:  # a text cannot take a nested config away by naming its fields
        assert Outer.parse(config.to_text(base), base) == config
    assert Outer.parse(config.to_text(config), config) == config


@given(st.text(max_size=30))
def test_any_text_is_settings_or_refused(text: str) -> None:
    with contextlib.suppress(SettingError):
        found = Outer.parse(text, Outer("base"))
        assert Outer.parse(found.to_text()) == found


def test_only_what_differs_is_told() -> None:
    assert Outer("x").changed() == {"name": "x"}
    assert Outer("x", inner=Inner(steps=3)).changed() == {"name": "x", "inner.steps": 3}
    assert Outer("x", nodes=(4,)).to_text(Outer("x")) == "nodes=4"
    assert Outer("x", nodes=(4, 6), price={"madds": 2.0}).to_text() == "name=x,nodes=4,6,price=madds:2.0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("count=1", "count is 1, expected a whole number from 2 to 2^63 - 1"),
        ("count=3.5", "count is 3.5, expected a whole number from 2 to 2^63 - 1"),
        ("share=1", "share is 1, expected a number from 0 to below 1"),
        ("share=nan", "share is nan, expected a number from 0 to below 1"),
        ("inner.rate=0", "rate is 0, expected a number above 0"),
        ("inner.step=3", "inner of Outer has no setting 'step'. Did you mean 'steps'?"),
        ("kind=man", "unknown kind 'man'. Did you mean 'many'?"),
        ("size=larg", "unknown size 'larg'. Did you mean 'large'?"),
        ("switch=yes", "switch is 'yes', expected true or false"),
        ("nodes=4,x", "nodes is '4,x', expected a tuple (as text: separated by commas), each a whole number"),
        ("price=madds", "price is 'madds', expected a mapping from a word to a number"),
        ("kind=many,count=2", "many are more than 2"),
        ("count=3,count=4", "'count=3,count=4' gives count twice"),
        ("4,count=3", "'4,count=3' starts without the name of a setting: write name=…"),
        ('name="x', "'name=\"x' has an unclosed quote, or two commas in a row"),
        ("name.x=3", "name of Outer has no nested settings"),
        ("watch=3", "Outer has no setting 'watch'. Did you mean 'switch'?"),
    ],
)
def test_a_wrong_text_is_answered_in_one_line(text: str, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        Outer.parse(text, Outer("x"))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": 3}, "name is 3, expected a word"),
        ({"count": True}, "count is True, expected a whole number from 2 to 2^63 - 1"),
        ({"count": "3"}, "count is '3', expected a whole number from 2 to 2^63 - 1"),
        ({"share": float("inf")}, "share is inf, expected a number from 0 to below 1"),
        (
            {"nodes": [4, "5"]},
            "nodes is [4, '5'], expected a tuple (as text: separated by commas), each a whole number",
        ),
        ({"inner": 3}, "inner is 3, expected Inner"),
        ({"mixed": 1.5}, "mixed is 1.5, expected a whole number or a word or true or false"),
        ({"kind": 1}, "kind is 1, expected few or many or auto-many"),
    ],
)
def test_a_wrong_value_is_answered_in_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        Outer(**{"name": "x"} | values)
    assert str(caught.value) == message
    assert Outer("x", watch=print).to_dict() == Outer("x").to_dict()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the settings of Outer are damaged: Expecting property name enclosed in double quotes"),
        ("[]", "the settings of Outer are damaged: [] is not a JSON object"),
        ('{"name": "x", "siz": "small"}', "Outer has no setting 'siz'. Did you mean 'size'?"),
        ('{"size": "small"}', "Outer needs a value for name"),
        ('{"name": "x", "inner": {"rat": 1}}', "Inner has no setting 'rat'. Did you mean 'rate'?"),
        ('{"name": "x", "inner": []}', "inner is [], expected Inner"),
        ('{"name": "x", "pair": [1]}', "pair is (1,), expected tuple"),
    ],
)
def test_damaged_json_is_answered_in_one_line(text: str, message: str) -> None:
    with pytest.raises((FormatError, SettingError)) as caught:
        Outer.from_json(text)
    assert str(caught.value).startswith(message)


def test_a_list_becomes_a_tuple() -> None:
    assert Outer("x", nodes=[1, 2]).nodes == (1, 2)  # type: ignore[arg-type]


def test_flags_are_words_of_a_command() -> None:
    config = Outer("x y", count=3, switch=True, nodes=(4, 6), price={"madds": 2.0, "params": 0.5})
    flags = ["--name", "x y", "--count", "3", "--switch", "--nodes", "4,6", "--price", "madds=2.0,params=0.5"]
    assert config.to_flags() == flags


def test_help_is_the_string_under_a_field() -> None:
    assert helps(Outer)["count"] == "how many: as many as there are"
    assert helps(Inner) == {"steps": "gradient steps", "rate": "of SGD"}
    assert "switch" not in helps(Outer)


def test_a_registry_takes_a_name_a_text_or_the_value_itself() -> None:
    known: Registry[Inner] = Registry("thing")
    known.add("slow", Inner())
    known.add("fast", Inner(rate=5.0))
    assert known.given("fast") is known["fast"]
    assert known.given("fast:steps=3") == Inner(3, 5.0)
    assert known.given(Inner(4)) == Inner(4)
    for entry in (Inner(), Inner(rate=5.0), Inner(3, 5.0), Inner(3, 4.0)):
        assert known.given(known.text_of(entry)) == entry
    assert known.text_of(replace(known["fast"], steps=3)) == "fast:steps=3"
    with pytest.raises(SettingError, match="expected a thing's name or Inner, not '3'"):
        known.given(3)  # type: ignore[arg-type]
    other: Registry[int] = Registry("thing")
    other.add("x", 1)
    with pytest.raises(SettingError, match="the thing 'x' has no settings"):
        other.given("x:steps=3")
