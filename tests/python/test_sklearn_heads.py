"""Training what skl2onnx writes, as it is written: heads, first losses, weights back in the file.

The cases and what scikit-learn says about them are in sklearn_heads.py.
"""

from collections.abc import Iterable

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import onnxgrad as og
from sklearn_heads import (
    HeadCase,
    all_cases,
    data,
    expected_loss,
    exported,
    fitted,
    main_cases,
    more_cases,
    regression_cases,
    wide_cases,
)

CASES = all_cases()
CLASSIFIERS = [*main_cases(), *wide_cases(), *more_cases()]
# Cases whose loss is minus the logarithm of the probability in the file.
LIKELIHOODS = [c for c in CLASSIFIERS if c.loss.split()[0] in ("binary", "softmax", "negative")]
LINEAR_NODES = ("LinearClassifier", "LinearRegressor")
# Scores in the line of the loss: a value of the file, or a name for what is inside a node.
SCORES = {
    "mlp": "add_result1",
    "mlp_regressor": "add_result1",
    "sgd_log": "score",
    "sgd_hinge": "score",
    "sgd_modified_huber": "score",
    "perceptron": "score",
}


def by_name(cases: Iterable[HeadCase]):
    return [pytest.param(case, id=case.name) for case in cases]


def run_stock(model, X):
    """Outputs of stock onnxruntime by name."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # skl2onnx declares wrong shapes for two targets
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"X": X}), strict=True))


def stock_label(outputs):
    return outputs.get("output_label", outputs.get("label"))


def stock_score(case, model, X, y):
    """Accuracy, or R^2 of a regression, of a file in stock onnxruntime."""
    outputs = run_stock(model, X)
    if case.classes:
        return float(np.mean(stock_label(outputs) == y))
    predicted = outputs["variable"].reshape(len(X), -1)
    return float(1 - ((y - predicted) ** 2).sum() / ((y - y.mean(axis=0)) ** 2).sum())


def stock_probabilities(case, model, X):
    """Probabilities [N, C] that a file gives, in float64; None if it has none."""
    outputs = run_stock(model, X)
    if case.loss.endswith("hinge"):
        return None
    if case.zipmap == "columns":
        columns = [outputs[f"i{c}"] for c in range(case.classes)]
        return np.stack(columns, axis=1).astype(np.float64)
    if case.zipmap:
        classes = fitted(case)[-1].classes_.tolist()
        rows = [[row[label] for label in classes] for row in outputs["output_probability"]]
        return np.array(rows, np.float64)
    return outputs["probabilities"].astype(np.float64)


def weight_arrays(model):
    """The numbers of a file that may be trained, by (kind, name)."""
    arrays = {}
    for tensor in model.graph.initializer:
        if tensor.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
            arrays["initializer", tensor.name] = numpy_helper.to_array(tensor)
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type in LINEAR_NODES and attribute.floats:
                key = f"{node.output[0]}.{attribute.name}"
                arrays["attribute", key] = np.array(attribute.floats, np.float32)
    return arrays


def without_weights(content, trained):
    """The file's bytes with the trained weights' numbers set to zero."""
    model = onnx.load_from_string(content)
    for tensor in model.graph.initializer:
        if tensor.name in trained:
            blank = np.zeros_like(numpy_helper.to_array(tensor))
            tensor.CopyFrom(numpy_helper.from_array(blank, tensor.name))
    for node in model.graph.node:
        for attribute in node.attribute:
            if f"{node.output[0]}.{attribute.name}" in trained:
                attribute.floats[:] = [0.0] * len(attribute.floats)
    return model.SerializeToString()


def session_of(case, **options):
    return og.TrainingSession(exported(case), threads=1, **options)


# --- What is found ----------------------------------------------------------------------------


@pytest.mark.parametrize("case", by_name(CASES))
def test_line_says_loss_place_and_classes(case):
    session = session_of(case)
    line = session.loss_line
    assert line.startswith(f"loss: {case.loss} on '{SCORES.get(case.estimator, '')}")
    assert "\n" not in line
    assert session.is_classifier == bool(case.classes)
    if case.classes:
        outputs = {"columns": "i0", True: "output_probability"}
        names = (outputs.get(case.zipmap, "probabilities"), "label", "output_label")
        if case.loss == "negative log-likelihood":
            assert "no scores found; the logarithm is clamped" in line
        else:
            assert any(f"(scores before output '{name}')" in line for name in names)
        assert f", {case.classes} classes from " in line
        np.testing.assert_array_equal(session.classes, fitted(case)[-1].classes_)


@pytest.mark.parametrize("case", by_name(CASES))
def test_trained_weights_are_the_estimators(case):
    """All coefficients and intercepts, and no constant such as unity or a scaler's mean."""
    names = {weight.name for weight in session_of(case).trained_weights}
    arrays = {name for _, name in weight_arrays(onnx.load_from_string(exported(case)))}
    wanted = {name for name in arrays if name.split(".")[-1].startswith(("coef", "intercept"))}
    assert wanted
    assert names == wanted


# --- The first loss ---------------------------------------------------------------------------


@pytest.mark.parametrize("case", by_name(CASES))
def test_first_loss_is_that_of_scikit_learn(case):
    X, y = data(case)
    trainer = og.Trainer(exported(case), threads=1)
    found = trainer.evaluate(X, y)
    expected = expected_loss(case, X, y)
    assert found.loss == pytest.approx(expected, rel=1e-6, abs=1e-6)
    if case.classes:
        assert found.accuracy == pytest.approx(fitted(case).score(X.astype(np.float64), y))


def check_loss_against_probabilities(case, content):
    X, y = data(case)
    probabilities = stock_probabilities(case, content, X)
    columns = np.searchsorted(fitted(case)[-1].classes_, y)
    of_class = probabilities[np.arange(len(y)), columns]
    # The file rounds probabilities to its own type: 1 - p keeps few digits of small ones.
    eps = np.finfo(case.dtype).eps
    keep = of_class > 1e-4
    assert keep.sum() > 0.6 * len(y)
    found = og.Trainer(content, threads=1).evaluate(X[keep], y[keep])
    tolerance = 1e-6 + np.mean(eps / of_class[keep])
    assert found.loss == pytest.approx(np.mean(-np.log(of_class[keep])), abs=tolerance)


@pytest.mark.parametrize("case", by_name(LIKELIHOODS))
def test_first_loss_is_that_of_the_probabilities_in_the_file(case):
    """Minus the logarithm of what stock onnxruntime gives out for the row's class."""
    check_loss_against_probabilities(case, exported(case))


@pytest.mark.parametrize("case", by_name(LIKELIHOODS))
def test_first_loss_of_new_weights_is_that_of_the_probabilities_in_the_file(case):
    """Trained weights can hide a wrong loss: drawn columns are opposite only if they are tied."""
    drawn = og.initialize(exported(case), scheme="auto", seed=1).SerializeToString()
    assert drawn != exported(case)
    check_loss_against_probabilities(case, drawn)


# --- Training ---------------------------------------------------------------------------------


def trained(case, tmp_path, epochs=60):
    """(file before training, file after it, trainer) of a case, from new weights.

    Where the loss is put on probabilities, training continues from the file's weights: from others
    it ends in a poor minimum, as normalised probabilities make it non-convex in the scores.
    """
    X, y = data(case)
    start = exported(case)
    if case.loss != "negative log-likelihood":
        start = og.initialize(start, scheme="auto", seed=0).SerializeToString()
    trainer = og.Trainer(start, optimizer="adam", lr=0.02, threads=1)
    trainer.fit(X, y, epochs=epochs, batch_size=16, verbose=0)
    path = tmp_path / "trained.onnx"
    trainer.save(path)
    return start, path.read_bytes(), trainer


@pytest.mark.parametrize("case", by_name(CASES))
def test_training(case, tmp_path):
    X, y = data(case)
    start, content, trainer = trained(case, tmp_path)
    before = og.Trainer(start, threads=1).evaluate(X, y).loss
    after = trainer.evaluate(X, y).loss
    assert after < before * (0.97 if start == exported(case) else 0.8)
    # As good as scikit-learn's own, in stock onnxruntime, labels as they were.
    score = stock_score(case, content, X, y)
    assert score > fitted(case).score(X.astype(np.float64), y) - 0.03
    assert score >= stock_score(case, start, X, y)
    if case.classes:
        assert set(stock_label(run_stock(content, X))) <= set(y)
    # Nothing but the weights has changed.
    names = {weight.name for weight in trainer.session.trained_weights}
    original = exported(case)
    assert len(content) == len(original)
    assert without_weights(content, names) == without_weights(original, names)
    old = weight_arrays(onnx.load_from_string(original))
    for key, array in weight_arrays(onnx.load_from_string(content)).items():
        assert np.array_equal(array, old[key]) == (key[1] not in names), key
    # Our own engine agrees about the saved file.
    again = og.Trainer(content, threads=1).evaluate(X, y)
    assert again.loss == pytest.approx(after, rel=1e-6)


LOGISTIC = ("logistic_regression", "logistic_regression_no_intercept", "one_vs_rest")


@pytest.mark.parametrize(
    "case", by_name(c for c in CASES if c.classes == 2 and c.estimator in LOGISTIC)
)
def test_opposite_coefficients_stay_opposite(case, tmp_path):
    """Rows of a LinearClassifier, columns of a MatMul: one weight each, the file has it twice."""
    original = weight_arrays(onnx.load_from_string(exported(case)))
    for content in trained(case, tmp_path, epochs=3)[:2]:
        arrays = weight_arrays(onnx.load_from_string(content))
        names = [key for key in arrays if key[1].split(".")[-1].startswith(("coef", "intercept"))]
        assert len(names) == 2
        for kind, name in names:
            array = arrays[kind, name]
            assert np.any(array != original[kind, name])
            pairs = array.reshape(2, -1) if kind == "attribute" else array.reshape(-1, 2).T
            assert np.any(pairs != 0) or name.split(".")[-1].startswith("intercept")
            np.testing.assert_array_equal(pairs[0], -pairs[1])
        check_loss_against_probabilities(case, content)


@pytest.mark.parametrize("labels", ["integers", "strings"])
def test_tied_columns_learn_what_the_attribute_learns(labels, tmp_path):
    """One model as MatMul in float64 and as LinearClassifier in float32 makes equal steps."""
    learned = []
    for dtype in ("float64", "float32"):
        case = HeadCase("logistic_regression", 2, labels, dtype=dtype)
        X, y = data(case)
        trainer = og.Trainer(exported(case), optimizer=og.optimizers.SGD(lr=0.1), threads=1)
        trainer.fit(X, y, epochs=3, batch_size=64, shuffle=False, verbose=0)
        learned.append(trainer.evaluate(X, y).loss)
    assert learned[0] == pytest.approx(learned[1], rel=1e-5)


def test_state_and_file_of_tied_columns():
    """A session has one column; set_weights takes it, and the columns of the file as well."""
    case = HeadCase("logistic_regression", 2, dtype="float64")
    session = session_of(case)
    assert {w.name: tuple(w.shape) for w in session.trained_weights} == {
        "coef": (8, 1),
        "intercept": (1, 1),
    }
    column = np.linspace(-1, 1, 8).reshape(8, 1)
    columns = np.concatenate([-column, column], axis=1)
    for value in (column, columns):
        model = og.set_weights(exported(case), {"coef": value})
        arrays = weight_arrays(model)
        np.testing.assert_array_equal(arrays["initializer", "coef"], columns)
    free = np.arange(16.0).reshape(8, 2)  # not opposite any more: two columns to train
    session = og.TrainingSession(og.set_weights(exported(case), {"coef": free}), threads=1)
    assert session.trained_weights[0].shape == (8, 2)
    with pytest.raises(og.ModelError, match=r"weight 'coef' is float64\[8, 2\]"):
        og.set_weights(exported(case), {"coef": np.ones((4, 1))})


def test_gradient_and_added_loss_are_of_the_files_columns():
    """Graphs for others have the weights as the file has them."""
    case = HeadCase("logistic_regression", 2, dtype="float64")
    X, y = data(case)
    gradient = og.gradient(exported(case), wrt=["coef"], outputs=["probabilities"])
    shapes = {
        i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in gradient.graph.input
    }
    assert shapes["coef"] == [8, 2]
    with_loss = og.add_loss(exported(case), "auto")
    session = onnxruntime.InferenceSession(with_loss.SerializeToString())
    target = session.get_inputs()[1].name  # not 'label', which is an output
    loss = session.run(["loss"], {"X": X, target: y.astype(np.int64)})[0]
    assert float(np.ravel(loss)[0]) == pytest.approx(expected_loss(case, X, y), rel=1e-9)
    with pytest.raises(og.ModelError, match="one of two opposite columns"):
        og.add_loss(exported(case), "auto", penalty=og.losses.Penalty(l2=0.1))


@pytest.mark.parametrize("estimator", ["mlp", "logistic_regression"])
def test_zipmap_of_float64_is_refused_with_a_hint(estimator):
    """ONNX has no such ZipMap: stock onnxruntime does not load the file either."""
    content = exported(HeadCase(estimator, 3, zipmap=True, dtype="float64"))
    with pytest.raises(Exception, match="INVALID_GRAPH"):
        onnxruntime.InferenceSession(content)
    with pytest.raises(og.ModelError, match="zipmap=False or zipmap='columns'"):
        og.Trainer(content)


@pytest.mark.parametrize("case", by_name(regression_cases()[:4] + main_cases()[::7]))
def test_initialize_depends_on_the_seed_alone(case):
    original = exported(case)
    first, again, other = (
        og.initialize(original, scheme="auto", seed=seed).SerializeToString() for seed in (0, 0, 1)
    )
    names = {weight.name for weight in session_of(case).trained_weights}
    assert first == again
    assert first not in (other, original)
    assert without_weights(first, names) == without_weights(original, names)


def test_the_rest_of_a_pipeline_is_not_trained(tmp_path):
    """Means and scales of the StandardScaler are weights of the file, but not trained."""
    case = HeadCase("logistic_regression", 3)
    X, y = data(case)
    trainer = og.Trainer(exported(case), trainable="variable.*", threads=1)
    assert [w.name for w in trainer.session.trained_weights] == [
        "variable.offset",
        "variable.scale",
    ]
    trainer.fit(X, y, epochs=2, verbose=0)
    trainer.save(tmp_path / "scaled.onnx")
    before, after = (
        {node.op_type: node for node in onnx.load_from_string(content).graph.node}
        for content in (exported(case), (tmp_path / "scaled.onnx").read_bytes())
    )
    assert after["Scaler"] != before["Scaler"]
    assert after["LinearClassifier"] == before["LinearClassifier"]


def test_losses_of_other_names_on_these_heads():
    """The user's choice counts: each loss that fits the scores is put on them."""
    multi, binary = HeadCase("sgd_hinge", 3), HeadCase("sgd_hinge", 2)
    chosen = {
        (multi, "softmax_cross_entropy"): "softmax cross-entropy on 'score'",
        (multi, "modified_huber"): "one-vs-rest modified Huber on 'score'",
        (binary, "binary_cross_entropy"): "binary cross-entropy on 'score'",
        (binary, "one_vs_rest_log"): "one-vs-rest log loss on 'score'",
        (HeadCase("mlp", 3), "nll"): "negative log-likelihood on 'probabilities'",
        (HeadCase("mlp", 2), "nll"): "negative log-likelihood on 'probabilities'",
        (HeadCase("logistic_regression", 3), "hinge"): "one-vs-rest hinge on",
    }
    for (case, loss), part in chosen.items():
        assert part in session_of(case, loss=loss).loss_line
    refused = {
        (multi, "binary_cross_entropy"): "loss='softmax_cross_entropy'",
        (binary, "softmax_cross_entropy"): "loss='binary_cross_entropy'",
        (HeadCase("one_vs_rest", 3), "cross_entropy"): "loss='negative_log_likelihood'",
    }
    for (case, loss), hint in refused.items():
        with pytest.raises(og.ModelError) as caught:
            session_of(case, loss=loss)
        assert hint in str(caught.value)


def test_line_is_printed_once(capfd):
    case = HeadCase("mlp", 3, "strings", True)
    X, y = data(case)
    og.Trainer(exported(case), threads=1).fit(X, y, epochs=2, verbose=1)
    line = (
        "loss: softmax cross-entropy on 'add_result1' (scores before output 'output_probability'),"
        " 3 classes from ZipMap node 'ZipMap'"
    )
    assert capfd.readouterr().err.count(line) == 1


def test_unknown_label_is_named():
    case = HeadCase("logistic_regression", 3, "strings")
    X, y = data(case)
    y = y.copy()
    y[17] = "delta"
    with pytest.raises(og.DataError) as caught:
        og.Trainer(exported(case), threads=1).fit(X, y, epochs=1, verbose=0)
    assert "'delta' in row 17" in str(caught.value)
    assert "'alpha', 'beta', 'gamma'" in str(caught.value)
