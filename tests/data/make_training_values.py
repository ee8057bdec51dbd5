"""Write training_values.json: losses, their gradients, and 50 steps of each optimizer.

    python tests/data/make_training_values.py

Everything is computed here in float64 with NumPy, SciPy and scikit-learn, from the published
formulas and without onnxgrad. Gradients of losses are central differences in extended precision.
The C++ tests of src/train read the file.

Written with numpy 2.4.6, scipy 1.17.1, scikit-learn 1.9.1.
"""

import json
from pathlib import Path

import numpy as np
from scipy.special import log_expit, log_softmax
from sklearn.metrics import hinge_loss, log_loss, mean_squared_error

RNG = np.random.default_rng(20)


def squared_error(s, t):
    """Loss of each row: the squares, averaged over the columns."""
    return ((s - t) ** 2).reshape(len(s), -1).mean(axis=1)


def softmax_cross_entropy(s, t):
    """-log softmax(s)[t]."""
    shifted = s - s.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return -np.take_along_axis(log_p, t[:, None], axis=1)[:, 0]


def binary_cross_entropy(s, t):
    """-(t log p + (1 - t) log(1 - p)) with p = 1 / (1 + exp(-s)), averaged over columns."""
    t = t.reshape(s.shape)
    losses = np.maximum(s, 0) - t * s + np.log1p(np.exp(-np.abs(s)))
    return losses.reshape(len(s), -1).mean(axis=1)


def negative_log_likelihood(p, t):
    """-log p[t]."""
    return -np.log(np.take_along_axis(p, t[:, None], axis=1)[:, 0])


def signs(s, t):
    """+1 in the column of the class, -1 elsewhere; one column: the sign of the class."""
    if s.shape[1] == 1:
        return (2 * t - 1)[:, None]
    return np.where(np.arange(s.shape[1]) == t[:, None], 1, -1)


def one_vs_rest_log(s, t):
    """Log loss of SGDClassifier, summed over the one-vs-rest problems."""
    return np.logaddexp(np.zeros((), s.dtype), -signs(s, t) * s).sum(axis=1)


def hinge(s, t):
    """Hinge loss of SGDClassifier."""
    return np.maximum(0, 1 - signs(s, t) * s).sum(axis=1)


def modified_huber(s, t):
    """Modified Huber loss of SGDClassifier."""
    z = signs(s, t) * s
    return np.where(z >= -1, np.maximum(0, 1 - z) ** 2, -4 * z).sum(axis=1)


def reduce(rows, weights, reduction):
    """Put rows together."""
    weights = np.ones(len(rows)) if weights is None else weights
    total = (weights * rows).sum()
    return total / weights.sum() if reduction == "mean" else total


def numeric_gradient(function, x):
    """Central differences in extended precision."""
    x = x.astype(np.longdouble)
    gradient = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        step = np.longdouble(1e-7)
        high, low = x.copy(), x.copy()
        high[index] += step
        low[index] -= step
        gradient[index] = (function(high) - function(low)) / (2 * step)
    return gradient


def loss_case(name, loss, rows_of, scores, target, weights=None, reduction="mean"):
    """One row of the table."""
    value = reduce(rows_of(scores, target), weights, reduction)
    gradient = numeric_gradient(lambda s: reduce(rows_of(s, target), weights, reduction), scores)
    return {
        "name": name,
        "loss": loss,
        "reduction": reduction,
        "scores_shape": list(scores.shape),
        "scores": scores.ravel().tolist(),
        "target_is_class": bool(np.issubdtype(target.dtype, np.integer)),
        "target_shape": list(target.shape),
        "target": target.ravel().tolist(),
        "weights": None if weights is None else weights.tolist(),
        "value": float(value),
        "gradient": gradient.ravel().tolist(),
    }


def loss_cases():
    """All rows, some checked against libraries on the way."""
    s1, s3, s5 = (RNG.normal(0, 2, (7, k)) for k in (1, 3, 5))
    vector = RNG.normal(0, 2, 7)
    y1, y3, yv = RNG.normal(0, 2, (7, 1)), RNG.normal(0, 2, (7, 3)), RNG.normal(0, 2, 7)
    two = np.array([0, 1, 1, 0, 1, 0, 1])
    five = np.array([0, 4, 2, 2, 1, 3, 4])
    bits = RNG.integers(0, 2, (7, 3)).astype(float)
    weights = np.array([1.0, 0.5, 2.0, 0.0, 1.5, 3.0, 0.25])
    p5 = np.exp(log_softmax(s5, axis=1))
    wide = np.array([[-60.0], [60.0], [-30.0], [30.0], [0.0], [5.0], [-5.0]])

    assert np.isclose(squared_error(s3, y3).mean(), mean_squared_error(y3, s3))
    assert np.isclose(softmax_cross_entropy(s5, five).mean(), log_loss(five, p5))
    p2 = np.exp(log_expit(s1[:, 0]))
    assert np.isclose(binary_cross_entropy(s1, two).mean(), log_loss(two, p2))
    assert np.isclose(hinge(s1, two).mean(), hinge_loss(two, s1[:, 0]))

    rows = [
        ("one_column", "squared_error", squared_error, s1, y1),
        ("three_columns", "squared_error", squared_error, s3, y3),
        ("vector", "squared_error", squared_error, vector, yv),
        ("five_classes", "softmax_cross_entropy", softmax_cross_entropy, s5, five),
        ("one_column", "binary_cross_entropy", binary_cross_entropy, s1, two),
        ("vector", "binary_cross_entropy", binary_cross_entropy, vector, two),
        ("extreme_scores", "binary_cross_entropy", binary_cross_entropy, wide, two),
        ("three_labels", "binary_cross_entropy", binary_cross_entropy, s3, bits),
        ("five_classes", "negative_log_likelihood", negative_log_likelihood, p5, five),
        ("five_classes", "one_vs_rest_log", one_vs_rest_log, s5, five),
        ("one_column", "one_vs_rest_log", one_vs_rest_log, s1, two),
        ("five_classes", "hinge", hinge, s5, five),
        ("one_column", "hinge", hinge, s1, two),
        ("five_classes", "modified_huber", modified_huber, s5, five),
        ("one_column", "modified_huber", modified_huber, s1, two),
    ]
    cases = []
    for name, loss, rows_of, scores, target in rows:
        for kind, w in (("", None), ("_weighted", weights)):
            for reduction in ("mean", "sum"):
                full_name = f"{loss}_{name}{kind}_{reduction}"
                cases.append(loss_case(full_name, loss, rows_of, scores, target, w, reduction))
    return cases


def sgd(w, gradients, lr, momentum=0.0, dampening=0.0, nesterov=False, weight_decay=0.0):
    """torch.optim.SGD, by its documented algorithm."""
    buffer = None
    for g in gradients:
        g = g + weight_decay * w
        if momentum != 0:
            buffer = g.copy() if buffer is None else momentum * buffer + (1 - dampening) * g
            g = g + momentum * buffer if nesterov else buffer
        w = w - lr * g
    return w


def adam(w, gradients, lr, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.0):
    """torch.optim.Adam, by its documented algorithm: bias-corrected averages."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gradients, start=1):
        g = g + weight_decay * w
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        w = w - lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + epsilon)
    return w


def optimizer_cases():
    """50 steps over given gradients."""
    start = RNG.normal(0, 1, (2, 3))
    gradients = [RNG.normal(0, 1, (2, 3)) * 10.0 ** RNG.integers(-3, 2) for _ in range(50)]
    table = [
        ("sgd", sgd, {"lr": 0.01}),
        ("sgd_decay", sgd, {"lr": 0.01, "weight_decay": 0.1}),
        ("momentum", sgd, {"lr": 0.01, "momentum": 0.9}),
        ("momentum_dampened", sgd, {"lr": 0.01, "momentum": 0.9, "dampening": 0.3}),
        ("momentum_decay", sgd, {"lr": 0.01, "momentum": 0.8, "weight_decay": 0.05}),
        ("nesterov", sgd, {"lr": 0.01, "momentum": 0.9, "nesterov": True}),
        (
            "nesterov_decay",
            sgd,
            {"lr": 0.02, "momentum": 0.5, "nesterov": True, "weight_decay": 0.01},
        ),
        ("adam", adam, {"lr": 0.001}),
        ("adam_parameters", adam, {"lr": 0.1, "beta1": 0.5, "beta2": 0.9, "epsilon": 1e-3}),
        ("adam_decay", adam, {"lr": 0.01, "weight_decay": 0.1}),
    ]
    return {
        "shape": [2, 3],
        "start": start.ravel().tolist(),
        "gradients": [g.ravel().tolist() for g in gradients],
        "cases": [
            {
                "name": name,
                "kind": function.__name__,
                "parameters": parameters,
                "end": function(start, gradients, **parameters).ravel().tolist(),
            }
            for name, function, parameters in table
        ],
    }


if __name__ == "__main__":
    path = Path(__file__).with_name("training_values.json")
    path.write_text(json.dumps({"losses": loss_cases(), "optimizers": optimizer_cases()}) + "\n")
    print(path, path.stat().st_size, "bytes")
