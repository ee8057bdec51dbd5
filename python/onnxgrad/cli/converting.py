"""The command ``convert``: a model in another form, packed, or with an adapter."""

from __future__ import annotations

from typing import Annotated

import typer

from onnxgrad import _core
from onnxgrad.base.heads import with_head
from onnxgrad.base.models import to_core_model
from onnxgrad.base.quantized_weights import with_base
from onnxgrad.cli import derivatives
from onnxgrad.cli.console import report_written
from onnxgrad.cli.outputs import check_output
from onnxgrad.errors import OptionError

__all__ = ["convert"]


def convert(
    model: derivatives.Model,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="File to write the result to.")
    ],
    open_batch: Annotated[
        bool, typer.Option("--open-batch", help="Let the model take any number of rows.")
    ] = False,
    inference: Annotated[
        bool,
        typer.Option(
            "--inference",
            help="Put BatchNormalization and Dropout into inference mode, which a file exported "
            "for training has in training mode.",
        ),
    ] = False,
    new_head: Annotated[
        int | None,
        typer.Option(
            "--new-head",
            metavar="N",
            help="Replace the last layer first, by one for this number of classes, as train did "
            "for the adapter.",
        ),
    ] = None,
    load_adapter: Annotated[
        str | None,
        typer.Option(
            "--load-adapter", metavar="FOLDER", help="Add the adapter that PEFT or train wrote."
        ),
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Merge the adapters of the model into its weights.")
    ] = False,
    quantize: Annotated[
        str | None,
        typer.Option(
            "--quantize-weights",
            metavar="FORMAT",
            help="Pack the weights of linear layers: int4, int8 or nf4, or FORMAT:block_size=64.",
        ),
    ] = None,
    dequantize: Annotated[
        bool, typer.Option("--dequantize-weights", help="Make packed weights float ones.")
    ] = False,
    operators: derivatives.Operators = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Allow -o to replace MODEL itself.")
    ] = False,
) -> None:
    """Write a model with an open batch dimension, in inference mode, packed, or with an adapter."""
    asked = (open_batch, inference, new_head, load_adapter, merge, quantize, dequantize)
    if not any(one not in (None, False) for one in asked):
        raise OptionError(
            what="convert has nothing to do",
            value="convert",
            hint="Give --open-batch, --inference, --new-head, --load-adapter, --merge, "
            "--quantize-weights or --dequantize-weights.",
        )
    derivatives.load_all(operators)
    check_output(output, "-o", {} if overwrite else {"MODEL": model}, replaced=model)
    result = to_core_model(model)
    if new_head is not None:
        result = with_head(result, new_head)
    if load_adapter:
        result = _core.load_adapter(result, load_adapter, "default")
    if dequantize:
        result = _core.dequantize_weights(result)
    if merge:
        result = _core.merge_adapters(result)
    if quantize:
        result = with_base(result, quantize)
    if inference:
        result = _core.to_inference(result)
    if open_batch:
        result = _core.open_batch(result)
    result.save(output)
    shapes = ", ".join(f"{value.name} {value.type}" for value in result.inputs)
    report_written(f"wrote {output} with the inputs {shapes}")
