"""Sources that read CSV, NPZ and NPY files in chunks."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onnxgrad import _core
from onnxgrad.base.checks import path_text, positive_int
from onnxgrad.base.opening import open_input
from onnxgrad.data.parquet import ParquetFile
from onnxgrad.data.shards import Shards, files_of, is_pattern
from onnxgrad.data.sources import (
    CHUNK_BYTES,
    ColumnFile,
    PathLike,
    Session,
    Source,
    Target,
    layout,
    one_character,
    unknown_suffix,
)
from onnxgrad.data.tokens import Preferences, Tokens
from onnxgrad.errors import DataError

__all__ = ["CsvFile", "NpyFiles", "NpzFile", "open_file", "source_like"]


class CsvFile(ColumnFile):
    """Rows of a CSV file with a header line.

    Parameters
    ----------
    path : path
    target : str, list of str or dict of str to str, default="y"
        Name of the column to predict, or those of several columns [N, K]; with several losses a
        dictionary by output.
    sample_weight : str, default=None
        Name of the column with a weight for each row.
    ignored : list of str, default=()
        Columns to ignore.
    delimiter : str, default=","
    chunk_bytes : int, default=1048576
        Bytes to read at a time; more if a line is longer, up to 16 MiB.

    Notes
    -----
    A column feeds the input of the same name; the remaining ones make up the rows of the only input
    without a column. An empty cell is NaN. The decimal separator is a point in every locale.

    Examples
    --------
    >>> import onnxgrad as og
    >>> rows = og.data.CsvFile("train.csv", target="price", ignored=["id"])
    """

    def __init__(
        self,
        path: PathLike,
        target: Target = "y",
        *,
        sample_weight: str | None = None,
        ignored: Sequence[str] = (),
        delimiter: str = ",",
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        super().__init__(
            path, target, sample_weight=sample_weight, ignored=ignored, chunk_bytes=chunk_bytes
        )
        self.delimiter = one_character("delimiter", delimiter)

    def native(self, session: Session) -> _core.DataSource:
        """Return the extension's reader for the inputs and the target of `session`."""
        return _core.open_csv(
            self.path, self.layout(session._core), self.delimiter, self.chunk_bytes
        )


class NpzFile(ColumnFile):
    """Rows of the arrays in an ``.npz`` file, stored or compressed.

    Parameters
    ----------
    path : path
    target : str, list of str or dict of str to str, default="y"
        Name of the array to predict, or those of several arrays [N, K]; with several losses a
        dictionary by output.
    sample_weight : str, default=None
        Name of the array with a weight for each row.
    ignored : list of str, default=()
        Arrays to ignore.
    chunk_bytes : int, default=1048576
        Bytes to read at a time.

    Notes
    -----
    An array feeds the input of the same name; a remaining one feeds the only input without an
    array. Compressed arrays are read sequentially: their chunks are not shuffled.
    """

    def native(self, session: Session) -> _core.DataSource:
        """Return the extension's reader for the inputs and the target of `session`."""
        return _core.open_npz(self.path, self.layout(session._core), self.chunk_bytes)


class NpyFiles(Source):
    """Rows of arrays in separate ``.npy`` files.

    Parameters
    ----------
    X : path, or dict of str to path
        The file of each input of the model.
    y : path, or dict of str to path
        The file of the target; with several losses a dictionary by output.
    sample_weight : path, default=None
    chunk_bytes : int, default=1048576
        Bytes to read at a time.
    """

    def __init__(
        self,
        X: PathLike | Mapping[str, PathLike],
        y: PathLike | Mapping[str, PathLike],
        sample_weight: PathLike | None = None,
        *,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._inputs = X
        self._target = (
            {str(output): path_text("y", path) for output, path in y.items()}
            if isinstance(y, Mapping)
            else path_text("y", y)
        )
        self._weight = None if sample_weight is None else path_text("sample_weight", sample_weight)
        self.chunk_bytes = positive_int("chunk_bytes", chunk_bytes)
        self.has_sample_weight = sample_weight is not None

    def __repr__(self) -> str:
        weight = "" if self._weight is None else f", {self._weight!r}"
        return f"NpyFiles({self._inputs!r}, {self._target!r}{weight})"

    def native(self, session: Session) -> _core.DataSource:
        """Return the extension's reader for the inputs and the target of `session`."""
        weight = "sample_weight"
        target: Target
        if isinstance(self._target, Mapping):
            target = {output: f"{output} (target)" for output in self._target}
            targets = [(target[output], path) for output, path in self._target.items()]
        else:
            target = session._core.loss.target.name
            targets = [(target, self._target)]
        names = [value.name for value in session._core.inputs]
        inputs = self._inputs if isinstance(self._inputs, Mapping) else {names[0]: self._inputs}
        files = [(name, path_text("X", path)) for name, path in inputs.items()]
        files += targets
        if self._weight is not None:
            files.append((weight, self._weight))
        columns = layout(session._core, target, weight if self._weight is not None else None, [])
        return _core.open_npy(files, columns, self.chunk_bytes)


_TOKENS = (".bin", ".jsonl")


def _are_integers(path: str) -> bool:
    """Return whether an .npy file has tokens, and not features; False for one that is not there."""
    try:
        with open_input(path):
            return np.load(path, mmap_mode="r", allow_pickle=False).dtype.kind in "iu"
    except (OSError, ValueError, EOFError):
        return False


def open_file(
    path: PathLike,
    target: PathLike | Sequence[str] | Mapping[str, PathLike] | None = None,
    sample_weight: PathLike | None = None,
) -> Source:
    """Return the source for a file, by its suffix, as `Trainer.fit` does for paths.

    Parameters
    ----------
    path : path
        A ``.csv``, ``.tsv``, ``.npz``, ``.npy`` or ``.parquet`` file, or a pattern of several:
        ``"train-*.csv"``. For ``.npy``, `target` and `sample_weight` are patterns of as many files.
        Without `target`, ``.bin``, ``.jsonl`` and integers of ``.npy`` are `Tokens`.
    target : str, path, list of str or dict of str to these, default=None
        Name of the column or array to predict, None means ``"y"``; for ``.npy``, the file. A list
        names the columns of one target; with several losses a dictionary by output.
    sample_weight : str or path, default=None
        Name of the column or array with the weights; for ``.npy``, the file.
    """
    text = path_text("path", path)
    suffix = Path(text).suffix.lower()
    if target is None and (suffix in _TOKENS or (suffix == ".npy" and _are_integers(text))):
        return Tokens(path)
    if is_pattern(path):
        return Shards(_open_all(text, target, sample_weight))
    if suffix == ".npy":
        if target is None:
            raise DataError(
                what=f"{text}: the file for y is missing",
                file=text,
                hint="Give fit('X.npy', 'y.npy').",
            )
        if not isinstance(target, (str, os.PathLike, Mapping)):
            raise DataError(
                what=f"{text}: a list of targets, but y of an .npy file is a file with all columns",
                file=text,
                hint="Give fit('X.npy', 'y.npy').",
            )
        return NpyFiles(path, target, sample_weight)
    name: Target = "y"
    if isinstance(target, (list, tuple)):
        name = [str(column) for column in target]
    elif isinstance(target, Mapping):
        name = {str(output): str(column) for output, column in target.items()}
    elif target is not None:
        name = str(target)
    weight = None if sample_weight is None else str(sample_weight)
    if suffix == ".tsv":
        return CsvFile(path, name, sample_weight=weight, delimiter="\t")
    kinds: dict[str, type[ColumnFile]] = {".csv": CsvFile, ".npz": NpzFile, ".parquet": ParquetFile}
    if suffix not in kinds:
        raise unknown_suffix(text, suffix)
    return kinds[suffix](path, name, sample_weight=weight)


def _open_all(
    pattern: str,
    target: PathLike | Sequence[str] | Mapping[str, PathLike] | None,
    sample_weight: PathLike | None,
) -> list[Source]:
    files = files_of(pattern)

    def for_each(other: Any) -> list[Any]:
        """One for each file: of `.npy` the files of another pattern, else the same column."""
        if isinstance(other, Mapping):
            columns = {name: for_each(one) for name, one in other.items()}
            return [
                {name: column[i] for name, column in columns.items()} for i in range(len(files))
            ]
        if not is_pattern(other) or Path(pattern).suffix.lower() != ".npy":
            return [other] * len(files)
        found = files_of(other)
        if len(found) != len(files):
            raise DataError(
                what=f"'{pattern}' matches {len(files)} files, but '{other}' {len(found)}",
                file=pattern,
                hint="Give as many, in the same order of names.",
            )
        return found

    both = zip(files, for_each(target), for_each(sample_weight), strict=True)
    return [open_file(file, one, weight) for file, one, weight in both]


def source_like(source: Source | None, validation: Any) -> Any:
    """Return a source like `source` for another path; return other values unchanged."""
    if not isinstance(validation, (str, os.PathLike)):
        return validation
    if isinstance(source, (Tokens, Preferences)):
        return source.like(validation)
    if isinstance(source, Shards):
        source = source.sources[0]
    if isinstance(source, ColumnFile) and is_pattern(validation):
        return Shards([source_like(source, path) for path in files_of(validation)])
    if isinstance(source, ColumnFile):
        other = copy.copy(source)
        other.path = path_text("validation", validation)
        return other
    raise DataError(
        what="validation is a path, but the training rows are not from a file with named columns",
        value="validation",
        hint="Give a source such as og.data.CsvFile(path, target).",
    )
