"""Names, classes and functions as PyTorch, Keras and pandas spell them, and advice about them."""

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx import parser
from typer.testing import CliRunner

import onnxgrad as og
from onnxgrad.base.engine_options import training_mode_of
from onnxgrad.cli import app

MODEL = """
<ir_version: 10, opset_import: ["": 21]>
linear (float[N, 2] x) => (float[N, 2] scores)
<float[2, 2] w = {0.1, -0.2, 0.3, 0.4}> { scores = MatMul(x, w) }
"""


@pytest.fixture
def model():
    return parser.parse_model(MODEL)


def rows(count=40):
    x = np.random.default_rng(0).normal(size=(count, 2)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("CrossEntropyLoss", "softmax_cross_entropy"),
        ("sparse_categorical_crossentropy", "softmax_cross_entropy"),
        ("crossentropyloss", "softmax_cross_entropy"),
        ("MSELoss", "squared_error"),
        ("mean_squared_error", "squared_error"),
        ("L1Loss", "absolute_error"),
        ("SmoothL1Loss", "smooth_l1"),
        ("BCEWithLogitsLoss", "binary_cross_entropy"),
        ("binary_crossentropy", "binary_cross_entropy"),
        ("BCELoss", "log_loss"),
        ("KLDivLoss", "kl_divergence"),
        ("PoissonNLLLoss", "poisson"),
    ],
)
def test_losses(model, name, same):
    assert og.losses.from_name(name) == og.losses.from_name(same)
    assert og.Trainer(model, name).session.loss_line.startswith("loss: ")


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("CosineAnnealingLR", "cosine"),
        ("ReduceLROnPlateau", "plateau"),
        ("StepLR", "step"),
        ("OneCycleLR", "one_cycle"),
        ("ExponentialDecay", "exponential"),
        ("warmup-cosine", "warmup_cosine"),
    ],
)
def test_schedules(name, same):
    assert og.schedules.from_name(name) == og.schedules.from_name(same)


def test_classes_are_instantiated(model):
    trainer = og.Trainer(model, og.losses.SquaredError, og.optimizers.RMSProp)
    assert trainer.session.loss_name == "squared_error"
    assert trainer.session.optimizer == og.optimizers.RMSProp()
    assert og.Trainer(model, optimizer="RMSprop").session.optimizer == og.optimizers.RMSProp()
    x, _ = rows()
    trainer.fit(x, x, epochs=2, validation=0.5, callbacks=[og.callbacks.EarlyStopping], verbose=0)
    trainer.fit(x, x, epochs=1, early_stopping=og.callbacks.EarlyStopping, verbose=0)
    with pytest.raises(og.OptionError, match=r"Give an object: Checkpoint\(\.\.\.\)"):
        trainer.fit(x, x, callbacks=[og.callbacks.Checkpoint])


def test_a_function_or_a_model_is_a_loss(model):
    x, _ = rows()

    def squared(scores, target):
        xp = scores.__array_namespace__()
        return xp.mean((scores - target) ** 2, axis=1)

    as_model = parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21]>
        loss (float[N, K] s, float[N, K] t) => (float l) {
            d = Sub(s, t)  e = Mul(d, d)  l = ReduceMean<keepdims = 0>(e)
        }""")
    wanted = og.Trainer(model, "mse", "sgd").fit(x, x, epochs=2, verbose=0).history["train_loss"]
    for loss in (squared, as_model):
        found = og.Trainer(model, loss, "sgd").fit(x, x, epochs=2, verbose=0).history["train_loss"]
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: og.optimizers.Adam(betas=(0.9, 0.99)), "give beta1=a and beta2=b"),
        (lambda: og.optimizers.Adam(eps=1e-8), "Did you mean 'epsilon'"),
        (lambda: og.Trainer(parser.parse_model(MODEL), lr="auto"), "lr_find"),
        (lambda: og.Trainer(parser.parse_model(MODEL), device="cuda"), "use device='cpu'"),
        (lambda: og.Trainer(object()), "is not a model"),
        (
            lambda: og.Trainer(type("Net", (), {"state_dict": 1, "forward": 1})()),
            "torch.onnx.export",
        ),
        (lambda: og.Trainer(type("Net", (), {"get_params": 1, "fit": 1})()), "skl2onnx.to_onnx"),
        (lambda: training_mode_of("of"), "'on', 'off'"),
        (lambda: og.Trainer(parser.parse_model(MODEL)).history.plot(), "no epochs to plot"),
    ],
)
def test_advice(call, advice):
    with pytest.raises(og.Error, match=r"(?s)" + advice):
        call()


def test_images_with_channels_last_are_recognized():
    conv = parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21]>
        conv (float[N, 3, 8, 6] x) => (float[N, 1] y) <float[1, 3, 8, 6] w> {
            c = Conv(x, w)  y = Flatten(c)
        }""")
    weight = onnx.numpy_helper.from_array(np.ones((1, 3, 8, 6), np.float32), "w")
    conv.graph.initializer.append(weight)
    x = np.ones((5, 8, 6, 3), np.float32)
    trainer = og.Trainer(conv, "mse")
    with pytest.raises(og.DataError, match=r"X\.transpose\(0, 3, 1, 2\)"):
        trainer.fit(x, np.ones((5, 1), np.float32), verbose=0)
    trainer.fit(x.transpose(0, 3, 1, 2), np.ones((5, 1), np.float32), epochs=1, verbose=0)


COLUMNS = """
<ir_version: 10, opset_import: ["": 21]>
columns (float[N, 1] body_mass__kg_, float[N, 1] age) => (float[N, 2] out)
<float[2, 2] w = {0.1, -0.2, 0.3, 0.4}> {
  x = Concat<axis = 1>(body_mass__kg_, age)
  out = MatMul(x, w)
}
"""


@pytest.fixture
def table(tmp_path):
    x, y = rows()
    frame = pd.DataFrame({"body mass (kg)": x[:, 0], "age": x[:, 1], "u": x[:, 0], "v": x[:, 1]})
    frame["sick"] = y
    return frame


@pytest.mark.parametrize("kind", ["frame", "csv", "parquet", "stream"])
def test_columns_feed_the_inputs_that_exporters_renamed(table, tmp_path, kind):
    table = table.drop(columns=["u", "v"])
    if kind == "frame":
        given = table
    else:
        given = str(tmp_path / f"rows.{'csv' if kind == 'stream' else kind}")
        table.to_parquet(given) if kind == "parquet" else table.to_csv(given, index=False)
    if kind == "stream":
        given = og.data.CsvFile(given, "sick")
    trainer = og.Trainer(parser.parse_model(COLUMNS), "CrossEntropyLoss", "sgd")
    history = trainer.fit(given, *(() if kind == "stream" else ("sick",)), epochs=2, shuffle=False,
                          verbose=0).history  # fmt: skip
    x = {"body_mass__kg_": table["body mass (kg)"].to_numpy(np.float32)[:, None],
         "age": table["age"].to_numpy(np.float32)[:, None]}  # fmt: skip
    same = og.Trainer(parser.parse_model(COLUMNS), "CrossEntropyLoss", "sgd")
    same.fit(x, table["sick"].to_numpy(), epochs=2, shuffle=False, verbose=0)
    np.testing.assert_allclose(history["train_loss"], same.history["train_loss"], rtol=1e-5)


def test_several_columns_are_a_target_and_a_table_is_a_validation(table):
    trainer = og.Trainer(parser.parse_model(COLUMNS), "mse", "sgd")
    rest = table.drop(columns="sick")
    trainer.fit(rest, ["u", "v"], validation=rest[:10], epochs=2, verbose=0)
    x = {"body_mass__kg_": rest["u"].to_numpy(np.float32)[:, None],
         "age": rest["v"].to_numpy(np.float32)[:, None]}  # fmt: skip
    y = rest[["u", "v"]].to_numpy(np.float32)
    same = og.Trainer(parser.parse_model(COLUMNS), "mse", "sgd")
    same.fit(x, y, validation=({name: value[:10] for name, value in x.items()}, y[:10]), epochs=2,
             verbose=0)  # fmt: skip
    for name in ("train_loss", "val_loss"):
        np.testing.assert_allclose(trainer.history[name], same.history[name], rtol=1e-5)


def test_files_without_a_header_and_targets_that_are_inputs(table, tmp_path):
    trainer = og.Trainer(parser.parse_model(COLUMNS), "CrossEntropyLoss")
    bare = tmp_path / "bare.csv"
    bare.write_text("1.5,Lyon,1\n2.5,Paris,0\n")
    with pytest.raises(og.DataError, match="It looks like data"):
        trainer.fit(og.data.CsvFile(str(bare), "1"), verbose=0)
    with pytest.raises(og.DataError, match="'age' is an input of the model"):
        trainer.fit(table[["body mass (kg)", "age"]], "age", verbose=0)
    named = tmp_path / "named.csv"
    table[["body mass (kg)", "age"]].to_csv(named, index=False)
    with pytest.raises(og.DataError, match="'age' is an input of the model"):
        trainer.fit(og.data.CsvFile(str(named), "age"), verbose=0)


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_truth_values_in_files_are_0_and_1(tmp_path, stream):
    """As inputs and as targets, in any spelling and beside 0 and 1."""
    rng = np.random.default_rng(0)
    flags, rest = rng.integers(0, 2, 60), rng.normal(size=60)
    labels = np.where(flags + rest > 0.5, 1, 0)
    words = np.array(["False", "True", "false", "TRUE", "0", "1"])
    spelled = words[labels + 2 * rng.integers(0, 3, 60)]
    onnx.save(parser.parse_model(COLUMNS), tmp_path / "m.onnx")
    losses = []
    for name, flag, label in (("words", words[flags], spelled), ("numbers", flags, labels)):
        frame = pd.DataFrame({"body_mass__kg_": flag, "age": rest, "sick": label})
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        done = CliRunner().invoke(
            app,
            ["train", str(tmp_path / "m.onnx"), "--data", str(tmp_path / f"{name}.csv"), "--target",
             "sick", "--loss", "CrossEntropyLoss", "--epochs", "2", "--history",
             str(tmp_path / f"{name}.h.csv"), "-o", str(tmp_path / f"{name}.onnx"), stream],
        )  # fmt: skip
        assert done.exit_code == 0, done.output
        losses.append(pd.read_csv(tmp_path / f"{name}.h.csv")["train_loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
