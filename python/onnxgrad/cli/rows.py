"""The rows of ``onnxgrad train``: loaded if they fit into memory, else read in chunks."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from onnxgrad.base.opening import open_input
from onnxgrad.data.files import CsvFile, open_file
from onnxgrad.data.labels import ClassWeight, class_weight_from_text
from onnxgrad.data.maps import columns_of_maps
from onnxgrad.data.memory import free_bytes
from onnxgrad.data.parquet import open_parquet
from onnxgrad.data.shards import Shards, files_of, is_pattern
from onnxgrad.data.sources import Source, one_character
from onnxgrad.data.tables import Table, column_names, read_npy, read_table, with_truths
from onnxgrad.data.tokens import Preferences, Tokens
from onnxgrad.data.unlabelled import inputs_of_table
from onnxgrad.errors import DataError, OptionError
from onnxgrad.trainer import Trainer

__all__ = ["TrainData", "open_rows", "open_train_data", "takes_tokens"]

Rows = tuple[Any, Any, Any]
"""Arguments X, y and sample_weight of `Trainer.fit`; a source is an X alone."""


class TrainData(NamedTuple):
    """The data of a training.

    Attributes
    ----------
    rows : tuple
        Training data.
    validation : float, tuple, Source or None
        As for `Trainer.fit`.
    class_weight : dict, "balanced" or None
    is_streamed : bool
        Whether the files are read in chunks.
    has_batches : bool
        Whether the rows come in batches, whose size the source was given.
    """

    rows: Rows
    validation: Any
    class_weight: ClassWeight | None
    is_streamed: bool
    has_batches: bool = False

    @property
    def num_rows(self) -> int | None:
        """Number of rows, or None if it is unknown before the training."""
        if self.is_streamed:
            return None
        X, y, _ = self.rows
        columns = X if y is None else y
        return len(next(iter(columns.values())) if isinstance(columns, Mapping) else columns)


def open_train_data(trainer: Trainer, options: SimpleNamespace) -> TrainData:
    """Read or open the files that the options of the command line name.

    Raises
    ------
    DataError
        A file that cannot be read, or a missing column.
    """
    options.row_weight_values = None
    if takes_tokens(options):
        return _open_tokens(options)
    files = [options.data]
    fraction = _fraction(options.validation)
    if options.validation is not None and fraction is None:
        files.append(options.validation)
    is_streamed = options.target is not None and _is_streamed(files, options.stream)
    opened = _open if is_streamed else _read
    rows = opened(trainer, options.data, options)
    validation: Any = fraction
    if len(files) > 1:
        held_out = opened(trainer, options.validation, options)
        validation = held_out[0] if is_streamed else held_out
    weights = options.class_weight
    if weights is not None:
        weights = class_weight_from_text(weights, _has_text_labels(trainer, rows[1]))
    return TrainData(rows, validation, weights, is_streamed)


_LANGUAGE = ("causal_lm", "masked_lm", "seq2seq_lm", "dpo")


def takes_tokens(options: SimpleNamespace) -> bool:
    """Return whether the data is tokens, or texts, for a language model."""
    if options.target is not None:
        return False
    is_asked = options.sequence_length is not None or options.tokenizer is not None
    has_loss = options.loss.partition(":")[0] in _LANGUAGE
    return is_asked or has_loss or str(options.data).endswith(".bin")


def _open_tokens(options: SimpleNamespace) -> TrainData:
    source: Tokens | Preferences
    is_of_pairs = options.loss.partition(":")[0] == "dpo"
    if is_of_pairs:
        size = {} if options.batch_size is None else {"batch_size": options.batch_size}
        source = Preferences(
            options.data, options.sequence_length, tokenizer=options.tokenizer, **size
        )
    else:
        source = Tokens(
            options.data,
            options.sequence_length,
            tokenizer=options.tokenizer,
            separator=options.separator,
        )
    validation: Any = _fraction(options.validation)
    if options.validation is not None and validation is None:
        validation = source.like(options.validation)
    return TrainData((source, None, None), validation, None, True, has_batches=is_of_pairs)


def open_rows(
    trainer: Trainer,
    data: str,
    target: str | None,
    *,
    ignored: Sequence[str] | None = None,
    sample_weight: str | None = None,
    stream: bool | None = None,
    delimiter: str | None = None,
    loss: str = "auto",
    sequence_length: int | None = None,
    tokenizer: str | None = None,
    separator: int | None = None,
) -> Rows:
    """Read or open one file of rows, without options that only training has. Raises: DataError."""
    options = SimpleNamespace(
        data=data,
        target=target,
        sample_weight=sample_weight,
        ignored=ignored,
        stream=stream,
        validation=None,
        class_weight=None,
        batch_size=None,
        sequence_length=sequence_length,
        tokenizer=tokenizer,
        separator=separator,
        loss=loss,
        delimiter=delimiter,
        row_weights=None,
    )
    if target is None and not takes_tokens(options):
        raise OptionError(
            what="--target is missing",
            value="--target",
            hint="Give the column of the targets; tokens need --sequence-length or --tokenizer.",
        )
    return open_train_data(trainer, options).rows


def _fraction(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _is_streamed(files: list[str], wanted: bool | None) -> bool:
    if wanted is not None and not any(is_pattern(file) for file in files):
        return wanted
    if any(Path(file).suffix.lower() == ".jsonl" for file in files):
        return False
    if any(is_pattern(file) for file in files):
        return True
    return sum(_size_in_memory(file) for file in files) > free_bytes() / 4


def _size_in_memory(path: str) -> int:
    """Return the approximate size of a file's rows in memory; 0 if it cannot be read."""
    suffix = Path(path).suffix.lower()
    # Errors of the file are reported by its reader.
    with contextlib.suppress(OSError, ValueError, RuntimeError, zipfile.BadZipFile):
        if suffix == ".npz":
            with open_input(path) as file, zipfile.ZipFile(file) as archive:
                return sum(member.file_size for member in archive.infolist())
        if suffix == ".parquet":
            return _parquet_bytes(path)
        return Path(path).stat().st_size
    return 0


def _parquet_bytes(path: str) -> int:
    metadata = open_parquet(path).metadata
    return sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))


def _open(_trainer: Trainer, path: str, options: SimpleNamespace) -> Rows:
    target: str | list[str] = options.target
    if "," in options.target and not path.endswith(".npy"):
        names = column_names(files_of(path)[0] if is_pattern(path) else path, options.delimiter)
        target = _target_columns(names, options.target)
    if path.endswith(".npy") and path != options.data:
        raise _no_validation_file()
    source: Source = open_file(path, target, options.sample_weight)
    for one in source.sources if isinstance(source, Shards) else [source]:
        if options.ignored:
            one.ignored = list(options.ignored)  # type: ignore[attr-defined]
        if options.delimiter is not None and isinstance(one, CsvFile):
            one.delimiter = one_character("--delimiter", options.delimiter)
    return source, None, None


def _read(trainer: Trainer, path: str, options: SimpleNamespace) -> Rows:
    if Path(path).suffix.lower() == ".npy":
        if path != options.data and options.target is not None:
            raise _no_validation_file()
        names = (path, options.target, options.sample_weight)
        X, y, weight = (None if name is None else read_npy(name) for name in names)
        return X, y, weight
    table = read_table(path, options.delimiter)
    return _columns(trainer, table, options)


def _columns(trainer: Trainer, table: Table, options: SimpleNamespace) -> Rows:
    without = list(options.ignored or [])
    for name in without:
        table.take(name, "--ignored")
    if options.target is None:
        return _unlabelled(trainer, table, options, without)
    targets = _target_columns(table.columns, options.target)
    columns = [table.take(name, "--target") for name in targets]
    classes = trainer.session.classes
    if classes is None or classes.dtype.kind not in "UO":  # they are numbers
        columns = [with_truths(column, np.int64) for column in columns]
    y = columns[0] if len(columns) == 1 else _side_by_side(table, targets, columns)
    without += targets
    weight = None
    if options.sample_weight is not None:
        weight = table.take(options.sample_weight, "--sample-weight")
        without.append(options.sample_weight)
    if options.row_weights is not None:
        column = table.take(options.row_weights, "--row-weights")
        without.append(options.row_weights)
        if options.row_weight_values is None:  # those of the training rows come first
            options.row_weight_values = np.asarray(column, np.float64).ravel()
    inputs = trainer.session.get_inputs()
    texts = {value.name for value in inputs if value.type == "tensor(string)"}
    maps = columns_of_maps(trainer.session._core.inputs)
    names = [value.name for value in inputs]
    feeds = table.inputs(names, without, targets, options.sample_weight, maps, texts)
    return feeds, y, weight


def _unlabelled(
    trainer: Trainer, table: Table, options: SimpleNamespace, without: list[str]
) -> Rows:
    weight = None
    if options.sample_weight is not None:
        weight = table.take(options.sample_weight, "--sample-weight")
        without = [*without, options.sample_weight]
    session = trainer.session
    return inputs_of_table(session._core, session._views, table, without), None, weight


def _side_by_side(table: Table, names: list[str], columns: list[Any]) -> Any:
    for name, column in zip(names, columns, strict=True):
        if column.ndim > 1 and (column.ndim > 2 or column.shape[1] != 1):
            shapes = ", ".join(
                f"'{n}' {list(c.shape)}" for n, c in zip(names, columns, strict=True)
            )
            raise DataError(
                what=f"{table.path}: targets that are not columns: {shapes}",
                file=table.path,
                value=name,
                hint="Give --target once for an array of several columns.",
            )
    return np.column_stack([column.ravel() for column in columns])


def _target_columns(names: Collection[str], target: str) -> list[str]:
    """Return the columns of ``--target``: one of `names`, or several with commas between them."""
    if target in names or "," not in target:
        return [target]
    return [name.strip() for name in target.split(",")]


def _no_validation_file() -> OptionError:
    return OptionError(
        what="--validation: an .npy file has no target",
        value="--validation",
        hint="Give a fraction of the rows, or store the arrays in .npz files.",
    )


def _has_text_labels(trainer: Trainer, y: Any) -> bool:
    if y is None:  # read later
        y = trainer.session.classes
    return y is not None and y.dtype.kind in "UO"
