"""Data files read into memory for the command line: CSV, NPZ, NPY, Parquet and JSON lines."""

from __future__ import annotations

import csv
import io
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import numpy as np

from onnxgrad import _core
from onnxgrad.base.checks import is_number, nearest_or
from onnxgrad.base.opening import open_input
from onnxgrad.data.arrays import from_native
from onnxgrad.data.arrow import columns_of
from onnxgrad.data.columns import ColumnPlan, Feeds, name_list, plan_columns, without_gaps
from onnxgrad.data.json_lines import read_json_lines
from onnxgrad.data.memory import free_bytes
from onnxgrad.data.parquet import open_parquet, reading_parquet
from onnxgrad.data.sources import one_character, unknown_suffix
from onnxgrad.errors import DataError

Array: TypeAlias = np.ndarray[Any, Any]

__all__ = ["TRUTHS", "Table", "column_names", "read_npy", "read_table", "with_truths"]

# Booleans as pandas and spreadsheets write them.
TRUTHS = {"True": 1.0, "true": 1.0, "TRUE": 1.0, "False": 0.0, "false": 0.0, "FALSE": 0.0}


@dataclass(frozen=True)
class Table:
    """Columns or arrays of a file by name, with the same number of rows.

    Attributes
    ----------
    path : str
    columns : mapping of str to array
        Columns [N] of a CSV or Parquet file, or arrays [N, ...] of an NPZ file.
    is_csv : bool
        Whether `columns` are columns, not arrays.
    delimiter : str
        Separator of a CSV file, else empty.
    """

    path: str
    columns: Mapping[str, Array] = field(repr=False)
    is_csv: bool = True
    delimiter: str = ""

    def take(self, name: str, option: str) -> Array:
        """Return the column `name`, given by the command line's option `option`."""
        if name in self.columns:
            return self.columns[name]
        known = list(self.columns)
        raise DataError(
            what=f"{self.path}: there is no column '{name}'",
            file=self.path,
            value=name,
            detail=f"Given by {option}; the file has {name_list(known)}.",
            hint=nearest_or(name, known, "Use one of these columns."),
        )

    def inputs(
        self,
        names: Sequence[str],
        without: Sequence[str],
        target: Sequence[str] | None = None,
        sample_weight: str | None = None,
        maps: Mapping[str, Sequence[str]] | None = None,
        texts: Container[str] = (),
    ) -> Feeds:
        """Return the arrays for the model's inputs `names`; see `plan_columns`.

        Columns `without` feed no input, including those of `target` and `sample_weight`. Columns of
        truth values (``True``, ``FALSE``) are 1 and 0, but for the inputs `texts`.
        """
        maps = maps or {}
        plan = plan_columns(
            list(self.columns), names, without, path=self.path, stacks=self.is_csv, maps=maps
        )
        arrays = {
            name: self._as_input(
                self.columns[column] if name in texts else with_truths(self.columns[column])
            )
            for name, column in plan.named.items()
        }
        if plan.stacked_input is not None:
            columns = {name: self.columns[name] for name in plan.stacked}
            if plan.stacked_input not in texts:
                columns = {name: with_truths(column) for name, column in columns.items()}
            arrays[plan.stacked_input] = (
                self._stack(columns) if self.is_csv else next(iter(columns.values()))
            )
            if plan.stacked_input in maps:
                arrays[plan.stacked_input] = without_gaps(arrays[plan.stacked_input])
        if not self.is_csv:  # the columns of an array have no names
            plan = ColumnPlan({}, None, [])
        return Feeds(
            arrays,
            plan,
            targets={"": target} if target is not None and self.is_csv else None,
            sample_weight=sample_weight if self.is_csv else None,
            path=self.path,
            line_of=self.line_of if self.delimiter else None,
        )

    def line_of(self, row: int) -> int:
        """Return the line of a row in a CSV file, which is read again."""
        with _open_text(self.path) as file:
            lines = csv.reader(file, delimiter=self.delimiter)
            number, before = -1, 0  # current row (-1: the header), and lines before it
            for cells in lines:
                if cells and number == row:
                    break
                number += bool(cells)
                before = lines.line_num
        return before + 1

    def row_name(self, row: int) -> str:
        """Return the name of a row in messages."""
        return f"line {self.line_of(row)}" if self.delimiter else f"row {row}"

    def _as_input(self, array: Array) -> Array:
        return array.reshape(len(array), -1) if self.is_csv else array

    def _stack(self, columns: dict[str, Array]) -> Array:
        texts = [name for name, column in columns.items() if column.dtype.kind in "UO"]
        if texts and len(texts) < len(columns):
            self.check_numbers(texts[0], columns[texts[0]])
        rows: Array = np.column_stack(list(columns.values()))
        return rows

    def check_numbers(self, name: str, column: Array) -> None:
        """Refuse a column of strings that are not all numbers.

        Raises
        ------
        DataError
            A cell is not a number; the message names line, column and cell.
        """
        row = next((i for i, cell in enumerate(column) if not is_number(str(cell))), None)
        if row is None:
            return
        cell = str(column[row])
        raise DataError(
            what=f"{self.path}: {self.row_name(row)}, column '{name}': "
            + (f"{cell!r} is not a number" if cell else "the cell is empty"),
            file=self.path,
            value=name,
            hint=_core.number_hint(cell, name),
        )

    def check_finite(self, feeds: Feeds, maps: Container[str] = ()) -> None:
        """Refuse NaN and infinity in the columns that feed a model, except in those of `maps`.

        Raises
        ------
        DataError
            A cell is not finite; the message names line and column.
        """
        read = [names for value, names in feeds.plan.names() if value not in maps]
        for name in [name for names in read for name in names]:
            column = self.columns[name]
            if column.dtype.kind != "f" or np.isfinite(column).all():
                continue
            row = int(np.flatnonzero(~np.isfinite(column))[0])
            what = "an infinite number" if np.isinf(column[row]) else "NaN or an empty cell"
            raise DataError(
                what=f"{self.path}: {what} in {self.row_name(row)}, column '{name}'",
                file=self.path,
                value=name,
                hint="Fill or remove such rows, or give allow_nan=True.",
            )


def with_truths(column: Array, dtype: type[np.generic] = np.float32) -> Array:
    """Return a column of truth values, among them 0 and 1, as numbers; any other one unchanged."""
    is_text = column.dtype.kind in "UO" and all(isinstance(cell, str) for cell in column.flat)
    cells = {*column.ravel().tolist()} if is_text else set()
    if not cells & TRUTHS.keys() or not cells <= {*TRUTHS, "0", "1"}:
        return column
    values = {**TRUTHS, "0": 0.0, "1": 1.0}
    return np.array([values[cell] for cell in column.ravel()], dtype).reshape(column.shape)


def read_table(path: str, delimiter: str | None = None) -> Table:
    """Read a ``.csv`` or ``.tsv`` file with a header line, ``.npz``, ``.parquet`` or ``.jsonl``.

    An empty cell in a column of numbers is NaN. `delimiter` separates the columns of a ``.csv``
    file; None means a comma, or a tab for ``.tsv``.

    Raises
    ------
    DataError
        The file does not exist or cannot be read.
    """
    suffix = Path(path).suffix.lower()
    readers: dict[str, Callable[[str], Table]] = {
        ".csv": lambda path: _read_csv(path, delimiter or ","),
        ".tsv": lambda path: _read_csv(path, delimiter or "\t"),
        ".jsonl": lambda path: Table(path, read_json_lines(path)),
        ".npz": _read_npz,
        ".parquet": _read_parquet,
    }
    if suffix not in readers:
        raise unknown_suffix(path, suffix)
    try:
        return readers[suffix](path)
    except OSError as error:
        raise DataError(
            what=f"{path}: {error.strerror or error}",
            file=path,
            hint="Check the path; relative paths start at the current folder.",
        ) from error


def column_names(path: str, delimiter: str | None = None) -> list[str]:
    """Return the names of the columns or arrays of a file, for messages; none if it has none."""
    suffix = Path(path).suffix.lower()
    try:
        if suffix in (".csv", ".tsv"):
            with _open_text(path) as file:
                separator = delimiter or ("," if suffix == ".csv" else "\t")
                return next(csv.reader(file, delimiter=separator), [])
        return [] if suffix == ".npy" else list(read_table(path).columns)
    except (DataError, OSError, ValueError, TypeError, csv.Error):
        return []


class _Arrays(Mapping[str, Array]):
    """The arrays of an ``.npz`` file; each is read when it is needed, as by `fit`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._read: dict[str, Array | None] = dict.fromkeys(_core.npz_names(path))

    def __getitem__(self, name: str) -> Array:
        array = self._read[name]
        if array is None:
            array = self._read[name] = _from_extension(_core.read_npz(self._path, name))
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)


def _from_extension(tensor: Any) -> Array:
    array = from_native(tensor)
    return array.astype(np.str_) if array.dtype.kind == "O" else array


def _read_npz(path: str) -> Table:
    return Table(path, _Arrays(path), is_csv=False)


def _read_parquet(path: str) -> Table:
    file = open_parquet(path)
    with reading_parquet(path):
        return Table(path, columns_of(file.read()))


def read_npy(path: str) -> Array:
    """Return the array of an ``.npy`` file, mapped into memory if it is large.

    Raises
    ------
    DataError
        The file does not exist or is not an array.
    """
    is_small = not Path(path).is_file() or Path(path).stat().st_size <= free_bytes() / 4
    if is_small:
        return _from_extension(_core.read_npy(path))
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # NumPy does not document its errors for damaged headers
        raise DataError(
            what=f"{path}: not a readable .npy file",
            file=path,
            detail=f"{error}",
            hint="Write it with numpy.save, from an array of numbers or strings.",
        ) from error
    return array


def _read_csv(path: str, delimiter: str) -> Table:
    delimiter = one_character("--delimiter", delimiter)
    try:
        with _open_text(path) as file:
            header = next(csv.reader(file, delimiter=delimiter), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise _unreadable_csv(path) from error
    header = [name.strip() for name in header]
    repeated = next((name for name, count in Counter(header).items() if count > 1), None)
    if not header or repeated is not None or all(is_number(name) for name in header):
        problem = (
            "the file is empty"
            if not header
            else f"the column '{repeated}' occurs twice"
            if repeated is not None and not is_number(repeated)
            else "the first line has numbers, not column names"
        )
        raise DataError(
            what=f"{path}: {problem}",
            file=path,
            hint="Start the file with a line of unique column names.",
        )
    other = next((mark for mark in ";\t|," if mark in header[0]), None)
    if len(header) == 1 and other is not None:
        raise DataError(
            what=f"{path}: there is only one column, '{header[0][:40]}'",
            file=path,
            hint=f"The columns seem to be separated by {other!r}: give delimiter={other!r}.",
        )
    return Table(path, _read_columns(path, header, delimiter), delimiter=delimiter)


def _open_text(path: str) -> TextIO:
    return io.TextIOWrapper(open_input(path), encoding="utf-8-sig", newline="")


def _unreadable_csv(path: str) -> DataError:
    return DataError(
        what=f"{path}: not a readable CSV file",
        file=path,
        detail=_encoding_of(path),
        hint="Save it as UTF-8, with commas between the cells.",
    )


def _encoding_of(path: str) -> str:
    """Return a guess at the format of a file that is not UTF-8, or ``""``."""
    with open_input(path) as file:
        start = file.read(4)
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "It is UTF-16, as spreadsheets export 'Unicode text'."
    if start[:2] == b"PK":
        return "It is a spreadsheet (.xlsx) or another ZIP archive, not text."
    return ""


def _read_columns(path: str, header: list[str], delimiter: str) -> dict[str, Array]:
    try:  # NumPy's fast reader, for numbers only
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # if there are no rows
            with _open_text(path) as file:
                rows = np.loadtxt(file, delimiter=delimiter, skiprows=1, ndmin=2, quotechar='"')
        if rows.size and rows.shape[1] == len(header):
            return _narrow_all(header, rows)
    except ValueError:
        pass
    try:
        with _open_text(path) as file:
            lines = [line for line in csv.reader(file, delimiter=delimiter) if line][1:]
    except (UnicodeDecodeError, csv.Error) as error:
        raise _unreadable_csv(path) from error
    for number, line in enumerate(lines, start=2):
        if len(line) != len(header):
            raise DataError(
                what=f"{path}: line {number} has {len(line)} cells, expected {len(header)}",
                file=path,
                hint=f"Fix the line; put a cell that contains {delimiter!r} in quotes.",
            )
    if not lines:
        raise DataError(
            what=f"{path}: no rows below the header",
            file=path,
            hint="Give one line for each row.",
        )
    return {name: _convert([line[i].strip() for line in lines]) for i, name in enumerate(header)}


def _convert(cells: list[str]) -> Array:
    """Return numbers if all nonempty cells are numbers, else strings."""
    try:
        return _narrow(np.array([float(cell) if cell else np.nan for cell in cells]))
    except ValueError:
        return np.array(cells, dtype=np.str_)


def _narrow(column: Array) -> Array:
    """Return a column of integers as int64, so that labels are integers too."""
    with np.errstate(invalid="ignore"):
        whole = column.astype(np.int64)
    return whole if np.array_equal(whole, column) else np.ascontiguousarray(column)


def _narrow_all(names: list[str], rows: Array) -> dict[str, Array]:
    """Apply `_narrow` to each column, in blocks, which is faster for many columns."""
    columns: dict[str, Array] = {}
    for start in range(0, len(names), 1024):
        block = np.ascontiguousarray(rows[:, start : start + 1024].T)
        with np.errstate(invalid="ignore"):
            whole = block.astype(np.int64)
        is_whole = (whole == block).all(axis=1)
        for i, name in enumerate(names[start : start + 1024]):
            columns[name] = whole[i].copy() if is_whole[i] else block[i]
    return columns
