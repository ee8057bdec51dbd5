"""Drawings of models: layout by Graphviz, drawing by matplotlib (needs matplotlib and pygraphviz).

The wheel of `pygraphviz` includes Graphviz's layout engine; no other program is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from io import StringIO
from typing import Any

import onnx

from onnxgrad.base.checks import checked_axes, plain_text, several
from onnxgrad.base.models import ModelLike, as_proto
from onnxgrad.base.optional import import_optional

__all__ = ["draw_graph", "draw_graphs", "graph_svg"]

_COLORS = {"input": "#ffe08a", "initializer": "#d6e9c6", "node": "#cfe2f3", "output": "#f6c6c6"}
_FONT_SIZE = 9.0  # points
_MARGIN = 8.0  # points: between text and edge of a box, and around the picture
_TITLE = 24.0  # points above the picture
_MAX_SHOWN_VALUES = 3  # integer initializers up to this size are shown by value


@dataclass
class _Drawing:
    """A graph with positions, in points: Graphviz's axes, y upwards."""

    boxes: list[tuple[str, str]] = field(default_factory=list)  # text, kind
    lines: list[tuple[int, int]] = field(default_factory=list)
    centers: list[tuple[float, float]] = field(default_factory=list)
    curves: list[list[tuple[float, float]]] = field(default_factory=list)  # cubic Bezier points
    size: tuple[float, float] = (0.0, 0.0)


def draw_graph(model: ModelLike, ax: Any = None, title: str | None = None) -> Any:
    """Draw a model: inputs yellow, initializers green, nodes blue, outputs red.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    ax : matplotlib.axes.Axes, default=None
        Where to draw; None creates a figure of the size that the graph needs. In given axes
        everything, including text, is scaled to fit.
    title : str, default=None

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ImportError
        matplotlib or pygraphviz is not installed.
    """
    return draw_graphs([model], None if ax is None else [ax], [title])[0]


def draw_graphs(
    models: Sequence[ModelLike],
    axes: Sequence[Any] | None = None,
    titles: Sequence[str | None] | None = None,
) -> list[Any]:
    """Draw models side by side and return the axes, one for each model; see `draw_graph`."""
    models = several("models", models, "models")
    if not models:
        raise ValueError("Give at least one model.")
    titles = [None] * len(models) if titles is None else several("titles", titles, "texts")
    titles = [None if title is None else plain_text("title", title) for title in titles]
    if len(titles) != len(models):
        raise ValueError(f"{len(models)} models were given and {len(titles)} titles.")
    axes = None if axes is None else [checked_axes("axes", ax) for ax in several("axes", axes)]
    if axes is not None and len(axes) != len(models):
        raise ValueError(f"{len(models)} models were given and {len(axes)} axes.")
    drawings = [_laid_out(_graph_of(model)) for model in models]
    axes = _new_axes(drawings, titles) if axes is None else axes
    for ax, drawing, title in zip(axes, drawings, titles, strict=True):
        _draw(ax, drawing)
        if title:
            ax.set_title(title)
    return list(axes)


def graph_svg(model: ModelLike) -> str:
    """Return the drawing of a model as SVG; it is the same for the same model."""
    plt = _pyplot()
    text = StringIO()
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "onnxgrad"}):
        ax = draw_graph(model)
        ax.figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(ax.figure)
    return text.getvalue()


def _graph_of(model: ModelLike) -> onnx.GraphProto:
    # A model in memory is drawn as it is, whether it is valid or not.
    return as_proto(model).graph


def _pyplot() -> Any:
    return import_optional("matplotlib.pyplot", "a drawing of a model")


def _new_axes(drawings: Sequence[_Drawing], titles: Sequence[str | None]) -> list[Any]:
    """Return axes of a new figure in which one unit is one point."""
    top = _TITLE if any(titles) else 0.0
    # A title needs space even if the graph is small; matplotlib's font is a third larger.
    widths = [
        max(drawing.size[0], 1.4 * _text_size(title or "")[0] + 2 * _MARGIN)
        for drawing, title in zip(drawings, titles, strict=True)
    ]
    height = max(drawing.size[1] for drawing in drawings)
    figure = _pyplot().figure(figsize=(sum(widths) / 72, (height + top) / 72), dpi=100)
    left, axes = 0.0, []
    for drawing, width in zip(drawings, widths, strict=True):
        below = height - drawing.size[1]
        rectangle = (left, below, width, drawing.size[1])
        total = (sum(widths), height + top, sum(widths), height + top)
        axes.append(figure.add_axes(tuple(a / b for a, b in zip(rectangle, total, strict=True))))
        left += width
    return axes


def _laid_out(graph: onnx.GraphProto) -> _Drawing:
    """Return boxes and lines of a graph, with their positions from Graphviz's dot."""
    # 2.0 or newer, which includes Graphviz.
    pygraphviz = import_optional("pygraphviz", "a drawing of a model")
    _pyplot()
    drawing = _boxes_and_lines(graph)
    dot = pygraphviz.AGraph(strict=False, directed=True, nodesep="0.2", ranksep="0.28")
    for i, (text, _) in enumerate(drawing.boxes):
        width, height = _text_size(text)
        dot.add_node(
            i, label="", shape="box", fixedsize="true",
            width=f"{(width + _MARGIN) / 72:.4f}", height=f"{(height + _MARGIN) / 72:.4f}",
        )  # fmt: skip
    for count, (first, second) in enumerate(drawing.lines):
        dot.add_edge(first, second, key=count, arrowsize="0.6")
    dot.layout(prog="dot")
    for i in range(len(drawing.boxes)):
        drawing.centers.append(_point(dot.get_node(i).attr["pos"]))
    for count, (first, second) in enumerate(drawing.lines):
        drawing.curves.append(_curve(dot.get_edge(first, second, count).attr["pos"]))
    _, _, right, top = (float(number) for number in dot.graph_attr["bb"].split(","))
    drawing.size = (right + 2 * _MARGIN, top + 2 * _MARGIN)
    return drawing


def _boxes_and_lines(graph: onnx.GraphProto) -> _Drawing:
    drawing = _Drawing()
    weights = {init.name: init for init in graph.initializer}
    made: dict[str, int] = {}

    def box(text: str, kind: str) -> int:
        drawing.boxes.append((text, kind))
        return len(drawing.boxes) - 1

    for value in graph.input:
        if value.name not in weights:
            made[value.name] = box(_value_text(value), "input")
    for node in graph.node:
        index = box(node.op_type, "node")
        for name in dict.fromkeys(_read_by(node)):
            if name in weights and name not in made:
                made[name] = box(_weight_text(weights[name]), "initializer")
            if name in made:
                drawing.lines.append((made[name], index))
        made.update({name: index for name in node.output if name})
    for value in graph.output:
        index = box(_value_text(value), "output")
        if value.name in made:
            drawing.lines.append((made[value.name], index))
    return drawing


def _read_by(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, including its subgraphs (outer names are unique)."""
    yield from node.input
    for attribute in node.attribute:
        for inner in [attribute.g, *attribute.graphs]:
            for each in inner.node:
                yield from _read_by(each)


def _value_text(value: onnx.ValueInfoProto) -> str:
    dims = value.type.tensor_type.shape.dim
    shape = ", ".join(
        str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in dims
    )
    return f"{value.name}\n[{shape}]"


def _weight_text(init: onnx.TensorProto) -> str:
    size = 1
    for dim in init.dims:
        size *= dim
    if init.data_type == onnx.TensorProto.INT64 and size <= _MAX_SHOWN_VALUES:
        return f"{init.name}\n= {onnx.numpy_helper.to_array(init).tolist()}"
    return f"{init.name}\n{list(init.dims)}"


@lru_cache(maxsize=4096)
def _text_size(text: str) -> tuple[float, float]:
    """Return width and height of lines of text in points, as matplotlib draws them."""
    from matplotlib.textpath import TextPath

    lines = text.split("\n")
    inked = [TextPath((0, 0), line, size=_FONT_SIZE) for line in lines if line.strip()]
    width = max((path.get_extents().width for path in inked), default=0.0)
    return float(width), 1.25 * _FONT_SIZE * len(lines)


def _point(text: str) -> tuple[float, float]:
    x, y = text.split(",")
    return float(x), float(y)


def _curve(text: str) -> list[tuple[float, float]]:
    """Parse the Bezier points of an edge as Graphviz writes them: the tip ("e,x,y") is first."""
    tip, *points = text.split()
    if tip.startswith("e,"):
        return [*(_point(point) for point in points), _point(tip[2:])]
    return [_point(point) for point in (tip, *points)]


def _draw(ax: Any, drawing: _Drawing) -> None:
    from matplotlib.patches import FancyArrowPatch, Rectangle
    from matplotlib.path import Path

    width, height = drawing.size
    ax.set(xlim=(-_MARGIN, width - _MARGIN), ylim=(-_MARGIN, height - _MARGIN), aspect="equal")
    ax.axis("off")
    extent = ax.get_window_extent().transformed(ax.figure.dpi_scale_trans.inverted())
    scale = min(72 * extent.width / width, 72 * extent.height / height, 1.0)
    for points in drawing.curves:
        *curve, tip = points
        codes = [Path.MOVETO, *[Path.CURVE4] * (len(curve) - 1), Path.LINETO]
        ax.add_patch(
            FancyArrowPatch(
                path=Path([*curve, tip], codes), arrowstyle="-|>", mutation_scale=6 * scale,
                color="0.4", linewidth=0.9 * scale, shrinkA=0, shrinkB=0, clip_on=False,
            )
        )  # fmt: skip
    for (text, kind), (x, y) in zip(drawing.boxes, drawing.centers, strict=True):
        box_width, box_height = (size + _MARGIN for size in _text_size(text))
        ax.add_patch(
            Rectangle(
                (x - box_width / 2, y - box_height / 2), box_width, box_height,
                facecolor=_COLORS[kind], edgecolor="0.5", linewidth=0.8 * scale, clip_on=False,
            )
        )  # fmt: skip
        ax.text(x, y, text, ha="center", va="center", fontsize=_FONT_SIZE * scale)
