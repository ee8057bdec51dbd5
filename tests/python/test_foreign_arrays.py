"""Arrays and tables of other libraries, wherever arrays are taken, by protocols and really."""

import ctypes

import ml_dtypes
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import onnxgrad as og
from exported_models import ROWS, TARGETS, proto
from onnxgrad.compat.onnxcustom.training.fitting import as_array
from onnxgrad.compat.onnxruntime.values import array_of
from onnxgrad.data.arrays import as_numpy, to_native
from onnxgrad.data.arrow import columns_of, is_table
from onnxgrad.sklearn import OnnxRegressor

WEIGHTS = np.array([1, 2, 1, 2], np.float32)
REASON = "`make interop` runs it"


class OnDevice:
    """An array in the memory of a GPU, as CuPy's: no implicit copy."""

    def __init__(self, array, kind=2):
        self.array, self.kind = array, kind

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, *, max_version=None, **_):
        if self.kind == 2:
            raise BufferError("not on the host")
        return self.array.__dlpack__(max_version=max_version)

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def get(self):
        return self.array


class Typed:
    """An array with a type of DLPack that NumPy lacks, by its bits."""

    def __init__(self, bits, code):
        self.bits, self.code = bits, code

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, *, max_version=None, **_):
        capsule = self.bits.__dlpack__(max_version=max_version)
        name, start = (b"dltensor_versioned", 52) if max_version else (b"dltensor", 20)
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        ctypes.c_uint8.from_address(pointer(capsule, name) + start).value = self.code
        return capsule


class OldTyped(Typed):
    """An array of that kind with DLPack before its versions."""

    def __dlpack__(self):
        return super().__dlpack__()


class Stream:
    """A table or a column with the Arrow interface alone."""

    def __init__(self, arrow):
        self.arrow = arrow
        if isinstance(arrow, pa.Table):
            self.columns = arrow.column_names

    def __arrow_c_stream__(self, requested_schema=None):
        return self.arrow.__arrow_c_stream__(requested_schema)


class Column:
    """A column of the package datasets: rows are read one by one, slices at once."""

    column_name = "y"
    source = None

    def __init__(self, values):
        self.values = values

    def __getitem__(self, key):
        assert isinstance(key, slice)
        return self.values[key]


class Dataset:
    """A table of the package datasets, as far as onnxgrad uses it."""

    def __init__(self, table, kind=None, columns=None):
        self.table = table
        self.format = {"type": kind, "columns": columns or table.column_names}

    column_names = property(lambda self: self.format["columns"])

    def __len__(self):
        return len(self.table)

    def with_format(self, kind, columns=None):
        return Dataset(self.table, kind, columns)

    def __getitem__(self, key):
        assert key == slice(None)
        if self.format["type"] == "custom":
            return {name: np.asarray(self.table[name]) for name in self.column_names}
        assert self.format["type"] == "arrow"
        return self.table.select(self.column_names)


def table_of(array, names="abc"):
    return pa.table({name: array[:, i] for i, name in enumerate(names[: array.shape[1]])})


def in_parts(array):
    return pa.chunked_array([pa.array(array[:1]), pa.array(array[1:])])


def by_rank(of_tables, of_columns):
    return lambda array: of_tables(array) if array.ndim == 2 else of_columns(array)


def reversed_index(array):
    made = pd.DataFrame(array) if array.ndim == 2 else pd.Series(array)
    return made.set_axis(np.arange(len(array))[::-1], axis=0)


def in_torch(change):
    def make(array):
        torch = pytest.importorskip("torch", reason=REASON)
        return change(torch, torch.from_numpy(array.copy()))

    return make


def in_jax(array):
    return pytest.importorskip("jax.numpy", reason=REASON).asarray(array)


def in_polars(array):
    pl = pytest.importorskip("polars", reason=REASON)
    if array.ndim == 1:
        return pl.Series(array)
    return pl.DataFrame({str(i): column for i, column in enumerate(array.T)})


def in_datasets(kind):
    def make(array):
        datasets = pytest.importorskip("datasets", reason=REASON)
        if kind in ("torch", "jax", "polars"):
            pytest.importorskip(kind, reason=REASON)
        if isinstance(array, dict):
            return datasets.Dataset.from_dict(array)
        columns = array.reshape(len(array), -1).T
        made = datasets.Dataset.from_dict({str(i): column for i, column in enumerate(columns)})
        made = made.with_format(kind)
        return made["0"] if array.ndim == 1 else made

    return make


FORMATS = (None, "numpy", "torch", "jax", "pandas", "polars", "arrow")
ARRAYS = {
    "managed memory": lambda array: OnDevice(array, 13),
    "Arrow stream": by_rank(lambda a: Stream(table_of(a)), lambda a: Stream(in_parts(a))),
    "record batch": by_rank(lambda a: table_of(a).to_batches()[0], pa.array),
    "table": by_rank(table_of, in_parts),
    "reader": by_rank(lambda a: table_of(a).to_reader(), pa.array),
    "lists": by_rank(lambda a: pa.array(a.tolist(), pa.list_(pa.float32())), pa.array),
    "pandas": reversed_index,
    "nullable pandas": lambda array: reversed_index(array).astype("Float32"),
    "dataset": by_rank(lambda a: Dataset(table_of(a)), Column),
    "formatted dataset": by_rank(lambda a: Dataset(table_of(a), "torch"), Column),
    "transformed dataset": by_rank(lambda a: Dataset(table_of(a), "custom"), Column),
    "torch": in_torch(lambda _, tensor: tensor),
    "torch parameter": in_torch(lambda torch, tensor: torch.nn.Parameter(tensor)),
    "torch graph": in_torch(lambda torch, tensor: torch.nn.Parameter(tensor) * 1),
    "torch transposed": in_torch(lambda _, tensor: tensor.T.contiguous().T),
    "jax": in_jax,
    "polars": in_polars,
    **{f"datasets {kind}": in_datasets(kind) for kind in FORMATS},
}


def fitted(X, y, weight):
    return og.Trainer(proto(), "mse").fit(X, y, weight, epochs=2, verbose=0)


PREDICTED = og.InferenceSession(proto()).run(None, {"X": ROWS})[0]
FITTED = og.state_dict(fitted(ROWS, TARGETS, WEIGHTS).trained_model())


def same_fit(make):
    found = og.state_dict(fitted(make(ROWS), make(TARGETS), make(WEIGHTS)).trained_model())
    return all(np.allclose(found[name], FITTED[name], atol=1e-6) for name in FITTED)


def estimator_agrees(make):
    one = OnnxRegressor(proto(), max_iter=1).fit(ROWS, TARGETS, WEIGHTS)
    other = OnnxRegressor(proto(), max_iter=1).fit(make(ROWS), make(TARGETS), make(WEIGHTS))
    return np.allclose(one.predict(ROWS), other.predict(make(ROWS)), atol=1e-6)


def trainer():
    return og.Trainer(proto(), "mse")


def batches(make):
    return trainer().fit([(make(ROWS), make(TARGETS))], epochs=1, verbose=0).epochs == 1


def validated(make):
    separate = make(ROWS), make(TARGETS)
    return "val_loss" in trainer().fit(ROWS, TARGETS, validation=separate, verbose=0).history


def is_predicted(found):
    return np.allclose(found, PREDICTED, atol=1e-6)


def step(make):
    return og.TrainingSession(proto(), "mse").step({"X": make(ROWS), "label": make(TARGETS)}) > 0


def bound(make):
    rows = make(ROWS)
    return hasattr(rows, "iloc") or np.array_equal(array_of(rows), ROWS)


ENTRIES = {
    "fit": same_fit,
    "fit by input": lambda make: fitted({"X": make(ROWS)}, make(TARGETS), None).epochs == 2,
    "batches": batches,
    "validation": validated,
    "evaluate": lambda make: trainer().evaluate(make(ROWS), make(TARGETS)) is not None,
    "predict": lambda make: is_predicted(trainer().predict(make(ROWS))),
    "InferenceSession": lambda make: is_predicted(
        og.InferenceSession(proto()).run(None, {"X": make(ROWS)})[0]
    ),
    "step": step,
    "ForwardBackward": lambda make: is_predicted(
        og.ForwardBackward(proto()).forward([make(ROWS)])[0]
    ),
    "check_gradients": lambda make: og.check_gradients(proto(), {"X": make(ROWS)}) is not None,
    "set_weights": lambda make: og.set_weights(proto(), {"b": make(WEIGHTS[:2])}).graph.node,
    "estimator": estimator_agrees,
    "onnxcustom's optimizer": lambda make: np.array_equal(as_array(make(ROWS)), ROWS),
    "onnxruntime's binding": bound,
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("kind", ARRAYS)
def test_every_kind_is_taken(kind, entry):
    if kind in ("torch transposed", "datasets None") and entry == "set_weights":
        pytest.skip("a vector has no transposed form; lists of Python become float64")
    assert ENTRIES[entry](ARRAYS[kind])


@pytest.mark.filterwarnings("ignore:Exporting an unversioned:DeprecationWarning")
@pytest.mark.parametrize("kind", [Typed, OldTyped])
@pytest.mark.parametrize(
    ("dtype", "bits", "code"),
    [("bfloat16", np.uint16, 4), ("float8_e4m3fn", np.uint8, 10), ("float8_e5m2", np.uint8, 12)],
)
def test_types_that_numpy_lacks(dtype, bits, code, kind):
    values = np.array([[0.5, -1.5], [2.0, 4.0]]).astype(getattr(ml_dtypes, dtype))
    found = as_numpy(kind(values.view(bits), code), "X")
    assert found.dtype == values.dtype
    assert np.shares_memory(found, values)
    assert (found == values).all()
    assert to_native(kind(values.view(bits), code), "X")[1] == dtype
    turned = as_numpy(kind(values.view(bits).T, code), "X")
    assert (turned == values.T).all()


def test_bfloat16_rows_are_cast_as_by_fit():
    rows = Typed(ROWS.astype(ml_dtypes.bfloat16).view(np.uint16), 4)
    trainer = og.Trainer(proto(), "mse").fit(rows, TARGETS, epochs=1, verbose=0)
    assert np.allclose(trainer.predict(rows), trainer.predict(ROWS), atol=0.02)
    estimator = OnnxRegressor(proto(), max_iter=1).fit(rows, TARGETS)
    assert np.allclose(estimator.predict(rows), estimator.predict(ROWS), atol=0.02)


def test_memory_of_a_device_is_refused():
    for entry in ("fit", "predict", "InferenceSession", "estimator"):
        with pytest.raises(og.DataError, match="CUDA") as caught:
            ENTRIES[entry](OnDevice)
        assert caught.value.hint.endswith(".get().")


def stand_in(name, bases=(), **attributes):
    return type(name, bases, attributes)()


REFUSED = {
    "DatasetDict": (
        stand_in("DatasetDict", (dict,), with_format=None, column_names={}),
        "X['train']",
    ),
    "IterableDataset": (
        stand_in("IterableDataset", with_format=None, column_names=[], __iter__=None),
        ".iter(batch_size=32)",
    ),
    "LazyFrame": (stand_in("LazyFrame", collect=None, collect_schema=None), "X.collect()"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_tables_that_are_none_yet(name):
    table, line = REFUSED[name]
    with pytest.raises(og.DataError) as caught:
        fitted(table, "y", None)
    assert line in caught.value.hint
    with pytest.raises(og.DataError):
        as_numpy(table, "X")


TABLES = {
    "pandas": lambda columns: pd.DataFrame(columns, index=[7, 5, 3, 1]),
    "Arrow": pa.table,
    "stream": lambda columns: Stream(pa.table(columns)),
    "dataset": lambda columns: Dataset(pa.table(columns)),
    "polars": lambda columns: pytest.importorskip("polars", reason=REASON).DataFrame(columns),
    "datasets": lambda columns: in_datasets(None)(columns),
}


@pytest.mark.parametrize("kind", TABLES)
def test_columns_by_name(kind):
    columns = {**{f"x{i}": ROWS[:, i] for i in range(3)}, "p": TARGETS[:, 0], "q": TARGETS[:, 1]}
    table = TABLES[kind]({**columns, "w": WEIGHTS})
    assert is_table(table)
    found = og.state_dict(fitted(table, ["p", "q"], "w").trained_model())
    assert all(np.allclose(found[name], FITTED[name], atol=1e-6) for name in FITTED)
    two = og.data.Batches([table], target=["p", "q"], sample_weight="w")
    found = og.state_dict(fitted(two, None, None).trained_model())
    assert all(np.allclose(found[name], FITTED[name], atol=1e-6) for name in FITTED)


def test_lists_in_cells():
    table = pa.table({"X": ROWS.tolist(), "images": [[[1.0, 2.0]] * 3] * 4, "n": [1, 2, 3, 4]})
    found = columns_of(table)
    assert [found[name].shape for name in table.column_names] == [(4, 3), (4, 3, 2), (4,)]
    with pytest.raises(og.DataError, match="type"):
        columns_of(pa.table({"X": [[1], [2, 3]]}))
    sequences = og.data.Sequences(pa.array([[1, 2], [3]]), np.zeros(2, np.int64), batch_size=2)
    assert list(sequences._lengths) == [2, 1]


def test_missing_values_and_categories():
    assert np.isnan(as_numpy(pd.Series([True, None], dtype="boolean"), "y")[1])
    assert np.isnan(as_numpy(pa.array([1, None]), "y")[1])
    words = [pd.Categorical(["a", "b"]), pa.array(["a", "b"]).dictionary_encode()]
    assert all(to_native(one, "y")[0] == ["a", "b"] for one in words)
    mixed = pd.DataFrame({"a": pd.array([1, None], "Int64"), "b": [0.5, 1]})
    assert np.isnan(as_numpy(mixed, "X")[1, 0])


def test_torchs_bfloat16():
    torch = pytest.importorskip("torch", reason=REASON)
    tensor = torch.from_numpy(ROWS).bfloat16()
    found = as_numpy(torch.nn.Parameter(tensor), "X")
    tensor[0, 0] = 5
    assert found.dtype == ml_dtypes.bfloat16
    assert found[0, 0] == 5  # not a copy
    state = {"W": torch.ones(3, 2).bfloat16(), "b": torch.nn.Parameter(torch.ones(2))}
    loaded = og.state_dict(og.load_state_dict(proto(), state, strict=False))
    assert (loaded["b"] == 1).all()


def test_batches_of_a_dataset():
    datasets = pytest.importorskip("datasets", reason=REASON)
    table = datasets.Dataset.from_dict({"X": ROWS, "label": TARGETS})
    made = fitted(lambda: table.iter(batch_size=2), None, None)
    assert made.history["train_loss"]
    loader = pytest.importorskip("torch").utils.data.DataLoader(table.with_format("torch"), 2)
    assert fitted(loader, None, None).history["train_loss"] == made.history["train_loss"]
    stream = table.to_iterable_dataset()
    with pytest.raises(og.DataError, match="iter"):
        fitted(stream, "label", None)
    assert fitted(lambda: stream.iter(batch_size=2), None, None).history["train_loss"]
