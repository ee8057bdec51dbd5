"""Quantization: a model with integer weights and activations, trained as such.

``quantize="int8"`` or ``"int4"`` of a `Trainer` quantizes its model at the first `fit`, with rows
of the training data as calibration, and trains it with rounded weights and activations:

>>> import onnxgrad as og
>>> trainer = og.Trainer("model.onnx", quantize="int8")                 # doctest: +SKIP
>>> trainer.fit(X, y)                                                   # doctest: +SKIP
>>> trainer.save("quantized.onnx")      # integers, for any runtime     # doctest: +SKIP

`quantize` does that without a training. A file that is quantized already, by whatever program, is
trained as it is.
"""

from onnxgrad.quantization.described import Quantization, QuantizeLike, as_quantization
from onnxgrad.quantization.functions import quantize

__all__ = ["Quantization", "QuantizeLike", "as_quantization", "quantize"]
