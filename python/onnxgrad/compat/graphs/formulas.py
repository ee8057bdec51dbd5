"""Losses, penalties and updates as small models, by name.

Training does not use them, since they are part of the compiled step; they are for inspection and
for custom training loops.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser

from onnxgrad.base.checks import nearest_or
from onnxgrad.errors import OptionError

__all__ = ["graph", "inner_product", "names"]

# Inputs and outputs, then the nodes. T is the type; {w} is the input for the weight, {weigh}
# multiplies a column by the weight. Constants are initializers of shape [1].
_FUNCTIONS: dict[str, str] = {
    # Y = alpha X1 + X2
    "axpy": "(T X1, T X2, T[1] alpha) => (T Y) { s = Mul(X1, alpha) Y = Add(s, X2) }",
    # Z = beta G + alpha X1; Y = Z + X2
    "axpyw": """(T X1, T X2, T G, T[1] alpha, T[1] beta) => (T Y, T Z)
        { s = Mul(X1, alpha) b = Mul(G, beta) Z = Add(s, b) Y = Add(Z, X2) }""",
    # Z = beta G + alpha X1; Y = beta Z + alpha X1 + X2
    "axpyw2": """(T X1, T X2, T G, T[1] alpha, T[1] beta) => (T Y, T Z)
        { s = Mul(X1, alpha) b = Mul(G, beta) Z = Add(s, b)
          bz = Mul(Z, beta) u = Add(s, bz) Y = Add(u, X2) }""",
    "copy": "(T X) => (T Y) { Y = Identity(X) }",
    "zero": "(T X) => (T Y) { Y = Mul(X, c_zero) }",
    # Y = sum w (X1 - X2)^2; X1 is expected, X2 predicted.
    "square_error": """(T[N, K] X1, T[N, K] X2{w}) => (T[1] Y)
        { d = Sub(X1, X2) e = Mul(d, d) {weigh:e} total = ReduceSum(weighted)
          Y = Reshape(total, c_flat) }""",
    # Gradient of the squared error with respect to X2.
    "grad_square_error": """(T[N, K] X1, T[N, K] X2{w}) => (T[N, K] Y_grad)
        { d = Sub(X1, X2) e = Mul(d, c_minus_two) {weigh:e} Y_grad = Identity(weighted) }""",
    "linear_regression": """(T[N, D] X, T[D, K] A, T[K] B) => (T[N, K] Y)
        { p = MatMul(X, A) Y = Add(p, B) }""",
    # Y is the loss, times multiply / 2; Y_grad is its gradient with respect to X2.
    "grad_loss_square_error": """(T[N, K] X1, T[N, K] X2{w}) => (T[1] Y, T[N, K] Y_grad)
        { d = Sub(X1, X2) {weigh:d} e = Mul(weighted, d) f = Mul(e, c_half_multiply)
          total = ReduceSum(f) Y = Reshape(total, c_flat)
          Y_grad = Mul(weighted, c_minus_multiply) }""",
    "grad_loss_absolute_error": """(T[N, K] X1, T[N, K] X2{w}) => (T[1] Y, T[N, K] Y_grad)
        { d = Sub(X1, X2) {weigh:d} a = Abs(weighted)
          total = ReduceSum(a) Y = Reshape(total, c_flat)
          s = Sign(weighted) minus = Neg(s) Y_grad = {scale:minus} }""",
    "grad_loss_elastic_error": """(T[N, K] X1, T[N, K] X2{w}) => (T[1] Y, T[N, K] Y_grad)
        { d = Sub(X1, X2) a = Abs(d) a1 = Mul(a, c_l1) e = Mul(d, d) e2 = Mul(e, c_l2)
          t = Add(a1, e2) {weigh:t} total = ReduceSum(weighted) Y = Reshape(total, c_flat)
          s = Sign(d) s1 = Mul(s, c_l1) g = Mul(d, c_two) g2 = Mul(g, c_l2)
          u = Add(s1, g2) minus = Neg(u) Y_grad = {scale:minus} }""",
    # X1 are classes 0 and 1, X2 raw scores; p = clip(sigmoid(X2)), Y_grad = p - X1.
    "grad_sigmoid_neg_log_loss_error": """(int64[N, K] X1, T[N, K] X2{w})
          => (T[1] Y, T[N, K] Y_grad)
        { t = CastLike(X1, X2) raw = Sigmoid(X2) p = Clip(raw, c_eps, c_one_minus_eps)
          q = Sub(c_one, p) r = Sub(c_one, t) lp = Log(p) lq = Log(q)
          a = Mul(t, lp) b = Mul(r, lq) l = Add(a, b) n = Neg(l) {weigh:n}
          total = ReduceSum(weighted) Y = Reshape(total, c_flat)
          g = Sub(p, t) Y_grad = {scale:g} }""",
    # Y = l1 sum |X| + l2 sum X^2, and its gradient.
    "grad_penalty_elastic_error": """(T X) => (T[1] Y, T Y_grad)
        { a = Abs(X) ar = Reshape(a, c_flat) a0 = ReduceSum(ar) a1 = Mul(a0, c_l1)
          e = Mul(X, X) er = Reshape(e, c_flat) e0 = ReduceSum(er) e2 = Mul(e0, c_l2)
          Y = Add(a1, e2)
          s = Sign(X) s1 = Mul(s, c_l1) g = Mul(X, c_two) g2 = Mul(g, c_l2)
          Y_grad = Add(s1, g2) }""",
    # A gradient descent step on the penalty, with learning rate 1.
    "update_penalty_elastic_error": """(T X) => (T Y)
        { s = Sign(X) s1 = Mul(s, c_l1) g = Mul(X, c_two) g2 = Mul(g, c_l2) z = Add(s1, g2)
          Y = Sub(X, z) }""",
}

# Options of functions, and their defaults.
_ELASTIC = {"l1_weight": 0.01, "l2_weight": 0.01}
_OPTIONS: dict[str, dict[str, Any]] = {
    "grad_loss_elastic_error": _ELASTIC,
    "grad_loss_square_error": {"multiply": 2},
    "grad_penalty_elastic_error": _ELASTIC,
    "grad_sigmoid_neg_log_loss_error": {"eps": 1e-5},
    "n_penalty_elastic_error": {**_ELASTIC, "n_tensors": 1, "loss_shape": (1, 1)},
    "update_penalty_elastic_error": {"l1": 1e-4, "l2": 1e-4},
}


def names() -> list[str]:
    """Return the names of all functions, sorted."""
    return sorted([*_FUNCTIONS, "n_penalty_elastic_error"])


def graph(
    name: str,
    target_opset: int | None = None,
    dtype: Any = np.float32,
    weight_name: str | None = None,
    **kwargs: Any,
) -> onnx.ModelProto:
    """Return a function as a model.

    Parameters
    ----------
    name : str
        One of `names`.
    target_opset : int, default=None
        None means 15.
    dtype : NumPy type, default=float32
        Dtype of the tensors.
    weight_name : str, default=None
        Name of an additional input [N] with weights of rows, for losses; its default is 1.
    **kwargs
        ``l1_weight``, ``l2_weight`` (0.01) of the elastic losses and penalties, ``l1``, ``l2``
        (1e-4) of ``update_penalty_elastic_error``, ``multiply`` (2) of ``grad_loss_square_error``,
        ``eps`` (1e-5) of the log loss, ``n_tensors`` (1) and ``loss_shape`` ((1, 1), or None for
        any) of ``n_penalty_elastic_error``.

    Returns
    -------
    onnx.ModelProto
        The losses Y and penalties have shape [1].

    Raises
    ------
    OptionError
        An unknown name or option.
    """
    options = _options(name, dict(kwargs))
    if name == "n_penalty_elastic_error":
        source = _penalty_of_several(int(options.pop("n_tensors")), options.pop("loss_shape"))
    elif name in _FUNCTIONS:
        source = _FUNCTIONS[name]
    else:
        raise OptionError(
            what=f"Unable to find function {name!r} in {', '.join(names())}.",
            value="name",
            hint=nearest_or(name, names()),
        )
    if weight_name is not None and "{w}" not in source:
        raise OptionError(
            what=f"Function {name!r} takes no weight.",
            value="weight_name",
            hint="Leave weight_name out.",
        )
    kind = onnx.TensorProto.DataType.Name(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    text = _with_weight(source, weight_name).replace("T[", f"{kind.lower()}[")
    # A type without brackets is any shape here.
    text = text.replace("(T ", f"({kind.lower()}[] ").replace(", T ", f", {kind.lower()}[] ")
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {target_opset or 15}]>\n{name} {text}'
    )
    constants = {
        "c_zero": 0,
        "c_one": 1,
        "c_two": 2,
        "c_minus_two": -2,
        "c_half_multiply": options.get("multiply", 2) / 2,
        "c_minus_multiply": -options.get("multiply", 2),
        "c_l1": options.get("l1_weight", options.get("l1", 0)),
        "c_l2": options.get("l2_weight", options.get("l2", 0)),
        "c_eps": options.get("eps", 0),
        "c_one_minus_eps": 1 - options.get("eps", 0),
    }
    arrays = {
        key: np.array(value if key.endswith("eps") else [value], dtype)
        for key, value in constants.items()
    }
    arrays |= {"c_flat": np.array([-1], np.int64), "c_column": np.array([-1, 1], np.int64)}
    used = {value for node in model.graph.node for value in node.input}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, key) for key, array in arrays.items() if key in used
    )
    if weight_name is not None:
        ones = onnx.numpy_helper.from_array(np.ones(1, dtype), weight_name)
        model.graph.initializer.append(ones)
    return model


def inner_product(
    weights: Mapping[str, np.ndarray[Any, Any]], factors: Mapping[str, str], output: str
) -> onnx.ModelProto:
    """Return a model whose loss has given gradients: the sum of <w, g> over its weights.

    Parameters
    ----------
    weights : dict of str to array
        Initializers, all of the same dtype; at least one.
    factors : dict of str to str
        Name of the input g for each weight, of the same shape.
    output : str
        Name of the output, [1, 1].

    Notes
    -----
    With ``losses.Output(output, target="", reduction="sum")``, a training step is an optimizer's
    update with the given gradients.
    """
    make = onnx.helper.make_node
    dtype = onnx.helper.np_dtype_to_tensor_dtype(next(iter(weights.values())).dtype)
    nodes, inputs, terms = [], [], []
    for i, (name, value) in enumerate(weights.items()):
        inputs.append(onnx.helper.make_tensor_value_info(factors[name], dtype, value.shape))
        product, total = f"update/product_{i}", f"update/sum_{i}"
        nodes.append(make("Mul", [name, factors[name]], [product]))
        nodes.append(make("Reshape", [product, "update/row"], [f"{product}_row"]))
        nodes.append(make("ReduceSum", [f"{product}_row", "update/axis"], [total], keepdims=1))
        terms.append(total)
    nodes.append(make("Sum", terms, [output]))
    constants = {"update/row": [1, -1], "update/axis": [1]}
    initializers = [
        *(onnx.numpy_helper.from_array(value, name) for name, value in weights.items()),
        *(onnx.numpy_helper.from_array(np.array(v, np.int64), n) for n, v in constants.items()),
    ]
    total = onnx.helper.make_tensor_value_info(output, dtype, [1, 1])
    graph = onnx.helper.make_graph(nodes, "update", inputs, [total], initializers)
    opset = onnx.helper.make_opsetid("", 17)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)


def _options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    known = _OPTIONS.get(name, {})
    for option in options:
        if option not in known:
            raise OptionError(
                what=f"Function {name!r} has no option {option!r}, only {[*known]}.",
                value=option,
                hint=nearest_or(option, known, "Leave it out."),
            )
    return known | options


def _with_weight(source: str, weight_name: str | None) -> str:
    """Replace the placeholders of the weight: {w}, {weigh:x} and {scale:x}."""
    weighted = weight_name is not None
    text = source.replace("{w}", f", T[N] {weight_name}" if weighted else "")
    column = f"column = Reshape({weight_name}, c_column) " if weighted else ""
    text = re.sub(
        r"\{weigh:(\w+)\}",
        lambda m: (
            f"{column}weighted = Mul({m[1]}, column)"
            if weighted
            else f"weighted = Identity({m[1]})"
        ),
        text,
    )
    return re.sub(
        r"\{scale:(\w+)\}",
        lambda m: f"Mul({m[1]}, column)" if weighted else f"Identity({m[1]})",
        text,
    )


def _penalty_of_several(count: int, loss_shape: Any) -> str:
    """Return the source of Y = loss + l1 sum |W_i| + l2 sum W_i^2 over the inputs W_i."""
    if count < 1:
        raise OptionError(
            what=f"n_tensors={count}, expected at least 1",
            value="n_tensors",
            hint="Give the number of tensors to add up.",
        )
    kind = "T" if loss_shape is None else f"T[{', '.join(str(int(dim)) for dim in loss_shape)}]"
    inputs = ", ".join(f"T W{i}" for i in range(count))
    nodes, total = [], "loss"
    for i in range(count):
        nodes.append(
            f"a{i} = Abs(W{i}) ar{i} = Reshape(a{i}, c_flat) as{i} = ReduceSum(ar{i}) "
            f"al{i} = Mul(as{i}, c_l1) e{i} = Mul(W{i}, W{i}) er{i} = Reshape(e{i}, c_flat) "
            f"es{i} = ReduceSum(er{i}) el{i} = Mul(es{i}, c_l2) p{i} = Add(al{i}, el{i}) "
            f"t{i} = Add({total}, p{i})"
        )
        total = f"t{i}"
    return (
        f"({kind} loss, {inputs}) => (T[1] Y) {{ {' '.join(nodes)} Y = Reshape({total}, c_flat) }}"
    )
