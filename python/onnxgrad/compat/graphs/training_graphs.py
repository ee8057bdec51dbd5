"""Training and evaluation models with the interface of onnxruntime-training's artifacts.

Inputs of both are those of the model, then trained and frozen parameters; outputs are those of the
model. The training model has an accumulation buffer for each gradient besides.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

import onnx

import onnxgrad as og
from onnxgrad.compat.graphs.tools import names_above

__all__ = ["RESET", "buffer_name", "evaluation_model", "sum_name", "training_graphs"]

# Name of the input that says whether buffers are ignored.
RESET = "lazy_reset_grad"
_SCALAR_RESET = "lazy_reset_grad/scalar"


def buffer_name(parameter: str) -> str:
    """Return the name of the input for the sum of earlier gradients."""
    return f"{parameter}_grad.accumulation.buffer"


def sum_name(parameter: str) -> str:
    """Return the name of the output for the new sum."""
    return f"{parameter}_grad.accumulation.out"


def training_graphs(
    model: onnx.ModelProto, trained: Sequence[str], frozen: Iterable[str]
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return training and evaluation model of one whose first output is the loss.

    `trained` are initializers or inputs, `frozen` initializers. The seed of the gradient is ones.

    Raises
    ------
    LookupError
        A name is no initializer and no input.
    """
    known = {value.name for value in [*model.graph.initializer, *model.graph.input]}
    unknown = [name for name in [*trained, *frozen] if name not in known]
    if unknown:
        raise LookupError(f"{unknown} are not initializers or inputs; these are: {sorted(known)}.")
    parameters = {*trained, *frozen}
    evaluation = evaluation_model(_with_inputs(model, parameters))
    if not trained:
        training = _with_inputs(model, parameters)
        training.graph.input.append(_reset_input())
        return training, evaluation
    training = _gradient(model, trained)
    order = [value.name for value in evaluation.graph.input]
    declared = {value.name: value for value in [*evaluation.graph.input, *training.graph.input]}
    del training.graph.input[:]
    training.graph.input.extend(declared[name] for name in order)
    kept = [t for t in training.graph.initializer if t.name not in parameters]
    del training.graph.initializer[:]
    training.graph.initializer.extend(kept)
    gradients = {value.name: value for value in training.graph.output}
    outputs = [_copy(value) for value in model.graph.output]
    _add_nodes(training, model, [value.name for value in outputs])
    gradients = {name: _copy(value) for name, value in gradients.items()}
    del training.graph.output[:]
    training.graph.output.extend(outputs)
    _accumulate(training, [(name, gradients[f"{name}_grad"]) for name in order if name in trained])
    return training, evaluation


def evaluation_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy without the training mode of Dropout and BatchNormalization."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    removed: set[str] = set()
    nodes = []
    for node in result.graph.node:
        if removed.intersection(node.input):  # reads the statistics of a batch
            removed.update(node.output)
            continue
        if node.op_type == "Dropout" and len(node.input) > 2:
            node.input[2] = ""
        for attribute in node.attribute:
            if node.op_type == "BatchNormalization" and attribute.name == "training_mode":
                attribute.i = 0
                removed.update(node.output[1:])
                del node.output[1:]
        nodes.append(node)
    if removed:
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del result.graph.node[:]
        result.graph.node.extend(nodes)
    return result


def _with_inputs(model: onnx.ModelProto, parameters: set[str]) -> onnx.ModelProto:
    """Return a copy whose parameters are inputs, after those of the model."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    users = [value for value in graph.input if not _is_initializer(graph, value.name)]
    moved = [
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in graph.initializer
        if tensor.name in parameters
    ]
    kept = [tensor for tensor in graph.initializer if tensor.name not in parameters]
    users = [_copy(value) for value in users]
    del graph.input[:]
    graph.input.extend([*users, *moved])
    kept = [onnx.TensorProto.FromString(t.SerializeToString()) for t in kept]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return result


def _copy(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    result = onnx.ValueInfoProto()
    result.CopyFrom(value)
    return result


def _is_initializer(graph: onnx.GraphProto, name: str) -> bool:
    return any(tensor.name == name for tensor in graph.initializer)


def _gradient(model: onnx.ModelProto, trained: Sequence[str]) -> onnx.ModelProto:
    """Return the model with gradients, in its own operator set if the gradient can be expressed."""
    opset = max((u.version for u in model.opset_import if u.domain in ("", "ai.onnx")), default=26)
    loss = model.graph.output[0].name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a parameter without effect on the loss has a gradient 0
        for version in dict.fromkeys((min(opset, 26), 26)):
            try:
                return og.gradient(
                    model,
                    list(trained),
                    [loss],
                    fill_grad=True,
                    keep_outputs=True,
                    target_opset=version,
                )
            except og.ModelError:
                if version == 26:
                    raise
    raise AssertionError("unreachable")


def _add_nodes(training: onnx.ModelProto, model: onnx.ModelProto, outputs: Sequence[str]) -> None:
    """Add the nodes and constants of outputs that the gradient does not need."""
    made = {name for node in training.graph.node for name in node.output}
    made |= {value.name for value in [*training.graph.input, *training.graph.initializer]}
    if made.issuperset(outputs):
        return
    if {u.version for u in model.opset_import if u.domain == ""} != {
        u.version for u in training.opset_import if u.domain == ""
    }:
        raise NotImplementedError(
            "Outputs besides the loss need a model of an operator set that can express the "
            "gradient: convert the model to operator set 18 with onnx.version_converter."
        )
    needed = names_above(model.graph.node, outputs)
    for node in model.graph.node:
        if needed.intersection(node.output) and not made.issuperset(node.output):
            training.graph.node.append(node)
    training.graph.initializer.extend(
        tensor for tensor in model.graph.initializer if tensor.name in needed - made
    )
    domains = {used.domain for used in training.opset_import}
    training.opset_import.extend(u for u in model.opset_import if u.domain not in domains)
    known = {(function.domain, function.name) for function in training.functions}
    training.functions.extend(f for f in model.functions if (f.domain, f.name) not in known)


def _reset_input() -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(RESET, onnx.TensorProto.BOOL, [1])


def _accumulate(
    model: onnx.ModelProto, gradients: Sequence[tuple[str, onnx.ValueInfoProto]]
) -> None:
    """Add out = gradient if reset, else buffer + gradient."""
    make, graph = onnx.helper.make_node, model.graph
    graph.node.append(make("Squeeze", [RESET], [_SCALAR_RESET]))
    for name, declared in gradients:
        total = f"{sum_name(name)}/total"
        graph.node.append(make("Add", [buffer_name(name), declared.name], [total]))
        graph.node.append(make("Where", [_SCALAR_RESET, declared.name, total], [sum_name(name)]))
        for values, role in ((graph.input, buffer_name(name)), (graph.output, sum_name(name))):
            value = _copy(declared)
            value.name = role
            values.append(value)
    graph.input.append(_reset_input())
