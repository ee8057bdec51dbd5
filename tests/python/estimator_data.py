"""Labels, options and helpers for the tests of the estimators."""

import pickle

import numpy as np
import onnxruntime

PLAIN = {"hidden_layer_sizes": (5,), "shuffle": False, "tol": None, "random_state": 0}
LABELS = {
    "int": np.array([3, 5, 8]),
    "string": np.array(["setosa", "versicolor", "virginica"]),
    "object": np.array(["a", "bb", "ccc"], dtype=object),
    "whole_float": np.array([-1.0, 0.0, 2.0]),
}


def in_onnxruntime(model, X):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {session.get_inputs()[0].name: X})


def by_pickle(estimator):
    return pickle.loads(pickle.dumps(estimator))
