"""The gradient of a model as a model."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntFlag

import onnx

import onnxgrad as og
from onnxgrad.compat.models import takes_models
from onnxgrad.compat.onnxcustom.utils.onnx_helper import get_onnx_opset
from onnxgrad.compat.onnxcustom.utils.orttraining_helper import get_train_initializer
from onnxgrad.files import save_model

__all__ = ["DerivativeOptions", "onnx_derivative"]

_FLOATS = (onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)


class DerivativeOptions(IntFlag):
    """Options of the gradient graph.

    - `Zero`: the gradients of the outputs are inputs ``<output>_grad``;
    - `KeepOutputs`: the outputs are kept, after the gradients;
    - `FillGrad`: the gradients of the outputs are ones, not inputs;
    - `Loss`: the gradient of one output, the loss, which is kept;
    - `KeepYieldOp`: not supported, see `onnx_derivative`.
    """

    Zero = 0
    KeepYieldOp = 1
    KeepOutputs = 2
    FillGrad = 4
    Loss = 5


@takes_models("onx")
def onnx_derivative(
    onx: onnx.ModelProto,
    weights: Sequence[str] | None = None,
    inputs: Sequence[str] | None = None,
    options: DerivativeOptions = DerivativeOptions.Zero,
    loss: str | None = None,
    label: str | None = None,
    path_name: str | None = None,
) -> onnx.ModelProto:
    """Return the gradient of a model, in standard operators only.

    Parameters
    ----------
    onx : onnx.ModelProto
    weights : list of str, default=None
        Initializers to differentiate with respect to; None means all of floating type.
    inputs : list of str, default=None
        Inputs to differentiate with respect to; None means all of floating type.
    options : DerivativeOptions, default=Zero
    loss, label : str, default=None
        With `DerivativeOptions.Loss`, the output to differentiate, and an input without a gradient.
    path_name : str, default=None
        File to save the result to.

    Returns
    -------
    onnx.ModelProto
        Inputs: those of the model, the weights, ``<output>_grad``. Outputs: ``<input>_grad``,
        ``<weight>_grad``, and with `KeepOutputs` the outputs. The operator set is that of the
        model, but at least 17.

    Raises
    ------
    TypeError
        If `options` is not a DerivativeOptions.
    NotImplementedError
        `KeepYieldOp`: YieldOp is specific to onnxruntime-training, where it returns control to
        Python between forward and backward pass; use `onnxgrad.ForwardBackward`.
    """
    if not isinstance(options, DerivativeOptions):
        raise TypeError(f"Options must be from type DerivativeOptions not {type(options)!r}.")
    is_loss = options == DerivativeOptions.Loss
    if options & DerivativeOptions.KeepYieldOp and not is_loss:
        raise NotImplementedError(
            "KeepYieldOp: YieldOp runs only in onnxruntime-training. "
            "Use OrtGradientForwardBackward for separate forward and backward passes."
        )
    outputs = [output.name for output in onx.graph.output]
    if is_loss:
        if loss is None or loss not in outputs:
            raise ValueError(f"loss={loss!r} must be one of the outputs {outputs}.")
        outputs = [loss]
    initializers = get_train_initializer(onx)
    if inputs is None:
        inputs = [
            value.name
            for value in onx.graph.input
            if value.type.tensor_type.elem_type in _FLOATS
            and value.name not in initializers
            and value.name != label
        ]
    names = [*inputs, *(initializers if weights is None else weights)]
    grad = og.gradient(
        onx,
        names,
        outputs,
        fill_grad=is_loss or bool(options & DerivativeOptions.FillGrad),
        keep_outputs=is_loss or bool(options & DerivativeOptions.KeepOutputs),
        target_opset=max(17, get_onnx_opset(onx)),
        inline=True,
    )
    if path_name is not None:
        save_model(grad, path_name)
    return grad
