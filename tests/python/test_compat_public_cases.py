"""Cases that onnxruntime's own tests of its training interfaces cover, in this project's words."""

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from onnxgrad.compat.onnxruntime.training import artifacts, onnxblock
from onnxgrad.compat.onnxruntime.training.api import CheckpointState, Module, Optimizer

DROPOUT = """
<ir_version: 8, opset_import: ["" : 14]>
dropout (float[N, 3] X) => (float[N, 3] Y) <float ratio = {0.5}, bool on = {1}>
{ Y, mask = Dropout(X, ratio, on) }
"""
NORMALIZED = """
<ir_version: 8, opset_import: ["" : 14]>
normalized (float[N, 2, 3] X) => (float[N, 2, 3] Y)
<float[2] scale = {1, 2}, float[2] bias = {0, 1}, float[2] mean = {0, 0}, float[2] var = {1, 1}>
{ Y, m, v = BatchNormalization <training_mode = 1> (X, scale, bias, mean, var) }
"""
NET = """
<ir_version: 8, opset_import: ["" : 15]>
net (float[N, 2] X) => (float[N, 3] Y)
<float[2, 3] w = {0.1, -0.2, 0.3, 0.4, -0.5, 0.6}> { Y = MatMul(X, w) }
"""


def test_a_model_without_parameters_has_only_a_loss(tmp_path):
    model = onnx.parser.parse_model(DROPOUT)
    for extra in (None, ["Y"]):
        artifacts.generate_artifacts(
            model, loss=artifacts.LossType.CrossEntropyLoss, artifact_directory=tmp_path,
            additional_output_names=extra,
        )  # fmt: skip
        evaluation = onnx.load(tmp_path / "eval_model.onnx")
        assert len(evaluation.graph.output) == (1 if extra is None else 2)
        (node,) = [node for node in evaluation.graph.node if node.op_type == "Dropout"]
        assert not node.input[2]
        training = onnx.load(tmp_path / "training_model.onnx")
        (node,) = [node for node in training.graph.node if node.op_type == "Dropout"]
        assert node.input[2] == "on"
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    X, labels = np.eye(3, dtype=np.float32), np.arange(3)
    with pytest.raises(ValueError, match="nothing to update"):
        Optimizer(tmp_path / "eval_model.onnx", module)
    _, y = module.eval()(X, labels)
    np.testing.assert_array_equal(y, X)


def test_statistics_of_a_batch_are_for_training_only(tmp_path):
    artifacts.generate_artifacts(
        onnx.parser.parse_model(NORMALIZED), requires_grad=["scale", "bias"],
        loss=artifacts.LossType.MSELoss, optimizer=artifacts.OptimType.SGD,
        artifact_directory=tmp_path,
    )  # fmt: skip
    evaluation = onnx.load(tmp_path / "eval_model.onnx")
    onnx.checker.check_model(evaluation, full_check=True)
    (node,) = [node for node in evaluation.graph.node if node.op_type == "BatchNormalization"]
    assert [attribute.i for attribute in node.attribute if attribute.name == "training_mode"] == [0]
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    X = np.random.default_rng(0).normal(3, 2, size=(8, 2, 3)).astype(np.float32)
    for _ in range(60):  # the running statistics approach those of the batch
        module(X, X)
        module.lazy_reset_grad()
    module.export_model_for_inferencing(tmp_path / "trained.onnx", ["Y"])
    session = onnxruntime.InferenceSession(
        tmp_path / "trained.onnx", providers=["CPUExecutionProvider"]
    )
    (y,) = session.run(None, {"X": X})
    np.testing.assert_allclose(y.mean(axis=(0, 2)), [0, 1], atol=0.05)
    np.testing.assert_allclose(y.std(axis=(0, 2)), [1, 2], rtol=0.05)


def test_all_models_have_the_operator_set_of_the_original(tmp_path):
    for optimizer in (artifacts.OptimType.AdamW, onnxblock.optim.AdamW):
        artifacts.generate_artifacts(
            onnx.parser.parse_model(NET), loss=artifacts.LossType.MSELoss, optimizer=optimizer,
            artifact_directory=tmp_path,
        )  # fmt: skip
        for name in ("training", "eval", "optimizer"):
            model = onnx.load(tmp_path / f"{name}_model.onnx")
            assert [used.version for used in model.opset_import if not used.domain] == [15], name


def test_texts_as_inputs(tmp_path):
    class Network(onnxblock.ForwardBlock):
        def __init__(self):
            super().__init__()
            self.cast = onnxblock.blocks.Cast(to=onnx.TensorProto.FLOAT)
            self.linear = onnxblock.blocks.Linear(4, 2)

        def build(self, name):
            return self.linear(self.cast(name))

    network = Network()
    with onnxblock.empty_base(17) as accessor:
        accessor.model.graph.input.append(
            onnx.helper.make_tensor_value_info("input", onnx.TensorProto.STRING, [1, 4])
        )
        network("input")
    model = network.to_model_proto()
    artifacts.generate_artifacts(
        model, requires_grad=[tensor.name for tensor in model.graph.initializer],
        loss=artifacts.LossType.CrossEntropyLoss, optimizer=artifacts.OptimType.AdamW,
        artifact_directory=tmp_path,
    )  # fmt: skip
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    texts, labels = np.array([["1.0", "2.0", "3.0", "4.0"]]), np.array([1])
    w, b = (parameter.data for _, parameter in state.parameters)
    y = (np.float64([1, 2, 3, 4]) @ w + b).ravel()
    expected = np.log(np.exp(y - y.max()).sum()) + y.max() - y[1]
    for mode in (True, False):
        np.testing.assert_allclose(
            module.train(mode)(texts, labels), expected, rtol=1e-4, atol=1e-5
        )


def test_a_loss_of_outputs_of_different_ranks(tmp_path):
    class Loss(onnxblock.Block):
        def __init__(self):  # without that of the base class, as users write it
            self.one, self.other = onnxblock.loss.MSELoss(), onnxblock.loss.BCEWithLogitsLoss()
            self.add = onnxblock.blocks.Add()

        def build(self, one, other):
            return self.add(self.one(one, target_name="t1"), self.other(other, target_name="t2"))

    model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 14]>
    two (float[2, 3, 4] x, float[5, 2] y) => (float[2, 3, 4] u, float[5, 2] v)
    <float[4] a = {1, 2, 3, 4}, float[2] b = {5, 6}> { u = Add(a, x)  v = Add(b, y) }
    """)
    artifacts.generate_artifacts(model, loss=Loss(), artifact_directory=tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    assert module.input_names() == ["x", "y", "t1", "t2"]
    x, y = np.zeros((2, 3, 4), np.float32), np.zeros((5, 2), np.float32)
    found = module(x, y, x, y)
    expected = np.mean(np.square([1, 2, 3, 4])) + np.mean(np.log1p(np.exp([5, 6])))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_clipping_alone():
    class Clip(onnxblock.ForwardBlock):
        def build(self, name):
            return onnxblock.optim.ClipGradNorm(2.5)(name)

    clip = Clip()
    with onnxblock.empty_base(17) as accessor:
        accessor.model.graph.input.append(
            onnx.helper.make_tensor_sequence_value_info("g", onnx.TensorProto.FLOAT, None)
        )
        name = clip("g")
    (node,) = clip.to_model_proto().graph.node
    assert (node.op_type, node.domain, list(node.output)) == (
        "InplaceClipGradNorm", "com.microsoft", [name],
    )  # fmt: skip


def test_labels_go_through_a_table():
    class Loss(onnxblock.ForwardBlock):
        def build(self, name):
            labels = onnxblock.blocks.InputLike(name)("labels")
            value = self.base.graph.input[-1].type.tensor_type
            value.elem_type = onnx.TensorProto.INT64
            del value.shape.dim[1]
            encoder = onnxblock.blocks.LabelEncoder(
                keys_int64s=[521, 522, 523], values_int64s=[0, 1, 2]
            )
            return onnxblock.loss.CrossEntropyLoss()(name, encoder(labels))

    loss = Loss()
    with onnxblock.base(onnx.parser.parse_model(NET)):
        loss("Y")
    session = onnxruntime.InferenceSession(
        loss.to_model_proto().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    X = np.float32([[1, 2], [-1, 0.5]])
    (found,) = session.run(None, {"X": X, "labels": np.array([523, 521])})
    y = X.astype(np.float64) @ [[0.1, -0.2, 0.3], [0.4, -0.5, 0.6]]
    rows = np.log(np.exp(y).sum(axis=1)) - y[[0, 1], [2, 0]]
    np.testing.assert_allclose(found, rows.mean(), rtol=1e-5)


@pytest.mark.parametrize("one_file", [True, False])
def test_a_path_with_external_data(tmp_path, one_file):
    model = onnx.parser.parse_model(NET)
    onnx.save_model(
        model, tmp_path / "net.onnx", save_as_external_data=True, size_threshold=0,
        all_tensors_to_one_file=one_file,
    )  # fmt: skip
    folder = tmp_path / "artifacts"
    folder.mkdir()
    artifacts.generate_artifacts(
        str(tmp_path / "net.onnx"), requires_grad=["w"], loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD, artifact_directory=folder,
    )  # fmt: skip
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state)
    old = module.get_contiguous_parameters().numpy()
    module(np.ones((4, 2), np.float32), np.ones((4, 3), np.float32))
    Optimizer(folder / "optimizer_model.onnx", module).step()
    assert not np.array_equal(old, module.get_contiguous_parameters().numpy())
