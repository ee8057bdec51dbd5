"""InferenceSession and TrainingSession against stock onnxruntime and NumPy."""

import threading

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxgrad as og
from support import initializers, mlp_proto


def stock(model):
    return onnxruntime.InferenceSession(model.SerializeToString())


def test_same_results_and_descriptions_as_onnxruntime():
    model = mlp_proto([7, 5, 3], head="Softmax")
    ours, theirs = og.InferenceSession(model), stock(model)
    for name in ("get_inputs", "get_outputs"):
        for mine, other in zip(getattr(ours, name)(), getattr(theirs, name)(), strict=True):
            assert (mine.name, mine.type, mine.shape) == (other.name, other.type, other.shape)
    rng = np.random.default_rng(1)
    for rows in (1, 5, 33):
        X = rng.normal(size=(rows, 7)).astype(np.float32)
        expected = theirs.run(None, {"X": X})[0]
        np.testing.assert_allclose(ours.run(["Y"], {"X": X})[0], expected, rtol=1e-5, atol=1e-7)
    assert "Softmax" in ours.plan_summary()


def test_results_share_no_memory():
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[2, 2] x) => (float[2, 2] doubled, float[4] flat, float[4] given, float[2] fixed)
        <float[2] seven = {7, 7}, int64[1] all = {-1}> {
            doubled = Add(x, x)  flat = Reshape(doubled, all)  given = Reshape(x, all)
            fixed = Identity(seven)
        }"""
    )
    session, x = og.InferenceSession(model), np.array([[1, 2], [3, 4]], np.float32)
    first = session.run(None, {"x": x})
    expected = [array.copy() for array in first]
    np.testing.assert_array_equal(expected[1], [2, 4, 6, 8])
    second = session.run(["doubled", "flat", "doubled", "given", "fixed"], {"x": x})
    arrays = [x, *first, *second]
    for i, array in enumerate(arrays):
        assert not any(np.shares_memory(array, other) for other in arrays[:i])
        array += 100
    x -= 100
    for array, wanted in zip(session.run(None, {"x": x}), expected, strict=True):
        np.testing.assert_array_equal(array, wanted)


@pytest.mark.parametrize("form", ["path", "str", "bytes", "proto", "bytearray", "memoryview"])
def test_forms_of_a_model(form, linear_file, linear_model, linear_proto):
    model = {
        "path": linear_file,
        "str": str(linear_file),
        "bytes": linear_model,
        "proto": linear_proto,
        "bytearray": bytearray(linear_model),
        "memoryview": memoryview(linear_model),
    }[form]
    found = og.InferenceSession(model).run(None, {"X": np.ones((1, 2), np.float32)})[0]
    np.testing.assert_allclose(found, [[0.5 - 0.25 + 0.125]])


def squared_error_steps(weights, X, y, lr, steps):
    """NumPy's own gradient descent on mean((X w + b - y)^2)."""
    w, b = (weights[name].astype(np.float64) for name in ("coef", "intercept"))
    losses = []
    for _ in range(steps):
        difference = X @ w + b - y
        losses.append(np.mean(difference**2))
        w = w - lr * 2 * X.T @ difference / len(X)
        b = b - lr * 2 * difference.mean(axis=0)
    return losses, w, b


def test_steps_are_those_of_numpy(linear_proto, linear_data):
    X, y = linear_data
    session = og.TrainingSession(linear_proto, "squared_error", og.optimizers.SGD(lr=0.05))
    found = [session.step({"X": X, "label": y}) for _ in range(10)]
    losses, w, b = squared_error_steps(initializers(linear_proto), X, y, 0.05, 10)
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    state = session.state()
    np.testing.assert_allclose(state["coef"], w, rtol=1e-5)
    np.testing.assert_allclose(state["intercept"], b, rtol=1e-5)
    assert session.steps == 10


def test_requested_outputs_of_a_step(linear_proto, linear_data):
    X, y = linear_data
    session = og.TrainingSession(
        linear_proto, "squared_error", "sgd", outputs=["coef_grad", "gradient_norm"]
    )
    weights = initializers(linear_proto)
    difference = X @ weights["coef"] + weights["intercept"] - y
    gradient = 2 * X.T @ difference / len(X)
    loss, (found, norm) = session.step({"X": X, "label": y})
    np.testing.assert_allclose(loss, np.mean(difference**2), rtol=1e-5)
    np.testing.assert_allclose(found, gradient, rtol=1e-4)
    both = np.sqrt(np.sum(gradient**2) + (2 * difference.mean()) ** 2)
    np.testing.assert_allclose(norm, both, rtol=1e-4)


def test_state_can_be_taken_back(linear_proto, linear_data):
    X, y = linear_data
    feeds = {"X": X, "label": y}
    session = og.TrainingSession(linear_proto, "squared_error", "adam")
    for _ in range(3):
        session.step(feeds)
    state = session.state()
    after = [session.step(feeds) for _ in range(3)]
    session.load_state(state)
    assert [session.step(feeds) for _ in range(3)] == after
    session.reset()
    assert session.steps == 0
    np.testing.assert_array_equal(session.state()["coef"], initializers(linear_proto)["coef"])


def test_views_of_the_weights_change_with_the_next_step(linear_proto, linear_data):
    X, y = linear_data
    session = og.TrainingSession(
        linear_proto, "squared_error", og.optimizers.Adam(0.1), device="cpu"
    )
    feeds = {"X": X, session.target_name: y}
    views, first = session.weights, session.state()
    assert views.keys() == {weight.name for weight in session.trained_weights}
    for name, view in views.items():
        np.testing.assert_array_equal(view, first[name])
        with pytest.raises(ValueError, match="read-only"):
            view[...] = 0
    session.step(feeds)
    for name, view in views.items():
        np.testing.assert_array_equal(view, session.state()[name])
        assert not np.array_equal(view, first[name])
    del session
    assert all(np.isfinite(view).all() for view in views.values())  # they own their memory


def test_evaluate_and_predict_do_not_train(linear_proto, linear_data):
    X, y = linear_data
    session = og.TrainingSession(linear_proto, "squared_error", "sgd")
    before = session.state()
    result = session.evaluate({"X": X, "label": y})
    expected = stock(linear_proto).run(None, {"X": X})[0]
    assert result.loss == pytest.approx(np.mean((expected - y) ** 2), rel=1e-5)
    assert result.accuracy is None
    assert result.rows == len(X)
    np.testing.assert_allclose(session.predict({"X": X})[0], expected, rtol=1e-6)
    for name, value in session.state().items():
        np.testing.assert_array_equal(value, before[name])


def test_trained_model_is_the_same_file_with_other_weights(linear_proto, linear_data):
    X, y = linear_data
    session = og.TrainingSession(linear_proto, "squared_error", "sgd")
    session.step({"X": X, "label": y})
    trained = session.trained_model()
    assert isinstance(trained, onnx.ModelProto)
    found = initializers(trained)
    np.testing.assert_array_equal(found["coef"], session.state()["coef"])
    assert not np.array_equal(found["coef"], initializers(linear_proto)["coef"])
    kept = onnx.ModelProto()
    kept.CopyFrom(linear_proto)
    for model in (trained, kept):
        del model.graph.initializer[:]
    assert trained == kept


def test_learning_rate_can_be_changed(linear_proto, linear_data):
    X, y = linear_data
    session = og.TrainingSession(linear_proto, "squared_error", og.optimizers.SGD(lr=0.5))
    assert session.lr == 0.5
    session.lr = 0.0
    session.step({"X": X, "label": y})
    np.testing.assert_array_equal(session.state()["coef"], initializers(linear_proto)["coef"])
    with pytest.raises(og.OptionError):
        session.lr = -1


def test_frozen_weights_stay(linear_proto, linear_data):
    X, y = linear_data
    session = og.TrainingSession(linear_proto, "squared_error", "sgd", frozen="inter*")
    assert [weight.name for weight in session.trained_weights] == ["coef"]
    session.step({"X": X, "label": y})
    before = initializers(linear_proto)
    after = initializers(session.trained_model())
    np.testing.assert_array_equal(after["intercept"], before["intercept"])
    assert not np.array_equal(after["coef"], before["coef"])


def test_sample_weights(linear_proto, linear_data):
    X, y = linear_data
    session = og.TrainingSession(linear_proto, "squared_error", "sgd", sample_weight="w")
    weight = np.zeros(len(X), np.float32)
    weight[:50] = 2.0
    expected = stock(linear_proto).run(None, {"X": X[:50]})[0]
    loss = session.evaluate({"X": X, "label": y, "w": weight}).loss
    assert loss == pytest.approx(np.mean((expected - y[:50]) ** 2), rel=1e-5)


def test_failed_step_changes_nothing(linear_proto, linear_data):
    X, y = linear_data
    session = og.TrainingSession(linear_proto, "squared_error", "adam")
    session.step({"X": X, "label": y})
    before = session.state()
    with pytest.raises(og.Error):
        session.step({"X": X, "label": y[:3]})
    after = session.state()
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])
    session.step({"X": X, "label": y})


def test_sessions_in_threads(linear_proto, linear_data):
    X, _ = linear_data
    expected = stock(linear_proto).run(None, {"X": X})[0]
    failures = []

    def work():
        session = og.InferenceSession(linear_proto, threads=1)
        for _ in range(50):
            if not np.allclose(session.run(None, {"X": X})[0], expected):
                failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_classes_and_labels():
    model = mlp_proto([4, 3])
    session = og.TrainingSession(model, "softmax_cross_entropy", "sgd")
    assert session.is_classifier
    np.testing.assert_array_equal(session.encode_target([0, 2, 1]), [0, 2, 1])
    with pytest.raises(og.DataError, match="7"):
        session.encode_target([0, 7])
    with pytest.raises(og.DataError, match="99"):
        session.step({"X": np.zeros((1, 4), np.float32), "label": np.array([99])})


def test_a_session_that_only_evaluates(linear_model, linear_data):
    X, y = linear_data
    session = og.TrainingSession(linear_model, "squared_error", evaluation_only=True)
    wanted = og.Trainer(linear_model, "squared_error").evaluate(X, y)
    assert og.Trainer(session).evaluate(X, y) == wanted
    weight = np.linspace(0, 1, len(X), dtype=np.float32)
    weighted = og.Trainer(linear_model, "squared_error").evaluate(X, y, weight)
    assert og.Trainer(session).evaluate(X, y, weight) == weighted
    (scores,) = session.predict({"X": X})
    np.testing.assert_array_equal(scores, og.InferenceSession(linear_model).run(None, {"X": X})[0])
    assert session.state() == {}
    with pytest.raises(og.OptionError, match="only evaluates"):
        session.step({"X": X, "label": y})
    with pytest.raises(og.OptionError, match="only evaluates"):
        og.Trainer(session).fit(X, y, epochs=1, verbose=False)
    k_means = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        nearest (float[N, 2] X) => (int64[N] label, float[N, 2] scores)
        <float[2, 2] centres = {0, 0, 1, 1}, int64[1] axes = {1}, int64[1] last = {2}>
        {
          x = Unsqueeze(X, axes)  d = Sub(x, centres)  e = Mul(d, d)
          s = ReduceSum<keepdims = 0>(e, last)
          scores = Neg(s)
          label = ArgMax<axis = 1, keepdims = 0>(scores)
        }"""
    )
    nothing = og.TrainingSession(
        k_means, og.losses.SoftmaxCrossEntropy(output="scores"), evaluation_only=True
    )
    labels = (X.sum(axis=1) > 1).astype(np.int64)
    assert og.Trainer(nothing).evaluate(X, labels).accuracy == 1
