"""Penalties on weights against NumPy and scikit-learn."""

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxgrad as og
from support import initializers, linear_rows, mlp_proto


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(
    ("penalty", "l1", "l2"),
    [
        (og.losses.Penalty(l1=0.1), 0.1, 0),
        (og.losses.Penalty(l2=0.3, weights="co*"), 0, 0.3),
        ({"coef": {"l1": 0.1, "l2": 0.3}}, 0.1, 0.3),
        ([og.losses.Penalty(l1=0.1), og.losses.Penalty(l2=0.3, weights=["coef"])], 0.1, 0.3),
    ],
)
def test_penalties_are_in_the_loss_and_in_the_gradient(
    penalty, l1, l2, reduction, linear_proto, linear_data
):
    X, y = linear_data
    w = initializers(linear_proto)["coef"].astype(np.float64)
    d = linear_rows(linear_proto, X, y)
    scale = len(X) if reduction == "mean" else 1
    expected = (d**2).sum() / scale + l1 * np.abs(w).sum() + l2 * (w**2).sum()
    slope = 2 * X.T @ d / scale + l1 * np.sign(w) + 2 * l2 * w
    loss = og.losses.SquaredError(reduction=reduction)
    session = og.TrainingSession(
        linear_proto, loss, og.optimizers.SGD(lr=0.0), penalty=penalty, outputs=["coef_grad"]
    )
    assert "penalty on 'coef'" in session.loss_line
    feeds = {"X": X, "label": y}
    found, (gradient,) = session.step(feeds)
    assert found == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(gradient, slope, rtol=1e-4)
    assert session.evaluate(feeds).loss == pytest.approx(expected, rel=1e-5)
    file = og.add_loss(linear_proto, loss, penalty=penalty)
    stock = onnxruntime.InferenceSession(file.SerializeToString())
    assert stock.run(["loss"], feeds)[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("alpha", "l1_ratio"), [(0.2, 0.5), (0.3, 0.1), (0.1, 0.9)])
def test_penalized_regression_ends_where_scikit_learns_does(
    alpha, l1_ratio, linear_proto, linear_data
):
    from sklearn.linear_model import ElasticNet

    # scikit-learn's objective is half of ours: |y - X w|^2 / (2 N) + a r |w| + a (1 - r) / 2 |w|^2.
    penalty = og.losses.Penalty(l1=2 * alpha * l1_ratio, l2=alpha * (1 - l1_ratio))
    X, y = linear_data
    trainer = og.Trainer(linear_proto, "mse", "sgd", lr=0.2, penalty=penalty)
    trainer.fit(X, y, epochs=150, batch_size=len(X), verbose=0)
    best = ElasticNet(alpha=alpha, l1_ratio=l1_ratio, tol=1e-8, max_iter=10000).fit(X, y[:, 0])
    state = trainer.session.state()
    np.testing.assert_allclose(state["coef"][:, 0], best.coef_, atol=1e-5)
    np.testing.assert_allclose(state["intercept"], best.intercept_, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "matrices"),
    [
        ({}, ["W0", "W1"]),
        ({"trainable": "W0"}, ["W0"]),
        ({"frozen": "W0"}, ["W1"]),
        ({"trainable": ["W1", "scale"]}, ["W1", "scale"]),
    ],
)
def test_penalty_without_names_is_on_the_matrices_that_are_trained(options, matrices):
    model = mlp_proto([2, 3, 1])
    scale = onnx.numpy_helper.from_array(np.full((1, 1), 3, np.float32), "scale")
    model.graph.initializer.append(scale)  # by its name a constant, unless named
    model.graph.node[-1].output[0] = "unscaled"
    model.graph.node.append(onnx.helper.make_node("Mul", ["unscaled", "scale"], ["Y"]))
    values = {name: value.astype(float) for name, value in initializers(model).items()}
    X, y = np.eye(2, dtype=np.float32), np.ones((2, 1), np.float32)
    trainer = og.Trainer(
        model,
        "squared_error",
        og.optimizers.SGD(lr=0.0),
        penalty=og.losses.Penalty(l2=1),
        **options,
    )
    hidden = np.maximum(X @ values["W0"] + values["b0"], 0)
    d = 3 * (hidden @ values["W1"] + values["b1"]) - y
    wanted = (d**2).mean() + sum((values[name] ** 2).sum() for name in matrices)
    assert trainer.evaluate(X, y).loss == pytest.approx(wanted, rel=1e-5)
    trainer.fit(X, y, epochs=1, verbose=False)
    assert trainer.history["train_loss"] == pytest.approx([wanted], rel=1e-5)


def test_penalty_in_the_validation_loss_of_unequal_batches(linear_proto, linear_data):
    X, y = linear_data[0][:50], linear_data[1][:50]
    penalty = og.losses.Penalty(l2=0.5, weights="*")
    trainer = og.Trainer(linear_proto, "mse", og.optimizers.SGD(lr=0.0), penalty=penalty)
    trainer.fit(X, y, validation=(X, y), epochs=1, batch_size=16, verbose=0)
    weights = initializers(linear_proto)
    d = linear_rows(linear_proto, X, y)
    expected = np.mean(d**2) + 0.5 * sum((w.astype(float) ** 2).sum() for w in weights.values())
    assert trainer.history["train_loss"][0] == pytest.approx(expected, rel=1e-5)
    assert trainer.history["val_loss"][0] == pytest.approx(expected, rel=1e-5)


def test_penalties_that_cannot_be():
    model = mlp_proto([4, 3], head="Softmax")
    with pytest.raises(og.OptionError, match="l2: -1"):
        og.losses.Penalty(l2=-1)
    with pytest.raises(og.OptionError, match=r"penalty: 0\.1 for 'W0'"):
        og.Trainer(model, penalty={"W0": 0.1})
    with pytest.raises(og.OptionError, match="a float is not a penalty"):
        og.Trainer(model, penalty=[0.1])
    with pytest.raises(og.ModelError, match="no floating-point weight matches 'V0'"):
        og.Trainer(model, penalty={"V0": {"l2": 1}})


# The losses that add_loss_output of the older library knows: sums over the batch.
