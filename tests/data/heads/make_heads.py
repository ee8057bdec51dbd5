"""Writes the models of this folder and index.json, with the head of each.

Run in the project's environment: PYTHONHASHSEED=0 python tests/data/heads/make_heads.py (the hash
seed fixes the order of operator sets). The models are pipelines of scikit-learn as skl2onnx writes
them (tests/python/sklearn_heads.py has the table); the losses are scikit-learn's own, in float64,
on a few rows that are stored with them.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import skl2onnx
import sklearn

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "python"))

from sklearn_heads import (  # noqa: E402
    MAIN_ESTIMATORS,
    HeadCase,
    data,
    expected_loss,
    exported,
    fitted,
    regression_cases,
)

CASES = [
    *(HeadCase(estimator, classes) for estimator in MAIN_ESTIMATORS for classes in (2, 3)),
    *(HeadCase(estimator, 3, "strings", True) for estimator in MAIN_ESTIMATORS),
    HeadCase("mlp", 2, "strings", True),
    HeadCase("mlp", 3, "shifted"),
    HeadCase("mlp", 2, zipmap="columns", dtype="float64"),
    HeadCase("logistic_regression", 2, "integers", True),
    HeadCase("logistic_regression", 3, "integers", "columns"),
    HeadCase("logistic_regression", 2, dtype="float64"),
    HeadCase("logistic_regression", 3, dtype="float64"),
    HeadCase("ridge_classifier", 2),
    HeadCase("ridge_classifier", 3),
    HeadCase("one_vs_rest", 2),
    HeadCase("one_vs_rest", 2, dtype="float64"),
    HeadCase("one_vs_rest", 3),
    *regression_cases(),
]
ROWS = 12


def record(case: HeadCase) -> dict[str, object]:
    X, y = data(case)
    chosen = np.random.default_rng(0).permutation(len(X))[:ROWS]
    X, y = X[chosen], y[chosen]
    return {
        "file": f"{case.name}.onnx",
        "loss": case.loss,
        "classes": fitted(case)[-1].classes_.tolist() if case.classes else [],
        "x": X.tolist(),
        "y": y.tolist(),
        "expected": expected_loss(case, X, y),
    }


def main() -> None:
    records = []
    for case in CASES:
        (HERE / f"{case.name}.onnx").write_bytes(exported(case))
        records.append(record(case))
    versions = {module.__name__: module.__version__ for module in (sklearn, skl2onnx, onnx)}
    text = json.dumps({"versions": versions, "models": records}, indent=None, sort_keys=True)
    (HERE / "index.json").write_text(text.replace('{"classes"', '\n{"classes"') + "\n")


if __name__ == "__main__":
    main()
