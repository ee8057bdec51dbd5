"""Messages for typical mistakes: what, where (file, line, column, cell), and what to do.

Options are spelled as on the command line, or as in Python.
"""

import pickle
import warnings

import numpy as np
import onnx
import onnx.parser
import pytest
from typer.testing import CliRunner

import onnxgrad as og
from onnxgrad import cli
from onnxgrad.cli.spelling import Spelling, spell_options

HEADER = '<ir_version: 10, opset_import: ["" : 18]>\n'
LINEAR = """m (float[N,2] x) => (float[N,1] y) <float[2,1] w = {0.1, 0.2}, float[1] b = {0}>
{ h = MatMul(x, w)
  y = Add(h, b) }"""
CLASSES = """m (float[N,2] x) => (float[N,3] p)
<float[2,3] w = {0.1,0.2,0.3,-0.1,0.2,0}, float[3] b = {0,0,0}>
{ h = MatMul(x, w)
  s = Add(h, b)
  p = Softmax(s) }"""
TWO_INPUTS = """m (float[N,1] a, float[N,1] b) => (float[N,1] y) <float[1,1] w = {0.1}>
{ c = Sub(a, b)
  y = MatMul(c, w) }"""
MODELS = {
    "linear.onnx": LINEAR,
    "classes.onnx": CLASSES,
    "two.onnx": TWO_INPUTS,
    "no_weight.onnx": "m (float[N,2] x) => (float[N,2] y) { y = Relu(x) }",
    "flat.onnx": """m (float[N,2] x) => (float[N,1] y) <float[2,1] w = {0.1, 0.2}>
        { h = MatMul(x, w)
          y = Sign(h) }""",
    "nonzero.onnx": """m (float[N,2] x) => (float[M,1] y) <float[2,1] w = {0.1, 0.2}>
        { h = MatMul(x, w)
          z = NonZero(h)
          t = Transpose(z)
          c = Cast <to = 1> (t)
          axes = Constant <value = int64[1] {1}> ()
          y = ReduceSum(c, axes) }""",
    "dead.onnx": """m (float[N,2] x) => (float[N,1] y)
        <float[2,3] w = {0,0,0,0,0,0}, float[3] b = {-9,-9,-9}, float[3,1] v = {1,1,1}>
        { h = MatMul(x, w)
          s = Add(h, b)
          r = Relu(s)
          y = MatMul(r, v) }""",
}
ROWS = [["0.5", "1.5", "2"], ["1.25", "-1", "1"], ["3", "0.25", "0"], ["-2", "1", "1"]] * 5


def model(name):
    return onnx.parser.parse_model(HEADER + MODELS[name])


def table(row=None, column=None, cell="", header="a,b,y"):
    """The text of a CSV file; one cell, of a row counted from 0, may be another."""
    rows = [list(cells) for cells in ROWS]
    if row is not None:
        rows[row][column] = cell
    return "\n".join([header, *(",".join(cells) for cells in rows)]) + "\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name in MODELS:
        onnx.save(model(name), folder / name)
    return folder


@pytest.fixture
def command(models, tmp_path, monkeypatch):
    """Runs the command line in a folder with data.csv; returns status and standard error."""
    monkeypatch.chdir(tmp_path)

    def run(text, *arguments):
        (tmp_path / "data.csv").write_text(text, encoding="utf-8")
        named = [str(models / one) if one in MODELS else str(one) for one in arguments]
        result = CliRunner().invoke(cli.app, named)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stderr

    return run


TRAIN = ["--data", "data.csv", "--target", "y", "-o", "out.onnx", "--epochs", 1, "-q"]
GONE = "leave the column out: --ignored a."

# Name: (model, CSV text, further options, what is said).
MISTAKES = {
    "text in the target": (
        "linear.onnx",
        table(5, 2, "n/a"),
        [],
        ["line 7, column 'y'", "'n/a'", "not a number", "data.csv", "remove their rows"],
    ),
    "decimal comma": (
        "linear.onnx",
        table(2, 0, '"3,5"'),
        [],
        ["line 4, column 'a'", "'3,5' is not a number", "Write it with a decimal point: 3.5."],
    ),
    "decimal commas everywhere": (
        "linear.onnx",
        "a;b;y\n" + "0,5;1,5;2,0\n" * 9,
        ["--delimiter", ";"],
        ["line 2, column 'a'", "'0,5'", "Write it with a decimal point: 0.5."],
    ),
    "semicolons": ("linear.onnx", "a;b;y\n1;2;3\n", [], ["give --delimiter ';'"]),
    "tabs": ("linear.onnx", "a\tb\ty\n1\t2\t3\n", [], ["give --delimiter '\\t'"]),
    "thousands": (
        "linear.onnx",
        table(3, 0, '"1,234.5"'),
        [],
        ["line 5, column 'a'", "without thousands separators: 1234.5"],
    ),
    "percent": ("linear.onnx", table(3, 0, "12%"), [], ["line 5", "'12%'", "percent sign"]),
    "date": ("linear.onnx", table(0, 0, "2024-01-05"), [], ["line 2", "days since", GONE]),
    "category": ("linear.onnx", table(0, 0, "red"), [], ["line 2", "'red'", "encoding", GONE]),
    "empty cell": (
        "linear.onnx",
        table(4, 1),
        [],
        ["line 6, column 'b'", "an empty cell", "--allow-nan"],
    ),
    "empty cell behind a blank line": (
        "linear.onnx",
        table(4, 1).replace("\n0.5", "\n\n0.5", 1),
        [],
        ["line 7, column 'b'"],
    ),
    "empty cell of the target": (
        "linear.onnx",
        table(4, 2),
        [],
        ["line 6, column 'y'", "the target has NaN or an empty cell", "Remove or fill such rows."],
    ),
    "fractions for classes": (
        "classes.onnx",
        table(3, 2, "0.25"),
        [],
        ["line 5, column 'y'", "0.25", "takes class labels", "0 to 2", "--loss squared_error"],
    ),
    "classes from 1": (
        "classes.onnx",
        table().replace(",2\n", ",3\n").replace(",1\n", ",2\n").replace(",0\n", ",1\n"),
        [],
        ["class number 3 in line 2", "subtract 1"],
    ),
    "class without a score": (
        "classes.onnx",
        table(6, 2, "7"),
        [],
        ["class number 7 in line 8, column 'y'", "0 to 2"],
    ),
    "unknown column": (
        "linear.onnx",
        table(6, 1, "-3"),
        ["--sample-weight", "b", "--ignored", "q"],
        ["no column 'q'", "'a', 'b', 'y'"],
    ),
    "too few columns": (
        "linear.onnx",
        "a,y\n1,2\n",
        [],
        ["has 1 column, but the model reads 2", "Columns: 'a'."],
    ),
    "too many columns": (
        "linear.onnx",
        "a,b,c,y\n1,2,3,4\n",
        [],
        ["has 3 columns, but the model reads 2", "Columns: 'a', 'b', 'c'.", "--ignored"],
    ),
    "a column that is another": (
        "two.onnx",
        "a,c,y\n1,2,3\n",
        [],
        ["no column for the model's input 'b'", "has 'a', 'c', 'y'"],
    ),
    "all frozen": (
        "linear.onnx",
        table(),
        ["--frozen", "*"],
        ["all candidates are frozen by '*'", "'w', 'b'", "Give --frozen fewer weights"],
    ),
    "no weight": ("no_weight.onnx", table(), [], ["the model has no weight to train"]),
    "a slope of zero": (
        "flat.onnx",
        table(),
        [],
        ["the gradient of all weights is zero", "Sign node of 'y'"],
    ),
    "NonZero": ("nonzero.onnx", table(), [], ["gradient of all weights is zero", "NonZero"]),
    "metrics of nothing": (
        "linear.onnx",
        table(),
        ["--metrics", "r2"],
        ["Give --validation 0.1"],
    ),
    "no epochs": ("linear.onnx", table(), ["--epochs", "-1"], ["--epochs: -1, expected"]),
    "no rows in a batch": ("linear.onnx", table(), ["--batch-size", 0], ["--batch-size: 0"]),
    "unknown optimizer": (
        "linear.onnx",
        table(),
        ["--optimizer", "adamm"],
        ["--optimizer: unknown 'adamm'", "Did you mean 'adam'?"],
    ),
    "option of a schedule": (
        "linear.onnx",
        table(),
        ["--schedule", "step:every=0"],
        ["--schedule step: every: 0, expected an integer of at least 1"],
    ),
    "option of a penalty": (
        "linear.onnx",
        table(),
        ["--penalty", "l2=x"],
        ["--penalty: l2: 'x', expected a number"],
    ),
    "unknown scheme": (
        "linear.onnx",
        table(),
        ["--init", "he"],
        ["--init: unknown 'he'", "'he_uniform'"],
    ),
    "loss by another name": (
        "linear.onnx",
        table(),
        ["--loss", "softmax_crossentropi"],
        ["--loss: unknown", "Did you mean 'softmax_cross_entropy'?"],
    ),
    "a loss of another kind": (
        "classes.onnx",
        table(),
        ["--loss", "softmax_cross_entropy:output=p"],
        ["comes after a Softmax", "Apply it to 's'"],
    ),
}


@pytest.mark.parametrize("stream", [False, True], ids=["memory", "chunks"])
@pytest.mark.parametrize("case", MISTAKES)
def test_the_command_line_says_what_is_wrong(command, case, stream):
    name, text, options, expected = MISTAKES[case]
    status, said = command(text, "train", name, *TRAIN, *options, *["--stream"] * stream)
    assert status in (2, 3, 4), said
    for words in expected:
        assert words in said
    for words in ("array.", "Trainer", "row 0", "=0.", "True", "In graph ''"):
        assert words not in said


@pytest.mark.parametrize("stream", [[], ["--stream"]], ids=["memory", "chunks"])
def test_validation_rows_are_named(command, tmp_path, stream):
    (tmp_path / "held_out.csv").write_text(table(3, 1), encoding="utf-8")
    options = ["--validation", "held_out.csv", *stream]
    status, said = command(table(), "train", "linear.onnx", *TRAIN, *options)
    assert status == 4
    assert "line 5 of the validation rows, column 'b'" in said
    assert "held_out.csv" in said


def test_nan_is_allowed_if_requested(command):
    options = ["--allow-nan", "--non-finite", "stop"]
    status, said = command(table(4, 1), "train", "linear.onnx", *TRAIN, *options)
    assert status == 0, said


def test_options_by_other_names_get_a_suggestion(command):
    for given, meant in {
        "--learning-rate": "--lr",
        "--n-epochs": "--epochs",
        "--random-state": "--seed",
        "--validation-split": "--validation",
        "--sep": "--delimiter",
        "--batchsize": "--batch-size",
    }.items():
        status, said = command(table(), "train", "linear.onnx", *TRAIN, given, 1)
        assert status == 2
        assert f"Possible options: {meant}" in said or f"Did you mean {meant}" in said


def test_no_line_of_source_before_a_message(command):
    status, said = command("a,b,y\n", "train", "linear.onnx", *TRAIN)
    assert status == 4
    assert said.startswith("DataError: data.csv: no rows below the header")
    options = [one for one in TRAIN if one != "-q"]
    _, said = command(table(), "train", "classes.onnx", *options)
    assert "warning: classes with fewer than 10 rows: 2 has 5" in said or "warning:" in said
    assert "DataWarning" not in said
    assert ".py" not in said


def test_unicode_text_and_spreadsheets_are_recognised(command, tmp_path):
    arguments = ["train", "linear.onnx", "--data", "other.csv", "--target", "y", "-o", "o.onnx"]
    (tmp_path / "other.csv").write_text(table(), encoding="utf-16")
    assert "It is UTF-16" in command("", *arguments)[1]
    (tmp_path / "other.csv").write_bytes(b"PK\x03\x04\xff\xfe\x80")
    assert "It is a spreadsheet" in command("", *arguments)[1]


def test_predict_says_which_columns_it_reads(command):
    status, said = command("a,y\n1,2\n", "predict", "linear.onnx", "--data", "data.csv")
    assert status == 0
    assert "input 'x' reads the columns 'a', 'y'" in said
    status, said = command("a,y\n1,2\n", "predict", "two.onnx", "--data", "data.csv")
    assert status == 4
    assert "no column for the model's input 'b'" in said
    status, said = command(table(3, 1), "predict", "linear.onnx", "--data", "data.csv")
    assert "Columns: 'a', 'b', 'y'." in said
    status, said = command(
        table(3, 1), "predict", "linear.onnx", "--data", "data.csv", "--ignored", "y"
    )
    assert "NaN or an empty cell in line 5, column 'b'" in said


def gzipped(data):
    import gzip

    return gzip.compress(data)


def array_file(**arrays):
    import io

    buffer = io.BytesIO()
    np.savez(buffer, **arrays) if arrays else np.save(buffer, np.ones(3))
    return buffer.getvalue()


NO_MODELS = {
    "rows.csv": (table().encode(), "text whose first line is 'a,b,y'"),
    "model.json": (b'{"layers": []}', "text whose first line is"),
    "page.onnx": (b"<!DOCTYPE html><html></html>", "a web page"),
    "pointer.onnx": (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
    "x.npy": (array_file(), "a NumPy array"),
    "x.npz": (array_file(x=np.ones(3)), "a zip archive"),
    "m.onnx.gz": (gzipped(b"model"), "compressed with gzip"),
    "m.h5": (b"\x89HDF\r\n\x1a\n" + bytes(64), "an HDF5 file"),
    "m.pkl": (pickle.dumps({"a": 1}), "a pickle"),
    "m.safetensors": (b"\x10" + bytes(7) + b'{"w":{"dtype":""}}', "safetensors"),
    "umlaut.txt": (("ä" * 100).encode(), "text whose first line is 'ää"),
    "cut.onnx": (onnx.parser.parse_model(HEADER + LINEAR).SerializeToString()[:-9], ""),
}


@pytest.mark.parametrize("name", NO_MODELS)
def test_files_that_are_not_models_are_identified(name, command, tmp_path, monkeypatch):
    from onnxgrad.compat.models import load_proto
    from onnxgrad.compat.onnxruntime.training.artifacts import generate_artifacts

    content, said = NO_MODELS[name]
    (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    calls = (
        og.InferenceSession,
        og.Trainer,
        og.gradient,
        lambda path: og.InferenceSession(content),
        load_proto,
        lambda path: generate_artifacts(path, ["w"]),
    )
    for call in calls:
        with pytest.raises(og.ModelError) as info:
            call(name)
        text = str(info.value)
        assert said in text
        assert not said or "wire type" not in text
        assert not said or "this is not an ONNX model but" in text
    status, text = command(table(), "report", name)
    assert status == 3
    assert said in text


def test_arguments_of_estimators_get_a_suggestion():
    from onnxgrad.sklearn import OnnxClassifier, OnnxRegressor

    for estimator in (OnnxClassifier, OnnxRegressor):
        for given, meant in {
            "learningrate": "lr",
            "epochs": "max_iter",
            "seed": "random_state",
            "hidden_layers_sizes": "hidden_layer_sizes",
        }.items():
            with pytest.raises(og.OptionError) as info:
                estimator(**{given: 1})
            assert f"{estimator.__name__} has no argument '{given}'" in str(info.value)
            assert f"Did you mean '{meant}'?" in str(info.value)
    assert OnnxRegressor(lr=0.5).get_params()["lr"] == 0.5


@pytest.mark.parametrize(
    ("option", "needed", "adds"),
    [
        (["--keep", 0], "a run folder", ["--keep", 2, "--run-dir", "run"]),
        (["--checkpoint-every", 5], "a run folder", ["--checkpoint-every", 5, "--run-dir", "run"]),
        (["--validation-every", 2], "a validation", ["--validation-every", 2, "--validation", 0.5]),
    ],
)
def test_options_without_effect_are_refused(option, needed, adds, command):
    status, said = command(table(), "train", "linear.onnx", *TRAIN, *option)
    assert status == 2
    assert f"{option[0]} has no effect without {needed}" in said
    status, said = command(table(), "train", "linear.onnx", *TRAIN, *adds)
    assert status == 0, said


def test_gradients_of_zero_are_reported(command):
    status, said = command("", "gradient", "flat.onnx", "-o", "grad.onnx")
    assert status == 0
    assert "the gradient of 'w' is zero for all inputs" in said
    with pytest.warns(UserWarning, match="gradient of 'w' is zero"):
        og.gradient(model("flat.onnx"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        og.gradient(model("linear.onnx"))


TWO_OUTPUTS = """m (float[N,2] x) => (float[N,1] y) <float[2,1] w = {1, 2}, float[2,1] v = {1, 2}>
    { y = MatMul(x, w)
      z = MatMul(x, v) }"""


@pytest.mark.parametrize(
    ("wrt", "said"),
    [(None, False), (["w"], False), (["w", "v"], True), (["v"], True)],
)
def test_gradients_of_zero_are_reported_consistently(wrt, said, command, tmp_path):
    """In Python and on the command line: those requested by name, and all of them."""
    onnx.save(onnx.parser.parse_model(HEADER + TWO_OUTPUTS), tmp_path / "m.onnx")
    text = "the gradient of 'v' is zero for all inputs"
    options = [item for name in wrt or () for item in ("--wrt", name)]
    assert (text in command("", "gradient", "m.onnx", "-o", "g.onnx", *options)[1]) == said
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        og.gradient(tmp_path / "m.onnx", wrt)
    assert any(text in str(one.message) for one in caught) == said


def test_weights_that_do_not_change_are_reported():
    X, y = np.ones((8, 2), np.float32), np.ones((8, 1), np.float32)
    trainer = og.Trainer(model("dead.onnx"), optimizer="sgd", lr=0.1)
    with pytest.warns(UserWarning, match="no weight has changed in epoch 1: 'w', 'b', 'v'") as seen:
        trainer.fit(X, y, epochs=2, verbose=0)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        og.Trainer(model("linear.onnx")).fit(X, y, epochs=2, verbose=0)


# ----------------------------------------------------------------------------------------- Python

X = np.array([[0.5, 1.5], [1.25, -1], [3, 0.25], [-2, 1]], np.float32)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (np.array(["1", "2", "n/a", "3"]), "the target has 'n/a' in row 2, which is not a number"),
        (np.array(["1", "2", "3", "3"]), "the target has strings, expected float32"),
        (np.array([1, np.nan, 1, 1]), "the target has NaN in row 1"),
    ],
)
def test_targets_in_python(y, words):
    with pytest.raises(og.DataError, match=words) as caught:
        og.Trainer(model("linear.onnx")).fit(X, y, verbose=0)
    assert "allow_nan" not in str(caught.value)


def test_python_messages_use_python_spelling():
    y = np.ones(4, np.float32)
    trainer = og.Trainer(model("linear.onnx"))
    with pytest.raises(og.DataError, match=r"'x' has NaN in row 1, column 0\n.*allow_nan=True"):
        trainer.fit(np.where(X == 1.25, np.nan, X), y, verbose=0)
    with pytest.raises(og.DataError, match=r"NaN in row 1 of the validation rows, column 0"):
        trainer.fit(X, y, validation=(np.where(X == 1.25, np.nan, X), y), verbose=0)
    with pytest.raises(og.DataError, match="It seems to be transposed"):
        trainer.fit(X.T, y, verbose=0)
    with pytest.raises(og.DataError, match=r"the loss .* takes class labels"):
        og.Trainer(model("classes.onnx")).fit(X, y + 0.5, verbose=0)
    with pytest.raises(og.ModelError, match="Give frozen= fewer weights"):
        og.Trainer(model("linear.onnx"), frozen="*")


def test_columns_of_tables_have_their_names():
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"a": [1.0, 2.0], "b": [1.0, float("nan")], "y": [1.0, 2.0]})
    trainer = og.Trainer(model("linear.onnx"))
    with pytest.raises(og.DataError, match="'x' has NaN in row 1, column 'b'"):
        trainer.fit(table, "y", verbose=0)
    with pytest.raises(og.DataError, match="the target has NaN in row 1, column 'b'"):
        trainer.fit(table.rename_columns(["a", "b", "c"]), "b", verbose=0)
    texts = pa.table({"a": [1.0, 2.0], "b": ["1", "2,5"], "y": [1.0, 2.0]})
    with pytest.raises(og.DataError, match=r"'b' has strings \('2,5' in row 1\)[^|]*2\.5"):
        trainer.fit(texts, "y", verbose=0)
    two = og.Trainer(model("two.onnx"))
    with pytest.raises(og.DataError, match="no column for the model's input 'b'"):
        two.fit(pa.table({"a": [1.0], "z": [1.0], "y": [1.0]}), "y", verbose=0)


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda: og.Trainer(model("linear.onnx"), learning_rate=0.1), "lr"),
        (lambda: og.Trainer(model("linear.onnx"), optimiser="sgd"), "optimizer"),
        (lambda: og.Trainer(model("linear.onnx")).fit(X, X[:, :1], n_epochs=1), "epochs"),
        (lambda: og.TrainingSession(model("linear.onnx"), criterion="mse"), "loss"),
        (lambda: og.InferenceSession(model("linear.onnx"), n_jobs=1), "threads"),
        (lambda: og.gradient(model("linear.onnx"), with_respect_to=["w"]), None),
        (lambda: og.add_loss(model("linear.onnx"), label="t"), "target"),
        (lambda: og.ForwardBackward(model("linear.onnx"), fixed="w"), "frozen"),
        (lambda: og.optimizers.Adam(learning_rate=0.1), "lr"),
    ],
)
def test_misspelt_arguments(call, meant):
    with pytest.raises(og.OptionError) as caught:
        call()
    assert isinstance(caught.value, TypeError)
    assert meant is None or f"Did you mean '{meant}'?" in str(caught.value)


def test_arrays_in_place_of_options():
    y = np.ones((4, 1), np.float32)
    trainer = og.Trainer(model("linear.onnx"))
    with pytest.raises(og.OptionError, match=r"one ndarray, expected \(X, y\)"):
        trainer.fit(X, y, validation=X, verbose=0)
    with pytest.raises(og.OptionError, match="1 arrays, expected"):
        trainer.fit(X, y, validation=(X,), verbose=0)
    with pytest.raises(og.OptionError, match="epochs: of type ndarray, expected an integer"):
        trainer.fit(X, y, epochs=np.ones((9, 9)), verbose=0)
    with pytest.raises(og.OptionError, match="Give all inputs together"):
        og.ForwardBackward(model("two.onnx")).forward(X[:, :1], X[:, :1])


def test_losses_and_optimizers_take_options_as_text():
    assert og.losses.as_loss("huber:delta=2") == og.losses.Huber(delta=2)
    assert og.losses.as_loss("output:a,b") == og.losses.Output("a,b")
    assert og.losses.as_loss("output:a,b,reduction=sum") == og.losses.Output("a,b", reduction="sum")
    described = og.optimizers.as_optimizer("sgd:momentum=0.9,nesterov=true")
    assert described == og.optimizers.SGD(momentum=0.9, nesterov=True)


def test_missing_external_data_says_where_it_is_looked_for(tmp_path):
    proto = model("linear.onnx")
    proto.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(np.zeros((2, 1), np.float32), "w")
    )
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="w.data", size_threshold=0)
    (tmp_path / "w.data").unlink()
    with pytest.raises(og.ModelError) as caught:
        og.Trainer(path)
    said = str(caught.value)
    assert "cannot open its external data 'w.data'" in said
    assert "relative to the folder of the model" in said
    assert f"Put the file into '{tmp_path}'" in said


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Give validation=0.1, or none.", "Give --validation 0.1, or none."),
        ("Name weights with trainable=.", "Name weights with --trainable."),
        ("loss='output:NAME'.", "--loss output:NAME."),
        ("Leave shuffle=False; or allow_nan=True.", "Leave --no-shuffle; or --allow-nan."),
        ("batch_size is 0 in 'batch_size=1'", "--batch-size is 0 in 'batch_size=1'"),
        ("ignored='a b'", "--ignored 'a b'"),
        ("data_lr=1 x.loss=2 runs/batch_size.csv", "data_lr=1 x.loss=2 runs/batch_size.csv"),
        ("momentum=0.9", "momentum=0.9"),
        ("loss={'a': 1} or loss='a:lr=1'", "loss={'a': 1} or --loss a:lr=1"),
        ("open_batch=False. Omit open_batch=True.", "--open-batch off. Omit --open-batch on."),
    ],
)
def test_spelling_of_options(text, shown):
    names = ("validation", "trainable", "loss", "allow_nan", "batch_size", "ignored", "lr")
    options = {name: Spelling("--" + name.replace("_", "-")) for name in names}
    options["shuffle"] = Spelling("--shuffle", "--no-shuffle")
    options["open_batch"] = Spelling("--open-batch", takes_value=True)
    assert spell_options(text, options) == shown
