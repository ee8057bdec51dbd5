"""A linear regression trained step by step on sums of squares: a published run in numbers."""

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import onnxgrad as og

LINEAR = """
<ir_version: 7, opset_import: ["" : 14]>
lr (float[N, 2] X) => (float[N, 1] Y)
<float[2, 1] coefs = {{{0}, {1}}}, float[1] intercept = {{{2}}}>
{{ [N1] y1 = MatMul(X, coefs)  [N2] Y = Add(y1, intercept) }}"""

# The second step of the session: state before, data, what it printed, state after.
BEFORE = (-1.9766996, -0.5457616, -0.8779792)
X = np.array([[-0.6122115, -1.2465174]], np.float32)
LABEL = np.array([[-145.45398]], np.float32)
LOSS, Y, NORM = 21452.424, 1.01248, 501.30127
AFTER = (-1.7973627, -0.18061563, -1.1709121)


def linear_model(numbers):
    return onnx.parser.parse_model(LINEAR.format(*map(float, numbers)))


@pytest.mark.parametrize("fused", ["session", "file"])
def test_the_printed_step(fused):
    loss = og.losses.SquaredError(reduction="sum")
    feeds = {"X": X, "label": LABEL}
    if fused == "session":
        session = og.TrainingSession(
            linear_model(BEFORE), loss, og.optimizers.SGD(lr=0.001), outputs=["Y", "gradient_norm"]
        )
        value, (y, norm) = session.step(feeds)
        state = session.state()
        assert norm == pytest.approx(NORM, rel=1e-6)
        assert y.item() == pytest.approx(Y, rel=1e-5)
    else:
        step = onnxruntime.InferenceSession(
            og.training_step(linear_model(BEFORE), loss, "sgd").SerializeToString()
        )
        names = [output.name for output in step.get_outputs()]
        rate = {"learning_rate": np.array(0.001, np.float32)}
        found = dict(zip(names, step.run(None, {**feeds, **rate}), strict=True))
        value = found["loss"]
        state = {name: found[f"next/{name}"] for name in ("coefs", "intercept")}
    assert value == pytest.approx(LOSS, rel=1e-6)
    np.testing.assert_allclose(state["coefs"][:, 0], AFTER[:2], rtol=1e-6)
    np.testing.assert_allclose(state["intercept"], AFTER[2:], rtol=1e-6)


def train(seed):
    """Ten epochs of windows of 10 consecutive rows: the last mean loss and the largest error."""
    from sklearn.datasets import make_regression
    from sklearn.linear_model import LinearRegression

    rows, targets = make_regression(n_features=2, bias=2, random_state=seed)
    rows, targets = rows.astype(np.float32), targets.astype(np.float32).reshape(-1, 1)
    rng = np.random.default_rng(seed)
    session = og.TrainingSession(
        linear_model(rng.normal(size=3)), og.losses.SquaredError(reduction="sum"), "sgd"
    )
    mean_loss = np.inf
    for epoch in range(10):
        session.lr = 0.01 / max(epoch, 1) ** 0.25
        starts = rng.integers(0, len(rows) - 10, size=-(-len(rows) // 10))
        windows = [slice(start, start + 10) for start in starts]
        mean_loss = np.mean([session.step({"X": rows[w], "label": targets[w]}) for w in windows])
    best = LinearRegression().fit(rows, targets[:, 0])
    state = session.state()
    error = np.abs(state["coefs"][:, 0] - best.coef_).max()
    return mean_loss, max(error, abs(state["intercept"][0] - best.intercept_))


def test_the_recipe_over_twenty_seeds():
    losses, errors = zip(*map(train, range(20)), strict=True)
    assert np.median(losses) < 1e-5
    assert np.median(errors) < 1e-3
