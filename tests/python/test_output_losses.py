"""Training models that have their loss already, against models whose loss we add."""

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import onnxgrad as og
from onnxgrad.losses import Output
from onnxgrad.optimizers import SGD
from support import initializers

TEXT = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (FLOAT[N, 2] X INPUTS) => (FLOAT[N, 1] Y OUTPUTS)
    <FLOAT[2, 1] coef = {0.5, -0.3}, FLOAT[1] intercept = {0.1}>
    { product = MatMul(X, coef)  Y = Add(product, intercept) LOSS }"""
SQUARES = "d = Sub(Y, label)  s = Mul(d, d)"


def model(loss="", inputs="", outputs="", element="float"):
    """Y = X coef + intercept, with further nodes."""
    text = TEXT.replace("LOSS", loss).replace("INPUTS", inputs).replace("OUTPUTS", outputs)
    return onnx.parser.parse_model(text.replace("FLOAT", element))


def with_mean(element="float"):
    return model(
        SQUARES + " loss = ReduceMean <keepdims = 0> (s)",
        ", FLOAT[N, 1] label",
        ", FLOAT loss",
        element,
    )


def with_sum(element="float"):
    """As onnxcustom's add_loss_output has it: first, of shape [1, 1], with weights of rows."""
    text = (
        TEXT.replace("INPUTS", ", FLOAT[N, 1] label, FLOAT[N, 1] weight")
        .replace("(FLOAT[N, 1] Y OUTPUTS)", "(FLOAT[1, 1] loss, FLOAT[N, 1] Y)")
        .replace("LOSS", SQUARES + " ws = Mul(s, weight)  loss = ReduceSum(ws)")
    )
    return onnx.parser.parse_model(text.replace("FLOAT", element))


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(53, 2))
    return X, X @ [[2.0], [-1.0]] + 0.5 + rng.normal(size=(53, 1)) / 10


def assert_same_weights(left, right, rtol=1e-12):
    for name, value in initializers(right).items():
        np.testing.assert_allclose(initializers(left)[name], value, rtol=rtol, err_msg=name)


@pytest.mark.parametrize("loss", ["output:loss", Output("loss")], ids=["name", "object"])
def test_mean_is_the_squared_error(loss, rows):
    own = og.Trainer(with_mean("double"), loss, "adam", lr=0.05)
    ours = og.Trainer(model(element="double"), "squared_error", "adam", lr=0.05)
    for trainer in (own, ours):
        trainer.fit(*rows, epochs=4, batch_size=10, validation=0.2, verbose=0)
    assert_same_weights(own.trained_model(), ours.trained_model())
    for name in ("train_loss", "val_loss"):
        np.testing.assert_allclose(own.history[name], ours.history[name], rtol=1e-12)
    assert own.evaluate(*rows).loss == pytest.approx(ours.evaluate(*rows).loss, rel=1e-12)
    np.testing.assert_allclose(own.predict(rows[0]), ours.predict(rows[0]), rtol=1e-12)
    assert own.session.loss_line == "loss: the model's own, 'loss'"
    # The file is as it was but for the weights: it still has its loss.
    (value,) = run(own.trained_model(), {"X": rows[0], "label": rows[1]}, ["loss"])
    assert value == pytest.approx(own.evaluate(*rows).loss, rel=1e-12)


def run(proto, feeds, names=None):
    return onnxruntime.InferenceSession(proto.SerializeToString()).run(names, feeds)


def test_sum_with_weights_of_rows(rows):
    X, y = rows
    weight = np.random.default_rng(2).uniform(0.5, 2, len(X))
    loss = Output("loss", sample_weight="weight", reduction="sum")
    own = og.Trainer(with_sum("double"), loss, "nesterov", lr=1e-3)
    ours = og.Trainer(
        model(element="double"), og.losses.SquaredError(reduction="sum"), "nesterov", lr=1e-3
    )
    for trainer in (own, ours):
        trainer.fit(X, y, weight, epochs=4, batch_size=10, verbose=0)
    assert_same_weights(own.trained_model(), ours.trained_model())
    before = [initializers(with_sum("double"))[name] for name in ("coef", "intercept")]
    first = og.Trainer(with_sum("double"), loss, "sgd", lr=0.0)
    first.fit(X, y, weight, epochs=1, batch_size=10, verbose=0)
    d = X @ before[0] + before[1] - y
    expected = np.sum(weight[:, None] * d * d) / len(X)  # the sum of all batches by their rows
    assert first.history["train_loss"] == [pytest.approx(expected, rel=1e-12)]
    # Without weights all rows count 1.
    first.fit(X, y, epochs=1, batch_size=10, verbose=0)
    assert first.history["train_loss"] == [pytest.approx(np.sum(d * d) / len(X), rel=1e-12)]


def test_loss_of_each_row(rows):
    proto = model(
        SQUARES + " loss = Identity(s)", ", FLOAT[N, 1] label", ", FLOAT[N, 1] loss", "double"
    )
    for reduction in ("mean", "sum"):
        own = og.Trainer(proto, Output("loss", reduction=reduction), "sgd", lr=1e-3)
        known = og.losses.SquaredError(reduction=reduction)
        ours = og.Trainer(model(element="double"), known, "sgd", lr=1e-3)
        for trainer in (own, ours):
            trainer.fit(*rows, epochs=3, batch_size=10, verbose=0)
        assert_same_weights(own.trained_model(), ours.trained_model())
        np.testing.assert_allclose(
            own.history["train_loss"], ours.history["train_loss"], rtol=1e-12
        )


def test_penalty_is_added(rows):
    penalty = {"coef": {"l2": 0.3}}
    own = og.Trainer(with_mean("double"), "output:loss", "sgd", lr=0.05, penalty=penalty)
    ours = og.Trainer(model(element="double"), "squared_error", "sgd", lr=0.05, penalty=penalty)
    for trainer in (own, ours):
        trainer.fit(*rows, epochs=3, batch_size=10, verbose=0)
    assert_same_weights(own.trained_model(), ours.trained_model())
    penalized = og.add_loss(with_mean("double"), "output:loss", penalty=penalty)
    coef = initializers(penalized)["coef"]
    feeds = {"X": rows[0], "label": rows[1]}
    names = [penalized.graph.output[0].name, "loss"]
    total, plain = run(penalized, feeds, names)
    assert total == pytest.approx(plain + 0.3 * np.sum(coef**2), rel=1e-12)


def test_a_target_of_another_name_and_none(rows):
    X, y = rows
    text = (
        TEXT.replace("INPUTS", ", double[N, 1] wanted")
        .replace("OUTPUTS", ", double loss")
        .replace("LOSS", "d = Sub(Y, wanted)  s = Mul(d, d)  loss = ReduceMean <keepdims = 0> (s)")
    )
    proto = onnx.parser.parse_model(text.replace("FLOAT", "double"))
    named = og.Trainer(proto, Output("loss", target="wanted"), "sgd", lr=0.05)
    named.fit(X, y, epochs=2, batch_size=10, verbose=0)
    bare = og.Trainer(proto, Output("loss"), "sgd", lr=0.05)
    bare.fit({"X": X, "wanted": y}, epochs=2, batch_size=10, verbose=0)
    assert_same_weights(bare.trained_model(), named.trained_model(), rtol=0)
    assert bare.history["train_loss"] == named.history["train_loss"]
    assert named.session.target_name == "wanted"
    assert bare.session.target_name == ""
    evaluated = bare.evaluate({"X": X, "wanted": y})
    assert evaluated.loss == pytest.approx(named.evaluate(X, y).loss, rel=1e-12)
    with pytest.raises(og.DataError, match="takes none"):
        bare.fit({"X": X, "wanted": y}, y, epochs=1, verbose=0)


def test_session_and_saved_step():
    session = og.TrainingSession(with_mean(), "output:loss", SGD(0.1), outputs=["Y"])
    file = og.training_step(with_mean(), "output:loss", SGD(0.1), inline=True)
    rng = np.random.default_rng(4)
    feeds = {
        "X": rng.normal(size=(6, 2)).astype(np.float32),
        "label": rng.normal(size=(6, 1)).astype(np.float32),
    }
    loss, (y,) = session.step(feeds)
    found = dict(
        zip(
            [output.name for output in file.graph.output],
            run(file, {**feeds, "learning_rate": np.array(0.1, np.float32)}),
            strict=True,
        )
    )
    assert loss == pytest.approx(np.mean((y - feeds["label"]) ** 2), rel=1e-6)
    np.testing.assert_allclose(found[file.graph.output[0].name], loss, rtol=1e-6)
    np.testing.assert_allclose(found["next/coef"], session.state()["coef"], rtol=1e-6)


def test_file_by_add_loss_is_trained(rows):
    """A file that add_loss wrote can be trained as it is."""
    X, y = (array.astype(np.float32) for array in rows)
    proto = og.add_loss(model(), og.losses.Huber(delta=0.5))
    own = og.Trainer(proto, "output:loss", "sgd", lr=0.05).fit(X, y, epochs=3, verbose=0)
    known = og.losses.Huber(delta=0.5)
    ours = og.Trainer(model(), known, "sgd", lr=0.05).fit(X, y, epochs=3, verbose=0)
    assert_same_weights(own.trained_model(), ours.trained_model(), rtol=1e-5)


def test_batches_without_targets(rows):
    X, y = rows
    batches = [{"X": X[i : i + 10], "label": y[i : i + 10]} for i in range(0, 50, 10)]
    options = {"schedule": og.schedules.Linear(end_factor=0.5)}  # which counts the rows
    apart = og.Trainer(with_mean("double"), Output("loss", target=""), "sgd", lr=0.05, **options)
    usual = og.Trainer(with_mean("double"), "output:loss", "sgd", lr=0.05, **options)
    for trainer in (apart, usual):
        trainer.fit(batches, epochs=2, verbose=0)
    pairs = [({"X": b["X"], "label": b["label"]}, None) for b in batches]
    paired = og.Trainer(with_mean("double"), Output("loss", target=""), "sgd", lr=0.05, **options)
    paired.fit(pairs, epochs=2, verbose=0)
    for trainer in (apart, paired):
        assert_same_weights(trainer.trained_model(), usual.trained_model(), rtol=0)
        assert trainer.history["train_loss"] == usual.history["train_loss"]


def test_text_of_the_command_line_and_run_folder(rows, tmp_path):
    for text in ("output:loss", "output:loss,reduction=sum,target=wanted"):
        assert og.losses.to_text(og.losses.from_text(text)) == text
    assert og.losses.to_text(Output("loss", target="")) is None
    trainer = og.Trainer(with_mean("double"), "output:loss", "sgd", lr=0.05)
    trainer.fit(*rows, epochs=1, verbose=0, run_dir=tmp_path / "run")
    written = "".join(path.read_text() for path in (tmp_path / "run").glob("*.toml"))
    assert '"output:loss"' in written


BAD = {
    "no such output": (Output("lost"), "lost"),
    "no such target": (Output("loss", target="labels"), "there is no input 'labels' for targets"),
    "no such weights": (Output("loss", sample_weight="w"), "there is no input 'w' for weights"),
    "no name": (Output(""), "no output is named"),
    "one number, no rows": (Output("loss", reduction="none"), "one loss for the batch"),
    "one of several": ({"loss": Output("loss"), "Y": "squared_error"}, "one of several"),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes_are_named(case):
    loss, message = BAD[case]
    with pytest.raises(og.ModelError, match=message):
        og.TrainingSession(with_mean(), loss)


def test_no_metrics(rows):
    trainer = og.Trainer(with_mean("double"), "output:loss")
    with pytest.raises(og.OptionError, match="the loss is the model's own"):
        trainer.fit(*rows, epochs=1, validation=0.2, metrics="mae", verbose=0)
