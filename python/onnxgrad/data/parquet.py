"""Parquet files, read by pyarrow in parts of row groups."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from onnxgrad import _core
from onnxgrad.base.checks import nearest_or
from onnxgrad.base.opening import open_input
from onnxgrad.base.optional import import_optional
from onnxgrad.data.arrays import to_native
from onnxgrad.data.columns import name_list, plan_columns, without_gaps
from onnxgrad.data.maps import columns_of_maps
from onnxgrad.data.sources import ColumnFile, Session
from onnxgrad.errors import DataError, DeviceError, Error

_READ_BYTES = 1 << 14
"""Bytes of a column to read at a time."""

__all__ = ["ParquetFile", "ParquetReader", "open_parquet", "reading_parquet"]

Array = np.ndarray[Any, Any]


class ParquetFile(ColumnFile):
    """Rows of a Parquet file; needs pyarrow (``pip install pyarrow``).

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
    chunk_bytes : int, default=1048576
        Approximate number of bytes to decode at a time.

    Notes
    -----
    Columns feed inputs as in `CsvFile`. Shuffling permutes row groups. pyarrow decodes the file in
    this process: onnxgrad's guarantees about malformed files do not apply.
    """

    def native(self, session: Session) -> _core.DataSource:
        """Return the extension's reader for the inputs and the target of `session`."""
        self.layout(session._core)  # for its checks
        reader = ParquetReader(self, session._core)
        return _core.PythonSource(
            reader.start,
            reader.next,
            reader.num_rows,
            take_rows=reader.take_rows,
            pieces=reader.group_rows,
            read_pieces=reader.read_groups,
            piece_bytes=reader.group_bytes,
        )


class ParquetReader:
    """Reads the rows of a file for the inputs of a model; used by the reading thread."""

    def __init__(self, source: ParquetFile, session: _core.TrainingSession) -> None:
        self._source = source
        self._path = source.path
        # Several row groups are read at a time: not each of them whole, in advance.
        self._file = open_parquet(source.path, pre_buffer=False, buffer_size=_READ_BYTES)
        self._dtypes = {value.name: value.dtype for value in session.inputs}
        self._maps = columns_of_maps(session.inputs)
        self._plan(list(self._file.schema_arrow.names))
        metadata = self._file.metadata
        self.group_rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        sizes = [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]
        self.group_bytes = max(sizes, default=0)
        self._first_rows = np.concatenate([[0], np.cumsum(self.group_rows)]).astype(int)
        self.num_rows = int(metadata.num_rows)
        self._range = (0, self.num_rows)
        self._chunks: Iterator[_core.Dataset] = iter(())

    def _plan(self, names: list[str]) -> None:
        source = self._source
        target = source.target
        by_output = target if isinstance(target, Mapping) else {"": target}
        self._targets = {
            output: [name] if isinstance(name, str) else list(name)
            for output, name in by_output.items()
        }
        taken = [*(name for names in self._targets.values() for name in names), *source.ignored]
        if source.sample_weight is not None:
            taken.append(source.sample_weight)
        known = {*names}
        for name in taken:
            if name not in known:
                raise DataError(
                    what=f"{self._path}: there is no column '{name}'",
                    file=self._path,
                    value=name,
                    detail=f"It has {name_list(names)}.",
                    hint=nearest_or(name, names),
                )
        plan = plan_columns(names, list(self._dtypes), taken, path=self._path, maps=self._maps)
        self._named, self._stacked_input, self._stacked = plan
        self._origin = _core.DataOrigin(
            self._path,
            None,
            plan.names(),
            list(self._targets.items()),
            source.sample_weight or "",
        )
        read = [*self._named.values(), *self._stacked]
        read += [name for names in self._targets.values() for name in names]
        read += [source.sample_weight] if source.sample_weight else []
        self._columns = list(dict.fromkeys(read))

    def take_rows(self, begin: int, end: int) -> None:
        """Read these rows alone, in the order of a pass; other row groups are not decoded."""
        self._range = (begin, end)

    def start(self, epoch: int, shuffle: bool, seed: int) -> None:
        """Begin a pass; the order of row groups depends on seed and epoch."""
        groups = np.arange(len(self.group_rows))
        if shuffle:
            groups = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(groups)
        self._chunks = self._read([int(group) for group in groups], self._range)

    def read_groups(self, groups: Iterable[int]) -> Iterator[_core.Dataset]:
        """Return the chunks of these row groups, to be read beside others."""
        return self._read(groups, (0, self.num_rows))

    def next(self) -> _core.Dataset | None:
        """Return the next chunk, or None."""
        return next(self._chunks, None)

    def _read(self, groups: Iterable[int], limits: tuple[int, int]) -> Iterator[_core.Dataset]:
        rows = max(1, self._source.chunk_bytes // (8 * len(self._columns)))
        begin, end = limits
        done = 0  # rows of the pass
        for group in groups:
            first = int(self._first_rows[group])
            group_rows = self.group_rows[group]
            if done >= end or done + group_rows <= begin:
                done += group_rows
                continue
            batches = self._file.iter_batches(
                batch_size=rows, row_groups=[group], columns=self._columns, use_threads=False
            )
            for batch in self._decoded(batches):
                skipped = min(max(begin - done, 0), batch.num_rows)
                taken = batch.slice(skipped, max(min(end - done, batch.num_rows) - skipped, 0))
                if taken.num_rows:
                    yield self._dataset(taken, first + skipped)
                first += batch.num_rows
                done += batch.num_rows

    def _decoded(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield batches; pyarrow reads them from the file one after another."""
        while True:
            with reading_parquet(self._path):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _dataset(self, batch: Any, first: int) -> _core.Dataset:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        inputs: dict[str, Any] = {}
        for name, column in self._named.items():
            array = self._array(column, columns[column], first)
            inputs[name] = to_native(array.reshape(len(array), -1), name)
        if self._stacked_input is not None:
            dtype = self._dtypes[self._stacked_input]
            stacked = np.empty(
                (batch.num_rows, len(self._stacked)),
                np.float32 if dtype == "float32" else np.float64,
            )
            for i, name in enumerate(self._stacked):
                stacked[:, i] = self._numbers(name, columns[name], first)
            if self._stacked_input in self._maps:
                stacked = without_gaps(stacked)
            inputs[self._stacked_input] = to_native(stacked, self._stacked_input)
        source = self._source
        targets = {
            output: to_native(self._target(names, columns, first), output or "y")
            for output, names in self._targets.items()
        }
        weight = None
        if source.sample_weight is not None:
            weight = to_native(
                self._numbers(source.sample_weight, columns[source.sample_weight], first), "weight"
            )
        target = targets.pop("", None)
        return _core.Dataset(inputs, target, targets, weight, first, self._origin)

    def _target(self, names: list[str], columns: Mapping[str, Any], first: int) -> Array:
        """Return a column, or several side by side."""
        if len(names) == 1:
            return self._array(names[0], columns[names[0]], first)
        return np.column_stack([self._numbers(name, columns[name], first) for name in names])

    def _numbers(self, name: str, column: Any, first: int) -> Array:
        array = self._array(name, column, first)
        if array.dtype.kind in "fiub":
            return array
        raise DataError(
            what=f"{self._path}: column '{name}' has type {column.type}, expected numbers",
            file=self._path,
            value=name,
            hint="Leave it out with ignored=, or export the model together with its encoder.",
        )

    def _array(self, name: str, column: Any, first: int) -> Array:
        with reading_parquet(self._path):
            if hasattr(column, "dictionary_decode"):
                column = column.dictionary_decode()
            array: Array = column.to_numpy(zero_copy_only=False)
        if array.dtype.kind == "O":
            for row, value in enumerate(array.tolist()):
                if value is None:
                    raise DataError(
                        what=f"{self._path}: column '{name}', row {first + row} is empty",
                        file=self._path,
                        value=name,
                        hint="Fill or remove such rows.",
                    )
            if array.size and not isinstance(array[0], (str, bool, int, float)):
                array = _stacked(self._path, name, array)
        return array


def _stacked(path: str, name: str, lists: Array) -> Array:
    """Return a column of lists as one array."""
    try:
        return np.stack(lists.tolist())
    except (TypeError, ValueError):
        raise DataError(
            what=f"{path}: column '{name}' has lists of different lengths, or of no numbers",
            file=path,
            value=name,
            hint="Leave it out with ignored=, or write lists of equal lengths.",
        ) from None


@contextlib.contextmanager
def reading_parquet(path: str) -> Iterator[None]:
    """Raise a DataError with the path where pyarrow cannot read the file."""
    try:
        yield
    except MemoryError as error:  # from pyarrow, also if a damaged file claims too much
        raise DeviceError(
            what=f"{path}: there is not enough memory to decode it",
            file=path,
            detail=str(error),
            hint="Read it in chunks (stream=True), or write it with smaller row groups.",
        ) from error
    except Error:
        raise
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError, RuntimeError) as error:
        # Errors of pyarrow are subclasses of these.
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataError(
            what=f"{path}: {reason.splitlines()[0]}",
            file=path,
            hint="Check the path; it must be a complete Parquet file.",
        ) from error


def open_parquet(path: str, **options: Any) -> Any:
    """Return a file of ``pyarrow.parquet``.

    Raises
    ------
    DataError
        There is no pyarrow, or no such file, or none that it can read.
    """
    library = import_optional("pyarrow.parquet", "reading a Parquet file", DataError)
    with reading_parquet(path):
        with open_input(path):  # pyarrow would wait for a pipe
            pass
        return library.ParquetFile(path, **options)
