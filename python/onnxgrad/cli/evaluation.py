"""The commands ``onnxgrad evaluate`` and ``onnxgrad predict``."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import numpy as np

from onnxgrad import losses
from onnxgrad.base.messages import print_stderr
from onnxgrad.cli.console import out, report_written, standard_output
from onnxgrad.cli.rows import open_train_data
from onnxgrad.data.columns import Feeds, name_list
from onnxgrad.data.tables import Table, read_npy, read_table
from onnxgrad.errors import DataError, OptionError
from onnxgrad.files import write_file
from onnxgrad.sessions import InferenceSession
from onnxgrad.trainer import Trainer

__all__ = ["evaluate", "predict"]

_BATCH_ROWS = 4096  # bounds the memory for intermediate values


def evaluate(
    model: str,
    data: str,
    target: str,
    sample_weight: str | None,
    ignored: Sequence[str] | None,
    loss: str,
    class_axis: int | None,
    metrics: Sequence[str] | None,
    stream: bool | None,
    delimiter: str | None,
    as_json: bool,
) -> None:
    """Print loss, accuracy and metrics of a model on a file of rows."""
    trainer = Trainer(model, losses.from_text(loss, class_axis))
    options = SimpleNamespace(
        data=data,
        target=target,
        sample_weight=sample_weight,
        ignored=ignored,
        stream=stream,
        validation=None,
        class_weight=None,
        delimiter=delimiter,
    )
    rows = open_train_data(trainer, options).rows
    if rows[1] is not None:  # string labels of a model that lists no classes: numbered as by `fit`
        trainer._labels.learn(trainer.session._core, rows[1])
    names = [name.strip() for text in metrics or () for name in text.split(",")]
    found = trainer.evaluate(*rows, metrics=names)
    numbers = {"loss": found.loss, "accuracy": found.accuracy, "rows": found.rows, **found.metrics}
    numbers = {name: value for name, value in numbers.items() if value is not None}
    if as_json:
        out(json.dumps({**numbers, "loss_line": trainer.session.loss_line}, indent=2))
        return
    print_stderr(trainer.session.loss_line)
    for name, value in numbers.items():
        out(f"{name:<12}{value if isinstance(value, int) else format(value, '.6g')}")


def predict(
    model: str,
    data: str,
    output: str | None,
    outputs: Sequence[str] | None,
    ignored: Sequence[str] | None,
    delimiter: str | None,
) -> None:
    """Write the outputs of a model for a file of rows to `output`, or as CSV to standard output.

    Raises
    ------
    OptionError
        An unknown suffix, or several outputs for an ``.npy`` file.
    """
    session = InferenceSession(model)
    feeds = _feeds(session, data, list(ignored or ()), delimiter)
    names = list(outputs or [value.name for value in session.get_outputs()])
    suffix = Path(output).suffix.lower() if output is not None else ".csv"
    if suffix not in (".csv", ".npz", ".npy") or (suffix == ".npy" and len(names) != 1):
        raise OptionError(
            what=f"-o {output}: expected .csv, .npz, or .npy for one output",
            value="-o",
            hint="Choose the output with --of.",
        )
    found = _run(session, names, feeds)
    if output is None:
        with standard_output() as stream:
            _write_csv(found, stream)
        return
    _write(found, output, suffix)
    number = len(next(iter(found.values())))
    report_written(f"wrote {output} with {', '.join(names)} of {number} rows")


def _feeds(
    session: InferenceSession, data: str, ignored: list[str], delimiter: str | None
) -> dict[str, Any]:
    inputs = session.get_inputs()
    if Path(data).suffix.lower() == ".npy":
        return {inputs[0].name: read_npy(data)}
    table = read_table(data, delimiter)
    for name in ignored:
        table.take(name, "--ignored")
    feeds = table.inputs([value.name for value in inputs], ignored)
    names = dict(feeds.plan.names())
    for value in inputs:
        found, wanted = feeds[value.name].shape, value.shape
        if len(found) == len(wanted) == 2 and isinstance(wanted[1], int) and found[1] != wanted[1]:
            raise DataError(
                what=f"{data}: {found[1]} columns for input '{value.name}', expected {wanted[1]}",
                file=data,
                value=value.name,
                detail=f"Columns: {name_list(names.get(value.name, list(table.columns)), 20)}.",
                hint="Leave out what is not an input with ignored=, each column by its name."
                if found[1] > wanted[1]
                else "Give the columns that the model was trained on, in the same order.",
            )
    table.check_finite(feeds)
    if feeds.plan.stacked_input is not None:  # columns that were not matched by name
        columns = name_list(feeds.plan.stacked, 20)
        print_stderr(f"input '{feeds.plan.stacked_input}' reads the columns {columns}")
    dtypes = {"tensor(float)": "float32", "tensor(double)": "float64"}
    return {
        value.name: _converted(feeds[value.name], dtypes.get(value.type), value.name, table, feeds)
        for value in inputs
    }


def _converted(
    array: np.ndarray[Any, Any], dtype: str | None, name: str, table: Table, feeds: Feeds
) -> np.ndarray[Any, Any]:
    """Convert an array to the type of an input; refuse strings that are not numbers."""
    if dtype is not None and array.dtype.kind in "UO":
        columns = dict(feeds.plan.names()).get(name, [])
        for i, column in enumerate(columns):
            table.check_numbers(column, array[:, i])
    return array if dtype is None else array.astype(dtype)


def _run(
    session: InferenceSession, names: list[str], feeds: Mapping[str, Any]
) -> dict[str, np.ndarray[Any, Any]]:
    number = len(next(iter(feeds.values())))
    if number == 0:
        raise DataError(
            what="there are no rows", value="--data", hint="Give a file with at least one row."
        )
    parts = []
    for start in range(0, number, _BATCH_ROWS):
        stop = start + _BATCH_ROWS
        batch = {name: np.ascontiguousarray(rows[start:stop]) for name, rows in feeds.items()}
        parts.append(session.run(names, batch))
    columns = zip(*parts, strict=True)
    return {name: np.concatenate(found) for name, found in zip(names, columns, strict=True)}


def _write(found: Mapping[str, np.ndarray[Any, Any]], output: str, suffix: str) -> None:
    import io

    if suffix == ".csv":
        text = io.StringIO(newline="")
        _write_csv(found, text)
        write_file(output, text.getvalue())
        return
    plain = {
        name: array.astype(np.str_) if array.dtype.kind == "O" else array
        for name, array in found.items()
    }
    binary = io.BytesIO()
    if suffix == ".npy":
        np.save(binary, next(iter(plain.values())), allow_pickle=False)
    else:
        np.savez(binary, **plain)  # type: ignore[arg-type]
    write_file(output, binary.getvalue())


def _write_csv(found: Mapping[str, np.ndarray[Any, Any]], stream: TextIO) -> None:
    """Write a line for each row, with a column for each element of an output's row."""
    columns: dict[str, np.ndarray[Any, Any]] = {}
    for name, array in found.items():
        rows = array.reshape(len(array), -1)
        for i in range(rows.shape[1]):
            columns[name if rows.shape[1] == 1 else f"{name}_{i}"] = rows[:, i]
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
