"""register_operator and register_gradient: training, derivatives, files, threads, messages."""

import threading
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from typer.testing import CliRunner

import onnxgrad as og
from onnxgrad.cli import app

HEADER = '<opset_import: ["" : 21], domain: "own">'
SQUARE = f"{HEADER} Square (x) => (y) {{ y = Mul (x, x) }}"
# Not the derivative, so that it is seen which of the two is used.
TRIPLE = f"""{HEADER} Rule (x, dy) => (dx) {{
    c = Constant <value_float = 3.0> ()
    f = CastLike (c, x)
    t = Mul (x, f)
    dx = Mul (t, dy)
}}"""
# The derivative, which reads the output, in an older opset than the model.
BY_OUTPUT = """<opset_import: ["" : 11], domain: "own"> Rule (x, y, dy) => (dx) {
    q = Div (y, x)
    d = Add (q, q)
    dx = Mul (d, dy)
}"""
X = np.array([[0.5, -1.5], [2.0, 0.25]])


def parse(text: str, opset: int = 21) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}, "own" : 1]>\n{text}'
    )


CALL = parse("""m (double[N, 2] x) => (double y) {
    s = own.Square (x)
    y = ReduceSum <keepdims = 0> (s)
}""")
LAYER = parse("""m (float[N, 2] x) => (float[N, 3] y)
    <float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 1, 1}> {
        p = MatMul (x, w)
        a = Add (p, b)
        y = own.Square (a)
    }""")


def run(model: onnx.ModelProto, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Run a model in stock onnxruntime, and in our engine, which must agree."""
    onnx.checker.check_model(model)
    feeds = {value.name: arrays[value.name] for value in model.graph.input}
    options = ort.SessionOptions()
    options.log_severity_level = 4
    theirs = ort.InferenceSession(model.SerializeToString(), options).run(None, feeds)
    for mine, other in zip(og.InferenceSession(model).run(None, feeds), theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-6, atol=1e-9)
    return theirs


def test_an_operator_without_a_rule_is_differentiated_through_its_body() -> None:
    with og.register_operator(SQUARE):
        (gradient,) = run(og.gradient(CALL, "x", fill_grad=True), {"x": X})
        assert og.InferenceSession(CALL).run(None, {"x": X})[0] == pytest.approx(np.sum(X**2))
    np.testing.assert_allclose(gradient, 2 * X)


@pytest.mark.parametrize(("rule", "factor"), [(TRIPLE, 3), (BY_OUTPUT, 2)])
def test_a_rule_is_used_for_every_derivative(rule: str, factor: float) -> None:
    with og.register_operator(SQUARE, rule) as registered:
        assert registered.name == "own::Square"
        first = og.gradient(CALL, "x", fill_grad=True)
        product = og.hvp(CALL, "x")
        forward = og.jvp(CALL, "x")
    arrays = {"x": X, "x_tangent": np.ones_like(X)}
    np.testing.assert_allclose(run(first, arrays)[0], factor * X)
    np.testing.assert_allclose(run(product, arrays)[0], np.full_like(X, factor))
    np.testing.assert_allclose(run(forward, arrays)[0], factor * X.sum())


def test_files_hold_the_function_or_its_expansion() -> None:
    with og.register_operator(SQUARE, BY_OUTPUT):
        kept = og.gradient(CALL, "x", fill_grad=True, keep_outputs=True)
        flat = og.gradient(CALL, "x", fill_grad=True, keep_outputs=True, inline=True)
    assert {function.domain for function in kept.functions} == {"own"}
    assert not flat.functions
    for model in (kept, flat):
        gradient, y = run(model, {"x": X})
        np.testing.assert_allclose(gradient, 2 * X)
        assert y == pytest.approx(np.sum(X**2))


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "lbfgs"])
def test_training_uses_the_rule(optimizer: str) -> None:
    function = onnx.parser.parse_function(SQUARE)
    plain = onnx.ModelProto()
    plain.CopyFrom(LAYER)
    plain.functions.append(function)
    x, y = np.float32([[0.5, 0.25], [0.1, -0.5]]), np.ones((2, 3), np.float32)
    with og.register_operator(SQUARE, BY_OUTPUT):
        session = og.TrainingSession(LAYER, "squared_error", optimizer, trainable=["w", "b"])
        trainer = og.Trainer(LAYER, "squared_error", optimizer, trainable=["w", "b"])
        passes = og.ForwardBackward(LAYER)
    other = og.TrainingSession(plain, "squared_error", optimizer, trainable=["w", "b"])
    for _ in range(3):
        losses = [one.step({"x": x, "label": y}) for one in (session, other)]
        np.testing.assert_allclose(*losses, rtol=1e-4, atol=1e-6)
    session.freeze("b")  # made again, after the end of the registration
    session.step({"x": x, "label": y})
    trainer.fit(x, y, epochs=2, verbose=0)
    assert trainer.predict(x).shape == (2, 3)
    (out,) = passes.forward({"x": x})
    gradients = passes.backward(np.ones_like(out))
    a = x @ np.float32([[1, 2, 3], [4, 5, 6]]) + 1
    np.testing.assert_allclose(gradients.weights["w"], x.T @ (2 * a), rtol=1e-5)


def test_an_operator_in_a_loop_whose_length_is_fed() -> None:
    text = """m (int64 n, double[D] s) => (double y) {
        last, all = Loop <body = step (int64 i, bool go, double[D] s0)
            => (bool on, double[D] s1, double[D] o) {
                on = Identity (go)
                t = own.Square (s0)
                s1 = Sin (t)
                o = Mul (s1, s)
            }> (n, , s)
        y = ReduceSum <keepdims = 0> (all)
    }"""
    called = parse(text)
    with_function = onnx.ModelProto()
    with_function.CopyFrom(called)
    with_function.functions.append(onnx.parser.parse_function(SQUARE))
    for count in (0, 3):
        arrays = {"s": X[0], "n": np.array(count)}
        for function in (og.gradient, og.hessian):
            options = {"fill_grad": True} if function is og.gradient else {}
            with og.register_operator(SQUARE, BY_OUTPUT):
                ours = function(called, "s", **options)
            theirs = function(with_function, "s", **options)
            np.testing.assert_allclose(
                run(ours, arrays)[0], run(theirs, arrays)[0], rtol=1e-9, atol=1e-12
            )


def test_attributes_and_several_inputs_and_outputs() -> None:
    function = """<opset_import: ["" : 21], domain: "own"> Mix <scale> (a, b, c) => (p, q) {
        k = Constant <value_float: float = @scale> ()
        f = CastLike (k, a)
        m = Mul (a, b)
        p = Mul (m, f)
        q = Add (a, c)
    }"""
    rule = onnx.parser.parse_function(
        """<opset_import: ["" : 21], domain: "own"> Rule <scale> (a, b, c, dp, dq) => (da, dc) {
            k = Constant <value_float: float = @scale> ()
            f = CastLike (k, a)
            m = Mul (dp, b)
            n = Mul (m, f)
            da = Add (n, dq)
            dc = Identity (dq)
        }"""
    )
    rule.output.insert(1, "")  # none for b
    model = parse("""m (double[2] a, double[2] b, double[2] c) => (double[2] p, double[2] q) {
        p, q = own.Mix <scale = 2.5> (a, b, c)
    }""")
    a, b, c, dp, dq = (np.array([i + 1.0, i - 2.5]) for i in range(5))
    arrays = {"a": a, "b": b, "c": c, "p_grad": dp, "q_grad": dq}
    with og.register_operator(function, rule):
        with pytest.warns(UserWarning, match="'b' is zero"):
            by_all = run(og.gradient(model, ["a", "b", "c"]), arrays)
        (by_a,) = run(og.gradient(model, "a", "q"), arrays)  # nothing reads p
    np.testing.assert_allclose(by_all[0], dp * b * 2.5 + dq)
    np.testing.assert_array_equal(by_all[1], np.zeros(2))
    np.testing.assert_allclose(by_all[2], dq)
    np.testing.assert_allclose(by_a, dq)


def test_gradients_of_operators_of_onnx() -> None:
    straight = f"{HEADER} Rule (x, dy) => (dx) {{ dx = Identity (dy) }}"
    model = parse("m (double[N, 2] x) => (double[N, 2] y) { r = Round (x) y = Mul (r, r) }")
    with og.register_gradient("Round", straight):
        (gradient,) = run(og.gradient(model, "x", fill_grad=True), {"x": X})
        assert next(o for o in og.report(model).operators if o.op_type == "Round").has_gradient
    np.testing.assert_allclose(gradient, 2 * np.round(X))
    with pytest.warns(UserWarning, match="'x' is zero"):
        og.gradient(model, "x")
    # An operator with attributes in the file's opset that are inputs now.
    clip = parse("m (float[2, 2] x) => (float[2, 2] y) { y = Clip <min = 0.0, max = 1.0> (x) }", 9)
    rule = f"{HEADER} Rule (x, low, high, dy) => (dx) {{ dx = Identity (dy) }}"
    with og.register_gradient("Clip", rule):
        (gradient,) = run(og.gradient(clip, "x", fill_grad=True), {"x": X.astype(np.float32)})
    np.testing.assert_array_equal(gradient, np.ones((2, 2)))
    # An operator that is replaced by others when a model is loaded.
    gelu = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>\n'
        "m (float[2, 2] x) => (float[2, 2] y) { y = com.microsoft.QuickGelu (x) }"
    )
    negative = f"{HEADER} Rule (x, dy) => (dx) {{ dx = Neg (dy) }}"
    with og.register_gradient("com.microsoft::QuickGelu", negative):
        result = og.gradient(gelu, "x", fill_grad=True, keep_outputs=True)
    gradient, y = run(result, {"x": X.astype(np.float32)})
    np.testing.assert_array_equal(gradient, -np.ones((2, 2)))
    np.testing.assert_allclose(y, X / (1 + np.exp(-1.702 * X)), rtol=1e-6)


def test_functions_of_a_model_and_models_as_functions() -> None:
    model = onnx.ModelProto()
    model.CopyFrom(CALL)
    model.functions.append(onnx.parser.parse_function(SQUARE))
    with og.register_gradient("own::Square", TRIPLE):
        (gradient,) = run(og.gradient(model, "x", fill_grad=True), {"x": X})
    np.testing.assert_allclose(gradient, 3 * X)
    graph = parse("g (double[N, 2] a) => (double[N, 2] z) <double two = {2}> { z = Pow (a, two) }")
    with og.register_operator(graph, name="own::Square"):
        (gradient,) = run(og.gradient(CALL, "x", fill_grad=True), {"x": X})
    np.testing.assert_allclose(gradient, 2 * X)


def test_an_object_with_a_function_as_onnxscript_makes_it() -> None:
    class Scripted:
        def to_function_proto(self) -> onnx.FunctionProto:
            return onnx.parser.parse_function(SQUARE)

    with og.register_operator(Scripted(), BY_OUTPUT) as registered:
        assert repr(registered) == "Registration('own::Square')"
        assert og.check_gradients(CALL).ok


def test_a_registration_replaces_and_ends() -> None:
    first = og.register_operator(SQUARE, TRIPLE)
    try:
        with pytest.raises(og.OptionError, match=r"registered body already\n.*overwrite=True"):
            og.register_operator(SQUARE)
        with og.register_operator(SQUARE, BY_OUTPUT, overwrite=True):
            (two,) = run(og.gradient(CALL, "x", fill_grad=True), {"x": X})
        (three,) = run(og.gradient(CALL, "x", fill_grad=True), {"x": X})
    finally:
        first.unregister()
    np.testing.assert_allclose(two, 2 * X)
    np.testing.assert_allclose(three, 3 * X)
    with pytest.raises(og.GradientError, match="register_operator"):
        og.gradient(CALL, "x")


def test_threads_register_and_differentiate() -> None:
    problems = []

    def work(number: int) -> None:
        text = SQUARE.replace("Square", f"Square{number}")
        model = parse(f"""m (double[N, 2] x) => (double y) {{
            s = own.Square{number} (x)
            y = ReduceSum <keepdims = 0> (s)
        }}""")
        for _ in range(5):
            with og.register_operator(text, BY_OUTPUT):
                session = og.InferenceSession(og.gradient(model, "x", fill_grad=True))
            if not np.allclose(session.run(None, {"x": X})[0], 2 * X):
                problems.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_the_command_line_reads_libraries_and_modules(tmp_path: Path) -> None:
    file, library, module = (tmp_path / name for name in ("m.onnx", "own.onnx", "own.py"))
    onnx.save(CALL, file)
    rule = onnx.parser.parse_function(TRIPLE)
    rule.name = "Square_grad"
    model = onnx.helper.make_model(
        onnx.helper.make_graph([], "library", [], []),
        functions=[onnx.parser.parse_function(SQUARE), rule],
        opset_imports=[onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("own", 1)],
    )
    onnx.save(model, library)
    module.write_text(
        f"import onnxgrad\nonnxgrad.register_operator('''{SQUARE}''', '''{TRIPLE}''', "
        "overwrite=True)\n"
    )
    for source in (library, module):
        written = tmp_path / "gradient.onnx"
        done = CliRunner().invoke(
            app,
            [
                *("gradient", str(file), "-o", str(written), "--wrt", "x", "--fill-grad"),
                *("--operators", str(source)),
            ],
        )
        assert done.exit_code == 0, done.output
        np.testing.assert_allclose(run(onnx.load(written), {"x": X})[0], 3 * X)
    done = CliRunner().invoke(app, ["report", str(file), "--operators", "no_such_module"])
    assert done.exit_code == 2
    assert "--operators: there is no module 'no_such_module'" in done.output


@pytest.fixture(autouse=True)
def _nothing_stays():
    before = [entry.name for entry in og._core.registered_operators()]
    yield
    for number in range(200):  # the command line's have no registration object
        og._core.unregister_operators(number)
    assert before == []


WRONG = [
    (lambda: og.register_operator("Square (x"), og.OptionError, "not an ONNX function"),
    (lambda: og.register_operator(3), og.OptionError, "a int is not a function"),
    (lambda: og.register_operator(CALL), og.OptionError, "has no domain"),
    (
        lambda: og.register_operator(SQUARE, name="Relu"),
        og.OptionError,
        r"operator 'Relu' is one of ONNX\n.*register_gradient\(\)",
    ),
    (
        lambda: og.register_operator(SQUARE, f"{HEADER} R (x) => (dx) {{ dx = Neg (x) }}"),
        og.OptionError,
        "a gradient with 1 inputs, expected 2, or 3 if it reads the outputs",
    ),
    (
        lambda: og.register_operator(
            f"{HEADER} Again (x) => (y) {{ y = own.Again (x) }}".replace(
                '["" : 21]', '["" : 21, "own" : 1]'
            )
        ),
        og.ModelError,
        "function 'Again' calls itself",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG)
def test_what_cannot_be_registered_is_said(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call()


OWN_HEADER = HEADER.replace('["" : 21]', '["" : 21, "own" : 1]')


def doubling(level: int) -> str:
    """A function that calls the one before it twice: level 40 is 2^40 nodes."""
    if level == 0:
        return f"{HEADER} F0 (x) => (y) {{ y = Relu (x) }}"
    last = f"own.F{level - 1}"
    return f"{OWN_HEADER} F{level} (x) => (y) {{ a = {last} (x) y = {last} (a) }}"


def library(functions: list[onnx.FunctionProto]) -> onnx.ModelProto:
    imports = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("own", 1)]
    graph = onnx.helper.make_graph([], "library", [], [])
    return onnx.helper.make_model(graph, functions=functions, opset_imports=imports, ir_version=10)


def test_functions_that_explode_are_refused(tmp_path: Path) -> None:
    for level in range(21):
        og.register_operator(doubling(level))
    with pytest.raises(og.ModelError, match="expand to more than 2000000 nodes"):
        og.register_operator(doubling(21))
    file, model = tmp_path / "library.onnx", tmp_path / "model.onnx"
    onnx.save(library([onnx.parser.parse_function(doubling(level)) for level in range(40)]), file)
    onnx.save(CALL, model)
    done = CliRunner().invoke(app, ["report", str(model), "--operators", str(file)])
    assert done.exit_code == 3, done.output
    assert "expand to more than 2000000 nodes" in done.output


def test_a_long_chain_of_functions_needs_no_stack(tmp_path: Path) -> None:
    functions = [onnx.parser.parse_function(doubling(0))]
    for level in range(1, 20_000):
        function = onnx.FunctionProto()
        function.CopyFrom(functions[0])
        function.name = f"F{level}"
        function.opset_import.add(domain="own", version=1)
        function.node[0].domain, function.node[0].op_type = "own", f"F{level - 1}"
        functions.append(function)
    file, model = tmp_path / "library.onnx", tmp_path / "model.onnx"
    onnx.save(library(functions), file)
    onnx.save(CALL, model)
    done = CliRunner().invoke(app, ["report", str(model), "--operators", str(file)])
    assert done.exit_code == 0, done.output


def test_a_function_of_a_model_and_a_registered_one_that_call_each_other() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21, "own" : 1]> m (double[2] x) => (double[2] y)'
        f" {{ y = own.Own (x) }} {OWN_HEADER} Own (x) => (y) {{ y = own.Registered (x) }}"
    )
    back = f"{OWN_HEADER} Registered (x) => (y) {{ y = own.Own (x) }}"
    with og.register_operator(back), pytest.raises(og.ModelError, match="calls itself"):
        og.gradient(model, "x")


def test_a_gradient_of_another_shape_is_said() -> None:
    rule = f"{HEADER} Rule (x, dy) => (dx) {{ dx = ReduceSum <keepdims = 0> (dy) }}"
    with (
        og.register_operator(SQUARE, rule),
        pytest.raises(og.GradientError, match=r"registered for 'own::Square' is float64\[\] for"),
    ):
        og.gradient(CALL, "x")
    broken = f"{HEADER} Rule (x, dy) => (dx) {{ dx = Relu1 (dy) }}"
    with (
        og.register_operator(SQUARE, broken),
        pytest.raises(og.ModelError, match=r"Relu1 node .*does not exist"),
    ):
        og.gradient(CALL, "x")


@pytest.mark.parametrize("operator", ["If", "Loop", "Scan"])
def test_a_gradient_of_an_operator_with_subgraphs_is_refused_with_the_reason(operator):
    """The gradient of values that its subgraphs capture would silently be zero."""
    rule = """<opset_import: ["" : 17], domain: "own">
    BranchRule (c, dy) => (dc) { dc = Identity (c) }"""
    with pytest.raises(og.OptionError, match="no operator that is the derivative of a subgraph"):
        og.register_gradient(operator, rule)
