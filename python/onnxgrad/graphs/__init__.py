"""Functions that return a new model: with a loss, gradients, a training step, other weights."""

from onnxgrad.graphs.derivatives import hessian, hvp, jvp, vjp
from onnxgrad.graphs.forms import open_batch, to_inference
from onnxgrad.graphs.gradients import gradient
from onnxgrad.graphs.quantized_weights import dequantize_weights, quantize_weights
from onnxgrad.graphs.steps import add_loss, add_training_info, training_step
from onnxgrad.graphs.transfer import features, replace_head, unfold_batch_norm
from onnxgrad.graphs.weights import initialize, load_state_dict, set_weights, state_dict

__all__ = [
    "add_loss",
    "add_training_info",
    "dequantize_weights",
    "features",
    "gradient",
    "hessian",
    "hvp",
    "initialize",
    "jvp",
    "load_state_dict",
    "open_batch",
    "quantize_weights",
    "replace_head",
    "set_weights",
    "state_dict",
    "to_inference",
    "training_step",
    "unfold_batch_norm",
    "vjp",
]
