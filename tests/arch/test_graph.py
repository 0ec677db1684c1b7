"""An architecture is a value: checked when made, equal up to isomorphism, dead parts known."""

import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import FrozenInstanceError
from itertools import permutations
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import natpp
from natpp.arch.blueprints import alive_in
from natpp.arch.cost import counts
from natpp.arch.formats import parse
from natpp.arch.graph import Architecture, Edge, Graph
from natpp.arch.networks import setting
from natpp.errors import GraphError, NatppError, UnknownNameError
from tests.strategies import architectures, graphs, wide_graphs


def cell(*edges: tuple[str, int], concat: tuple[int, ...] | None = None) -> Graph:
    """A graph from (op, source), two in a row for each node."""
    return Graph(tuple(Edge(op, source, 2 + i // 2) for i, (op, source) in enumerate(edges)), concat)


def test_values_are_frozen_and_hashable() -> None:
    graph = cell(("conv_3x3", 0), ("null", 1))
    assert hash(graph) == hash(cell(("conv_3x3", 0), ("null", 1)))
    assert len({graph, cell(("conv_3x3", 0), ("null", 1)), cell(("conv_3x3", 1), ("null", 1))}) == 2
    with pytest.raises(FrozenInstanceError):
        graph.concat = (2,)


def is_darts(arch: Architecture) -> bool:
    return arch in {natpp.load("darts")}


def test_values_survive_the_way_into_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes of strings differ from process to process, so none may travel."""
    arch = natpp.load("darts")
    hash(arch)
    for seed in ("1", "2"):  # one of them at least is not this process's
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as workers:
            assert workers.submit(is_darts, arch).result()


def test_essence_is_the_same_for_what_computes_the_same() -> None:
    plain = cell(("conv_3x3", 0), ("skip_connect", 1), concat=(2,))
    with_dead_parts = cell(
        *(("null", 0), ("null", 1)),
        *(("skip_connect", 1), ("conv_3x3", 0)),
        *(("conv_5x5", 3), ("conv_5x5", 2)),
        concat=(3,),
    )
    assert plain.essence() == with_dead_parts.essence()
    assert plain.essence() != cell(("conv_3x3", 0), ("skip_connect", 0), concat=(2,)).essence()
    silent = cell(("null", 0), ("null", 1), ("conv_3x3", 0), ("null", 1), concat=(2, 3))
    assert silent.essence() != cell(("conv_3x3", 0), ("null", 1), concat=(2,)).essence()  # the width stays


@given(architectures())
def test_essence_costs_what_is_alive(arch: Architecture) -> None:
    essence = arch.essence()
    before, after = counts(arch, setting(cells=4)), counts(essence, setting(cells=4))
    assert (before.live_params, before.live_madds) == (after.live_params, after.live_madds)
    assert essence.essence() == essence


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Edge("conv3x3", 0, 2), "Did you mean 'conv_3x3'?"),
        (lambda: Edge("conv_3x3", 3, 2), "node 2 reads node 3"),
        (lambda: Edge("conv_3x3", -1, 2), "node 2 reads node -1"),
        (lambda: Edge("conv_3x3", 0, 1), "target of an edge is node 1"),
        (lambda: Edge("conv_3x3", True, 2), "is True, expected the number of a node"),
        (lambda: Edge("conv_3x3", 0, 2, fixed=True), "a fixed edge must be skip_connect or null"),
        (lambda: Graph(()), "at least one node"),
        (lambda: Graph((("conv_3x3", 0, 2),) * 2), "must be of the form Edge"),
        (lambda: cell(("null", 0), ("null", 0), concat=5), "concat list is 5"),
        (lambda: Architecture("darts"), "must be graphs"),
        (lambda: Architecture(cell(("null", 0), ("null", 0)), "x"), "must be graphs"),
        (lambda: Graph((Edge("null", 0, 2),)), "node 2 has 1 incoming edge, expected 2"),
        (lambda: Graph(tuple(Edge("null", 0, 2) for _ in range(3))), "node 2 has 3 incoming edges, expected 2"),
        (lambda: Graph((Edge("null", 0, 9), Edge("null", 0, 9))), "nodes before it"),
        (lambda: cell(("null", 0), ("null", 0), concat=()), "concat list is empty"),
        (lambda: cell(("null", 0), ("null", 0), concat=(3,)), "contains node 3"),
        (lambda: cell(("null", 0), ("null", 0), concat=(1,)), "contains node 1"),
        (lambda: cell(("null", 0), ("null", 0), concat=(2, 2)), "contains a node twice"),
        (lambda: Graph((Edge("skip_connect", 0, 2, True), Edge("null", 0, 2))), "fixed"),
        (lambda: Graph((Edge("null", 1, 2, True), Edge("conv_3x3", 0, 2))), "fixed"),
        (lambda: Graph.from_inputs([[("conv_3x3", 2)]]), "node 2 reads node 2"),
        (lambda: Graph.from_inputs([[("conv_3x3", 1)]], [5]), "contains node 5"),
        (lambda: cell(("null", 0), ("null", 0)).with_ops(["null"]), "1 operation for 2 edges"),
        (lambda: Graph.from_inputs([[]]).with_ops(["skip_connect", "null"]), "is fixed"),
    ],
)
def test_what_is_no_graph_is_refused_with_the_reason(make: object, words: str) -> None:
    with pytest.raises((GraphError, UnknownNameError)) as caught:
        make()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, NatppError)


def test_loose_ends_are_the_nodes_that_nothing_but_null_reads() -> None:
    graph = cell(("conv_3x3", 0), ("conv_3x3", 1), ("skip_connect", 2), ("null", 0), ("null", 2), ("conv_1x1", 1))
    assert graph.outputs == (3, 4)
    widened = graph.with_ops(["conv_3x3", "conv_3x3", "null", "null", "null", "conv_1x1"])
    assert widened.outputs == (2, 3, 4)  # a null edge reads nothing


def test_dead_parts() -> None:
    graph = cell(
        *(("conv_3x3", 0), ("null", 1)),  # node 2 reads input 0
        *(("null", 0), ("null", 1)),  # nothing reaches node 3
        *(("conv_1x1", 3), ("skip_connect", 2)),  # node 4: nothing reaches its first edge
        *(("conv_5x5", 1), ("conv_5x5", 4)),  # nobody reads node 5
        concat=(3, 4),
    )
    found = graph.liveness()
    assert found.reached == (True, True, True, False, True, True)
    assert found.live == (True, False, False, False, False, True, False, False)
    assert found.inputs == (True, False)
    assert found.output
    assert graph.pruned().ops == ("conv_3x3", "null", "null", "null", "null", "skip_connect", "null", "null")
    assert graph.outputs == (3, 4)  # a node that nothing reaches keeps its place
    dead = cell(("null", 0), ("null", 1))
    _, unread, *_, unreached = alive_in(natpp.Architecture(graph, dead), setting(channels=4, cells=4)).parts
    for part in (unread, unreached):  # before and behind two dead reduction cells
        assert not part.live
        assert not any(part.liveness.live)
    assert unread.liveness.output
    assert not unreached.liveness.output


def test_no_path_from_input_to_output_is_valid() -> None:
    graph = cell(("null", 0), ("null", 1), ("conv_3x3", 2), ("null", 0))
    assert not graph.liveness().output


def test_pruning_keeps_the_output_of_loose_ends() -> None:
    graph = cell(("null", 0), ("null", 1), ("conv_3x3", 2), ("conv_3x3", 0))
    assert graph.outputs == (3,)
    assert graph.pruned().outputs == (3,)  # node 2 is read by nothing any more, yet does not join


@given(graphs())
def test_an_edge_is_alive_exactly_if_dropping_it_matters(graph: Graph) -> None:
    """Alive by definition: on a path of non-null edges from an input to the output."""
    paths = set()

    def walk(node: int, on_path: tuple[int, ...]) -> None:
        if node in graph.outputs:
            paths.update(on_path)
        for index, edge in enumerate(graph.edges):
            if edge.source == node and not edge.is_null:
                walk(edge.target, (*on_path, index))

    walk(0, ())
    walk(1, ())
    assert {index for index, alive in enumerate(graph.liveness().live) if alive} == paths


@given(wide_graphs(), st.data())
def test_any_number_of_inputs_round_trips(graph: Graph, data: st.DataObject) -> None:
    nodes = [
        data.draw(
            st.lists(
                st.tuples(st.sampled_from(["conv_3x3", "null", "skip_connect"]), st.integers(0, n - 1)), max_size=5
            )
        )
        for n in range(2, 6)
    ]
    assert Graph.from_inputs(nodes).inputs == tuple(map(tuple, nodes))
    assert all(graph.edges[i].target == graph.edges[i + 1].target for i in range(0, len(graph.edges), 2))
    assert Graph.from_inputs(graph.inputs).edges == graph.edges


def renamed(graph: Graph, rng: random.Random) -> Graph:
    """The same graph with nodes in another order and the edges of a node and the concat list shuffled."""
    nodes = graph.inputs
    left, names, order = set(range(2, 2 + len(nodes))), {0: 0, 1: 1}, []
    while left:
        node = rng.choice([node for node in sorted(left) if all(source in names for _, source in nodes[node - 2])])
        left.remove(node)
        names[node] = 2 + len(order)
        order.append(node)
    shuffled = [
        rng.sample([(op, names[source]) for op, source in nodes[node - 2]], len(nodes[node - 2])) for node in order
    ]
    merged_concat = graph.merged_concat
    concat = None if merged_concat is None else rng.sample([names[node] for node in merged_concat], len(merged_concat))
    return Graph.from_inputs(shuffled, concat)


@given(graphs(ops=("conv_3x3", "skip_connect")) | wide_graphs(), st.randoms(use_true_random=False))
def test_canonical_form_is_stable_under_renaming_and_swapping(graph: Graph, rng: random.Random) -> None:
    other = renamed(graph, rng)
    assert other.canonical() == graph.canonical()
    assert graph.canonical().canonical() == graph.canonical()
    assert Architecture(graph).isomorphic(Architecture(other))


@given(graphs() | wide_graphs(), st.data())
def test_other_operations_need_no_other_check(graph: Graph, data: st.DataObject) -> None:
    """What `with_ops` and `pruned` give without checking again is what its parts make."""
    some = st.sampled_from(["conv_3x3", "null", "skip_connect"])
    changed = graph.with_ops([edge.op if edge.fixed else data.draw(some) for edge in graph.edges])
    for found in (changed, graph.pruned(), changed.pruned()):
        assert Graph(found.edges, found.concat) == found
    with pytest.raises(UnknownNameError):
        Graph((Edge("conv_3x3", 0, 2), Edge("null", 1, 2))).with_ops(["conv_3x3", "conv3x3"])


@given(architectures())
def test_canonical_form_keeps_what_is_there(arch: Architecture) -> None:
    canonical = arch.canonical()
    for (_, graph), (_, form) in zip(arch.cells(), canonical.cells(), strict=True):
        assert sorted(graph.ops) == sorted(form.ops)
        assert len(graph.outputs) == len(form.outputs)
        living = [
            sum(alive and not edge.fixed for edge, alive in zip(one.edges, one.liveness().live, strict=True))
            for one in (graph, form)
        ]
        assert living[0] == living[1]


def test_canonical_form_tells_different_graphs_apart() -> None:
    """Cells of one node fall into as many classes as there are unordered pairs of edges."""
    ops = ("conv_3x3", "max_pool_3x3", "null")
    ends = [(op, source) for op in ops for source in (0, 1)]
    forms = {cell(first, second).canonical() for first in ends for second in ends}
    assert len(forms) == len(ends) * (len(ends) + 1) // 2


def test_canonical_form_knows_which_twin_is_read() -> None:
    twins = [("conv_3x3", 0), ("conv_3x3", 1)]
    both_read_one = cell(*twins, *twins, ("conv_1x1", 2), ("null", 0), ("conv_5x5", 2), ("null", 0))
    each_reads_one = cell(*twins, *twins, ("conv_1x1", 2), ("null", 0), ("conv_5x5", 3), ("null", 0))
    assert both_read_one.canonical() != each_reads_one.canonical()


def test_a_chain_in_another_order_is_the_same_node() -> None:
    a, b, c = ("conv_3x3", 0), ("conv_1x1", 1), ("max_pool_3x3", 1)
    assert Graph.from_inputs([[a, b, c]]).canonical() == Graph.from_inputs([[c, a, b]]).canonical()


@given(st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_canonical_form_is_the_same_for_any_naming_of_small_graphs(num_nodes: int, rng: random.Random) -> None:
    """By brute force: two graphs have one form exactly if some renaming turns one into the other."""

    def graph() -> list[list[tuple[str, int]]]:
        return [[("conv_3x3", rng.randrange(node)) for _ in range(2)] for node in range(2, 2 + num_nodes)]

    def under(nodes: list[list[tuple[str, int]]], names: dict[int, int]) -> set[tuple[object, ...]]:
        return {
            (names[node], tuple(sorted((op, names[source]) for op, source in inputs)))
            for node, inputs in enumerate(nodes, start=2)
        }

    first, second = graph(), graph()
    identity = {node: node for node in range(2 + num_nodes)}
    renamings = ({0: 0, 1: 1} | dict(enumerate(order, start=2)) for order in permutations(range(2, 2 + num_nodes)))
    isomorphic = any(under(first, names) == under(second, identity) for names in renamings)
    everything = range(2, 2 + num_nodes)
    forms = [Graph.from_inputs(nodes, everything).canonical() for nodes in (first, second)]
    assert (forms[0] == forms[1]) == isomorphic


def test_many_like_branches_are_no_trouble() -> None:
    """By brute force over ties this would take minutes."""
    branches = [[[("conv_1x1", 1)], [("conv_3x3", 2 + 2 * branch)]] for branch in range(100)]
    nodes = [node for branch in branches for node in branch]
    graph = Graph.from_inputs(nodes, range(3, 203, 2))
    assert graph.canonical() == renamed(graph, random.Random(0)).canonical()


@pytest.mark.data
def test_nasbench201_has_9445_functions_of_distinct_living_edges(data_folder: Path) -> None:
    import pyarrow.parquet as pq

    table = pq.read_table(data_folder / "nasbench201_cifar10.parquet", columns=["arch"])
    assert len({parse(text).pruned() for text in table["arch"].to_pylist()}) == 9445
