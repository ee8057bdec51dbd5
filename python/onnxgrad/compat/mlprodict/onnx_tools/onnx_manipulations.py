"""Selecting a part of a model, and renaming its values; see `onnxgrad.compat.graphs.tools`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.shape_inference

from onnxgrad.compat.graphs import tools
from onnxgrad.compat.models import takes_models

__all__ = ["onnx_rename_names", "select_model_inputs_outputs"]


@takes_models("model")
def select_model_inputs_outputs(
    model: onnx.ModelProto,
    outputs: str | Sequence[str] | None = None,
    inputs: str | Sequence[str] | None = None,
    infer_shapes: bool = False,
    overwrite: Mapping[str, tuple[Any, Any]] | None = None,
    remove_unused: bool = True,
    verbose: int = 0,
    fLOG: Callable[..., Any] | None = None,
) -> onnx.ModelProto:
    """Return the part of a model between some values; see `onnxgrad.compat.graphs.tools.select`.

    Parameters
    ----------
    model : onnx.ModelProto
    outputs, inputs : str or list of str, default=None
        None means the model's own.
    infer_shapes : bool, default=False
        Whether to infer types and shapes even if the model declares them. Those of inner values
        are always inferred.
    overwrite : dict, default=None
        ``{name: (dtype, shape)}`` of new inputs and outputs.
    remove_unused : bool, default=True
        Whether to remove unused initializers.
    verbose : int, default=0
        1 reports the number of nodes with `fLOG`.
    fLOG : function, default=None
    """
    source = onnx.shape_inference.infer_shapes(model) if infer_shapes else model
    result = tools.select(source, outputs, inputs)
    for value in [*result.graph.input, *result.graph.output]:
        if overwrite is not None and value.name in overwrite:
            dtype, shape = overwrite[value.name]
            element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, element, shape))
    if not remove_unused:
        kept = {init.name for init in result.graph.initializer}
        more = [init for init in model.graph.initializer if init.name not in kept]
        result.graph.initializer.extend(more)
    if verbose > 0 and fLOG is not None:
        nodes = f"{len(model.graph.node)} --> {len(result.graph.node)}"
        fLOG(f"[select_model_inputs_outputs] nodes {nodes}")
    return result


@takes_models("model")
def onnx_rename_names(
    model: onnx.ModelProto,
    strategy: str = "simple",
    recursive: bool = True,
    replace: Mapping[str, str] | None = None,
) -> onnx.ModelProto:
    """Rename values and initializers in place; see `onnxgrad.compat.graphs.tools.rename`."""
    return tools.rename(model, strategy, recursive, replace)
