"""Arrays of every type, through everything that takes arrays: a result or one of our errors."""

import resource
import subprocess
import sys

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

import onnxgrad as og
from support import LINEAR, DLPackOnly

ML_DTYPES = sorted(
    name
    for name, value in vars(ml_dtypes).items()
    if isinstance(value, type) and issubclass(value, np.generic)
)
OTHERS = {
    "object": np.array([[None, {}]], dtype=object),
    "mixed": np.array([["a", 1.0]], dtype=object),
    "huge_int": np.array([[10**30, 1]], dtype=object),
    "void": np.zeros((1, 2), "V4"),
    "structured": np.zeros((1, 2), [("a", "f4"), ("b", "i4")]),
    "named_bfloat16": np.zeros((1, 2), [("bfloat16", "u2")]),
    "datetime": np.zeros((1, 2), "M8[s]"),
    "timedelta": np.zeros((1, 2), "m8[s]"),
    "complex64": np.zeros((1, 2), np.complex64),
    "complex128": np.zeros((1, 2), np.complex128),
    "longdouble": np.zeros((1, 2), np.longdouble),
    "bytes": np.zeros((1, 2), "S3"),
    "text": np.full((1, 2), "a"),
}
ARRAYS = {name: np.zeros((1, 2), getattr(ml_dtypes, name)) for name in ML_DTYPES} | OTHERS


@pytest.fixture(scope="module")
def model():
    return onnx.parser.parse_model(LINEAR)


def session(model):
    return og.TrainingSession(model, loss="squared_error", threads=1)


TARGET = np.zeros((1, 1), np.float32)
ROWS = np.zeros((1, 2), np.float32)


def backward(model, array):
    passes = og.ForwardBackward(model)
    passes.forward({"X": ROWS})
    passes.backward(array[:, :1])


ENTRIES = {
    "run": lambda model, a: og.InferenceSession(model).run(None, {"X": a}),
    "step": lambda model, a: session(model).step({"X": a, "label": TARGET}),
    "step_target": lambda model, a: session(model).step({"X": ROWS, "label": a[:, :1]}),
    "evaluate": lambda model, a: session(model).evaluate({"X": a, "label": TARGET}),
    "predict": lambda model, a: session(model).predict({"X": a}),
    "fit": lambda model, a: og.Trainer(model, "squared_error").fit(a, TARGET, epochs=1, verbose=0),
    "fit_target": lambda model, a: og.Trainer(model, "squared_error").fit(
        ROWS, a[:, :1], epochs=1, verbose=0
    ),
    "fit_weight": lambda model, a: og.Trainer(model, "squared_error").fit(
        ROWS, TARGET, sample_weight=a[:, 0], epochs=1, verbose=0
    ),
    "fit_validation": lambda model, a: og.Trainer(model, "squared_error").fit(
        ROWS, TARGET, validation=(a, TARGET), epochs=1, verbose=0
    ),
    "set_weights": lambda model, a: og.set_weights(model, {"coef": a.reshape(2, 1)}),
    "forward": lambda model, a: og.ForwardBackward(model).forward({"X": a}),
    "backward": backward,
}


# Every type through the two ways in, sessions' and trainers'; some through all that lead there.
CASES = [(entry, kind) for entry in ("step", "fit") for kind in ARRAYS]
CASES += [
    (entry, kind)
    for entry in ENTRIES
    if entry not in ("step", "fit")
    for kind in ("float8_e5m2", "int4", "structured", "complex64", "object", "mixed")
]


@pytest.mark.parametrize(("entry", "kind"), CASES)
def test_every_type_is_taken_or_refused_by_name(model, kind, entry):
    try:
        ENTRIES[entry](model, ARRAYS[kind])
    except og.InternalError:
        raise
    except og.Error:
        return
    # Numbers of every width are converted by fit() and sample weights.
    assert kind in (*ML_DTYPES, "longdouble", "text", "bytes"), f"{kind} was taken as numbers"


@pytest.mark.parametrize("kind", ["float8_e5m2", "float8_e4m3fn", "bfloat16"])
def test_small_floats_go_through_unchanged(kind):
    names = {"float8_e5m2": "float8e5m2", "float8_e4m3fn": "float8e4m3fn", "bfloat16": "bfloat16"}
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]> g ({names[kind]}[N] x) => ({names[kind]}[N] y)'
        "{ y = Identity(x) }"
    )
    given = np.array([0.5, -2.0, 1.25, 448.0], getattr(ml_dtypes, kind))
    found = og.InferenceSession(model).run(None, {"x": given})[0]
    assert found.dtype == given.dtype
    np.testing.assert_array_equal(found.view(np.uint8), given.view(np.uint8))


@pytest.mark.parametrize("kind", ["float64", "complex64", "int32"])
def test_dlpack_alone(model, kind):
    array = DLPackOnly(np.zeros((1, 2), kind))
    with pytest.raises(og.Error, match="X"):
        og.InferenceSession(model).run(None, {"X": array})


VIEW = """
import sys
import numpy as np, onnx.parser
import onnxgrad as og
model = onnx.parser.parse_model(sys.argv[1])
huge = np.broadcast_to(np.float32(1), (1 << 36, 2))
rows = np.zeros((1, 1), np.float32)
session = og.TrainingSession(model, loss="squared_error")
calls = {
    "run": lambda: og.InferenceSession(model).run(None, {"X": huge}),
    "step": lambda: session.step({"X": huge, "label": rows}),
    "fit": lambda: og.Trainer(model, "squared_error").fit(huge, huge[:, :1], epochs=1, verbose=0),
    "fit float64": lambda: og.Trainer(model, "squared_error").fit(
        np.broadcast_to(np.float64(1), (1 << 36, 2)), huge[:, :1], epochs=1, verbose=0),
    "forward": lambda: og.ForwardBackward(model).forward({"X": huge}),
}
for name, call in calls.items():
    try:
        call()
        print(name, "taken")
    except og.Error as error:
        print(name, type(error).__name__)
"""


def test_huge_views_are_refused_before_they_are_copied():
    done = subprocess.run(
        [sys.executable, "-c", VIEW, LINEAR],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert {line.split()[-1] for line in done.stdout.splitlines()} == {"DeviceError"}, done.stdout
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    assert peak < 2 << 30
