"""`Trainer.fit` and `evaluate` read what they are given once."""

import numpy as np
import pyarrow as pa
import pytest

import onnxgrad as og
from onnxgrad.data import labels
from onnxgrad.trainer import rows
from support import mlp_proto

X = np.arange(24, dtype=np.float32).reshape(12, 2) / 24
y = X.sum(axis=1, keepdims=True)


class Counted:
    """An array, or the C interface of a table, that counts how often it is read."""

    def __init__(self, array):
        self.array = array
        self.reads = 0

    def __array__(self, dtype=None, copy=None):
        self.reads += 1
        return np.array(self.array, dtype)


class CountedTable:
    def __init__(self, **columns):
        self.table = pa.table(columns)
        self.column_names = self.table.column_names
        self.reads = 0

    def __arrow_c_stream__(self, requested_schema=None):
        self.reads += 1
        return self.table.__arrow_c_stream__(requested_schema)


@pytest.fixture
def unpacked(monkeypatch):
    """Return a list that gets an entry for each call that unpacks rows."""
    calls = []
    unpack_table = rows.unpack_table

    def counted(*arguments):
        calls.append(arguments)
        return unpack_table(*arguments)

    monkeypatch.setattr(rows, "unpack_table", counted)
    return calls


def test_arrays_are_read_once(linear_model, unpacked):
    given = [Counted(X), Counted(y), Counted(np.ones(12, np.float32))]
    og.Trainer(linear_model, "squared_error").fit(*given, epochs=2, verbose=0)
    assert [one.reads for one in given] == [1, 1, 1]
    assert len(unpacked) == 1


def test_a_table_is_read_once(linear_model, unpacked):
    table = CountedTable(a=X[:, 0], b=X[:, 1], price=y[:, 0])
    held_out = CountedTable(a=X[:, 0], b=X[:, 1], price=y[:, 0])
    trainer = og.Trainer(linear_model, "squared_error")
    trainer.fit(table, "price", validation=held_out, epochs=2, verbose=0)
    assert (table.reads, held_out.reads, len(unpacked)) == (1, 1, 2)
    trainer.evaluate(table, "price")
    assert (table.reads, len(unpacked)) == (2, 3)


def test_labels_are_converted_once(monkeypatch):
    """Strings of a model that lists no classes are learned and numbered by the same conversion."""
    names = []
    to_native = labels.to_native

    def counted(value, name):
        names.append(name)
        return to_native(value, name)

    monkeypatch.setattr(labels, "to_native", counted)
    trainer = og.Trainer(mlp_proto([2, 3], head="Softmax"))
    trainer.fit(X, np.array(["no", "yes", "so"] * 4), class_weight="balanced", epochs=1, verbose=0)
    assert names == ["y"]
