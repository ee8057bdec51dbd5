"""The commands ``onnxgrad evaluate`` and ``onnxgrad predict``."""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import numpy as np

from onnxgrad import _core, losses
from onnxgrad.base.messages import print_stderr
from onnxgrad.base.models import to_core_model
from onnxgrad.cli.console import out, report_written, standard_output
from onnxgrad.cli.model_inputs import read_inputs
from onnxgrad.cli.rows import open_rows
from onnxgrad.data.columns import feeds_of
from onnxgrad.data.labels import native_targets
from onnxgrad.errors import DataError, ModelError, OptionError
from onnxgrad.files import write_file
from onnxgrad.sessions import InferenceSession, TrainingSession
from onnxgrad.trainer import Trainer

__all__ = ["evaluate", "predict"]

_BATCH_ROWS = 4096  # bounds the memory for intermediate values


def evaluate(
    model: str,
    data: str,
    target: str | None,
    sample_weight: str | None,
    ignored: Sequence[str] | None,
    tokens: Mapping[str, Any],
    loss: str,
    class_axis: int | None,
    metrics: Sequence[str] | None,
    stream: bool | None,
    delimiter: str | None,
    allow_nan: bool,
    as_json: bool,
    device: str | None,
) -> None:
    """Print loss, accuracy and metrics of a model on a file of rows."""
    chosen = losses.from_text(loss, class_axis)
    trainer = Trainer(TrainingSession(model, chosen, evaluation_only=True, device=device))
    rows = open_rows(
        trainer,
        data,
        target,
        ignored=ignored,
        sample_weight=sample_weight,
        stream=stream,
        delimiter=delimiter,
        loss=loss,
        **tokens,
    )
    if rows[1] is not None:  # string labels of a model that lists no classes: numbered as by `fit`
        feeds = feeds_of(rows[0])
        targets = native_targets(rows[1])
        trainer._labels.learn(trainer.session._core, targets, every=True, feeds=feeds)
    names = [name.strip() for text in metrics or () for name in text.split(",")]
    found = trainer.evaluate(*rows, metrics=names, allow_nan=allow_nan)
    numbers = {"loss": found.loss, "accuracy": found.accuracy, "rows": found.rows, **found.metrics}
    numbers = {name: value for name, value in numbers.items() if value is not None}
    if as_json:
        out(json.dumps({**numbers, "loss_line": trainer.session.loss_line}, indent=2))
        return
    print_stderr(trainer.session.loss_line)
    width = max(12, *(len(name) + 2 for name in numbers))
    for name, value in numbers.items():
        out(f"{name:<{width}}{value if isinstance(value, int) else format(value, '.6g')}")


def predict(
    model: str,
    data: str,
    output: str | None,
    outputs: Sequence[str] | None,
    ignored: Sequence[str] | None,
    delimiter: str | None,
    allow_nan: bool,
    device: str | None,
) -> None:
    """Write the outputs of a model for a file of rows to `output`, or as CSV to standard output.

    Raises
    ------
    OptionError
        An unknown suffix, or several outputs for an ``.npy`` file.
    """
    core = _core.to_inference(to_core_model(model))
    session = InferenceSession(core, device=device)
    feeds = read_inputs(session, data, ignored or (), delimiter, allow_nan=allow_nan)
    if _fixed_batch(session, feeds) is not None:
        with contextlib.suppress(ModelError):  # rows are filled up to the batch of the file
            session = InferenceSession(core, open_batch=True, device=device)
    names = list(outputs or [value.name for value in session.get_outputs()])
    suffix = Path(output).suffix.lower() if output is not None else ".csv"
    known = (".csv", ".npz", ".npy", ".json", ".jsonl")
    if suffix not in known or (suffix == ".npy" and len(names) != 1):
        raise OptionError(
            what=f"-o {output}: expected .csv, .npz, .json, .jsonl, or .npy for one output",
            value="-o",
            hint="Choose the output with --of.",
        )
    found, keys = _split_maps(_run(session, names, feeds))
    if suffix in (".csv", ".json", ".jsonl"):
        _check_rows(found)
    if output is None:
        with standard_output() as stream:
            _write_csv(found, keys, stream)
        return
    _write(found, keys, output, suffix)
    counts = {len(array) for array in found.values() if array.ndim}
    rows = f" of {counts.pop()} rows" if len(counts) == 1 else ""
    report_written(f"wrote {output} with {', '.join(names)}{rows}")


Arrays: TypeAlias = "dict[str, np.ndarray[Any, Any]]"
Keys: TypeAlias = "dict[str, list[Any]]"


def _split_maps(found: Mapping[str, Any]) -> tuple[Arrays, Keys]:
    """Return arrays, and the keys of the columns of those that are made of maps."""
    arrays: Arrays = {}
    keys: Keys = {}
    for name, value in found.items():
        if isinstance(value, np.ndarray):
            arrays[name] = value
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            arrays[name] = np.array([[*row.values()] for row in value], np.float32)
            keys[name] = [*value[0]]
        else:
            raise DataError(
                what=f"output '{name}' is a {type(value).__name__}, which has no rows",
                value=name,
                hint="Name the other outputs with --of.",
            )
    return arrays, keys


def _fixed_batch(session: InferenceSession, feeds: Mapping[str, Any]) -> int | None:
    """Return the rows that the model takes at a time, if there are others."""
    for value in session.get_inputs():
        rows = value.shape[0] if value.shape else None
        if isinstance(rows, int) and rows > 0 and feeds[value.name].shape[:1] != (rows,):
            return rows
    return None


def _run(session: InferenceSession, names: list[str], feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Run the model on all rows; in parts if there are many, and if that is the same."""
    number = max((len(array) for array in feeds.values() if array.ndim), default=1)
    if number == 0:
        raise DataError(
            what="there are no rows", value="--data", hint="Give a file with at least one row."
        )
    for value in session.get_inputs():
        if value.shape and feeds[value.name].ndim == 0:
            raise DataError(
                what=f"'{value.name}' is one number, not rows",
                value=value.name,
                hint="Give an array whose first dimension is the rows.",
            )
    values = [*session.get_inputs(), *session.get_outputs()]
    fixed = _fixed_batch(session, feeds)
    if fixed is not None:
        is_by_rows = all(value.shape and value.shape[0] == fixed for value in values)
    else:
        is_by_rows = all(value.shape and not isinstance(value.shape[0], int) for value in values)
    if not is_by_rows or {array.shape[:1] for array in feeds.values()} != {(number,)}:
        return dict(zip(names, session.run(names, feeds), strict=True))
    size = fixed or _BATCH_ROWS
    parts = []
    for start in range(0, number, size):
        stop = min(start + size, number)
        chosen = np.minimum(np.arange(start, start + (fixed or stop - start)), number - 1)
        batch = {name: np.ascontiguousarray(rows[chosen]) for name, rows in feeds.items()}
        parts.append([output[: stop - start] for output in session.run(names, batch)])
    columns = zip(*parts, strict=True)
    return {
        name: found[0] if len(found) == 1 else np.concatenate(found)
        for name, found in zip(names, columns, strict=True)
    }


def _write(found: Arrays, keys: Keys, output: str, suffix: str) -> None:
    import io

    if suffix in (".json", ".jsonl"):
        write_file(output, _json_text(found, keys, suffix))
        return
    if suffix == ".csv":
        text = io.StringIO(newline="")
        _write_csv(found, keys, text)
        write_file(output, text.getvalue())
        return
    plain = {
        name: array.astype(np.str_) if array.dtype.kind == "O" else array
        for name, array in found.items()
    }
    plain |= {f"{name}.keys": np.array(labels) for name, labels in keys.items()}
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


def _json_text(found: Arrays, keys: Keys, suffix: str) -> str:
    """Return an object for each row: a list of them, or for ``.jsonl`` one in each line."""
    columns = {name: np.atleast_1d(array).tolist() for name, array in found.items()}
    for name, labels in keys.items():
        columns[name] = [dict(zip(labels, row, strict=True)) for row in columns[name]]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if suffix == ".json":
        return json.dumps(rows, indent=1) + "\n"
    return "".join(json.dumps(row) + "\n" for row in rows)


def _write_csv(found: Arrays, keys: Keys, stream: TextIO) -> None:
    """Write a line for each row, with a column for each element of an output's row.

    The columns of maps have their keys in their names.
    """
    columns: Arrays = {}
    for name, array in found.items():
        rows = np.atleast_1d(array)
        rows = rows.reshape(len(rows), -1)
        is_alone = rows.shape[1] == 1 and name not in keys
        for i, label in enumerate(keys.get(name, range(rows.shape[1]))):
            columns[name if is_alone else f"{name}_{label}"] = rows[:, i]
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
