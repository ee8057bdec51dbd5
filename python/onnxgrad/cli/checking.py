"""The command ``onnxgrad check``: gradients of a model beside differences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from onnxgrad.cli.console import out
from onnxgrad.cli.derivatives import Model, Operators, load_all
from onnxgrad.cli.model_inputs import read_inputs
from onnxgrad.data.columns import name_list
from onnxgrad.errors import GradientError, OptionError
from onnxgrad.gradient_checks import GradientCheck, check_gradients
from onnxgrad.sessions import InferenceSession

__all__ = ["check"]

_ROWS = 16  # of a file of rows that are used


def check(
    model: Model,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Inputs: .npz with an array for each, .npy, or the first 16 rows of a .csv, .tsv "
            "or .parquet file.  [default: drawn]",
        ),
    ] = None,
    wrt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Input or weight to check; may be given several times.  [default: all]",
        ),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            "--of",
            metavar="NAME",
            help="Output to differentiate; may be given several times.  [default: all]",
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(metavar="N", help="Elements of each input that are moved one by one.")
    ] = 12,
    seed: Annotated[int, typer.Option(metavar="N", help="Of what is drawn and chosen.")] = 0,
    tolerance: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Largest error that is right.  [default: 1e-6]", show_default=False
        ),
    ] = None,
    dims: Annotated[
        list[str] | None,
        typer.Option("--dim", metavar="NAME=SIZE", help="Size of a named dimension.  [default: 3]"),
    ] = None,
    operators: Operators = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare the gradients of a model with differences; status 3 if one is wrong."""
    load_all(operators)
    found = check_gradients(
        model,
        _feeds(model, data),
        wrt,
        outputs,
        samples=samples,
        seed=seed,
        tolerance=tolerance,
        dims=_sizes(dims or ()),
    )
    out(json.dumps(found.to_dict(), indent=2) if as_json else str(found))
    if not found.ok:
        wrong = [one for one in found.inputs if one.problem]
        raise GradientError(
            what=f"the gradient by '{wrong[0].name}' is wrong: {wrong[0].problem}",
            value=wrong[0].name,
            hint=_hint(found),
        )


def _hint(found: GradientCheck) -> str:
    if found.straight_through:
        return (
            f"The gradient of {name_list(found.straight_through)} passes over rounding, where "
            "differences see steps. Check the model that has not been quantized."
        )
    return "Report a bug if none of its operators has a gradient of your own."


def _feeds(model: str, data: str | None) -> dict[str, Any] | None:
    if data is None:
        return None
    arrays = read_inputs(InferenceSession(model), data, allow_nan=True)
    if Path(data).suffix.lower() in (".npz", ".npy"):
        return arrays
    return {name: array[:_ROWS] for name, array in arrays.items()}


def _sizes(texts: list[str] | tuple[()]) -> dict[str, int]:
    sizes = {}
    for text in texts:
        name, separator, size = text.rpartition("=")
        if not separator or not size.isdigit():
            raise OptionError(
                what=f"--dim: '{text}' is not NAME=SIZE", value="--dim", hint="Write --dim N=4."
            )
        sizes[name] = int(size)
    return sizes
