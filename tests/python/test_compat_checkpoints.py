"""Checkpoints in onnxruntime-training's format, and artifacts that its version 1.19.2 wrote."""

import contextlib
import itertools
from pathlib import Path

import flatbuffers
import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from flatbuffers.table import Table

import onnxgrad as og
from onnxgrad.compat.graphs.forward_part import forward_part
from onnxgrad.compat.onnxruntime import OrtValue
from onnxgrad.compat.onnxruntime.training import artifacts
from onnxgrad.compat.onnxruntime.training.api import CheckpointState, Module, Optimizer

STORED = Path(__file__).resolve().parents[1] / "data" / "training_api" / "artifacts"
CASES = sorted(path.name for path in STORED.iterdir())


def load(folder, checkpoint="checkpoint"):
    state = CheckpointState.load_checkpoint(folder / checkpoint)
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    return state, module, Optimizer(folder / "optimizer_model.onnx", module)


def values_of(folder):
    """Values that make_artifacts.py has stored as a checkpoint."""
    state = CheckpointState.load_checkpoint(folder / "values")
    return {name: parameter.data for name, parameter in state.parameters}


def train(module, optimizer, X, y, steps):
    losses = []
    for _ in range(steps):
        losses.append(module(X, y))
        optimizer.step()
        module.lazy_reset_grad()
    return losses


@pytest.mark.parametrize("case", CASES)
def test_artifacts_of_onnxruntime_train_as_there(case, tmp_path):
    """Compare with onnxruntime-training, run by tests/data/training_api/make_artifacts.py."""
    folder = STORED / case
    stored = values_of(folder)
    X, y = stored["X"], stored["y"]
    state, module, optimizer = load(folder)
    assert optimizer.get_learning_rate() == pytest.approx(1e-3)
    optimizer.set_learning_rate(0.05)
    np.testing.assert_allclose(train(module, optimizer, X, y, 6), stored["losses"], rtol=1e-5)
    for name, parameter in state.parameters:
        np.testing.assert_allclose(
            parameter.data, stored[f"weight/{name}"], rtol=1e-4, atol=1e-5, err_msg=name
        )
    loss = module.eval()(X, y)
    module.export_model_for_inferencing(tmp_path / "trained.onnx", [module_scores(folder)])
    session = onnxruntime.InferenceSession(
        tmp_path / "trained.onnx", providers=["CPUExecutionProvider"]
    )
    (inputs,) = session.get_inputs()
    (scores,) = session.run(None, {inputs.name: X})
    if y.ndim == 2:
        expected = np.mean((scores - y) ** 2)
    else:
        rows = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(y)), y]
        expected = rows.mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def module_scores(folder):
    """The name of the scores, which the loss reads."""
    model = onnx.load(folder / "eval_model.onnx")
    return next(name for node in model.graph.node for name in node.output if name == "Y")


@pytest.mark.parametrize("case", CASES)
def test_training_continues_from_a_checkpoint_of_onnxruntime(case):
    folder = STORED / case
    stored = values_of(folder)
    state, module, optimizer = load(folder, "later")
    assert dict(iter(state.properties)) == {"epoch": 3, "rate": 0.5, "name": case}
    optimizer.set_learning_rate(0.05)  # it stores the initial rate
    losses = train(module, optimizer, stored["X"], stored["y"], 3)
    np.testing.assert_allclose(losses, stored["losses"][3:], rtol=1e-5)
    for name, parameter in state.parameters:
        np.testing.assert_allclose(
            parameter.data, stored[f"weight/{name}"], rtol=1e-4, atol=1e-5, err_msg=name
        )


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_written_again_has_the_same_contents(case, tmp_path):
    state = CheckpointState.load_checkpoint(STORED / case / "later")
    CheckpointState.save_checkpoint(state, tmp_path / "again", include_optimizer_state=True)
    again = CheckpointState.load_checkpoint(tmp_path / "again")
    assert dict(iter(again.properties)) == dict(iter(state.properties))
    assert len(again.parameters) == len(state.parameters)
    for name, parameter in state.parameters:
        found = again.parameters[name]
        np.testing.assert_array_equal(found.data, parameter.data)
        assert found.requires_grad == parameter.requires_grad
        assert found.data_type == "tensor(float)"
    first, second = state._optimizer, again._optimizer
    assert (first.step, first.learning_rate) == (second.step, second.learning_rate)
    assert first.moments.keys() == second.moments.keys()
    for name, moments in first.moments.items():
        for moment, value in moments.items():
            np.testing.assert_array_equal(second.moments[name][moment], value)


def test_the_library_of_flatbuffers_reads_the_file(tmp_path):
    values = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.float64([1, 2])}
    CheckpointState.save_checkpoint(CheckpointState(values, ["a"]), tmp_path / "c")
    data = bytearray((tmp_path / "c").read_bytes())
    assert flatbuffers.util.BufferHasIdentifier(data, 0, b"ODTC")
    root = Table(data, flatbuffers.encode.Get(flatbuffers.packer.uoffset, data, 0))
    module = Table(data, root.Indirect(root.Pos + root.Offset(6)))
    for number, name in enumerate("ab"):
        vector = module.Vector(module.Offset(4 + 2 * number))
        assert module.VectorLen(module.Offset(4 + 2 * number)) == 1
        tensor = Table(data, module.Indirect(vector))
        assert tensor.String(tensor.Pos + tensor.Offset(4)) == name.encode()
        start = tensor.Vector(tensor.Offset(12))
        raw = bytes(data[start : start + tensor.VectorLen(tensor.Offset(12))])
        assert start % values[name].itemsize == 0
        np.testing.assert_array_equal(
            np.frombuffer(raw, values[name].dtype).reshape(values[name].shape), values[name]
        )


@pytest.mark.parametrize("value", [-1, 0, 2**40, -0.1, 1e30, "hello", "", "Zürich"])
def test_properties(tmp_path, value):
    state = CheckpointState({"a": np.zeros(1)}, ["a"])
    assert len(state.properties) == 0
    state.properties["property"] = value
    CheckpointState.save_checkpoint(state, tmp_path / "c")
    again = CheckpointState.load_checkpoint(tmp_path / "c")
    assert "property" in again.properties
    expected = float(np.float32(value)) if isinstance(value, float) else value
    assert again.properties["property"] == expected
    assert type(again.properties["property"]) is type(value)
    with pytest.raises(KeyError, match="other"):
        again.properties["other"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 1, 2)])
def test_types_and_shapes(tmp_path, dtype, shape):
    values = {"a": np.ones(shape, dtype), "b/ü": np.zeros(shape, dtype)}
    CheckpointState.save_checkpoint(CheckpointState(values, []), tmp_path / "c")
    again = CheckpointState.load_checkpoint(tmp_path / "c")
    for name, value in values.items():
        found = again.parameters[name].data
        assert (found.dtype, found.shape) == (value.dtype, value.shape)
        np.testing.assert_array_equal(found, value)


def test_damaged_files(tmp_path):
    data = (STORED / "mlp" / "later").read_bytes()
    path = tmp_path / "c"
    for damaged in (b"", b"ODTC", data[:30], data[:-700], data.replace(b"ODTC", b"ORTM")):
        path.write_bytes(damaged)
        with pytest.raises(og.CheckpointError, match="damaged"):
            CheckpointState.load_checkpoint(path)
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(data), 300):  # any exception but this one is a bug
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << rng.integers(8))]) + data[at + 1 :])
        with contextlib.suppress(og.CheckpointError):
            CheckpointState.load_checkpoint(path)
    with pytest.raises(FileNotFoundError):
        CheckpointState.load_checkpoint(tmp_path / "nowhere")


def test_a_nominal_checkpoint_takes_its_values_from_a_buffer():
    folder = STORED / "mlp"
    complete, module, optimizer = load(folder)
    nominal, other, update = load(folder, "nominal_checkpoint")
    assert nominal.is_nominal
    assert sorted(name for name, _ in complete.parameters) == ["b1", "b2", "w1", "w2"]
    assert "w1" in nominal.parameters
    stored = values_of(folder)
    X, y = stored["X"], stored["y"]
    for call in (lambda: other(X, y), other.get_contiguous_parameters, update.step,
                 lambda: other.eval()(X, y)):  # fmt: skip
        with pytest.raises(RuntimeError, match="Please load the model parameters first"):
            call()
    with pytest.raises(RuntimeError, match="Please load the parameter states first"):
        nominal.parameters["w1"]
    with pytest.raises(RuntimeError, match="Please load all the parameter states first"):
        nominal.parameters["w1"] = np.ones((3, 4), np.float32)
    assert other.get_parameters_size() == module.get_parameters_size() == 26
    other.copy_buffer_to_parameters(module.get_contiguous_parameters(), trainable_only=False)
    assert not nominal.is_nominal
    losses = [train(*pair, X, y, 3) for pair in ((module, optimizer), (other.train(), update))]
    np.testing.assert_array_equal(*losses)
    for name, parameter in complete.parameters:
        np.testing.assert_array_equal(nominal.parameters[name].data, parameter.data)


def test_parameters():
    state, module, _ = load(STORED / "linear")
    parameter, frozen = state.parameters["coef"], state.parameters["intercept"]
    assert (parameter.name, parameter.requires_grad, parameter.data_type) == (
        "coef", True, "tensor(float)",
    )  # fmt: skip
    np.testing.assert_array_equal(parameter.grad, np.zeros((3, 2)))
    assert frozen.grad is None
    parameter.copy_from(OrtValue(np.ones((3, 2), np.float32)))
    frozen.data = np.float32([1, 2])
    X = np.eye(3, dtype=np.float32)
    np.testing.assert_allclose(module(X, np.zeros((3, 2), np.float32)), (4 + 9) / 2, rtol=1e-6)
    assert parameter.grad.any()
    assert "coef" in repr(state.parameters)


def test_a_checkpoint_of_another_model_is_refused():
    state = CheckpointState.load_checkpoint(STORED / "mlp" / "checkpoint")
    with pytest.raises(ValueError, match="does not have the parameters 'coef'"):
        Module(STORED / "linear" / "training_model.onnx", state)
    state = CheckpointState({"coef": np.zeros((4, 2), "f4"), "intercept": np.zeros(2, "f4")}, [])
    with pytest.raises(ValueError, match=r"float32 \[4, 2\] in the checkpoint"):
        Module(STORED / "linear" / "training_model.onnx", state)


def test_nodes_for_training_are_read_as_what_they_compute():
    model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    training (float[N, 2] X, int64[N] labels, float[2] scale,
      float[2] "scale_grad.accumulation.buffer", bool[1] lazy_reset_grad) => (float loss,
      bool[1] "scale_grad.accumulation.out")
    <float[2] zeros = {0, 0}, float[2] ones = {1, 1}, float ratio = {0}, bool on = {1},
     int64 ignored = {-1}>
    { b, m, v, saved, inverse = com.microsoft.BatchNormInternal <training_mode = 1>
        (X, scale, zeros, zeros, ones)
      d, mask = com.microsoft.BitmaskDropout(b, ratio, on)
      c, lengths = com.microsoft.ConcatTraining <axis = 1> (d, d)
      loss, log_prob = com.microsoft.SoftmaxCrossEntropyLossInternal <reduction = "mean">
        (c, labels, , ignored)
      "scale_grad.accumulation.out" = com.microsoft.InPlaceAccumulatorV2
        ("scale_grad.accumulation.buffer", scale, lazy_reset_grad) }
    """)
    part = forward_part(model)
    assert (part.trained, part.outputs) == (["scale"], ["loss"])
    onnx.checker.check_model(part.model)
    X = np.float32([[1, 2], [3, 5], [4, -1]])
    labels = np.array([0, -1, 3])
    passes = og.ForwardBackward(part.with_values({"scale": np.float32([1, 2])}), weights=["scale"])
    (loss,) = passes.forward({"X": X, "labels": labels})
    b = (X - X.mean(axis=0)) / np.sqrt(X.var(axis=0) + 1e-5) * [1, 2]
    c = np.concatenate([b, b], axis=1)
    rows = np.log(np.exp(c).sum(axis=1)) - c[np.arange(3), labels]
    np.testing.assert_allclose(loss, rows[[0, 2]].mean(), rtol=1e-5)


@pytest.mark.parametrize("optimizer", [og.optimizers.RMSProp(0.01), og.optimizers.SGD(0.01, 0.9)])
def test_slots_of_other_optimizers_are_stored(tmp_path, optimizer):
    model = onnx.load(STORED / "linear" / "eval_model.onnx")
    state = CheckpointState.load_checkpoint(STORED / "linear" / "checkpoint")
    for name, parameter in state.parameters:
        model.graph.initializer.append(onnx.numpy_helper.from_array(parameter.data, name))
    artifacts.generate_artifacts(model, optimizer=optimizer, artifact_directory=tmp_path)
    stored = values_of(STORED / "linear")
    X, y = stored["X"], stored["y"]
    state, module, update = load(tmp_path)
    train(module, update, X, y, 3)
    CheckpointState.save_checkpoint(state, tmp_path / "later", include_optimizer_state=True)
    again, *both = load(tmp_path, "later")
    for pair in ((module, update), both):
        train(*pair, X, y, 2)
    for (name, one), (_, other) in itertools.zip_longest(state.parameters, again.parameters):
        np.testing.assert_array_equal(one.data, other.data, err_msg=name)


def test_running_statistics_are_in_the_checkpoint(tmp_path):
    model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[N, 2] X) => (float[N, 2] Y)
    <float[2] scale = {1, 1}, float[2] bias = {0, 0},
     float[2] mean = {0, 0}, float[2] var = {1, 1}> {
      Y = BatchNormalization(X, scale, bias, mean, var)
    }""")
    artifacts.generate_artifacts(
        model,
        requires_grad=["scale", "bias"],
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=tmp_path,
    )
    X = np.random.default_rng(0).normal(3, 2, (32, 2)).astype(np.float32)
    state, module, optimizer = load(tmp_path)
    before = module.eval()(X, X)
    train(module.train(), optimizer, X, X, 5)
    after = module.eval()(X, X)
    CheckpointState.save_checkpoint(state, tmp_path / "saved", include_optimizer_state=True)
    again, other, update = load(tmp_path, "saved")
    assert sorted(name for name, _ in again.parameters) == ["bias", "scale"]
    assert before != after == other.eval()(X, X)
    np.testing.assert_array_equal(
        train(other.train(), update, X, X, 3), train(module.train(), optimizer, X, X, 3)
    )
    assert other.eval()(X, X) == module.eval()(X, X)
