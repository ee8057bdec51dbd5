"""Which axis of the scores has the classes; soft targets and float labels of binary losses.

Values are NumPy's by hand, or those of ONNX's own loss on transposed scores in stock onnxruntime.
"""

import json
import pickle

import numpy as np
import onnx
import onnxruntime
import pytest
from typer.testing import CliRunner

import onnxgrad as og
from onnxgrad.cli import app

B, T, D, V = 6, 5, 3, 4
RNG = np.random.default_rng(7)
X = RNG.normal(size=(B, T, D)).astype(np.float32)
W = RNG.normal(size=(D, V)).astype(np.float32)
LABELS = RNG.integers(0, V, size=(B, T))
WEIGHTS = RNG.uniform(0.5, 2.0, size=B).astype(np.float32)
CLASS_WEIGHTS = (0.5, 2.0, 1.5, 0.25)


def model(rows="N", places="T", axis=2, head="", shown=True, features=D):
    """X [rows, places, D] times W: scores [rows, places, V], or with the classes on `axis`."""
    perm = {1: "0, 2, 1", 2: "0, 1, 2"}[axis]
    dims = {1: (rows, V, places), 2: (rows, places, V)}[axis]
    shape = ", ".join(map(str, dims)) if shown else "a, b, c"
    last = f"{head} (s)" if head else "Identity (s)"
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[{rows}, {places}, {features}] X) => (float[{shape}] Y)
        <float[{features}, {V}] W = {{{", ".join(map(str, W[:features].ravel()))}}}>
        {{ m = MatMul (X, W)  s = Transpose <perm = [{perm}]> (m)  Y = {last} }}"""
    )


def reference(x=X, labels=LABELS, weight=None, ignored=None, **attributes):
    """Loss and gradient to W by ONNX's own loss on scores [N, C, T], in stock onnxruntime."""
    ignore = "" if ignored is None else f", ignore_index = {ignored}"
    weighted = ", w" if "class_weights" in attributes else ""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[N, T, {D}] X, int64[N, T] t{", float[C] w" if weighted else ""})
        => (float[N, T] e) <float[{D}, {V}] W = {{{", ".join(map(str, W.ravel()))}}}>
        {{ m = MatMul (X, W)  s = Transpose <perm = [0, 2, 1]> (m)
           e = SoftmaxCrossEntropyLoss <reduction = "none"{ignore}> (s, t{weighted}) }}"""
    session = onnxruntime.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    feeds = {"X": x, "t": labels}
    counts = np.ones(labels.shape) if ignored is None else (labels != ignored).astype(float)
    if weighted:
        feeds["w"] = np.array(attributes["class_weights"], np.float32)
        counts = counts * feeds["w"][np.where(labels == ignored, 0, labels)]
    losses = session.run(None, feeds)[0].astype(float)
    rows = np.ones(len(x)) if weight is None else weight.astype(float)
    losses, counts = losses.mean(axis=1), counts.mean(axis=1)
    return float((rows * losses).sum() / (rows * counts).sum())


def gradient_by_hand(x=X, labels=LABELS):
    """Return the gradient of the mean loss with respect to W [D, V], in float64."""
    scores = x.astype(float) @ W.astype(float)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    p[np.arange(len(x))[:, None], np.arange(T), labels] -= 1
    return np.einsum("btd,btv->dv", x, p) / labels.size


@pytest.mark.parametrize("shown", [True, False], ids=["declared", "hidden"])
@pytest.mark.parametrize("axis", [1, 2])
def test_labels_determine_the_axis_in_a_step(axis, shown):
    session = og.TrainingSession(
        model(axis=axis, shown=shown),
        "cross_entropy",
        og.optimizers.SGD(lr=0.0),
        outputs=["W_grad"],
    )
    loss, (gradient,) = session.step({"X": X, "label": LABELS})
    assert loss == pytest.approx(reference(), rel=1e-5)
    np.testing.assert_allclose(gradient, gradient_by_hand(), rtol=1e-4, atol=1e-6)
    assert f"along axis {axis} of" in session.loss_line
    found = session.evaluate({"X": X, "label": LABELS})
    right = (X @ W).argmax(-1) == LABELS
    assert found.loss == pytest.approx(reference(), rel=1e-5)
    assert found.accuracy == pytest.approx(right.mean())


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ignore_index": 1},
        {"class_weights": CLASS_WEIGHTS},
        {"class_weights": CLASS_WEIGHTS, "ignore_index": -1},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
@pytest.mark.parametrize("weight", [None, WEIGHTS], ids=["", "weighted"])
def test_options_with_positions(axis, options, weight):
    labels = np.where(RNG.random((B, T)) < 0.2, -1, LABELS)
    if options.get("ignore_index") != -1:
        labels = LABELS
    loss = og.losses.SoftmaxCrossEntropy(**options)
    session = og.TrainingSession(
        model(axis=axis), loss, sample_weight=None if weight is None else "w"
    )
    feeds = {"X": X, "label": labels} | ({} if weight is None else {"w": weight})
    arguments = {"class_weights": CLASS_WEIGHTS} if "class_weights" in options else {}
    expected = reference(
        labels=labels, weight=weight, ignored=options.get("ignore_index"), **arguments
    )
    assert session.evaluate(feeds).loss == pytest.approx(expected, rel=1e-5)
    # Transposed and with the axis given, the same model has the same loss.
    other = og.TrainingSession(
        model(axis=3 - axis),
        loss.replace(axis=3 - axis),
        sample_weight=session._sample_weight or None,
    )
    assert other.step(feeds) == pytest.approx(expected, rel=1e-5)


def log_softmax(scores):
    shifted = scores - scores.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


SOFT = RNG.dirichlet(np.ones(V), size=(B, T)).astype(np.float32)


@pytest.mark.parametrize("axis", [1, 2])
def test_every_cross_entropy_by_hand(axis):
    log_p = log_softmax((X @ W).astype(float))
    place = np.take_along_axis(log_p, LABELS[..., None], -1)[..., 0]
    soft = SOFT if axis == 2 else SOFT.transpose(0, 2, 1)
    t = SOFT.astype(float)
    smoothed = 0.9 * -place - 0.1 * log_p.mean(-1)
    cases = {
        "label smoothing": (og.losses.SoftmaxCrossEntropy(label_smoothing=0.1), LABELS, smoothed),
        "one-hot": (
            og.losses.SoftmaxCrossEntropy(one_hot=True, axis=axis),
            soft,
            -(t * log_p).sum(-1),
        ),
        "KL": (og.losses.KlDivergence(axis=axis), soft, (t * (np.log(t) - log_p)).sum(-1)),
    }
    for name, (loss, target, expected) in cases.items():
        session = og.TrainingSession(model(axis=axis), loss)
        found = session.step({"X": X, "label": target})
        assert found == pytest.approx(expected.mean(), rel=1e-5), name


@pytest.mark.parametrize("ignored", [None, 2])
def test_likelihood_on_probabilities(ignored):
    probabilities = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[N, T, {D}] X) => (float[N, T, {V}] p)
        <float[{D}, {V}] W = {{{", ".join(map(str, W.ravel()))}}}>
        {{ m = MatMul (X, W)  e = Exp (m)  a = Softmax (e)  p = Identity (a) q = Abs (p) }}"""
    )
    loss = og.losses.NegativeLogLikelihood(output="p", ignore_index=ignored)
    p = np.exp(log_softmax(np.exp((X @ W).astype(float))))
    place = -np.log(np.take_along_axis(p, LABELS[..., None], -1)[..., 0])
    counted = np.ones((B, T)) if ignored is None else ignored != LABELS
    session = og.TrainingSession(probabilities, loss)
    found = session.evaluate({"X": X, "label": LABELS})
    assert found.loss == pytest.approx((place * counted).sum() / counted.sum(), rel=1e-5)
    right = (p.argmax(-1) == LABELS) * counted
    assert found.accuracy == pytest.approx(right.sum() / counted.sum())


def test_the_axis_of_the_models_own_softmax():
    """It needs no labels: files too are written with it."""
    for head in ("Softmax <axis = -1>", "LogSoftmax <axis = -1>", "Softmax <axis = 1>"):
        with_loss = og.add_loss(model(places=T, head=head), "auto")
        shape = [
            d.dim_value or d.dim_param for d in with_loss.graph.input[-1].type.tensor_type.shape.dim
        ]
        assert shape == (["N", V] if "1>" in head and "-1" not in head else ["N", T]), head


def test_ambiguous_labels_suggest_axis():
    """[B, C, C]: a label [B, C] fits both axes."""
    square = model(places=V)
    x, labels = X[:, :V], LABELS[:, :V]
    for call in (
        lambda: og.TrainingSession(square, "cross_entropy").step({"X": x, "label": labels}),
        lambda: og.Trainer(square, "cross_entropy").fit(x, labels, epochs=1, verbose=0),
        lambda: og.Trainer(square, "cross_entropy").evaluate(x, labels),
    ):
        with pytest.raises(og.Error, match=r"axis=-1.*--class-axis") as info:
            call()
        assert "'s'" in str(info.value)
    for axis in (-1, 1):
        loss = og.losses.SoftmaxCrossEntropy(axis=axis)
        found = og.TrainingSession(square, loss).step({"X": x, "label": labels})
        scores = (x @ W).astype(float)
        log_p = log_softmax(scores if axis == -1 else scores.transpose(0, 2, 1))
        expected = -np.take_along_axis(log_p, labels[..., None], -1).mean()
        assert found == pytest.approx(expected, rel=1e-5)


def test_files_default_to_axis_1():
    """As PyTorch and ONNX's own operator have it; the line of the loss says so."""
    both_fixed = model(places=T)
    for write in (og.add_loss, og.training_step):
        (label,) = (v for v in write(both_fixed, "cross_entropy").graph.input if v.name == "label")
        shape = label.type.tensor_type.shape.dim
        assert (shape[0].dim_param, shape[1].dim_value) == ("N", V)
    line = og.TrainingSession(both_fixed, og.losses.SoftmaxCrossEntropy(one_hot=True)).loss_line
    assert f"along axis 1 of float32[N, {T}, {V}]" in line


def test_labels_of_no_axis_are_refused():
    for places in (T, "T"):
        session = og.TrainingSession(model(places=places), "cross_entropy")
        with pytest.raises(og.Error, match=r"labels \[6, 3\].*(shape of the scores|3 positions)"):
            session.step({"X": X, "label": LABELS[:, :3]})
    session = og.TrainingSession(model(shown=False), "cross_entropy")
    session.step({"X": X, "label": LABELS})
    with pytest.raises(og.Error):  # another order of as many labels
        session.step({"X": X, "label": LABELS.T.copy()})
    with pytest.raises(og.Error):
        session.step({"X": X, "label": LABELS[:, :1].copy()})
    for axis in (0, 3, -3):
        with pytest.raises(og.ModelError, match=rf"axis {axis} of 's'"):
            og.TrainingSession(model(), og.losses.SoftmaxCrossEntropy(axis=axis))
    with pytest.raises(og.OptionError, match="axis"):
        og.losses.SoftmaxCrossEntropy(axis="last")


@pytest.mark.parametrize("given", [None, -1])
@pytest.mark.parametrize("inline", [False, True])
def test_files_in_stock_onnxruntime(given, inline):
    """The only fixed size behind the rows is that of the classes."""
    loss = og.losses.SoftmaxCrossEntropy(axis=given, ignore_index=2)
    feeds = {"X": X, "label": LABELS}
    expected = reference(ignored=2)
    with_loss = og.add_loss(model(), loss, keep_outputs=False)
    run = onnxruntime.InferenceSession(with_loss.SerializeToString()).run
    assert run(None, feeds)[0] == pytest.approx(expected, rel=1e-5)
    step = og.training_step(model(), loss, og.optimizers.SGD(lr=0.5), inline=inline)
    stock = onnxruntime.InferenceSession(step.SerializeToString())
    rate = {"learning_rate": np.array(0.5, np.float32)}
    found = stock.run(["loss", "next/W"], feeds | rate)
    session = og.TrainingSession(model(), loss, og.optimizers.SGD(lr=0.5))
    assert found[0] == pytest.approx(expected, rel=1e-5)
    assert session.step(feeds) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(found[1], session.state()["W"], rtol=1e-5, atol=1e-6)


def test_forward_backward_of_a_file_with_the_loss():
    with_loss = og.add_loss(model(), "cross_entropy", keep_outputs=False)
    both = og.ForwardBackward(with_loss, input_gradients=False)
    (loss,) = both.forward({"X": X, "label": LABELS})
    assert loss == pytest.approx(reference(), rel=1e-5)
    found = both.backward({"loss": np.array(1, np.float32)}).weights["W"]
    np.testing.assert_allclose(found, gradient_by_hand(), rtol=1e-4, atol=1e-6)


METRICS = ["accuracy", "f1"]


@pytest.mark.parametrize("axis", [1, 2])
def test_trainer_validates_and_counts_positions(axis):
    from sklearn.metrics import accuracy_score, f1_score

    trainer = og.Trainer(model(axis=axis), "cross_entropy", "sgd", lr=1e-30)
    trainer.fit(
        X, LABELS, validation=(X, LABELS), metrics=METRICS, epochs=1, batch_size=2, verbose=0
    )
    guessed = (X @ W).argmax(-1).ravel()
    history = trainer.history
    assert history["val_loss"][-1] == pytest.approx(reference(), rel=1e-5)
    assert history["val_accuracy"][-1] == pytest.approx(accuracy_score(LABELS.ravel(), guessed))
    expected = f1_score(LABELS.ravel(), guessed, average="macro")
    assert history["val_f1"][-1] == pytest.approx(expected)


def test_trainer_learns_from_batches_and_continues(tmp_path):
    """An iterable of batches can be read once: its first batch is not lost."""

    def batches():
        return iter([(X[i : i + 2], LABELS[i : i + 2]) for i in range(0, B, 2)])

    def trained(rows, **options):
        trainer = og.Trainer(model(shown=False), "cross_entropy", "adam", lr=0.1)
        trainer.fit(*rows, epochs=1, batch_size=2, shuffle=False, verbose=0, **options)
        return trainer

    whole = trained((X, LABELS))
    once = trained((batches(),))
    again = trained((batches,))
    for other in (once, again):
        assert other.session.steps == 3
        np.testing.assert_array_equal(other.session.state()["W"], whole.session.state()["W"])
    # A checkpoint has what the labels have settled.
    whole.session.save(tmp_path / "state.safetensors")
    fresh = og.TrainingSession(model(shown=False), "cross_entropy", og.optimizers.Adam(lr=0.1))
    fresh.load(tmp_path / "state.safetensors")
    assert fresh.loss_line == whole.session.loss_line
    feeds = {"X": X, "label": LABELS}
    assert fresh.step(feeds) == whole.session.step(feeds)


@pytest.mark.parametrize("loss", ["cross_entropy", "auto"])
@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("shown", [True, False])
def test_pickled_trainers(loss, axis, shown):
    if loss == "auto" and not shown:
        return  # three unknown sizes: a regression as well
    trainer = og.Trainer(model(axis=axis, shown=shown), loss, "adam")
    trainer.fit(X, LABELS, epochs=1, verbose=0)
    copy = pickle.loads(pickle.dumps(trainer))
    assert copy.session.loss_line == trainer.session.loss_line
    for each in (trainer, copy):
        each.fit(X, LABELS, epochs=1, verbose=0)
    np.testing.assert_array_equal(copy.session.state()["W"], trainer.session.state()["W"])


def test_an_automatic_loss_on_bare_scores():
    trainer = og.Trainer(model(), "auto", "sgd", lr=1e-30)
    trainer.fit(X, LABELS, epochs=1, verbose=0)
    assert trainer.session.loss_name == "softmax_cross_entropy"
    assert trainer.evaluate(X, LABELS).loss == pytest.approx(reference(), rel=1e-5)


def test_command_line(tmp_path):
    onnx.save(model(), tmp_path / "m.onnx")
    onnx.save(model(places=V), tmp_path / "square.onnx")
    np.savez(tmp_path / "rows.npz", X=X, y=LABELS)
    np.savez(tmp_path / "square.npz", X=X[:, :V], y=LABELS[:, :V])

    def run(*arguments):
        return CliRunner().invoke(app, [str(a) for a in arguments])

    common = ["--target", "y", "--loss", "cross_entropy", "--json"]
    found = run("evaluate", tmp_path / "m.onnx", "--data", tmp_path / "rows.npz", *common)
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["loss"] == pytest.approx(reference(), rel=1e-5)
    square = ["evaluate", tmp_path / "square.onnx", "--data", tmp_path / "square.npz", *common]
    failed = run(*square)
    assert failed.exit_code != 0
    assert "--class-axis" in failed.output
    found = run(*square, "--class-axis", "-1")
    expected = reference(X[:, :V], LABELS[:, :V])
    assert json.loads(found.stdout)["loss"] == pytest.approx(expected, rel=1e-5)
    trained = run(
        *("train", tmp_path / "square.onnx", "--data", tmp_path / "square.npz", "--target", "y"),
        *(
            "--loss",
            "cross_entropy",
            "--class-axis",
            "-1",
            "--epochs",
            "2",
            "-o",
            tmp_path / "o.onnx",
        ),
    )
    assert trained.exit_code == 0, trained.output
    assert (
        "--class-axis"
        in run(
            "train",
            tmp_path / "m.onnx",
            "--data",
            tmp_path / "rows.npz",
            "--target",
            "y",
            "--loss",
            "mse",
            "--class-axis",
            "1",
        ).output
    )


# Binary cross-entropy of one column.

BINARY = """<ir_version: 8, opset_import: ["" : 17]>
main (float[N, 3] X) => (float[N, 1] Y) <float[3, 1] w = {0.5, -1, 0.25}>
{ s = MatMul (X, w)  Y = Sigmoid (s) }"""
ROWS = X.reshape(-1, D)
Z = (ROWS.astype(float) @ np.array([[0.5], [-1], [0.25]]))[:, 0]
HARD = (RNG.random(len(Z)) < 0.5).astype(float)
FRACTIONS = RNG.random(len(Z))


def binary_loss(t):
    return float((np.log1p(np.exp(Z)) - t * Z).mean())


@pytest.mark.parametrize("loss", ["bce", "auto", "log_loss"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32, bool])
@pytest.mark.parametrize("column", [False, True])
def test_class_numbers_of_any_type_in_a_step(loss, dtype, column):
    target = HARD.astype(dtype)
    target = target[:, None] if column else target
    session = og.TrainingSession(onnx.parser.parse_model(BINARY), loss)
    feeds = {"X": ROWS, "label": target}
    assert session.evaluate(feeds).loss == pytest.approx(binary_loss(HARD), rel=1e-5)
    assert session.evaluate(feeds).accuracy == pytest.approx(((Z > 0) == (HARD > 0)).mean())
    assert session.step(feeds) == pytest.approx(binary_loss(HARD), rel=1e-5)


@pytest.mark.parametrize(
    "loss", ["bce", "auto", "log_loss", og.losses.BinaryCrossEntropy(soft_targets=True)]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("column", [False, True])
def test_soft_targets_of_one_column(loss, dtype, column):
    target = FRACTIONS.astype(dtype)
    target = target[:, None] if column else target
    expected = binary_loss(FRACTIONS)
    parsed = onnx.parser.parse_model(BINARY)
    session = og.TrainingSession(parsed, loss)
    assert session.step({"X": ROWS, "label": target}) == pytest.approx(expected, rel=1e-5)
    session.step({"X": ROWS, "label": HARD})  # 0 and 1 are fractions as well
    trainer = og.Trainer(parsed, loss, "sgd", lr=1e-30)
    trainer.fit(ROWS, target, validation=(ROWS, target), epochs=1, verbose=0)
    assert trainer.history["val_loss"][-1] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(og.DataError, match="from 0 to 1"):
        og.TrainingSession(parsed, loss).step({"X": ROWS, "label": target + 1.5})


def test_soft_targets_in_files():
    loss = og.losses.BinaryCrossEntropy(soft_targets=True)
    with_loss = og.add_loss(onnx.parser.parse_model(BINARY), loss, keep_outputs=False)
    run = onnxruntime.InferenceSession(with_loss.SerializeToString()).run
    target = FRACTIONS.astype(np.float32)[:, None]
    assert run(None, {"X": ROWS, "label": target})[0] == pytest.approx(
        binary_loss(FRACTIONS), rel=1e-5
    )


def test_several_outputs_say_how_to_choose_a_loss():
    two = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[N, 2] X, float[N, 1] t) => (float loss, float[N, 1] logits)
        <float[2, 1] w = {0.5, -1}>
        { logits = MatMul (X, w)  d = Sub (logits, t)  e = Mul (d, d)
          loss = ReduceMean <keepdims = 0> (e) }"""
    )
    with pytest.raises(og.ModelError, match="output:loss"):
        og.TrainingSession(two)
    feeds = {"X": np.ones((4, 2), np.float32), "t": np.zeros((4, 1), np.float32)}
    assert og.TrainingSession(two, "output:loss").step(feeds) == pytest.approx(0.25)
