"""A CSV file with all epochs of a training, even one too long for its history."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Mapping
from pathlib import Path

from onnxgrad.base.opening import open_input
from onnxgrad.errors import CheckpointError
from onnxgrad.files import LineFile, open_own, write_file, write_own_file
from onnxgrad.history import History, cell_text

__all__ = ["EpochTable"]


class EpochTable:
    """Adds a line to a CSV file for each epoch, after a line with the names.

    Unlike a history, the file keeps all epochs. If columns are added or a training continues, it is
    rewritten from its own lines and the history.

    Parameters
    ----------
    path : path
    append : bool
        Whether existing lines are earlier epochs of the same training.
    own : bool, default=False
        Whether the file is in a folder that onnxgrad keeps; see `onnxgrad.files.LineFile`.
    """

    def __init__(self, path: Path, append: bool, *, own: bool = False) -> None:
        self._path = path
        self._append = append
        self._own = own
        self._columns: list[str] = []
        self._file: LineFile | None = None

    def add(self, history: History, log: Mapping[str, float]) -> None:
        """Write the line of an epoch, the last one of `history`.

        Raises
        ------
        CheckpointError
            The file cannot be written. The next successful call also writes the missing lines.
        """
        try:
            if self._file is None or not {*log} <= {*self._columns}:
                self._begin(history, log)
            assert self._file is not None
            self._file.write(self._line(log))
        except BaseException:
            if self._file is not None:
                with contextlib.suppress(CheckpointError):
                    self._file.close()
                self._file = None
            raise
        self._append = True

    def close(self, history: History) -> None:
        """Flush and close the file; if it has no lines yet, write those of `history`."""
        if self._file is not None:
            self._file.close()
            self._file = None
        elif not self._append or not self._path.exists():
            self._write(history.csv_text())

    def _begin(self, history: History, log: Mapping[str, float]) -> None:
        """Write the known epochs before this one."""
        if self._file is not None:
            self._file.close()
        rows = self._read() if self._append else {}
        for cells in zip(*history.values(), strict=True):
            row = dict(zip(history, map(cell_text, cells), strict=True))
            rows[int(row["epoch"])] = row
        self._columns = list(dict.fromkeys([*(n for row in rows.values() for n in row), *log]))
        earlier = [rows[epoch] for epoch in sorted(rows) if epoch < log["epoch"]]
        lines = [self._columns, *([row.get(name, "") for name in self._columns] for row in earlier)]
        self._write("".join(",".join(line) + "\n" for line in lines))
        self._file = LineFile(self._path, append=True, own=self._own)

    def _write(self, text: str) -> None:
        (write_own_file if self._own else write_file)(self._path, text)

    def _line(self, log: Mapping[str, float]) -> str:
        cells = (cell_text(log[name]) if name in log else "" for name in self._columns)
        return ",".join(cells) + "\n"

    def _read(self) -> dict[int, dict[str, str]]:
        """Return the complete lines of the file by epoch; none of a file that is none of these."""
        try:
            with (open_own if self._own else open_input)(self._path) as file:
                text = file.read().decode("utf-8")
            names, *lines = csv.reader(io.StringIO(text)) if text.strip() else [[]]
        except (OSError, CheckpointError, UnicodeDecodeError, csv.Error):
            return {}
        rows = (dict(zip(names, line, strict=True)) for line in lines if len(line) == len(names))
        return {int(row["epoch"]): row for row in rows if row.get("epoch", "").isdecimal()}
