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
from onnxgrad.cli.model_inputs import read_inputs
from onnxgrad.cli.rows import open_train_data
from onnxgrad.errors import DataError, OptionError
from onnxgrad.files import write_file
from onnxgrad.sessions import InferenceSession, TrainingSession
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
    allow_nan: bool,
    as_json: bool,
) -> None:
    """Print loss, accuracy and metrics of a model on a file of rows."""
    chosen = losses.from_text(loss, class_axis)
    trainer = Trainer(TrainingSession(model, chosen, evaluation_only=True))
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
    found = trainer.evaluate(*rows, metrics=names, allow_nan=allow_nan)
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
    allow_nan: bool,
) -> None:
    """Write the outputs of a model for a file of rows to `output`, or as CSV to standard output.

    Raises
    ------
    OptionError
        An unknown suffix, or several outputs for an ``.npy`` file.
    """
    session = InferenceSession(model)
    feeds = read_inputs(session, data, ignored or (), delimiter, allow_nan=allow_nan)
    names = list(outputs or [value.name for value in session.get_outputs()])
    suffix = Path(output).suffix.lower() if output is not None else ".csv"
    if suffix not in (".csv", ".npz", ".npy") or (suffix == ".npy" and len(names) != 1):
        raise OptionError(
            what=f"-o {output}: expected .csv, .npz, or .npy for one output",
            value="-o",
            hint="Choose the output with --of.",
        )
    found = _run(session, names, feeds)
    if suffix == ".csv":
        _check_rows(found)
    if output is None:
        with standard_output() as stream:
            _write_csv(found, stream)
        return
    _write(found, output, suffix)
    counts = {len(array) for array in found.values() if array.ndim}
    rows = f" of {counts.pop()} rows" if len(counts) == 1 else ""
    report_written(f"wrote {output} with {', '.join(names)}{rows}")


def _run(
    session: InferenceSession, names: list[str], feeds: Mapping[str, Any]
) -> dict[str, np.ndarray[Any, Any]]:
    """Run the model on all rows; in parts if there are many, and if that is the same."""
    number = max((len(array) for array in feeds.values() if array.ndim), default=1)
    if number == 0:
        raise DataError(
            what="there are no rows", value="--data", hint="Give a file with at least one row."
        )
    values = [*session.get_inputs(), *session.get_outputs()]
    is_by_rows = all(value.shape and not isinstance(value.shape[0], int) for value in values)
    if not is_by_rows or {len(array) for array in feeds.values()} != {number}:
        return dict(zip(names, session.run(names, feeds), strict=True))
    parts = []
    for start in range(0, number, _BATCH_ROWS):
        stop = start + _BATCH_ROWS
        batch = {name: np.ascontiguousarray(rows[start:stop]) for name, rows in feeds.items()}
        parts.append(session.run(names, batch))
    columns = zip(*parts, strict=True)
    return {
        name: found[0] if len(found) == 1 else np.concatenate(found)
        for name, found in zip(names, columns, strict=True)
    }


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


def _check_rows(found: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Refuse outputs that do not have the same number of rows."""
    rows = {name: len(np.atleast_1d(array)) for name, array in found.items()}
    if len({*rows.values()}) > 1:
        listed = ", ".join(f"'{name}' has {count}" for name, count in rows.items())
        raise OptionError(
            what=f"the outputs have different numbers of rows: {listed}",
            value="-o",
            hint="Choose one with --of, or write an .npz file with -o.",
        )


def _write_csv(found: Mapping[str, np.ndarray[Any, Any]], stream: TextIO) -> None:
    """Write a line for each row, with a column for each element of an output's row."""
    columns: dict[str, np.ndarray[Any, Any]] = {}
    for name, array in found.items():
        rows = np.atleast_1d(array)
        rows = rows.reshape(len(rows), -1)
        for i in range(rows.shape[1]):
            columns[name if rows.shape[1] == 1 else f"{name}_{i}"] = rows[:, i]
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
