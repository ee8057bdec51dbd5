"""Sources of rows other than arrays in memory: batches from Python code, and files.

`Trainer.fit`, `Trainer.evaluate` and their `validation` accept these instead of arrays. Files may
be larger than memory: a separate thread reads them in chunks into two blocks of at most 32 MiB, one
of which is filled while the other is trained on. ``shuffle=True`` shuffles the chunks of an epoch
(if the file format allows it), takes rows from up to 16 of them at a time, and shuffles these in
each block; the order depends only on the trainer's seed and the number of the epoch.
"""

from onnxgrad.data import augmentation
from onnxgrad.data.augmentation import *  # noqa: F403
from onnxgrad.data.batches import Batches
from onnxgrad.data.changes import augment
from onnxgrad.data.files import CsvFile, NpyFiles, NpzFile, open_file
from onnxgrad.data.notes import DataWarning
from onnxgrad.data.parquet import ParquetFile
from onnxgrad.data.row_ranges import Rows
from onnxgrad.data.rows import window_starts
from onnxgrad.data.sequences import Sequences
from onnxgrad.data.shards import Shards
from onnxgrad.data.sources import Source
from onnxgrad.data.tokens import Preferences, Tokens

__all__ = [
    "Batches",
    "CsvFile",
    "DataWarning",
    "NpyFiles",
    "NpzFile",
    "ParquetFile",
    "Preferences",
    "Rows",
    "Sequences",
    "Shards",
    "Source",
    "Tokens",
    "augment",
    "open_file",
    "window_starts",
]
__all__ += augmentation.__all__
