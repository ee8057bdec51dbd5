"""The part of mlprodict's module tree that the training notebooks use.

``%load_ext onnxgrad.compat.mlprodict`` registers the magic command ``%onnxview model``.
"""

from __future__ import annotations

from typing import Any

__all__ = ["load_ipython_extension"]

# The release that this module reproduces.
__version__ = "0.9.1887"


def load_ipython_extension(ipython: Any) -> None:
    """Register ``%onnxview``, which draws a model as SVG."""

    def onnxview(line: str) -> Any:
        from IPython.display import SVG

        from onnxgrad.graph_pictures import graph_svg

        return SVG(graph_svg(ipython.ev(line)))

    ipython.register_magic_function(onnxview, "line", "onnxview")
