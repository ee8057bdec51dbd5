"""Converters of the estimators for skl2onnx, so that pipelines with them become one file."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.compose
import onnx.inliner
from onnx import numpy_helper

import onnxgrad

__all__ = ["register_when_imported"]

_PACKAGE = "skl2onnx"
_OPTIONS = {
    "zipmap": [True, False, "columns"],
    "output_class_labels": [False, True],
    "nocl": [True, False],
}
_MOST_OPSET = 26  # of the graphs that onnxgrad writes


class _Watcher:
    """Registers the converters as soon as skl2onnx is imported, which takes a while.

    It is first among the finders of modules, until that import; the others find the module.
    """

    def __init__(self, classes: Sequence[type]) -> None:
        self._classes = classes
        self._is_finding = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return how to load skl2onnx, followed by the registration; None for other modules."""
        del path, target
        if name != _PACKAGE or self._is_finding:
            return None
        self._is_finding = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_finding = False
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_register(module: Any) -> None:
            load(module)
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
            _register(module, self._classes)

        spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


def register_when_imported(*classes: type) -> None:
    """Register converters for estimators: now if skl2onnx is imported, else when it is."""
    module = sys.modules.get(_PACKAGE)
    if module is not None:
        _register(module, classes)
    else:
        sys.meta_path.insert(0, _Watcher(classes))


def _register(skl2onnx: Any, classes: Sequence[type]) -> None:
    for one in classes:
        is_classifier = hasattr(one, "predict_proba")
        skl2onnx.update_registered_converter(
            one,
            f"Onnxgrad{one.__name__}",
            _classifier_types if is_classifier else _regressor_types,
            _convert_classifier if is_classifier else _convert_regressor,
            options=_OPTIONS if is_classifier else None,
        )


def _float_type(variable: Any) -> Any:
    """Return skl2onnx's type of floating outputs for an input."""
    from skl2onnx.common.data_types import guess_tensor_type

    return guess_tensor_type(variable.type)


def _classifier_types(operator: Any) -> None:
    from skl2onnx.common.data_types import Int64TensorType, StringTensorType

    estimator = operator.raw_operator
    is_text = _known_labels(operator.scope_inst, estimator).dtype.kind in "OUST"
    columns = len(estimator.classes_)
    shape: list[int | None] = [None]
    if estimator._is_multi_label:
        shape = [None, columns]
    elif estimator._has_positions:
        shape = [None, None]
    operator.outputs[0].type = (StringTensorType if is_text else Int64TensorType)(shape)
    kind = type(_float_type(operator.inputs[0]))
    rows = shape if estimator._has_positions else [None]
    operator.outputs[1].type = kind([*rows, columns])


def _regressor_types(operator: Any) -> None:
    estimator = operator.raw_operator
    row = list(estimator._shape_of_row) or [1]
    operator.outputs[0].type = type(_float_type(operator.inputs[0]))([None, *row])


class _Graph:
    """Writes nodes into skl2onnx's container, with names that are new there."""

    def __init__(self, scope: Any, container: Any) -> None:
        self._scope = scope
        self._container = container
        self._opset = container.target_opset

    def add(self, op_type: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node and return its output."""
        name = output or self._scope.get_unique_variable_name(f"{op_type.lower()}_result")
        self._container.nodes.append(
            onnx.helper.make_node(
                op_type,
                list(inputs),
                [name],
                name=self._scope.get_unique_operator_name(op_type),
                **attributes,
            )
        )
        return name

    def constant(self, value: Any) -> str:
        """Add an initializer and return its name."""
        name = self._scope.get_unique_variable_name("onnxgrad_constant")
        array = np.asarray(value)
        if array.dtype.kind in "UO":
            array = array.astype(object)
        self._container.initializers.append(numpy_helper.from_array(array, name))
        return str(name)

    def cast(self, value: str, dtype: Any, output: str | None = None) -> str:
        """Convert a value to a type."""
        to = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.add("Cast", value, output=output, to=to)

    def sum_of_columns(self, value: str) -> str:
        """Return the sums over the last axis, which stays."""
        if self._opset < 13:
            return self.add("ReduceSum", value, axes=[-1], keepdims=1)
        return self.add("ReduceSum", value, self.constant([-1]), keepdims=1)

    def include(self, estimator: Any, operator: Any) -> str:
        """Add the trained model of an estimator; return its value that predictions are made of."""
        model = _standard(estimator, self._opset)
        (given,) = (
            value
            for value in model.graph.input
            if value.name not in {init.name for init in model.graph.initializer}
        )
        dtype = estimator._input_dtype
        parts = [self.cast(variable.full_name, dtype) for variable in operator.inputs]
        rows = parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=1)
        prefix = self._scope.get_unique_variable_name("onnxgrad") + "_"
        model = onnx.compose.add_prefix(model, prefix)
        self.add("Identity", rows, output=prefix + given.name)
        self._container.nodes.extend(model.graph.node)
        read = set(_names_read(model.graph))
        self._container.initializers.extend(
            init for init in model.graph.initializer if init.name in read
        )
        used = {node.domain for node in model.graph.node} | {""}
        self._container.node_domain_version_pair_sets.update(
            (entry.domain, entry.version)
            for entry in model.opset_import
            if ("" if entry.domain == "ai.onnx" else entry.domain) in used
        )
        return str(model.graph.output[0].name)


def _names_read(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the values that the nodes of a graph read, also those in its subgraphs."""
    yield from (value.name for value in graph.output)
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _names_read(inner)


def _standard(estimator: Any, opset: int) -> onnx.ModelProto:
    """Return the trained model in inference mode, with one output, in an operator set."""
    from skl2onnx.helpers.onnx_helper import select_model_inputs_outputs

    model = onnxgrad.open_batch(onnxgrad.to_inference(estimator.to_onnx()))
    name = estimator._output
    for node in model.graph.node:
        if name in node.output and node.op_type == "ZipMap":
            name = node.input[0]
    model = onnx.inliner.inline_local_functions(model)
    model = select_model_inputs_outputs(model, outputs=[name])
    found = {entry.domain: entry.version for entry in model.opset_import}
    if found.get("", found.get("ai.onnx")) == opset:
        same: onnx.ModelProto = model
        return same
    passes = onnxgrad.ForwardBackward(model, input_gradients=False)
    graphs = passes.graphs(target_opset=min(opset, _MOST_OPSET), inline=True)
    model = graphs["inference"]
    for weight, value in passes.weights.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), weight))
    kept = [value for value in model.graph.input if value.name not in passes.weights]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return model


def _convert_regressor(scope: Any, operator: Any, container: Any) -> None:
    graph = _Graph(scope, container)
    estimator = operator.raw_operator
    values = graph.include(estimator, operator)
    shape = [-1, *(estimator._shape_of_row or [1])]
    values = graph.add("Reshape", values, graph.constant(np.array(shape, np.int64)))
    graph.cast(values, _dtype_of(operator.outputs[0]), operator.outputs[0].full_name)


def _dtype_of(variable: Any) -> type:
    return np.float64 if type(variable.type).__name__.startswith("Double") else np.float32


def _known_labels(scope: Any, estimator: Any) -> np.ndarray[Any, Any]:
    """Return the labels of the classes, which are text or integers; numbers with option nocl."""
    from skl2onnx.common.utils_classifier import get_label_classes

    classes = np.asarray(get_label_classes(scope, estimator))
    return classes if classes.dtype.kind in "OUST" else classes.astype(np.int64)


def _convert_classifier(scope: Any, operator: Any, container: Any) -> None:
    graph = _Graph(scope, container)
    estimator = operator.raw_operator
    labels, scores = operator.outputs
    values = graph.include(estimator, operator)
    values = _scores(graph, estimator, graph.cast(values, np.float64))
    if estimator._is_multi_label:
        likely = graph.add("Greater", values, graph.constant(0.5))
        graph.cast(likely, np.int64, labels.full_name)
    else:
        numbers = graph.add("ArgMax", values, axis=-1, keepdims=0)
        known = graph.constant(_known_labels(scope, estimator))
        graph.add("Gather", known, numbers, output=labels.full_name)
    graph.cast(values, _dtype_of(scores), scores.full_name)


def _scores(graph: _Graph, estimator: Any, values: str) -> str:
    """Return what `predict_proba` computes of the values (or the margins, for both classes)."""
    if estimator._has_positions:
        axis = estimator._training.use(lambda trainer: trainer.session.class_axis)
        if axis in (None, 1):  # [N, C, T]
            values = graph.add("Transpose", values, perm=[0, 2, 1])
        if estimator._link == "softmax":
            return graph.add("Softmax", values, axis=-1)
        return graph.add("Div", values, graph.sum_of_columns(values))
    values = graph.add("Reshape", values, graph.constant(np.array([0, -1], np.int64)))
    if estimator._link == "softmax":
        values = graph.add("Softmax", values, axis=-1)
    elif estimator._link == "sigmoid":
        values = graph.add("Sigmoid", values)
    if estimator._is_multi_label:
        return values
    is_single = estimator._num_columns == 1
    if estimator._is_margin:
        if len(estimator.classes_) != 2:
            return values
        last = graph.constant(np.array([0 if is_single else 1], np.int64))
        margin = graph.add("Gather", values, last, axis=1)
        return graph.add("Concat", graph.add("Neg", margin), margin, axis=1)
    if is_single:
        rest = graph.add("Sub", graph.constant(1.0), values)
        return graph.add("Concat", rest, values, axis=1)
    if estimator._link or not estimator._is_normalised:
        values = graph.add("Div", values, graph.sum_of_columns(values))
    return values
