"""Architectures as text: exact round trips, clear refusals, nothing executed."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import natpp
from natpp.arch.formats import NASBENCH201_OPS, from_dict, parse, to_dict, to_genotype, to_json, to_nasbench201
from natpp.arch.graph import Architecture, Graph
from natpp.errors import NatppError
from tests.strategies import architectures, graphs

RESNET_LIKE = "|nor_conv_3x3~0|+|none~0|nor_conv_3x3~1|+|skip_connect~0|none~1|none~2|"
DARTS = (
    "DARTS = Genotype(normal=[('sep_conv_3x3', 0), ('sep_conv_3x3', 1), ('sep_conv_3x3', 0), ('sep_conv_3x3', 1), "
    "('sep_conv_3x3', 1), ('skip_connect', 0), ('skip_connect', 0), ('dil_conv_3x3', 2)], normal_concat=range(2, 6), "
    "reduce=[('max_pool_3x3', 0), ('max_pool_3x3', 1), ('skip_connect', 2), ('max_pool_3x3', 1), "
    "('max_pool_3x3', 0), ('skip_connect', 2), ('skip_connect', 2), ('max_pool_3x3', 1)], reduce_concat=range(2, 6))"
)


@given(architectures())
def test_json_round_trip(arch: Architecture) -> None:
    assert parse(to_json(arch)) == arch
    assert from_dict(json.loads(json.dumps(to_dict(arch)))) == arch


@given(graphs(), graphs(), st.booleans())
def test_genotype_round_trip(normal: Graph, reduce: Graph, targets: bool) -> None:
    arch = Architecture(normal, reduce)
    text = to_genotype(arch, targets=targets)
    assert parse(text) == arch
    assert to_genotype(parse(text), targets=targets) == text


@given(st.integers(1, 5).flatmap(lambda n: st.lists(st.sampled_from(list(NASBENCH201_OPS)), min_size=n * (n + 1) // 2)))
def test_nasbench201_round_trip(names: list[str]) -> None:
    parts, rest = [], list(names)
    for number in range(1, 6):
        if len(rest) < number:
            break
        parts.append("|" + "".join(f"{rest.pop()}~{source}|" for source in range(number)))
    text = "+".join(parts)
    assert to_nasbench201(parse(text)) == text
    assert parse(to_json(parse(text))) == parse(text)


def test_the_genotype_as_darts_prints_it() -> None:
    assert parse(DARTS) == natpp.load("darts")
    with_targets = to_genotype(natpp.load("darts"), targets=True)
    assert "('dil_conv_3x3', 2, 5)" in with_targets
    assert parse(with_targets) == natpp.load("darts")


def test_a_genotype_by_position_and_with_none() -> None:
    arch = parse("Genotype([('none', 0), ('conv_3x3', 1)], [2], [('null', 0), ('skip_connect', 1)], None)")
    assert arch.normal.ops == ("null", "conv_3x3")
    assert arch.reduce is not None
    assert arch.reduce.concat is None


def test_a_nasbench201_cell_reads_the_block_before_it() -> None:
    arch = parse(RESNET_LIKE)
    assert arch.reduce is None
    assert arch.normal.inputs == (
        (("conv_3x3", 1),),
        (("null", 1), ("conv_3x3", 2)),
        (("skip_connect", 1), ("null", 2), ("null", 3)),
    )
    assert [edge.fixed for edge in arch.normal.edges] == [False, True, False, False, False, False, True, False]


def test_edges_of_a_json_file_may_come_in_any_order() -> None:
    data = to_dict(natpp.load("darts"))
    data["normal"] = data["normal"][4:] + data["normal"][:4]
    assert from_dict(data) == natpp.load("darts")


NODE = '["null", 0, 2], ["conv_3x3", 1, 2]'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("  \n ", "empty"),
        ("hello", "is not an architecture"),
        ('{"normal": [', "invalid JSON"),
        ("[" * 100_000, "invalid JSON"),
        ("[1, 2]", "expected an object"),
        ("{}", "'normal' is missing"),
        (f'{{"normal": [{NODE}]}}', "'normal_concat' is missing"),
        (f'{{"normal": [{NODE}], "normal_concats": [2]}}', "Did you mean 'normal_concat'?"),
        (f'{{"version": 2, "normal": [{NODE}], "normal_concat": [2]}}', "version is '2'"),
        (f'{{"normal": [{NODE}], "normal_concat": [7]}}', "normal cell: the concat list contains node 7"),
        (f'{{"normal": [{NODE}], "normal_concat": 2}}', "expected a list of nodes or null"),
        (f'{{"normal": [{NODE}, {NODE}], "normal_concat": [2]}}', "node 2 has 4 incoming edges, expected 2"),
        ('{"normal": [["conv3x3", 0, 2]], "normal_concat": [2]}', "Did you mean 'conv_3x3'?"),
        ('{"normal": [["conv_3x3", 0]], "normal_concat": [2]}', "expected [op, from, to]"),
        ('{"normal": [["conv_3x3", 4, 3], ["null", 0, 3]], "normal_concat": [2]}', "node 3 reads node 4"),
        ('{"normal": [["conv_3x3", 0.5, 2], ["null", 0, 2]], "normal_concat": [2]}', "expected the number of a node"),
        ('{"normal": null, "normal_concat": [2]}', "'normal' is null"),
        ('{"normal": "x", "normal_concat": [2]}', "expected a list of edges"),
        (f'{{"normal": [{NODE}], "normal_concat": [2], "reduce_concat": [2]}}', "no 'reduce'"),
        ('{"darts": {"normal": []}, "enas": {}}', "holds 2 architectures"),
        ("Genotype(normal=", "invalid genotype"),
        ("Genotype(" + "(" * 100_000, "invalid genotype"),
        ("print('Genotype')", "expected one 'Genotype("),
        ("Genotype(); print()", "expected one 'Genotype("),
        ("Genotype(normal=[])", "no 'normal_concat'"),
        ("Genotype(1, 2, 3, 4, 5)", "got 5"),
        ("Genotype(norma=[])", "Did you mean 'normal'?"),
        ("Genotype(normal=[('null', 0), (3, 1, 2)], normal_concat=[2], reduce=[], reduce_concat=[2])", "for all"),
        (f"Genotype(normal={'1+' * 900}1, normal_concat=[2], reduce=[], reduce_concat=[2])", "names, numbers, lists"),
        (f"Genotype(normal={'-' * 900}1, normal_concat=[2], reduce=[], reduce_concat=[2])", "names, numbers, lists"),
        (f"Genotype(normal=[('null', 0x{'f' * 5000})], normal_concat=[2], reduce=[], reduce_concat=[2])", "numbers"),
        (f'{{"normal": [{NODE}], "normal": [{NODE}], "normal_concat": [2]}}', "repeats a key"),
        ('{"a\\nb": {}}', "holds 1 architecture ("),
        (f'{{"normal": [{NODE}], "normal_concat": ["a\\nb"]}}', "contains node 'a"),
        (f'{{"normal": [{NODE}], "normal_concat": [""]}}', "contains node ''"),
        (DARTS.replace("range(2, 6)", "__import__('os').getpid()", 1), "unlike line 1"),
        (DARTS.replace("range(2, 6)", "range(10 ** 9)", 1), "names, numbers, lists"),
        (DARTS.replace("range(2, 6)", "5", 1), "expected a list of nodes"),
        (DARTS.replace("('sep_conv_3x3', 0), ", "", 1), "'normal' has 7 edges"),
        (DARTS.replace("('sep_conv_3x3', 0)", "('sep_conv_3x3', 0, 2)", 1), "for all"),
        (DARTS.replace("('sep_conv_3x3', 0)", "('sep_conv_3x3', 9)", 1), "normal cell: node 2 reads node 9"),
        (DARTS.replace("sep_conv_3x3", "sepconv_3x3", 1), "Did you mean 'sep_conv_3x3'?"),
        (to_genotype(natpp.load("darts"), targets=True).replace("1, 3)", "1, 2)", 1), "node 2 has 3 incoming edges"),
        ("|nor_conv_3x3~0", "expected one operation from each"),
        ("|nor_conv_3x3~1|", "expected one operation from each"),
        ("|nor_conv_3x3~0|+|none~0|", "node 2 of the NAS-Bench-201 string"),
        ("|none~0|none~0|", "node 1 of the NAS-Bench-201 string"),
        ("|conv_3x3~0|", "Did you mean 'nor_conv_3x3'?"),
        ("|nor_conv_3x3|", "expected 'op~node'"),
        ('{"format": "natpp result", "after": {}}', "this is a full result of natpp"),
    ],
)
def test_bad_text_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(NatppError) as caught:
        parse(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@given(st.text() | st.text(alphabet="{}[]|~+\"',:0123Genotype()normal_cv x"))
@example("Genotype")
@example('{"normal": {}}')
@example("Genotype(normal=[()], normal_concat=[], reduce=[], reduce_concat=[])")
@example("Genotype(**{}, *[])")
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(NatppError):
        parse(text)


@pytest.mark.parametrize(
    ("arch", "to", "words"),
    [
        ("darts", to_nasbench201, "also has a reduction cell"),
        (RESNET_LIKE, to_genotype, "has one cell"),
        (Architecture(Graph.from_inputs([[("conv_5x5", 1)]], [2])), to_nasbench201, "conv_5x5 is not an operation"),
        (Architecture(Graph.from_inputs([[("conv_3x3", 0)]], [2])), to_nasbench201, "read all earlier nodes"),
        (Architecture(Graph.from_inputs([[("conv_3x3", 1)]])), to_nasbench201, "last node only"),
        (Architecture(*[Graph.from_inputs([[("conv_3x3", 0)]])] * 2), to_genotype, "some nodes of this architecture"),
    ],
)
def test_what_a_form_cannot_carry_is_refused(arch: object, to: object, words: str) -> None:
    value = natpp.load(arch) if isinstance(arch, str) else arch
    with pytest.raises(NatppError, match=words):
        to(value)


def test_load_takes_names_files_texts_and_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import io

    darts = natpp.load("darts")
    file = tmp_path / "cell.json"
    file.write_text(to_json(darts))
    assert natpp.load(file) == natpp.load(str(file)) == natpp.load(to_json(darts)) == natpp.load(DARTS) == darts
    monkeypatch.setattr("sys.stdin", io.StringIO(DARTS))
    assert natpp.load("-") == darts


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("dart", "Did you mean 'darts'?"),
        ("", "empty"),
        ("nowhere/cell.json", "no file 'nowhere/cell.json'"),
        ("x" * 5000, "unknown architecture"),
        ("a\0b", "unknown architecture"),
        (Path("nowhere.json"), "cannot read 'nowhere.json': No such file"),
        (3, "expected a name"),
    ],
)
def test_load_refuses_what_is_not_there(given: object, words: str) -> None:
    with pytest.raises(NatppError) as caught:
        natpp.load(given)
    assert words in str(caught.value)


def test_errors_say_which_file(tmp_path: Path) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text("")
    with pytest.raises(NatppError, match=r"empty\.json': the text is empty"):
        natpp.load(empty)
    marked = tmp_path / "marked.txt"
    marked.write_text("\ufeff" + DARTS, encoding="utf-8")  # a byte-order mark
    assert natpp.load(marked) == natpp.load(DARTS.replace("Genotype(", "Genotype (")) == natpp.load("darts")
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(NatppError, match="not a text file"):
        natpp.load(binary)
    with pytest.raises(NatppError, match="cannot read"):
        natpp.load(tmp_path)
