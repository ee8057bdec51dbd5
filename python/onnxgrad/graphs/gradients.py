"""Gradients of models as models of standard operators."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Unpack

from onnxgrad import _core
from onnxgrad.base.checks import checked_names, flag, patterns, positive_int
from onnxgrad.base.models import ModelLike, deliver, kind_if, to_core_model
from onnxgrad.data.columns import name_list
from onnxgrad.session_options import DerivativeOptions
from onnxgrad.session_options.taking import takes_session_options, with_defaults

if TYPE_CHECKING:
    import onnx

__all__ = ["core_gradient", "gradient", "native_options", "zero_warning"]


@checked_names
@takes_session_options(DerivativeOptions)
def gradient(
    model: ModelLike,
    wrt: str | Iterable[str] | None = None,
    outputs: str | Iterable[str] | None = None,
    *,
    fill_grad: bool = False,
    **options: Unpack[DerivativeOptions],
) -> onnx.ModelProto:
    """Return the gradient of a model as a model of standard ONNX operators.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    wrt : str or list of str, default=None
        Weights, inputs and inner values (feature maps) to differentiate with respect to; None means
        all trainable weights, or all floating inputs of a model without weights.
    outputs : str or list of str, default=None
        Outputs to differentiate; None means ``"loss"`` if there is one, else all floating outputs.
    fill_grad : bool, default=False
        False: the gradient of each output is a new input ``<output>_grad`` of its shape. True: it
        is ones, so that the result is the gradient of the sum of all elements of the outputs.
    **options : DerivativeOptions

    Returns
    -------
    onnx.ModelProto
        Inputs: those of `model` that are needed, each weight of `wrt` (no longer an initializer),
        then ``<output>_grad``. Outputs: ``<name>_grad`` for each name of `wrt`, with its shape and
        dtype. Inner values of `model` with such a name are renamed; if an input, a weight or an
        output that is kept has it, the new name ends in ``_1``.

    Warns
    -----
    UserWarning
        If a gradient is zero for all inputs, and `wrt` gives its full name or all gradients are
        zero.

    Raises
    ------
    GradientError
        Nodes on a path to `wrt` have no gradient; the message names all of them.
    ModelError
        An invalid model, an unknown name, or an operator set that is out of range or too old.
    CheckpointError
        `path` cannot be written.

    Examples
    --------
    >>> import onnxgrad as og
    >>> grad = og.gradient(linear_model, fill_grad=True)
    >>> [output.name for output in grad.graph.output]
    ['coef_grad', 'intercept_grad']
    """
    kind = kind_if(options.get("like", False), model, options.get("path"))
    result, warning = core_gradient(
        to_core_model(model),
        wrt,
        outputs,
        fill_grad=fill_grad,
        **options,
    )
    if warning:
        warnings.warn(warning, stacklevel=3)
    return deliver(result, options.get("path"), kind)


def core_gradient(
    model: _core.Model,
    wrt: str | Iterable[str] | None = None,
    outputs: str | Iterable[str] | None = None,
    *,
    fill_grad: bool = False,
    **options: Unpack[DerivativeOptions],
) -> tuple[_core.Model, str]:
    """Implement `gradient` for models of the extension; `path` has no effect.

    Returns the gradient and a warning about gradients that are always zero, or ``""``.
    """
    requested = patterns("wrt", wrt)
    result, zeros = _core.gradient(
        model,
        requested,
        patterns("outputs", outputs),
        flag("fill_grad", fill_grad),
        *native_options(options),
    )
    return result, _zero_gradient_warning(zeros, requested, result)


def native_options(options: DerivativeOptions) -> tuple[bool, list[str], int, bool]:
    """Convert options for the extension, but for the form of the result."""
    given = with_defaults(DerivativeOptions, options)
    return (
        flag("keep_outputs", given["keep_outputs"]),
        patterns("stop_gradient", given["stop_gradient"]),
        positive_int("target_opset", given["target_opset"]),
        flag("inline", given["inline"]),
    )


def _zero_gradient_warning(
    zeros: Sequence[str], requested: Sequence[str], result: _core.Model
) -> str:
    has_others = len(zeros) < sum(value.name.endswith("_grad") for value in result.outputs)
    return zero_warning("gradient", zeros, requested, has_others)


def zero_warning(
    what: str, zeros: Sequence[str], requested: Sequence[str], has_others: bool
) -> str:
    """Return the warning about derivatives that are zero, or ``""``.

    If there are others, it names those requested by their full name: of the many weights that a
    pattern matches, some may well belong to another output.
    """
    names = [name for name in zeros if name in requested] if has_others else zeros
    if not names:
        return ""
    return (
        f"the {what} of {name_list(names)} is zero for all inputs: the outputs do not depend on "
        "it, or only through piecewise constant operators"
    )
