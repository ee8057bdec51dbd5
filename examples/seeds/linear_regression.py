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


class DataLoader:
    """Draws batches of consecutive observations at random starts, as OrtDataLoader does."""

    def __init__(self, X, y, batch_size=20):
        self.X, self.y = X, y
        self.batch_size = batch_size
        if len(self.y.shape) == 1:
            self.y = self.y.reshape((-1, 1))
        if self.X.shape[0] != self.y.shape[0]:
            raise ValueError(f"Shape mismatch X.shape={self.X.shape!r}, y.shape={self.y.shape!r}.")

    def __len__(self):
        return self.X.shape[0]

    def __iter__(self):
        N, b = 0, len(self) - self.batch_size
        while len(self) > N:
            i = numpy.random.randint(0, b)
            N += self.batch_size
            yield self.X[i : i + self.batch_size], self.y[i : i + self.batch_size]

    def data(self):
        return self.X, self.y


class CustomTraining:
    """Gradient descent with a TrainingSession and scikit-learn's learning rates.

    The rate is eta0 in the first epoch; after epoch t, from 0, it is eta0 ("constant"),
    eta0 / (t + 1) ^ power_t ("invscaling"), or 1 / (alpha (t0 + t)) ("optimal").
    """

    def __init__(self, model_onnx, weights_to_train, loss_output_name="loss", max_iter=100,
                 batch_size=10, eta0=0.01, alpha=0.0001, power_t=0.25,
                 learning_rate="invscaling", verbose=0):  # fmt: skip
        self.model_onnx = model_onnx
        self.weights_to_train = weights_to_train
        self.loss_output_name = loss_output_name
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.eta0 = eta0
        self.alpha = alpha
        self.power_t = power_t
        self.learning_rate = learning_rate.lower()
        self.verbose = verbose

    def _init_learning_rate(self):
        if self.learning_rate == "optimal":
            typw = numpy.sqrt(1.0 / numpy.sqrt(self.alpha))
            first = typw / max(1.0, (1 + typw) * 2)
            self.optimal_init_ = 1.0 / (first * self.alpha)
        return self.eta0

    def _update_learning_rate(self, t, eta):
        if self.learning_rate == "optimal":
            return 1.0 / (self.alpha * (self.optimal_init_ + t))
        if self.learning_rate == "invscaling":
            return self.eta0 / numpy.power(t + 1, self.power_t)
        return eta

    def fit(self, X, y):
        self.train_session_ = create_training_session(
            self.model_onnx, self.weights_to_train, self.loss_output_name
        )
        data_loader = DataLoader(X, y, batch_size=self.batch_size)
        lr = self._init_learning_rate()
        self.input_names_ = [i.name for i in self.train_session_.get_inputs()]
        self.output_names_ = [o.name for o in self.train_session_.get_outputs()]
        self.loss_index_ = self.output_names_.index(self.loss_output_name)
        loop = tqdm(range(self.max_iter), ascii=True, disable=not self.verbose)
        self.train_losses_ = []
        for it in loop:
            loss = self._iteration(data_loader, lr)
            lr = self._update_learning_rate(it, lr)
            if self.verbose > 1:
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


def show_batches(X, y):
    section("Batches")
    for i, batch in enumerate(DataLoader(X, y, batch_size=2)):
        if i >= 2:
            break
        print(f"batch {i!r}: {batch!r}")
    rows = {row.tobytes(): place for place, row in enumerate(X)}
    for loader in (DataLoader(X, y, batch_size=2), OrtDataLoader(X, y, batch_size=2)):
        drawn = [[rows[row.tobytes()] for row in data] for data, _ in loader]
        assert len(loader) == len(X)
        assert len(drawn) == -(-len(X) // 2)
        assert all(second == first + 1 for first, second in drawn)
        print(f"{type(loader).__name__}: {len(drawn)} batches of consecutive rows")


def show_steps(X, y):
    section("First iterations of training")
    onx_train = onnx_linear_regression(
        numpy.array([-2.157093, -0.9130589], numpy.float32),
        numpy.array([-0.5833204], numpy.float32),
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
    session.run(None, inputs)
    state = session.get_state()
    pprint(state)
    numpy.testing.assert_allclose(state["coefs"], [[-1.9766996], [-0.5457616]], rtol=1e-5)
    numpy.testing.assert_allclose(state["intercept"], [-0.8779792], rtol=1e-5)
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


def show_first_model(folder):
    section("A simple linear regression")
    X, y = make_regression(n_features=2, bias=2, random_state=0)
    X, y = X.astype(numpy.float32), y.astype(numpy.float32)
    X_train, _, y_train, _ = train_test_split(X, y, random_state=0)
    lr = LinearRegression().fit(X, y)
    print(lr.predict(X[:5]))

    section("An equivalent ONNX graph")
    onx = onnx_linear_regression(
        lr.coef_.astype(numpy.float32), numpy.array([lr.intercept_], numpy.float32)
    )
    save(plot_onnxs(onx, title="Linear Regression"), folder / "model.png")
    before = predict(onx, X[:5])
    print(before)
    numpy.testing.assert_allclose(before.ravel(), lr.predict(X[:5]), rtol=1e-4)
    return lr, onx, X, y, X_train, y_train


def predict(onx, X):
    sess = InferenceSession(onx.SerializeToString(), providers=["CPUExecutionProvider"])
    return sess.run(None, {"X": X})[0]


def main():
    folder = begin()
    lr, onx, X, y, X_train, y_train = show_first_model(folder)

    section("The graph with a loss")
    onx_train = onnx_linear_regression(
        numpy.random.randn(2).astype(numpy.float32),
        numpy.random.randn(1).astype(numpy.float32),
        with_loss=True,
    )
    axes = plot_onnxs(onx_train, title="Linear Regression with a loss")
    save(axes, folder / "model_with_loss.png")
    axes = plot_onnxs(onx, onx_train, title=["Linear Regression", "with a loss"])
    save(axes[0], folder / "models.png")
    show_batches(X_train, y_train)
    show_steps(X_train, y_train)

    section("Training")
    trainer = CustomTraining(onx_train, ["coefs", "intercept"], verbose=1, max_iter=10)
    trainer.fit(X, y)
    print("training losses:", [float(f"{loss:.5g}") for loss in trainer.train_losses_])
    assert trainer.train_losses_[-1] < 1e-4  # the original: 3.5e-07
    plot_losses({"training loss": trainer.train_losses_}, folder / "losses.png", "Training loss",
                ylabel="loss (sum over a batch)")  # fmt: skip
    print("scikit-learn", lr.coef_, lr.intercept_)
    print("onnxgrad", trainer.trained_coef_)
    numpy.testing.assert_allclose(trainer.trained_coef_["coefs"].ravel(), lr.coef_, atol=1e-2)

    section("Update weights in an ONNX graph")
    before = predict(onx, X[:5])
    after = predict(onnxgrad.set_weights(onx, trainer.trained_coef_), X[:5])
    print(before, after, after - before, sep="\n")
    assert numpy.abs(after - before).max() < 1e-3


if __name__ == "__main__":
    main()
