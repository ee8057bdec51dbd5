"""Two ways to train an ONNX model, and a search for parameters.

The first has the loss in the graph (OrtGradientOptimizer), the second has four graphs: model,
loss, penalty and update (OrtGradientForwardBackwardOptimizer). scikit-learn's GridSearchCV chooses
between learning rates.

    python examples/seeds/training_tutorial.py [folder]
"""

import time
import warnings

import numpy
from common import begin, plot_losses, save, section
from skl2onnx import to_onnx
from sklearn.datasets import make_regression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neural_network import MLPRegressor

import onnxgrad
from onnxgrad.compat.onnxcustom.plotting.plotting_onnx import plot_onnxs
from onnxgrad.compat.onnxcustom.training.optimizers import OrtGradientOptimizer
from onnxgrad.compat.onnxcustom.training.optimizers_partial import (
    OrtGradientForwardBackwardOptimizer,
)
from onnxgrad.compat.onnxcustom.training.sgd_learning_penalty import ElasticLearningPenalty
from onnxgrad.compat.onnxcustom.training.sgd_learning_rate import (
    LearningRateSGD,
    LearningRateSGDNesterov,
)
from onnxgrad.compat.onnxcustom.utils.onnx_helper import onnx_rename_weights
from onnxgrad.compat.onnxcustom.utils.orttraining_helper import (
    add_loss_output,
    get_train_initializer,
)

PACKAGES = [
    "scipy", "lightgbm", "xgboost", "onnxmltools", "onnxconverter-common", "mlprodict",
    "pyquickhelper", "onnxcustom", "torch",
]  # fmt: skip
OPTIONS = {"max_iter": 200, "batch_size": 15}


def make_model():
    X, y = make_regression(1000, n_features=10, bias=2, random_state=0)
    X, y = X.astype(numpy.float32), (y / y.std()).astype(numpy.float32)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    nn = MLPRegressor(hidden_layer_sizes=(10,), max_iter=50, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.fit(X_train, y_train)
    onx = onnx_rename_weights(to_onnx(nn, X_train[:1], target_opset=15))
    return onx, X_train, X_test, y_train, y_test


def show_first_way(onx, X, y):
    section("The loss in the graph")
    onx_loss = add_loss_output(onx)
    weights = [*get_train_initializer(onx)]
    trainer = OrtGradientOptimizer(onx_loss, weights, learning_rate=0.005, **OPTIONS)
    start = time.perf_counter()
    trainer.fit(X, y)
    print(f"{time.perf_counter() - start:.3f} s, loss {trainer.train_losses_[-1]:.5f}")
    assert trainer.train_losses_[-1] < 0.2  # the targets have variance 1
    return trainer.train_losses_


def show_second_way(onx, X, y, X_val, y_val, folder):
    section("Four graphs")
    trainer = OrtGradientForwardBackwardOptimizer(
        onx, learning_rate=LearningRateSGDNesterov(0.001), **OPTIONS,
        learning_penalty=ElasticLearningPenalty(l1=0, l2=1e-4),
    )  # fmt: skip
    start = time.perf_counter()
    trainer.fit(X, y, X_val=X_val, y_val=y_val)
    print(f"{time.perf_counter() - start:.3f} s, loss {trainer.train_losses_[-1]:.5f}")
    print("validation", [round(loss, 4) for loss in trainer.validation_losses_])
    assert trainer.validation_losses_[-1] < 0.3
    graphs = {
        "model and gradient": trainer.train_session_.cls_type_._trained_onnx,
        "loss and its gradient": trainer.learning_loss.loss_grad_onnx_,
        "penalty": trainer.learning_penalty.penalty_grad_onnx_,
        "update": trainer.learning_rate.axpyw_onnx_,
    }
    for name, graph in graphs.items():
        path = folder / f"graph_{name.replace(' ', '_')}.png"
        save(plot_onnxs(graph, title=name), path)
    return trainer.train_losses_


def show_search(onx, X, y, X_test, y_test):
    section("GridSearchCV")
    search = GridSearchCV(
        OrtGradientForwardBackwardOptimizer(onx, **{**OPTIONS, "max_iter": 50}),
        {
            "learning_rate": [
                LearningRateSGD(1e-6),
                LearningRateSGD(0.005),
                LearningRateSGDNesterov(0.001),
            ]
        },
        cv=3,
    ).fit(X, y)
    for params, score in zip(
        search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True
    ):
        print(f"{score:9.4f} {params['learning_rate']}")
    score = search.best_estimator_.score(X_test, y_test)
    print(f"best: {search.best_params_}, score on the test rows {score:.4f}")
    assert search.best_params_["learning_rate"].eta0 > 1e-6
    assert score > -0.5


def main():
    folder = begin()
    section("Versions")
    onnxgrad.show_versions(packages=PACKAGES)
    onx, X_train, X_test, y_train, y_test = make_model()
    curves = {"loss in the graph": show_first_way(onx, X_train, y_train)}
    curves["four graphs, Nesterov"] = show_second_way(onx, X_train, y_train, X_test, y_test, folder)
    plot_losses(curves, folder / "losses.png", "two ways to train")
    show_search(onx, X_train, y_train, X_test, y_test)


if __name__ == "__main__":
    main()
