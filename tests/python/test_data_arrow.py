"""Tables with the Arrow C interface, DLPack, and text labels; their libraries are not imported."""

import numpy as np
import pytest

import onnxgrad as og
from onnxgrad.data.arrow import columns_of
from support import DLPackOnly, mlp_proto, run_python

pa = pytest.importorskip("pyarrow")


class Stream:
    """An object that supports only the interface."""

    def __init__(self, table):
        self._table = table
        self.column_names = table.schema.names

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


class Array:
    def __init__(self, batch):
        self._batch = batch
        self.schema = batch.schema

    def __arrow_c_array__(self, requested_schema=None):
        return self._batch.__arrow_c_array__(requested_schema)


NUMBER_TYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
NUMBER_TYPES += ["float16", "float32", "float64", "bool"]


@pytest.mark.parametrize("dtype", NUMBER_TYPES)
@pytest.mark.parametrize("chunks", [1, 3])
def test_numbers(dtype, chunks):
    values = np.arange(30) % 2 if dtype == "bool" else np.arange(30)
    values = values.astype(dtype)
    array = pa.chunked_array([pa.array(part) for part in np.split(values, chunks)])
    found = columns_of(Stream(pa.table({"a": array})))["a"]
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("dtype", ["int64", "float32", "float64", "bool", "uint8"])
@pytest.mark.parametrize("start", [0, 3, 9])
def test_nulls_are_nan(dtype, start):
    values = [1, None, 0, 1, None, 1, 0, 1, 1, None, 1, 0]
    kind = pa.bool_() if dtype == "bool" else pa.from_numpy_dtype(np.dtype(dtype))
    array = pa.array([None if v is None else (bool(v) if dtype == "bool" else v) for v in values])
    table = pa.table({"a": array.cast(kind)}).slice(start)
    found = columns_of(Stream(table))["a"]
    expected = np.array([np.nan if v is None else v for v in values], np.float64)[start:]
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == (np.float32 if dtype == "float32" else np.float64)


def test_nulls_in_one_chunk_only():
    array = pa.chunked_array([pa.array([1, 2]), pa.array([3, None])])
    np.testing.assert_array_equal(columns_of(pa.table({"a": array}))["a"], [1, 2, 3, np.nan])


TEXTS = ["a", "", "ünï", "a text that is longer than twelve bytes", "𝄞"] * 3


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
@pytest.mark.parametrize("start", [0, 4])
def test_texts(kind, start):
    array = pa.array(TEXTS)
    array = array.dictionary_encode() if kind == "dictionary" else array.cast(getattr(pa, kind)())
    table = pa.table({"a": array}).slice(start)
    assert columns_of(Stream(table))["a"].tolist() == TEXTS[start:]


def test_numbers_in_dictionaries():
    array = pa.array([5, 7, 5, None, 9]).dictionary_encode()
    np.testing.assert_array_equal(columns_of(pa.table({"a": array}))["a"], [5, 7, 5, np.nan, 9])
    array = pa.array([5, 7, 5]).dictionary_encode()
    assert columns_of(pa.table({"a": array}))["a"].dtype == np.int64


def test_lists_of_one_length():
    rows = np.arange(24.0).reshape(8, 3)
    array = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 3)
    for start in (0, 2):
        found = columns_of(pa.table({"a": array}).slice(start))["a"]
        np.testing.assert_array_equal(found, rows[start:])


def test_one_batch_is_shared_and_outlives_the_table():
    array = pa.array(np.arange(1000.0))
    found = columns_of(Array(pa.record_batch({"a": array})))["a"]
    assert found.ctypes.data == array.buffers()[1].address
    del array
    np.testing.assert_array_equal(found, np.arange(1000.0))


REFUSED = {
    "dates": (pa.array([1, 2], pa.date32()), "Arrow type 'tdD'"),
    "structures": (pa.array([{"x": 1}]), "cannot be used"),
    "lists": (pa.array([[1], [1, 2]]), "cannot be used"),
    "missing text": (pa.array(["a", None]), "has no text in row 1"),
    "no rows": (pa.array([], pa.int64()), "no rows"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    array, message = REFUSED[case]
    with pytest.raises(og.DataError, match=message):
        columns_of(pa.table({"a": array}))


def test_capsule_is_used_once():
    capsule = pa.table({"a": [1, 2]}).__arrow_c_stream__()

    class Used:
        columns = ()

        def __arrow_c_stream__(self, requested_schema=None):
            return capsule

    columns_of(Used())
    with pytest.raises(og.DataError, match="used already"):
        columns_of(Used())


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 4)).astype(np.float32)
    return X, (X @ np.array([1, -2, 0.5, 0])).astype(np.float32), rng.uniform(1, 2, 120)


WRAP = {
    "table": lambda table: table,
    "stream": Stream,
    "array": lambda table: Array(table.combine_chunks().to_batches()[0]),
}


@pytest.mark.parametrize("wrap", WRAP)
def test_training_on_a_table(wrap, rows):
    X, y, w = rows
    table = pa.table({"a": X[:, 0], "t": y, **{f"c{i}": X[:, i] for i in (1, 2, 3)}, "w": w})
    options = {"epochs": 2, "validation": None, "verbose": 0}
    expected = og.Trainer(mlp_proto([4, 8, 1])).fit(X, y, w, **options)
    found = og.Trainer(mlp_proto([4, 8, 1])).fit(WRAP[wrap](table), "t", "w", **options)
    assert found.history["train_loss"] == expected.history["train_loss"]
    inputs = table.drop_columns(["t", "w"])
    np.testing.assert_array_equal(found.predict(WRAP[wrap](inputs)), found.predict(X))
    assert found.evaluate(WRAP[wrap](inputs), y).loss == found.evaluate(X, y).loss
    validation = (WRAP[wrap](inputs), table.column("t"))
    found.fit(X, pa.chunked_array([pa.array(y)]), epochs=1, validation=validation, verbose=0)


def test_pandas_without_its_index(rows):
    pd = pytest.importorskip("pandas")
    X, y, _ = rows
    table = pd.DataFrame({**{f"c{i}": X[:, i] for i in range(4)}, "t": y})
    order = np.random.default_rng(0).permutation(len(X))
    mixed = table.iloc[order]  # the index is no range now
    options = {"epochs": 2, "verbose": 0}
    expected = og.Trainer(mlp_proto([4, 8, 1])).fit(X[order], y[order], **options)
    found = og.Trainer(mlp_proto([4, 8, 1])).fit(mixed, "t", **options)
    assert found.history["train_loss"] == expected.history["train_loss"]
    inputs = mixed.drop(columns="t")
    found.fit(inputs, mixed["t"], epochs=1, verbose=0)
    np.testing.assert_array_equal(found.predict(inputs), found.predict(X[order]))
    text = pd.DataFrame({"X": ["a", "b"], "n": pd.array([1, None], "Int64")})
    columns = columns_of(text)
    assert columns["X"].tolist() == ["a", "b"]
    np.testing.assert_array_equal(columns["n"], [1, np.nan])


def test_columns_that_are_missing(rows):
    table = pa.table({"a": rows[0][:, 0]})
    with pytest.raises(og.DataError, match="no column 'b'"):
        og.Trainer(mlp_proto([1, 1])).fit(table, "b", verbose=0)
    with pytest.raises(og.DataError, match="no column for the model's input 'X'"):
        og.Trainer(mlp_proto([1, 1])).fit(table, "a", verbose=0)
    table = pa.table({"a": rows[0][:, 0], "s": ["x"] * 120})
    with pytest.raises(og.DataError, match="column 's' has strings"):
        og.Trainer(mlp_proto([2, 1])).fit(table, rows[1], verbose=0)


def test_dlpack_alone_is_enough(rows):
    X, y, w = rows
    expected = og.Trainer(mlp_proto([4, 8, 1])).fit(X, y, w, epochs=2, verbose=0)
    found = og.Trainer(mlp_proto([4, 8, 1]))
    found.fit(DLPackOnly(X), DLPackOnly(y), DLPackOnly(w), epochs=2, verbose=0)
    assert found.history["train_loss"] == expected.history["train_loss"]


def test_nothing_is_imported():
    code = """
import sys
import onnxgrad as og, onnxgrad.data.arrow, onnxgrad.data.parquet
print([name for name in ("pyarrow", "pandas", "polars", "tensorboardX") if name in sys.modules])
"""
    assert run_python(code).stdout.strip() == "[]"


def test_text_labels_without_a_class_list():
    rng = np.random.default_rng(1)
    numbers = rng.integers(0, 3, 150)
    X = (rng.normal(size=(150, 4)) + 3 * np.eye(3, 4)[numbers]).astype(np.float32)
    texts = np.array(["ash", "birch", "cedar"])[numbers]
    options = {"validation": 0.2, "epochs": 3, "verbose": 0}
    expected = og.Trainer(mlp_proto([4, 3], head="Softmax")).fit(X, numbers, **options)
    found = og.Trainer(mlp_proto([4, 3], head="Softmax")).fit(X, texts, **options)
    for name in ("train_loss", "val_loss", "val_accuracy"):
        assert found.history[name] == expected.history[name]
    assert found.evaluate(X, texts).loss == expected.evaluate(X, numbers).loss
    with pytest.raises(og.DataError, match="label 'elm' in row 2"):
        found.evaluate(X[:3], ["ash", "ash", "elm"])
    with pytest.raises(og.DataError, match="4 different labels, but the model has 3"):
        og.Trainer(mlp_proto([4, 3], head="Softmax")).fit(X[:4], list("abcd"), verbose=0)
    with pytest.raises(og.DataError, match="does not list its classes"):
        og.Trainer(mlp_proto([4, 3], head="Softmax")).evaluate(X, texts)
