"""Transformers before the estimator of a scikit-learn pipeline are not trained by default."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxgrad as og

ZOO = Path(__file__).parents[1] / "data" / "zoo"
REASON = "of a transformer before the estimator"


def pipeline(producer="skl2onnx", step="variable", output="variable1"):
    """y = ((|x| + 1) ^ p) w + b, with the names of skl2onnx."""
    weights = {
        "pref_Addcst": np.ones(1, np.float32),
        "pref_Powcst": np.array([0.37, -1.21, 2.18], np.float32),
        "coef": np.array([[0.2], [0.1], [-0.3]], np.float32),
        "intercept": np.array([0.5], np.float32),
    }
    nodes = [
        helper.make_node("Abs", ["x"], ["abs"]),
        helper.make_node("Add", ["abs", "pref_Addcst"], ["sum"]),
        helper.make_node("Pow", ["sum", "pref_Powcst"], [step]),
        helper.make_node("MatMul", [step, "coef"], ["product"]),
        helper.make_node("Add", ["product", "intercept"], [output]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["N", 1])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9, producer_name=producer
    )


def trained(model, **options):
    session = og.TrainingSession(model, "squared_error", **options)
    return {weight.name for weight in session.trained_weights}


def test_exponents_of_a_pipeline_stay_as_they_are():
    assert trained(pipeline()) == {"coef", "intercept"}
    reasons = {weight.name: weight.reason for weight in og.report(pipeline()).weights}
    assert reasons["pref_Powcst"] == REASON
    assert trained(pipeline(), trainable="*") == {"coef", "intercept"}
    assert trained(pipeline(), trainable=["coef", "pref_Powcst"]) == {"coef", "pref_Powcst"}
    trainer = og.Trainer(pipeline(), "squared_error", lr=0.5)
    random = np.random.default_rng(0)
    trainer.fit(random.normal(size=(40, 3)) * 3, random.normal(size=(40, 1)), epochs=3, verbose=0)
    for tensor in trainer.trained_model().graph.initializer:
        assert np.isfinite(numpy_helper.to_array(tensor)).all()


@pytest.mark.parametrize(
    "model",
    [
        pipeline(producer="pytorch"),  # another exporter's name
        pipeline(step="power", output="variable"),  # the result of an estimator
    ],
    ids=["exporter", "output"],
)
def test_what_looks_alike_is_trained(model):
    assert "pref_Powcst" in trained(model)


def test_without_its_estimator_a_transformer_is_trained():
    model = pipeline()
    del model.graph.node[3:], model.graph.initializer[2:]
    model.graph.node.append(helper.make_node("Neg", ["variable"], ["variable1"]))
    assert "pref_Powcst" in trained(model)


@pytest.mark.parametrize(
    ("name", "kept"),
    [("sk_pca_lasso", "transform_matrix"), ("sk_mlp_regressor_power", None)],
)
def test_exported_pipelines(name, kept):
    weights = og.report(onnx.load(ZOO / f"{name}.onnx")).weights
    assert any(weight.trainable for weight in weights)
    if kept:
        assert [w.reason for w in weights if w.name == kept] == [REASON]
