"""Models in another form: with an open batch dimension, in inference mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxgrad import _core
from onnxgrad.base.models import ModelLike, deliver, kind_if, to_core_model

if TYPE_CHECKING:
    import onnx

__all__ = ["open_batch", "to_inference"]


def open_batch(model: ModelLike, *, like: bool = False) -> onnx.ModelProto:
    """Return a model that takes any number of rows.

    Exporters fix the batch by default: ``torch.onnx.export`` without ``dynamic_shapes`` writes the
    number of rows of its example into all shapes. Here the first dimension of the inputs becomes a
    symbol, and constants that hold the number are replaced by what computes it.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    like : bool, default=False
        As for `gradient`.

    Returns
    -------
    onnx.ModelProto
        With the weights of `model`; `model` itself if its batch is open, or if it has none.

    Raises
    ------
    ModelError
        An operator combines rows, or a shape cannot follow their number; the message names the
        node.

    Notes
    -----
    The result is run on random rows, twice as many as `model` takes, and each row compared with
    what `model` computes for it. Batch normalization and dropout that the file has in training mode
    are compared in inference mode.

    Examples
    --------
    >>> import numpy as np
    >>> import onnxgrad as og
    >>> from onnx import helper, numpy_helper
    >>> shape = numpy_helper.from_array(np.array([1, 4]), "shape")
    >>> graph = helper.make_graph(
    ...     [helper.make_node("Reshape", ["x", "shape"], ["y"])],
    ...     "flatten",
    ...     [helper.make_tensor_value_info("x", 1, [1, 2, 2])],
    ...     [helper.make_tensor_value_info("y", 1, [1, 4])],
    ...     [shape],
    ... )
    >>> fixed = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    >>> session = og.InferenceSession(og.open_batch(fixed))
    >>> session.run(None, {"x": np.zeros((3, 2, 2), np.float32)})[0].shape
    (3, 4)
    """
    kind = kind_if(like, model)
    return deliver(_core.open_batch(to_core_model(model)), kind=kind)


def to_inference(model: ModelLike, *, like: bool = False) -> onnx.ModelProto:
    """Return a model whose operators are in inference mode.

    Files that are exported for training (``training=TrainingMode.TRAINING`` of
    ``torch.onnx.export``) compute batch statistics in BatchNormalization and drop elements in
    Dropout wherever they are run. Here BatchNormalization uses the running statistics and Dropout
    passes values on.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    like : bool, default=False
        As for `gradient`.

    Returns
    -------
    onnx.ModelProto
        `model` itself if it is in inference mode. A mode that is an input of the model stays one.
    """
    kind = kind_if(like, model)
    return deliver(_core.to_inference(to_core_model(model)), kind=kind)
