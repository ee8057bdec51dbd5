"""GridSample, Resize, DeformConv and Attention beside PyTorch's outputs and gradients, in float64.

The values and the script that stored them are in tests/data/pytorch.
"""

import json

import numpy as np
import pytest
from onnx import TensorProto, helper

import onnxgrad as og
from onnx_tool import ROOT

FOLDER = ROOT / "tests/data/pytorch"
CASES = {case["name"]: case for case in json.loads((FOLDER / "cases.json").read_text())}


@pytest.fixture(scope="module")
def stored() -> dict[str, np.ndarray]:
    with np.load(FOLDER / "values.npz") as data:
        return dict(data)


def model_of(case: dict, inputs: dict[str, np.ndarray], rank: int) -> bytes:
    """The node, and the sum of its output times `seed` as output `loss`."""
    nodes = [
        helper.make_node(case["op"], case["inputs"], ["y"], **case["attributes"]),
        helper.make_node("Mul", ["y", "seed"], ["products"]),
        helper.make_node("ReduceSum", ["products"], ["loss"], keepdims=0),
    ]
    types = {
        name: helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in inputs.items()
    }
    graph = helper.make_graph(
        nodes,
        case["name"],
        list(types.values()),
        [
            helper.make_tensor_value_info("y", TensorProto.DOUBLE, [None] * rank),
            helper.make_tensor_value_info("loss", TensorProto.DOUBLE, []),
        ],
    )
    opsets = [helper.make_opsetid("", case["opset"])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, stored: dict[str, np.ndarray]) -> None:
    case = CASES[name]
    inputs = {key: stored[f"{name}/in/{key}"] for key in case["inputs"] if key}
    inputs["seed"] = stored[f"{name}/seed"]
    model = model_of(case, inputs, inputs["seed"].ndim)
    # The default scale of Attention, 1 / sqrt(size), is a number of float32 in ONNX's definition.
    near = (
        {"rtol": 1e-6, "atol": 1e-7} if case["op"] == "Attention" else {"rtol": 1e-7, "atol": 1e-9}
    )
    (y,) = og.InferenceSession(model).run(["y"], inputs)
    np.testing.assert_allclose(y, stored[f"{name}/out"], **near)
    gradient = og.gradient(model, case["gradients"], ["loss"], fill_grad=True)
    session = og.InferenceSession(gradient)
    feeds = {value.name: inputs[value.name] for value in session.get_inputs()}
    found = session.run([f"{key}_grad" for key in case["gradients"]], feeds)
    for key, array in zip(case["gradients"], found, strict=True):
        wanted = stored[f"{name}/grad/{key}"]
        np.testing.assert_allclose(array, wanted, **near, err_msg=key)
