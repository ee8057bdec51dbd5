"""Drawings of models under onnxcustom's name; see `onnxgrad.graph_pictures`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import onnx

from onnxgrad.graph_pictures import draw_graphs

__all__ = ["plot_onnxs"]


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
        Where to draw; None creates a new figure.
    dpi : int, default=300
        Resolution of a new figure, at most 100.
    temp_dot, temp_img : str, default=None
        Accepted for compatibility: no other program is called.
    show : bool, default=False
        Whether to show the figure.
    title : str or list of str, default=None

    Returns
    -------
    matplotlib.axes.Axes or list of them
        One for each model.
    """
    del temp_dot, temp_img
    titles = [title] * len(onx) if title is None or isinstance(title, str) else list(title)
    given = None if ax is None else list(ax) if isinstance(ax, Iterable) else [ax]
    axes = draw_graphs(onx, given, titles)
    if given is None:
        axes[0].figure.dpi = min(dpi, 100)
    if show:
        import matplotlib.pyplot as plt

        plt.show()
    return axes[0] if len(axes) == 1 else axes
