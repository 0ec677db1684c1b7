"""Pictures: everything is there, nothing overlaps, colours say what they promise."""

import xml.etree.ElementTree as ET
from itertools import combinations

import pytest
from hypothesis import given, settings

import natpp
from natpp.arch.graph import Graph
from natpp.arch.networks import setting
from natpp.arch.ops import PAPER_OPS, Place
from natpp.registry import ZOO
from natpp.report.bars import cost_bars_picture, cost_bars_text, op_costs
from natpp.report.draw import GREY, RED, architecture_scene, cell_scene, network_scene, pair_scene
from natpp.report.scene import Box, Curve, Scene, Text, text_width, to_png, to_svg
from natpp.report.text import architecture_text
from tests.strategies import graphs, wide_graphs

SVG = "{http://www.w3.org/2000/svg}"


def rectangles(scene: Scene) -> list[tuple[float, float, float, float]]:
    """Left, top, right, bottom of everything that holds text."""
    found = []
    for shape in scene.shapes:
        if isinstance(shape, Box):
            half = shape.width / 2, shape.height / 2
            found.append((shape.x - half[0], shape.y - half[1], shape.x + half[0], shape.y + half[1]))
        elif isinstance(shape, Text):
            width, half_height = text_width(shape.text, shape.font), shape.font / 2
            found.append((shape.x, shape.y - half_height, shape.x + width, shape.y + half_height))
    return found


def points_on(curve: Curve) -> list[tuple[float, float]]:
    """Points along a curve, its bends among them."""
    found = []
    for (x0, y0), (x1, y1) in zip(curve.points, curve.points[1:], strict=False):
        for step in range(21):
            t = step / 20
            ease = 3 * t * t * (1 - t) + t**3  # y of a bend with level ends
            bend = 1.5 * t * (1 - t) ** 2 + 1.5 * t * t * (1 - t) + t**3  # x of it
            found.append((x0 + bend * (x1 - x0), y0 + ease * (y1 - y0)))
    return found


def assert_tidy(scene: Scene) -> None:
    boxes = rectangles(scene)
    for one, other in combinations(boxes, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, (one, other)
    for left, top, right, bottom in boxes:
        assert left >= -0.01
        assert top >= -0.01
        assert right <= scene.width + 0.01
        assert bottom <= scene.height + 0.01
    for curve in (shape for shape in scene.shapes if isinstance(shape, Curve)):
        for x, y in points_on(curve):
            for left, top, right, bottom in boxes:
                inside = left + 0.5 < x < right - 0.5 and top + 0.5 < y < bottom - 0.5
                assert not inside, f"a line runs through the box at {left}, {top}"
    for shape in scene.shapes:
        if isinstance(shape, Box):
            assert text_width(shape.text, shape.font) <= shape.width


@pytest.mark.parametrize("name", list(ZOO))
def test_no_label_overlaps_in_the_zoo(name: str) -> None:
    assert_tidy(architecture_scene(ZOO[name].arch, name))
    assert_tidy(network_scene(ZOO[name].arch, setting(), name))
    if ZOO[name].optimized_from:
        assert_tidy(pair_scene(ZOO[ZOO[name].optimized_from].arch, ZOO[name].arch))


@settings(max_examples=60)
@given(graphs(max_nodes=7) | wide_graphs())
def test_no_label_overlaps_in_random_cells(graph: Graph) -> None:
    assert_tidy(cell_scene(graph))
    assert_tidy(cell_scene(graph, dead=False))
    changed = graph.with_ops([edge.op if edge.fixed else "conv_7x1_1x7" for edge in graph.edges])
    assert_tidy(cell_scene(changed, before=graph))


def test_a_picture_names_every_edge_node_input_and_output() -> None:
    root = ET.fromstring(natpp.draw("enas"))  # noqa: S314 (our own text)
    texts = [element.text for element in root.iter(f"{SVG}text")]
    arch = natpp.load("enas")
    ops = [op for _, graph in arch.cells() for op in graph.ops]
    assert all(texts.count(op) == ops.count(op) for op in ops)
    assert texts.count("output") == texts.count("input 0") == texts.count("input 1") == 2
    assert all(texts.count(str(node)) == 2 for node in range(2, 7))


def test_changes_are_red_and_nulls_dashed_grey() -> None:
    scene = pair_scene(natpp.load("darts"), natpp.load("natpp_darts"), ("darts", "natpp_darts"))
    red = [shape.text for shape in scene.shapes if isinstance(shape, Box) and shape.stroke == RED]
    assert sorted(red) == [
        "max_pool_3x3 → avg_pool_3x3",
        "max_pool_3x3 → avg_pool_3x3",
        "max_pool_3x3 → skip_connect",
        "sep_conv_3x3 → dil_conv_3x3",
        "sep_conv_3x3 → null",
        "sep_conv_3x3 → skip_connect",
    ]
    vgg = architecture_scene(natpp.load("vgg_block"))
    nulls = [shape for shape in vgg.shapes if isinstance(shape, Box) and shape.text == "null"]
    assert {shape.stroke for shape in nulls} == {GREY}
    assert len(nulls) == 8
    assert sum(shape.dashed for shape in vgg.shapes if isinstance(shape, Curve)) >= 16


def test_different_graphs_are_shown_without_marks() -> None:
    svg = natpp.draw("darts", against="enas")
    assert "graphs differ" in svg
    assert RED not in svg


def test_two_drawings_of_one_graph_agree() -> None:
    """Before and after have their nodes at the same places."""
    left, right = natpp.load("darts").normal, natpp.load("natpp_darts").normal
    widths = {index: text_width("conv_7x1_1x7 → conv_7x1_1x7") for index in range(8)}
    places = [
        [(s.x, s.y) for s in cell_scene(graph, widths=widths).shapes if isinstance(s, Box) and len(s.text) == 1]
        for graph in (left, right)
    ]
    assert places[0] == places[1]


def test_svg_escapes_what_it_writes() -> None:
    root = ET.fromstring(to_svg(architecture_scene(natpp.load("darts"), "<a & 'b'>")))  # noqa: S314 (our own text)
    assert "<a & 'b'>" in [element.text for element in root.iter(f"{SVG}text")]


def test_png_is_a_picture_of_the_right_size() -> None:
    scene = architecture_scene(natpp.load("vgg_block"), "vgg_block")
    png = to_png(scene, scale=1)
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(png[start : start + 4], "big") for start in (16, 20))
    assert abs(width - scene.width) <= 1
    assert abs(height - scene.height) <= 1


def test_the_network_view_shows_what_stands_in_it() -> None:
    scene = network_scene(natpp.load("darts"), setting("nasbench201"), "darts")
    texts = [shape.text for shape in scene.shapes if isinstance(shape, Box | Text)]
    assert "normal cell, live parts" in texts
    assert not any("reduction" in text for text in texts)  # this network uses none
    assert texts.count("5 × normal cell") == 3
    found = natpp.cost("darts", "nasbench201")
    assert f"alive: {found.live_params:,} parameters, {found.live_madds:,} MAdds" in texts


def test_a_chain_is_drawn_as_one_node() -> None:
    scene = architecture_scene(natpp.load("|none~0|+|none~0|none~1|+|none~0|none~1|none~2|"))
    texts = [shape.text for shape in scene.shapes if isinstance(shape, Box)]
    assert texts.count("same node") == 1
    assert texts.count("null") == 6


def test_the_bar_chart_of_the_paper() -> None:
    rows = op_costs(Place(128, 128))
    assert [name for name, _, _ in rows[:7]] == [
        *("conv_5x5", "conv_3x3", "sep_conv_5x5", "sep_conv_3x3", "dil_conv_5x5", "dil_conv_3x3", "conv_1x1")
    ]
    assert {name for name, _, _ in rows} == set(PAPER_OPS)
    assert cost_bars_text(Place(128, 128)).splitlines()[1].startswith("conv_5x5")
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        first, second = (cost_bars_picture(Place(128, 128), suffix) for _ in range(2))
        assert first.startswith(start)
        assert first == second


def test_text_shows_nodes_changes_and_what_is_dead() -> None:
    text = architecture_text(natpp.load("natpp_darts"), natpp.load("darts"))
    assert "3 = sep_conv_3x3(0) → null" in text
    assert text.endswith("6 edges changed")
    dead = natpp.load("Genotype([('null', 0), ('null', 1), ('conv_3x3', 2), ('skip_connect', 1)], [3], "
                      "[('null', 0), ('null', 1), ('conv_3x3', 2), ('skip_connect', 1)], None)")  # fmt: skip
    assert "conv_3x3(2) [dead]" in architecture_text(dead)
    assert "(loose ends)" in architecture_text(dead)
    assert "[fixed]" in architecture_text(natpp.load("|none~0|"))
    assert "graphs differ" in architecture_text(natpp.load("darts"), natpp.load("enas"))
