"""Losses, as plain descriptions.

N is the number of rows of a batch, C the number of classes, s the scores that the loss is put on,
t the target. Each loss is written into the model as standard ONNX operators. The formulas give the
loss of one row; the loss of a batch is the mean over its rows (weighted with the sample weights, if
there are any), or their sum with ``reduction="sum"``.

Wherever a loss is asked for, its name does too: ``"squared_error"`` (``"mse"``),
``"softmax_cross_entropy"`` (``"cross_entropy"``), ``"binary_cross_entropy"``,
``"negative_log_likelihood"`` (``"nll"``), ``"one_vs_rest_log"``, ``"hinge"``, ``"modified_huber"``
and ``"auto"``.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from onnxgrad import _core
from onnxgrad._checks import real_number, unknown_name
from onnxgrad._description import Description
from onnxgrad.errors import OptionError

__all__ = [
    "Auto",
    "BinaryCrossEntropy",
    "Loss",
    "LossLike",
    "NegativeLogLikelihood",
    "OneVsRest",
    "SoftmaxCrossEntropy",
    "SquaredError",
    "from_name",
    "names",
]

NativeFunction: TypeAlias = (
    "_core.AutoLoss | _core.SquaredError | _core.SoftmaxCrossEntropy | _core.BinaryCrossEntropy"
    " | _core.NegativeLogLikelihood | _core.OneVsRest"
)


class Loss(Description):
    """Base of all losses.

    Parameters
    ----------
    output : str, default=""
        Output or inner value of the model that the loss is put on. Empty: it is found by walking
        back from the outputs to the scores.
    reduction : {"mean", "sum"}, default="mean"
        How the losses of the rows are put together.
    """

    output: str
    reduction: Literal["mean", "sum"]

    def __init__(
        self,
        *,
        output: str = "",
        reduction: Literal["mean", "sum"] = "mean",
        **options: Any,
    ) -> None:
        if reduction not in ("mean", "sum"):
            raise unknown_name("reduction", reduction, ["mean", "sum"])
        super().__init__(output=output, reduction=reduction, **options)

    def _function(self) -> NativeFunction:
        raise OptionError(
            what="loss: 'Loss' itself has no formula",
            value="loss",
            mend="Take one of its subclasses in onnxgrad.losses.",
        )


class Auto(Loss):
    """Chosen by the head of the model.

    Squared error for a regression output; softmax, binary or one-vs-rest cross-entropy for the
    scores behind Softmax or Sigmoid; the negative log of the probability where there are no scores.
    """

    def _function(self) -> NativeFunction:
        return _core.AutoLoss()


class SquaredError(Loss):
    """sum_j (s_j - t_j)^2 over the outputs of a row, averaged over j.

    s, t: [N, K] or [N], floating.
    """

    def _function(self) -> NativeFunction:
        return _core.SquaredError()


class SoftmaxCrossEntropy(Loss):
    """-log softmax(s)[t].

    s: [N, C] (or [N, C, d1, ...]), before any Softmax; t: [N] class numbers.
    """

    def _function(self) -> NativeFunction:
        return _core.SoftmaxCrossEntropy()


class BinaryCrossEntropy(Loss):
    """log(1 + exp(s)) - t*s with t in {0, 1}, averaged over the columns of a row.

    s: [N] or [N, 1] with class numbers t: [N]; or s: [N, K] before any Sigmoid with t: [N, K] of 0
    and 1.
    """

    def _function(self) -> NativeFunction:
        return _core.BinaryCrossEntropy()


class NegativeLogLikelihood(Loss):
    """-log(max(p[t], min_probability)) on probabilities.

    p: [N, C]; t: [N] class numbers.

    Parameters
    ----------
    min_probability : float, default=0
        0 is the smallest normal number of the type of p.
    """

    min_probability: float

    def __init__(
        self,
        *,
        min_probability: float = 0.0,
        output: str = "",
        reduction: Literal["mean", "sum"] = "mean",
    ) -> None:
        real_number("min_probability", min_probability, 0.0, 1.0)
        super().__init__(output=output, reduction=reduction, min_probability=min_probability)

    def _function(self) -> NativeFunction:
        return _core.NegativeLogLikelihood(self.min_probability)


class OneVsRest(Loss):
    """One problem "this class against the rest" per column, as scikit-learn's SGDClassifier.

    With y = +1 for the row's class and -1 otherwise, z = y*s, summed over the columns:
    ``"log"`` is log(1 + exp(-z)), ``"hinge"`` is max(0, 1 - z), and ``"modified_huber"`` is
    max(0, 1 - z)^2 for z >= -1, else -4z.

    s: [N, C] raw scores, or [N, 1] for two classes; t: [N] class numbers.
    """

    kind: Literal["log", "hinge", "modified_huber"]

    def __init__(
        self,
        *,
        kind: Literal["log", "hinge", "modified_huber"] = "log",
        output: str = "",
        reduction: Literal["mean", "sum"] = "mean",
    ) -> None:
        if kind not in ("log", "hinge", "modified_huber"):
            raise unknown_name("kind", kind, ["log", "hinge", "modified_huber"])
        super().__init__(output=output, reduction=reduction, kind=kind)

    def _function(self) -> NativeFunction:
        return _core.OneVsRest(getattr(_core.OneVsRest.Kind, self.kind))


LossLike: TypeAlias = "Loss | str"
"""A loss or its name."""

_BY_NAME: dict[str, Loss] = {
    "auto": Auto(),
    "squared_error": SquaredError(),
    "softmax_cross_entropy": SoftmaxCrossEntropy(),
    "binary_cross_entropy": BinaryCrossEntropy(),
    "negative_log_likelihood": NegativeLogLikelihood(),
    "one_vs_rest_log": OneVsRest(kind="log"),
    "hinge": OneVsRest(kind="hinge"),
    "modified_huber": OneVsRest(kind="modified_huber"),
}
_SHORT = {
    "mse": "squared_error",
    "cross_entropy": "softmax_cross_entropy",
    "nll": "negative_log_likelihood",
}


def names() -> list[str]:
    """Return the names of all losses, sorted."""
    return sorted(_BY_NAME)


def from_name(name: str) -> Loss:
    """Return the loss of that name.

    Raises
    ------
    OptionError
        If there is none; names the nearest.

    Examples
    --------
    >>> from_name("hinge")
    OneVsRest(output='', reduction='mean', kind='hinge')
    """
    loss = _BY_NAME.get(_SHORT.get(name, name))
    if loss is None:
        raise unknown_name("loss", name, names())
    return loss


def to_core_loss(
    loss: LossLike,
    target: str = "label",
    sample_weight: str = "",
    chosen: NativeFunction | None = None,
) -> _core.Loss:
    """Return the extension's description of a loss, with the function `chosen` if it is given."""
    described: Any = from_name(loss) if isinstance(loss, str) else loss
    if not isinstance(described, Loss):
        raise OptionError(
            what=f"loss: a {type(loss).__name__} is not a loss",
            value="loss",
            mend=f"Give an object of onnxgrad.losses or one of {', '.join(names())}.",
        )
    return _core.Loss(
        described._function() if chosen is None else chosen,
        described.output,
        target,
        sample_weight,
        getattr(_core.Reduction, described.reduction),
    )
