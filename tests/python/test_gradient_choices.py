"""Choices of `gradient`: inputs, inner values, losses; also as a command."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from skl2onnx import to_onnx
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

import onnxgrad as og
from onnxgrad.cli import app

HEADER = '<ir_version: 10, opset_import: ["" : 21]>'
# y = sum (sin(h) * k)^2 with h = x w: h is read twice.
INNER = f"""{HEADER}
    inner (double[N, 2] x, double[3] k) => (double y)
    <double[2, 3] w = {{1, 2, 3, -1, 0.5, 0.25}}> {{
        h = MatMul (x, w)  s = Sin (h)  p = Mul (s, k)
        q = Mul (p, h)  y = ReduceSum <keepdims = 0> (q)
    }}"""
# INNER from h on.
OUTER = f"""{HEADER}
    outer (double[N, 3] h, double[3] k) => (double y) {{
        s = Sin (h)  p = Mul (s, k)  q = Mul (p, h)  y = ReduceSum <keepdims = 0> (q)
    }}"""
x = np.random.default_rng(0).standard_normal((4, 2))
k = np.array([0.5, -1.0, 2.0])
h = x @ np.array([[1, 2, 3], [-1, 0.5, 0.25]])


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    names = [value.name for value in model.graph.input]
    return og.InferenceSession(model, threads=1).run(None, {name: feeds[name] for name in names})


@pytest.mark.parametrize("write", [og.gradient, og.jvp, og.hvp, og.hessian])
def test_by_an_inner_value(write) -> None:
    """The model from that value on, as a model of its own, has the same derivatives."""
    inner, outer = onnx.parser.parse_model(INNER), onnx.parser.parse_model(OUTER)
    options = {"fill_grad": True} if write is og.gradient else {}
    feeds = {"x": x, "k": k, "h": h, "h_tangent": np.cos(h)}
    feeds["w"] = np.array([[1, 2, 3], [-1, 0.5, 0.25]])
    for got, want in zip(
        run(write(inner, "h", **options), feeds),
        run(write(outer, "h", **options), feeds),
        strict=True,
    ):
        np.testing.assert_allclose(got, want, rtol=1e-10)


def test_by_an_inner_value_and_what_it_is_computed_from() -> None:
    feeds = {"x": x, "k": k, "h": h, "w": np.array([[1, 2, 3], [-1, 0.5, 0.25]])}
    gradient = og.gradient(onnx.parser.parse_model(INNER), ["w", "h", "x"], fill_grad=True)
    w_grad, h_grad, x_grad = run(gradient, feeds)
    np.testing.assert_allclose(h_grad, k * (np.cos(h) * h + np.sin(h)), rtol=1e-10)
    np.testing.assert_allclose(w_grad, x.T @ h_grad, rtol=1e-10)
    np.testing.assert_allclose(x_grad, h_grad @ feeds["w"].T, rtol=1e-10)
    onnx.checker.check_model(gradient)


def test_without_weights_by_all_floating_inputs() -> None:
    model = onnx.parser.parse_model(f"""{HEADER}
        picked (float[N, 3] a, int64[M] places, float[3] b) => (float[N, M] y) {{
            s = Mul (a, b)  y = Gather <axis = 1> (s, places)
        }}""")
    for write in (og.gradient, og.vjp):
        assert [value.name for value in write(model).graph.output] == ["a_grad", "b_grad"]
    integers = onnx.parser.parse_model(
        f"{HEADER} whole (int64[N] a) => (float[N] y) {{ y = Cast <to = 1> (a) }}"
    )
    with pytest.raises(og.ModelError, match="no floating-point weight or input"):
        og.gradient(integers)


def test_names_that_have_no_gradient() -> None:
    model = onnx.parser.parse_model(f"""{HEADER}
        reshaped (float[N, 2, 2] X) => (float[N, 3] y)
        <int64[2] shape = {{-1, 4}}, float[4, 3] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}> {{
            rows = Reshape (X, shape)  y = MatMul (rows, w)
        }}""")
    with pytest.raises(og.ModelError) as raised:
        og.gradient(model, ["shape", "w"])
    text = str(raised.value)
    assert "'shape' is int64[2]: only floating-point values have a gradient" in text
    assert "Weights and inputs: 'X', 'w'." in text
    assert "Did you mean" not in text
    with pytest.raises(og.ModelError, match="Did you mean 'rows'"):
        og.gradient(model, "row")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scikit-learn pipeline as it is exported: labels and dictionaries."""
    X, y = load_iris(return_X_y=True)
    X = X.astype(np.float32)
    path = tmp_path_factory.mktemp("models") / "iris.onnx"
    path.write_bytes(to_onnx(LogisticRegression(max_iter=500).fit(X, y), X[:1]).SerializeToString())
    return path


def command(*args: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    return result.exit_code, result.stdout, result.stderr


def test_the_gradient_command_adds_the_loss_of_a_classifier(
    classifier: Path, tmp_path: Path
) -> None:
    target = tmp_path / "gradient.onnx"
    code, out, err = command("gradient", classifier, "-o", target, "--fill-grad")
    assert code == 0, err
    assert "loss: softmax cross-entropy" in err
    assert "coefficient" in out
    gradient = onnx.load(target)
    expected = og.gradient(og.add_loss(str(classifier), "auto"), outputs="loss", fill_grad=True)
    X, y = load_iris(return_X_y=True)
    rng = np.random.default_rng(0)
    weights = {
        info.name: rng.standard_normal(
            [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for info in gradient.graph.input
        if info.name not in ("X", "label")
    }
    feeds = {"X": X[:9].astype(np.float32), "label": y[:9], **weights}
    for got, want in zip(run(gradient, feeds), run(expected, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    session = ort.InferenceSession(target)
    assert session.run(None, feeds)[0].shape == run(expected, feeds)[0].shape


def test_add_loss_as_a_command(classifier: Path, tmp_path: Path) -> None:
    target = tmp_path / "with_loss.onnx"
    code, out, err = command(
        "add-loss", classifier, "-o", target, "--target", "kind", "--sample-weight", "weight"
    )
    assert code == 0, err
    assert "loss: softmax cross-entropy" in err
    assert "wrote" in out
    expected = og.add_loss(str(classifier), "auto", target="kind", sample_weight="weight")
    assert onnx.load(target) == expected
    # It has its loss: nothing is added to it.
    code, out, err = command("gradient", target, "-o", tmp_path / "gradient.onnx")
    assert code == 0, err
    assert "loss:" not in err
    assert any(v.name == "loss_grad" for v in onnx.load(tmp_path / "gradient.onnx").graph.input)


def test_hints_are_spelled_as_the_caller_does(classifier: Path, tmp_path: Path) -> None:
    code, _, err = command("gradient", classifier, "-o", tmp_path / "g.onnx", "--loss", "none")
    assert code == 3
    assert "Add a loss with 'onnxgrad add-loss', or name a value with --of." in err
    with pytest.raises(og.ModelError, match=r"Add a loss with add_loss\(\), or name.* outputs=\."):
        og.gradient(str(classifier))


def test_other_losses_and_plain_outputs(tmp_path: Path) -> None:
    path = tmp_path / "linear.onnx"
    model = onnx.parser.parse_model(f"""{HEADER}
        linear (float[N, 2] X) => (float[N, 1] y) <float[2, 1] w = {{0.5, -0.25}}> {{
            y = MatMul (X, w)
        }}""")
    onnx.save(model, path)
    target = tmp_path / "gradient.onnx"
    assert command("gradient", path, "-o", target)[0] == 0
    assert "y_grad" in [value.name for value in onnx.load(target).graph.input]
    code, _, err = command("gradient", path, "-o", target, "--loss", "huber:delta=2")
    assert code == 0, err
    assert "loss: Huber" in err or "loss: huber" in err.lower()
    assert "loss_grad" in [value.name for value in onnx.load(target).graph.input]


def test_models_are_written_to_a_path(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(f"""{HEADER}
        linear (float[N, 2] X) => (float[N, 1] y) <float[2, 1] w = {{0.5, -0.25}}> {{
            y = MatMul (X, w)
        }}""")
    loss = "squared_error"
    for i, write in enumerate(
        (
            lambda path: og.gradient(model, path=path),
            lambda path: og.hvp(og.add_loss(model, loss), path=path),
            lambda path: og.add_loss(model, loss, path=path),
            lambda path: og.training_step(model, loss, path=path),
            lambda path: og.add_training_info(model, loss, path=path),
            lambda path: og.initialize(model, seed=3, path=path),
            lambda path: og.set_weights(model, {"w": np.ones((2, 1), np.float32)}, path=path),
        )
    ):
        path = tmp_path / f"{i}.onnx"
        assert write(path) == write(None) == onnx.load(path)
    with pytest.raises(og.CheckpointError):
        og.gradient(model, path=tmp_path / "missing" / "g.onnx")
