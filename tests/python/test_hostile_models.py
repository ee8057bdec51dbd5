"""Files that our parser, protobuf and ONNX see differently: a result, or an error of ours."""

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

import onnxgrad as og

HEADER = '<ir_version: 8, opset_import: ["" : 18]>'


@pytest.mark.parametrize("operator", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("size", [-5, 0])
def test_windows_have_a_size(operator, size):
    model = onnx.parser.parse_model(
        f"{HEADER} g (float[N] x) => (float[N] y) <int64 size = {{{size}}}>"
        f"{{ [window] w = {operator}(size)  y = Mul(x, w) }}"
    )
    with pytest.raises(og.ShapeError, match="window"):
        og.InferenceSession(model)


@pytest.mark.parametrize("attribute", ["kernel_shape", "strides", "dilations", "pads"])
@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("declared", ["1, 1, 6, 6", "N, 1, H, W"])
def test_windows_of_layers_are_positive(operator, attribute, declared):
    inputs = "x, w" if operator.startswith("Conv") else "x"
    values = {"kernel_shape": [3, 3], attribute: [-1, -1] * (2 if attribute == "pads" else 1)}
    text = ", ".join(f"{name} = {value}" for name, value in values.items())
    model = onnx.parser.parse_model(
        f"{HEADER} g (float[{declared}] x) => (y) <float[1, 1, 3, 3] w = {{1,1,1,1,1,1,1,1,1}}>"
        f"{{ [layer] y = {operator} <{text}> ({inputs}) }}"
        if inputs == "x, w"
        else f"{HEADER} g (float[{declared}] x) => (y) {{ [layer] y = {operator} <{text}> (x) }}"
    )
    with pytest.raises((og.ModelError, og.ShapeError), match="layer"):
        og.InferenceSession(model).run(None, {"x": [[[[0.5] * 6] * 6]]})


def nested_types(depth):
    """An unused input whose type nests: one sequence is two messages."""
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, [1])
    for _ in range(depth):
        kind = helper.make_sequence_type_proto(kind)
    return helper.make_value_info("odd", kind)


def nested_branches(depth):
    """y = If(c, If(c, ... x + w)), `depth` levels."""
    value = helper.make_tensor_value_info
    inside = helper.make_node("Add", ["x", "w"], ["y0"])
    for level in range(depth):
        name = inside.output[0]
        graph = helper.make_graph([inside], f"b{level}", [], [value(name, TensorProto.FLOAT, [2])])
        other = helper.make_node("Mul", ["x", "w"], [f"e{level}"])
        rest = helper.make_graph(
            [other], f"r{level}", [], [value(f"e{level}", TensorProto.FLOAT, [2])]
        )
        inside = helper.make_node(
            "If", ["c"], [f"y{level + 1}"], then_branch=graph, else_branch=rest
        )
    inputs = [value("x", TensorProto.FLOAT, [2]), value("c", TensorProto.BOOL, [])]
    outputs = [value(inside.output[0], TensorProto.FLOAT, [2])]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    return helper.make_graph([inside], "g", inputs, outputs, [weight])


def bytes_of(graph, extra=b""):
    opset = helper.make_opsetid("", 18)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return model.SerializeToString() + extra


FILES = {
    "types": lambda: bytes_of(
        helper.make_graph(
            [helper.make_node("Mul", ["x", "w"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]), nested_types(31)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
            [helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])],
        )
    ),
    "branches": lambda: bytes_of(nested_branches(31)),
    "training information": lambda: bytes_of(nested_branches(1), b"\xa2\x01\x02\x0a\x7f"),
    "configuration": lambda: bytes_of(nested_branches(1), b"\xd2\x01\x02\x0a\x7f"),
    "long tag": lambda: bytes_of(nested_branches(1), b"\x88\x80\x80\x80\x80\x00\x08"),
}


@pytest.mark.parametrize("call", ["gradient", "trained_model"])
@pytest.mark.parametrize("file", FILES)
def test_no_error_of_protobuf_leaves(file, call):
    content = FILES[file]()
    try:
        if call == "gradient":
            og.gradient(content, wrt=["w"], fill_grad=True)
        else:
            og.set_weights(content, {})
    except og.InternalError:
        raise
    except og.Error:
        pass


def test_unknown_element_type():
    """A type of a later ONNX: no array can be fed, and no kernel takes the input as absent."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[4, 3, 2] x, float[1, 9, 2] w, float[1, 9, 3] r) => (float[d, e, f, g] y) {
    y = GRU <hidden_size = 3> (x, w, r)
    }""")
    model.graph.input[2].type.tensor_type.elem_type = 27
    feeds = {
        value.name: np.ones([d.dim_value for d in value.type.tensor_type.shape.dim], np.float32)
        for value in model.graph.input
    }
    with pytest.raises(og.Error, match="'r'"):
        og.InferenceSession(model).run(None, feeds)


@pytest.mark.parametrize("count", [np.zeros(0, np.int64), np.array([2, 3])], ids=["none", "two"])
def test_trip_count_is_one_number(count):
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    agraph (int64[n] count, float[2] x) => (float[d] y) {
    y = Loop (count, , x) <body = step (int64 i, bool c, float[2] a) => (bool c1, float[2] b) {
        c1 = Identity (c)
        b = Add (a, a)
    }>
    }""")
    with pytest.raises(og.ShapeError, match="trip count"):
        og.InferenceSession(model).run(None, {"count": count, "x": np.ones(2, np.float32)})
