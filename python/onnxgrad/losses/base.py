"""What all losses have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from onnxgrad import _core
from onnxgrad.base.checks import unknown_name
from onnxgrad.base.described import Described
from onnxgrad.base.description import Description
from onnxgrad.errors import OptionError


class PenaltyBase(Described):
    """What all penalties have in common."""

    _family = "penalty"


Reduction: TypeAlias = Literal["mean", "sum", "none"]
REDUCTIONS = ("mean", "sum", "none")


class Loss(Described):
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

    _family = "loss"

    def __init__(self, *, output: str = "", reduction: Reduction = "mean") -> None:
        self._set(output, reduction)

    def _set(self, output: str, reduction: Reduction, **options: Any) -> None:
        """Take the options that all losses have, and those of this one."""
        if reduction not in REDUCTIONS:
            raise unknown_name("reduction", reduction, REDUCTIONS)
        Description.__init__(self, output=output, reduction=reduction, **options)

    def _take(self, arguments: Mapping[str, Any]) -> None:
        self._set(arguments["output"], arguments["reduction"])
        super()._take(arguments)

    def _native(self) -> Any:
        """Return the function for the extension; where it is put is in its `Loss`."""
        if not hasattr(self, "_type"):
            raise OptionError(
                what="loss: 'Loss' itself has no formula",
                value="loss",
                hint="Take one of its subclasses in onnxgrad.losses.",
            )
        of_place = ("output", "reduction", "axis")
        options = {name: value for name, value in vars(self).items() if name not in of_place}
        return _core.make_loss_function(self._type, options)
