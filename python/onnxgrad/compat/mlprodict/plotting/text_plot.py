"""Models as text, by onnx-array-api: one line for each input, initializer, node and output."""

from __future__ import annotations

from typing import Any

import onnx

from onnxgrad.compat.models import takes_models

__all__ = ["onnx_simple_text_plot", "onnx_text_plot_io"]


@takes_models("model")
def onnx_text_plot_io(
    model: onnx.ModelProto, verbose: bool = False, att_display: Any = None
) -> str:
    """Return operator sets, inputs, initializers and outputs of a model.

    Parameters
    ----------
    model : onnx.ModelProto
    verbose, att_display
        As in onnx-array-api.

    Raises
    ------
    ImportError
        If onnx-array-api is not installed.
    """
    return str(_library().onnx_text_plot_io(model, verbose=verbose, att_display=att_display))


@takes_models("model")
def onnx_simple_text_plot(
    model: onnx.ModelProto, verbose: bool = False, att_display: Any = None, **options: Any
) -> str:
    """Return a model as text, with a node indented below the one whose results it reads.

    Parameters
    ----------
    model : onnx.ModelProto
    verbose, att_display, **options
        As in onnx-array-api: ``add_links``, ``recursive``, ``functions``, ``indent``, ...

    Raises
    ------
    ImportError
        If onnx-array-api is not installed.
    """
    return str(
        _library().onnx_simple_text_plot(model, verbose=verbose, att_display=att_display, **options)
    )


def _library() -> Any:
    try:
        from onnx_array_api.plotting import text_plot
    except ImportError as error:
        raise ImportError("text plots need onnx-array-api: pip install onnx-array-api") from error
    return text_plot
