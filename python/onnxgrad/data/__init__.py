"""Rows that are not arrays in memory: batches that a program makes, and files.

`Trainer.fit`, `Trainer.evaluate` and their `validation` accept these instead of arrays. Files may
be larger than memory: they are read in chunks by a separate thread and collected in two blocks of
at most 32 MiB: one is trained on while the other is filled. With ``shuffle=True`` the chunks of an
epoch come in a random order (where a file allows that), and then the rows of each block; both
orders are functions of the trainer's seed and the number of the epoch.
"""

from onnxgrad.data.batches import Batches
from onnxgrad.data.files import CsvFile, NpyFiles, NpzFile, open_file
from onnxgrad.data.notes import DataWarning
from onnxgrad.data.parquet import ParquetFile
from onnxgrad.data.rows import window_starts
from onnxgrad.data.sources import Source

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
