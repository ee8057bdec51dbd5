"""Operators and gradients written in Python, with onnxscript and ndonnx, used as built-in ones."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

import onnxgrad as og
from command_line import run
from support import initializers

pytest.importorskip("onnxscript")

from onnxscript import opset21 as op
from onnxscript import script
from onnxscript.values import Opset

own = Opset("own", 1)


@script(own, default_opset=op)
def Swish(x, beta: float = 1.0):  # noqa: N802
    return x * op.Sigmoid(beta * x)


@script(own, default_opset=op)
def SwishRule(x, y, dy, beta: float = 1.0):  # noqa: N802
    s = op.Sigmoid(beta * x)
    return dy * (s + beta * y * (1.0 - s))


@script(own, default_opset=op)
def Gated(a, b):  # noqa: N802
    """The gate is another function."""
    return a * Swish(b, beta=2.0), op.Tanh(a)


@script(own, default_opset=op)
def Tripled(x, y, dy, beta: float = 1.0):  # noqa: N802
    """No derivative, so that it is seen which of the two is used."""
    return 3.0 * dy


NETWORK = """<ir_version: 10, opset_import: ["" : 21, "own" : 1]>
network (float[N, 3] x) => (float[N, 2] y)
<float[3, 4] w0 = {0.3, -0.2, 0.5, 0.1, 0.4, 0.2, -0.3, 0.6, -0.5, 0.7, 0.1, -0.4},
 float[4] b0 = {0.1, -0.1, 0.2, 0.0}, float[4, 2] w1 = {0.5, -0.3, 0.2, 0.4, -0.6, 0.1, 0.3, 0.2}>
{
  p = MatMul (x, w0)  a = Add (p, b0)
  h = own.Swish <beta = 1.5> (a)
  y = MatMul (h, w1)
}"""
PLAIN = NETWORK.replace(
    "h = own.Swish <beta = 1.5> (a)",
    "c = Constant <value_float = 1.5> ()  e = Mul (a, c)  s = Sigmoid (e)  h = Mul (a, s)",
)
X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(8, 2)).astype(np.float32)


def in_stock(file: onnx.ModelProto, steps: int) -> dict[str, np.ndarray]:
    """Run a training step as a file in stock onnxruntime; return the last weights."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(file.SerializeToString(), options)
    names = [value.name for value in session.get_outputs()]
    feeds = {"x": X, "label": Y, "learning_rate": np.array(0.05, np.float32)}
    for _ in range(steps):
        found = dict(zip(names, session.run(None, feeds), strict=True))
        feeds |= {
            name.removeprefix("next/"): value
            for name, value in found.items()
            if name.startswith("next/")
        }
    return feeds


@pytest.mark.parametrize("rule", [SwishRule, None])
def test_an_onnxscript_operator_trains_like_a_built_in_one(rule) -> None:
    """It learns what a network of standard operators learns, in stock onnxruntime and here."""
    model, plain = onnx.parser.parse_model(NETWORK), onnx.parser.parse_model(PLAIN)
    optimizer = og.optimizers.Adam(lr=0.05, epsilon=1e-3)
    wanted = in_stock(og.training_step(plain, "squared_error", optimizer), 5)
    with og.register_operator(Swish, rule) as registered:
        assert registered.name == "own::Swish"
        assert og.check_gradients(model).ok
        for inline in (True, False):
            file = og.training_step(model, "squared_error", optimizer, inline=inline)
            onnx.checker.check_model(file, full_check=inline)
            stock = in_stock(file, 5)
            trainer = og.Trainer(model, "squared_error", optimizer)
            trainer.fit(X, Y, epochs=5, batch_size=8, verbose=False)
            found = initializers(trainer.trained_model())
            for name, value in found.items():
                np.testing.assert_allclose(value, wanted[name], rtol=0, atol=2e-6)
                np.testing.assert_allclose(stock[name], wanted[name], rtol=0, atol=2e-6)
        assert [node.op_type for node in trainer.trained_model().graph.node][2] == "Swish"
        row = next(o for o in og.report(model).operators if o.op_type == "Swish")
        assert row.runs
        assert row.has_gradient


def test_functions_that_a_function_calls_come_along() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21, "own" : 1]>
        m (double[2, 3] a, double[2, 3] b) => (double[2, 3] y, double[2, 3] z) {
            y, z = own.Gated (a, b)
        }""")
    rng = np.random.default_rng(2)
    feeds = {name: rng.normal(size=(2, 3)) for name in "ab"}
    a, b = feeds["a"], feeds["b"]
    with og.register_operator(Gated):
        found = og.InferenceSession(model).run(None, feeds)
        assert og.check_gradients(model, feeds).ok
        file = og.gradient(model, ["a", "b"], fill_grad=True)
    np.testing.assert_allclose(found[0], a * b / (1 + np.exp(-2 * b)), rtol=1e-12)
    np.testing.assert_allclose(found[1], np.tanh(a), rtol=1e-12)
    onnx.checker.check_model(file)
    by_a, _ = ort.InferenceSession(file.SerializeToString()).run(None, feeds)
    np.testing.assert_allclose(by_a, b / (1 + np.exp(-2 * b)) + 1 - np.tanh(a) ** 2, rtol=1e-6)
    # One that is registered already is used, with its gradient.
    with og.register_operator(Swish, Tripled), og.register_operator(Gated):
        file = og.gradient(model, "b", "y", fill_grad=True)
    (by_b,) = og.InferenceSession(file).run(None, {k: feeds[k] for k in input_names(file)})
    np.testing.assert_allclose(by_b, 3 * a, rtol=1e-12)


def input_names(model: onnx.ModelProto) -> list[str]:
    return [value.name for value in model.graph.input]


def test_a_model_that_has_its_onnxscript_functions_takes_a_gradient() -> None:
    model = onnx.parser.parse_model(NETWORK)
    model.functions.append(Swish.to_function_proto())
    with og.register_gradient("own::Swish", Tripled):
        (found,) = og.InferenceSession(og.gradient(model, "b0", "y", fill_grad=True)).run(
            None, {"x": X, **{k: v for k, v in initializers(model).items() if k == "b0"}}
        )
    wanted = 3 * len(X) * initializers(model)["w1"].sum(axis=1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_an_onnxscript_file_on_the_command_line(tmp_path: Path) -> None:
    operators = tmp_path / "own_operators.py"
    operators.write_text("""import onnxgrad as og
from onnxscript import opset21 as op, script
from onnxscript.values import Opset

@script(Opset("file", 1), default_opset=op)
def Swish(x, beta: float = 1.0):
    return x * op.Sigmoid(beta * x)

og.register_operator(Swish, overwrite=True)
""")
    model, plain = tmp_path / "model.onnx", tmp_path / "plain.onnx"
    onnx.save(onnx.parser.parse_model(NETWORK.replace("own", "file")), model)
    onnx.save(onnx.parser.parse_model(PLAIN), plain)
    np.savez(tmp_path / "rows.npz", x=X, y=Y)
    rows = ["--data", tmp_path / "rows.npz", "--target", "y", "--loss", "mse", "-q"]
    options = ["--epochs", 4, "--batch-size", 3, "--threads", 1]
    run(
        "train", model, *rows, *options, "--operators", operators, "-o", tmp_path / "trained.onnx"
    )  # fmt: skip
    run("train", plain, *rows, *options, "-o", tmp_path / "wanted.onnx")
    found, wanted = (initializers(tmp_path / f"{name}.onnx") for name in ("trained", "wanted"))
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=2e-6, err_msg=name)
    out, _ = run("check", tmp_path / "trained.onnx", "--operators", operators)
    assert "are right" in out


def test_operators_and_gradients_built_with_ndonnx() -> None:
    ndx = pytest.importorskip("ndonnx")

    def built(function, *names: str) -> onnx.ModelProto:
        arguments = {name: ndx.argument(shape=("N", "K"), dtype=ndx.float32) for name in names}
        return ndx.build(arguments, {"result": function(*arguments.values())})

    def mish(x):
        return x * ndx.tanh(ndx.log(1 + ndx.exp(x)))

    def mish_rule(x, y, dy):
        t = ndx.tanh(ndx.log(1 + ndx.exp(x)))
        return dy * (t + x * (1 - t * t) / (1 + ndx.exp(-x)))

    network = NETWORK.replace("own.Swish <beta = 1.5>", "own.Mish")
    model = onnx.parser.parse_model(network)
    plain = onnx.parser.parse_model(network.replace("own.Mish", "Mish"))
    optimizer = og.optimizers.SGD(lr=0.05)
    wanted = in_stock(og.training_step(plain, "squared_error", optimizer), 5)
    for rule in (None, built(mish_rule, "x", "y", "dy")):
        with og.register_operator(built(mish, "x"), rule, name="own::Mish"):
            stock = in_stock(og.training_step(model, "squared_error", optimizer), 5)
            trainer = og.Trainer(model, "squared_error", optimizer)
            trainer.fit(X, Y, epochs=5, batch_size=8, verbose=False)
            assert og.check_gradients(model, wrt=["w0", "b0"]).ok
        for name, value in initializers(trainer.trained_model()).items():
            np.testing.assert_allclose(value, wanted[name], rtol=0, atol=2e-6)
            np.testing.assert_allclose(stock[name], wanted[name], rtol=0, atol=2e-6)
