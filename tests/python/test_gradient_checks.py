"""check_gradients and onnxgrad check: right and wrong gradients, kinks, weights, data, messages."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from typer.testing import CliRunner

import onnxgrad as og
from onnxgrad.cli import app
from support import mlp_proto

HEADER = '<opset_import: ["" : 21], domain: "own">'


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21, "own" : 1]>\n{text}')


KINKS = parse("""m (float[N, 2] x, int64 k, float[2] z) => (float[N, 2] y, int64[1] s) {
    r = Relu (x)
    f = Floor (x)
    a = Add (r, f)
    b = Mul (a, z)
    y = Sub (b, z)
    s = Shape <start = 0, end = 1> (x)
}""")


def test_all_inputs_and_weights_of_a_network_are_right() -> None:
    found = og.check_gradients(mlp_proto([4, 16, 3], head="Softmax"), seed=3)
    assert found.ok
    assert found.dtype == "float64"
    assert [one.name for one in found.inputs] == ["X", "W0", "b0", "W1", "b1"]
    assert [one.checked for one in found.inputs] == [12, 12, 12, 12, 3]
    assert 0 < found.error < 1e-6
    table = str(found).splitlines()
    assert table[0].split() == ["input", "shape", "checked", "error"]
    assert table[2].split()[:6] == ["W0", "[4,", "16]", "12", "of", "64"]
    assert table[-1].startswith("in float64: all 5 are right, largest error")
    every = og.check_gradients(mlp_proto([4, 16, 3]), wrt="W0", samples=None)
    assert every.inputs[0].checked == 64


def test_kinks_and_jumps_are_judged_by_the_slopes_beside_them() -> None:
    x = np.float32([[0, 1], [-1, 2.5], [-0.5, 0]])  # where Relu has a kink and Floor jumps
    found = og.check_gradients(KINKS, {"x": x})
    assert found.ok, str(found)
    assert [one.name for one in found.inputs] == ["x", "z"]
    assert found.inputs[0].shape == (3, 2)
    drawn = og.check_gradients(KINKS, dims={"N": 5})
    assert drawn.inputs[0].shape == (5, 2)


def test_what_operators_take_in_float32_alone_stays_so() -> None:
    text = """m (float[1, 1, 3, 3] x) => (float[1, 1, N, M] y)
    <float[4] scales = {1, 1, 2, 1.5}, float w = {2}> {
        a = Mul (x, w)
        y = Resize <mode = "cubic"> (a, , scales)
    }"""
    found = og.check_gradients(parse(text))
    assert found.ok, str(found)
    assert found.dtype == "float64"
    assert [one.name for one in found.inputs] == ["x", "w"]
    # And second derivatives of it: of a gradient that is in the model.
    gradient = og.gradient(parse(text), "w", fill_grad=True, keep_outputs=True)
    again = og.check_gradients(gradient, wrt=["x", "w"])
    assert again.ok, str(again)
    assert again.dtype == "float64"


@pytest.mark.parametrize("factor", [3.0, 2.001])
def test_a_wrong_rule_is_found(factor: float) -> None:
    square = f"{HEADER} Square (x) => (y) {{ y = Mul (x, x) }}"
    rule = f"""{HEADER} Rule (x, dy) => (dx) {{
        c = Constant <value_float = {factor}> ()
        f = CastLike (c, x)
        t = Mul (x, f)
        dx = Mul (t, dy)
    }}"""
    model = parse(
        "m (float[3] x, float[3] z) => (float[3] y) { a = own.Square (x) y = Mul (a, z) }"
    )
    with og.register_operator(square, rule):
        found = og.check_gradients(model)
    assert not found.ok
    wrong, right = found.inputs
    assert wrong.problem.startswith("x[")
    assert "gradient" in wrong.problem
    assert wrong.error > 1e-4
    assert not right.problem
    assert "1 of 2 are wrong" in str(found)
    with og.register_operator(square, rule.replace(str(factor), "2.0")):
        assert og.check_gradients(model).ok
    with og.register_operator(square, rule):  # but not by more than this
        assert og.check_gradients(model, tolerance=10).ok


def test_a_gradient_that_is_refused_is_a_problem_of_its_input() -> None:
    text = "m (float[3] x, float[3] z) => (float[3] y) { a = own.Odd (x) y = Mul (a, z) }"
    function = f"{HEADER} Odd (x) => (y) {{ y = Neg (x) }}"
    rule = f"{HEADER} Rule (x, dy) => (dx) {{ dx = ReduceSum <keepdims = 0> (dy) }}"
    with og.register_operator(function, rule):
        found = og.check_gradients(parse(text))
    assert "registered for 'own::Odd'" in found.inputs[0].problem
    assert not found.inputs[1].problem


def test_functions_loops_and_double_models() -> None:
    model = parse("""m (int64 n, double[2] s) => (double y) {
        last, all = Loop <body = step (int64 i, bool go, double[2] s0)
            => (bool on, double[2] s1, double[2] o) {
                on = Identity (go)
                t = own.Square (s0)
                s1 = Sin (t)
                o = Mul (s1, s)
            }> (n, , s)
        y = ReduceSum <keepdims = 0> (all)
    }""")
    model.functions.append(
        onnx.parser.parse_function(f"{HEADER} Square (x) => (y) {{ y = Mul (x, x) }}")
    )
    assert og.check_gradients(model, {"n": np.array(3)}).ok


def test_what_it_cannot_check_is_said() -> None:
    with pytest.raises(og.DataError, match="no input 'q'"):
        og.check_gradients(KINKS, {"q": np.zeros(2)})
    with pytest.raises(og.ModelError, match="input or weight 'q'"):
        og.check_gradients(KINKS, wrt="q")
    with pytest.raises(og.ModelError, match="no output 'q'"):
        og.check_gradients(KINKS, outputs="q")
    with pytest.raises(og.ModelError, match="no output that is checked is of floating-point"):
        og.check_gradients(KINKS, outputs="s")
    with pytest.raises(og.ShapeError):
        og.check_gradients(KINKS, {"x": np.zeros((2, 3), np.float32)})


def test_the_command(tmp_path: Path) -> None:
    file, data = tmp_path / "model.onnx", tmp_path / "data.npz"
    onnx.save(mlp_proto([4, 3]), file)
    np.savez(data, X=np.ones((2, 4), np.float32))
    runner = CliRunner()
    done = runner.invoke(app, ["check", str(file), "--data", str(data), "--samples", "4"])
    assert done.exit_code == 0, done.output
    assert "[2, 4]   4 of 8" in done.output
    done = runner.invoke(app, ["check", str(file), "--dim", "N=7", "--json", "--wrt", "X"])
    shown = json.loads(done.output)
    assert shown["ok"]
    assert [one["name"] for one in shown["inputs"]] == ["X"]
    text = "\n".join(["a,b,c,d", *(f"{i},1,2,3" for i in range(40))])
    (tmp_path / "rows.csv").write_text(text)
    done = runner.invoke(app, ["check", str(file), "--data", str(tmp_path / "rows.csv")])
    assert done.exit_code == 0, done.output
    assert "[16, 4]" in done.output
    done = runner.invoke(app, ["check", str(file), "--dim", "N"])
    assert done.exit_code == 2
    (tmp_path / "own.py").write_text(
        "import onnxgrad as og\n"
        f"og.register_gradient('MatMul', '''{HEADER} Rule (a, b, dy) => (da) {{\n"
        "    da = Sub (a, a) }''', overwrite=True)\n"
    )
    done = runner.invoke(app, ["check", str(file), "--operators", str(tmp_path / "own.py")])
    for number in range(500):
        og._core.unregister_operators(number)
    assert done.exit_code == 3
    assert "the gradient by 'X' is wrong" in done.output
