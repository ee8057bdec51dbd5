"""Rows in several files."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onnxgrad import _core
from onnxgrad.base.checks import path_text
from onnxgrad.data.sources import PathLike, Session, Source
from onnxgrad.errors import DataError

__all__ = ["Shards", "files_of", "is_pattern"]


class Shards(Source):
    """Rows of several sources that are a data set together: files of one form, of any sizes.

    Parameters
    ----------
    sources : sequence of Source
        Such as `CsvFile` for each file. `open_file` makes it of a pattern: ``"train-*.parquet"``.

    Notes
    -----
    The order of a shuffled epoch is a function of seed and epoch: files one after another in a
    random order, and the rows as in one file. No index of all rows is made. Of several workers,
    each opens the files with its rows only.

    Examples
    --------
    >>> import onnxgrad as og
    >>> rows = og.data.Shards([og.data.CsvFile("train.csv", "price")])
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = list(sources)
        if not self.sources or not all(isinstance(one, Source) for one in self.sources):
            raise DataError(
                what="Shards: expected a list of sources",
                value="sources",
                hint="Give files: og.data.Shards([og.data.CsvFile('a.csv'), ...]).",
            )
        weighted = {one.has_sample_weight for one in self.sources}
        if len(weighted) > 1:
            raise DataError(
                what="Shards: some sources have sample weights, others have not",
                value="sources",
                hint="Give sample_weight= for all of them, or for none.",
            )
        self.has_sample_weight = weighted.pop()

    def __repr__(self) -> str:
        return f"Shards({self.sources!r})"

    def native(self, session: Session) -> _core.DataSource:
        """Return the extension's reader for the inputs and the target of `session`."""
        return _core.open_shards(
            [
                (repr(source), lambda source=source: source.native(session), *known)
                for source, known in zip(self.sources, self._rows(session), strict=True)
            ]
        )

    def _rows(self, session: Session) -> list[tuple[int | None, list[int], int]]:
        """Count the rows of all files and of their pieces; several workers each count some."""
        parallel = getattr(session, "_data_parallel", None)
        found: list[tuple[int | None, list[int], int]] = [(None, [], 0)] * len(self.sources)
        if parallel is None:
            return found
        workers = parallel.workers
        has_pieces = len(self.sources) < _core.SHARDS_AS_PIECES
        mine = []
        for source in self.sources[workers.rank :: workers.size]:
            native = source.native(session)
            pieces = native.pieces()
            counts = [count for count, _ in pieces]
            rows = sum(counts) if native.num_rows is None else native.num_rows
            largest = max((size for _, size in pieces), default=0)
            mine.append((rows, counts if has_pieces and counts else [rows], largest))
        for rank, text in enumerate(workers.gather(json.dumps(mine))):
            found[rank :: workers.size] = [tuple(one) for one in json.loads(text)]
        return found


def is_pattern(path: Any) -> bool:
    """Return whether a path is a pattern of file names, and no file itself."""
    if not isinstance(path, (str, os.PathLike)):
        return False
    text = os.fspath(path)
    return glob.has_magic(text) and not Path(text).exists()


def files_of(pattern: PathLike) -> list[str]:
    """Return the files that a pattern matches, in order of their names.

    Raises
    ------
    DataError
        There is none.
    """
    text = path_text("path", pattern)
    path = Path(text)
    found = sorted(
        str(one)
        for one in Path(path.anchor).glob(str(path.relative_to(path.anchor)))
        if one.is_file()
    )
    if not found:
        raise DataError(
            what=f"no file matches '{text}'",
            file=text,
            hint="Check the folder and the pattern: * is any part of a name, ** any folders.",
        )
    return found
