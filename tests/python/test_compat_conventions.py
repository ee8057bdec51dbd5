"""Conventions that programs of the original packages rely on: shapes, names, exceptions."""

import pickle

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

from onnxgrad.compat import onnxcustom
from onnxgrad.compat.mlprodict.onnx_tools.onnx_manipulations import select_model_inputs_outputs
from onnxgrad.compat.onnxcustom.training.data_loader import OrtDataLoader
from onnxgrad.compat.onnxcustom.training.grad_helper import onnx_derivative
from onnxgrad.compat.onnxcustom.training.optimizers import OrtGradientOptimizer
from onnxgrad.compat.onnxcustom.training.optimizers_partial import (
    OrtGradientForwardBackwardOptimizer,
)
from onnxgrad.compat.onnxcustom.training.ortgradient import OrtGradientForwardBackward
from onnxgrad.compat.onnxcustom.training.sgd_learning_rate import LearningRateSGDNesterov
from onnxgrad.compat.onnxcustom.utils.orttraining_helper import add_loss_output
from onnxgrad.compat.onnxruntime import TrainingParameters, TrainingSession

HEADER = '<ir_version: 8, opset_import: ["" : 15]>\n'
SHAPES = {"column": (5, 1), "scale": (1, 3), "shift": (1, 3)}
ROWS = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
TARGET = np.random.default_rng(1).normal(size=(40, 3)).astype(np.float32)


def parse(text, **arrays):
    model = onnx.parser.parse_model(HEADER + text)
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


@pytest.fixture
def matrices():
    """Y = (X column) * scale + shift, with the weights of SHAPES."""
    rng = np.random.default_rng(2)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    text = """m (float[N, 5] X) => (float[N, 3] Y)
        { h = MatMul(X, column)
          k = Mul(h, scale)
          Y = Add(k, shift) }"""
    return parse(text, **arrays)


def test_weights_and_gradients_have_the_shapes_of_their_initializers(matrices):
    start = {init.name: numpy_helper.to_array(init) for init in matrices.graph.initializer}
    rate = LearningRateSGDNesterov(1e-4, nesterov=True, momentum=0.9)
    partial = OrtGradientForwardBackwardOptimizer(
        matrices, list(SHAPES), max_iter=2, learning_rate=rate
    )
    partial.fit(ROWS, TARGET)
    assert {n: tuple(v.shape()) for n, v in partial.trained_coef_.items()} == SHAPES
    assert [tuple(v.shape()) for v in partial.get_state("grad")] == list(SHAPES.values())
    whole = OrtGradientOptimizer(
        add_loss_output(matrices), list(SHAPES), max_iter=2, learning_rate=1e-4
    )
    whole.fit(ROWS, TARGET)
    assert {n: v.shape for n, v in whole.trained_coef_.items()} == SHAPES
    trained = {init.name: tuple(init.dims) for init in whole.get_trained_onnx().graph.initializer}
    assert trained == SHAPES

    function = OrtGradientForwardBackward(matrices).new_instance()
    function.forward([ROWS, *start.values()], training=True)
    gradients = [value.numpy() for value in function.backward([np.ones_like(TARGET)])]
    assert [one.shape for one in gradients] == [(40, 5), *SHAPES.values()]
    session = onnxruntime.InferenceSession(onnx_derivative(matrices).SerializeToString())
    found = session.run(None, {"X": ROWS, **start, "Y_grad": np.ones_like(TARGET)})
    for ours, theirs in zip(gradients, found, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-5)
    by_hand = ROWS.T @ np.ones_like(TARGET) @ start["scale"].T
    np.testing.assert_allclose(gradients[1], by_hand, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(40,), (40, 1)])
def test_sample_weights_may_be_a_column(matrices, shape):
    weights = np.linspace(0.1, 2, 40, dtype=np.float32)
    found = {}
    for given in (weights, weights.reshape(shape)):
        np.random.seed(0)  # noqa: NPY002 (the original's generator)
        whole = OrtGradientOptimizer(
            add_loss_output(matrices, weight_name="weight"),
            list(SHAPES),
            max_iter=3,
            learning_rate=1e-4,
        ).fit(ROWS, TARGET, given)
        np.random.seed(0)  # noqa: NPY002
        partial = OrtGradientForwardBackwardOptimizer(
            matrices, list(SHAPES), max_iter=3, learning_rate=1e-4, weight_name="weight"
        ).fit(ROWS, TARGET, given)
        now = (whole.train_losses_, whole.losses(ROWS, TARGET, given).tolist())
        now += (partial.train_losses_, partial.losses(ROWS, TARGET, given).tolist())
        assert found.setdefault("first", now) == now
    with pytest.raises(ValueError, match=r"sample_weight\.shape=\(39,\)"):
        partial.fit(ROWS, TARGET, weights[1:])
    with pytest.raises(ValueError, match=r"sample_weight\.shape=\(39, 1\)"):
        whole.fit(ROWS, TARGET, weights[1:, None])


def test_data_loader_describes_its_arrays():
    weights = np.ones((40, 1), np.float64)
    loader = OrtDataLoader(ROWS, TARGET[:, 0], weights, batch_size=7)
    assert loader.desc == [
        ((40, 5), np.dtype(np.float32)),
        ((40, 1), np.dtype(np.float32)),
        ((40,), np.dtype(np.float64)),
    ]
    assert OrtDataLoader(ROWS, TARGET).desc[1] == ((40, 3), np.dtype(np.float32))
    assert repr(loader) == "OrtDataLoader(..., ..., batch_size=7, device='cpu')"
    again = pickle.loads(pickle.dumps(loader))
    assert again.desc == loader.desc
    assert [len(batch[0]) for batch in again.iter_numpy()] == [7] * 6
    whole = OrtDataLoader(ROWS, TARGET, batch_size=0)
    assert [len(batch[0]) for batch in whole.iter_numpy()] == [40]


def test_select_infers_and_overwrites_types(matrices):
    bare = onnx.ModelProto()
    bare.CopyFrom(matrices)
    bare.graph.output[0].type.tensor_type.ClearField("shape")
    plain = select_model_inputs_outputs(bare, outputs="Y")
    assert not plain.graph.output[0].type.tensor_type.HasField("shape")
    inferred = select_model_inputs_outputs(bare, outputs=["Y"], infer_shapes=True)
    dims = inferred.graph.output[0].type.tensor_type.shape.dim
    assert [dim.dim_value or dim.dim_param for dim in dims] == ["N", 3]
    said = []
    chosen = select_model_inputs_outputs(
        matrices,
        outputs=["k"],
        inputs=["h"],
        overwrite={"h": (np.float32, [None, 1])},
        remove_unused=False,
        verbose=1,
        fLOG=said.append,
    )
    assert [init.name for init in chosen.graph.initializer] == ["scale", "column", "shift"]
    assert len(chosen.graph.input[0].type.tensor_type.shape.dim) == 2
    assert said == ["[select_model_inputs_outputs] nodes 3 --> 1"]
    session = onnxruntime.InferenceSession(chosen.SerializeToString())
    scale = numpy_helper.to_array(matrices.graph.initializer[1])
    column = np.float32([[1], [2]])
    np.testing.assert_allclose(session.run(None, {"h": column})[0], column * scale)


def leaves(saved):
    for value in saved.values():
        yield from leaves(value) if isinstance(value, dict) else [value]


def test_graphs_are_saved_as_bytes(matrices, tmp_path):
    optimizer = OrtGradientForwardBackwardOptimizer(matrices, list(SHAPES), learning_rate=1e-4)
    optimizer.fit(ROWS, TARGET)
    in_files = optimizer.save_onnx_graph(str(tmp_path))
    in_bytes = optimizer.save_onnx_graph(bytes)
    assert {*in_bytes} == {*in_files}
    graphs = list(leaves(in_bytes))
    assert len(graphs) == len(list(leaves(in_files)))
    assert len(graphs) > 5
    for one in graphs:
        onnxruntime.InferenceSession(one)
    with pytest.raises(FileNotFoundError):
        optimizer.save_onnx_graph(str(tmp_path / "no_folder"))


def probabilities(declared):
    """A binary classifier's two columns; without a declared shape, or with that one."""
    text = """m (float[N, 5] X) => (float%s P)
        { h = MatMul(X, coef)
          p = Sigmoid(h)
          q = Sub(one, p)
          P = Concat <axis = 1> (q, p) }"""
    model = parse(
        text % declared, coef=np.full((5, 1), 0.3, np.float32), one=np.ones(1, np.float32)
    )
    if not declared:
        model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize("declared", ["[N, 2]", ""])
@pytest.mark.parametrize("weight", [None, "weight"])
def test_log_loss_of_outputs_with_and_without_a_shape(declared, weight):
    model = add_loss_output(probabilities(declared), "log", weight_name=weight)
    labels = (ROWS[:, :1] > 0).astype(np.int64)
    weights = np.linspace(0.5, 1.5, 40, dtype=np.float32)
    feeds = {"X": ROWS, "label": labels, **({} if weight is None else {"weight": weights})}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    loss = session.run(["loss"], feeds)[0]
    p = 1 / (1 + np.exp(-ROWS.astype(np.float64) @ np.full((5, 1), 0.3)))
    rows = -np.log(np.where(labels == 1, p, 1 - p))[:, 0]
    expected = np.mean(rows * (1 if weight is None else weights))
    np.testing.assert_allclose(loss, [[expected]], rtol=1e-5)


def test_squared_error_of_an_output_without_a_shape(matrices):
    matrices.graph.output[0].type.tensor_type.ClearField("shape")
    model = add_loss_output(matrices, weight_name="weight")
    weights = np.linspace(0.5, 1.5, 40, dtype=np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    loss, Y = session.run(["loss", "Y"], {"X": ROWS, "label": TARGET, "weight": weights})
    expected = np.sum((Y.astype(np.float64) - TARGET) ** 2 * weights[:, None])
    np.testing.assert_allclose(loss, [[expected]], rtol=1e-5)


def test_the_label_of_a_classifier_is_renamed_for_the_target():
    model = probabilities("[N, 2]")
    model.graph.node.append(onnx.helper.make_node("ArgMax", ["P"], ["label"], axis=1, keepdims=0))
    label = onnx.helper.make_tensor_value_info("label", onnx.TensorProto.INT64, ["N"])
    model.graph.output.insert(0, label)
    with_loss = add_loss_output(model, "log", output_index="P")
    assert [value.name for value in with_loss.graph.input] == ["X", "label"]
    assert [value.name for value in with_loss.graph.output] == ["loss", "_label_", "P"]
    session = onnxruntime.InferenceSession(with_loss.SerializeToString())
    labels = (ROWS[:, :1] > 0).astype(np.int64)
    found, P = session.run(["_label_", "P"], {"X": ROWS, "label": labels})
    np.testing.assert_array_equal(found, P.argmax(axis=1))
    assert [value.name for value in model.graph.output] == ["label", "P"]  # not modified


def test_unknown_providers_are_value_errors(matrices):
    with pytest.raises(ValueError, match="TPUExecutionProvider"):
        OrtGradientForwardBackward(matrices, providers=["TPUExecutionProvider"])
    parameters = TrainingParameters()
    parameters.loss_output_name = "loss"
    parameters.weights_to_train = {*SHAPES}
    model = add_loss_output(matrices)
    with pytest.raises(ValueError, match="TPUExecutionProvider"):
        TrainingSession(model, parameters, providers=[("TPUExecutionProvider", {})])


def test_the_newest_opset_is_one_that_the_converter_takes():
    pytest.importorskip("skl2onnx")
    from skl2onnx import __max_supported_opset__, to_onnx
    from sklearn.linear_model import LinearRegression

    newest = onnxcustom.get_max_opset()
    assert newest == onnxcustom.__max_supported_opset__ == min(26, __max_supported_opset__)
    model = to_onnx(LinearRegression().fit(ROWS, TARGET), ROWS[:1], target_opset=newest)
    assert max(one.version for one in model.opset_import if one.domain == "") <= newest
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = onnxcustom.nothing
