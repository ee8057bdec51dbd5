"""Attributes out of their bounds: what onnxruntime or ONNX refuses is refused here as well.

Of one node test per form of each operator, every attribute that its schema has gets values at and
beyond what can be meant: none, negative, too many, not finite. Nobody writes these lists by hand:
they follow from ONNX's schemas, and what is right from what two other programs say.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import AttributeProto

import contrib_samples
import node_suite
import onnxgrad as og

INTS = (0, -1, 2, 3, 5, 99, 2**31, 2**31 - 1, -(2**31), 2**62)
FLOATS = (0.0, -1.0, 2.5, float("nan"), float("inf"), -float("inf"))
# Where one of the two refuses what ONNX defines; "" is the standard domain.
DEFINED = {
    ("", "DeformConv", "pads"): "onnxruntime computes symmetric ones only",
    ("", "LRN", "size"): "onnxruntime computes odd ones only",
    ("", "MaxUnpool", "kernel_shape"): "a fed output_shape that is too small is the first corner",
    ("", "MaxUnpool", "strides"): "the same",
    ("", "RNN", "activations"): "the schema's default names functions of both directions",
    ("", "RotaryEmbedding", "rotary_embedding_dim"): "the body takes columns of a wider cache",
    ("", "SimplifiedLayerNormalization", "stash_type"): "onnxruntime has a few types only",
    ("", "Split", "axis"): "parts without elements",
    ("", "SplitToSequence", "keepdims"): "ignored where 'split' is given",
}
ENDS_ONNXRUNTIME = {("", "TfIdfVectorizer", "max_skip_count")}


def changed_lists(values: list[Any], odd: tuple[Any, ...], filler: Any) -> Iterator[list[Any]]:
    for value in odd:
        if values and values[0] != value:
            yield [value, *values[1:]]
            yield [*values[:-1], value]
    yield [*values, values[-1] if values else filler]
    yield values[:-1]
    yield []
    yield [values[-1] if values else filler] * 70


def variants(attribute: AttributeProto) -> Iterator[AttributeProto]:
    """Values of the attribute's type that it does not have now."""
    kind, given = attribute.type, onnx.helper.get_attribute_value(attribute)
    if kind == AttributeProto.INT:
        values = [("i", value) for value in INTS if value != given]
    elif kind == AttributeProto.FLOAT:
        values = [("f", value) for value in FLOATS]
    elif kind == AttributeProto.STRING:
        values = [("s", b"no_such"), ("s", b"")]
    elif kind == AttributeProto.INTS:
        values = [("ints", v) for v in changed_lists(list(given), (0, -1, 2, 99, 2**62), 1)]
    elif kind == AttributeProto.FLOATS:
        values = [("floats", v) for v in changed_lists(list(given), FLOATS[:1], 1.0)]
    elif kind == AttributeProto.STRINGS:
        values = [("strings", v) for v in changed_lists(list(given), (b"no_such",), b"x")]
    else:
        return
    for field, value in values:
        changed = AttributeProto(name=attribute.name, type=kind)
        if isinstance(value, list):
            getattr(changed, field).extend(value)
        else:
            setattr(changed, field, value)
        yield changed


def attributes_of(node: onnx.NodeProto, opset: int) -> list[AttributeProto]:
    """Return the node's attributes, and the schema's others with their defaults or any value."""
    known = {attribute.name: attribute for attribute in node.attribute}
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    except onnx.defs.SchemaError:
        return list(known.values())
    for name, entry in schema.attributes.items():
        if name in known:
            continue
        default = AttributeProto()
        default.CopyFrom(entry.default_value)
        default.name = name
        default.type = int(entry.type.value)
        known[name] = default
    return [known[name] for name in sorted(known)]


def with_attribute(model: onnx.ModelProto, changed: AttributeProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    node = copy.graph.node[0]
    kept = [attribute for attribute in node.attribute if attribute.name != changed.name]
    del node.attribute[:]
    node.attribute.extend([*kept, changed])
    for output in copy.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    return copy


def stock(model: onnx.ModelProto, feeds: dict[str, Any]) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    session.run(None, feeds)


def inference(model: onnx.ModelProto, feeds: dict[str, Any]) -> None:
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)


def refusal(run: Callable, *arguments: Any) -> str:
    try:
        run(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def forms() -> list[tuple[onnx.ModelProto, dict[str, Any]]]:
    """One model for each operator and set of attributes."""
    chosen = {}
    for case in node_suite.all_cases():
        if case.node is not None:
            names = tuple(sorted(attribute.name for attribute in case.node.attribute))
            key = (case.node.domain, case.node.op_type, names, len(case.node.input))
            chosen.setdefault(key, (case.model, case.feeds()))
    for sample in contrib_samples.all_samples():
        key = (sample.domain, sample.op_type, tuple(sorted(sample.attributes)), len(sample.inputs))
        chosen.setdefault(key, (sample.model(), sample.feeds()))
    return list(chosen.values())


PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_attributes_that_others_refuse(part):
    def ours(model, feeds):
        og.InferenceSession(model, threads=1).run(None, feeds)

    accepted, foreign, tried = [], [], 0
    seen = set()
    for model, feeds in forms():
        node = model.graph.node[0]
        if sum(map(ord, node.op_type)) % PARTS != part or refusal(ours, model, feeds):
            continue
        opset = next((i.version for i in model.opset_import if i.domain == node.domain), 1)
        others = [run for run in (stock, inference) if not refusal(run, model, feeds)]
        for attribute in attributes_of(node, opset):
            place = (node.domain, node.op_type, attribute.name)
            if place in DEFINED or place in ENDS_ONNXRUNTIME:
                continue
            for changed in variants(attribute):
                key = (*place, changed.SerializeToString())
                if key in seen:
                    continue
                seen.add(key)
                tried += 1
                odd = with_attribute(model, changed)
                try:
                    with np.errstate(all="ignore"):
                        ours(odd, feeds)
                except og.InternalError as error:
                    foreign.append(f"{place}: {error}")
                except og.Error:
                    pass
                except Exception as error:
                    foreign.append(f"{place}: {type(error).__name__}: {error}")
                else:
                    said = [why for run in others if (why := refusal(run, odd, feeds))]
                    if said:
                        value = str(onnx.helper.get_attribute_value(changed))[:60]
                        accepted.append(f"{place} = {value}: {said[0][-200:]}")
    assert tried > 300
    assert not foreign
    assert not accepted, "\n".join(accepted)
