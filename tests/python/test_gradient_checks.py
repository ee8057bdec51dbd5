"""check_gradients and onnxgrad check: right and wrong gradients, kinks, weights, data, messages."""

import json
from pathlib import Path
from typing import Any

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


def old(text: str, opset: int, ir: int = 6) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}]>\n{text}')


RIGHT = {
    # Integers and scales that are inputs with a default, as tf2onnx and old exporters list them.
    "default_inputs": old(
        """m (float[2, 2] x, int64[2] r) => (float[N, M] y)
    <int64[2] r = {1, 2}, float[2] w = {2, 3}> {
        a = Mul (x, w)
        y = Tile (a, r)
    }""",
        10,
        5,
    ),
    "roi": old(
        """m (float[1, 1, 2, 2] x) => (float[1, 1, 4, 4] y)
    <float[1, 1, 1, 1] w = {2}, float[0] roi = {}, float[4] scales = {1, 1, 2, 2}> {
        a = Conv (x, w)
        y = Resize <mode = "nearest"> (a, roi, scales)
    }""",
        11,
    ),
    "scales_that_are_computed": old(
        """m (float[1, 1, 2, 2] x) => (float[1, 1, 4, 4] y) <float[4] s = {1, 1, 1, 1}> {
        t = Concat <axis = 0> (one, two)
        scales = Mul (s, t)
        y = Resize <mode = "linear"> (x, , scales)
    }""".replace("<float[4]", "<float[2] one = {1, 1}, float[2] two = {2, 2}, float[4]"),
        13,
        8,
    ),
    "group_normalization_18": old(
        """m (float[2, 4, 3] x) => (float[2, 4, 3] y)
    <float[2] s = {1.5, 0.5}, float[2] b = {0, 1}> {
        y = GroupNormalization <num_groups = 2> (x, s, b)
    }""",
        18,
        8,
    ),
    # Operators in float32 alone, between others.
    "scaler": onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18, "ai.onnx.ml" : 3]>
    m (float[3, 2] x) => (float[3, 2] y) <float[2, 2] w = {1, -2, 0.5, 3}> {
        a = ai.onnx.ml.Scaler <offset = [0.5, 1.0], scale = [2.0, 0.25]> (x)
        b = MatMul (a, w)
        y = Softmax (b)
    }"""),
    # Nodes in another order; other outputs, and nodes that only they need, are left aside.
    "cut": onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18, "own" : 1]>
    m (float[3] x, string[2] t) => (float[3] y, float[3] z) <float[3] w = {1, 2, 3}> {
        y = Relu (a)
        z = own.Unknown (x, t)
        a = Mul (x, w)
    }"""),
    "logarithm": old("m (float[4] x) => (float[4] y) { y = Log (x) }", 13, 7),
    "vanishing": parse("""m (float[3] x) => (float[3] y) <float c = {1e-9}, float d = {5}> {
        a = Mul (x, c)
        b = Sin (a)
        y = Add (b, d)
    }"""),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_models(name: str) -> None:
    for seed in range(6):
        found = og.check_gradients(RIGHT[name], outputs="y", seed=seed)
        assert found.ok, str(found)
        assert all(one.checked for one in found.inputs)
        assert not any(one.name in ("roi", "scales", "s0", "t", "r") for one in found.inputs)


def test_precision_is_that_of_each_input() -> None:
    found = og.check_gradients(RIGHT["scaler"])
    assert found.dtype == "float32"
    x, w = found.inputs
    assert w.error < 1e-6 < x.error < 2e-3


def test_a_default_may_be_fed_and_named() -> None:
    model = RIGHT["default_inputs"]
    fed = og.check_gradients(model, {"x": np.ones((2, 2)), "r": np.array([2, 1])}, ["x", "w"])
    assert fed.ok
    assert [one.name for one in fed.inputs] == ["x", "w"]
    with pytest.raises(og.ModelError, match="input or weight 'r'"):
        og.check_gradients(model, wrt="r")


def test_scores_in_maps_are_outputs() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18, "ai.onnx.ml" : 3]>
    m (float[N, 2] x) => (float[N, 2] p) <float[2, 2] w = {1, -2, 0.5, 3}> {
        a = MatMul (x, w)
        s = Softmax (a)
        p = ai.onnx.ml.ZipMap <classlabels_int64s = [0, 1]> (s)
    }""")
    kind = onnx.helper.make_map_type_proto(
        onnx.TensorProto.INT64, onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    )
    model.graph.output[0].type.CopyFrom(onnx.helper.make_sequence_type_proto(kind))
    for outputs in (None, "p"):
        found = og.check_gradients(model, outputs=outputs)
        assert found.ok
        assert [one.name for one in found.inputs] == ["x", "w"]


def test_kinks_that_the_outputs_do_not_show_are_said() -> None:
    # x = Relu (x) - Relu (-x), whose gradient at 0 is 0 by convention.
    model = parse("""m (float[3] x) => (float[3] y) {
        n = Neg (x)
        a = Relu (x)
        b = Relu (n)
        y = Sub (a, b)
    }""")
    found = og.check_gradients(model, {"x": np.float32([0, 0, 0])})
    assert found.ok, str(found)
    wrong = f"{HEADER} Rule (x, y, dy) => (dx) {{ t = Mul (y, dy) dx = Sign (t) }}"
    with og.register_gradient("Relu", wrong):
        found = og.check_gradients(model, {"x": np.float32([0, 0, 0])})
    assert "gradient 0, difference" in found.inputs[0].problem
    # Between two jumps there is nothing to compare.
    found = og.check_gradients(KINKS, {"x": np.float32([[1, 2]]), "z": np.float32([1, 1])}, "x")
    assert found.ok
    # Quantization has a gradient that passes over its steps.
    model = parse("""m (float[3] x) => (float[3] y) <float s = {0.1}, int8 z = {0}, float w = {2}> {
        q = QuantizeLinear (x, s, z)
        d = DequantizeLinear (q, s, z)
        y = Mul (d, w)
    }""")
    found = og.check_gradients(model)
    assert found.ok, str(found)
    assert found.straight_through == ("QuantizeLinear",)
    assert "passes over rounding" in found.inputs[0].note
    assert "1 are right, 2 could not be compared" in str(found)
    assert found.inputs[-1].checked == 1


def test_a_rule_that_is_wrong_at_one_point_is_found_there() -> None:
    cube = f"{HEADER} Cube (x) => (y) {{ s = Mul (x, x) y = Mul (s, x) }}"
    rule = f"""{HEADER} Rule (x, y, dy) => (dx) {{
        k = Constant <value_float = 3.0> () c = CastLike (k, x) t = Div (y, x)
        z = Sub (x, x) e = Equal (x, z) o = Add (z, c) q = Where (e, o, t) u = Mul (q, c)
        dx = Mul (u, dy)
    }}"""
    model = parse("m (float[2] x) => (float[2] y) { y = own.Cube (x) }")
    with og.register_operator(cube, rule):
        assert og.check_gradients(model, {"x": np.float32([0.5, -2])}).ok
        assert not og.check_gradients(model, {"x": np.float32([0.5, 0])}).ok


def test_small_gradients_count() -> None:
    square = f"{HEADER} Square (x) => (y) {{ y = Mul (x, x) }}"
    rule = f"{HEADER} Rule (x, dy) => (dx) {{ dx = Mul (x, dy) }}"
    model = parse("""m (float[3] x) => (float[3] y) <float c = {1e-6}> {
        a = own.Square (x)
        y = Mul (a, c)
    }""")
    with og.register_operator(square, rule):
        assert not og.check_gradients(model, wrt="x").ok


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
    with pytest.raises(og.DataError, match="is NaN for these inputs"):
        og.check_gradients(RIGHT["logarithm"], {"x": -np.ones(4, np.float32)})
    with pytest.raises(og.ShapeError):
        og.check_gradients(KINKS, {"x": np.zeros((2, 3), np.float32)})


def test_the_command_with_a_loss(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18, "ai.onnx.ml" : 3]>
    m (float[N, 2] x, string[N, 1] city) => (float[N, 2] p)
    <float[4, 2] w = {1, -2, 0.5, 3, 1, 0, 2, -1}> {
        h = ai.onnx.ml.OneHotEncoder <cats_strings = ["Lyon", "Nice"]> (city)
        s = Constant <value_ints = [-1, 2]> ()
        o = Reshape (h, s)
        c = Concat <axis = 1> (x, o)
        a = MatMul (c, w)
        p = Softmax (a)
    }""")
    onnx.save(model, tmp_path / "model.onnx")
    rows = [f"{i / 7},{-i},{'Lyon' if i % 3 else 'Nice'},{i % 2},7" for i in range(20)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,city,answer,other", *rows]))

    def run(*options: str) -> Any:
        return CliRunner().invoke(app, ["check", str(tmp_path / "model.onnx"), *options])

    done = run("--loss", "auto")
    assert done.exit_code == 4
    assert "Give it with --data" in done.output
    file = ["--data", str(tmp_path / "rows.csv"), "--target", "answer", "--ignored", "other"]
    done = run("--loss", "auto", *file, "--json")
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    assert shown["ok"]
    assert [(one["name"], one["shape"]) for one in shown["inputs"]] == [
        ("x", [16, 2]),
        ("w", [4, 2]),
    ]
    assert run("--loss", "squared_error", *file).exit_code != 0


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
