"""Write sklearn_mlps/: small scikit-learn MLPs as skl2onnx exports them, and what they should give.

    python tests/data/make_sklearn_mlps.py

Nothing is cut from the exported files: label output, ZipMap and unnamed batch dimension stay.
values.json has, per model, the data (X, labels), scikit-learn's loss and accuracy on it, and its
predictions. Written with scikit-learn 1.9.1 and skl2onnx 1.20.0.
"""

import json
import warnings
from pathlib import Path

import numpy as np
from skl2onnx import to_onnx
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, log_loss, mean_squared_error
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

FOLDER = Path(__file__).with_name("sklearn_mlps")


def make(model, x, y):
    """Fit briefly, so that losses are far from their minimum."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(x, y)


def write(name, model, x):
    """Export as users do, with a float32 row as example."""
    onnx_model = to_onnx(model, x[:1].astype(np.float32))
    (FOLDER / f"{name}.onnx").write_bytes(onnx_model.SerializeToString())


def classifiers():
    """(name, model, labels) of the classifiers."""
    names = np.array(["setosa", "versicolor", "virginica"])
    labels = load_iris().target
    settings = {"hidden_layer_sizes": (7,), "max_iter": 3, "random_state": 0}
    yield "three_classes", MLPClassifier(**settings), labels
    yield "shifted_classes", MLPClassifier(activation="tanh", **settings), labels * 10 + 5
    yield "string_classes", MLPClassifier(activation="logistic", **settings), names[labels]
    yield "two_classes", MLPClassifier(**settings), (labels == 1).astype(int)
    yield "two_string_classes", MLPClassifier(**settings), np.where(labels == 1, "yes", "no")
    scaled = make_pipeline(StandardScaler(), MLPClassifier(**settings))
    yield "scaled_three_classes", scaled, labels


def regressors():
    """(name, model, targets) of the regressors."""
    data = load_iris().data
    settings = {"hidden_layer_sizes": (7,), "max_iter": 3, "random_state": 0}
    yield "one_target", MLPRegressor(**settings), data[:, 3]
    yield "two_targets", MLPRegressor(**settings), data[:, 2:]
    scaled = make_pipeline(StandardScaler(), MLPRegressor(activation="tanh", **settings))
    yield "scaled_one_target", scaled, data[:, 3]


def main():
    """Write all files."""
    FOLDER.mkdir(exist_ok=True)
    x = load_iris().data.astype(np.float32).astype(np.float64)  # exact in the models' float32
    values = {"x": x.ravel().tolist(), "x_shape": list(x.shape), "models": {}}
    for name, model, y in classifiers():
        make(model, x, y)
        (FOLDER / f"{name}.onnx").write_bytes(
            to_onnx(model, x[:1].astype(np.float32)).SerializeToString()
        )
        p = model.predict_proba(x)
        values["models"][name] = {
            "target": y.tolist(),
            "loss": log_loss(y, p, labels=model.classes_),
            "accuracy": accuracy_score(y, model.predict(x)),
            "probabilities": p[:4].ravel().tolist(),
        }
    for name, model, y in regressors():
        columns = x if name != "two_targets" else x[:, :2]
        make(model, columns, y)
        (FOLDER / f"{name}.onnx").write_bytes(
            to_onnx(model, columns[:1].astype(np.float32)).SerializeToString()
        )
        predicted = model.predict(columns)
        values["models"][name] = {
            "target": y.ravel().tolist(),
            "columns": columns.shape[1],
            "targets": 1 if y.ndim == 1 else y.shape[1],
            "loss": mean_squared_error(y, predicted),
            "predictions": predicted[:4].ravel().tolist(),
        }
    (FOLDER / "values.json").write_text(json.dumps(values) + "\n")


if __name__ == "__main__":
    main()
