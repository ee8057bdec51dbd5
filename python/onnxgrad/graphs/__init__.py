"""Functions that return a new model: with a loss, gradients, a training step, other weights."""

from onnxgrad.graphs.derivatives import hessian, hvp, jvp, vjp
from onnxgrad.graphs.gradients import gradient
from onnxgrad.graphs.steps import add_loss, add_training_info, training_step
from onnxgrad.graphs.weights import initialize, load_state_dict, set_weights, state_dict

__all__ = [
    "add_loss",
    "add_training_info",
    "gradient",
    "hessian",
    "hvp",
    "initialize",
    "jvp",
    "load_state_dict",
    "set_weights",
    "state_dict",
    "training_step",
    "vjp",
]
