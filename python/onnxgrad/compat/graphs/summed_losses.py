"""A loss with penalties as nodes of a model, summed over all elements, and the inverse.

`onnxgrad.add_loss` has more losses, and averages over the columns of a row. This is the form that
onnxcustom trains: an output of shape [1, 1], which is a plain sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.shape_inference
from onnx import TensorProto
from onnx.helper import make_node, make_tensor_value_info

from onnxgrad.base.checks import nearest_or
from onnxgrad.compat.graphs.tools import all_names
from onnxgrad.errors import OptionError
from onnxgrad.graphs.dependencies import subgraphs

__all__ = ["add_summed_loss", "penalty_nodes", "unreduced_loss"]

_SCORES = {
    "squared_error": "l2",
    "l2": "l2",
    "absolute_error": "l1",
    "l1": "l1",
    "elastic": "elastic",
    "log": "log",
}


class _Nodes:
    """Collects nodes and initializers with new names, for a graph with one element type."""

    def __init__(self, taken: set[str], element: int) -> None:
        self.taken = taken
        self.dtype = onnx.helper.tensor_dtype_to_np_dtype(element)
        self.nodes: list[onnx.NodeProto] = []
        self.inits: list[onnx.TensorProto] = []

    def name(self, wanted: str) -> str:
        name, count = wanted, 2
        while name in self.taken:
            name, count = f"{wanted}_{count}", count + 1
        self.taken.add(name)
        return name

    def constant(self, wanted: str, values: Any, dtype: Any = None) -> str:
        name = self.name(wanted)
        array = np.array(values, dtype or self.dtype)
        self.inits.append(onnx.numpy_helper.from_array(array, name))
        return name

    def op(self, op_type: str, inputs: list[str], wanted: str, **attributes: Any) -> str:
        name = self.name(wanted)
        self.nodes.append(make_node(op_type, inputs, [name], **attributes))
        return name


def penalty_nodes(
    name: str,
    dtype: Any,
    l1: float | None = None,
    l2: float | None = None,
    existing_names: set[str] | None = None,
) -> tuple[list[onnx.TensorProto], list[onnx.NodeProto]]:
    """Return initializers and nodes that compute l1 sum |w| + l2 sum w^2 for a weight.

    Parameters
    ----------
    name : str
        Name of the weight. The result, of shape [1], is called ``penalty_<name>``.
    dtype : NumPy type
    l1, l2 : float, default=None
        At least one of them must be nonzero.
    existing_names : set of str, default=None
        Names in use; new ones are added.

    Raises
    ------
    OptionError
        Both are None or 0.
    """
    if not l1 and not l2:
        raise OptionError(
            what=f"l1 and l2 cannot be null or None at the same time, name={name!r}.",
            hint="Give one of them a number above 0.",
        )
    taken = set() if existing_names is None else existing_names
    out = _Nodes(taken, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    shape = out.constant(f"shape_{name}", [-1], np.int64)
    flat = out.op("Reshape", [name, shape], f"reshaped_{name}")
    terms = []
    if l1:
        size = out.op("Abs", [flat], f"absolute_{name}")
        terms.append((out.op("ReduceSum", [size], f"reduced1_{name}"), l1, "l1"))
    if l2:
        square = out.op("Mul", [flat, flat], f"squared_{name}")
        terms.append((out.op("ReduceSum", [square], f"reduced2_{name}"), l2, "l2"))
    scaled = []
    for value, factor, kind in terms:
        weight = out.constant(f"{kind}_weight_{name}", [factor])
        wanted = f"penalty_{name}" if len(terms) == 1 else f"penalty_{kind}_{name}"
        scaled.append(out.op("Mul", [value, weight], wanted))
    if len(scaled) == 2:
        out.op("Add", scaled, f"penalty_{name}")
    return out.inits, out.nodes


def add_summed_loss(
    onx: onnx.ModelProto,
    score_name: str = "squared_error",
    loss_name: str = "loss",
    label_name: str = "label",
    weight_name: str | None = None,
    penalty: Mapping[str, Any] | None = None,
    output_index: int | str | None = None,
    **kwargs: Any,
) -> onnx.ModelProto:
    """Return a model with a loss as first output and the expected values as additional input.

    Parameters
    ----------
    onx : onnx.ModelProto
    score_name : str, default="squared_error"
        With d the difference between the output and the label, summed over all elements:
        ``"squared_error"`` (``"l2"``) is d^2, ``"absolute_error"`` (``"l1"``) is abs(d),
        ``"elastic"`` is l1_weight abs(d) + l2_weight d^2. ``"log"`` is the mean log loss of two
        columns of probabilities, with classes 0 and 1 (int64 [N, 1]) as labels.
    loss_name, label_name : str
        Names of the output [1, 1] and of the input. A value of the model with the name of the
        input, such as the label of a classifier, is renamed to ``_label_``.
    weight_name : str, default=None
        Name of an additional input [N] with a weight for each row.
    penalty : dict, default=None
        ``{weight: {"l1": a, "l2": b}}`` or ``{weight: b}`` adds a sum abs(w) + b sum w^2.
    output_index : int or str, default=None
        Output to apply the loss to; None requires a model with one output.
    **kwargs
        ``l1_weight``, ``l2_weight`` (0.5) of ``"elastic"``, ``eps`` (1e-6) of ``"log"``.

    Raises
    ------
    OptionError
        An unknown loss, option or output; several outputs and no index.
    """
    if score_name not in _SCORES:
        raise OptionError(
            what=f"Unexpected {score_name!r} value for score_name, not in {[*_SCORES]}.",
            value="score_name",
            hint=nearest_or(str(score_name), _SCORES),
        )
    index = list(onx.graph.output).index(_pick(list(onx.graph.output), output_index))
    onx = _free_name(onx, label_name)
    output = onx.graph.output[index]
    kind = _SCORES[score_name]
    allowed = {"elastic": {"l1_weight", "l2_weight"}, "log": {"eps"}}.get(kind, set())
    if not set(kwargs) <= allowed:
        raise OptionError(
            what=f"score_name={score_name!r} has no options {sorted({*kwargs} - allowed)}.",
            value="score_name",
            hint="Leave them out.",
        )
    element = output.type.tensor_type.elem_type
    out = _Nodes(all_names(onx.graph), element)
    label, loss = out.name(label_name), out.name(loss_name)
    weight = None if weight_name is None else out.name(weight_name)
    total = out.name("loss_without_penalty") if penalty else loss
    dims = _dims_of(onx, output)
    rank = 2 if dims is None else len(dims)
    rows_dim = None if not dims else dims[0]

    expected = [rows_dim, 1] if kind == "log" else dims
    inputs = [
        make_tensor_value_info(label, TensorProto.INT64 if kind == "log" else element, expected)
    ]
    if kind == "log":
        _write_log_loss(out, output.name, label, weight, total, kwargs.get("eps", 1e-6))
    else:
        rows = _row_losses(out, kind, output.name, label, kwargs)
        if weight is not None:
            column = out.constant("weight_shape", [-1] + [1] * (rank - 1), np.int64)
            shaped = out.op("Reshape", [weight, column], "weight_column")
            rows = out.op("Mul", [rows, shaped], "loss_diff_weight")
        out.nodes.append(make_node("ReduceSum", [rows], [total], keepdims=1))
    if weight is not None:
        inputs.append(make_tensor_value_info(weight, element, [rows_dim]))
    if penalty:
        _write_penalties(out, onx, penalty, total, loss)

    result = onnx.ModelProto()
    result.CopyFrom(onx)
    result.graph.input.extend(inputs)
    result.graph.initializer.extend(out.inits)
    result.graph.node.extend(out.nodes)
    result.graph.ClearField("output")
    result.graph.output.append(make_tensor_value_info(loss, element, [1, 1]))
    result.graph.output.extend([output] if output_index is None else onx.graph.output)
    return result


def _free_name(onx: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return the model with a node's result of that name renamed to ``_name_``."""
    made = {value for node in onx.graph.node for value in node.output}
    if name not in made:
        return onx
    taken = all_names(onx.graph)
    other = f"_{name}_"
    while other in taken:
        other = f"_{other}_"
    result = onnx.ModelProto()
    result.CopyFrom(onx)
    _rename(result.graph, name, other)
    return result


def _rename(graph: onnx.GraphProto, name: str, other: str) -> None:
    for value in (*graph.output, *graph.value_info):
        if value.name == name:
            value.name = other
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [other if one == name else one for one in names]
        for body in subgraphs(node):
            _rename(body, name, other)


def _dims_of(onx: onnx.ModelProto, output: onnx.ValueInfoProto) -> list[Any] | None:
    """Return the declared or inferred dimensions of an output, or None for an unknown shape."""
    kind = output.type.tensor_type
    if not kind.HasField("shape"):
        inferred = onnx.shape_inference.infer_shapes(onx).graph.output
        kind = next(value for value in inferred if value.name == output.name).type.tensor_type
    if not kind.HasField("shape"):
        return None
    return [d.dim_value or d.dim_param or None for d in kind.shape.dim]


def _pick(outputs: list[onnx.ValueInfoProto], index: int | str | None) -> onnx.ValueInfoProto:
    names = [output.name for output in outputs]
    if index is None:
        if len(outputs) != 1:
            raise OptionError(
                what=f"Unable to guess the output to compare: output_index among {names}.",
                value="output_index",
                hint="Give its name or index.",
            )
        return outputs[0]
    if isinstance(index, str):
        if index not in names:
            raise OptionError(
                what=f"Unable to find {index!r} in {names}.",
                value="output_index",
                hint=nearest_or(str(index), names),
            )
        return outputs[names.index(index)]
    return outputs[index]


def _row_losses(
    out: _Nodes, kind: str, output: str, label: str, options: Mapping[str, float]
) -> str:
    diff = out.op("Sub", [output, label], "loss_diff")
    if kind == "l1":
        return out.op("Abs", [diff], "loss_diff")
    square = out.op("Mul", [diff, diff], "loss_diff")
    if kind == "l2":
        return square
    size = out.op("Abs", [diff], "loss_l1")
    l1 = out.constant("l1_name", [options.get("l1_weight", 0.5)])
    l2 = out.constant("l2_name", [options.get("l2_weight", 0.5)])
    terms = [out.op("Mul", [size, l1], "loss_l1"), out.op("Mul", [square, l2], "loss_l2")]
    return out.op("Add", terms, "final_loss")


def _write_log_loss(
    out: _Nodes, output: str, label: str, weight: str | None, loss: str, eps: float
) -> None:
    low, high = out.constant("eps_name", eps), out.constant("eps1_name", 1 - eps)
    one = out.constant("one_name", [1])
    axes = out.constant("axes_name", [1], np.int64)
    clipped = out.op("Clip", [output, low, high], "clip_name")
    total = out.op("ReduceSum", [clipped, axes], "clip_red_name", keepdims=1)
    logs = out.op("Log", [out.op("Div", [clipped, total], "new_output_name")], "log_name")
    element = onnx.helper.np_dtype_to_tensor_dtype(out.dtype)
    first = out.op("Cast", [label], "cast_name", to=element)
    other = out.op("Sub", [one, first], "subl_name")
    both = out.op("Concat", [other, first], "conc_name", axis=1)
    likely = out.op("Mul", [logs, both], "mul_name")
    rows = out.op("ReduceSum", [likely, axes], "like_name", keepdims=1)
    if weight is not None:
        column = out.constant("weight_shape", [-1, 1], np.int64)
        shaped = out.op("Reshape", [weight, column], "weight_column")
        rows = out.op("Mul", [rows, shaped], "likew_name")
    mean = out.op("ReduceMean", [rows], "reduced_loss", keepdims=1)
    out.nodes.append(make_node("Neg", [mean], [loss]))


def _write_penalties(
    out: _Nodes, onx: onnx.ModelProto, penalty: Mapping[str, Any], total: str, loss: str
) -> None:
    dtypes = {
        i.name: onnx.helper.tensor_dtype_to_np_dtype(i.data_type) for i in onx.graph.initializer
    }
    terms = []
    for name, options in penalty.items():
        if name not in dtypes:
            raise OptionError(
                what=f"Unable to find weight {name!r} among {sorted(dtypes)}.",
                value=name,
                hint=nearest_or(name, dtypes),
            )
        given = dict(options) if isinstance(options, Mapping) else {"l2": options}
        inits, nodes = penalty_nodes(name, dtypes[name], existing_names=out.taken, **given)
        out.inits += inits
        out.nodes += nodes
        terms.append(nodes[-1].output[0])
    flat = out.op("Sum", terms, "penalty_total") if len(terms) > 1 else terms[0]
    shape = out.constant("penalty_shape", [1, 1], np.int64)
    shaped = out.op("Reshape", [flat, shape], "penalty_reshape")
    out.nodes.append(make_node("Add", [shaped, total], [loss]))


def unreduced_loss(onx: onnx.ModelProto, output_name: str = "score") -> onnx.ModelProto:
    """Return a loss model that returns the loss of each element instead of their sum or mean.

    The reduction of the output (ReduceSum or ReduceMean, before any Reshape or Neg) is removed.

    Raises
    ------
    OptionError
        The model does not have exactly one output, or it is not such a reduction.
    """
    graph = onx.graph
    if len(graph.output) != 1:
        raise OptionError(
            what=f"Expected one output, not {[o.name for o in graph.output]}.",
            hint="Give a model whose only output is the loss.",
        )
    made = {name: node for node in graph.node for name in node.output}
    name, after = graph.output[0].name, []
    while name in made and made[name].op_type in ("Reshape", "Neg", "Identity"):
        after.append(made[name])
        name = made[name].input[0]
    if name not in made or made[name].op_type not in ("ReduceSum", "ReduceMean"):
        raise OptionError(
            what=f"The output {graph.output[0].name!r} is not a ReduceSum or ReduceMean.",
            hint="Give a model whose last node sums or averages the loss of the rows.",
        )
    reduced = made[name]
    dropped = [reduced, *after]
    result = onnx.ModelProto()
    result.CopyFrom(onx)
    result.graph.ClearField("node")
    result.graph.ClearField("output")
    result.graph.node.extend(node for node in graph.node if not any(node is d for d in dropped))
    is_negative = sum(node.op_type == "Neg" for node in after) % 2 == 1
    op_type = "Neg" if is_negative else "Identity"
    result.graph.node.append(onnx.helper.make_node(op_type, [reduced.input[0]], [output_name]))
    element = graph.output[0].type.tensor_type.elem_type
    result.graph.output.append(onnx.helper.make_tensor_value_info(output_name, element, [None, 1]))
    used = {name for node in result.graph.node for name in node.input}
    result.graph.ClearField("initializer")
    result.graph.initializer.extend(init for init in graph.initializer if init.name in used)
    return result
