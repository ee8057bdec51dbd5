"""Derivatives of models other than the gradient, as models of standard operators."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

from onnxgrad import _core
from onnxgrad.base.checks import checked_names, patterns
from onnxgrad.base.models import ModelLike, deliver, kind_if, to_core_model
from onnxgrad.graphs.gradients import native_options, zero_warning
from onnxgrad.session_options import DerivativeOptions
from onnxgrad.session_options.taking import takes_session_options

if TYPE_CHECKING:
    import onnx

__all__ = ["DERIVATIVES", "core_derivative", "hessian", "hvp", "jvp", "vjp"]

DERIVATIVES = {
    "vjp": _core.vjp,
    "jvp": _core.jvp,
    "hvp": _core.hvp,
    "hessian": _core.hessian,
}


@checked_names
@takes_session_options(DerivativeOptions)
def vjp(
    model: ModelLike,
    wrt: str | Iterable[str] | None = None,
    outputs: str | Iterable[str] | None = None,
    **options: Unpack[DerivativeOptions],
) -> onnx.ModelProto:
    """Return vector-Jacobian products of a model as a model of standard ONNX operators.

    With the values x of `wrt`, the outputs y and cotangents u, it computes u^T dy/dx, by reverse
    mode. It is the same model as ``gradient(model, wrt, outputs)``.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    wrt : str or list of str, default=None
        Weights, inputs and inner values x to differentiate with respect to; None means all
        trainable weights, or all floating inputs of a model without weights.
    outputs : str or list of str, default=None
        Outputs y to differentiate; None means ``"loss"`` if there is one, else all floating
        outputs.
    **options : DerivativeOptions

    Returns
    -------
    onnx.ModelProto
        Inputs: those of `model`, each weight of `wrt`, then ``<y>_grad`` of the shape and dtype of
        y for each output. Outputs: ``<x>_grad`` of the shape and dtype of x for each name of `wrt`:
        the sum over the outputs, zeros if none depends on x.

    Warns
    -----
    UserWarning
        If a product is zero for all inputs, as for `gradient`.

    Raises
    ------
    GradientError
        Nodes on a path to `wrt` have no gradient; the message names all of them.
    ModelError
        An invalid model, an unknown name, or an operator set that is out of range or too old.

    Examples
    --------
    >>> import onnxgrad as og
    >>> product = og.vjp(linear_model, "X")
    >>> [value.name for value in product.graph.input if value.name.endswith("_grad")]
    ['Y_grad']
    >>> [value.name for value in product.graph.output]
    ['X_grad']
    """
    return _derivative("vjp", model, wrt, outputs, options)


@checked_names
@takes_session_options(DerivativeOptions)
def jvp(
    model: ModelLike,
    wrt: str | Iterable[str] | None = None,
    outputs: str | Iterable[str] | None = None,
    **options: Unpack[DerivativeOptions],
) -> onnx.ModelProto:
    """Return Jacobian-vector products of a model as a model of standard ONNX operators.

    With the values x of `wrt`, tangents v and the outputs y, it computes (dy/dx) v, as forward mode
    does: how the outputs change if the values move along v. It is derived from `vjp`, which is
    linear in its cotangents: the gradient with respect to these, applied to v, without the parts
    that only the cotangents need.

    Parameters
    ----------
    model, wrt, outputs
        As for `vjp`.
    **options : DerivativeOptions

    Returns
    -------
    onnx.ModelProto
        Inputs: those of `model`, each weight of `wrt`, then ``<x>_tangent`` of the shape and dtype
        of x for each name of `wrt`. Outputs: ``<y>_tangent`` of the shape and dtype of y for each
        output: the sum over `wrt`, zeros if y does not depend on any of them.

    Warns
    -----
    UserWarning
        If a product is zero for all inputs.

    Raises
    ------
    GradientError
        Nodes on a path from `wrt` have no gradient, or none that can be differentiated again; the
        message names all of them.
    ModelError
        An invalid model, an unknown name, or an operator set that is out of range or too old.

    Examples
    --------
    >>> import numpy as np
    >>> import onnxgrad as og
    >>> product = og.InferenceSession(og.jvp(linear_model, "X"))
    >>> X = np.zeros((1, 2), np.float32)
    >>> product.run(None, {"X": X, "X_tangent": np.ones_like(X)})[0].shape
    (1, 1)
    """
    return _derivative("jvp", model, wrt, outputs, options)


@checked_names
@takes_session_options(DerivativeOptions)
def hvp(
    model: ModelLike,
    wrt: str | Iterable[str] | None = None,
    outputs: str | Iterable[str] | None = None,
    **options: Unpack[DerivativeOptions],
) -> onnx.ModelProto:
    """Return products of the Hessian with vectors as a model of standard ONNX operators.

    With the values x of `wrt`, a scalar y and vectors v, it computes (d^2 y/dx^2) v as the gradient
    of <dy/dx, v>, without the matrix, at a few times the cost of the gradient.

    Parameters
    ----------
    model, wrt
        As for `vjp`.
    outputs : str or list of str, default=None
        Outputs with one element each; y is their sum. None means ``"loss"`` if there is one, else
        all floating outputs.
    **options : DerivativeOptions

    Returns
    -------
    onnx.ModelProto
        Inputs: those of `model`, each weight of `wrt`, then ``<x>_tangent`` of the shape and dtype
        of x for each name of `wrt`. Outputs: ``<x>_hvp`` of the shape and dtype of x for each name
        of `wrt`: its rows of the Hessian with respect to all of `wrt`, times the tangents.

    Raises
    ------
    GradientError
        Nodes on a path to `wrt` have no gradient, or none that can be differentiated again; the
        message names all of them.
    ModelError
        An output with more than one element, or as for `vjp`.

    Examples
    --------
    >>> import onnxgrad as og
    >>> with_loss = og.add_loss(linear_model, "squared_error")
    >>> [value.name for value in og.hvp(with_loss, "coef").graph.output]
    ['coef_hvp']
    """
    return _derivative("hvp", model, wrt, outputs, options)


@checked_names
@takes_session_options(DerivativeOptions)
def hessian(
    model: ModelLike,
    wrt: str | Iterable[str] | None = None,
    outputs: str | Iterable[str] | None = None,
    **options: Unpack[DerivativeOptions],
) -> onnx.ModelProto:
    """Return the Hessian of a scalar as a model of standard ONNX operators.

    Parameters
    ----------
    model, wrt, outputs
        As for `hvp`.
    **options : DerivativeOptions

    Returns
    -------
    onnx.ModelProto
        Inputs: those of `model`, then each weight of `wrt`. Outputs: for each pair of names of
        `wrt` a block ``<x>_<z>_hessian`` of the dtype of x, and of the shape of x followed by
        that of z: element [a, b] is the derivative of dy/dx[a] with respect to z[b], or zero if y
        does not depend on both.

    Raises
    ------
    GradientError, ModelError
        As for `hvp`.

    Notes
    -----
    A Scan computes a row of all blocks at a time, by a product as in `hvp` for each element of each
    value of `wrt` (a Loop if the size of the value is unknown). Time grows with the number of
    elements, memory with its square.

    Examples
    --------
    >>> import onnxgrad as og
    >>> with_loss = og.add_loss(linear_model, "squared_error")
    >>> [value.name for value in og.hessian(with_loss, ["coef", "intercept"]).graph.output][:2]
    ['coef_coef_hessian', 'coef_intercept_hessian']
    """
    return _derivative("hessian", model, wrt, outputs, options)


def _derivative(
    kind: str,
    model: ModelLike,
    wrt: str | Iterable[str] | None,
    outputs: str | Iterable[str] | None,
    options: DerivativeOptions,
) -> onnx.ModelProto:
    form = kind_if(options.get("like", False), model, options.get("path"))
    result, warning = core_derivative(kind, to_core_model(model), wrt, outputs, **options)
    if warning:
        warnings.warn(warning, stacklevel=4)
    return deliver(result, options.get("path"), form)


def core_derivative(
    kind: str,
    model: _core.Model,
    wrt: str | Iterable[str] | None = None,
    outputs: str | Iterable[str] | None = None,
    **options: Unpack[DerivativeOptions],
) -> tuple[_core.Model, str]:
    """Implement the function called `kind` for models of the extension; `path` has no effect.

    Returns the derivative and a warning about derivatives that are always zero, or ``""``. There is
    no warning about second derivatives, which are often zero.
    """
    requested = patterns("wrt", wrt)
    of = patterns("outputs", outputs)
    result, zeros = DERIVATIVES[kind](
        model,
        requested,
        of,
        *native_options(options),
    )
    if kind in ("hvp", "hessian"):
        return result, ""
    suffix, named = ("_grad", requested) if kind == "vjp" else ("_tangent", of)
    has_others = len(zeros) < sum(value.name.endswith(suffix) for value in result.outputs)
    return result, zero_warning(
        "derivative" if kind == "jvp" else "gradient", zeros, named, has_others
    )
