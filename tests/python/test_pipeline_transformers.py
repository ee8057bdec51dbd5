"""Transformers before the estimator of a scikit-learn pipeline are not trained by default."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
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


TEXTS = ["red apple pie", "green apple", "blue sky red", "sky green tea", "tea pie", "blue tea"] * 3
LABELS = np.array([0, 1, 0, 1, 0, 1] * 3)
SCALED = np.random.default_rng(1).normal(size=(18, 4)).astype(np.float32) + 3


def text_pipeline(estimator, **options):
    feature_extraction = pytest.importorskip("sklearn.feature_extraction.text")
    pipelines = pytest.importorskip("sklearn.pipeline")
    steps = [feature_extraction.TfidfVectorizer(**options), estimator]
    return pipelines.make_pipeline(*steps).fit(TEXTS, LABELS)


@pytest.mark.parametrize("norm", ["l2", None])
@pytest.mark.parametrize("name", ["LogisticRegression", "Ridge", "MLPClassifier"])
def test_idf_is_not_trained(name, norm):
    """The weights of documents are those that scikit-learn computed, whatever reads them."""
    skl2onnx = pytest.importorskip("skl2onnx")
    types = pytest.importorskip("skl2onnx.common.data_types")
    linear_model = pytest.importorskip("sklearn.linear_model")
    network = pytest.importorskip("sklearn.neural_network")
    estimators = {
        "LogisticRegression": linear_model.LogisticRegression(),
        "Ridge": linear_model.Ridge(),
        "MLPClassifier": network.MLPClassifier((3,), max_iter=5),
    }
    fitted = text_pipeline(estimators[name], norm=norm)
    model = skl2onnx.to_onnx(fitted, initial_types=[("text", types.StringTensorType([None, 1]))])
    idf = next(one for one in og.report(model).weights if one.name == "idfcst")
    assert not idf.trainable
    trainer = og.Trainer(model, lr=0.1)
    assert all(weight.name != "idfcst" for weight in trainer.session.trained_weights)
    trainer.fit({"text": np.array(TEXTS, object)[:, None]}, LABELS, epochs=2, verbose=0)
    tensors = {one.name: one for one in trainer.trained_model().graph.initializer}
    found = numpy_helper.to_array(tensors["idfcst"])
    np.testing.assert_allclose(found, fitted[0].idf_, rtol=1e-6)
    with pytest.raises(og.ModelError, match="matches no parameter"):
        og.TrainingSession(model, trainable="idf*")
    assert trained(model, trainable="idfcst") == {"idfcst"} if name == "Ridge" else True


def test_idf_of_another_exporter_is_not_trained():
    model = onnx.parser.parse_model("""
      <ir_version: 10, opset_import: ["" : 21]>
      words (string[N, C] t) => (float[N, 1] y)
      <float[3] idf = {1.3, 1.7, 2.1}, float[3, 1] w = {0.1, 0.2, 0.3}>
      {
        n = TfIdfVectorizer <mode = "TF", min_gram_length = 1, max_gram_length = 1,
          max_skip_count = 0, ngram_counts = [0], ngram_indexes = [0, 1, 2],
          pool_strings = ["a", "b", "c"]> (t)
        f = Mul (n, idf)
        y = MatMul (f, w)
      }
    """)
    assert trained(model) == {"w"}
    assert trained(model, trainable=["idf", "w"]) == {"idf", "w"}


SCALERS = ("StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler", "PowerTransformer")


@pytest.mark.parametrize("scaler", SCALERS)
@pytest.mark.parametrize("estimator", ["LogisticRegression", "Ridge"])
def test_scalers_before_an_estimator_are_not_trained(scaler, estimator):
    skl2onnx = pytest.importorskip("skl2onnx")
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    linear_model = pytest.importorskip("sklearn.linear_model")
    pipelines = pytest.importorskip("sklearn.pipeline")
    fitted = pipelines.make_pipeline(
        getattr(preprocessing, scaler)(), getattr(linear_model, estimator)()
    ).fit(SCALED, LABELS)
    model = skl2onnx.to_onnx(fitted, SCALED[:1])
    session = og.TrainingSession(model)
    sizes = sorted(weight.num_parameters for weight in session.trained_weights)
    assert sum(sizes) in (5, 10)  # weights of four columns and an intercept, of one class or two
