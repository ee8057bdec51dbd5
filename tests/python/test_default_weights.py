"""Weights trained by default, against the parameters of the modules of exported models."""

import json

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxgrad as og
from onnx_tool import MODELS, ROOT
from support import run_python

TRAIN = "import sys; sys.argv[1:1] = ['train']; from onnxgrad.cli import main; main()"
ROWS = {row["name"]: row for row in json.loads((MODELS / "index.json").read_text())}

# Its weights are attributes, so that the index has no names of tensors; those of the scaler
# describe the data and stay constants.
WITHOUT_TENSORS = "sk_scaler_logistic_regression"


@pytest.mark.parametrize("name", ROWS)
def test_the_default_is_the_parameters_of_the_module(name):
    row = ROWS[name]
    found = og.report(str(MODELS / f"{name}.onnx"))
    # A model of several outputs may have parameters that the automatic loss does not depend on.
    unused = "without influence on the loss"
    floating = [w for w in found.weights if not w.is_quantized]
    trained = {w.name for w in floating if w.trainable or w.reason == unused}
    reasons = {weight.name: weight.reason for weight in found.weights if not weight.trainable}
    if name == WITHOUT_TENSORS:
        assert len(trained) == 2
        kept = [w for w in found.weights if w.storage == "attribute" and w.is_floating]
        constants = {w.reason for w in kept if not w.trainable}
        assert constants == {"an attribute of an operator in the file"}
        return
    assert trained == set(row["trainable"])
    for constant in row["not_trainable"]:
        assert reasons[constant]


def test_what_is_not_trained_is_reported(capfd):
    row = ROWS["spline_oscillator"]
    with np.load(MODELS / "spline_oscillator.npz") as data:
        feeds = {key: data[f"in/{key}"] for key in row["inputs"]}
        label = data["in/label"]
    model = str(MODELS / "spline_oscillator.onnx")
    trainer = og.Trainer(model, "squared_error")
    line = "trains 6 of 7 weights; not trained: 'knots' (evenly spaced numbers)"
    assert trainer.session.weights_line == line
    trainer.fit(feeds, label, epochs=1, verbose=1)
    assert line in capfd.readouterr().err.splitlines()
    assert "not trained: 'knots' (evenly spaced numbers)" in str(og.report(model))
    assert "not trained: &#x27;knots&#x27;" in og.report(model)._repr_html_()


def test_other_reasons():
    row = ROWS["vgg_small_batchnorm"]
    session = og.TrainingSession(
        str(MODELS / "vgg_small_batchnorm.onnx"), "cross_entropy", frozen=["0.*", "15.bias"]
    )
    count = len(row["trainable"])
    assert session.weights_line == (
        f"trains {count - 3} of {count + 8} weights; not trained: '0.weight', '0.bias', '15.bias' "
        "(frozen); '1.running_mean', '1.running_var', '4.running_mean', '4.running_var' and 4 more "
        "(running statistics)"
    )
    session.freeze("17.*")
    assert session.weights_line.startswith(f"trains {count - 5} of {count + 8} weights")
    assert "'17.weight'" in session.weights_line
    named = og.TrainingSession(
        str(MODELS / "vgg_small_batchnorm.onnx"), "cross_entropy", trainable="17.*"
    )
    assert named.weights_line.startswith(
        f"trains 2 of {count + 8} weights; not trained: '0.weight'"
    )
    assert "(not named)" in named.weights_line


def test_the_command_line_reports_it(tmp_path):
    rows = np.random.default_rng(0).normal(size=(8, 3))
    data = tmp_path / "rows.csv"
    np.savetxt(data, rows, delimiter=",", header="a,b,y", comments="")
    model = tmp_path / "model.onnx"
    proto = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        main (float[N, 2] x) => (float[N, 1] y)
        <float[2] mean = {0.5, 0.25}, float[2, 1] w = {0.3, -0.7}> {
            c = Sub(x, mean)
            y = MatMul(c, w)
        }""")
    onnx.save(proto, model)
    command = [model, "--data", data, "--target", "y", "--epochs", "1", "-o", tmp_path / "t.onnx"]
    done = run_python(TRAIN, *command)
    expected = "trains 1 of 2 weights; not trained: 'mean' (scales an input of the model)"
    assert expected in done.stderr.splitlines(), done.stderr


@pytest.mark.parametrize(
    "name",
    [
        "quantized_qlinear_convolutions",
        "quantization_aware_training",
        "quantized_dynamically",
        "four_bit_weights",
    ],
)
def test_scales_of_quantized_numbers_are_not_trained(name):
    """In every form: QLinear operators, QuantizeLinear pairs, products of integers, blocks."""
    model = onnx.load(ROOT / f"tests/data/zoo/{name}.onnx")
    weights = og.report(model).weights
    scales = [w for w in weights if w.reason == "a scale of quantized numbers"]
    named = {w.name for w in weights if w.is_floating and "scale" in w.name}
    assert named <= {w.name for w in scales}
    assert scales
    assert not any(w.trainable for w in scales)
    assert all("bias" in w.name or "weight" in w.name for w in weights if w.trainable)


def test_scales_of_quantized_numbers_are_trained_by_name():
    model = ROOT / "tests/data/zoo/quantized_qlinear_convolutions.onnx"
    loss = og.losses.SquaredError(output="y")
    names = {weight.name for weight in og.TrainingSession(model, loss).trained_weights}
    assert names
    assert not any("scale" in name for name in names)
    with pytest.raises(og.ModelError, match=r"'\*_scale' matches no parameter"):
        og.TrainingSession(model, loss, trainable="*_scale")
    session = og.TrainingSession(model, loss, trainable=["conv2d_scale", "a.weight_scale"])
    names = {weight.name for weight in session.trained_weights}
    assert names == {"conv2d_scale", "a.weight_scale"}
