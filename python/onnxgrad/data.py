"""Rows that are not arrays in memory: batches that a program makes, and files.

`Trainer.fit`, `Trainer.evaluate` and their `validation` take what is here in place of arrays. Files
may be larger than memory: they are read in chunks by a thread of its own, and collected in two
blocks of at most 32 MiB, one that is trained on and one that is filled. With ``shuffle=True`` the
chunks of an epoch come in a random order (where a file allows that), and then the rows of each
block; both orders are functions of the trainer's seed and the number of the epoch.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from onnxgrad import _core
from onnxgrad._arrays import from_native, is_sparse
from onnxgrad._batch_reader import BatchReader
from onnxgrad._checks import path_text, positive_int
from onnxgrad._data_notes import DataWarning
from onnxgrad.errors import DataError, OptionError

if TYPE_CHECKING:
    from onnxgrad.sessions import TrainingSession

__all__ = [
    "Batches",
    "CsvFile",
    "DataWarning",
    "NpyFiles",
    "NpzFile",
    "ParquetFile",
    "Source",
    "open_file",
    "window_starts",
]

PathLike: TypeAlias = "str | os.PathLike[str]"

Target: TypeAlias = "str | Mapping[str, str]"
"""The name of the target's column, or with several losses those by output."""

_CHUNK_BYTES = 1 << 20


class Source:
    """Base of everything that gives rows in chunks."""

    has_sample_weight = False

    def native(self, session: TrainingSession) -> _core.DataSource:
        """Return the reader of the extension for the inputs and the target of `session`."""
        raise NotImplementedError


class Batches(Source):
    """Batches that Python makes: a list, a DataLoader, a generator function.

    Parameters
    ----------
    batches : iterable, or function without parameters that returns one
        Each batch is ``(X, y)``, ``(X, y, sample_weight)``, a dictionary of the model's inputs and
        the target by name (and ``"sample_weight"``), or a table with the Arrow C interface, whose
        columns feed inputs as those of a `CsvFile`. With several targets `y` is a dictionary by
        output. A generator gives one epoch; a function that returns a new one gives any number.
    target : str or dict of str to str, default=None
        The target's name in batches that are tables or dictionaries, or the names of several by
        output. None: the names of the session's inputs for targets, such as ``"label"``.
    sample_weight : bool or str, default=False
        Whether batches have sample weights, or their name in tables and dictionaries.
    rows : int, default=None
        Number of rows of one pass, if it is known. Without it, a pass is made to count them where a
        schedule needs it; of a generator, which can be read once, it has to be given then.

    Notes
    -----
    The batches are made by a thread of their own, at most two ahead of the training.

    Examples
    --------
    >>> import numpy as np
    >>> import onnxgrad as og
    >>> def batches():
    ...     rng = np.random.default_rng(0)
    ...     for _ in range(20):
    ...         X = rng.normal(size=(16, 2)).astype(np.float32)
    ...         yield X, X @ np.array([[1.0], [-2.0]], np.float32)
    >>> trainer = og.Trainer(linear_model, lr=0.1)
    >>> trainer.fit(og.data.Batches(batches), epochs=5, verbose=0).history["train_loss"][-1] < 0.1
    True
    """

    def __init__(
        self,
        batches: Iterable[Any] | Callable[[], Iterable[Any]],
        *,
        target: Target | None = None,
        sample_weight: bool | str = False,
        rows: int | None = None,
    ) -> None:
        if not callable(batches) and not hasattr(batches, "__iter__"):
            raise DataError(
                what=f"a {type(batches).__name__} is neither an iterable of batches nor a function",
                hint="Give a list of (X, y), or a function that returns an iterator of them.",
            )
        self._batches = batches
        self._target = target
        self._weight = sample_weight
        self.has_sample_weight = bool(sample_weight)
        self._rows = rows

    def __repr__(self) -> str:
        rows = "" if self._rows is None else f", rows={self._rows}"
        return f"Batches(<{type(self._batches).__name__}>{rows})"

    def native(self, session: TrainingSession) -> _core.DataSource:
        """Return the reader of the extension for the inputs and the target of `session`."""
        reader = BatchReader(self._batches, session, self._target, self._weight)
        once = isinstance(self._batches, Iterator)
        return _core.PythonSource(reader.start, reader.next, self._rows, not once)


def one_character(option: str, value: Any) -> str:
    """Return `value` if it is one character of ASCII, as separators of columns are."""
    if not isinstance(value, str) or len(value.encode()) != 1:
        raise OptionError(
            what=f"{option}: {value!r}, expected one character",
            value=option,
            hint="Give the character between the cells, such as ',' or ';'.",
        )
    return value


class _File(Source):
    """A file whose columns (or arrays) have names."""

    def __init__(
        self,
        path: PathLike,
        target: Target = "y",
        *,
        sample_weight: str | None = None,
        ignored: Sequence[str] = (),
        chunk_bytes: int = _CHUNK_BYTES,
    ) -> None:
        self.path = path_text("path", path)
        self.target = {**target} if isinstance(target, Mapping) else target
        self.sample_weight = sample_weight
        self.ignored = [ignored] if isinstance(ignored, str) else list(ignored)
        self.chunk_bytes = positive_int("chunk_bytes", chunk_bytes)
        self.has_sample_weight = sample_weight is not None

    def __repr__(self) -> str:
        text = f"{type(self).__name__}({self.path!r}, target={self.target!r}"
        if self.sample_weight is not None:
            text += f", sample_weight={self.sample_weight!r}"
        return text + (f", ignored={self.ignored!r})" if self.ignored else ")")

    def layout(self, session: TrainingSession) -> _core.FileLayout:
        """Return what the columns are for the model of `session`."""
        return _layout(session, self.target, self.sample_weight, self.ignored)


class CsvFile(_File):
    """Rows of a CSV file with a header line.

    Parameters
    ----------
    path : path
    target : str or dict of str to str, default="y"
        Name of the column that is predicted; with several losses the names by output.
    sample_weight : str, default=None
        Name of the column with a weight for each row.
    ignored : list of str, default=()
        Columns that are left out.
    delimiter : str, default=","
    chunk_bytes : int, default=1048576
        How much is read at a time; more where a line is longer, up to 16 MiB.

    Notes
    -----
    A column feeds the model's input of its name; those that are left make up the rows of the one
    input that has none. An empty cell is NaN. Numbers are read with a point, whatever the locale.

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
        chunk_bytes: int = _CHUNK_BYTES,
    ) -> None:
        super().__init__(
            path, target, sample_weight=sample_weight, ignored=ignored, chunk_bytes=chunk_bytes
        )
        self.delimiter = one_character("delimiter", delimiter)

    def native(self, session: TrainingSession) -> _core.DataSource:
        """Return the reader of the extension for the inputs and the target of `session`."""
        return _core.open_csv(self.path, self.layout(session), self.delimiter, self.chunk_bytes)


class NpzFile(_File):
    """Rows of the arrays in an ``.npz`` file, stored or compressed.

    Parameters
    ----------
    path : path
    target : str or dict of str to str, default="y"
        Name of the array that is predicted; with several losses the names by output.
    sample_weight : str, default=None
        Name of the array with a weight for each row.
    ignored : list of str, default=()
        Arrays that are left out.
    chunk_bytes : int, default=1048576
        How much is read at a time.

    Notes
    -----
    An array feeds the model's input of its name; one that is left feeds the one input that has
    none. Compressed arrays are read from the front: their chunks keep their order.
    """

    def native(self, session: TrainingSession) -> _core.DataSource:
        """Return the reader of the extension for the inputs and the target of `session`."""
        return _core.open_npz(self.path, self.layout(session), self.chunk_bytes)


class NpyFiles(Source):
    """Rows of arrays in ``.npy`` files of their own.

    Parameters
    ----------
    X : path, or dict of str to path
        The file for each input of the model.
    y : path, or dict of str to path
        With several losses the file for each output.
    sample_weight : path, default=None
    chunk_bytes : int, default=1048576
        How much is read at a time.
    """

    def __init__(
        self,
        X: PathLike | Mapping[str, PathLike],
        y: PathLike | Mapping[str, PathLike],
        sample_weight: PathLike | None = None,
        *,
        chunk_bytes: int = _CHUNK_BYTES,
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

    def native(self, session: TrainingSession) -> _core.DataSource:
        """Return the reader of the extension for the inputs and the target of `session`."""
        weight = "sample_weight"
        target: Target
        if isinstance(self._target, Mapping):
            target = {output: f"{output} (target)" for output in self._target}
            targets = [(target[output], path) for output, path in self._target.items()]
        else:
            target = session.target_name
            targets = [(target, self._target)]
        names = [value.name for value in session.get_inputs()]
        inputs = self._inputs if isinstance(self._inputs, Mapping) else {names[0]: self._inputs}
        files = [(name, path_text("X", path)) for name, path in inputs.items()]
        files += targets
        if self._weight is not None:
            files.append((weight, self._weight))
        layout = _layout(session, target, weight if self._weight is not None else None, [])
        return _core.open_npy(files, layout, self.chunk_bytes)


class ParquetFile(_File):
    """Rows of a Parquet file; needs pyarrow (``pip install onnxgrad[data]``).

    Parameters
    ----------
    path : path
    target : str or dict of str to str, default="y"
        Name of the column that is predicted; with several losses the names by output.
    sample_weight : str, default=None
        Name of the column with a weight for each row.
    ignored : list of str, default=()
        Columns that are left out.
    chunk_bytes : int, default=1048576
        About how much is decoded at a time.

    Notes
    -----
    Columns feed inputs as in `CsvFile`. Row groups are what is shuffled. The file is decoded by
    pyarrow in this process: what onnxgrad promises about broken files does not hold for it.
    """

    def native(self, session: TrainingSession) -> _core.DataSource:
        """Return the reader of the extension for the inputs and the target of `session`."""
        from onnxgrad._parquet import ParquetReader

        self.layout(session)  # for its checks
        reader = ParquetReader(self, session)
        return _core.PythonSource(reader.start, reader.next, reader.num_rows)


def open_file(
    path: PathLike,
    target: PathLike | Mapping[str, PathLike] | None = None,
    sample_weight: PathLike | None = None,
) -> Source:
    """Return the source for a file by its suffix, as `Trainer.fit` does for paths.

    Parameters
    ----------
    path : path
        Of a ``.csv``, ``.tsv``, ``.npz``, ``.npy`` or ``.parquet`` file.
    target : str, path or dict of str to these, default=None
        Name of the column or array that is predicted, None is ``"y"``; of ``.npy`` the file. With
        several losses those by output.
    sample_weight : str or path, default=None
        Name of the column or array with the weights; of ``.npy`` the file.
    """
    text = path_text("path", path)
    suffix = Path(text).suffix.lower()
    if suffix == ".npy":
        if target is None:
            raise DataError(
                what=f"{text}: there is no file for y",
                file=text,
                hint="Give fit('X.npy', 'y.npy').",
            )
        return NpyFiles(path, target, sample_weight)
    name: Target = "y" if target is None else str(target)
    if isinstance(target, Mapping):
        name = {str(output): str(column) for output, column in target.items()}
    weight = None if sample_weight is None else str(sample_weight)
    if suffix == ".tsv":
        return CsvFile(path, name, sample_weight=weight, delimiter="\t")
    kinds: dict[str, type[_File]] = {".csv": CsvFile, ".npz": NpzFile, ".parquet": ParquetFile}
    if suffix not in kinds:
        raise DataError(
            what=f"{text}: a file of type '{suffix}' cannot be read",
            file=text,
            hint="Give a .csv, .tsv, .npz, .npy or .parquet file.",
        )
    return kinds[suffix](path, name, sample_weight=weight)


def _layout(
    session: TrainingSession, target: Target, sample_weight: str | None, ignored: Sequence[str]
) -> _core.FileLayout:
    """Return what the columns of a file are for the model of `session`."""
    first = session._core.loss
    losses = (first, *first.others)

    def is_text(output: str) -> bool:
        one = next((loss for loss in losses if output in (loss.output, loss.scores)), first)
        classes = None if one.classes is None else from_native(one.classes)
        return classes is not None and classes.dtype.kind in "OU"

    several = target if isinstance(target, Mapping) else {}
    missing = [one for one in losses if not {one.output, one.scores} & {*several}]
    if missing and (several or len(losses) > 1):
        raise DataError(
            what=f"there is no target for output '{missing[0].output}'",
            value=missing[0].output,
            detail=f"Given are {', '.join(several)}." if several else "",
            hint="Name a column for each output that has a loss: {'output': 'column'}.",
        )
    return _core.FileLayout(
        session._core.inputs,
        "" if isinstance(target, Mapping) else target,
        is_text(first.output),
        sample_weight or "",
        list(ignored),
        [_core.TargetColumn(output, name, is_text(output)) for output, name in several.items()],
    )


def _are_names(y: Any) -> bool:
    if isinstance(y, Mapping):
        return bool(y) and all(isinstance(name, str) for name in y.values())
    return isinstance(y, str)


def as_source(X: Any, y: Any, sample_weight: Any = None) -> tuple[Source | None, Any, Any]:
    """Return the source that `X` is or stands for, and what is left of `y` and `sample_weight`.

    The source is None if these are arrays. Names in a file are taken into its source.
    """
    if isinstance(X, Source):
        return X, y, sample_weight
    if isinstance(X, (str, os.PathLike)):
        return open_file(X, y, sample_weight), None, None
    array_names = ("__array__", "__dlpack__", "__arrow_c_stream__", "__arrow_c_array__")
    is_array = isinstance(X, Mapping) or is_sparse(X)
    is_array = is_array or any(hasattr(X, name) for name in array_names)
    if is_array or not (callable(X) or hasattr(X, "__iter__")):
        return None, y, sample_weight
    if y is None:
        return Batches(X), y, sample_weight
    if _are_names(y):
        has_name = isinstance(sample_weight, str)
        source = Batches(X, target=y, sample_weight=sample_weight if has_name else False)
        return source, None, None if has_name else sample_weight
    return None, y, sample_weight


def source_like(source: Source | None, validation: Any) -> Any:
    """Return the source for another file with the columns of `source`; what is no path stays."""
    if not isinstance(validation, (str, os.PathLike)):
        return validation
    if isinstance(source, _File):
        other = copy.copy(source)
        other.path = path_text("validation", validation)
        return other
    raise DataError(
        what="validation is a path, but the rows do not come from a file with named columns",
        value="validation",
        hint="Give og.data.CsvFile(path, target) or the like.",
    )


def window_starts(rows: int, batch_size: int, seed: int = 0, epoch: int = 0) -> list[int]:
    """Return the first rows of the batches of an epoch of ``fit(sampling="windows")``.

    Parameters
    ----------
    rows, batch_size : int
        At least 1.
    seed : int, default=0
        Of the trainer.
    epoch : int, default=0
        From 0.

    Returns
    -------
    list of int
        ceil(rows / batch_size) numbers in [0, rows - batch_size], drawn uniformly; 0 alone where a
        batch is all rows.

    Raises
    ------
    OptionError
        Numbers below 1.

    Examples
    --------
    >>> from onnxgrad.data import window_starts
    >>> len(window_starts(25, 10))
    3
    """
    rows, batch_size = positive_int("rows", rows), positive_int("batch_size", batch_size)
    seed, epoch = positive_int("seed", seed, 0), positive_int("epoch", epoch, 0)
    return _core.window_starts(rows, batch_size, seed, epoch)
