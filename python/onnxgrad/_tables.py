"""Reading data files for the command line: CSV with a header line, NPZ and Parquet."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from onnxgrad._checks import nearest_or
from onnxgrad.data import one_character
from onnxgrad.errors import DataError

Array: TypeAlias = np.ndarray[Any, Any]

__all__ = ["Table", "read_npy", "read_table"]


@dataclass(frozen=True)
class Table:
    """Columns or arrays of a file by name; all have the same number of rows.

    Attributes
    ----------
    path : str
    columns : dict of str to array
        Of a CSV file [N] each; of an NPZ file [N, ...].
    is_csv : bool
        Whether these are columns, as those of a Parquet file too.
    """

    path: str
    columns: dict[str, Array] = field(repr=False)
    is_csv: bool = True

    def take(self, name: str, option: str) -> Array:
        """Return the column `name`, which the command line's `option` asks for."""
        if name in self.columns:
            return self.columns[name]
        known = list(self.columns)
        shown = ", ".join(known[:6]) + (f", ... ({len(known)} in all)" if len(known) > 6 else "")
        raise DataError(
            what=f"{self.path}: there is no column '{name}'",
            file=self.path,
            value=name,
            detail=f"{option} asks for it; the file has {shown}.",
            mend=nearest_or(name, known, "Take one of these columns."),
        )

    def inputs(self, names: Sequence[str], without: Sequence[str]) -> dict[str, Array]:
        """Return what the model's inputs `names` are fed with.

        Columns (or arrays) are matched by name first. What is left of a CSV file makes up the rows
        [N, C] of the one input that has no column of its name.
        """
        rest = {name: array for name, array in self.columns.items() if name not in without}
        found = {name: self._as_input(rest.pop(name)) for name in names if name in rest}
        missing = [name for name in names if name not in found]
        if not missing:
            return found
        if len(missing) > 1 or not rest or not (self.is_csv or len(rest) == 1):
            raise DataError(
                what=f"{self.path}: nothing for the model's input '{missing[0]}'",
                file=self.path,
                value=missing[0],
                detail=f"The model has the inputs {', '.join(names)}; "
                f"the file has {', '.join(list(self.columns)[:8])}.",
                mend="Name columns (or arrays of the .npz) like the inputs.",
            )
        found[missing[0]] = self._stack(rest) if self.is_csv else next(iter(rest.values()))
        return found

    def _as_input(self, array: Array) -> Array:
        return array.reshape(len(array), -1) if self.is_csv else array

    def _stack(self, columns: dict[str, Array]) -> Array:
        texts = [name for name, column in columns.items() if column.dtype.kind in "UO"]
        if texts and len(texts) < len(columns):
            column = columns[texts[0]]
            row = next(i for i, cell in enumerate(column) if not _is_number(str(cell)))
            raise DataError(
                what=f"{self.path}: column '{texts[0]}', row {row}: "
                f"{str(column[row])!r} is not a number",
                file=self.path,
                value=texts[0],
                mend="Export the encoding of texts with the model (a scikit-learn pipeline), or "
                f"leave the column out: --ignored {texts[0]}.",
            )
        rows: Array = np.column_stack(list(columns.values()))
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            row, place = np.argwhere(~np.isfinite(rows))[0]
            raise DataError(
                what=f"{self.path}: column '{list(columns)[place]}', row {row}: "
                f"{rows[row, place]} (an empty cell is nan)",
                file=self.path,
                value=list(columns)[place],
                mend="Fill or remove such rows; rows are counted from 0.",
            )
        return rows


def read_table(path: str, delimiter: str | None = None) -> Table:
    """Read a ``.csv`` or ``.tsv`` file with a header line, an ``.npz`` or a ``.parquet`` file.

    An empty cell of a column of numbers is NaN. `delimiter` separates the columns of a ``.csv``
    file; None is a comma, and a tab in ``.tsv``.

    Raises
    ------
    DataError
        If there is no such file, or it cannot be read.
    """
    suffix = Path(path).suffix.lower()
    readers: dict[str, Callable[[str], Table]] = {
        ".csv": lambda path: _read_csv(path, delimiter or ","),
        ".tsv": lambda path: _read_csv(path, delimiter or "\t"),
        ".npz": _read_npz,
        ".parquet": _read_parquet,
    }
    if suffix not in readers:
        raise DataError(
            what=f"{path}: a file of type '{suffix}' cannot be read",
            file=path,
            mend="Give a .csv, .tsv, .npz, .npy or .parquet file.",
        )
    try:
        return readers[suffix](path)
    except OSError as error:
        raise DataError(
            what=f"{path}: {error.strerror or error}",
            file=path,
            mend="Check the path given with --data or --validation.",
        ) from error


def _read_npz(path: str) -> Table:
    try:
        with np.load(path, allow_pickle=False) as archive:
            columns = {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, KeyError, _bad_zip()) as error:
        raise DataError(
            what=f"{path}: not a readable .npz file",
            file=path,
            detail=f"{error}",
            mend="Write it with numpy.savez, from arrays of numbers or texts.",
        ) from error
    return Table(path, columns, is_csv=False)


def _bad_zip() -> type[Exception]:
    from zipfile import BadZipFile

    return BadZipFile


def _read_parquet(path: str) -> Table:
    from onnxgrad._arrow import columns_of
    from onnxgrad._parquet import import_pyarrow

    try:
        table = import_pyarrow().ParquetFile(path).read()
    except (OSError, ValueError) as error:
        raise DataError(
            what=f"{path}: {str(error).splitlines()[0]}",
            file=path,
            mend="Check the path; the file has to be a whole Parquet file.",
        ) from error
    return Table(path, columns_of(table))


def read_npy(path: str) -> Array:
    """Return the array of an ``.npy`` file, mapped into memory.

    Raises
    ------
    DataError
        If there is no such file, or it is no array.
    """
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise DataError(
            what=f"{path}: {error.strerror or error}",
            file=path,
            mend="Check the path; a relative one begins at the present folder.",
        ) from error
    except ValueError as error:
        raise DataError(
            what=f"{path}: not a readable .npy file",
            file=path,
            detail=f"{error}",
            mend="Write it with numpy.save, from an array of numbers or texts.",
        ) from error
    return array


def _read_csv(path: str, delimiter: str) -> Table:
    delimiter = one_character("--delimiter", delimiter)
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            header = next(csv.reader(file, delimiter=delimiter), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            what=f"{path}: not a readable CSV file",
            file=path,
            mend="Save it as UTF-8 with commas between the cells.",
        ) from error
    header = [name.strip() for name in header]
    repeated = next((name for name in header if header.count(name) > 1), None)
    if not header or repeated is not None or all(_is_number(name) for name in header):
        problem = (
            "the file is empty"
            if not header
            else f"the column '{repeated}' is there twice"
            if repeated is not None and not _is_number(repeated)
            else "the first line has numbers, not the names of the columns"
        )
        raise DataError(
            what=f"{path}: {problem}",
            file=path,
            mend="The first line of a CSV file gives each column its own name.",
        )
    other = next((mark for mark in ";\t|" if mark in header[0]), None)
    if len(header) == 1 and other is not None:
        raise DataError(
            what=f"{path}: there is one column, '{header[0][:40]}'",
            file=path,
            mend=f"Its columns seem to be separated by {other!r}: give --delimiter {other!r}.",
        )
    return Table(path, _read_columns(path, header, delimiter))


def _read_columns(path: str, header: list[str], delimiter: str) -> dict[str, Array]:
    try:  # all numbers: NumPy's reader in C
        rows = np.loadtxt(
            path, delimiter=delimiter, skiprows=1, ndmin=2, encoding="utf-8-sig", quotechar='"'
        )
        if rows.size and rows.shape[1] == len(header):
            return {name: _narrow(rows[:, i]) for i, name in enumerate(header)}
    except ValueError:
        pass
    with Path(path).open(encoding="utf-8-sig", newline="") as file:
        lines = [line for line in csv.reader(file, delimiter=delimiter) if line][1:]
    for number, line in enumerate(lines, start=2):
        if len(line) != len(header):
            raise DataError(
                what=f"{path}: line {number} has {len(line)} cells, expected {len(header)}",
                file=path,
                mend="Mend the line; a cell that has a comma inside needs quotes.",
            )
    if not lines:
        raise DataError(
            what=f"{path}: no rows below the header",
            file=path,
            mend="Give one line for each row.",
        )
    return {name: _convert([line[i].strip() for line in lines]) for i, name in enumerate(header)}


def _convert(cells: list[str]) -> Array:
    """Return numbers if all cells that are not empty are numbers, else texts."""
    try:
        return _narrow(np.array([float(cell) if cell else np.nan for cell in cells]))
    except ValueError:
        return np.array(cells, dtype=np.str_)


def _narrow(column: Array) -> Array:
    """Return a column of whole numbers as int64, so that labels are what they look like."""
    with np.errstate(invalid="ignore"):
        whole = column.astype(np.int64)
    return whole if np.array_equal(whole, column) else np.ascontiguousarray(column)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
