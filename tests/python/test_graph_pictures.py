"""Pictures of models: every value is there, and nothing lies on anything else."""

import itertools
import sys
import xml.etree.ElementTree as ET

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxgrad
from compat_models import polynomial

matplotlib = pytest.importorskip("matplotlib")
pytest.importorskip("pygraphviz")
matplotlib.use("agg")
pictures = pytest.importorskip("onnxgrad.graph_pictures")


@pytest.fixture(autouse=True)
def _closed_figures():
    yield
    if plt := sys.modules.get("matplotlib.pyplot"):
        plt.close("all")


def texts_of(axes):
    return [text.get_text() for text in axes.texts]


def boxes_of(axes):
    return [p for p in axes.patches if isinstance(p, matplotlib.patches.Rectangle)]


def gradient_of_polynomial():
    return onnxgrad.gradient(polynomial(), wrt=["init", "init_1", "init_b10"])


def test_all_values_and_nodes_are_drawn():
    model = polynomial()
    axes = pictures.draw_graph(model, title="a function")
    names = {node.op_type for node in model.graph.node}
    texts = texts_of(axes)
    assert names <= set(texts)
    assert "x\n[N, 2]" in texts
    assert "y\n[N, 1]" in texts
    assert "init_1\n[1, 2]" in texts
    assert "init_5\n= [0]" in texts
    arrows = len(axes.patches) - len(boxes_of(axes))
    reads = sum(len(set(node.input)) for node in model.graph.node)
    assert arrows == reads + len(model.graph.output)


@pytest.mark.parametrize("make", [polynomial, gradient_of_polynomial])
def test_no_box_or_text_overlaps(make):
    axes = pictures.draw_graph(make())
    axes.figure.canvas.draw()
    boxes = [box.get_window_extent() for box in boxes_of(axes)]
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)
    for text, box in zip(axes.texts, boxes, strict=True):
        inner = text.get_window_extent()
        assert box.x0 <= inner.x0
        assert inner.x1 <= box.x1
        assert box.y0 <= inner.y0
        assert inner.y1 <= box.y1
    assert axes.get_window_extent().x1 <= axes.figure.bbox.x1 + 1


def test_in_small_axes_the_text_is_scaled_too():
    figure = matplotlib.pyplot.figure(figsize=(1.5, 2))
    axes = pictures.draw_graph(polynomial(), ax=figure.add_subplot())
    figure.canvas.draw()
    sizes = {text.get_fontsize() for text in axes.texts}
    assert len(sizes) == 1
    assert sizes.pop() < 4
    for text, box in zip(axes.texts, boxes_of(axes), strict=True):
        assert text.get_window_extent().width <= box.get_window_extent().width + 1


def test_arrows_run_between_the_boxes_they_join():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] a) => (float[2] c) {b = Relu(a) '
        "c = Add(b, a)}"
    )
    axes = pictures.draw_graph(model)
    boxes = dict(zip(texts_of(axes), boxes_of(axes), strict=True))
    arrows = [p for p in axes.patches if p not in boxes_of(axes)]
    assert len(arrows) == 4
    ends = []
    for arrow in arrows:
        path = arrow.get_path() if arrow._path_original is None else arrow._path_original
        ends.append((path.vertices[0], path.vertices[-1]))

    def named(point):
        def distance(box):
            x, y = np.clip(
                point,
                (box.get_x(), box.get_y()),
                (box.get_x() + box.get_width(), box.get_y() + box.get_height()),
            )
            return abs(x - point[0]) + abs(y - point[1])

        name = min(boxes, key=lambda name: distance(boxes[name]))
        assert distance(boxes[name]) < 2
        return name

    found = {(named(first), named(last)) for first, last in ends}
    assert found == {
        ("a\n[2]", "Relu"), ("Relu", "Add"), ("a\n[2]", "Add"), ("Add", "c\n[2]"),
    }  # fmt: skip


def test_values_read_inside_a_branch_are_joined_with_its_node():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (bool c, float[2] a) => (float[2] y) {'
        "y = If (c) <then_branch = t () => (float[2] u) {u = Relu(a)}, "
        "else_branch = e () => (float[2] v) {v = Neg(a)}>}"
    )
    axes = pictures.draw_graph(model)
    assert len(axes.patches) - len(boxes_of(axes)) == 3


def test_side_by_side():
    long = "the gradient of a function of two variables, with a long title above a narrow graph"
    both = pictures.draw_graphs([polynomial(), polynomial()], titles=["f", long])
    both[0].figure.canvas.draw()
    assert [axes.get_title() for axes in both] == ["f", long]
    assert both[0].get_position().x1 <= both[1].get_position().x0 + 1e-9
    assert both[0].get_position().x1 <= both[1].title.get_window_extent().x0
    assert both[1].title.get_window_extent().x1 <= both[1].figure.bbox.x1
    with pytest.raises(ValueError, match="1 models were given and 2 titles"):
        pictures.draw_graphs([polynomial()], titles=["a", "b"])


def test_svg_is_reproducible_and_holds_its_words():
    text = pictures.graph_svg(polynomial())
    assert text == pictures.graph_svg(polynomial())
    words = "".join(ET.fromstring(text).itertext())
    assert "Squeeze" in words
    assert "init_b10" in words


def test_without_pygraphviz_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygraphviz", None)
    with pytest.raises(ImportError, match="pip install pygraphviz"):
        pictures.draw_graph(polynomial())
