"""User-defined losses: models and traced functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from onnxgrad import _core
from onnxgrad.base.checks import choice, flag
from onnxgrad.base.models import to_core_model
from onnxgrad.errors import OptionError
from onnxgrad.losses.base import Loss, Reduction

if TYPE_CHECKING:
    from onnxgrad.base.models import ModelLike


class User(Loss):
    """A user-defined loss, given as a model.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto or onnxscript function
        Its inputs are scores, target and optionally sample weights [N], in this order. Its output
        is the loss of each row, [N] or [N, 1], or the mean loss of the batch, [] or [1]. Targets
        are class numbers if the second input is int64 [N].
    takes_scores : bool, default=False
        Whether to apply it to the scores before Softmax or Sigmoid, not to the probabilities.

    See Also
    --------
    traced : a loss from a Python function.
    """

    model: bytes
    takes_scores: bool

    def __init__(
        self,
        model: ModelLike | Any,
        *,
        takes_scores: bool = False,
        output: str = "",
        reduction: Reduction = "mean",
    ) -> None:
        core = to_core_model(model)
        self._set(
            output,
            reduction,
            model=core.to_bytes(),
            takes_scores=flag("takes_scores", takes_scores),
        )

    def _native(self) -> Any:
        return _core.UserLoss(to_core_model(self.model), self.takes_scores)

    def __repr__(self) -> str:
        return f"User(<model of {len(self.model)} bytes>, takes_scores={self.takes_scores})"


class Output(Loss):
    """The loss that the model itself computes as one of its outputs.

    Parameters
    ----------
    output : str
        The output (or an inner value): the loss of each row, [N] or [N, K], or of the batch, a
        scalar.
    target : str, default="label"
        Input of the model for the targets, `y` of `Trainer.fit`. If it is empty, or the model has
        no input ``label``, there are no targets, and X has all inputs.
    sample_weight : str, default=""
        Input of the model for the weights of rows, `sample_weight` of `Trainer.fit`; all 1 if none
        are given.
    reduction : {"mean", "sum", "none"}, default="mean"
        Whether a scalar output is the mean or the sum over the rows of the batch; for an output
        with the loss of each row, how to combine them.

    Notes
    -----
    Penalties can be added. There are no metrics, since the scores are unknown; `predict` returns
    the outputs that do not depend on target or weights.

    Examples
    --------
    >>> import onnxgrad as og
    >>> with_loss = og.add_loss(linear_model, "squared_error")
    >>> og.Trainer(with_loss, og.losses.Output("loss")).session.loss_line
    "loss: the model's own, 'loss'"
    """

    target: str
    sample_weight: str

    def __init__(
        self,
        output: str,
        *,
        target: str = "label",
        sample_weight: str = "",
        reduction: Reduction = "mean",
    ) -> None:
        self._set(
            str(output),
            reduction,
            target=str(target),
            sample_weight=str(sample_weight),
        )

    def _native(self) -> Any:
        return _core.make_loss_function("OutputLoss", {})


def traced(
    function: Any,
    *,
    dtype: Literal["float32", "float64"] = "float32",
    columns: int | None = None,
    classes: bool = False,
    weights: bool = False,
    takes_scores: bool = False,
    output: str = "",
    reduction: Reduction = "mean",
) -> User:
    """Return the loss that a Python function computes, traced with ndonnx.

    Parameters
    ----------
    function : callable
        Called once, as ``function(scores, target)``, with ndonnx arrays (the Python array API);
        returns the loss of each row [N] or [N, 1], or of the batch [].
    dtype : {"float32", "float64"}, default="float32"
        Dtype of the scores.
    columns : int, default=None
        Number of columns of the scores [N, columns]; None means any.
    classes : bool, default=False
        Whether targets are class numbers int64 [N], not values like the scores.
    weights : bool, default=False
        Whether to pass sample weights [N] as third argument.
    takes_scores, output, reduction
        As for `User`.

    Raises
    ------
    OptionError
        ndonnx is not installed.
    """
    try:
        import ndonnx as ndx
    except ImportError as error:
        raise OptionError(
            what="traced: the package ndonnx is not installed",
            value="function",
            hint="Install ndonnx, or give a model to losses.User.",
        ) from error
    kind = getattr(ndx, choice("dtype", dtype, ["float32", "float64"]))
    shape = ("N", "K" if columns is None else columns)
    inputs = {
        "scores": ndx.argument(shape=shape, dtype=kind),
        "target": ndx.argument(shape=("N",), dtype=ndx.int64)
        if classes
        else ndx.argument(shape=shape, dtype=kind),
    }
    if weights:
        inputs["weights"] = ndx.argument(shape=("N",), dtype=kind)
    model = ndx.build(inputs, {"loss": function(*inputs.values())})
    return User(model, takes_scores=takes_scores, output=output, reduction=reduction)
