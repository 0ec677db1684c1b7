"""Read and write architectures as text (JSON, DARTS genotypes, NAS-Bench-201 strings), without executing anything."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from natpp.arch.graph import KINDS, NULL, NUM_INPUTS, Architecture, Edge, Graph
from natpp.errors import FormatError, NatppError, UnknownNameError, counted, did_you_mean, shortened

VERSION = 1
# Keys of a JSON file that describe its architecture but are not part of the value. `result`: how it was found.
NOTES = ("name", "kind", "source", "result")

NASBENCH201_OPS = {
    "none": "null",
    "skip_connect": "skip_connect",
    "nor_conv_1x1": "conv_1x1",
    "nor_conv_3x3": "conv_3x3",
    "avg_pool_3x3": "avg_pool_3x3",
}
LARGEST_NODE = 1_000_000  # a larger number is surely not a node
FIXED = "fixed"  # fourth entry of a fixed edge in JSON


def parse(text: str) -> Architecture:
    """The architecture described by a text, in any of the formats.

    Examples:
        >>> from natpp.arch.formats import parse, to_json
        >>> parse(to_json(natpp.load("darts"))) == natpp.load("darts")
        True
    """
    stripped = text.strip()
    if not stripped:
        raise FormatError("the text is empty. Expected JSON, a DARTS genotype or a NAS-Bench-201 string")
    if stripped.startswith("|"):
        return from_nasbench201(stripped)
    if stripped.startswith(("{", "[")):
        return from_json(stripped)
    if "Genotype" in stripped:
        return from_genotype(stripped)
    raise FormatError(
        f"{shortened(stripped)} is not an architecture. Expected JSON ('{{\"normal\": …}}'), "
        "a DARTS genotype ('Genotype(normal=…)') or a NAS-Bench-201 string ('|nor_conv_3x3~0|+…')"
    )


def looks_like_text(given: str) -> bool:
    """Whether a command-line argument is an architecture's text rather than a name or a file."""
    stripped = given.strip()
    return stripped.startswith(("{", "[", "|")) or re.search(r"\bGenotype\s*\(", stripped) is not None


# JSON


def from_json(text: str) -> Architecture:
    """Read `{"version": 1, "normal": [[op, from, to], …], "normal_concat": [2, …], "reduce": …}`."""
    try:
        data = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"invalid JSON: {_first_line(error)}. Given: {shortened(text)}") from None
    return from_dict(data)


def from_dict(data: Any) -> Architecture:
    """The architecture described by parsed JSON."""
    if not isinstance(data, dict):
        raise FormatError(f"the JSON is {shortened(json.dumps(data))}, expected an object with the key 'normal'")
    if str(data.get("format", "")).startswith("natpp "):
        raise FormatError(
            f"this is a full {data['format'].removeprefix('natpp ')} of natpp, not an "
            "architecture: natpp report shows it, and natpp optimize --out FILE writes the architecture"
        )
    known = ("version", *(f"{cell}{end}" for cell in KINDS for end in ("", "_concat")), *NOTES)
    if "normal" not in data and data and all(isinstance(value, dict) for value in data.values()):
        names = shortened(", ".join(list(data)[:3]))
        raise FormatError(f"the JSON holds {counted(len(data), 'architecture')} ({names}, …). Give one of them")
    for key in data:
        if key not in known:
            raise FormatError(f"unknown JSON key {shortened(key)}. {did_you_mean(key, known)}")
    version = data.get("version", VERSION)
    if version != VERSION or isinstance(version, bool):
        raise FormatError(f"the version is {shortened(json.dumps(version))}, expected {VERSION}")
    if "normal" not in data:
        raise FormatError("the key 'normal' is missing: the edges of the normal cell, each [op, from, to]")
    graphs = {cell: _graph_from_dict(data, cell) for cell in KINDS if data.get(cell) is not None}
    if data.get("reduce") is None and data.get("reduce_concat") is not None:
        raise FormatError("the JSON has a 'reduce_concat' but no 'reduce'")
    if data["normal"] is None:
        raise FormatError("'normal' is null, expected a list of edges, each [op, from, to]")
    return Architecture(**graphs)


def to_dict(arch: Architecture) -> dict[str, Any]:
    """The architecture as JSON data; `null` means loose ends, or no reduction cell."""
    data: dict[str, Any] = {"version": VERSION}
    for cell in KINDS:
        graph = arch.normal if cell == "normal" else arch.reduce
        data[cell] = None if graph is None else [_edge_to_list(edge) for edge in graph.edges]
        data[f"{cell}_concat"] = None if graph is None or graph.concat is None else list(graph.concat)
    return data


def to_json(arch: Architecture, result: dict[str, Any] | None = None) -> str:
    """The architecture as JSON text, one edge per line; `result` says how it was found.

    Examples:
        >>> from natpp.arch.formats import to_json
        >>> print(to_json(natpp.load("natpp_darts"))[:46])
        {
          "version": 1,
          "normal": [
            ["sep_conv
    """
    lines = []
    for key, value in to_dict(arch).items():
        if key in KINDS and value is not None:
            edges = ",\n    ".join(json.dumps(edge) for edge in value)
            lines.append(f'  "{key}": [\n    {edges}\n  ]')
        else:
            lines.append(f'  "{key}": {json.dumps(value)}')
    if result is not None:
        lines.append(f'  "result": {json.dumps(result)}')
    return "{\n" + ",\n".join(lines) + "\n}"


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise FormatError(f"the JSON repeats a key: {shortened(', '.join(key for key, _ in pairs))}")
    return data


def _graph_from_dict(data: dict[str, Any], cell: str) -> Graph:
    rows = data[cell]
    if not isinstance(rows, list):
        raise FormatError(f"'{cell}' is {shortened(json.dumps(rows))}, expected a list of edges, each [op, from, to]")
    edges = []
    for row in rows:
        fixed = isinstance(row, list) and len(row) == 4 and row[3] == FIXED
        if not isinstance(row, list) or (len(row) != 3 and not fixed) or not isinstance(row[0], str):
            raise FormatError(f"an edge of '{cell}' is {shortened(json.dumps(row))}, expected [op, from, to]")
        edges.append((row[0], row[1], row[2], fixed))
    if f"{cell}_concat" not in data:
        raise FormatError(f"the key '{cell}_concat' is missing: the nodes to concatenate, or null for loose ends")
    concat = data[f"{cell}_concat"]
    if concat is not None and not isinstance(concat, list):
        raise FormatError(f"'{cell}_concat' is {shortened(json.dumps(concat))}, expected a list of nodes or null")
    return _graph(cell, edges, concat)


def _edge_to_list(edge: Edge) -> list[str | int]:
    return [edge.op, edge.source, edge.target, *([FIXED] if edge.fixed else [])]


# DARTS genotypes


def from_genotype(text: str) -> Architecture:
    """Read `Genotype(normal=[('sep_conv_3x3', 0), …], normal_concat=range(2, 6), reduce=…, reduce_concat=…)`.

    Edges are `(op, from)`, two in a row per node, or `(op, from, to)`. A leading `NAME =` is allowed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about stray backslashes; the names are checked below
            tree = ast.parse(text.strip())
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise FormatError(f"invalid genotype: {_first_line(error)}. Given: {shortened(text)}") from None
    statement = tree.body[0] if len(tree.body) == 1 else None
    call = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "Genotype":
        raise FormatError(f"expected one 'Genotype(normal=…, normal_concat=…, …)', got {shortened(text)}")
    fields = ("normal", "normal_concat", "reduce", "reduce_concat")
    values: dict[str, ast.expr] = dict(zip(fields, call.args, strict=False))
    if len(call.args) > len(fields):
        raise FormatError(f"expected a genotype of 4 fields ({', '.join(fields)}), got {len(call.args)}")
    for keyword in call.keywords:
        if keyword.arg not in fields or keyword.arg in values:
            raise FormatError(f"unknown or repeated field {keyword.arg!r}. {did_you_mean(str(keyword.arg), fields)}")
        values[keyword.arg] = keyword.value
    missing = [field for field in fields if field not in values]
    if missing:
        raise FormatError(f"the genotype has no {missing[0]!r}, expected the fields {', '.join(fields)}")
    graphs = {}
    for cell in KINDS:
        edges = _genotype_edges(cell, _literal(values[cell]))
        graphs[cell] = _graph(cell, edges, _literal(values[f"{cell}_concat"]))
    return Architecture(**graphs)


def to_genotype(arch: Architecture, *, targets: bool = False) -> str:
    """DARTS genotype text, with edges as `(op, from)` or, with `targets`, as `(op, from, to)`.

    Examples:
        >>> from natpp.arch.formats import to_genotype
        >>> to_genotype(natpp.load("darts"))[:36]
        "Genotype(normal=[('sep_conv_3x3', 0)"
    """
    if arch.reduce is None:
        raise FormatError(
            "a genotype needs a normal and a reduction cell, but this architecture has one cell. Use JSON"
        )
    if any(edge.fixed for _, graph in arch.cells() for edge in graph.edges):
        raise FormatError(
            "the nodes of a genotype have two inputs, but some nodes of this architecture do not. Use JSON"
        )
    fields = []
    for cell, graph in arch.cells():
        rows = [(edge.op, edge.source, edge.target)[: 3 if targets else 2] for edge in graph.edges]
        concat = None if graph.concat is None else list(graph.concat)
        fields += [f"{cell}={rows!r}", f"{cell}_concat={concat!r}"]
    return f"Genotype({', '.join(fields)})"


def _genotype_edges(cell: str, rows: Any) -> list[tuple[str, Any, Any, bool]]:
    if not isinstance(rows, list | tuple):
        raise FormatError(f"'{cell}' is {shortened(repr(rows))}, expected a list of ('op', from)")
    proper = all(isinstance(row, list) and row and isinstance(row[0], str) for row in rows)
    lengths = {len(row) for row in rows} if proper else set()
    if lengths not in ({2}, {3}):
        raise FormatError(f"the edges of '{cell}' are {shortened(repr(rows))}, expected ('op', from) for all")
    if lengths == {3}:
        return [(_alias(op), source, target, False) for op, source, target in rows]
    if len(rows) % 2:
        raise FormatError(f"'{cell}' has {counted(len(rows), 'edge')}, expected two per node")
    return [(_alias(op), source, NUM_INPUTS + index // 2, False) for index, (op, source) in enumerate(rows)]


def _alias(op: Any) -> str:
    """DARTS calls the null operation 'none'."""
    return NULL if op == "none" else op


def _literal(node: ast.expr) -> Any:
    """The value of a literal or of `range(a, b)`; raises an error for anything else, and executes nothing."""
    match node:
        case ast.Constant(value=None | str() as value):
            return value
        case ast.Constant(value=int() as value) if not isinstance(value, bool) and value <= LARGEST_NODE:
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)) if value <= LARGEST_NODE:
            return -value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Call(func=ast.Name(id="range"), args=arguments, keywords=[]) if 1 <= len(arguments) <= 2:
            bounds = [_literal(argument) for argument in arguments]
            if all(isinstance(bound, int) for bound in bounds):
                return list(range(*bounds))
        case ast.Call(func=ast.Name(id="list"), args=[inner], keywords=[]):
            return _literal(inner)
    raise FormatError(
        f"a genotype may contain names, numbers, lists and range(a, b), unlike line {node.lineno}, "
        f"column {node.col_offset + 1}"
    )


# NAS-Bench-201


def from_nasbench201(text: str) -> Architecture:
    """Read `|op~0|+|op~0|op~1|+|op~0|op~1|op~2|`: one cell, in which each node reads all earlier ones.

    Its input is input 1 of the cell (the output of the previous block); it has no reduction cell.
    """
    nodes = []
    for number, part in enumerate(text.strip().split("+"), start=1):
        match = re.fullmatch(r"\|([^|]*\|)+", part)
        found: dict[int, str] = {}
        for item in part[1:-1].split("|") if match else ():
            name, _, source = item.partition("~")
            if not source.isdecimal() or len(source) > 9:
                raise FormatError(f"{shortened(item)} in a NAS-Bench-201 string, expected 'op~node'")
            if name not in NASBENCH201_OPS:
                raise UnknownNameError(
                    f"unknown NAS-Bench-201 operation {shortened(name)}. {did_you_mean(name, NASBENCH201_OPS)}"
                )
            found[int(source)] = NASBENCH201_OPS[name]
        if match is None or sorted(found) != list(range(number)) or part.count("~") != number:
            raise FormatError(
                f"node {number} of the NAS-Bench-201 string is {shortened(part)}, "
                f"expected one operation from each of the nodes 0 to {number - 1}: '|op~0|…|'"
            )
        nodes.append([(found[source], source + 1) for source in range(number)])
    return Architecture(Graph.from_inputs(nodes, [len(nodes) + 1]))


def to_nasbench201(arch: Architecture) -> str:
    """The official string of an architecture in the NAS-Bench-201 space.

    Examples:
        >>> from natpp.arch.formats import to_nasbench201
        >>> text = "|nor_conv_3x3~0|+|none~0|nor_conv_3x3~1|+|skip_connect~0|none~1|none~2|"
        >>> to_nasbench201(natpp.load(text)) == text
        True
    """
    names = {ours: theirs for theirs, ours in NASBENCH201_OPS.items()}
    graph = arch.normal
    if arch.reduce is not None:
        raise FormatError(
            "a NAS-Bench-201 string has one cell, but this architecture also has a reduction cell. Use JSON"
        )
    if graph.concat != (graph.num_nodes - 1,):
        raise FormatError(
            "the output of a NAS-Bench-201 cell is its last node only, unlike in this architecture. Use JSON"
        )
    parts = []
    for number, inputs in enumerate(graph.inputs, start=1):
        if [source for _, source in inputs] != list(range(1, number + 1)):
            raise FormatError(
                "the nodes of a NAS-Bench-201 cell read all earlier nodes once, in order, unlike in this "
                "architecture. Use JSON"
            )
        for op, _ in inputs:
            if op not in names:
                raise FormatError(f"{op} is not an operation of NAS-Bench-201. Known: {', '.join(names)}")
        parts.append("|" + "".join(f"{names[op]}~{source - 1}|" for op, source in inputs))
    return "+".join(parts)


FORMATS: dict[str, Callable[[Architecture], str]]
FORMATS = {"json": to_json, "genotype": to_genotype, "nasbench201": to_nasbench201}


def _graph(cell: str, edges: Sequence[tuple[str, Any, Any, bool]], concat: Any) -> Graph:
    """A graph; errors name the cell they are in."""
    try:
        if isinstance(concat, int | str):
            raise FormatError(f"the concat list is {concat!r}, expected a list of nodes")
        return Graph(tuple(Edge(*edge) for edge in edges), None if concat is None else tuple(concat))
    except NatppError as error:
        raise type(error)(f"{cell} cell: {error}") from None


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
