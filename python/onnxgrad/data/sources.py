"""The base classes of sources of rows, and of files with named columns."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from onnxgrad import _core
from onnxgrad.base.checks import (
    mapping,
    path_text,
    patterns,
    plain_text,
    positive_int,
    several,
    shown,
)
from onnxgrad.data.arrays import from_native
from onnxgrad.errors import DataError, OptionError

__all__ = [
    "CHUNK_BYTES",
    "ColumnFile",
    "PathLike",
    "Session",
    "Source",
    "Target",
    "layout",
    "one_character",
    "unknown_suffix",
]

PathLike: TypeAlias = "str | os.PathLike[str]"

Target: TypeAlias = "str | Sequence[str] | Mapping[str, str]"
"""The name of the target's column, those of several columns of it, or a dictionary by output."""

CHUNK_BYTES = 1 << 20


class Session(Protocol):
    """The part of a `TrainingSession` that sources use."""

    _model: _core.Model
    _core: _core.TrainingSession


class Source:
    """Base class of sources that read rows in chunks."""

    has_sample_weight = False
    has_own_batches = False
    """Whether its chunks are the batches to train on, unless another size is requested."""

    keeps_batches = False
    """Whether another size than that of its batches, or a random part of them, has no meaning."""

    def check_settled(self, session: Session) -> None:
        """Check a loss that the first rows may have decided."""

    def native(self, session: Session) -> _core.DataSource:
        """Return the extension's reader for the inputs and the target of `session`."""
        raise NotImplementedError


def unknown_suffix(path: str, suffix: str) -> DataError:
    """Return the error for a file whose suffix is not that of a table."""
    return DataError(
        what=f"{path}: files of type '{suffix}' are not supported",
        file=path,
        hint="Give a .csv, .tsv, .npz, .npy or .parquet file.",
    )


def one_character(option: str, value: Any) -> str:
    """Return `value`, a column separator, if it is a single ASCII character."""
    if not isinstance(value, str) or len(value) != 1 or not value.isascii():
        raise OptionError(
            what=f"{option}: {shown(value)}, expected one character",
            value=option,
            hint="Give the character between the cells, such as ',' or ';'.",
        )
    return value


class ColumnFile(Source):
    """A file with named columns (or arrays)."""

    def __init__(
        self,
        path: PathLike,
        target: Target = "y",
        *,
        sample_weight: str | None = None,
        ignored: Sequence[str] = (),
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.path = path_text("path", path)
        self.target: Target = target
        if isinstance(target, Mapping):
            self.target = mapping("target", target, "columns")
        elif not isinstance(target, str):
            names = several("target", target, "columns")
            self.target = names if len(names) != 1 else names[0]
        self.sample_weight = None
        if sample_weight is not None:
            self.sample_weight = plain_text("sample_weight", sample_weight, "weight")
        self.ignored = patterns("ignored", ignored)
        self.chunk_bytes = positive_int("chunk_bytes", chunk_bytes)
        self.has_sample_weight = sample_weight is not None

    def __repr__(self) -> str:
        text = f"{type(self).__name__}({self.path!r}, target={self.target!r}"
        if self.sample_weight is not None:
            text += f", sample_weight={self.sample_weight!r}"
        return text + (f", ignored={self.ignored!r})" if self.ignored else ")")

    def layout(self, session: _core.TrainingSession) -> _core.FileLayout:
        """Return the roles of the columns for the model of `session`."""
        return layout(session, self.target, self.sample_weight, self.ignored)


def layout(
    session: _core.TrainingSession,
    target: Target,
    sample_weight: str | None,
    ignored: Sequence[str],
) -> _core.FileLayout:
    """Return the roles of a file's columns for the model of `session`."""
    first = session.loss
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
            detail=f"Given: {', '.join(several)}." if several else "",
            hint="Give a column for each output with a loss: {'output': 'column'}.",
        )
    columns = [
        _core.TargetColumn(output, name, is_text(output)) for output, name in several.items()
    ]
    if not isinstance(target, (str, Mapping)):  # of one target
        columns = [_core.TargetColumn("", name, False) for name in target]
    return _core.FileLayout(
        session.inputs,
        target if isinstance(target, str) else "",
        is_text(first.output),
        sample_weight or "",
        list(ignored),
        columns,
    )
