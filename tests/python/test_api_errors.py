"""Every class of errors: how it is reached, its four parts, its Python bases."""

import pickle
import re
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxgrad as og
from onnxgrad import _core, errors
from support import LINEAR, TWO_WITHOUT_GRADIENT, mlp_proto


def parse(body, opset=17):
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {body}')


def cyclic():
    model = parse("main (float[N] x) => (float[N] y) { a = Relu(b) b = Relu(a) y = Add(a, x) }")
    return model.SerializeToString()


# 8 channels for blocks of 9, which ONNX's inference of shapes accepts.
UNEVEN = """agraph (float[2, 8, 2, 3] x) => (float[2, c, h, w] y) {
s = Exp (x)
y = DepthToSpace <blocksize = 3> (s)
}"""
SUM = "main (float[N] x, float[M] z) => (float[K] y) { y = Add(x, z) }"
UNKNOWN_OPERATOR = "main (float[N] x) => (float[N] y) { y = Frobnicate(x) }"

X = np.zeros((4, 2), np.float32)
Y = np.zeros((4, 1), np.float32)
NAN = X.copy()
NAN[2, 1] = np.nan


def fit(X, y, model=LINEAR, **options):
    proto = onnx.parser.parse_model(model) if isinstance(model, str) else model
    return og.Trainer(proto, "squared_error").fit(X, y, verbose=0, epochs=1, **options)


def fit_classes(labels):
    rows = np.zeros((len(labels), 4), np.float32)
    return og.Trainer(mlp_proto([4, 3]), "cross_entropy").fit(rows, labels, verbose=0)


def linear():
    return onnx.parser.parse_model(LINEAR).SerializeToString()


def without_external_data():
    """A model whose weights lie in weights.bin, which is lost."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save_model(
            mlp_proto([4, 3]),
            path,
            save_as_external_data=True,
            location="weights.bin",
            size_threshold=0,
        )
        (Path(folder) / "weights.bin").unlink()
        og.report(path)


# name -> (function, class, strings that the message must contain)
CASES = {
    "no_file": (lambda: og.report("missing.onnx"), og.ModelError, ["missing.onnx"]),
    "no_external_data": (without_external_data, og.ModelError, ["'W0'", "/weights.bin'"]),
    "not_onnx": (lambda: og.report(b"this is not a model"), og.ModelError, []),
    "empty": (lambda: og.report(b""), og.ModelError, []),
    "truncated": (lambda: og.report(linear()[:-20]), og.ModelError, []),
    "cycle": (lambda: og.report(cyclic()), og.ModelError, ["cycle"]),
    "unknown_operator": (
        lambda: og.InferenceSession(parse(UNKNOWN_OPERATOR)),
        og.UnsupportedOperatorError,
        ["Frobnicate"],
    ),
    "model_of_wrong_type": (lambda: og.report(3), og.OptionError, ["int", "ModelProto"]),
    "unknown_wrt": (lambda: og.gradient(linear(), "coeff"), og.ModelError, ["coeff", "'coef'"]),
    "unknown_weight_pattern": (
        lambda: og.Trainer(linear(), trainable=["coff"]),
        og.ModelError,
        ["coff", "coef"],
    ),
    "unknown_feed": (
        lambda: og.InferenceSession(linear()).run(None, {"XX": X}),
        og.DataError,
        ["XX", "'X'"],
    ),
    "missing_feed": (lambda: og.InferenceSession(linear()).run(None, {}), og.DataError, ["X"]),
    "wrong_dtype": (
        lambda: og.InferenceSession(linear()).run(None, {"X": X.astype(np.float64)}),
        og.DataError,
        ["X", "float64", "float32"],
    ),
    "wrong_columns": (
        lambda: og.InferenceSession(linear()).run(None, {"X": np.zeros((4, 3), np.float32)}),
        (og.ShapeError, og.DataError),
        ["3", "2"],
    ),
    "fit_wrong_columns": (
        lambda: fit(np.zeros((4, 3), np.float32), Y),
        (og.ShapeError, og.DataError),
        ["3", "2"],
    ),
    "fit_rows_differ": (lambda: fit(X, Y[:3]), (og.DataError, og.ShapeError), ["3", "4"]),
    "fit_nan": (lambda: fit(NAN, Y), og.DataError, ["nan", "2", "1"]),
    "fit_text": (lambda: fit(X.astype(str), Y), og.DataError, ["has strings", "float32"]),
    "fit_objects": (lambda: fit([[None, {}]], Y), og.DataError, ["X"]),
    "fit_ragged": (lambda: fit([[1], [1, 2]], Y), og.DataError, ["X"]),
    "unknown_loss": (lambda: og.Trainer(linear(), "square_error"), og.OptionError, ["'squared_"]),
    "unknown_optimizer": (
        lambda: og.Trainer(linear(), optimizer="adamm"),
        og.OptionError,
        ["adamm", "'adam'"],
    ),
    "unknown_scheme": (lambda: og.initialize(linear(), "glorot"), og.OptionError, ["'glorot_"]),
    "negative_lr": (lambda: og.Trainer(linear(), lr=-1), og.OptionError, ["lr", "-1"]),
    "zero_epochs": (
        lambda: og.Trainer(linear()).fit(X, Y, epochs=0),
        og.OptionError,
        ["epochs", "0"],
    ),
    "validation_share": (lambda: fit(X, Y, validation=1.5), og.OptionError, ["1.5"]),
    "bad_callback": (lambda: fit(X, Y, callbacks=[3]), og.OptionError, ["callbacks", "3"]),
    "device": (lambda: og.Trainer(linear(), device="cuda"), og.DeviceError, ["'cpu'"]),
    "opset": (lambda: og.gradient(linear(), target_opset=99), og.ModelError, ["99", "26"]),
    "no_folder": (
        lambda: og.Trainer(linear()).save("/no/such/folder/m.onnx"),
        og.CheckpointError,
        ["'/no/such/folder/m.onnx'", "there is no folder"],
    ),
    "no_gradient": (
        lambda: og.Trainer(onnx.parser.parse_model(TWO_WITHOUT_GRADIENT), "mse"),
        og.GradientError,
        ["first_get", "second_get", "OptionalGetElement"],
    ),
    "operands_that_do_not_match": (
        lambda: og.gradient(parse(UNEVEN), wrt=["x"], fill_grad=True),
        og.GradientError,
        ["DepthToSpace", "'s' has shape [2, 8, 2, 3]", "run the model"],
    ),
    "shapes": (
        lambda: og.InferenceSession(parse(SUM)).run(None, {"x": X[0], "z": X[:3, 0]}),
        og.ShapeError,
        ["Add", "float32[2]", "float32[3]"],
    ),
    "class_out_of_range": (
        lambda: fit_classes([0, 1, 99]),
        og.DataError,
        ["99", "row 2", "0 to 2"],
    ),
    "fraction_as_class": (lambda: fit_classes([0, 1, 0.5]), og.DataError, ["0.5", "row 2"]),
    "loss_on_probabilities": (
        lambda: og.Trainer(
            mlp_proto([4, 3], head="Softmax"), og.losses.SoftmaxCrossEntropy(output="Y")
        ),
        og.ModelError,
        ["Softmax", "Apply it to 'scores'"],
    ),
    "weights_of_other_rows": (
        lambda: fit(X, Y, sample_weight=[1, 2]),
        og.DataError,
        ["2 sample weights for 4 rows"],
    ),
    "negative_weight": (
        lambda: fit(X, Y, sample_weight=[1, 2, -1, 1]),
        og.DataError,
        ["row 2", "-1"],
    ),
    "state_of_another": (
        lambda: og.TrainingSession(linear()).load_state({"weight": X}),
        og.CheckpointError,
        ["weight"],
    ),
    "diverged": (
        lambda: og.Trainer(linear(), "squared_error", og.optimizers.SGD(lr=1e30)).fit(
            X + 1, Y + 1e30, verbose=0
        ),
        og.ConvergenceError,
        ["epoch"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_message(name):
    function, kind, texts = CASES[name]
    with pytest.raises(kind) as caught:
        function()
    error = caught.value
    message = str(error)
    assert type(error) in (kind if isinstance(kind, tuple) else (kind,))
    assert isinstance(error, og.Error)
    assert 1 <= len(message.splitlines()) <= 6, message
    for text in texts:
        assert text.lower() in message.lower(), message
    # The random name of a temporary folder may hold any of these signs.
    own_words = re.sub(r"'[^'\n]*/[^'\n]*'", "PATH", message)
    for sign in ("std::", ".cpp", "0x", "__", "Traceback"):
        assert sign not in own_words
    assert error.what
    assert error.what.splitlines()[0] in message
    assert error.hint.endswith((".", "?")), message
    assert error.hint in message


@pytest.mark.parametrize("name", ["unknown_wrt", "unknown_feed", "unknown_optimizer"])
def test_offers_the_nearest_name(name):
    with pytest.raises(og.Error, match="Did you mean '"):
        CASES[name][0]()


def test_fields_say_where():
    with pytest.raises(og.ModelError) as caught:
        og.report("missing.onnx")
    assert caught.value.file == "missing.onnx"
    with pytest.raises(og.ModelError) as caught:
        without_external_data()
    assert Path(caught.value.file).name == "weights.bin"
    with pytest.raises(og.DataError) as caught:
        fit(NAN, Y)
    assert caught.value.value
    assert caught.value.hint


def test_missing_gradients_are_all_named():
    with pytest.raises(og.GradientError) as caught:
        og.gradient(onnx.parser.parse_model(TWO_WITHOUT_GRADIENT), fill_grad=True)
    message = str(caught.value)
    for text in ("OptionalGetElement", "first_get", "second_get"):
        assert text in message


BASES = {
    "ModelError": [ValueError],
    "UnsupportedOperatorError": [NotImplementedError],
    "GradientError": [NotImplementedError],
    "ShapeError": [ValueError],
    "DataError": [ValueError, TypeError],
    "OptionError": [ValueError, TypeError],
    "CheckpointError": [RuntimeError],
    "ConvergenceError": [RuntimeError],
    "DeviceError": [RuntimeError],
    "InternalError": [RuntimeError],
}


def test_python_bases():
    classes = {name for name in errors.__all__ if name != "Error"}
    assert classes == set(BASES)
    for name, bases in BASES.items():
        kind = getattr(og, name)
        assert issubclass(kind, og.Error)
        assert all(issubclass(kind, base) for base in bases)


def test_one_class_for_each_of_the_library():
    # OptionError is Python's own: options of the C++ API are checked types.
    header = (_core_header()).read_text(encoding="utf-8")
    kinds = {
        line.split("class ")[1].split(" ")[0]
        for line in header.splitlines()
        if line.startswith("class ") and "public" in line
    }
    assert kinds - {"Error"} == set(BASES) - {"OptionError"}


def _core_header():
    return Path(__file__).parents[2] / "include/onnxgrad/error.h"


def test_errors_can_be_pickled():
    with pytest.raises(og.ModelError) as caught:
        og.report("missing.onnx")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is og.ModelError
    assert str(again) == str(caught.value)
    assert again.file == "missing.onnx"


def test_wrong_arguments_of_the_extension_are_type_errors():
    with pytest.raises(TypeError):
        _core.Model.load(3)
