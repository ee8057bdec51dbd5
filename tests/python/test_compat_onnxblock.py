"""Losses, optimizers and models that are built of blocks."""

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import onnxgrad as og
from onnxgrad.compat.onnxruntime.training import artifacts, onnxblock
from onnxgrad.compat.onnxruntime.training.api import CheckpointState, Module, Optimizer

NET = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 3] X) => (float[N, 4] Y)
<float[3, 4] w = {0.1, -0.2, 0.3, 0.4, -0.5, 0.6, 0.7, -0.8, 0.9, 0.1, -0.2, 0.3},
 float[4] b = {0.5, -0.5, 0.25, 0}>
{ product = MatMul(X, w)
  Y = Add(product, b) }
"""
RNG = np.random.default_rng(3)
X = RNG.normal(size=(6, 3)).astype(np.float32)
T = RNG.normal(size=(6, 4)).astype(np.float32)
LABELS = RNG.integers(0, 4, 6)
P = RNG.uniform(size=(6, 4)).astype(np.float32)


def net():
    return onnx.parser.parse_model(NET)


def run(model, outputs, feeds):
    """Outputs of stock onnxruntime."""
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(outputs, feeds)


def scores():
    w, b = (onnx.numpy_helper.to_array(tensor) for tensor in net().graph.initializer)
    return X.astype(np.float64) @ w + b


def softplus(x):
    return np.logaddexp(0, x)


def cross_entropy(weight=None, ignored=None, reduction="mean"):
    y = scores()
    rows = np.log(np.exp(y).sum(axis=1)) - y[np.arange(6), LABELS]
    w = np.ones(6) if weight is None else weight[LABELS].astype(np.float64)
    w = np.where(ignored == LABELS, 0, w)
    return {"mean": (w * rows).sum() / w.sum(), "sum": (w * rows).sum(), "none": w * rows}[
        reduction
    ]


WEIGHT = np.array([1, 2, 0.5, 3], np.float32)
LOSSES = [
    (onnxblock.loss.MSELoss(), T, lambda y: np.mean((y - T) ** 2)),
    (onnxblock.loss.MSELoss("sum"), T, lambda y: np.sum((y - T) ** 2)),
    (onnxblock.loss.MSELoss(reduction="none"), T, lambda y: (y - T) ** 2),
    (onnxblock.loss.L1Loss(), T, lambda y: np.mean(np.abs(y - T))),
    (onnxblock.loss.L1Loss("sum"), T, lambda y: np.sum(np.abs(y - T))),
    (
        onnxblock.loss.BCEWithLogitsLoss(),
        P,
        lambda y: np.mean(P * softplus(-y) + (1 - P) * softplus(y)),
    ),
    (
        onnxblock.loss.BCEWithLogitsLoss(weight=WEIGHT, pos_weight=WEIGHT[::-1], reduction="sum"),
        P,
        lambda y: np.sum(WEIGHT * (WEIGHT[::-1] * P * softplus(-y) + (1 - P) * softplus(y))),
    ),
    (onnxblock.loss.CrossEntropyLoss(), LABELS, lambda _: cross_entropy()),
    (onnxblock.loss.CrossEntropyLoss(weight=WEIGHT), LABELS, lambda _: cross_entropy(WEIGHT)),
    (
        onnxblock.loss.CrossEntropyLoss(reduction="none", ignore_index=2),
        LABELS,
        lambda _: cross_entropy(ignored=2, reduction="none"),
    ),
]


@pytest.mark.parametrize(("loss", "target", "formula"), LOSSES)
def test_losses_and_their_gradients(loss, target, formula):
    class Forward(onnxblock.ForwardBlock):
        def build(self, name):
            return loss(name)

    class Training(onnxblock.TrainingBlock):
        build = Forward.build

    forward = Forward()
    with onnxblock.base(net()) as accessor:
        name = forward("Y")
        assert [value.name for value in accessor.model.graph.output] == [name]
    model = forward.to_model_proto()
    onnx.checker.check_model(model, full_check=True)
    feeds = dict(zip([value.name for value in model.graph.input], (X, target), strict=True))
    (found,) = run(model, [name], feeds)
    np.testing.assert_allclose(found, formula(scores()), rtol=1e-5, atol=1e-6)

    training = Training()
    training.requires_grad("w")
    training.requires_grad("b", True)
    with onnxblock.base(net()):
        name = training("Y")
    model, evaluation = training.to_model_proto()
    names = [value.name for value in evaluation.graph.input]
    assert names[2:] == ["w", "b"]
    weights = {
        tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in net().graph.initializer
    }
    assert [tensor.name for tensor in training.parameters()[0]] == ["w", "b"]
    feeds = {**dict(zip(names, (X, target), strict=False)), **weights}
    np.testing.assert_allclose(run(evaluation, [name], feeds)[0], found, rtol=1e-6)
    sums = {n: np.full_like(value, 2) for n, value in weights.items()}
    feeds |= {f"{n}_grad.accumulation.buffer": value for n, value in sums.items()}
    outputs = [value.name for value in model.graph.output]
    assert outputs == [name, "w_grad.accumulation.out", "b_grad.accumulation.out"]
    first = run(model, outputs, feeds | {"lazy_reset_grad": np.array([True])})
    added = run(model, outputs, feeds | {"lazy_reset_grad": np.array([False])})
    passes = og.ForwardBackward(forward.to_model_proto(), weights=["w", "b"], untie=False)
    given = dict(zip([value.name for value in passes.get_inputs()], (X, target), strict=True))
    (loss_value,) = outputs_of = passes.forward(given)
    gradients = passes.backward([np.ones_like(loss_value)], outputs_of.context).weights
    for i, n in enumerate(["w", "b"]):
        np.testing.assert_allclose(first[i + 1], gradients[n], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(added[i + 1], gradients[n] + 2, rtol=1e-5, atol=1e-6)


class Weighted(onnxblock.TrainingBlock):
    """The weighted sum of two losses of two outputs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = onnxblock.loss.MSELoss(), onnxblock.loss.L1Loss()
        self.a, self.b = onnxblock.blocks.Constant(0.3), onnxblock.blocks.Constant(0.7)
        self.mul, self.add = onnxblock.blocks.Mul(), onnxblock.blocks.Add()

    def build(self, one, other):
        return self.add(
            self.mul(self.a(), self.first(one, target_name="t1")),
            self.mul(self.b(), self.second(other, target_name="t2")),
        )


def test_a_loss_of_two_outputs_through_artifacts(tmp_path):
    model = onnx.parser.parse_model(
        NET.replace("(float[N, 4] Y)", "(float[N, 4] Y, float[N, 4] product)")
    )

    block = Weighted()
    block.requires_grad("w")
    with onnxblock.base(model):
        name = block("Y", "product")
    assert block.to_model_proto()[0].graph.output[0].name == name
    artifacts.generate_artifacts(
        model, requires_grad=["w"], frozen_params=["b"], loss=_two_losses(),
        optimizer=onnxblock.optim.SGD(), artifact_directory=tmp_path,
        additional_output_names=["product"],
    )  # fmt: skip
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
    assert module.input_names() == ["X", "t1", "t2"]
    w, b = (state.parameters[name].data.astype(np.float64) for name in ("w", "b"))
    optimizer.set_learning_rate(0.1)
    loss, product = module(X, T, P)
    np.testing.assert_allclose(product, X @ w, rtol=1e-5, atol=1e-6)
    y = X @ w + b
    expected = 0.3 * np.mean((y - T) ** 2) + 0.7 * np.mean(np.abs(X @ w - P))
    np.testing.assert_allclose(loss, [expected], rtol=1e-5)
    gradient = X.T @ (0.3 * 2 * (y - T) + 0.7 * np.sign(X @ w - P)) / T.size
    np.testing.assert_allclose(state.parameters["w"].grad, gradient, rtol=1e-4, atol=1e-6)
    assert state.parameters["b"].grad is None
    optimizer.step()
    np.testing.assert_allclose(state.parameters["w"].data, w - 0.1 * gradient, rtol=1e-5, atol=1e-6)


def _two_losses():
    class Loss(onnxblock.ForwardBlock):
        build = Weighted.build

        def __init__(self):
            super().__init__()
            parts = vars(Weighted())
            names = ("first", "second", "a", "b", "mul", "add")
            vars(self).update({name: parts[name] for name in names})

    return Loss()


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias_correction": False, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.2},
        "SGD",
    ],
)
def test_optimizer_blocks_follow_their_formulas(tmp_path, options, clip):
    blocks = onnxblock.optim
    clip_grad = None if clip is None else blocks.ClipGradNorm(clip)
    is_sgd = options == "SGD"
    optimizer = blocks.SGD(clip_grad) if is_sgd else blocks.AdamW(**options, clip_grad=clip_grad)
    artifacts.generate_artifacts(
        net(), requires_grad=["w", "b"], loss=onnxblock.loss.MSELoss(), optimizer=optimizer,
        artifact_directory=tmp_path,
    )  # fmt: skip
    model = onnx.load(tmp_path / "optimizer_model.onnx")
    kinds = [node.op_type for node in model.graph.node]
    assert kinds == [*["InplaceClipGradNorm"][: clip is not None],
                     "SGDOptimizerV2" if is_sgd else "AdamWOptimizer"]  # fmt: skip
    assert [value.name for value in model.graph.input][:4] == [
        "learning_rate", "step", "params", "gradients",
    ]  # fmt: skip
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    update = Optimizer(tmp_path / "optimizer_model.onnx", module)
    assert update.get_learning_rate() == pytest.approx(1e-3)
    update.set_learning_rate(0.02)
    given = {} if is_sgd else options
    b1, b2 = given.get("betas", (0.9, 0.999))
    eps, decay = given.get("eps", 1e-6), given.get("weight_decay", 0.0)
    w = {name: parameter.data.astype(np.float64) for name, parameter in state.parameters}
    m, v = dict.fromkeys(w, 0.0), dict.fromkeys(w, 0.0)
    for t in range(1, 6):
        module(X, T)
        g = {name: state.parameters[name].grad.astype(np.float64) for name in w}
        update.step()
        module.lazy_reset_grad()
        if clip is not None:
            norm = np.sqrt(sum((value**2).sum() for value in g.values()))
            g = {name: value * min(1, clip / (norm + 1e-6)) for name, value in g.items()}
        for name in w:
            if is_sgd:
                w[name] = w[name] - 0.02 * g[name]
                continue
            m[name] = b1 * m[name] + (1 - b1) * g[name]
            v[name] = b2 * v[name] + (1 - b2) * g[name] ** 2
            corrects = given.get("bias_correction", True)
            size = 0.02 * (np.sqrt(1 - b2**t) / (1 - b1**t) if corrects else 1)
            w[name] = w[name] - size * m[name] / (np.sqrt(v[name]) + eps)
            w[name] = w[name] * (1 - 0.02 * decay)
            np.testing.assert_allclose(state.parameters[name].data, w[name], rtol=2e-4, atol=2e-6)


def test_a_model_from_nothing():
    class Network(onnxblock.ForwardBlock):
        def __init__(self):
            super().__init__()
            blocks = onnxblock.blocks
            self.cast, self.linear = blocks.Cast(to=onnx.TensorProto.FLOAT), blocks.Linear(4, 2)
            self.clip, self.pow = blocks.Clip(-1, 2), blocks.Pow(3)
            self.norm = blocks.ReduceAllL2()

        def build(self, name):
            y = self.linear(self.cast(name))
            return [self.pow(self.clip(y)), self.norm(y, y)]

    network = Network()
    with onnxblock.empty_base(opset_version=17) as accessor:
        accessor.model.graph.input.append(
            onnx.helper.make_tensor_value_info("x", onnx.TensorProto.STRING, [1, 4])
        )
        network("x")
    model = network.to_model_proto()
    w, b = (onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer[:2])
    texts = np.array([["1.0", "2.0", "-3", "4.0"]], dtype=object)
    cubes, norm = run(model, None, {"x": texts})
    y = texts.astype(np.float64) @ w + b
    np.testing.assert_allclose(cubes, np.clip(y, -1, 2) ** 3, rtol=1e-5)
    np.testing.assert_allclose(norm, [np.sqrt(2 * (y**2).sum())], rtol=1e-5)


def test_the_gradient_of_an_input():
    block = Weighted()
    block.requires_grad("X")
    with onnxblock.base(net()):
        block("Y", "Y")
    model, _ = block.to_model_proto()
    assert "X_grad.accumulation.buffer" in [value.name for value in model.graph.input]
    assert "X_grad.accumulation.out" in [value.name for value in model.graph.output]
    assert block.parameters() == ([], [])


def test_checkpoints_of_blocks(tmp_path):
    block = Weighted()
    block.requires_grad("w")
    block.requires_grad("b")
    block.requires_grad("b", False)
    with onnxblock.base(net()):
        block("Y", "Y")
    trained, frozen = block.parameters()
    assert ([t.name for t in trained], [t.name for t in frozen]) == (["w"], ["b"])
    onnxblock.save_checkpoint(block.parameters(), tmp_path / "c")
    onnxblock.save_checkpoint(block.parameters(), tmp_path / "n", nominal_checkpoint=True)
    zeros = og.set_weights(net(), {"w": np.zeros((3, 4), "f4"), "b": np.zeros(4, "f4")})
    onnxblock.load_checkpoint_to_model(tmp_path / "c", zeros)
    for found, expected in zip(zeros.graph.initializer, net().graph.initializer, strict=True):
        np.testing.assert_array_equal(*map(onnx.numpy_helper.to_array, (found, expected)))
    with pytest.raises(RuntimeError, match="load the parameter states first"):
        onnxblock.load_checkpoint_to_model(tmp_path / "n", zeros)


def test_what_is_refused(tmp_path):
    block = Weighted()
    with pytest.raises(RuntimeError, match="build the training model first"):
        block.parameters()
    with pytest.raises(RuntimeError, match="not built yet"):
        block.to_model_proto()
    with pytest.raises(RuntimeError, match="call blocks within"):
        onnxblock.blocks.Add()("a", "b")
    with onnxblock.base(net()), pytest.raises(RuntimeError, match="open already"):
        onnxblock.base(net()).__enter__()
    with onnxblock.base(net()), pytest.raises(onnx.checker.ValidationError):
        onnxblock.blocks.Add()("Y", "nowhere")
    with pytest.raises(RuntimeError, match="reduction='max'"):
        onnxblock.loss.MSELoss("max")
    with pytest.raises(NotImplementedError, match="register_operator"):
        onnxblock.custom_op_library("library.so").__enter__()
    with onnxblock.base(net()), pytest.raises(LookupError, match="nowhere"):
        onnxblock.blocks.InputLike("nowhere")()
    block.requires_grad("nowhere")
    with onnxblock.base(net()), pytest.raises(LookupError, match="nowhere"):
        block("Y", "Y")

    class Own(onnxblock.ForwardBlock):
        def build(self, parameters):
            return onnxblock.blocks.Constant(1)()

    with pytest.raises(LookupError, match="no values of known type"):
        artifacts.generate_artifacts(
            net(), loss=onnxblock.loss.MSELoss, optimizer=Own, artifact_directory=tmp_path
        )
