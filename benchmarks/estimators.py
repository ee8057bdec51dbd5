"""Processor time of `fit`: scikit-learn's MLPClassifier and OnnxClassifier, on one thread.

    python benchmarks/estimators.py [repetitions]

Network 64-100-10 on scikit-learn's digits, 50 epochs, the same options. Prints the table of
docs/scikit-learn.md (the best of nine by default) and the accuracies on the test rows.
"""

import sys
import time
import warnings

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

from onnxgrad.sklearn import OnnxClassifier

CASES = [(np.float64, 200), (np.float32, 200), (np.float64, 32), (np.float32, 32)]
EPOCHS = 50


def best_times(estimators, X, y, repetitions):
    """Best processor time of `fit` of each; they take turns, so that all see the same machine."""
    best = [float("inf")] * len(estimators)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn says that it has not converged
        for _ in range(repetitions):
            for place, estimator in enumerate(estimators):
                start = time.process_time()
                estimator.fit(X, y)
                best[place] = min(best[place], time.process_time() - start)
    return best


def main():
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X / 16, y, random_state=0)
    print("| | `MLPClassifier` | `OnnxClassifier` |\n| --- | --- | --- |")
    scores = []
    for dtype, batch_size in CASES:
        options = {
            "hidden_layer_sizes": (100,), "batch_size": batch_size, "max_iter": EPOCHS,
            "random_state": 0,
        }  # fmt: skip
        estimators = [
            MLPClassifier(n_iter_no_change=EPOCHS, **options),
            OnnxClassifier(tol=None, threads=1, **options),
        ]
        rows = X_train.astype(dtype)
        with threadpool_limits(1):
            theirs, own = best_times(estimators, rows, y_train, repetitions)
        name = np.dtype(dtype).name
        print(f"| {name}, batches of {batch_size} | {theirs:.3f} s | {own:.3f} s |", flush=True)
        scores.append([e.score(X_test.astype(dtype), y_test) for e in estimators])
    print("accuracy", [[round(score, 4) for score in pair] for pair in scores])


if __name__ == "__main__":
    main()
