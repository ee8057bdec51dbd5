"""Base classes of losses and penalties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from onnxgrad import _core
from onnxgrad.base.checks import choice, plain_text
from onnxgrad.base.described import Described
from onnxgrad.base.description import Description
from onnxgrad.errors import OptionError


class PenaltyBase(Described):
    """Base class of penalties."""

    _family = "penalty"


Reduction: TypeAlias = Literal["mean", "sum", "none"]
REDUCTIONS = ("mean", "sum", "none")


class Loss(Described):
    """Base class of losses.

    Parameters
    ----------
    output : str, default=""
        Output or inner value of the model that the loss is applied to. If it is empty, the scores
        are found by walking back from the outputs.
    reduction : {"mean", "sum", "none"}, default="mean"
        How to combine the losses of the rows. ``"none"`` returns the loss of each row, times its
        weight; training then follows the gradient of their sum.
    """

    output: str
    reduction: Reduction

    _family = "loss"

    def __init__(self, *, output: str = "", reduction: Reduction = "mean") -> None:
        self._set(output, reduction)

    def _set(self, output: str, reduction: Reduction, **options: Any) -> None:
        """Set the options that all losses share, and further ones."""
        choice("reduction", reduction, REDUCTIONS)
        plain_text("output", output, "logits")
        Description.__init__(self, output=output, reduction=reduction, **options)

    def _take(self, arguments: Mapping[str, Any]) -> None:
        self._set(arguments["output"], arguments["reduction"])
        super()._take(arguments)

    def _native(self) -> Any:
        """Return the loss function for the extension, without the options of its `Loss`."""
        if not hasattr(self, "_type"):
            raise OptionError(
                what="loss: the base class 'Loss' has no formula",
                value="loss",
                hint="Use one of its subclasses in onnxgrad.losses.",
            )
        shared = ("output", "reduction", "axis", "partners", "views")
        options = {name: value for name, value in vars(self).items() if name not in shared}
        return _core.make_loss_function(self._type, options)
