"""A CSV file with all epochs of a training, however long."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Mapping
from pathlib import Path

from onnxgrad.errors import CheckpointError
from onnxgrad.files import LineFile, write_file
from onnxgrad.history import History, cell_text

__all__ = ["EpochTable"]


class EpochTable:
    """Adds a line to a CSV file for each epoch; the first line has the names.

    The file has all epochs, where a history keeps some: it is rewritten, where columns are new
    or a training continues, from its own lines and what the history has.

    Parameters
    ----------
    path : path
    goes_on : bool
        Whether existing lines are earlier epochs of the same training.
    """

    def __init__(self, path: Path, goes_on: bool) -> None:
        self._path = path
        self._goes_on = goes_on
        self._columns: list[str] = []
        self._file: LineFile | None = None

    def add(self, history: History, log: Mapping[str, float]) -> None:
        """Write the line of an epoch, the last one of `history`.

        Raises
        ------
        CheckpointError
            The file cannot be written. The next line that can brings what is missing.
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
        self._goes_on = True

    def close(self, history: History) -> None:
        """Flush and close the file; one without lines so far gets those of `history`."""
        if self._file is not None:
            self._file.close()
            self._file = None
        elif not self._goes_on or not self._path.exists():
            history.to_csv(self._path)

    def _begin(self, history: History, log: Mapping[str, float]) -> None:
        """Write what is known of the epochs before this one."""
        if self._file is not None:
            self._file.close()
        rows = self._known() if self._goes_on else {}
        for cells in zip(*history.values(), strict=True):
            row = dict(zip(history, map(cell_text, cells), strict=True))
            rows[int(row["epoch"])] = row
        self._columns = list(dict.fromkeys([*(n for row in rows.values() for n in row), *log]))
        earlier = [rows[epoch] for epoch in sorted(rows) if epoch < log["epoch"]]
        lines = [self._columns, *([row.get(name, "") for name in self._columns] for row in earlier)]
        write_file(self._path, "".join(",".join(line) + "\n" for line in lines))
        self._file = LineFile(self._path, append=True)

    def _line(self, log: Mapping[str, float]) -> str:
        cells = (cell_text(log[name]) if name in log else "" for name in self._columns)
        return ",".join(cells) + "\n"

    def _known(self) -> dict[int, dict[str, str]]:
        """Return the lines of the file by epoch; those that are cut off are left out."""
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return {}
        names, *lines = csv.reader(io.StringIO(text)) if text.strip() else [[]]
        whole = (dict(zip(names, line, strict=True)) for line in lines if len(line) == len(names))
        return {int(row["epoch"]): row for row in whole if row.get("epoch", "").isdigit()}
