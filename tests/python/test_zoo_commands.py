"""The commands with an exported model of each kind: `train`, `predict`, `evaluate`, `check`, ...

What they write and print is compared with stock onnxruntime, or ONNX's reference evaluator, on the
files that they return, with NumPy, and with the gradients that PyTorch computes.
"""

import csv
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

import zoo
from command_line import run
from node_suite import all_cases
from reference_values import part
from support import initializers

Arrays = dict[str, np.ndarray]


class Kind(NamedTuple):
    model: str
    trains: bool = True  # by rows: the first axis of all inputs and of the label
    runtime: str = "stock"  # or "evaluator"
    tolerance: float = 1e-5
    passes_over_rounding: bool = False


KINDS = {
    "lstm": Kind("lstm_tagger_packed"),
    "gru": Kind("gru_forecast"),
    "states": Kind("lstm_with_states", trains=False),
    "while": Kind("scripted_while"),
    "loop": Kind("scripted_decoder", trains=False),
    "scan": Kind("selective_state_space", trains=False),
    "if": Kind("scripted_branches"),
    "resize": Kind("unet_bilinear"),
    "grid_sample": Kind("vit_with_grid_sample"),
    "experts": Kind("moe_top2_gather"),
    "data_dependent": Kind("moe_switch_nonzero"),
    "graph": Kind("graph_convolution", trains=False),
    "quantized": Kind("quantization_aware_training", passes_over_rounding=True),
    "q_linear": Kind("quantized_qlinear_convolutions", passes_over_rounding=True),
    "four_bits": Kind("four_bit_weights"),
    "float16": Kind("mlp_float16", tolerance=1e-2),
    "bfloat16": Kind("mlp_bfloat16", runtime="evaluator", tolerance=3e-2),
    "fused": Kind("bert_fused_by_onnxruntime"),
    "stft": Kind("log_mel_classifier"),
    "attention": Kind("attention_boolean_mask"),
}


def run_elsewhere(kind: Kind, model: Path, feeds: Arrays) -> Arrays:
    """The outputs of a file in another runtime, by name."""
    proto = onnx.load(model)
    names = [value.name for value in proto.graph.output]
    known = {value.name for value in proto.graph.input}
    if kind.runtime == "evaluator":
        session: Any = ReferenceEvaluator(proto)
    else:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        # Otherwise a product between quantizations is rounded once, not as the file says.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(model, options)
    given = {name: value for name, value in feeds.items() if name in known}
    return dict(zip(names, session.run(None, given), strict=True))


def inputs_of(kind: Kind, folder: Path) -> Arrays:
    """The inputs of the model; with the label they are in rows.npz too."""
    data = zoo.stored(kind.model)
    feeds = {key: data[f"in/{key}"] for key in zoo.ROWS[kind.model]["inputs"]}
    # NumPy's files have no bfloat16.
    rows = {k: v.astype(np.float32) if v.dtype.kind == "V" else v for k, v in feeds.items()}
    np.savez(folder / "rows.npz", **rows, label=data["in/label"])
    return feeds


def loss_options(kind: Kind) -> list[object]:
    loss = zoo.ROWS[kind.model]["loss"]
    if loss == "mse":
        return ["--loss", "squared_error"]
    axis = ["--class-axis", loss[1]] if loss[1] != 1 else []
    return ["--loss", "softmax_cross_entropy", *axis]


def loss_in_numpy(kind: Kind, outputs: Arrays) -> float:
    loss, label = zoo.ROWS[kind.model]["loss"], zoo.stored(kind.model)["in/label"]
    y = next(iter(outputs.values())).astype(np.float64)
    if loss == "mse":
        return float(((y - label) ** 2).mean())
    y = np.moveaxis(y, loss[1], -1)
    normalizer = np.log(np.exp(y).sum(-1))
    return float((normalizer - np.take_along_axis(y, label[..., None], -1)[..., 0]).mean())


@pytest.mark.parametrize("name", KINDS)
def test_predict(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    feeds, model = inputs_of(kind, tmp_path), zoo.ZOO / f"{kind.model}.onnx"
    run("predict", model, "--data", tmp_path / "rows.npz", "-o", tmp_path / "found.npz")
    wanted = run_elsewhere(kind, model, feeds)
    with np.load(tmp_path / "found.npz") as found:
        assert {*found.files} == {*wanted}
        for output, value in wanted.items():
            got = found[output]
            if got.dtype.kind == "V":  # bfloat16 in a file of NumPy's
                got = got.view(value.dtype)
            np.testing.assert_allclose(
                got.astype(float), value.astype(float), kind.tolerance, kind.tolerance
            )


TRAINED = [name for name, kind in KINDS.items() if kind.trains]


@pytest.mark.parametrize("name", TRAINED)
def test_train_and_evaluate(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    feeds, model = inputs_of(kind, tmp_path), zoo.ZOO / f"{kind.model}.onnx"
    rows, trained = tmp_path / "rows.npz", tmp_path / "trained.onnx"
    weights: list[object] = []
    for weight in zoo.weights_to_train(kind.model):
        weights += ["--trainable", weight]
    number = len(zoo.stored(kind.model)["in/label"])
    run(
        "train", model, "--data", rows, "--target", "label", *loss_options(kind), *weights,
        "--optimizer", "adam:lr=0.003", "--epochs", 4, "--batch-size", number, "-q",
        "-o", trained, "--history", tmp_path / "history.csv",
    )  # fmt: skip
    if name != "fused":  # the checker does not know com.microsoft
        onnx.checker.check_model(trained, full_check=True)
    losses = []
    for file in (model, trained):
        out, _ = run(
            "evaluate", file, "--data", rows, "--target", "label", *loss_options(kind), "--json"
        )
        losses.append(json.loads(out)["loss"])
        wanted = loss_in_numpy(kind, run_elsewhere(kind, file, feeds))
        np.testing.assert_allclose(losses[-1], wanted, rtol=10 * kind.tolerance)
    assert losses[1] < losses[0]
    with (tmp_path / "history.csv").open() as file:
        history = [float(row["train_loss"]) for row in csv.DictReader(file)]
    np.testing.assert_allclose(history[0], losses[0], rtol=kind.tolerance)
    report, _ = run("report", trained, "--before", model, "--json")
    assert json.loads(report)


@pytest.mark.parametrize("name", KINDS)
def test_check(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    inputs_of(kind, tmp_path)
    model, rows = zoo.ZOO / f"{kind.model}.onnx", tmp_path / "rows.npz"
    out, _ = run("check", model, "--data", rows, "--samples", 2)
    if kind.passes_over_rounding:  # differences say nothing of such gradients
        assert "passes over rounding" in out
        assert "could not be compared" in out.splitlines()[-1]
        return
    assert "are right" in out.splitlines()[-1]


WITH_GRADIENTS = [name for name, kind in KINDS.items() if part(zoo.stored(kind.model), "grad/")]


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_gradient(name: str, tmp_path: Path) -> None:
    """Compare gradients of the exporter's loss, added by training-info, with PyTorch's."""
    kind = KINDS[name]
    feeds, model = inputs_of(kind, tmp_path), zoo.ZOO / f"{kind.model}.onnx"
    weights = zoo.weights_to_train(kind.model)
    output = onnx.load(model).graph.output[0].name
    wrt = [argument for weight in weights for argument in ("--wrt", weight)]
    run("gradient", model, "-o", tmp_path / "gradient.onnx", "--of", output, *wrt)
    values = {**initializers(model), **feeds}
    dtype = values[weights[0]].dtype
    values[f"{output}_grad"] = zoo.derivative_of_loss(kind.model).astype(dtype)
    found = run_elsewhere(kind, tmp_path / "gradient.onnx", values)
    wanted = part(zoo.stored(kind.model), "grad/")
    largest = max(np.abs(wanted[weight]).max() for weight in weights)
    for weight in weights:
        difference = np.abs(found[f"{weight}_grad"].astype(float) - wanted[weight]).max()
        assert difference <= kind.tolerance * 3 * largest, weight


def test_a_described_training_is_that_of_the_options(tmp_path: Path) -> None:
    kind = KINDS["gru"]
    inputs_of(kind, tmp_path)
    model, rows = zoo.ZOO / f"{kind.model}.onnx", tmp_path / "rows.npz"
    loss = ["--loss", "squared_error", "--clip-norm", 0.5]
    run("training-info", model, *loss, "--optimizer", "adamw", "-o", tmp_path / "described.onnx")
    common = ["--data", rows, "--epochs", 3, "--batch-size", 3, "-q", "--threads", 1]
    run("train", tmp_path / "described.onnx", *common, "-o", tmp_path / "by_file.onnx")
    run(
        "train", model, *common, *loss, "--optimizer", "adamw", "--target", "label",
        "-o", tmp_path / "by_options.onnx",
    )  # fmt: skip
    found, wanted = (initializers(tmp_path / f"by_{way}.onnx") for way in ("file", "options"))
    assert any(
        np.abs(value - initializers(model)[name]).max() > 1e-3 for name, value in found.items()
    )
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6)


def columns_of_a_pipeline(folder: Path) -> Arrays:
    """Columns of text and of numbers, some of which are missing, also as rows.csv."""
    data = zoo.stored("sk_mlp_columns")
    feeds = {key: data[f"in/{key}"] for key in zoo.ROWS["sk_mlp_columns"]["inputs"]}
    label = data["in/label"]
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*feeds, "bought"])
        for row in zip(*(column[:, 0] for column in feeds.values()), label, strict=True):
            writer.writerow(["" if cell != cell else cell for cell in row])
    return feeds


def test_a_pipeline_with_missing_numbers_and_a_csv_file(tmp_path: Path) -> None:
    feeds = columns_of_a_pipeline(tmp_path)
    model, rows, trained = (
        zoo.ZOO / "sk_mlp_columns.onnx",
        tmp_path / "rows.csv",
        tmp_path / "trained.onnx",
    )
    label = zoo.stored("sk_mlp_columns")["in/label"]
    assert any(np.isnan(value.astype(float)).any() for key, value in feeds.items() if key == "age")
    data = ["--data", rows, "--target", "bought", "--allow-nan"]
    run("train", model, *data, "--epochs", 3, "-q", "-o", trained)
    losses = []
    for file in (model, trained):
        outputs = run_elsewhere(Kind("sk_mlp_columns"), file, feeds)
        p = outputs["probabilities"].astype(float)[np.arange(len(label)), label]
        found = json.loads(run("evaluate", file, *data, "--json")[0])
        losses.append(found["loss"])
        assert found["loss"] == pytest.approx(-np.log(p).mean(), rel=1e-5)
        assert found["accuracy"] == pytest.approx(np.mean(outputs["label"] == label))
        run(
            "predict", file, "--data", rows, "--ignored", "bought", "--allow-nan",
            "-o", tmp_path / "out.csv",
        )  # fmt: skip
        table = np.genfromtxt(tmp_path / "out.csv", delimiter=",", names=True)
        np.testing.assert_array_equal(table["label"], outputs["label"])
        np.testing.assert_allclose(
            table["probabilities_1"], outputs["probabilities"][:, 1], atol=1e-6
        )
    assert losses[1] < losses[0]
    _, err = run("predict", model, "--data", rows, "--ignored", "bought", status=4)
    assert "--allow-nan" in err
    _, err = run("evaluate", model, *data[:-1], status=4)
    assert "--allow-nan" in err


@pytest.mark.parametrize("name", ["xgboost_classifier", "quantized_qdq_convolutions"])
def test_what_has_no_weights_to_train_is_evaluated(name: str, tmp_path: Path) -> None:
    kind = Kind(name)
    data = zoo.stored(name)
    feeds = {key: data[f"in/{key}"] for key in zoo.ROWS[name]["inputs"]}
    model = zoo.ZOO / f"{name}.onnx"
    outputs = run_elsewhere(kind, model, feeds)
    if name == "xgboost_classifier":
        labels, scores = data["in/label"], outputs["probabilities"]
        loss, options = -np.log(scores[np.arange(len(labels)), labels]).mean(), []
    else:
        labels = np.ones_like(outputs["y"])
        loss, options = ((outputs["y"] - 1) ** 2).mean(), ["--loss", "squared_error"]
    np.savez(tmp_path / "rows.npz", **feeds, label=labels)
    rows = ["--data", tmp_path / "rows.npz", "--target", "label"]
    found = json.loads(run("evaluate", model, *rows, *options, "--json")[0])
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    if labels.ndim == 1:
        assert found["accuracy"] == pytest.approx(np.mean(scores.argmax(1) == labels))


def test_training_operators_of_onnx(tmp_path: Path) -> None:
    """The node tests of Adam, Adagrad and Momentum, as the standard has them."""
    cases = {case.name.removeprefix("test_"): case for case in all_cases()}
    for name in ("adam_multiple", "adagrad", "momentum", "nesterov_momentum"):
        case = cases[name]
        onnx.save(case.model, tmp_path / "model.onnx")
        np.savez(tmp_path / "rows.npz", **case.feeds())
        files = ["--data", tmp_path / "rows.npz", "-o", tmp_path / "found.npz"]
        run("predict", tmp_path / "model.onnx", *files)
        with np.load(tmp_path / "found.npz") as found:
            for output, value in zip(case.model.graph.output, case.outputs, strict=True):
                np.testing.assert_allclose(found[output.name], value, rtol=1e-5, atol=1e-7)


def test_outputs_that_no_table_has(tmp_path: Path) -> None:
    kind = KINDS["states"]
    feeds, model = inputs_of(kind, tmp_path), zoo.ZOO / f"{kind.model}.onnx"
    rows = ["predict", model, "--data", tmp_path / "rows.npz"]
    _, err = run(*rows, status=2)
    assert "'y' has 6, 'h' has 2, 'c' has 2" in err
    out, _ = run(*rows, "--of", "h")
    wanted = run_elsewhere(kind, model, feeds)["h"]
    lines = [line.split(",") for line in out.splitlines()[1:]]
    np.testing.assert_allclose(np.array(lines, float), wanted.reshape(len(wanted), -1), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "dtype"), [("variational_autoencoder", "float64"), ("sk_svr_rbf", "float32")]
)
def test_check_of_random_draws_and_of_operators_in_float32(
    name: str, dtype: str, tmp_path: Path
) -> None:
    feeds = {
        k: v for k, v in part(zoo.stored(name), "in/").items() if k in zoo.ROWS[name]["inputs"]
    }
    np.savez(tmp_path / "rows.npz", **feeds)
    rows = ["--data", tmp_path / "rows.npz"]
    out, _ = run("check", zoo.ZOO / f"{name}.onnx", *rows, "--samples", 3, "--json")
    found = json.loads(out)
    assert found["ok"]
    assert found["dtype"] == dtype


LENGTHS = """<ir_version: 10, opset_import: ["" : 21]>
table (float[N, 1] a, float[N] b, int64[N] count) => (float[N, 1] y)
<float[1, 1] w = {0.5}, int64[1] axis = {1}>
{
  column = Unsqueeze (b, axis)  number = Cast <to = 1> (count)
  times = Unsqueeze (number, axis)
  sum = Add (a, column)  product = Mul (sum, times)  y = MatMul (product, w)
}"""


@pytest.mark.parametrize("stream", [[], ["--stream"]])
def test_columns_of_a_table_feed_inputs_of_rank_1(stream: list[str], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a, b, count = rng.normal(size=9), rng.normal(size=9), rng.integers(0, 4, 9)
    y = 2 * (a + b) * count
    rows, model, trained = (tmp_path / name for name in ("rows.csv", "model.onnx", "trained.onnx"))
    np.savetxt(
        rows, np.column_stack([a, b, count, y]), "%.9g", ",", header="a,b,count,y", comments=""
    )
    onnx.save(onnx.parser.parse_model(LENGTHS), model)
    data = ["--data", rows, "--target", "y"]
    options = ["--optimizer", "sgd:lr=0.01", "--epochs", 3, "--batch-size", 4, "--no-shuffle"]
    run("train", model, *data, *options, *stream, "-q", "-o", trained)
    w = 0.5
    for _ in range(3):
        for start in (0, 4, 8):
            batch = slice(start, start + 4)
            x = ((a + b) * count)[batch]
            w -= 0.01 * np.mean(2 * (x * w - y[batch]) * x)
    assert initializers(trained)["w"].item() == pytest.approx(w, rel=1e-4)
    found = json.loads(run("evaluate", trained, *data, *stream, "--json")[0])
    predicted = (a + b) * count * w
    assert found["loss"] == pytest.approx(np.mean((predicted - y) ** 2), rel=1e-3)
    out, _ = run("predict", trained, "--data", rows, "--ignored", "y")
    np.testing.assert_allclose([float(line) for line in out.splitlines()[1:]], predicted, atol=1e-3)
    out, _ = run("check", trained, "--data", rows)
    assert "are right" in out
