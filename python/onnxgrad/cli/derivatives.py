"""The commands that write derivatives: ``gradient``, ``vjp``, ``jvp``, ``hvp``, ``hessian``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

import typer

from onnxgrad import _core
from onnxgrad.base.messages import print_stderr
from onnxgrad.base.models import to_core_model
from onnxgrad.cli.console import report_written
from onnxgrad.cli.loss_commands import NO_LOSS, has_head, with_loss
from onnxgrad.cli.outputs import check_output
from onnxgrad.graphs.derivatives import core_derivative
from onnxgrad.graphs.gradients import core_gradient
from onnxgrad.graphs.operators import load_operators

__all__ = [
    "COMMANDS",
    "Model",
    "Operators",
    "StopGradient",
    "command_for",
    "gradient",
    "load_all",
]

COMMANDS = {
    "vjp": "Write vector-Jacobian products: cotangents of the outputs are inputs.",
    "jvp": "Write Jacobian-vector products: tangents of weights and inputs are inputs.",
    "hvp": "Write products of the Hessian of a scalar with vectors.",
    "hessian": "Write the Hessian of a scalar, in blocks.",
}

Model = Annotated[str, typer.Argument(metavar="MODEL", help="The .onnx file.")]
StopGradient = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Value or node that no gradient flows through; may be given several times.",
    ),
]
Operators = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="Own operators: an .onnx file with functions, a .py file or a module that registers "
        "them; may be given several times.",
    ),
]
_Output = Annotated[
    str, typer.Option("-o", "--output", metavar="FILE", help="File to write the result to.")
]
_Wrt = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Weight, input or inner value to differentiate with respect to; may be given several "
        "times.  [default: all trainable weights, else all inputs]",
    ),
]
_Outputs = Annotated[
    list[str] | None,
    typer.Option(
        "--of",
        metavar="NAME",
        help="Output to differentiate; may be given several times.  "
        "[default: 'loss', else all floating outputs]",
    ),
]
_KeepOutputs = Annotated[
    bool, typer.Option("--keep-outputs", help="Keep the differentiated outputs.")
]
_TargetOpset = Annotated[int, typer.Option(help="Operator set of the result, 9 to 26.")]
_Inline = Annotated[bool, typer.Option("--inline", help="Inline model-local functions.")]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="Allow -o to replace MODEL itself.")]


def gradient(
    model: Model,
    output: _Output,
    wrt: _Wrt = None,
    outputs: _Outputs = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="Loss to add and differentiate, as for train, or none.  [default: auto, if MODEL "
            "is a classifier without --of]",
            show_default=False,
        ),
    ] = None,
    class_axis: Annotated[
        int | None, typer.Option(metavar="AXIS", help="As for train.", show_default=False)
    ] = None,
    fill_grad: Annotated[
        bool,
        typer.Option(
            "--fill-grad", help="Use ones as the gradients of the outputs, not new inputs."
        ),
    ] = False,
    keep_outputs: _KeepOutputs = False,
    stop_gradient: StopGradient = None,
    target_opset: _TargetOpset = 26,
    inline: _Inline = False,
    operators: Operators = None,
    overwrite: _Overwrite = False,
) -> None:
    """Write the gradient of a model as a standard ONNX model."""
    load_all(operators)
    check_output(output, "-o", {} if overwrite else {"MODEL": model}, replaced=model)
    core = to_core_model(model)
    if loss is None and not outputs and has_head(core):
        loss = "auto"
    if loss is not None and loss != NO_LOSS:
        core = with_loss(core, loss, class_axis)
    result, warning = core_gradient(
        core,
        wrt,
        outputs,
        fill_grad=fill_grad,
        keep_outputs=keep_outputs,
        stop_gradient=stop_gradient,
        target_opset=target_opset,
        inline=inline,
    )
    _write(result, output, warning)


def load_all(operators: Iterable[str] | None) -> None:
    """Register the operators of ``--operators``."""
    for source in operators or ():
        load_operators(source)


def command_for(kind: str) -> Callable[..., None]:
    """Return the command `kind`, one of `COMMANDS`."""

    def command(
        model: Model,
        output: _Output,
        wrt: _Wrt = None,
        outputs: _Outputs = None,
        keep_outputs: _KeepOutputs = False,
        stop_gradient: StopGradient = None,
        target_opset: _TargetOpset = 26,
        inline: _Inline = False,
        operators: Operators = None,
        overwrite: _Overwrite = False,
    ) -> None:
        load_all(operators)
        check_output(output, "-o", {} if overwrite else {"MODEL": model}, replaced=model)
        result, warning = core_derivative(
            kind,
            to_core_model(model),
            wrt,
            outputs,
            keep_outputs=keep_outputs,
            stop_gradient=stop_gradient,
            target_opset=target_opset,
            inline=inline,
        )
        _write(result, output, warning)

    command.__name__ = kind
    command.__doc__ = COMMANDS[kind]
    return command


def _write(result: _core.Model, output: str, warning: str) -> None:
    result.save(output)
    names = ", ".join(value.name for value in result.outputs)
    report_written(f"wrote {output} with the outputs {names}")
    if warning:
        print_stderr(f"warning: {warning}")
