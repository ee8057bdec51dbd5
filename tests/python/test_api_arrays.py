"""Arrays of other libraries, without a copy where the layout allows."""

import pickle

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

import onnxgrad as og
from onnxgrad.data import arrays
from support import DLPackOnly

DTYPES = ["float32", "float64", "int32", "int64", "uint8", "int8", "bool", "float16"]


def identity(dtype, shape):
    names = {"float32": "float", "float64": "double"}
    dims = ", ".join(f"d{i}" for i in range(len(shape)))
    kind = f"{names.get(dtype, dtype)}[{dims}]" if shape else names.get(dtype, dtype)
    text = f'<ir_version: 8, opset_import: ["" : 17]> main ({kind} x) => ({kind} y)'
    return og.InferenceSession(onnx.parser.parse_model(text + "{ y = Identity(x) }"))


class OnlyArray:
    """An array of another library that supports only __array__."""

    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return self._array


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (2, 3)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_and_shape_comes_back(dtype, shape):
    given = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2).astype(dtype)
    found = identity(dtype, shape).run(None, {"x": given})[0]
    assert found.dtype == given.dtype
    assert found.shape == given.shape
    np.testing.assert_array_equal(found, given)


@pytest.mark.parametrize("wrap", [np.asarray, DLPackOnly, OnlyArray, np.ndarray.tolist])
def test_foreign_arrays(wrap):
    given = np.array([[1.5, -2.0], [0.25, 8.0]])
    found = identity("float64", given.shape).run(None, {"x": wrap(given)})[0]
    np.testing.assert_array_equal(found, given)


LAYOUTS = {
    "transposed": lambda a: a.T,
    "reversed": lambda a: a[::-1],
    "strided": lambda a: a[:, ::2],
    "big_endian": lambda a: a.astype(">f4"),
    "read_only": lambda a: np.frombuffer(a.tobytes(), np.float32).reshape(a.shape),
    "fortran": np.asfortranarray,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    given = LAYOUTS[layout](np.arange(24, dtype=np.float32).reshape(4, 6))
    found = identity("float32", given.shape).run(None, {"x": given})[0]
    np.testing.assert_array_equal(found, given)
    assert found.flags.c_contiguous


def test_bfloat16():
    given = np.array([[1.5, -2.0, 3.0]], ml_dtypes.bfloat16)
    found = identity("bfloat16", given.shape).run(None, {"x": given})[0]
    assert found.dtype == given.dtype
    np.testing.assert_array_equal(found, given)


def test_strings_are_passed_both_ways():
    # The engine computes with numbers; texts are labels.
    tensor = np.array([["a", "bé"], ["", "中文"]])
    for given in (tensor, tensor.astype(object)):
        items, shape = arrays.to_native(given, "labels")
        assert (items, shape) == (["a", "bé", "", "中文"], [2, 2])
        back = arrays.from_native(((items, shape), "string"))
        assert back.tolist() == tensor.tolist()


def test_inputs_are_not_changed_and_results_are_independent():
    session = identity("float32", (3,))
    given = np.array([1, 2, 3], np.float32)
    first = session.run(None, {"x": given})[0]
    second = session.run(None, {"x": given * 10})[0]
    first += 100
    np.testing.assert_array_equal(given, [1, 2, 3])
    np.testing.assert_array_equal(second, [10, 20, 30])


def test_results_outlive_their_session():
    session = identity("float32", (3,))
    found = session.run(None, {"x": np.array([1, 2, 3], np.float32)})[0]
    del session
    np.testing.assert_array_equal(found, [1, 2, 3])


@pytest.mark.host_only("the memory of the simulated device is the process's")
def test_training_reads_contiguous_arrays_in_place(linear_model):
    # Half a gigabyte would show in the peak memory of the process if it was copied.
    import resource

    X = np.zeros((1 << 24, 2), np.float32)
    y = np.zeros((1 << 24, 1), np.float32)
    trainer = og.Trainer(linear_model, "squared_error", "sgd", threads=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trainer.fit(X, y, epochs=1, batch_size=1 << 16, shuffle=False, verbose=0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < X.nbytes // 2


def test_arrays_of_pickles_and_of_other_byte_orders(linear_model, linear_data):
    X, y = linear_data
    expected = og.Trainer(linear_model).fit(X, y, epochs=1, verbose=0).history["train_loss"]
    for change in (lambda a: pickle.loads(pickle.dumps(a)), lambda a: a.astype(">f4")):
        assert change(X).dtype.isbuiltin == 0  # NumPy's type, though another object of it
        trainer = og.Trainer(linear_model).fit(change(X), change(y), epochs=1, verbose=0)
        assert trainer.history["train_loss"] == expected
        np.testing.assert_array_equal(trainer.predict(change(X)), trainer.predict(X))
