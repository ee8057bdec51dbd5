"""OrtGradientOptimizer."""

import pickle
import warnings

import numpy as np
import onnx
import onnx.parser
import pytest
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPRegressor

from compat_models import linear_regression, names, polynomial, polynomial_data, run
from onnxgrad.compat.onnxcustom.training import ConvergenceError
from onnxgrad.compat.onnxcustom.training.optimizers import OrtGradientOptimizer
from onnxgrad.compat.onnxcustom.training.sgd_learning_rate import (
    BaseLearningRate,
    LearningRateSGD,
    LearningRateSGDNesterov,
)
from onnxgrad.compat.onnxcustom.utils.orttraining_helper import (
    add_loss_output,
    get_train_initializer,
)

WEIGHTS = ["init", "init_1", "init_b10"]


def make(model=None, **options):
    options = {"learning_rate": 1e-1, "batch_size": 5, "max_iter": 100, **options}
    return OrtGradientOptimizer(model or add_loss_output(polynomial()), WEIGHTS, **options)


@pytest.fixture(autouse=True)
def _seed():
    np.random.seed(0)  # noqa: NPY002


def test_repr_after_training_is_the_printed_one():
    X, y = polynomial_data()
    assert repr(make().fit(X, y)) == (
        "OrtGradientOptimizer(model_onnx='ir_version...', weights_to_train=['init', 'init_1', "
        "'init_b10'], loss_output_name='loss', max_iter=100, "
        "training_optimizer_name='SGDOptimizer', batch_size=5, "
        "learning_rate=LearningRateSGD(eta0=0.1, alpha=0.0001, power_t=0.25, "
        "learning_rate='invscaling'), value=0.03162277660168379, device='cpu', "
        "warm_start=False, verbose=0, validation_every=10, saved_gradient=None, "
        "sample_weight_name='weight')"
    )


def test_training_finds_the_polynomial():
    X, y = polynomial_data()
    trainer = make().fit(X, y, X_val=X, y_val=y)
    assert isinstance(trainer.train_losses_, list)
    assert len(trainer.train_losses_) == 100
    assert len(trainer.validation_losses_) == 10
    assert trainer.train_losses_[-1] < 0.02 < trainer.train_losses_[0]
    coefs = trainer.trained_coef_
    assert {name: type(value) for name, value in coefs.items()} == dict.fromkeys(
        WEIGHTS, np.ndarray
    )
    np.testing.assert_allclose(coefs["init_1"], [[-2, 3]], atol=0.9)
    loss, _ = run(trainer.get_trained_onnx(), {"x": X, "label": y})
    np.testing.assert_allclose(loss.item() / 100, trainer.validation_losses_[-1], rtol=1e-4)
    np.testing.assert_allclose(trainer.losses(X, y), loss, rtol=1e-5)


def numpy_descent(X, y, start, rates, rows, momentum=0.0, nesterov=False):
    """Full batches: losses per row and weights [3], each rate divided by the number of rows."""
    ones = np.column_stack([X, np.ones(len(X))]).astype(float)
    w, velocity, losses = start.astype(float), np.zeros(3), []
    for rate in rates:
        d = ones @ w - y.ravel()
        losses.append(np.sum(d**2) / rows)
        step = rate / rows * 2 * ones.T @ d
        velocity = momentum * velocity - step
        w = w + (momentum * velocity - step if nesterov else velocity)
    return losses, w


@pytest.mark.parametrize(
    ("rate", "momentum", "nesterov"),
    [
        (LearningRateSGD(0.2, learning_rate="constant"), 0.0, False),
        (LearningRateSGD(0.2), 0.0, False),
        (LearningRateSGD(0.2, learning_rate="optimal", alpha=0.01), 0.0, False),
        (
            LearningRateSGDNesterov(0.05, learning_rate="constant", nesterov=False),
            0.9,
            False,
        ),
        (LearningRateSGDNesterov(0.05, learning_rate="constant", momentum=0.8), 0.8, True),
        (LearningRateSGDNesterov(0.05, power_t=0.5, momentum=0.8), 0.8, True),
        (LearningRateSGDNesterov(0.05, momentum=0.0), 0.0, False),
    ],
    ids=[
        "constant",
        "invscaling",
        "optimal",
        "momentum",
        "nesterov",
        "nesterov invscaling",
        "no momentum",
    ],
)
def test_full_batches_are_gradient_descent(rate, momentum, nesterov):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(40, 2)).astype(np.float32)
    y = (X @ [1, -2] + 0.5 + rng.normal(size=40)).astype(np.float32)
    start = np.array([0.3, 0.2, -0.1], np.float32)
    model = add_loss_output(linear_regression(start[:2], start[2]))
    trainer = OrtGradientOptimizer(
        model, ["coefs", "intercept"], learning_rate=rate, batch_size=40, max_iter=30,
        warm_start=True,
    ).fit(X, y)  # fmt: skip
    rates = [rate.init_learning_rate().value]
    rates += [rate.update_learning_rate(t).value for t in range(29)]
    losses, w = numpy_descent(X, y, start, rates, 40, momentum, nesterov)
    np.testing.assert_allclose(trainer.train_losses_, losses, rtol=1e-5)
    found = np.append(trainer.trained_coef_["coefs"], trainer.trained_coef_["intercept"])
    np.testing.assert_allclose(found, w, rtol=1e-5)


def test_weights_of_rows_and_penalties():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(60, 2)).astype(np.float32)
    y, w = (X @ [1, -2] + 0.5).astype(np.float32), rng.uniform(0.5, 2, 60).astype(np.float32)
    options = {"score_name": "elastic", "l1_weight": 0.1, "l2_weight": 0.9}
    model = add_loss_output(
        linear_regression([0, 0], 0), weight_name="weight", penalty={"coefs": {"l2": 0.01}},
        **options,
    )  # fmt: skip
    trainer = OrtGradientOptimizer(
        model, ["intercept", "coefs"], learning_rate=0.1, batch_size=60, max_iter=400
    ).fit(X, y, w)
    assert trainer.train_losses_[-1] < 0.01  # the penalty is a part of it
    state = trainer.get_state()
    np.testing.assert_allclose(state["coefs"].ravel(), [1, -2], atol=0.02)
    d = X @ state["coefs"] + state["intercept"] - y[:, None]
    expected = np.sum(w[:, None] * (0.1 * np.abs(d) + 0.9 * d**2)) + 0.01 * np.sum(
        state["coefs"] ** 2
    )
    np.testing.assert_allclose(trainer.losses(X, y, w).item(), expected, rtol=1e-4)
    with pytest.raises(ValueError, match="no input 'weight'"):
        make().fit(*polynomial_data(), np.ones(100))


def test_warm_start_continues_and_cold_start_draws_again():
    X, y = polynomial_data()
    cold = make(max_iter=5).fit(X, y)
    before = cold.trained_coef_["init"].copy()
    cold.fit(X, y)
    assert np.abs(cold.trained_coef_["init"] - before).max() > 1e-3
    warm = make(max_iter=40, warm_start=True, learning_rate=0.05).fit(X, y)
    last = warm.train_losses_[-1]
    warm.fit(X, y)
    assert warm.train_losses_[0] < 2 * last + 1e-6


def test_seed_of_numpy_gives_the_same_training():
    X, y = polynomial_data()
    first = make(max_iter=5).fit(X, y).train_losses_
    np.random.seed(0)  # noqa: NPY002
    assert make(max_iter=5).fit(X, y).train_losses_ == first


@pytest.mark.parametrize("optimizer", ["AdamOptimizer", "LambOptimizer", "adam", "rmsprop"])
def test_other_optimizers(optimizer):
    X, y = polynomial_data()
    trainer = make(
        training_optimizer_name=optimizer,
        learning_rate=LearningRateSGD(0.3, power_t=0.5),
        max_iter=200,
    ).fit(X, y)
    assert trainer.train_losses_[-1] < 0.5 * trainer.train_losses_[0]  # LAMB is slow here


SIGNS = """
<ir_version: 8, opset_import: ["" : 17]>
signs (float[n] w, float[n] g, float rate, int64 step) => (float[n] new_w)
{ direction = Sign(g)  move = Mul(rate, direction)  new_w = Sub(w, move) }
"""


def test_update_from_a_graph():
    """Three full batches by the sign of the gradient; the rate is divided by the batch size."""
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(20, 2)).astype(np.float32), rng.normal(size=20).astype(np.float32)
    trainer = OrtGradientOptimizer(
        add_loss_output(linear_regression([0.3, 0.2], -0.1)), ["coefs", "intercept"],
        training_optimizer_name=onnx.parser.parse_model(SIGNS), batch_size=20, max_iter=3,
        learning_rate=LearningRateSGD(0.2, learning_rate="constant"), warm_start=True,
    ).fit(X, y)  # fmt: skip
    ones, w = np.column_stack([X, np.ones(20)]), np.array([0.3, 0.2, -0.1])
    for _ in range(3):
        w = w - 0.2 / 20 * np.sign(ones.T @ (ones @ w - y))
    found = np.append(trainer.trained_coef_["coefs"], trainer.trained_coef_["intercept"])
    np.testing.assert_allclose(found, w, rtol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9], ids=["plain", "nesterov"])
def test_float64_network_with_a_penalty_is_that_of_scikit_learn(momentum):
    skl2onnx = pytest.importorskip("skl2onnx")
    rng = np.random.default_rng(6)
    X, alpha, rate = rng.normal(size=(50, 5)), 0.5, 1e-2
    y = X @ rng.normal(size=5) + rng.normal(size=50)
    options = {
        "hidden_layer_sizes": (8, 4), "solver": "sgd", "batch_size": 50, "alpha": alpha,
        "momentum": momentum, "nesterovs_momentum": momentum > 0, "shuffle": False,
        "n_iter_no_change": 1000, "random_state": 0, "warm_start": True,
    }  # fmt: skip
    reference = MLPRegressor(max_iter=1, learning_rate_init=1e-300, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference.fit(X, y)
        start = skl2onnx.to_onnx(reference, X[:1], target_opset=15)
        reference.set_params(max_iter=30, learning_rate_init=rate)
        del reference._optimizer
        reference.loss_curve_ = []
        reference.fit(X, y)
    weights = [*get_train_initializer(start)]
    # The loss is twice scikit-learn's, which has no penalty on intercepts.
    penalty = {name: {"l2": alpha} for name in weights if "coef" in name}
    schedule = LearningRateSGDNesterov(rate / 2, learning_rate="constant", momentum=momentum)
    trainer = OrtGradientOptimizer(
        add_loss_output(start, penalty=penalty), weights, learning_rate=schedule, batch_size=50,
        max_iter=30, warm_start=True,
    ).fit(X, y)  # fmt: skip
    curve = np.array(trainer.train_losses_) / 2
    np.testing.assert_allclose(curve, reference.loss_curve_[-30:], rtol=1e-10)


def test_pickle_state_and_parameters(tmp_path):
    X, y = polynomial_data()
    trainer = make(max_iter=5, saved_gradient=str(tmp_path / "grad.onnx")).fit(X, y)
    again = pickle.loads(pickle.dumps(trainer))
    assert repr(again) == repr(trainer)
    for name, value in trainer.get_state().items():
        np.testing.assert_array_equal(again.get_state()[name], value)
    new = {name: np.ones_like(value) for name, value in trainer.get_state().items()}
    again.set_state(new)
    np.testing.assert_array_equal(again.trained_coef_["init"], [[1, 1]])
    assert names(onnx.load(tmp_path / "grad.onnx").graph.output)[-1] == "loss"
    changed = again.set_params(batch_size=7, learning_rate__eta0=0.5)
    assert (changed.batch_size, changed.learning_rate.eta0) == (7, 0.5)
    params = again.get_params(deep=True)
    assert params["learning_rate__eta0"] == 0.5
    with pytest.raises(ValueError, match="Unexpected parameter 'no'"):
        again.set_params(no=1)


def test_saved_graphs_run(tmp_path):
    saved = make().save_onnx_graph(tmp_path, suffix="_1")
    assert saved["model_onnx"].endswith("GradOptimizer.model_onnx_1.onnx")
    X, y = polynomial_data()
    assert len(run(onnx.load(saved["model_onnx"]), {"x": X, "label": y})) == 2
    with pytest.raises(FileNotFoundError):
        make().save_onnx_graph(tmp_path / "no")


def test_float64_to_ten_digits():
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(40, 2)), rng.normal(size=40)
    start = np.array([0.3, 0.2, -0.1])
    text = """
    <ir_version: 8, opset_import: ["" : 15]>
    m (double[N, 2] X) => (double[N, 1] Y) <double[2, 1] coefs = {0.3, 0.2}, double[1] b = {-0.1}>
    { p = MatMul(X, coefs)  Y = Add(p, b) }
    """
    model = add_loss_output(onnx.parser.parse_model(text))
    trainer = OrtGradientOptimizer(
        model, ["coefs", "b"], learning_rate=0.2, batch_size=40, max_iter=30, warm_start=True
    ).fit(X, y)
    rates = [0.2, *(0.2 / (t + 1) ** 0.25 for t in range(29))]
    losses, w = numpy_descent(X, y, start, rates, 40)
    np.testing.assert_allclose(trainer.train_losses_, losses, rtol=1e-10)
    found = np.append(trainer.trained_coef_["coefs"], trainer.trained_coef_["b"])
    np.testing.assert_allclose(found, w, rtol=1e-10)


class Halving(BaseLearningRate):
    """A learning rate defined by a user."""

    def __init__(self, start=0.1):
        self.start = start

    def init_learning_rate(self):
        self.value_ = self.start
        return self

    def update_learning_rate(self, t):
        self.value_ = self.value_ / 2
        return self

    @property
    def value(self):
        return self.value_


def test_user_defined_learning_rate():
    X = np.ones((4, 2), np.float32)
    trainer = OrtGradientOptimizer(
        add_loss_output(linear_regression([0, 0], 0)), ["intercept"], learning_rate=Halving(0.1),
        batch_size=4, max_iter=3, warm_start=True,
    ).fit(X, np.ones(4, np.float32))  # fmt: skip
    b, losses = 0.0, []
    for rate in (0.1, 0.05, 0.025):
        losses.append((b - 1) ** 2)
        b -= rate * 2 * (b - 1)
    np.testing.assert_allclose(trainer.train_losses_, losses, rtol=1e-6)
    np.testing.assert_allclose(trainer.trained_coef_["intercept"], [b], rtol=1e-6)
    assert "learning_rate=Halving(start=0.1), value=0.0125" in repr(trainer)


def test_grid_search():
    X, y = polynomial_data()
    search = GridSearchCV(
        make(max_iter=30),
        {"learning_rate": [LearningRateSGD(1e-4), LearningRateSGD(0.1)]},
        cv=3,
    ).fit(X, y)
    assert search.best_params_["learning_rate"].eta0 == 0.1
    score = search.best_estimator_.score(X, y)
    np.testing.assert_allclose(score, -search.best_estimator_.losses(X, y).item() / 100)


def test_errors():
    X, y = polynomial_data()
    with pytest.raises(AttributeError, match="fit must be called before"):
        make().get_state()
    with pytest.raises(ValueError, match="Shape mismatch"):
        make().fit(X, y[:-1])
    with pytest.raises(RuntimeError, match="cuda"):
        make(device="cuda:0").fit(X, y)
    with pytest.raises(ValueError, match="Unable to interpret"):
        make(device="tpu").fit(X, y)
    with pytest.raises(ConvergenceError):
        make(learning_rate=1e30).fit(X * 100, y)


def test_bar_shows_loss_and_rate(capsys):
    pytest.importorskip("tqdm")
    X, y = polynomial_data()
    make(max_iter=3, verbose=1).fit(X, y)
    shown = capsys.readouterr().err
    assert "3/3" in shown
    assert "loss=" in shown
    assert "lr=0.0" in shown
    assert "best=" not in shown


def test_longer_bar_shows_the_best_loss_and_the_validation_too(capsys):
    pytest.importorskip("tqdm")
    X, y = polynomial_data()
    optimizer = make(max_iter=3, verbose=2, validation_every=1).fit(X, y, X_val=X, y_val=y)
    shown = capsys.readouterr().err
    losses = optimizer.train_losses_
    assert f"loss={losses[-1]:1.6g} best={min(losses):1.6g} " in shown
    assert f"validation={optimizer.validation_losses_[-1]:1.6g} lr=0.0" in shown
