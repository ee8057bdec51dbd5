"""Multi-layer perceptrons as ONNX models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import onnxgrad
from onnxgrad.base.checks import choice, positive_int, several
from onnxgrad.errors import OptionError

__all__ = ["ACTIVATIONS", "Head", "multi_layer_perceptron"]

Head: TypeAlias = Literal[
    "values", "exponential", "softmax", "sigmoid", "one_vs_rest", "multi_label", "margins"
]

# Name (scikit-learn's if it has the function) -> operator, or None. Only operators that onnxruntime
# supports for float64 too.
ACTIVATIONS: dict[str, str | None] = {
    "identity": None,
    "leaky_relu": "LeakyRelu",
    "logistic": "Sigmoid",
    "relu": "Relu",
    "tanh": "Tanh",
}

_OPSET = 17
_IR_VERSION = 8


def multi_layer_perceptron(
    layer_sizes: Sequence[int],
    *,
    activation: str = "relu",
    head: Head = "values",
    classes: np.ndarray[Any, Any] | None = None,
    dtype: str = "float32",
    scheme: str = "auto",
    seed: int = 0,
) -> onnx.ModelProto:
    """Return a multi-layer perceptron as an ONNX model of standard operators.

    Layer i computes activation(h @ layer<i>.weight + layer<i>.bias); the last one has no
    activation and computes ``scores``.

    Parameters
    ----------
    layer_sizes : sequence of int
        Number of columns of the input, of each hidden layer, and of the scores.
    activation : str, default="relu"
        Activation of the hidden layers: ``"relu"``, ``"leaky_relu"``, ``"tanh"``, ``"logistic"`` or
        ``"identity"``.
    head : str, default="values"
        Determines the outputs. ``"values"``: the scores as ``variable`` [N, K]; ``"exponential"``:
        exp(scores). With ``label`` [N] and ``probabilities`` [N, C]: ``"softmax"``, ``"sigmoid"``
        of one score, or ``"one_vs_rest"``, the sigmoids divided by their sum. ``"multi_label"``:
        the sigmoids, and ``label`` [N, C] of 0 and 1. ``"margins"``: ``label`` and the ``scores``
        [N, C] or [N, 1].
    classes : array [C], default=None
        Labels of the classes, int64 or str; None means 0 to C - 1.
    dtype : {"float32", "float64"}, default="float32"
    scheme, seed : str and int
        Initialization of the weights; see `onnxgrad.initialize`.

    Returns
    -------
    onnx.ModelProto
        Input ``X`` [N, layer_sizes[0]].

    Raises
    ------
    OptionError
        Fewer than two layers, a size below 1, an unknown activation or head.

    Examples
    --------
    >>> model = multi_layer_perceptron([4, 10, 3], head="softmax", seed=1)
    >>> [value.name for value in model.graph.output]
    ['label', 'probabilities']
    """
    sizes = [positive_int("layer_sizes", size) for size in several("layer_sizes", layer_sizes)]
    _check(sizes, activation, head, dtype)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    value = "X"
    for i in range(len(sizes) - 1):
        is_last = i == len(sizes) - 2
        names = [f"layer{i}.weight", f"layer{i}.bias"]
        for name, shape in zip(names, ([sizes[i], sizes[i + 1]], [sizes[i + 1]]), strict=True):
            weights.append(numpy_helper.from_array(np.zeros(shape, dtype), name))
        operator = None if is_last else ACTIVATIONS[activation]
        sums = "scores" if is_last else f"layer{i}.sums"
        nodes.append(helper.make_node("Gemm", [value, *names], [sums], f"layer{i}/gemm"))
        value = sums
        if operator is not None:
            value = f"layer{i}.values"
            nodes.append(helper.make_node(operator, [sums], [value], f"layer{i}/{activation}"))
    trained = [weight.name for weight in weights]
    if head in ("values", "exponential"):
        if head == "values":
            nodes[-1].output[0] = "variable"
        else:
            nodes.append(helper.make_node("Exp", ["scores"], ["variable"], "head/variable"))
        outputs = [helper.make_tensor_value_info("variable", element, ["N", sizes[-1]])]
    else:
        outputs = _add_classifier_head(nodes, weights, head, sizes[-1], classes, dtype)
    graph = helper.make_graph(
        nodes,
        "multi_layer_perceptron",
        [helper.make_tensor_value_info("X", element, ["N", sizes[0]])],
        outputs,
        weights,
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
        producer_name="onnxgrad",
    )
    return onnxgrad.initialize(model, scheme, seed, weights=trained)


def _check(sizes: list[int], activation: str, head: str, dtype: str) -> None:
    if len(sizes) < 2:
        raise OptionError(
            what=f"layer_sizes: {sizes}, expected two or more sizes of at least 1",
            value="layer_sizes",
            hint="Give the sizes of input, hidden layers and output: [10, 50, 3].",
        )
    known: list[tuple[str, str, Sequence[str]]] = [
        ("activation", activation, list(ACTIVATIONS)),
        ("head", head, get_args(Head)),
        ("dtype", dtype, ["float32", "float64"]),
    ]
    for option, given, names in known:
        choice(option, given, names)
    if head == "sigmoid" and sizes[-1] != 1:
        raise OptionError(
            what=f"head 'sigmoid' is for one score, not {sizes[-1]}",
            value="head",
            hint="Use 'softmax', 'one_vs_rest' or 'multi_label'.",
        )


def _add_classifier_head(
    nodes: list[onnx.NodeProto],
    constants: list[onnx.TensorProto],
    head: Head,
    num_scores: int,
    classes: np.ndarray[Any, Any] | None,
    dtype: str,
) -> list[onnx.ValueInfoProto]:
    """Append nodes from ``scores`` to labels and probabilities; return the outputs."""
    num_classes = max(num_scores, 2)
    labels = np.arange(num_classes) if classes is None else np.asarray(classes)
    if head != "multi_label":
        constants.append(_label_tensor(labels))

    def constant(name: str, array: np.ndarray[Any, Any]) -> str:
        constants.append(numpy_helper.from_array(array, name))
        return name

    def node(op_type: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op_type, inputs, [output], f"head/{output}", **attributes))
        return output

    values = "scores"
    if head == "softmax":
        values = node("Softmax", ["scores"], "probabilities", axis=1)
    elif head == "multi_label":
        values = node("Sigmoid", ["scores"], "probabilities")
    elif head in ("sigmoid", "one_vs_rest"):
        one_column = num_scores == 1  # two classes, also with one_vs_rest
        values = node("Sigmoid", ["scores"], "positive" if one_column else "positives")
        if one_column:
            one = constant("one", np.ones((), dtype))
            node("Sub", [one, values], "negative")
            values = node("Concat", ["negative", values], "probabilities", axis=1)
        else:
            axes = constant("columns", np.array([1], np.int64))
            node("ReduceSum", [values, axes], "total", keepdims=1)
            values = node("Div", [values, "total"], "probabilities")
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    if head == "multi_label":
        half = constant("half", np.full((), 0.5, dtype))
        node("Greater", [values, half], "likely")
        node("Cast", ["likely"], "label", to=int(TensorProto.INT64))
        return [
            helper.make_tensor_value_info("label", TensorProto.INT64, ["N", num_scores]),
            helper.make_tensor_value_info(values, element, ["N", num_scores]),
        ]
    if head == "margins" and num_scores == 1:
        node("Neg", ["scores"], "opposite")
        both = node("Concat", ["opposite", "scores"], "both", axis=1)
        best = node("ArgMax", [both], "best", axis=1, keepdims=0)
    else:
        best = node("ArgMax", [values], "best", axis=1, keepdims=0)
    node("Gather", ["classes", best], "label", axis=0)
    columns = num_scores if head == "margins" else num_classes
    label_type = next(int(tensor.data_type) for tensor in constants if tensor.name == "classes")
    return [
        helper.make_tensor_value_info("label", label_type, ["N"]),
        helper.make_tensor_value_info(values, element, ["N", columns]),
    ]


def _label_tensor(labels: np.ndarray[Any, Any]) -> onnx.TensorProto:
    if labels.dtype.kind in "iub":
        return numpy_helper.from_array(labels.astype(np.int64), "classes")
    texts = np.array([str(label) for label in labels.tolist()], dtype=object)
    return numpy_helper.from_array(texts, "classes")
