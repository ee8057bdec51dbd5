"""Dictionaries as inputs, and the old form of LabelEncoder, beside stock onnxruntime."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto as Types
from onnx import helper as oh
from sklearn.feature_extraction import DictVectorizer

import onnxgrad as og

ML = "ai.onnx.ml"
KEYS = {"string": Types.STRING, "int64": Types.INT64}
VALUES = {
    "string": Types.STRING,
    "int64": Types.INT64,
    "float": Types.FLOAT,
    "double": Types.DOUBLE,
}


def model_of(
    node: onnx.NodeProto, source: onnx.TypeProto, to: int, version: int = 1
) -> onnx.ModelProto:
    graph = oh.make_graph(
        [node],
        "g",
        [oh.make_value_info("x", source)],
        [oh.make_tensor_value_info("y", to, None)],
    )
    opsets = [oh.make_opsetid("", 15), oh.make_opsetid(ML, version)]
    return oh.make_model(graph, opset_imports=opsets, ir_version=8)


def map_type(key: str, value: str) -> onnx.TypeProto:
    return oh.make_map_type_proto(KEYS[key], oh.make_tensor_type_proto(VALUES[value], []))


def run(model: onnx.ModelProto, value: Any) -> np.ndarray:
    return og.InferenceSession(model).run(None, {"x": value})[0]


def run_stock(model: onnx.ModelProto, value: Any) -> np.ndarray:
    return ort.InferenceSession(model.SerializeToString()).run(None, {"x": value})[0]


SAMPLES = {"string": ["u", "v"], "int64": [3, -4], "float": [1.5, -2.0], "double": [0.25, 1e300]}
EMPTY = {"string": "", "int64": 0, "float": 0.0, "double": 0.0}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("key", KEYS)
def test_dict_vectorizer(key: str, value: str) -> None:
    if key == value:
        pytest.skip("ONNX has no DictVectorizer whose keys and values have one type")
    keys = ["b", "a", "c", "z"] if key == "string" else [20, 10, 30, 99]
    node = oh.make_node(
        "DictVectorizer", ["x"], ["y"], domain=ML, **{f"{key}_vocabulary": keys[:3]}
    )
    model = model_of(node, map_type(key, value), VALUES[value])
    first, second = SAMPLES[value]
    none = EMPTY[value]
    for given, expected in (
        ({keys[1]: first, keys[3]: second}, [none, first, none]),
        ({keys[2]: second, keys[0]: first}, [first, none, second]),
        ({}, [none] * 3),
    ):
        assert run(model, given).tolist() == [expected]
        if (key, value) == ("string", "float") and given:  # Python's floats are that to onnxruntime
            assert run_stock(model, given).tolist() == [expected]


@pytest.mark.parametrize("to", ["FLOAT", "INT64", "STRING"])
@pytest.mark.parametrize("form", ["", "DENSE", "SPARSE"])
@pytest.mark.parametrize("value", ["string", "float"])
def test_cast_map(value: str, form: str, to: str) -> None:
    options = {"map_form": form} if form else {}
    if form == "SPARSE":
        options["max_map"] = 7
    node = oh.make_node("CastMap", ["x"], ["y"], domain=ML, cast_to=f"TO_{to}", **options)
    model = model_of(node, map_type("int64", value), getattr(Types, to))
    given = {4: 2.5, 1: -3.0, 6: 10.0}
    if value == "string":
        given = {key: f"{number:g}" for key, number in given.items()}
    convert = {"FLOAT": float, "INT64": lambda v: int(float(v)), "STRING": lambda v: f"{v:g}"}[to]
    if value == "string" and to == "STRING":
        convert = str
    row = [convert(given[key]) for key in (1, 4, 6)]
    if form == "SPARSE":
        none = "" if to == "STRING" else 0
        row = [none, row[0], none, none, row[1], none, row[2]]
    assert run(model, given).tolist() == [row]
    if value == "float" and to != "STRING":  # which onnxruntime writes with six digits
        assert run_stock(model, given).tolist() == [row]


def test_what_is_no_dictionary_is_refused() -> None:
    node = oh.make_node("DictVectorizer", ["x"], ["y"], domain=ML, string_vocabulary=["a"])
    session = og.InferenceSession(model_of(node, map_type("string", "float"), Types.FLOAT))
    for wrong in ([1.0], np.ones(3), {"a": "text"}, {1: 2.0, "b": [3]}, [{"a": 1.0}, 2], None):
        with pytest.raises(og.DataError):
            session.run(None, {"x": wrong})


def test_a_pipeline_of_scikit_learn() -> None:
    rows = [{"age": 3.0, "height": 1.0}, {"age": 5.0, "weight": 7.0}]
    vectorizer = DictVectorizer(sparse=False).fit(rows)
    nodes = [
        oh.make_node(
            "DictVectorizer", ["x"], ["v"], domain=ML, string_vocabulary=vectorizer.feature_names_
        ),
        oh.make_node("Scaler", ["v"], ["y"], domain=ML, offset=[1.0] * 3, scale=[2.0] * 3),
    ]
    model = model_of(nodes[0], map_type("string", "float"), Types.FLOAT)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    session = og.InferenceSession(model)
    assert [(one.name, one.type) for one in session.get_inputs()] == [
        ("x", "map(string,tensor(float))")
    ]
    for row in rows:
        expected = 2 * (vectorizer.transform([row]) - 1)
        np.testing.assert_allclose(session.run(None, {"x": row})[0], expected)
    report = og.report(model)
    assert all(use.runs for use in report.operators)


@pytest.mark.parametrize("version", [1, 2, 4])
def test_label_encoder_of_old_versions(version: int) -> None:
    lists = {"classes_strings": ["a", "b", "c"]}
    if version > 1:
        lists = {"keys_strings": ["a", "b", "c"], "values_int64s": [0, 1, 2]}
    node = oh.make_node("LabelEncoder", ["x"], ["y"], domain=ML, default_int64=-7, **lists)
    text = oh.make_tensor_type_proto(Types.STRING, ["N"])
    words = np.array(["b", "z", "a"], object)
    model = model_of(node, text, Types.INT64, version)
    assert run(model, words).tolist() == run_stock(model, words).tolist() == [1, -7, 0]
    if version == 1:
        node = oh.make_node("LabelEncoder", ["x"], ["y"], domain=ML, default_string="?", **lists)
        whole = oh.make_tensor_type_proto(Types.INT64, ["N"])
        model = model_of(node, whole, Types.STRING, 1)
        numbers = np.array([2, 0, 9])
        assert run(model, numbers).tolist() == run_stock(model, numbers).tolist() == ["c", "a", "?"]
