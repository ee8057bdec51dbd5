"""Models and helpers that the tests of `precision=` share."""

import ml_dtypes
import numpy as np
import pytest

import half_models
import onnxgrad as og

HALVES = {"bf16": np.dtype(ml_dtypes.bfloat16), "fp16": np.dtype(np.float16)}
# The relative size of a rounding of the products and what follows from it: a few units of 2^-9.
TOLERANCE = {"bf16": 0.03, "fp16": 0.004}
LOSS = "softmax_cross_entropy"
NETWORKS = list(half_models.TEXTS)
both = pytest.mark.parametrize("precision", list(HALVES))


def feeds_of(name, count=12):
    x, labels = half_models.rows(name, count)
    return {"x": x, "label": labels}


def rounded(array, precision):
    return np.asarray(array, np.float32).astype(HALVES[precision]).astype(np.float32)


def gradients_of(model, feeds, precision, loss=LOSS, **options):
    """The loss and the gradients of the trained weights, or of those that `outputs` names."""
    if "outputs" not in options:
        trained = og.TrainingSession(model, loss).trained_weights
        options["outputs"] = [f"{weight.name}_grad" for weight in trained]
    session = og.TrainingSession(model, loss, "sgd", precision=precision, threads=1, **options)
    loss_value, gradients = session.step(feeds)
    return loss_value, dict(
        zip((name.removesuffix("_grad") for name in options["outputs"]), gradients, strict=True)
    )


def error_of(found, wanted):
    """The Euclidean norm of the difference, relative to that of what is wanted."""
    return np.linalg.norm(found - wanted) / max(np.linalg.norm(wanted), 1e-6)
