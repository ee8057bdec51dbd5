"""A linear regression trained step by step with TrainingSession.

The model, the same with a loss, batches of consecutive rows, two single steps, a class that trains
by gradient descent, and the trained weights in the first model again.

    python examples/seeds/linear_regression.py [folder]
"""

from pprint import pprint

import numpy
from common import begin, plot_losses, save, section
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import make_regression
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import onnxgrad
from onnxgrad.compat.onnxcustom.plotting.plotting_onnx import plot_onnxs
from onnxgrad.compat.onnxcustom.training.data_loader import OrtDataLoader
from onnxgrad.compat.onnxruntime import (
    InferenceSession,
    SessionOptions,
    TrainingParameters,
    TrainingSession,
)


def onnx_linear_regression(coefs, intercept, with_loss=False):
    if len(coefs.shape) == 1:
        coefs = coefs.reshape((1, -1))
    coefs = coefs.T
    X = helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, coefs.shape[0]])
    label = helper.make_tensor_value_info("label", TensorProto.FLOAT, [None, coefs.shape[1]])
    Y = helper.make_tensor_value_info("Y", TensorProto.FLOAT, [None, coefs.shape[1]])
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    nodes = [
        helper.make_node("MatMul", ["X", "coefs"], ["y1"], name="N1"),
        helper.make_node("Add", ["y1", "intercept"], ["Y"], name="N2"),
    ]
    if with_loss:
        nodes += [
            helper.make_node("Sub", ["Y", "label"], ["diff"], name="L1"),
            helper.make_node("Mul", ["diff", "diff"], ["diff2"], name="L2"),
            helper.make_node("ReduceSum", ["diff2"], ["loss"], name="L3"),
        ]
    weights = [
        numpy_helper.from_array(coefs, name="coefs"),
        numpy_helper.from_array(intercept, name="intercept"),
    ]
    inputs, outputs = ([X, label], [loss, Y]) if with_loss else ([X], [Y])
    graph = helper.make_graph(nodes, "lrt" if with_loss else "lr", inputs, outputs, weights)
    return helper.make_model(
        graph, producer_name="orttrainer", ir_version=7,
        opset_imports=[helper.make_operatorsetid("", 14)],
    )  # fmt: skip


def create_training_session(training_onnx, weights_to_train, loss_output_name="loss"):
    ort_parameters = TrainingParameters()
    ort_parameters.loss_output_name = loss_output_name
    ort_parameters.weights_to_train = set(weights_to_train)
    ort_parameters.training_optimizer_name = "SGDOptimizer"
    ort_parameters.optimizer_attributes_map = {name: {} for name in weights_to_train}
    ort_parameters.optimizer_int_attributes_map = {name: {} for name in weights_to_train}
    session_options = SessionOptions()
    session_options.use_deterministic_compute = True
    return TrainingSession(training_onnx.SerializeToString(), ort_parameters, session_options)


class CustomTraining:
    """Gradient descent with a TrainingSession: the rate falls as eta0 / (t + 1) ^ power_t."""

    def __init__(self, model_onnx, weights_to_train, max_iter=100, batch_size=10, eta0=0.01,
                 power_t=0.25, verbose=0):  # fmt: skip
        self.model_onnx = model_onnx
        self.weights_to_train = weights_to_train
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.eta0 = eta0
        self.power_t = power_t
        self.verbose = verbose

    def fit(self, X, y):
        self.train_session_ = create_training_session(self.model_onnx, self.weights_to_train)
        data_loader = OrtDataLoader(X, y, batch_size=self.batch_size)
        self.input_names_ = [i.name for i in self.train_session_.get_inputs()]
        self.output_names_ = [o.name for o in self.train_session_.get_outputs()]
        self.loss_index_ = self.output_names_.index("loss")
        loop = tqdm(range(self.max_iter), ascii=True, disable=not self.verbose)
        lr, self.train_losses_ = self.eta0, []
        for it in loop:
            loss = self._iteration(data_loader, lr)
            lr = self.eta0 / numpy.power(it + 1, self.power_t)
            loop.set_description(f"loss={loss:1.3g} lr={lr:1.3g}")
            self.train_losses_.append(loss)
        self.trained_coef_ = self.train_session_.get_state()
        return self

    def _iteration(self, data_loader, learning_rate):
        actual_losses = []
        lr = numpy.array([learning_rate], dtype=numpy.float32)
        for data, target in data_loader:
            inputs = dict(zip(self.input_names_, [data, target, lr], strict=True))
            res = self.train_session_.run(None, inputs)
            actual_losses.append(res[self.loss_index_])
        return numpy.array(actual_losses).mean()


def show_steps(X, y):
    section("First iterations of training")
    onx_train = onnx_linear_regression(
        numpy.array([-1.9766996, -0.5457616], numpy.float32),
        numpy.array([-0.8779792], numpy.float32),
        with_loss=True,
    )
    session = create_training_session(onx_train, ["coefs", "intercept"])
    for i in session.get_inputs():
        print(f"+input: {i.name} ({i.type}{i.shape})")
    for o in session.get_outputs():
        print(f"output: {o.name} ({o.type}{o.shape})")
    pprint(session.get_state())
    inputs = {
        "X": numpy.array([[-0.6122115, -1.2465174]], numpy.float32),
        "label": numpy.array([[-145.45398]], numpy.float32),
        "Learning_Rate": numpy.array([0.001], numpy.float32),
    }
    res = session.run(None, inputs)
    state = session.get_state()
    pprint(res)
    pprint(state)
    numpy.testing.assert_allclose(res[0], [[21452.424]], rtol=1e-4)
    numpy.testing.assert_allclose(res[1], [[1.01248]], rtol=1e-4)
    numpy.testing.assert_allclose(res[2], 501.30127, rtol=1e-4)
    numpy.testing.assert_allclose(state["coefs"], [[-1.7973627], [-0.18061563]], rtol=1e-4)
    numpy.testing.assert_allclose(state["intercept"], [-1.1709121], rtol=1e-4)
    first = session.run(None, {**inputs, "X": X[:1], "label": y[:1].reshape((-1, 1))})
    assert first[0].shape == (1, 1)


def main():
    folder = begin()
    section("A simple linear regression")
    X, y = make_regression(n_features=2, bias=2, random_state=0)
    X, y = X.astype(numpy.float32), y.astype(numpy.float32)
    X_train, _, y_train, _ = train_test_split(X, y, random_state=0)
    lr = LinearRegression().fit(X, y)
    print(lr.predict(X[:5]))
    onx = onnx_linear_regression(
        lr.coef_.astype(numpy.float32), numpy.array([lr.intercept_], numpy.float32)
    )
    sess = InferenceSession(onx.SerializeToString(), providers=["CPUExecutionProvider"])
    before = sess.run(None, {"X": X[:5]})[0]
    print(before)
    numpy.testing.assert_allclose(before.ravel(), lr.predict(X[:5]), rtol=1e-4)
    onx_train = onnx_linear_regression(
        numpy.random.randn(2).astype(numpy.float32),
        numpy.random.randn(1).astype(numpy.float32),
        with_loss=True,
    )
    axes = plot_onnxs(onx, onx_train, title=["Linear Regression", "with a loss"])
    save(axes[0], folder / "models.png")

    section("Batches")
    for i, batch in enumerate(OrtDataLoader(X_train, y_train, batch_size=2)):
        if i >= 2:
            break
        print(f"batch {i!r}: {batch!r}")
    show_steps(X_train, y_train)

    section("Training")
    trainer = CustomTraining(onx_train, ["coefs", "intercept"], verbose=1, max_iter=10)
    trainer.fit(X, y)
    print("training losses:", [float(f"{loss:.5g}") for loss in trainer.train_losses_])
    plot_losses({"training loss": trainer.train_losses_}, folder / "losses.png", "Training loss")
    print("scikit-learn", lr.coef_, lr.intercept_)
    print("onnxgrad", trainer.trained_coef_)
    numpy.testing.assert_allclose(trainer.trained_coef_["coefs"].ravel(), lr.coef_, atol=1e-2)
    assert trainer.train_losses_[-1] < 1e-4

    section("Update weights in an ONNX graph")
    updated = onnxgrad.set_weights(onx, trainer.trained_coef_)
    sess = InferenceSession(updated.SerializeToString(), providers=["CPUExecutionProvider"])
    after = sess.run(None, {"X": X[:5]})[0]
    print(before, after, after - before, sep="\n")
    assert numpy.abs(after - before).max() < 1e-3


if __name__ == "__main__":
    main()
