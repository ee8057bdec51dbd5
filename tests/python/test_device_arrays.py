"""Arrays in the memory of a device, on the simulated one: DLPack both ways, results that stay
there, memory by device."""

import ctypes
import gc
import threading

import numpy as np
import onnx
import pytest

import onnxgrad as og
from onnxgrad.devices import DeviceArray, to_device
from support import PLUGIN, mlp_proto, needs_plugin

pytestmark = needs_plugin

ROWS = np.random.default_rng(4).normal(size=(9, 6)).astype(np.float32)


@pytest.fixture(scope="module", autouse=True)
def plugin():
    og.devices.load_plugin(PLUGIN)


@pytest.fixture(scope="module")
def copies():
    """How many copies from and to host memory the simulated devices have made."""
    count = ctypes.CDLL(str(PLUGIN)).onnxgrad_simulated_copies
    count.restype = ctypes.c_int64
    return count


@pytest.fixture(scope="module")
def model():
    return mlp_proto((6, 5, 3), head="Softmax")


@pytest.fixture(scope="module")
def expected(model):
    return og.InferenceSession(model).run(None, {"X": ROWS})[0]


class Foreign:
    """An array of another library on a device, which notes how it was asked for."""

    def __init__(self, array, *, knows_versions=True, read_only=False):
        self.array, self.knows_versions, self.read_only = array, knows_versions, read_only
        self.asked = []

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, stream=None, **options):
        self.asked.append((stream, options))
        if options and not self.knows_versions:
            raise TypeError("unexpected keyword argument")
        if options.get("dl_device"):
            raise BufferError("no copies")
        capsule = self.array.__dlpack__(stream=stream, **options)
        if self.read_only:
            ctypes.c_uint64.from_address(address_of(capsule) + 24).value |= 1
        return capsule


def address_of(capsule):
    name = b"dltensor_versioned" if "versioned" in repr(capsule) else b"dltensor"
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return pointer(capsule, name)


def test_feeds_and_results_stay_there(model, expected, copies):
    first, second = (og.InferenceSession(model, device="simulated") for _ in range(2))
    X = to_device(ROWS, "simulated")
    feed = np.ones((3, 6), np.float32)
    for session in (first, second):
        session.run(None, {"X": X}, to_host=False)[0].numpy()  # the constants are there now
    (kept,) = first.run(None, {"X": X}, to_host=False)
    before = copies()
    (y,) = first.run(None, {"X": X}, to_host=False)
    (z,) = second.run(None, {"X": X}, to_host=False)
    assert copies() == before
    assert (y.shape, y.dtype, y.ndim, len(y)) == ((9, 3), np.float32, 2, 9)
    assert y.device == "simulated:0"
    assert y.__dlpack_device__() == (12, 0)
    first.run(None, {"X": feed}, to_host=False)  # the block of a result is not used again
    for array in (kept, y, z):
        np.testing.assert_array_equal(array.numpy(), expected)
    assert repr(y) == "DeviceArray(shape=(9, 3), dtype=float32, device='simulated:0')"


@pytest.mark.parametrize("device", ["cpu", "simulated:1"])
def test_other_devices_copy(model, expected, device):
    X = to_device(ROWS, "simulated:0")
    session = og.InferenceSession(model, device=device)
    np.testing.assert_array_equal(session.run(None, {"X": X})[0], expected)
    (y,) = session.run(None, {"X": X}, to_host=False)
    assert y.device == device
    np.testing.assert_array_equal(y.numpy(), expected)
    np.testing.assert_array_equal(np.from_dlpack(y, device="cpu"), expected)


@pytest.mark.parametrize(
    "options", [{}, {"knows_versions": False}, {"read_only": True}], ids=["1.1", "0.8", "read-only"]
)
def test_arrays_of_other_libraries(model, expected, copies, options):
    session = og.InferenceSession(model, device="simulated:1")
    X = Foreign(to_device(ROWS, "simulated:1"), **options)
    session.run(None, {"X": X}, to_host=False)
    before = copies()
    (y,) = session.run(None, {"X": X}, to_host=False)
    assert copies() == before
    stream, asked = X.asked[-1]
    assert stream is None  # the device has no stream that others know: they wait
    assert asked == ({"max_version": (1, 1)} if X.knows_versions else {})
    np.testing.assert_array_equal(y.numpy(), expected)


def test_capsules(model, expected):
    session = og.InferenceSession(model, device="simulated:1")
    (y,) = session.run(None, {"X": ROWS}, to_host=False)
    assert '"dltensor"' in repr(y.__dlpack__())
    capsule = y.__dlpack__(max_version=(1, 3))
    assert '"dltensor_versioned"' in repr(capsule)
    start = address_of(capsule) + 32
    data, kind, number, rank = (
        ctypes.c_uint64.from_address(start).value,
        *(ctypes.c_int32 * 3).from_address(start + 8),
    )
    assert data >> 62 == 1  # no pointer of the host
    assert (kind, number, rank) == (12, 1, 2)
    copy = y.__dlpack__(copy=True, max_version=(1, 0))
    assert ctypes.c_uint64.from_address(address_of(copy) + 32).value != data
    with pytest.raises(BufferError, match="only be copied to the host"):
        y.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="only be copied to the host"):
        y.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(ValueError, match="copy it"):
        np.asarray(y, copy=False)
    np.testing.assert_array_equal(np.asarray(y), expected)
    assert np.asarray(y, np.float64).dtype == np.float64
    on_host = og.InferenceSession(model, device="cpu").run(None, {"X": ROWS}, to_host=False)[0]
    np.testing.assert_array_equal(np.from_dlpack(on_host), expected)
    assert on_host.__dlpack_device__() == (1, 0)


def test_results_outlive_the_session(model, expected):
    def result(of):
        return og.InferenceSession(model, device=of).run(None, {"X": ROWS}, to_host=False)[0]

    for device in ("cpu", "simulated"):
        y = result(device)
        gc.collect()
        np.testing.assert_array_equal(y.numpy(), expected)
        held = [y.__dlpack__(max_version=(1, 0)), result(device), y.__dlpack__()]
        del y
        freed = threading.Thread(target=held.clear)
        freed.start()
        freed.join()
    lost = result("simulated")  # not computed yet
    del lost
    gc.collect()


def test_training_reads_them(iris, copies):
    X, y = iris[0][:40], iris[1][:40].astype(np.int64)
    model = mlp_proto((4, 5, 3))
    sessions = [
        og.TrainingSession(model, loss="softmax_cross_entropy", optimizer="adam", device=device)
        for device in ("cpu", "simulated")
    ]
    target = sessions[0].target_name
    placed = to_device(X, "simulated")
    feeds = [{"X": X, target: y}, {"X": placed, target: to_device(y, "simulated")}]
    for _ in range(3):
        losses = [session.step(feed) for session, feed in zip(sessions, feeds, strict=True)]
        assert losses[0] == losses[1]
    assert sessions[0].evaluate(feeds[0]) == sessions[1].evaluate(feeds[1])
    wanted = sessions[0].predict({"X": X})[0]
    np.testing.assert_array_equal(sessions[1].predict({"X": placed})[0], wanted)
    before = copies()
    (scores,) = sessions[1].predict({"X": placed}, to_host=False)
    assert copies() == before
    assert scores.device == "simulated:0"
    np.testing.assert_array_equal(scores.numpy(), wanted)
    for name, value in sessions[0].state().items():
        np.testing.assert_array_equal(sessions[1].state()[name], value, err_msg=name)
    with pytest.raises(og.DataError, match="class"):
        sessions[1].step({"X": placed, target: to_device(y + 7, "simulated")})


def test_a_trainer_reads_them(linear_proto, linear_data):
    X, y = linear_data
    found = []
    for device in ("cpu", "simulated"):
        trainer = og.Trainer(linear_proto, device=device, seed=1)
        placed = [to_device(array, device) for array in (X, y)]
        trainer.fit(*placed, epochs=2, verbose=0)
        scores = trainer.predict(placed[0], to_host=False)
        assert isinstance(scores, DeviceArray)
        assert scores.shape == (200, 1)
        np.testing.assert_array_equal(scores.numpy(), trainer.predict(X))
        found.append(scores.numpy())
    np.testing.assert_array_equal(*found)


def fitted(model, X, y, sample_weight=None, *, device="simulated", epochs=3, **options):
    trainer = og.Trainer(model, device=device, seed=1)
    trainer.fit(X, y, sample_weight, epochs=epochs, batch_size=16, verbose=0, **options)
    return trainer


def assert_equal(one, other):
    for name in {"train_loss", "val_loss", "val_accuracy"} & {*other.history}:
        assert one.history[name] == other.history[name], name
    for name, value in other.session.weights.items():
        np.testing.assert_array_equal(one.session.weights[name], value, err_msg=name)


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.float32])
def test_fit_reads_targets_and_weights(model, kind):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(75, 6)).astype(np.float32)
    y = rng.integers(0, 3, 75).astype(kind)  # only int64 is what the step reads
    weight = rng.uniform(0.5, 2, 75).astype(np.float32)
    validation = (X[:30] + 1, y[:30], weight[:30])
    host = fitted(model, X, y, weight, device="cpu", validation=validation)
    for wrap in (lambda array: array, Foreign):
        placed = [wrap(to_device(array, "simulated")) for array in (X, y, weight, *validation)]
        one = fitted(model, *placed[:3], validation=tuple(placed[3:]))
        assert_equal(one, host)
        found = one.evaluate(*placed[3:], batch_size=7)  # batches begin between aligned addresses
        assert found == one.evaluate(*validation, batch_size=7)
        held_out = fitted(model, *placed[:3], validation=0.2)
        assert_equal(held_out, fitted(model, X, y, weight, device="cpu", validation=0.2))
    balanced = {"class_weight": "balanced"}
    assert_equal(fitted(model, *placed[:3], **balanced), fitted(model, X, y, weight, **balanced))


def test_validation_stays_there(model, copies):
    X = np.random.default_rng(2).normal(size=(60, 6)).astype(np.float32)
    y = np.arange(60) % 3

    def made(rows, epochs):
        before = copies()
        fitted(model, *rows, epochs=epochs, validation=rows)
        return copies() - before

    of_epochs = []
    for rows in ((X, y), tuple(to_device(array, "simulated") for array in (X, y))):
        made(rows, 1)
        of_epochs.append(made(rows, 12) - made(rows, 2))
    # Both arrays, in one batch of each of ten epochs; a slow machine looks more often.
    assert of_epochs[0] - of_epochs[1] > 10


def test_fit_reads_several_targets_and_tokens():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(40, 2)).astype(np.float32)
    model = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["" : 18]>
two (float[N, 2] X) => (float[N, 1] a, float[N, 3] b)
<float[2, 1] wa = {0.1, 0.2}, float[2, 3] wb = {0.1, 0.2, 0.3, -0.1, 0.2, 0.1}> {
  a = MatMul(X, wa)
  b = MatMul(X, wb)
}""")
    targets = {"a": X[:, :1] * 2, "b": rng.integers(0, 3, 40)}
    loss = {"a": "squared_error", "b": "softmax_cross_entropy"}
    found = []
    for device in ("cpu", "simulated"):
        trainer = og.Trainer(model, loss=loss, device=device, seed=1)
        placed = {name: to_device(array, device) for name, array in targets.items()}
        placed["b"] = targets["b"]  # on the host
        trainer.fit(to_device(X, device), placed, epochs=2, verbose=0)
        found.append(trainer)
    assert_equal(*found)


def test_gradients_of_other_libraries_are_left_out(model):
    class Tracked(Foreign):
        requires_grad = True

        def detach(self):
            return Foreign(self.array)

        def __dlpack__(self, stream=None, **options):
            raise BufferError("it tracks gradients")

    X, y = np.tile(ROWS, (4, 1)), np.arange(36) % 3
    placed = [Tracked(to_device(array, "simulated")) for array in (X, y)]
    assert_equal(fitted(model, *placed), fitted(model, X, y))


def test_labels_that_are_not_numbers(model):
    X = to_device(np.tile(ROWS, (2, 1)), "simulated")
    y = np.array(["a", "b", "c"] * 6)
    assert_equal(fitted(model, X, y), fitted(model, X.numpy(), y, device="cpu"))
    with pytest.raises(og.DataError, match="class number 3 in row 5 is not in 0 to 2"):
        fitted(model, X, to_device(np.array([0, 1, 2, 0, 1, 3] * 3), "simulated"))
    with pytest.raises(og.DataError, match="has 17 rows"):
        fitted(model, to_device(X.numpy()[:17], "simulated"), y)


def test_rows_of_an_array_at_any_address(model, expected):
    session = og.InferenceSession(model, device="simulated")
    whole = to_device(ROWS, "simulated")
    part = DeviceArray(whole._core.rows(1, 9))  # an address that no kernel expects
    np.testing.assert_array_equal(session.run(None, {"X": part})[0], expected[1:])
    (result,) = session.run(None, {"X": part}, to_host=False)
    np.testing.assert_array_equal(result.numpy(), expected[1:])
    step = og.TrainingSession(model, loss="softmax_cross_entropy", device="simulated")
    np.testing.assert_array_equal(step.predict({"X": part})[0], expected[1:])


def test_passes_stay_there(model, copies):
    seed = np.linspace(-1, 1, 27, dtype=np.float32).reshape(9, 3)
    results = []
    for device in ("cpu", "simulated"):
        passes = og.ForwardBackward(model, device=device)
        X, gradient = (to_device(array, device) for array in (ROWS, seed))
        for _ in range(2):  # the constants are there then
            before = copies()
            outputs = passes.forward([X], to_host=False)
            gradients = passes.backward([gradient], to_host=False)
            made = copies() - before
        everything = {"Y": outputs[0], **gradients.weights, **gradients.inputs}
        assert {array.device for array in everything.values()} <= {"cpu", "simulated:0"}
        results.append({name: array.numpy() for name, array in everything.items()})
        host = passes.forward({"X": ROWS})
        np.testing.assert_array_equal(host[0], results[-1]["Y"])
        passes.backward([seed])
    assert made <= 2  # the cells of each pass
    assert results[0].keys() == results[1].keys()
    for name, value in results[0].items():
        np.testing.assert_array_equal(results[1][name], value, err_msg=name)


def test_what_cannot_be_read(model):
    session = og.InferenceSession(model, device="simulated")

    class Refusing(Foreign):
        def __dlpack__(self, stream=None, **options):
            raise BufferError("it tracks gradients")

    class Elsewhere(Foreign):
        def __dlpack_device__(self):
            return 12, 99

    X = to_device(ROWS, "simulated")
    with pytest.raises(og.DataError, match="'X': a Refusing that its library does not share"):
        session.run(None, {"X": Refusing(X)})
    with pytest.raises(og.DataError, match=r"'X': .* in the memory of a device \(DLPack 12\)"):
        session.run(None, {"X": Elsewhere(X)})
    with pytest.raises(og.DataError, match="strings"):
        to_device(np.array(["a"]), "simulated")
    with pytest.raises(og.DeviceError, match="there is no device 'tpu'"):
        to_device(ROWS, "tpu")
    with pytest.raises(og.DataError, match="expected float32"):
        session.run(None, {"X": to_device(ROWS.astype(np.float64), "simulated")})
    with pytest.raises(og.ShapeError):
        session.run(None, {"X": to_device(ROWS[:, :2].copy(), "simulated")})


def test_memory_by_device(model):
    y = np.zeros(9, np.int64)
    reports = []
    for device in ("cpu", "simulated:1"):
        session = og.TrainingSession(
            model, loss="softmax_cross_entropy", optimizer="adam", device=device
        )
        session.step({"X": ROWS, session.target_name: y})
        reports.append(session.memory())
    here, there = reports
    assert here.by_device == {"cpu": here.total}
    assert here.host == 0
    assert there.device == "simulated:1"
    assert there.by_device == {
        "cpu": there.file + there.snapshots + there.host,
        "simulated:1": there.total - there.file - there.snapshots - there.host,
    }
    assert (there.weights, there.optimizer_state) == (here.weights, here.optimizer_state)
    with pytest.raises(og.DeviceError, match="on device 'simulated:1'"):
        og.TrainingSession(model, optimizer="adam", device="simulated:1", memory_limit=1000)
