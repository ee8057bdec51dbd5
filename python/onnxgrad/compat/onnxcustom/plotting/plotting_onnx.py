"""Models as pictures, drawn with matplotlib: inputs on top, outputs below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import onnx

__all__ = ["onnx_svg", "plot_onnxs"]

_WIDTH, _HEIGHT = 1.9, 0.85  # of a place in the picture, in inches
_COLORS = {"input": "#ffe08a", "initializer": "#d6e9c6", "node": "#cfe2f3", "output": "#f6c6c6"}


def plot_onnxs(
    *onx: onnx.ModelProto,
    ax: Any = None,
    dpi: int = 300,
    temp_dot: str | None = None,
    temp_img: str | None = None,
    show: bool = False,
    title: str | Sequence[str] | None = None,
) -> Any:
    """Draw models side by side.

    Parameters
    ----------
    *onx : onnx.ModelProto
    ax : matplotlib.axes.Axes or list of them, default=None
        Where to draw; None makes a new figure.
    dpi : int, default=300
        Of a new figure, when it is saved.
    temp_dot, temp_img : str, default=None
        Taken for compatibility: no other program is called.
    show : bool, default=False
        Whether to show the figure.
    title : str or list of str, default=None

    Returns
    -------
    matplotlib.axes.Axes or list of them
        One for each model.
    """
    del temp_dot, temp_img
    if not onx:
        raise ValueError("Give at least one model.")
    plt = _pyplot()
    pictures = [_Picture(model.graph) for model in onx]
    if ax is None:
        width = max(4.0, sum(picture.width for picture in pictures))
        height = max(2.5, max(picture.height for picture in pictures))
        figure, found = plt.subplots(1, len(onx), figsize=(width, height), layout="constrained")
        figure.dpi = min(dpi, 100)
        axes = [found] if len(onx) == 1 else list(found)
    else:
        axes = list(ax) if isinstance(ax, Iterable) else [ax]
    if len(axes) != len(onx):
        raise ValueError(f"{len(onx)} models were given and {len(axes)} axes.")
    titles = [title] * len(onx) if title is None or isinstance(title, str) else list(title)
    for one, picture, text in zip(axes, pictures, titles, strict=True):
        picture.draw(one)
        if text:
            one.set_title(text)
    if show:
        plt.show()
    return axes[0] if len(axes) == 1 else axes


def onnx_svg(model: onnx.ModelProto) -> str:
    """Return a model as the text of an SVG picture."""
    from io import StringIO

    plt = _pyplot()
    axes = plot_onnxs(model)
    text = StringIO()
    axes.figure.savefig(text, format="svg")
    plt.close(axes.figure)
    return text.getvalue()


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "matplotlib draws models and is not installed: pip install 'onnxgrad[plot]'"
        ) from error
    return plt


class _Picture:
    """Boxes in rows and the lines between them.

    A node is one row below the lowest of what it reads; an initializer is above its first reader.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.boxes: list[tuple[str, str, int]] = []  # text, kind, row
        self.lines: list[tuple[int, int]] = []
        weights = {init.name: init for init in graph.initializer}
        made: dict[str, int] = {}
        for value in graph.input:
            if value.name not in weights:
                made[value.name] = self._box(_text(value), "input", 0)
        for node in graph.node:
            sources = [name for name in dict.fromkeys(node.input) if name in made]
            row = 1 + max((self.boxes[made[name]][2] for name in sources), default=0)
            place = self._box(node.op_type, "node", row)
            for name in dict.fromkeys(node.input):
                if name in weights and name not in made:
                    init = weights[name]
                    text = f"{name}\n{list(init.dims)}"
                    made[name] = self._box(text, "initializer", row - 1)
                if name in made:
                    self.lines.append((made[name], place))
            made.update(dict.fromkeys(node.output, place))
        last = 1 + max((row for _, _, row in self.boxes), default=0)
        for value in graph.output:
            place = self._box(_text(value), "output", last)
            if value.name in made:
                self.lines.append((made[value.name], place))
        self._place()

    def _box(self, text: str, kind: str, row: int) -> int:
        self.boxes.append((text, kind, row))
        return len(self.boxes) - 1

    def _place(self) -> None:
        """Give each box a column: as near as can be to the mean of what it reads."""
        sources: dict[int, list[int]] = {}
        for first, second in self.lines:
            sources.setdefault(second, []).append(first)
        rows: dict[int, list[int]] = {}
        for place, (_, _, row) in enumerate(self.boxes):
            rows.setdefault(row, []).append(place)
        self.x: dict[int, float] = {}
        for row in sorted(rows):
            places = rows[row]
            wanted = {}
            for count, place in enumerate(places):
                above = [self.x[s] for s in sources.get(place, []) if s in self.x]
                wanted[place] = sum(above) / len(above) if above else float(count)
            taken = -1e9
            for place in sorted(places, key=lambda place: wanted[place]):
                self.x[place] = taken = max(wanted[place], taken + 1)
        left = min(self.x.values(), default=0.0)
        self.x = {place: x - left for place, x in self.x.items()}
        self.width = (1 + max(self.x.values(), default=0.0)) * _WIDTH
        self.height = (2 + max(rows, default=0)) * _HEIGHT

    def draw(self, ax: Any) -> None:
        for first, second in self.lines:
            rows = self.boxes[second][2] - self.boxes[first][2]
            # A straight line over several rows would run through what is between.
            is_hidden = rows > 1 and abs(self.x[first] - self.x[second]) < 0.3
            ax.annotate(
                "",
                xy=(self.x[second], -self.boxes[second][2] + 0.24),
                xytext=(self.x[first], -self.boxes[first][2] - 0.24),
                arrowprops={
                    "arrowstyle": "->",
                    "color": "0.4",
                    "lw": 0.9,
                    "connectionstyle": f"arc3,rad={0.35 if is_hidden else 0}",
                },
            )
        for place, (text, kind, row) in enumerate(self.boxes):
            ax.text(
                self.x[place],
                -row,
                text,
                ha="center",
                va="center",
                fontsize=8,
                bbox={
                    "boxstyle": "round,pad=0.3",
                    "facecolor": _COLORS[kind],
                    "edgecolor": "0.5",
                },
            )
        bottom = max((row for _, _, row in self.boxes), default=0)
        ax.set(
            xlim=(-0.6, max(self.x.values(), default=0) + 0.6),
            ylim=(-bottom - 0.5, 0.5),
        )
        ax.axis("off")


def _text(value: onnx.ValueInfoProto) -> str:
    dims = value.type.tensor_type.shape.dim
    shape = ", ".join(
        str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in dims
    )
    return f"{value.name}\n[{shape}]"
