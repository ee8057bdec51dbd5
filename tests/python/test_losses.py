"""Losses against PyTorch's stored values, NumPy and scikit-learn; several targets."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxgrad as og
from support import initializers, linear_rows, mlp_proto

DATA = Path(__file__).parents[1] / "data" / "losses" / "torch_values.json"
CASES = json.loads(DATA.read_text())["cases"]


def case_name(case):
    return f"{case['name']}-{case['reduction']}{'-weighted' if case['weights'] else ''}"


def scores_model(shape, dtype="float", head=""):
    """X -> Mul by one -> scores (-> head) -> Y; the gradient to X is that to the scores."""
    dims = ", ".join(["N", *map(str, shape[1:])])
    nodes = "scores = Mul(X, one)  Y = " + (f"{head}(scores)" if head else "Identity(scores)")
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        main ({dtype}[{dims}] X) => ({dtype}[{dims}] Y) <{dtype}[1] one = {{1}}> {{ {nodes} }}"""
    )


def losses_and_gradient(model, loss, feeds, runtime, **options):
    """The loss of `model` on these feeds and its gradient to X."""
    with_loss = og.add_loss(model, loss, keep_outputs=False, **options)
    gradient = og.gradient(with_loss, "X", fill_grad=True)
    sessions = (
        [og.InferenceSession(m) for m in (with_loss, gradient)]
        if runtime == "onnxgrad"
        else [onnxruntime.InferenceSession(m.SerializeToString()) for m in (with_loss, gradient)]
    )
    found = []
    for session in sessions:
        names = {value.name for value in session.get_inputs()}
        found.append(session.run(None, {k: v for k, v in feeds.items() if k in names})[0])
    return found


RUNS = [
    pytest.param(case, dtype, runtime, id=f"{case_name(case)}-{dtype}-{runtime}")
    for case in CASES
    for dtype in ("float32", "float64")
    for runtime in ("onnxgrad", "onnxruntime")
]


@pytest.mark.parametrize(("case", "dtype", "runtime"), RUNS)
def test_values_and_gradients_are_those_of_torch(case, dtype, runtime):
    loss = getattr(og.losses, case["loss"])(**case["options"], reduction=case["reduction"])
    scores = np.array(case["scores"], dtype)
    target = np.array(case["target"])
    if target.dtype.kind == "f" and case["loss"] != "Dpo":  # tokens and a number: float64
        target = target.astype(dtype)
    feeds = {"X": scores, "label": target}
    options = {}
    if case["weights"]:
        feeds["weight"] = np.array(case["weights"], dtype)
        options["sample_weight"] = "weight"
    model = scores_model(scores.shape, "float" if dtype == "float32" else "double")
    value, gradient = losses_and_gradient(model, loss, feeds, runtime, **options)
    rtol, atol = (1e-9, 1e-12) if dtype == "float64" else (2e-5, 1e-6)
    assert value.shape == np.shape(case["value"])
    np.testing.assert_allclose(value, case["value"], rtol=rtol, atol=atol)
    np.testing.assert_allclose(gradient, case["gradient"], rtol=rtol, atol=atol)


def test_every_loss_has_all_cases_and_both_name_tables_agree():
    from onnxgrad import _core

    assert og.losses.names() == _core.loss_names()
    found = {}
    for case in CASES:
        loss = getattr(og.losses, case["loss"])(**case["options"])
        found.setdefault(repr(loss), set()).add((case["reduction"], case["weights"] is not None))
    everything = {(r, weighted) for r in ("mean", "sum", "none") for weighted in (False, True)}
    # Losses of several values are in test_distillation.py and test_contrastive.py.
    of_several = {"distillation", "info_nce", "clip", "triplet", "cosine_embedding"}
    for name in set(og.losses.names()) - {"auto"} - of_several:
        assert found.get(repr(og.losses.from_name(name))) == everything, name


@pytest.mark.parametrize("columns", ["one", "three"])
@pytest.mark.parametrize("kind", ["hinge", "squared_hinge", "modified_huber"])
def test_stored_margin_losses_are_scikit_learns(kind, columns):
    """The formulas that PyTorch does not have are those of SGDClassifier, as are their slopes."""
    from sklearn.linear_model import _sgd_fast

    [case] = [c for c in CASES if case_name(c) == f"one_vs_rest_{kind}_{columns}-none"]
    scores, classes = np.array(case["scores"]), np.array(case["target"])
    signs = 2.0 * (classes[:, None] if columns == "one" else np.eye(3)[classes]) - 1
    formula = {
        "hinge": lambda: _sgd_fast.Hinge(1.0),
        "squared_hinge": lambda: _sgd_fast.SquaredHinge(1.0),
        "modified_huber": lambda: _sgd_fast.ModifiedHuber(),
    }[kind]()
    losses = np.vectorize(formula.py_loss)(signs, scores)
    slopes = np.vectorize(formula.py_dloss)(scores, signs)
    np.testing.assert_allclose(case["value"], losses.sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(case["gradient"], slopes, rtol=1e-12)


def test_the_manual_has_every_loss_and_penalty():
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    names = [*og.losses.names(), "mse", "l1", "l2", "mae", "bce", "kl", "nll", "cross_entropy"]
    assert [name for name in names if f'`"{name}"`' not in text] == []
    assert all(type(og.losses.from_name(name)) is not og.losses.Loss for name in names)


# Reductions and weights in sessions and trainers.


def test_session_gives_the_loss_of_each_row(linear_proto, linear_data):
    X, y = (array[:9] for array in linear_data)
    w = np.linspace(0, 2, 9, dtype=np.float32)
    loss = og.losses.AbsoluteError(reduction="none")
    feeds = {"X": X, "label": y, "w": w}
    session = og.TrainingSession(
        linear_proto, loss, og.optimizers.SGD(lr=0.1), sample_weight="w", outputs=["coef_grad"]
    )
    d = linear_rows(linear_proto, X, y)
    evaluated = session.evaluate(feeds)
    rows, (gradient,) = session.step(feeds)
    np.testing.assert_allclose(rows, w * np.abs(d[:, 0]), rtol=1e-5)
    np.testing.assert_allclose(gradient, X.T @ (np.sign(d) * w[:, None]), rtol=1e-4)
    np.testing.assert_allclose(evaluated.loss, (w * np.abs(d[:, 0])).sum(), rtol=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("loss", ["Huber", "Elastic", "Poisson"])
def test_training_step_files_give_the_same_numbers_in_onnxruntime(
    loss, reduction, linear_proto, linear_data
):
    X, y = linear_data[0], np.abs(linear_data[1])
    described = getattr(og.losses, loss)(reduction=reduction)
    options = {"sample_weight": "w", "penalty": {"coef": {"l1": 0.03, "l2": 0.2}}}
    session = og.TrainingSession(linear_proto, described, og.optimizers.SGD(lr=1e-3), **options)
    file = og.training_step(linear_proto, described, "sgd", **options)
    stock = onnxruntime.InferenceSession(file.SerializeToString())
    names = [output.name for output in stock.get_outputs()]
    state = {}
    w = np.random.default_rng(3).uniform(0, 2, len(X)).astype(np.float32)
    for first in (0, 50, 100):
        rows = slice(first, first + 50)
        feeds = {"X": X[rows], "label": y[rows], "w": w[rows]}
        ours = session.step(feeds)
        rate = {"learning_rate": np.array(1e-3, np.float32)}
        theirs = dict(zip(names, stock.run(None, {**feeds, **rate, **state}), strict=True))
        np.testing.assert_allclose(ours, theirs["loss"], rtol=2e-5)
        state = {n[5:]: value for n, value in theirs.items() if n.startswith("next/")}
    for name, value in session.state().items():
        np.testing.assert_allclose(value, state[name], rtol=1e-5, atol=1e-7)


def test_history_and_evaluation_count_what_the_loss_counts():
    """Ignored rows and class weights: means over batches of unequal weight are exact."""
    rng = np.random.default_rng(5)
    model = mlp_proto([4, 3], head="Softmax")
    X = rng.normal(size=(50, 4)).astype(np.float32)
    y = rng.integers(0, 3, 50)
    y[rng.random(50) < 0.3] = -1
    loss = og.losses.SoftmaxCrossEntropy(ignore_index=-1, class_weights=[1, 2, 0.5])
    weights = initializers(model)
    scores = X.astype(np.float64) @ weights["W0"] + weights["b0"]
    log_p = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    kept = y >= 0
    w = np.array([1, 2, 0.5])[y[kept]]
    rows = -log_p[kept, y[kept]]
    expected = (w * rows).sum() / w.sum()
    trainer = og.Trainer(model, loss, og.optimizers.SGD(lr=0.0))
    trainer.fit(X, y, validation=(X, y), epochs=1, batch_size=16, verbose=0)
    found = trainer.evaluate(X, y, batch_size=16)
    assert trainer.history["train_loss"][0] == pytest.approx(expected, rel=1e-5)
    assert trainer.history["val_loss"][0] == pytest.approx(expected, rel=1e-5)
    assert found.loss == pytest.approx(expected, rel=1e-5)
    assert found.accuracy == pytest.approx((log_p[kept].argmax(axis=1) == y[kept]).mean())
    trainer.fit(X, y, validation=0.2, epochs=1, verbose=0)


def test_data_in_which_no_row_counts():
    model = mlp_proto([4, 3], head="Softmax")
    X, y = np.ones((20, 4), np.float32), np.full(20, -1)
    trainer = og.Trainer(model, og.losses.SoftmaxCrossEntropy(ignore_index=-1), "sgd", lr=0.1)
    with pytest.raises(og.DataError, match="all labels are -1, which the loss ignores"):
        trainer.fit(X, y, validation=(X, y), epochs=1, batch_size=8, verbose=0)
    assert trainer.session.evaluate({"X": X, "label": y}).loss == 0
    np.testing.assert_array_equal(trainer.session.state()["W0"], initializers(model)["W0"])
    weighted = og.Trainer(model, optimizer="sgd")
    assert weighted.evaluate(X, np.zeros(20, int), np.zeros(20)).loss == 0


def test_one_hot_targets_train_as_class_numbers_do():
    rng = np.random.default_rng(6)
    model = mlp_proto([4, 3], head="Softmax")
    X, y = rng.normal(size=(40, 4)).astype(np.float32), rng.integers(0, 3, 40)
    one = og.Trainer(model, "cross_entropy", "sgd", lr=0.1)
    two = og.Trainer(model, og.losses.SoftmaxCrossEntropy(one_hot=True), "sgd", lr=0.1)
    one.fit(X, y, epochs=3, verbose=0)
    two.fit(X, np.eye(3)[y], epochs=3, verbose=0)
    np.testing.assert_allclose(one.history["train_loss"], two.history["train_loss"], rtol=1e-5)
    assert two.evaluate(X, np.eye(3)[y]).accuracy == one.evaluate(X, y).accuracy


@pytest.mark.parametrize("loss", ["mae", "huber", "smooth_l1", "elastic", "poisson"])
def test_a_loss_of_numbers_is_one_kernel_with_its_gradient(loss):
    model = mlp_proto([30, 64, 32, 1])
    feeds = {"X": np.ones((32, 30), np.float32), "label": np.ones((32, 1), np.float32)}
    plans = []
    for name in ("mse", loss):
        session = og.TrainingSession(model, name, "sgd")
        session.step(feeds)
        plans.append([line.split()[1] for line in session.plan_summary().splitlines()])
    assert plans[0][1:] == plans[1][1:]
    assert plans[0].count("Elementwise") == 3


# Class weights.


@pytest.mark.parametrize("given", ["balanced", {0: 0.5, 2: 4.0}])
def test_class_weight_is_scikit_learns(given):
    from sklearn.utils.class_weight import compute_class_weight

    rng = np.random.default_rng(7)
    model = mlp_proto([4, 3], head="Softmax")
    X = rng.normal(size=(60, 4)).astype(np.float32)
    y = rng.choice(3, size=60, p=[0.7, 0.2, 0.1])
    extra = rng.uniform(0.5, 2, 60)
    weights = compute_class_weight(
        given if given == "balanced" else {1: 1.0, **given}, classes=np.arange(3), y=y
    )
    one = og.Trainer(model, optimizer="sgd", lr=0.1)
    two = og.Trainer(model, optimizer="sgd", lr=0.1)
    one.fit(X, y, sample_weight=extra, class_weight=given, epochs=3, verbose=0)
    two.fit(X, y, sample_weight=extra * weights[y], epochs=3, verbose=0)
    assert one.history["train_loss"] == two.history["train_loss"]


def test_class_weight_of_strings_and_invalid_ones(linear_model, linear_data):
    from onnxgrad.data.labels import with_class_weights

    y = np.array(["no", "yes", "no", "no"])
    np.testing.assert_allclose(with_class_weights("balanced", y, None), [2 / 3, 2, 2 / 3, 2 / 3])
    np.testing.assert_allclose(with_class_weights({"yes": 3}, y, [1, 2, 1, 0]), [1, 6, 1, 0])
    with pytest.raises(og.DataError, match="no row has the label 'yess'"):
        with_class_weights({"yess": 3}, y, None)
    with pytest.raises(og.OptionError, match="class_weight: 'even'"):
        with_class_weights("even", y, None)
    with pytest.raises(og.OptionError, match="class_weight of 'no'"):
        with_class_weights({"no": -1}, y, None)
    X, values = linear_data
    with pytest.raises(og.DataError, match="not one class for each row"):
        og.Trainer(linear_model).fit(X, values, class_weight="balanced", verbose=0)


# Penalties.


def test_elastic_loss_with_weights_and_penalty_as_add_loss_output_states_it(linear_proto):
    rng = np.random.default_rng(8)
    X = rng.normal(size=(7, 2)).astype(np.float32)
    y = rng.normal(size=(7, 1)).astype(np.float32)
    w = rng.uniform(0.5, 2, 7).astype(np.float32)
    loss = og.losses.Elastic(l1_weight=0.1, l2_weight=0.9, reduction="sum")
    model = og.add_loss(linear_proto, loss, sample_weight="weight", penalty={"coef": {"l2": 0.01}})
    stock = onnxruntime.InferenceSession(model.SerializeToString())
    assert [value.name for value in stock.get_inputs()] == ["X", "label", "weight"]
    d = linear_rows(linear_proto, X, y)[:, 0]
    coef = initializers(linear_proto)["coef"]
    expected = (w * (0.1 * np.abs(d) + 0.9 * d**2)).sum() + 0.01 * (coef**2).sum()
    found = stock.run(["loss"], {"X": X, "label": y, "weight": w})[0]
    assert found == pytest.approx(expected, rel=1e-5)


# y = sum_j (x_j^2 a_j + x_j b_j) + c, with a sum of squares: numbers that are printed elsewhere.
POLYNOMIAL = """
<ir_version: 8, opset_import: ["" : 14]>
main (float[N, 2] x) => (float[N, 1] y)
<float[1, 2] init = {2, 3}, float[1, 2] init_1 = {0.5, 0.33333}, float[1] init_b10 = {1},
 int64[1] i0 = {0}, int64[1] i1 = {1}, int64[1] i2 = {2}>
{
  r0 = Mul(x, x)  r1 = Mul(r0, init)  r2 = Mul(x, init_1)  r3 = Add(r2, r1)
  right = Slice(r3, i1, i2, i1)  left = Slice(r3, i0, i1, i1)
  both = Add(left, right)  y = Add(both, init_b10)
}"""


@pytest.mark.parametrize("runtime", ["onnxgrad", "onnxruntime"])
def test_a_printed_derivative_of_a_sum_of_squares(runtime):
    model = onnx.parser.parse_model(POLYNOMIAL)
    with_loss = og.add_loss(model, og.losses.SquaredError(output="y", reduction="sum"))
    expected = {
        "x": [
            [2, 1.33332],
            [54, 3.99996],
            [2.66666, 33.777676],
            [59.999943, 84.44432],
            [356.99966, 517.9994],
        ],
        "label": [[-4], [-12], [-5.33332], [-13.333321], [-41.99996]],
        "init": [[193.33316, 186.66649]],
        "init_1": [[109.333244, 102.666565]],
        "init_b10": [76.6666],
    }
    gradient = og.gradient(with_loss, list(expected), "loss", fill_grad=True, keep_outputs=True)
    feeds = {
        "x": np.array([[0, 0], [1, 0], [0, 1], [1, 1], [2, 2]], np.float32),
        "label": np.array([[-1], [-2.5], [1.66667], [0.16667], [1.66668]], np.float32),
        **{k: v for k, v in initializers(model).items() if k in expected},
    }
    session = (
        og.InferenceSession(gradient)
        if runtime == "onnxgrad"
        else onnxruntime.InferenceSession(gradient.SerializeToString())
    )
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, feeds), strict=True))
    assert found["loss"] == pytest.approx(532.5546, rel=1e-6)
    for name, numbers in expected.items():
        np.testing.assert_allclose(found[f"{name}_grad"], numbers, rtol=1e-5)


# Several targets.

TWO_HEADS = """
<ir_version: 8, opset_import: ["" : 17]>
main (float[N, 2] X) => (float[N, 1] price, float[N, 3] kind)
<float[2, 1] a = {0.5, -0.25}, float[2, 3] b = {0.1, 0.2, 0.3, -0.3, 0.4, 0.0}>
{ price = MatMul(X, a)  logits = MatMul(X, b)  kind = Softmax(logits) }
"""


def two_targets():
    rng = np.random.default_rng(9)
    X = rng.normal(size=(30, 2)).astype(np.float32)
    return X, rng.normal(size=(30, 1)).astype(np.float32), rng.integers(0, 3, 30)


def two_losses(X, price, kind, weight):
    """0.5 * mean absolute error + 2 * cross-entropy, each a weighted mean, in NumPy."""
    a, b = np.array([[0.5], [-0.25]]), np.array([[0.1, 0.2, 0.3], [-0.3, 0.4, 0.0]])
    absolute = np.abs(X @ a - price)[:, 0]
    scores = X @ b
    entropy = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(X)), kind]
    return (0.5 * weight * absolute + 2 * weight * entropy).sum() / weight.sum()


def test_several_targets_with_factors():
    X, price, kind = two_targets()
    model = onnx.parser.parse_model(TWO_HEADS)
    loss = {"price": ("mae", 0.5), "kind": ("cross_entropy", 2.0)}
    trainer = og.Trainer(model, loss, og.optimizers.SGD(lr=0.0))
    assert trainer.session.target_names == {"price": "label_price", "kind": "label_kind"}
    assert "0.5 times absolute error on 'price'" in trainer.session.loss_line
    targets = {"kind": kind, "price": price}
    expected = two_losses(X, price, kind, np.ones(30))
    trainer.fit(X, targets, validation=(X, targets), epochs=1, batch_size=7, verbose=0)
    assert trainer.history["train_loss"][0] == pytest.approx(expected, rel=1e-5)
    assert trainer.history["val_loss"][0] == pytest.approx(expected, rel=1e-5)
    assert trainer.evaluate(X, targets).loss == pytest.approx(expected, rel=1e-5)
    weight = np.random.default_rng(1).uniform(0, 3, 30)
    trainer.fit(X, targets, weight, validation=0.2, epochs=1, verbose=0)
    found = trainer.evaluate(X, targets, weight, batch_size=30).loss
    assert found == pytest.approx(two_losses(X, price, kind, weight), rel=1e-5)
    file = og.add_loss(model, loss)
    feeds = {"X": X, "label_price": price, "label_kind": kind}
    stock = onnxruntime.InferenceSession(file.SerializeToString())
    assert stock.run(["loss"], feeds)[0] == pytest.approx(expected, rel=1e-5)
    session = og.TrainingSession(model, loss, "sgd", penalty=og.losses.Penalty(l2=1.0))
    assert session.step(feeds) == pytest.approx(expected + 0.3125 + 0.39, rel=1e-5)


def test_several_targets_with_mistakes():
    X, price, kind = two_targets()
    model = onnx.parser.parse_model(TWO_HEADS)
    trainer = og.Trainer(model, {"price": "mse", "kind": "cross_entropy"})
    with pytest.raises(og.DataError, match="no target for output 'kind'"):
        trainer.fit(X, {"price": price}, verbose=0)
    with pytest.raises(og.DataError, match=r"(?s)there is no loss on 'kinds'.*Did you mean 'kind'"):
        trainer.fit(X, {"price": price, "kinds": kind}, verbose=0)
    with pytest.raises(og.DataError, match="29 rows"):
        trainer.fit(X, {"price": price, "kind": kind[:29]}, verbose=0)
    with pytest.raises(og.ModelError, match="no output or value 'cost'"):
        og.Trainer(model, {"price": "mse", "cost": "mse"})
    with pytest.raises(og.OptionError, match="3 entries for output 'price'"):
        og.Trainer(model, {"price": ("mse", 1, 2)})
    with pytest.raises(og.OptionError, match="different reductions"):
        og.Trainer(model, {"price": og.losses.Huber(reduction="sum"), "kind": "cross_entropy"})


# Mistakes.


@pytest.mark.parametrize(
    ("loss", "y", "message"),
    [
        ("poisson", [[-1.0]], "the target has -1 in row 0, column 0"),
        (og.losses.SoftmaxCrossEntropy(), [0], "one column per class"),
        ("kl", [[1.0]], "one column per class"),
        ("cosine", [0.0], "vectors"),
    ],
)
def test_data_and_scores_that_do_not_fit(loss, y, message):
    shape = (1,) if loss == "cosine" else (1, 1)
    dims = "N" if loss == "cosine" else "N, 1"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[{dims}] X) => (float[{dims}] Y) <float[1] w = {{1}}> {{ Y = Mul(X, w) }}"""
    )
    with pytest.raises((og.DataError, og.ModelError), match=message):
        og.Trainer(model, loss, trainable="w").fit(np.ones(shape, np.float32), y, verbose=0)


def test_one_column_found_in_the_data():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[N, K] X) => (float[N, K] Y) <float[1] w = {1}> { Y = Mul(X, w) }"""
    )
    trainer = og.Trainer(model, "cross_entropy", trainable="w")
    with pytest.raises(og.DataError, match="'Y' has one column in these data"):
        trainer.fit(np.ones((4, 1), np.float32), [0, 1, 0, 1], verbose=0)
    trainer.fit(np.ones((4, 2), np.float32), [0, 1, 0, 1], verbose=0)


def test_options_that_cannot_be():
    for make, message in [
        (lambda: og.losses.Huber(delta=0), "delta: 0"),
        (lambda: og.losses.SmoothL1(beta=-1), "beta: -1"),
        (lambda: og.losses.Elastic(l1_weight="a"), "l1_weight: 'a'"),
        (lambda: og.losses.SoftmaxCrossEntropy(label_smoothing=1), "label_smoothing: 1"),
        (lambda: og.losses.SoftmaxCrossEntropy(class_weights=[-1]), "class_weights: -1"),
        (lambda: og.losses.OneVsRest(kind="log2"), "Did you mean 'log'"),
        (lambda: og.losses.SquaredError(reduction="average"), "reduction: unknown 'average'"),
        (lambda: og.losses.from_name("hubber"), "Did you mean 'huber'"),
    ]:
        with pytest.raises(og.OptionError, match=message):
            make()
    model = mlp_proto([4, 3], head="Softmax")
    with pytest.raises(og.ModelError, match="2 class weights for the 3 classes"):
        og.Trainer(model, og.losses.SoftmaxCrossEntropy(class_weights=[1, 2]))
    with pytest.raises(og.ModelError, match="Use loss='negative_log_likelihood'"):
        og.Trainer(model, "log_loss")


def test_log_loss_is_scikit_learns():
    from sklearn.metrics import log_loss

    rng = np.random.default_rng(10)
    X, y = rng.normal(size=(40, 1)).astype(np.float32), rng.integers(0, 2, 40)
    weight = rng.uniform(0, 2, 40)
    model = scores_model((None, 1), head="Sigmoid")
    trainer = og.Trainer(model, "log_loss", trainable="one")
    p = 1 / (1 + np.exp(-X[:, 0].astype(float)))
    found = trainer.evaluate(X, y, weight)
    assert found.loss == pytest.approx(log_loss(y, p, sample_weight=weight), rel=1e-5)
    assert found.accuracy == pytest.approx(np.average((p > 0.5) == y, weights=weight))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: og.losses.BinaryCrossEntropy(pos_weight=2), "BinaryCrossEntropy: unknown"),
        (lambda: og.losses.SquaredError(nonsense=3), "Known: 'output', 'reduction'"),
        (lambda: og.losses.AbsoluteError(delta=1), "AbsoluteError: unknown 'delta'"),
        (lambda: og.losses.Cosine(reductions="sum"), "Did you mean 'reduction'"),
        (lambda: og.losses.KlDivergence(ouput="Y"), "Did you mean 'output'"),
        (lambda: og.losses.Auto(delta=1), "Auto: unknown 'delta'"),
        (lambda: og.losses.Huber(detla=1), "Did you mean 'delta'"),
        (lambda: og.losses.SquaredError().replace(reducton="sum"), "Did you mean 'reduction'"),
        (lambda: og.losses.Penalty(l3=1), "Penalty: unknown 'l3'"),
        (lambda: og.optimizers.Adam(beta_1=0.5), "Did you mean 'beta1'"),
        (lambda: og.optimizers.ParameterGroup("W0", rate=0.5), "ParameterGroup: unknown 'rate'"),
        (lambda: og.schedules.Cosine(lenght=5), "Did you mean 'length'"),
    ],
)
def test_options_that_do_not_exist(make, message):
    with pytest.raises(og.OptionError, match=message):
        make()
    with pytest.raises(TypeError):
        make()
