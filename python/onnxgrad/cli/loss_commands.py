"""The command ``add-loss``, and the loss that ``gradient`` adds."""

from __future__ import annotations

from typing import Annotated

import typer

from onnxgrad import _core, losses
from onnxgrad.base.messages import print_stderr
from onnxgrad.base.models import to_core_model
from onnxgrad.cli.console import report_written
from onnxgrad.cli.outputs import check_output
from onnxgrad.errors import ModelError
from onnxgrad.losses import penalties, to_core_loss

__all__ = ["NO_LOSS", "add_loss", "has_head", "with_loss"]

NO_LOSS = "none"
_NEWEST = 26  # the operator set of a gradient, whatever that of the model is


def has_head(model: _core.Model) -> bool:
    """Return whether a loss is found for labels: the model is a classifier with its labels."""
    if any(value.name == "loss" for value in model.outputs):
        return False
    try:
        return bool(_core.find_loss(model, to_core_loss("auto", "label", "")).is_classifier)
    except ModelError:
        return False


def with_loss(
    model: _core.Model, loss: str, class_axis: int | None = None, target: str = "label"
) -> _core.Model:
    """Return the model with a loss, in the newest operator set; print the line of the loss."""
    described = to_core_loss(losses.from_text(loss, class_axis), target, "")
    print_stderr(_core.find_loss(model, described).line)
    return _core.add_loss(model, described, "loss", True, _NEWEST)


def add_loss(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The .onnx file.")],
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="File to write the result to.")
    ],
    loss: Annotated[str, typer.Option(help="As for train.")] = "auto",
    class_axis: Annotated[
        int | None, typer.Option(metavar="AXIS", help="As for train.", show_default=False)
    ] = None,
    penalty: Annotated[
        list[str] | None, typer.Option(metavar="PENALTY", help="As for train.")
    ] = None,
    target: Annotated[
        str, typer.Option(metavar="NAME", help="Preferred name of the input for targets.")
    ] = "label",
    sample_weight: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of a further input with a weight for each row."),
    ] = None,
    loss_name: Annotated[
        str, typer.Option(metavar="NAME", help="Preferred name of the new output.")
    ] = "loss",
    keep_outputs: Annotated[
        bool,
        typer.Option("--keep-outputs/--drop-outputs", help="Keep the outputs of the model."),
    ] = True,
    target_opset: Annotated[
        int | None,
        typer.Option(help="Operator set of the result, 9 to 26.  [default: the model's]"),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Allow -o to replace MODEL itself.")
    ] = False,
) -> None:
    """Write a model with a loss as its first output."""
    check_output(output, "-o", {} if overwrite else {"MODEL": model}, replaced=model)
    described = to_core_loss(
        losses.from_text(loss, class_axis),
        target,
        sample_weight or "",
        penalty=[penalties.from_text(text) for text in penalty or ()] or None,
    )
    core = to_core_model(model)
    print_stderr(_core.find_loss(core, described).line)
    result = _core.add_loss(core, described, loss_name, keep_outputs, target_opset or 0)
    result.save(output)
    names = ", ".join(value.name for value in result.inputs)
    report_written(f"wrote {output} with the inputs {names}")
