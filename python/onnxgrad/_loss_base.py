"""What all losses have."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from onnxgrad import _core
from onnxgrad.base.checks import unknown_name
from onnxgrad.base.description import Description
from onnxgrad.errors import OptionError

NativeFunction: TypeAlias = (
    "_core.AutoLoss | _core.SquaredError | _core.AbsoluteError | _core.Huber | _core.SmoothL1"
    " | _core.Elastic | _core.Poisson | _core.Cosine | _core.SoftmaxCrossEntropy"
    " | _core.BinaryCrossEntropy | _core.LogLoss | _core.NegativeLogLikelihood"
    " | _core.KlDivergence | _core.OneVsRest | _core.UserLoss | _core.OutputLoss"
)
Reduction: TypeAlias = Literal["mean", "sum", "none"]
REDUCTIONS = ("mean", "sum", "none")


class Loss(Description):
    """Base of all losses.

    Parameters
    ----------
    output : str, default=""
        Output or inner value of the model that the loss is put on. Empty: it is found by walking
        back from the outputs to the scores.
    reduction : {"mean", "sum", "none"}, default="mean"
        How the losses of the rows are put together. ``"none"`` gives each row's loss, times its
        weight; training then follows the gradient of their sum.
    """

    output: str
    reduction: Reduction

    def __init__(self, *, output: str = "", reduction: Reduction = "mean") -> None:
        self._set(output, reduction)

    def _set(self, output: str, reduction: Reduction, **options: Any) -> None:
        """Take the options that all losses have, and those of this one."""
        if reduction not in REDUCTIONS:
            raise unknown_name("reduction", reduction, REDUCTIONS)
        Description.__init__(self, output=output, reduction=reduction, **options)

    def _function(self) -> NativeFunction:
        raise OptionError(
            what="loss: 'Loss' itself has no formula",
            value="loss",
            hint="Take one of its subclasses in onnxgrad.losses.",
        )
