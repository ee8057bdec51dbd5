"""scikit-learn estimators that train ONNX models.

`OnnxRegressor` and `OnnxClassifier` take any ONNX model, or build a multi-layer perceptron with the
given layer sizes; `to_onnx` returns the trained model, which runs in every ONNX runtime.

>>> from onnxgrad.sklearn import OnnxClassifier
>>> classifier = OnnxClassifier("model.onnx").fit(X, y)  # doctest: +SKIP
>>> onnx.save(classifier.to_onnx(), "trained.onnx")      # doctest: +SKIP

Pipelines with these estimators become one file by ``skl2onnx.to_onnx(pipeline, X[:1])``.

This module imports scikit-learn and onnx; ``import onnxgrad`` does not import this module.
"""

from onnxgrad.sklearn import _library  # first: reports that scikit-learn is missing
from onnxgrad.sklearn.classifier import OnnxClassifier
from onnxgrad.sklearn.converters import register_when_imported
from onnxgrad.sklearn.networks import multi_layer_perceptron
from onnxgrad.sklearn.regressor import OnnxRegressor

__all__ = ["OnnxClassifier", "OnnxRegressor", "multi_layer_perceptron"]

register_when_imported(OnnxClassifier, OnnxRegressor)
del _library, register_when_imported
