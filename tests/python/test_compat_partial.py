"""OrtGradientForwardBackwardOptimizer."""

import pickle
import warnings

import numpy as np
import onnx
import pytest
from sklearn.datasets import make_regression
from sklearn.linear_model import ElasticNet, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPRegressor

from compat_models import linear_regression, polynomial, polynomial_data, run
from onnxgrad.compat.onnxcustom.training.excs import ConvergenceError, ConvergenceWarning
from onnxgrad.compat.onnxcustom.training.optimizers_partial import (
    OrtGradientForwardBackwardOptimizer,
)
from onnxgrad.compat.onnxcustom.training.sgd_learning_loss import (
    AbsoluteLearningLoss,
    BaseLearningLoss,
    ElasticLearningLoss,
    NegLogLearningLoss,
    SquareLearningLoss,
)
from onnxgrad.compat.onnxcustom.training.sgd_learning_penalty import (
    BaseLearningPenalty,
    ElasticLearningPenalty,
    L1LearningPenalty,
    L2LearningPenalty,
    NoLearningPenalty,
)
from onnxgrad.compat.onnxcustom.training.sgd_learning_rate import (
    BaseLearningRate,
    LearningRateSGD,
    LearningRateSGDNesterov,
)
from onnxgrad.compat.onnxcustom.utils.onnx_helper import onnx_rename_weights
from onnxgrad.compat.onnxruntime import OrtValue

WEIGHTS = ["init", "init_1", "init_b10"]


@pytest.fixture(autouse=True)
def _seed():
    np.random.seed(0)  # noqa: NPY002


def make(model=None, weights=WEIGHTS, **options):
    options = {"learning_rate": 1e-1, "batch_size": 2, "max_iter": 100, **options}
    return OrtGradientForwardBackwardOptimizer(model or polynomial(), weights, **options)


def mlp_onnx(nn, X):
    from skl2onnx import to_onnx

    return onnx_rename_weights(to_onnx(nn, X[:1].astype(np.float32), target_opset=15))


@pytest.fixture(scope="module")
def mlp():
    X, y = make_regression(200, n_features=100, bias=2, random_state=0)
    X, y = X.astype(np.float32), y.astype(np.float32)
    nn = MLPRegressor(
        hidden_layer_sizes=(50, 10), max_iter=1, solver="sgd", random_state=0,
        learning_rate_init=1e-9,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.fit(X, y)
    return nn, X, y


PRINTED = (
    "OrtGradientForwardBackwardOptimizer(model_onnx='ir_version...', weights_to_train={weights}, "
    "loss_output_name='loss', max_iter=100, training_optimizer_name='SGDOptimizer', "
    "batch_size={batch}, learning_rate={rate}, device='cpu', warm_start=False, verbose=0, "
    "validation_every=10, learning_loss=SquareLearningLoss(), enable_logging=False, "
    "weight_name=None, learning_penalty=NoLearningPenalty(), exc=True)"
)
SHORTENED = '"[\'I0_coeff...]"'


def test_first_printed_repr():
    X, y = polynomial_data()
    rate = (
        "LearningRateSGD(eta0=0.1, alpha=0.0001, power_t=0.25, learning_rate='invscaling'), "
        "value=0.03162277660168379"
    )
    assert repr(make().fit(X, y)) == PRINTED.format(
        weights="['init', 'init_1', 'init_b10']", batch=2, rate=rate
    )


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (
            5e-5,
            "LearningRateSGD(eta0=5e-05, alpha=0.0001, power_t=0.25, "
            "learning_rate='invscaling'), value=1.5811388300841898e-05",
        ),
        (
            LearningRateSGDNesterov(1e-5, nesterov=True, momentum=0.9),
            "LearningRateSGDNesterov(eta0=1e-05, alpha=0.0001, power_t=0.25, "
            "learning_rate='invscaling', momentum=0.9, nesterov=True), "
            "value=3.162277660168379e-06",
        ),
    ],
    ids=["sgd", "nesterov"],
)
def test_printed_repr_of_the_network(mlp, rate, text):
    nn, X, y = mlp
    trainer = make(mlp_onnx(nn, X), None, learning_rate=rate, batch_size=15).fit(X, y)
    assert repr(trainer) == PRINTED.format(weights=SHORTENED, batch=15, rate=text)
    assert trainer.train_losses_[-1] < 0.7 * trainer.train_losses_[0]


def test_training_finds_the_polynomial():
    X, y = polynomial_data()
    trainer = make().fit(X, y, X_val=X, y_val=y)
    assert isinstance(trainer.train_losses_, list)
    assert len(trainer.train_losses_) == 100
    assert len(trainer.validation_losses_) == 10
    assert trainer.train_losses_[-1] < 2e-3 < trainer.train_losses_[0]
    coefs = {name: value.numpy() for name, value in trainer.trained_coef_.items()}
    assert [*coefs] == WEIGHTS
    np.testing.assert_allclose(coefs["init_1"], [[-2, 3]], atol=0.3)
    (predicted,) = run(trainer.get_trained_onnx(), {"x": X})
    losses = trainer.losses(X, y)
    np.testing.assert_allclose(losses, ((predicted - y) ** 2).ravel(), rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(trainer.score(X, y), -losses.mean(), rtol=1e-6)
    np.testing.assert_allclose(trainer.validation_losses_[-1], losses.mean(), rtol=1e-4)


@pytest.mark.parametrize("momentum", [0.0, 0.9], ids=["plain", "nesterov"])
def test_curve_is_that_of_scikit_learn(mlp, momentum):
    """Equal weights to start from and full batches: its curve is half of the squared error."""
    nn, X, y = mlp
    start = mlp_onnx(nn, X)
    rate = 2e-4
    reference = MLPRegressor(
        hidden_layer_sizes=(50, 10), solver="sgd", batch_size=len(X), alpha=0.0,
        learning_rate_init=rate,
        momentum=momentum, nesterovs_momentum=momentum > 0, max_iter=40, warm_start=True,
        n_iter_no_change=1000, random_state=0,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference.set_params(max_iter=1, learning_rate_init=1e-30).fit(X, y)
        reference.coefs_ = [w.astype(np.float32) for w in nn.coefs_]
        reference.intercepts_ = [b.astype(np.float32) for b in nn.intercepts_]
        reference.set_params(max_iter=40, learning_rate_init=rate)
        reference.loss_curve_ = []
        reference.fit(X, y)
    schedule = LearningRateSGDNesterov(
        rate / 2, learning_rate="constant", momentum=momentum, nesterov=momentum > 0
    )
    trainer = make(
        start, None, learning_rate=schedule, batch_size=len(X), max_iter=40, warm_start=True
    ).fit(X, y)
    np.testing.assert_allclose(
        np.array(trainer.train_losses_) / 2, reference.loss_curve_[-40:], rtol=1e-5
    )


def test_losses_of_regression():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(50, 2)).astype(np.float32)
    y = (X @ [1, -2] + 0.5 + rng.normal(size=50) / 10).astype(np.float32)
    w = rng.uniform(0.5, 2, 50).astype(np.float32)
    for loss, formula in (
        ("square_error", lambda d: d**2),
        (AbsoluteLearningLoss(), np.abs),
        (ElasticLearningLoss(0.2, 0.7), lambda d: 0.2 * np.abs(d) + 0.7 * d**2),
    ):
        trainer = make(
            linear_regression([0, 0], 0), None, batch_size=10, learning_loss=loss,
            weight_name="weight", max_iter=60,
        ).fit(X, y, w)  # fmt: skip
        state = {name: value.numpy() for name, value in trainer.trained_coef_.items()}
        d = X @ state["coefs"] + state["intercept"] - y[:, None]
        np.testing.assert_allclose(trainer.losses(X, y), formula(d).ravel(), rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(
            trainer.losses(X, y, w), w * formula(d).ravel(), rtol=1e-3, atol=1e-6
        )
        np.testing.assert_allclose(state["coefs"].ravel(), [1, -2], atol=0.15)


def test_several_columns_are_summed():
    text = """
    <ir_version: 8, opset_import: ["" : 15]>
    m (float[N, 2] X) => (float[N, 3] Y) <float[2, 3] A = {1, 2, -1, 0.5, 0, 1}>
    { Y = MatMul(X, A) }
    """
    rng = np.random.default_rng(6)
    X, B = rng.normal(size=(30, 2)).astype(np.float32), rng.normal(size=(2, 3))
    y = (X @ B).astype(np.float32)
    trainer = make(
        onnx.parser.parse_model(text), None, batch_size=30, max_iter=1, warm_start=True,
        learning_rate=0.3,
    ).fit(X, y)  # fmt: skip
    A = np.array([[1, 2, -1], [0.5, 0, 1]])
    d = X @ A - y
    np.testing.assert_allclose(trainer.train_losses_, [np.sum(d**2) / 30], rtol=1e-5)
    expected = A - 0.3 / 30 * 2 * X.T @ d
    np.testing.assert_allclose(trainer.trained_coef_["A"].numpy(), expected, rtol=1e-4, atol=1e-6)
    assert trainer.losses(X, y).shape == (30,)


def test_log_loss_is_logistic_regression():
    rng = np.random.default_rng(7)
    X = rng.normal(size=(200, 2)).astype(np.float32)
    y = (X @ [1, -2] + 0.5 + rng.logistic(size=200) > 0).astype(np.int64)
    reference = LogisticRegression(C=np.inf, tol=1e-8).fit(X, y)
    trainer = make(
        linear_regression([0, 0], 0), None, batch_size=200, max_iter=2000,
        learning_loss=NegLogLearningLoss(),
        learning_rate=LearningRateSGD(2.0, learning_rate="constant"),
    ).fit(X, y)  # fmt: skip
    state = trainer.trained_coef_
    np.testing.assert_allclose(state["coefs"].numpy().ravel(), reference.coef_.ravel(), rtol=1e-3)
    np.testing.assert_allclose(state["intercept"].numpy(), reference.intercept_, rtol=1e-2)
    p = reference.predict_proba(X)[np.arange(200), y]
    np.testing.assert_allclose(trainer.losses(X, y), -np.log(p), rtol=1e-2, atol=1e-3)


def test_penalty_is_the_elastic_net():
    rng = np.random.default_rng(8)
    X = rng.normal(size=(100, 2)).astype(np.float32)
    y = (X @ [1, -0.05] + 0.5 + rng.normal(size=100) / 10).astype(np.float32)
    # ElasticNet: |d|^2 / (2 n) + a r |w|_1 + a (1 - r) / 2 |w|^2; ours is n times twice that.
    a, r, n = 0.1, 0.5, 100
    reference = ElasticNet(alpha=a, l1_ratio=r, fit_intercept=False)
    reference.fit(X.astype(np.float64), y)
    penalty = ElasticLearningPenalty(l1=2 * n * a * r, l2=n * a * (1 - r))
    trainer = make(
        linear_regression([0, 0], 0), ["coefs"], batch_size=100, max_iter=1000, warm_start=True,
        learning_penalty=penalty, learning_rate=LearningRateSGD(0.01, learning_rate="constant"),
    ).fit(X, y)  # fmt: skip
    found = trainer.trained_coef_["coefs"].numpy().ravel()
    np.testing.assert_allclose(found, reference.coef_, atol=2e-3)
    d = X @ found - y
    total = np.sum(d**2) + penalty.l1 * np.abs(found).sum() + penalty.l2 * np.sum(found**2)
    np.testing.assert_allclose(trainer.train_losses_[-1], total / n, rtol=1e-3)


@pytest.mark.parametrize(
    ("base", "name", "cls"),
    [
        (BaseLearningLoss, "square_error", SquareLearningLoss),
        (BaseLearningLoss, "absolute_error", AbsoluteLearningLoss),
        (BaseLearningLoss, "elastic_error", ElasticLearningLoss),
        (BaseLearningLoss, "log", NegLogLearningLoss),
        (BaseLearningPenalty, None, NoLearningPenalty),
        (BaseLearningPenalty, "elastic", ElasticLearningPenalty),
        (BaseLearningPenalty, "l1", L1LearningPenalty),
        (BaseLearningPenalty, "l2", L2LearningPenalty),
        (BaseLearningRate, "SGD", LearningRateSGD),
        (BaseLearningRate, "Nesterov", LearningRateSGDNesterov),
        (BaseLearningRate, 0.5, LearningRateSGD),
    ],
)
def test_selection_by_name(base, name, cls):
    chosen = base.select(name)
    assert type(chosen) is cls
    assert base.select(chosen) is chosen
    with pytest.raises(ValueError, match="Unexpected class name"):
        base.select("no")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("constant", [0.1, 0.1, 0.1]),
        ("invscaling", [0.1, 0.1 / 2**0.25, 0.1 / 3**0.25]),
        ("optimal", None),
    ],
)
def test_rates(name, expected):
    rates = list(LearningRateSGD(0.1, learning_rate=name).loop(3))
    if expected is None:
        a = 1e-4**-0.25
        t0 = max(1, 2 * (1 + a)) / a / 1e-4
        expected = [0.1 * t0 / (t0 + t) for t in range(3)]
    np.testing.assert_allclose(rates, expected, rtol=1e-12)


def test_adaptive_rate_falls_when_nothing_improves():
    rate = LearningRateSGD(1.0, learning_rate="adaptive").init_learning_rate()
    for t in range(6):
        rate.update_loss(2.0)
        rate.update_learning_rate(t)
    assert rate.value == pytest.approx(0.2)
    with pytest.raises(ValueError, match="learning_rate"):
        LearningRateSGD(learning_rate="no")


def test_a_custom_loop_does_what_fit_does():
    """The pieces one by one, as the original's fit puts them together, on full batches."""
    X, y = polynomial_data()
    rate = LearningRateSGDNesterov(0.1, learning_rate="constant")
    fitted = make(learning_rate=rate, batch_size=100, max_iter=20, warm_start=True).fit(X, y)
    own = make(learning_rate=rate, warm_start=True)
    own.set_state(initial_weights(), check_trained=False)
    rate.init_learning_rate()
    function, state = own.train_function_, own.get_full_state()
    state[0] = X
    velocity = [np.zeros_like(value.numpy()) for value in state[1:]]
    losses = []
    for _ in range(20):
        prediction = function.forward(state, training=True)
        loss, gradient = own.learning_loss.loss_gradient(None, y, prediction[0])
        losses.append(loss.numpy().item() / 100)
        gradients = function.backward([gradient])
        for i in range(3):
            rate.update_weights(i, None, state[i + 1], gradients[i + 1], 100, velocity[i])
    np.testing.assert_allclose(fitted.train_losses_, losses, rtol=1e-4)
    np.testing.assert_allclose(state[2].numpy(), fitted.trained_coef_["init_1"].numpy(), rtol=1e-4)


def initial_weights():
    return [np.array(value, np.float32) for value in ([[0.5, -0.33333]], [[-2.0, 3.0]], [-1.0])]


def test_penalty_in_a_custom_loop():
    penalty = ElasticLearningPenalty(0.2, 0.7)
    penalty.build_onnx_function(15, None, 2)
    w = np.array([1, -2], np.float32)
    loss = penalty.penalty_loss(None, np.ones((1, 1), np.float32), w, np.ones(3, np.float32))
    np.testing.assert_allclose(loss.numpy(), [1 + 0.2 * 6 + 0.7 * 8], rtol=1e-6)
    penalty.update_weights(0, None, w)
    np.testing.assert_allclose(w, [1 - (0.2 + 1.4), -2 + (0.2 + 2.8)], rtol=1e-6)


def test_state_pickle_and_warm_start():
    X, y = polynomial_data()
    rate = LearningRateSGDNesterov(0.05)
    trainer = make(learning_rate=rate, max_iter=30, warm_start=True).fit(X, y)
    again = pickle.loads(pickle.dumps(trainer))
    assert repr(again) == repr(trainer)
    assert len(again.get_state("grad")) == 3
    for one, other in zip(again.get_state(), trainer.get_state(), strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    assert again.get_full_state()[0] is None
    last = again.train_losses_[-1]
    again.fit(X, y)
    assert again.train_losses_[0] < 10 * last + 1e-6
    zeros = np.zeros((1, 2), np.float32)
    again.set_state([OrtValue(zeros + 1), zeros, np.array([2], np.float32)])
    np.testing.assert_array_equal(again.get_state()[2].numpy(), [2])
    again.set_state(again.get_state("grad"), kind="grad", zero=True)
    assert all(not value.numpy().any() for value in again.get_state("grad"))
    with pytest.raises(AttributeError, match="fit must be called"):
        make().get_state()
    with pytest.raises(ValueError, match="kind='no'"):
        again.get_state("no")


def test_saved_graphs_have_the_printed_names_and_run(mlp, tmp_path):
    nn, X, y = mlp
    trainer = make(
        mlp_onnx(nn, X), None, learning_rate=LearningRateSGDNesterov(1e-5), batch_size=15,
        max_iter=2,
    ).fit(X, y)  # fmt: skip
    saved = trainer.save_onnx_graph(str(tmp_path))
    cls = type(trainer.train_function_).__name__
    here = f"{tmp_path}/"
    loss = f"{here}SquareLLoss.learning_loss."
    function = f"{here}{cls}.train_function."
    assert saved == {
        "model_onnx": f"{here}GradFBOptimizer.model_onnx.onnx",
        "learning_rate": {"axpyw_onnx_": f"{here}LRateSGDNesterov.learning_rate.axpyw_onnx_.onnx"},
        "learning_loss": {
            "loss_grad_onnx_": f"{loss}loss_grad_onnx_.onnx",
            "loss_score_onnx_": f"{loss}loss_score_onnx_.onnx",
        },
        "learning_penalty": {},
        "zero_onnx_": f"{here}GradFBOptimizer.zero_onnx_.onnx",
        "train_function_": {
            "_trained_onnx": f"{function}_trained_onnx.onnx",
            "_optimized_pre_grad_model": f"{function}_optimized_pre_grad_model.onnx",
        },
    }
    pairs = {"X1": y[:, None], "X2": y[:, None]}
    weights = dict(zip(trainer.weights_to_train, trainer.get_state(), strict=True))
    feeds = {"X": X, **{name: value.numpy() for name, value in weights.items()}}
    g = np.ones(3, np.float32)
    runs = [
        (saved["model_onnx"], {"X": X}),
        (
            saved["learning_rate"]["axpyw_onnx_"],
            {"X1": g, "X2": g, "G": g, "alpha": g[:1], "beta": g[:1]},
        ),
        (saved["learning_loss"]["loss_grad_onnx_"], pairs),
        (saved["learning_loss"]["loss_score_onnx_"], pairs),
        (saved["zero_onnx_"], {"X": g}),
        (saved["train_function_"]["_optimized_pre_grad_model"], feeds),
        (saved["train_function_"]["_trained_onnx"], {**feeds, "variable_grad": y[:, None]}),
    ]
    for path, inputs in runs:
        assert run(onnx.load(path), inputs)


def test_grid_search():
    X, y = polynomial_data()
    search = GridSearchCV(
        make(max_iter=20),
        {"learning_rate": [LearningRateSGD(1e-4), LearningRateSGDNesterov(0.05)]},
        cv=3,
    ).fit(X, y)
    assert isinstance(search.best_params_["learning_rate"], LearningRateSGDNesterov)
    nested = GridSearchCV(make(max_iter=20), {"learning_rate__eta0": [1e-4, 0.1]}, cv=3, n_jobs=2)
    assert nested.fit(X, y).best_params_ == {"learning_rate__eta0": 0.1}


def test_losses_that_are_not_finite():
    X, y = polynomial_data()
    with pytest.raises(ConvergenceError):
        make(learning_rate=1e30).fit(X * 100, y)
    with pytest.warns(ConvergenceWarning):
        trainer = make(learning_rate=1e30, exc=False).fit(X * 100, y)
    assert all(np.isfinite(value.numpy()).all() for value in trainer.get_state())


def test_errors():
    X, y = polynomial_data()
    with pytest.raises(ValueError, match="Shape mismatch"):
        make().fit(X, y[:-1])
    with pytest.raises(RuntimeError, match="cuda"):
        make(device="cuda").fit(X, y)
    with pytest.raises(NotImplementedError, match="training_optimizer_name"):
        make(training_optimizer_name="no").fit(X, y)
