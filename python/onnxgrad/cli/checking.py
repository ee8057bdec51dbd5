"""The command ``onnxgrad check``: gradients of a model beside differences."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from onnxgrad import losses
from onnxgrad.base.models import ModelLike
from onnxgrad.cli.console import out
from onnxgrad.cli.derivatives import Model, Operators, load_all
from onnxgrad.cli.model_inputs import in_type_of, read_inputs
from onnxgrad.cli.rows import open_rows
from onnxgrad.data.columns import feeds_of
from onnxgrad.data.labels import native_targets
from onnxgrad.errors import DataError, GradientError, OptionError
from onnxgrad.gradient_checks.check import check_with_source
from onnxgrad.graphs import add_loss
from onnxgrad.sessions import InferenceSession, TrainingSession
from onnxgrad.trainer import Trainer

if TYPE_CHECKING:
    import onnx

__all__ = ["check"]

_ROWS = 16  # rows of a file that are used


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
    loss: Annotated[
        str | None,
        typer.Option(
            help="Check the gradients of this loss on top of the model, as for train.  "
            "[default: none]",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        str, typer.Option(metavar="NAME", help="With --loss and --data: the column of targets.")
    ] = "label",
    ignored: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Column to leave out; may be given several times."),
    ] = None,
    wrt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Input or weight (or alias of one) to check; may be given several times.  "
            "[default: all]",
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
    device: Annotated[str | None, typer.Option(help="As for train.", show_default=False)] = None,
    operators: Operators = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare the gradients of a model with differences; status 3 if one is wrong."""
    load_all(operators)
    checked: ModelLike = model
    if loss is not None:
        described = losses.from_text(loss)
        checked = add_loss(model, described, target=target)
        outputs = outputs or ["loss"]
        feeds = (
            None if data is None else _labelled(model, described, checked, data, target, ignored)
        )
    else:
        feeds = _feeds(model, data, ignored)
    found = check_with_source(
        checked,
        feeds,
        wrt,
        outputs,
        samples=samples,
        seed=seed,
        tolerance=tolerance,
        dims=_sizes(dims or ()),
        source="data=",
        device=device,
    )
    out(json.dumps(found.to_dict(), indent=2) if as_json else str(found))
    if not found.ok:
        wrong = [one for one in found.inputs if one.problem]
        raise GradientError(
            what=f"the gradient by '{wrong[0].name}' is wrong: {wrong[0].problem}",
            value=wrong[0].name,
            hint="Report a bug if none of its operators has a gradient of your own.",
        )


def _feeds(model: str, data: str | None, ignored: list[str] | None) -> dict[str, Any] | None:
    if data is None:
        return None
    arrays = read_inputs(InferenceSession(model), data, ignored or (), allow_nan=True)
    if Path(data).suffix.lower() in (".npz", ".npy"):
        return arrays
    return {name: array[:_ROWS] for name, array in arrays.items()}


def _labelled(
    model: str,
    loss: losses.Loss,
    with_loss: onnx.ModelProto,
    data: str,
    target: str,
    ignored: list[str] | None,
) -> dict[str, Any]:
    """Return the first rows of a file, with targets, for a model with a loss."""
    trainer = Trainer(TrainingSession(model, loss, evaluation_only=True))
    X, y, _ = open_rows(trainer, data, target, ignored=ignored, stream=False)
    if y is None:
        raise OptionError(
            what=f"--data: '{data}' has no targets, or stands for several files",
            value="--data",
            hint="Name one .csv, .tsv, .jsonl, .parquet or .npz file.",
        )
    core = trainer.session._core
    named = feeds_of(X)
    targets = native_targets(y)
    trainer._labels.learn(core, targets, feeds=named)
    y = trainer._labels.native(core, targets[""], feeds=named)
    y = _class_numbers(y, trainer.session.classes)
    names = [value.name for value in trainer.session.get_inputs()]
    rows = dict(X) if isinstance(X, Mapping) else dict.fromkeys(names, X)
    feeds = {}
    for value in InferenceSession(with_loss).get_inputs():
        array = np.asarray(rows.get(value.name, y))[:_ROWS]
        if array.ndim + 1 == len(value.shape):
            array = array[..., None]
        elif array.ndim == len(value.shape) + 1 and array.shape[-1] == 1:
            array = array[..., 0]
        feeds[value.name] = in_type_of(value, np.ascontiguousarray(array))
    return feeds


def _class_numbers(y: Any, classes: Any) -> Any:
    """Return labels as numbers of the classes that a model lists."""
    labels = np.array(y[0]).reshape(y[1]) if isinstance(y, tuple) else np.asarray(y)
    if classes is None:
        return labels
    known = {label: number for number, label in enumerate(classes.tolist())}
    for label in labels.ravel().tolist():
        if label not in known:
            raise DataError(
                what=f"label {label!r} is not one of the classes",
                value="--target",
                detail=f"Classes: {', '.join(map(str, list(known)[:8]))}.",
                hint="Remove such rows, or name another column.",
            )
    numbers = [known[label] for label in labels.ravel().tolist()]
    return np.array(numbers, np.int64).reshape(labels.shape)


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
