"""Training with integer weights and activations, against PyTorch, NumPy and stock onnxruntime."""

import json
import pickle
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnxruntime import quantization as stock

import onnxgrad as og
from forking import run_module
from onnx_tool import MODELS
from pairwise import pairwise

F = np.float32
STORED = Path(__file__).parents[1] / "data" / "quantization" / "gradients.json"


def with_weights(text, arrays):
    """A model of ONNX's text syntax with these initializers; WEIGHTS are their declarations."""
    shown = ", ".join(f"float[{','.join(map(str, a.shape))}] {n}" for n, a in arrays.items())
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]> {text.replace("WEIGHTS", shown)}'
    )
    for value in [one for one in model.graph.input if one.name in arrays]:
        model.graph.input.remove(value)
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(F), name))
    return model


def mlp(seed=0):
    rng = np.random.default_rng(seed)
    return with_weights(
        """mlp (float[N, 12] x) => (float[N, 3] y) <WEIGHTS> {
             a = MatMul (x, w1)
             b = Add (a, b1)
             h = Relu (b)
             y = Gemm <transB = 1> (h, w2, b2)
           }""",
        {
            "w1": rng.normal(size=(12, 40)) / 3,
            "b1": rng.normal(size=40) / 10,
            "w2": rng.normal(size=(3, 40)) / 6,
            "b2": rng.normal(size=3) / 10,
        },
    )


def cnn(seed=0):
    rng = np.random.default_rng(seed)
    return with_weights(
        """cnn (float[N, 2, 6, 6] x) => (float[N, 3] y) <WEIGHTS> {
             a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
             n = BatchNormalization (a, scale, shift, mean, variance)
             r = Relu (n)
             d = Conv <group = 4> (r, w2)
             s = Relu (d)
             f = Flatten (s)
             y = Gemm (f, w3, b3)
           }""",
        {
            "w1": rng.normal(size=(4, 2, 3, 3)) / 4,
            "b1": rng.normal(size=4) / 10,
            "scale": rng.uniform(0.5, 1.5, 4),
            "shift": rng.normal(size=4) / 10,
            "mean": rng.normal(size=4) / 10,
            "variance": rng.uniform(0.5, 1.5, 4),
            "w2": rng.normal(size=(4, 1, 3, 3)) / 3,
            "w3": rng.normal(size=(64, 3)) / 8,
            "b3": rng.normal(size=3) / 10,
        },
    )


NETWORKS = {"mlp": (mlp, (12,)), "cnn": (cnn, (2, 6, 6))}


def rows_of(name, count=96):
    """Rows, and the classes that another network gives them."""
    make, shape = NETWORKS[name]
    x = np.random.default_rng(1).normal(size=(count, *shape)).astype(F)
    scores = run(make(seed=7), x)
    return x, (scores - scores.mean(0)).argmax(1)


def run(model, x, *, optimized=True):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    # Without this, products with 4-bit weights alone round their other operand.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model if isinstance(model, (str, bytes)) else model.SerializeToString()
    return ort.InferenceSession(source, options).run(None, {"x": x})[0]


def initializers(model):
    return {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}


def is_close(given, wanted, *, rare=0.0, tolerance=1e-5):
    """Equal up to rounding, but for a fraction `rare` of values that follow another integer.

    Stock onnxruntime multiplies integers, and rounds sums of these by one scale, not by three.
    """
    differences = np.abs(given - wanted) / np.abs(wanted).max()
    return np.mean(differences > tolerance) <= rare and differences.max() < 0.02


# ------------------------------------------------------------------------------------- gradients


def stored_model(stored):
    text = """conv (float[N, 2, 5] x) => (float[N, 4, 5] y) <float x_scale, int8 x_zero,
      float[4] w_scale, int4[4, 2, 3] w> {
        q = QuantizeLinear (x, x_scale, x_zero)
        r = DequantizeLinear (q, x_scale, x_zero)
        v = DequantizeLinear <axis = 0> (w, w_scale)
        y = Conv <pads = [1, 1]> (r, v)
      }"""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    del model.graph.input[1:]
    codes = np.clip(
        np.round(np.array(stored["w"]) / np.array(stored["w_scale"])[:, None, None]), -8, 7
    )
    model.graph.initializer.extend(
        [
            onnx.numpy_helper.from_array(np.array(stored["x_scale"], F), "x_scale"),
            onnx.numpy_helper.from_array(np.array(stored["zero_point"], np.int8), "x_zero"),
            onnx.numpy_helper.from_array(np.array(stored["w_scale"], F), "w_scale"),
            onnx.helper.make_tensor(
                "w", onnx.TensorProto.INT4, [4, 2, 3], codes.astype(int).ravel()
            ),
        ]
    )
    return model


def test_gradients_are_those_of_pytorch() -> None:
    stored = json.loads(STORED.read_text())
    names = ["w", "x_scale", "w_scale"]
    layer = og.ForwardBackward(stored_model(stored), weights=names)
    layer.weights = {"w": np.array(stored["w"], F)}
    (y,) = layer.forward({"x": np.array(stored["x"], F)})
    np.testing.assert_allclose(y, stored["y"], rtol=1e-5, atol=1e-5)
    found = layer.backward(np.array(stored["seed"], F))
    for name, ours in {**found.weights, **found.inputs}.items():
        wanted = np.array(stored[f"{name}_grad"])
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
    assert {*found.weights, *found.inputs} == {"x", *names}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_steps_of_scales_are_those_of_lsq(optimizer) -> None:
    x, y = rows_of("mlp")
    session = og.TrainingSession(
        mlp(),
        optimizer=og.optimizers.as_optimizer(optimizer, 0.01),
        quantize="int4",
        calibration=x,
        outputs=["w1_scale_grad", "x_scale_grad"],
    )
    before = {name: value.copy() for name, value in session.weights.items()}
    _, (by_weight, by_input) = session.step({"x": x, "label": y})
    for name, gradient, elements, largest in (
        ("w1_scale", by_weight, 12, 7),
        ("x_scale", by_input, 12, 127),
    ):
        change = session.weights[name] - before[name]
        if optimizer == "sgd":
            np.testing.assert_allclose(
                change, -0.01 * gradient / np.sqrt(elements * largest), rtol=1e-3, atol=2e-8
            )
        else:  # the size of a gradient does not count
            least, most = -before[name] / 2, before[name]
            step = -0.01 * 3.5 / largest * np.sign(gradient)
            np.testing.assert_allclose(change, np.clip(step, least, most), rtol=1e-2, atol=1e-7)


# ----------------------------------------------------------------------------- files with integers


OPTIONS = {
    "int8": "int8",
    "int4": "int4",
    "tensor": {"scales": "tensor", "calibration": "minmax"},
    "blocks": {"weights": "int4", "scales": "block", "block_size": 16, "calibration": "entropy"},
    "fixed": {"weights": "int4", "learn_ranges": False, "calibration": "percentile"},
    "weights": {"weights": "int4", "activations": False},
    "some": {"exclude": "w1", "skip_last": True, "weights": "int8", "layers": None},
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("option", OPTIONS)
def test_the_trained_file_has_integers_that_compute_what_was_evaluated(network, option) -> None:
    if (network, option) == ("mlp", "some"):
        pytest.skip("the network has only these two layers")
    x, y = rows_of(network)
    trainer = og.Trainer(
        NETWORKS[network][0](), optimizer="adam", lr=3e-3, quantize=OPTIONS[option]
    )
    before = trainer.evaluate(x, y).loss
    trainer.fit(x, y, epochs=12, batch_size=16, verbose=0)
    assert trainer.evaluate(x, y).loss < 0.9 * before
    trained = trainer.trained_model()
    types = {one.data_type for one in trained.graph.initializer if len(one.dims) > 1}
    wanted = onnx.TensorProto.INT4 if "int4" in str(OPTIONS[option]) else onnx.TensorProto.INT8
    assert wanted in types
    assert not any(node.op_type == "BatchNormalization" for node in trained.graph.node)
    assert not any(node.domain for node in trained.graph.node)
    predicted = trainer.predict(x)
    assert is_close(run(trained, x, optimized=False), predicted, rare=0.002)
    assert is_close(run(trained, x), predicted, rare=0.1)
    assert is_close(og.InferenceSession(trained).run(None, {"x": x})[0], predicted, rare=0.002)
    # It is trained on, from the integers.
    again = og.Trainer(trained, optimizer="adam")
    assert is_close(again.predict(x), predicted)
    assert {w.name for w in again.session.trained_weights} == {
        w.name for w in trainer.session.trained_weights
    }


@pytest.mark.parametrize("quantize", ["int8", "int4", "int8:scales=block,block_size=4"])
@pytest.mark.parametrize("opset", [9, 13, 17, 20])
def test_models_of_older_opsets_are_written_as_they_were_trained(opset, quantize, tmp_path) -> None:
    """A new opset has to be given to the model first; the file has its trained weights too."""
    model = mlp()  # of operators that are the same in all of them
    model.opset_import[0].version = opset
    x = rows_of("mlp", 64)[0]
    y = x[:, :3] * 2 - 1
    trainer = og.Trainer(model, "squared_error", "adam", lr=0.02, quantize=quantize, seed=0)
    trainer.fit(x, y, epochs=4, batch_size=16, verbose=0)
    trainer.save(tmp_path / "trained.onnx")
    for written in (trainer.trained_model(), onnx.load(tmp_path / "trained.onnx")):
        assert is_close(run(written, x, optimized=False), trainer.predict(x))
    first = og.quantize(model, x, quantize)
    assert not is_close(run(first, x, optimized=False), trainer.predict(x), tolerance=0.01)


def test_biases_are_products_of_scales() -> None:
    x, y = rows_of("cnn")
    trainer = og.Trainer(cnn(), optimizer="adam", quantize="int4")
    trainer.fit(x, y, epochs=2, verbose=0)
    arrays = initializers(trainer.trained_model())
    assert arrays["b3"].dtype == np.int32
    np.testing.assert_array_equal(arrays["b3_scale"], arrays["f_scale"] * arrays["w3_scale"])


def test_post_training_quantization_takes_the_least_error() -> None:
    x, _ = rows_of("mlp")
    model = mlp()
    arrays = initializers(model)
    exact = run(model, x)
    errors = {}
    for scales in ("tensor", "channel"):
        made = og.quantize(model, x, weights="int8", scales=scales, calibration="minmax")
        codes = initializers(made)
        scale = codes["w2_scale"]
        wanted = np.abs(arrays["w2"]).max(axis=None if scales == "tensor" else 1) / 127
        np.testing.assert_allclose(scale, wanted, rtol=1e-6)
        rounded = np.round(arrays["w2"] / (scale if scales == "tensor" else scale[:, None]))
        np.testing.assert_array_equal(codes["w2"], rounded.astype(np.int8))
        low, high = min(0, x.min()), max(0, x.max())
        np.testing.assert_allclose(codes["x_scale"], (high - low) / 255, rtol=1e-6)
        errors[scales] = np.abs(run(made, x) - exact).max()
        assert errors[scales] < 0.03 * np.abs(exact).max()
    # Four bits: no scale of a grid has a smaller error than the one that was found.
    made = initializers(og.quantize(model, weights="int4", activations=False))
    for row, scale in zip(arrays["w2"], made["w2_scale"], strict=True):

        def error(s, row=row):
            return np.sum((row - s * np.clip(np.round(row / s), -8, 7)) ** 2)

        largest = np.abs(row).max() / 7
        assert error(scale) <= 1.0001 * min(error(largest * f) for f in np.linspace(0.41, 1, 60))


@pytest.mark.parametrize("calibration", ["mse", "minmax", "percentile", "entropy"])
def test_calibrations_ignore_outliers_but_one(calibration) -> None:
    x, _ = rows_of("mlp", 2048)
    x[0, 0] = 300
    made = og.quantize(mlp(), x, calibration=calibration, rows=2048, percentile=99.9)
    largest = initializers(made)["x_scale"] * 255
    if calibration == "minmax":
        assert largest > 300
    elif calibration == "mse":  # one value that is far off counts
        assert largest < 300
    else:
        assert largest < 150


# ----------------------------------------------------------------------- files quantized elsewhere


class Reader(stock.CalibrationDataReader):
    def __init__(self, x):
        self.batches = iter([{"x": x[i : i + 16]} for i in range(0, len(x), 16)])

    def get_next(self):
        return next(self.batches, None)


def quantized_by_stock(folder, network, quant_format, per_channel):
    before, after = folder / "float.onnx", folder / "quantized.onnx"
    model = NETWORKS[network][0]()
    onnx.save(model, before)
    stock.shape_inference.quant_pre_process(before, folder / "prepared.onnx")
    stock.quantize_static(
        folder / "prepared.onnx",
        after,
        Reader(rows_of(network)[0]),
        quant_format=getattr(stock.QuantFormat, quant_format),
        per_channel=per_channel,
        weight_type=stock.QuantType.QInt8,
        activation_type=stock.QuantType.QUInt8
        if quant_format == "QOperator"
        else stock.QuantType.QInt8,
    )
    return after


@pytest.mark.parametrize("quant_format", ["QDQ", "QOperator"])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_file_of_onnxruntime_is_trained_on(tmp_path, network, quant_format) -> None:
    path = quantized_by_stock(tmp_path, network, quant_format, per_channel=network == "cnn")
    x, y = rows_of(network)
    untrained = og.Trainer(path, optimizer="adam")
    untrained.save(tmp_path / "same.onnx")
    assert (tmp_path / "same.onnx").read_bytes() == path.read_bytes()
    trainer = og.Trainer(path, optimizer="adam", lr=3e-3)
    names = [weight.name for weight in trainer.session.trained_weights]
    assert len(names) >= 3
    before = trainer.evaluate(x, y).loss
    trainer.fit(x, y, epochs=12, batch_size=16, verbose=0)
    assert trainer.evaluate(x, y).loss < 0.9 * before
    trainer.save(tmp_path / "trained.onnx")
    old, new = onnx.load(path), onnx.load(tmp_path / "trained.onnx")
    for name in names:  # nothing but the integers has changed
        for model in (old, new):
            (tensor,) = (one for one in model.graph.initializer if one.name == name)
            assert tensor.data_type in (onnx.TensorProto.INT8, onnx.TensorProto.INT32)
            tensor.ClearField("raw_data")
            tensor.ClearField("int32_data")
    assert old == new
    given = run(str(tmp_path / "trained.onnx"), x, optimized=False)
    assert is_close(given, trainer.predict(x))
    # Its scales are learned on request.
    learning = og.Trainer(path, optimizer="adam", lr=3e-3, quantize="int8", calibration=x)
    if quant_format == "QDQ":
        assert len(learning.session.trained_weights) > len(names)
        learning.fit(x, y, epochs=3, batch_size=16, verbose=0)
        learned = learning.trained_model()
        assert [node.op_type for node in learned.graph.node] == [n.op_type for n in old.graph.node]
        assert is_close(run(learned, x, optimized=False), learning.predict(x))


def test_the_stored_quantized_model_is_trained_on(tmp_path) -> None:
    path = MODELS / "quantized_mlp.onnx"
    model = onnx.load(path)
    trainer = og.Trainer(path, optimizer="adam", lr=0.01)
    floats = [w for w in trainer.session.trained_weights if len(w.shape) == 2]
    assert floats
    (name,) = (value.name for value in trainer.session.get_inputs())
    with np.load(path.with_suffix(".npz")) as stored:
        x = np.repeat(stored[f"in/{name}"].astype(F), 4, 0)
    target = trainer.predict(x)
    if trainer.session.is_classifier:
        target = np.zeros(len(x), np.int64)
    before = initializers(model)
    trainer.fit(x, target if trainer.session.is_classifier else target + 1, epochs=8, verbose=0)
    after = initializers(trainer.trained_model())
    changed = [n for n in before if before[n].dtype.itemsize == 1 and np.any(after[n] != before[n])]
    assert changed


# ---------------------------------------------------------------------------- entries and options


COMBINATIONS = pairwise(
    {
        "quantize": ["int8", "int4:scales=block,block_size=16", "int4:learn_ranges=false"],
        "optimizer": ["sgd", "adam", "lion", "muon", "lbfgs"],
        "precision": ["float32", "bf16", "fp16"],
        "accumulate": [1, 2],
        "ends": ["resume", "pickle", "state"],
        "entry": ["trainer", "session", "estimator"],
        "frozen": [None, "w1"],
    },
    lambda row: (
        not (
            row.get("optimizer") == "lbfgs"
            and (row.get("precision", "float32") != "float32" or row.get("accumulate", 1) != 1)
        )
    ),
)


@pytest.mark.parametrize("row", COMBINATIONS, ids=str)
def test_options_combine(row, tmp_path) -> None:
    x, y = rows_of("mlp")
    options = {name: row[name] for name in ("quantize", "precision", "accumulate", "frozen")}
    rates = {"sgd": 0.05, "adam": 3e-3, "lion": 1e-3, "muon": 1e-2, "lbfgs": None}
    rate = rates[row["optimizer"]]

    def make():
        if row["entry"] == "session":
            described = og.optimizers.as_optimizer(row["optimizer"], rate)
            session = og.TrainingSession(mlp(), "auto", described, calibration=x, **options)
            return og.Trainer(session)
        return og.Trainer(mlp(), optimizer=row["optimizer"], lr=rate, **options)

    size = len(x) if row["optimizer"] == "lbfgs" else 16
    if row["entry"] == "estimator":
        estimator = og.sklearn.OnnxClassifier(
            mlp(), optimizer=row["optimizer"], lr=rate, max_iter=6, batch_size=size, **options
        )
        estimator.fit(x, y)
        assert estimator.loss_curve_[-1] < estimator.loss_curve_[0]
        return
    trainer = make()
    folder = tmp_path / "states"
    trainer.fit(
        x, y, epochs=2, batch_size=size, verbose=0, callbacks=og.callbacks.Checkpoint(folder)
    )
    middle = trainer.evaluate(x, y).loss
    if row["ends"] == "resume":
        again = make()
        again.fit(x, y, epochs=6, batch_size=size, verbose=0, resume=folder)
        trainer.fit(x, y, epochs=6, batch_size=size, verbose=0, resume=folder)
        np.testing.assert_array_equal(again.predict(x), trainer.predict(x))
    elif row["ends"] == "pickle":
        again = pickle.loads(pickle.dumps(trainer))
        np.testing.assert_array_equal(again.predict(x), trainer.predict(x))
        trainer = again
        trainer.fit(x, y, epochs=4, batch_size=size, verbose=0)
    else:
        again = make()
        again.fit(x, y, epochs=1, batch_size=size, verbose=0)
        again.session.load_state(trainer.session.state())
        np.testing.assert_array_equal(again.predict(x), trainer.predict(x))
        trainer.fit(x, y, epochs=4, batch_size=size, verbose=0)
    after = trainer.evaluate(x, y).loss
    if row["optimizer"] == "lbfgs":  # whose line search meets a loss of many small steps
        assert after <= middle
    else:
        assert after < middle
    trained = trainer.trained_model()
    if row["frozen"]:
        wanted = initializers(og.quantize(mlp(), x, row["quantize"]))["w1"]
        given = initializers(trained)
        if "learn_ranges=false" in row["quantize"]:
            np.testing.assert_array_equal(given["w1"], wanted)
    assert is_close(run(trained, x, optimized=False), trainer.predict(x), tolerance=1e-4)


def test_separate_passes_and_written_steps(tmp_path) -> None:
    x, y = rows_of("mlp")
    layer = og.ForwardBackward(mlp(), quantize="int8", calibration=x)
    (scores,) = layer.forward({"x": x})
    assert is_close(scores, run(og.quantize(mlp(), x), x, optimized=False))
    assert {"w1", "w1_scale", "x_scale"} <= set(layer.backward(np.ones_like(scores)).weights)
    loss = "softmax_cross_entropy"
    step = og.training_step(mlp(), loss, "adam", quantize="int8", calibration=x)
    ours = og.InferenceSession(step)
    feeds = {"x": x, "label": y, "learning_rate": F(0.01)}
    session = og.TrainingSession(
        mlp(), loss, og.optimizers.Adam(lr=0.01), quantize="int8", calibration=x
    )
    np.testing.assert_allclose(
        ours.run(["loss"], feeds)[0], session.step({"x": x, "label": y}), rtol=1e-5
    )
    with pytest.raises(og.ModelError, match="training_info"):
        og.add_training_info(mlp(), optimizer="adam", quantize="int8", calibration=x)


def test_integers_follow_scales_that_are_trained_by_name(tmp_path) -> None:
    path = quantized_by_stock(tmp_path, "mlp", "QDQ", per_channel=False)
    x, y = rows_of("mlp")
    trainer = og.Trainer(path, optimizer="adam", lr=3e-3, trainable=["w1_scale", "x_scale"])
    trainer.fit(x, y, epochs=4, batch_size=16, verbose=0)
    trained = trainer.trained_model()
    before, after = initializers(onnx.load(path)), initializers(trained)
    assert after["w1_scale"] != before["w1_scale"]
    assert np.any(after["w1_quantized"] != before["w1_quantized"])
    assert is_close(run(trained, x, optimized=False), trainer.predict(x), rare=0.002)


def test_adapters_beside_integers() -> None:
    x, y = rows_of("mlp")
    trainer = og.Trainer(
        mlp(),
        optimizer="adam",
        quantize={"weights": "int4", "activations": False},
        lora={"rank": 2, "targets": "w1"},
    )
    names = {weight.name for weight in trainer.session.trained_weights}
    assert "w1" not in names
    assert "w1_scale" not in names
    before = initializers(trainer.trained_model())
    assert before["w1"].dtype.itemsize == 1
    trainer.fit(x, y, epochs=2, verbose=0)
    after = initializers(trainer.trained_model())
    np.testing.assert_array_equal(after["w1"], before["w1"])


def test_the_command_line_and_sources(tmp_path) -> None:
    x, y = rows_of("mlp")
    np.savez(tmp_path / "rows.npz", x=x, y=y)
    onnx.save(mlp(), tmp_path / "mlp.onnx")
    out = tmp_path / "out.onnx"
    done = run_module(
        "onnxgrad.cli", "train", tmp_path / "mlp.onnx", "--data", tmp_path / "rows.npz",
        "--target", "y", "--quantize", "int4:calibration=minmax", "--epochs", "2", "-o", out,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert initializers(onnx.load(out))["x_scale"] > 0
    trainer = og.Trainer(mlp(), optimizer="adam", quantize="int8")
    trainer.fit(tmp_path / "rows.npz", "y", epochs=1, verbose=0)
    assert initializers(trainer.trained_model())["w1"].dtype == np.int8


ERRORS = {
    "name": ({"quantize": "int5"}, "int5"),
    "option": ({"quantize": "int8:scale=tensor"}, "scales"),
    "calibration": ({"quantize": {"calibration": "max"}}, "minmax"),
    "layer": ({"quantize": {"layers": "w9"}}, "w9"),
    "none": ({"quantize": {"exclude": ["w1", "w2"]}}, "no layer to quantize"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_name_the_fix(case) -> None:
    options, text = ERRORS[case]
    with pytest.raises(og.Error) as caught:
        og.TrainingSession(mlp(), calibration=rows_of("mlp")[0], **options)
    assert text in str(caught.value)


def test_rows_are_needed() -> None:
    with pytest.raises(og.OptionError, match="rows to calibrate"):
        og.TrainingSession(mlp(), quantize="int8")
    with pytest.raises(og.DataError, match="NaN"):
        og.quantize(mlp(), np.full((4, 12), np.nan, F))
    x, y = rows_of("mlp")
    once = iter([(x, y)])
    with pytest.raises(og.DataError, match="only once"):
        og.Trainer(mlp(), quantize="int8").fit(once, verbose=0)


SHARED = {
    "a stack of matrices": (
        "g (float[2, N, 8] x) => (float[2, N, 3] y) <WEIGHTS> { y = MatMul (x, w) }",
        {"w": (2, 8, 3)},
        (2, 5, 8),
    ),
    "a matrix that is read transposed too": (
        """g (float[N, 8] x) => (float[N, 8] y) <WEIGHTS> {
             h = MatMul (x, w)
             t = Transpose (w)
             y = MatMul (h, t)
           }""",
        {"w": (8, 4)},
        (5, 8),
    ),
}


@pytest.mark.parametrize("kind", SHARED)
def test_stock_runtime_runs_weights_with_one_scale(kind) -> None:
    text, shapes, rows = SHARED[kind]
    random = np.random.default_rng(3)
    arrays = {name: random.normal(size=shape) for name, shape in shapes.items()}
    x = random.normal(size=rows).astype(F)
    small = og.quantize(with_weights(text, arrays), [{"x": x}])
    exact = run(small, x, optimized=False)
    assert is_close(run(small, x), exact, rare=0.1)


def test_integers_of_another_type_are_not_quantized_again() -> None:
    small = og.quantize(mlp(), rows_of("mlp")[0])
    with pytest.raises(og.ModelError, match="int8 already, and int4 is asked for"):
        og.quantize(small, rows_of("mlp")[0], "int4")
