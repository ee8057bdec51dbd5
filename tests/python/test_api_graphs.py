"""Gradients, losses and training steps as files: run by stock onnxruntime, compared with NumPy."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import onnxgrad as og
from support import TWO_WITHOUT_GRADIENT, initializers, mlp_proto

ROOT = Path(__file__).resolve().parents[2]


def stock(model):
    onnx.checker.check_model(model, full_check=True)
    return onnxruntime.InferenceSession(model.SerializeToString())


def softmax_cross_entropy(scores, classes):
    shifted = scores - scores.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return -logs[np.arange(len(classes)), classes].mean()


def mlp_loss(weights, X, y):
    hidden = np.maximum(X @ weights["W0"] + weights["b0"], 0)
    return softmax_cross_entropy(hidden @ weights["W1"] + weights["b1"], y)


def central_differences(function, weights):
    """d function / d weights in float64, every element."""
    found = {}
    for name, value in weights.items():
        gradient = np.zeros_like(value)
        for index in np.ndindex(*value.shape):
            step = np.cbrt(np.finfo(float).eps) * max(1.0, abs(value[index]))
            plus, minus = value.copy(), value.copy()
            plus[index] += step
            minus[index] -= step
            difference = function({**weights, name: plus}) - function({**weights, name: minus})
            gradient[index] = difference / (2 * step)
        found[name] = gradient
    return found


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(5)
    return rng.normal(size=(6, 4)), rng.integers(0, 3, 6)


def test_add_loss_keeps_the_file(rows):
    X, y = rows
    model = mlp_proto([4, 5, 3], dtype=np.float64, head="Softmax")
    with_loss = og.add_loss(model, "auto", target="class")
    assert with_loss.ir_version == model.ir_version
    assert with_loss.opset_import == model.opset_import
    count = len(model.graph.node)
    assert list(with_loss.graph.node)[:count] == list(model.graph.node)
    assert [i.name for i in with_loss.graph.input] == ["X", "class"]
    assert [o.name for o in with_loss.graph.output] == ["loss", "Y"]
    loss = stock(with_loss).run(["loss"], {"X": X, "class": y})[0]
    assert loss.shape == ()
    assert loss == pytest.approx(mlp_loss(initializers(model), X, y), rel=1e-12)


def described_model():
    """Y = Scaled(X) @ W with all that a file can say beside its computation."""
    value = onnx.helper.make_tensor_value_info
    scaled = onnx.helper.make_function(
        "local",
        "Scaled",
        ["x"],
        ["y"],
        [onnx.helper.make_node("Add", ["x", "x"], ["y"])],
        [onnx.helper.make_opsetid("", 21)],
    )
    scaled.doc_string = "twice"
    weight = onnx.numpy_helper.from_array(np.ones((3, 1), np.float32), "W")
    weight.doc_string = "the slopes"
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Scaled", ["X"], ["S"], "first", "a call", "local"),
            onnx.helper.make_node("MatMul", ["S", "W"], ["Y"], "second", "a product"),
        ],
        "graph",
        [value("X", onnx.TensorProto.FLOAT, ["N", 3], "the rows")],
        [value("Y", onnx.TensorProto.FLOAT, ["N", 1], "the prediction")],
        [weight],
        doc_string="a graph",
        value_info=[value("S", onnx.TensorProto.FLOAT, ["N", 3], "doubled")],
    )
    graph.node[1].metadata_props.add(key="layer", value="dense")
    graph.metadata_props.add(key="stage", value="all")
    annotation = graph.quantization_annotation.add(tensor_name="S")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="W")
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("local", 1)]
    model = onnx.helper.make_model(
        graph, functions=[scaled], opset_imports=opsets, ir_version=10, doc_string="a model"
    )
    model.producer_name, model.producer_version, model.domain = "maker", "1.2", "org.example"
    model.model_version = 7
    onnx.helper.set_model_props(model, {"author": "nobody", "licence": "none"})
    onnx.checker.check_model(model, full_check=True)
    return model


def test_add_loss_keeps_what_the_file_says_beside_its_computation():
    model = described_model()
    with_loss = og.add_loss(model, "squared_error")
    onnx.checker.check_model(with_loss, full_check=True)
    for field in (
        "metadata_props",
        "doc_string",
        "producer_name",
        "producer_version",
        "domain",
        "model_version",
        "ir_version",
        "opset_import",
    ):
        assert getattr(with_loss, field) == getattr(model, field), field
    for field in ("name", "doc_string", "metadata_props", "quantization_annotation"):
        assert getattr(with_loss.graph, field) == getattr(model.graph, field), field
    # The loss may append to the fields of the model.
    for field in ("node", "input", "initializer", "value_info"):
        was = list(getattr(model.graph, field))
        assert list(getattr(with_loss.graph, field))[: len(was)] == was, field
    assert list(with_loss.functions)[:1] == list(model.functions)
    assert with_loss.graph.output[1] == model.graph.output[0]
    X = np.arange(6, dtype=np.float32).reshape(2, 3)
    loss = stock(with_loss).run(["loss"], {"X": X, "label": np.zeros((2, 1), np.float32)})[0]
    assert loss == pytest.approx(np.mean((2 * X.sum(axis=1)) ** 2))


@pytest.mark.parametrize("function", [og.gradient, og.training_step])
def test_range_of_target_opsets(function):
    for opset in (8, 27):
        with pytest.raises(og.ModelError, match=f"opset {opset}, expected 9 to 26"):
            function(mlp_proto([4, 3]), target_opset=opset)
    for text in (function.__doc__, (ROOT / "docs/first-steps.md").read_text(encoding="utf-8")):
        assert "9 to 26" in text


def test_training_step_in_an_opset_below_17(rows):
    X, y = rows
    model = mlp_proto([4, 5, 3])
    feeds = {"X": X.astype(np.float32), "label": y, "learning_rate": np.array(0.1, np.float32)}
    old, new = (
        stock(og.training_step(model, "cross_entropy", target_opset=opset, inline=True))
        for opset in (13, 26)
    )
    assert [o.name for o in old.get_outputs()] == [o.name for o in new.get_outputs()]
    for got, want in zip(old.run(None, feeds), new.run(None, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("opset", [17, 21, 26])
def test_gradient_of_a_loss(rows, opset, inline):
    X, y = rows
    model = mlp_proto([4, 5, 3], dtype=np.float64)
    weights = initializers(model)
    grad = og.gradient(
        og.add_loss(model, "cross_entropy"), fill_grad=True, target_opset=opset, inline=inline
    )
    # An older operator set comes with the IR version of its time.
    assert grad.ir_version == {17: 8, 21: 10, 26: 10}[opset]
    assert {o.domain: o.version for o in grad.opset_import}[""] == opset
    assert not (inline and grad.functions)
    names = [output.name for output in grad.graph.output]
    assert names == [f"{name}_grad" for name in weights]
    expected = central_differences(lambda w: mlp_loss(w, X, y), weights)
    for session in (stock(grad), og.InferenceSession(grad)):
        found = session.run(names, {"X": X, "label": y, **weights})
        for name, value in zip(weights, found, strict=True):
            np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-9)


def test_gradient_with_a_given_upstream_gradient(linear_proto, linear_data):
    X, _ = linear_data
    grad = og.gradient(linear_proto, ["coef", "X"], keep_outputs=True)
    assert [i.name for i in grad.graph.input] == ["X", "coef", "Y_grad"] or {
        i.name for i in grad.graph.input
    } == {"X", "coef", "Y_grad"}
    upstream = np.random.default_rng(0).normal(size=(len(X), 1)).astype(np.float32)
    coef = initializers(linear_proto)["coef"]
    feeds = {"X": X, "coef": coef, "Y_grad": upstream}
    names = ["coef_grad", "X_grad", "Y"]
    assert [o.name for o in grad.graph.output] == names
    found = stock(grad).run(names, feeds)
    np.testing.assert_allclose(found[0], X.T @ upstream, rtol=1e-4)
    np.testing.assert_allclose(found[1], upstream @ coef.T, rtol=1e-5)
    np.testing.assert_allclose(found[2], X @ coef + 0.125, rtol=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "adam"])
def test_training_step_in_stock_onnxruntime(rows, optimizer):
    X, y = rows
    model = mlp_proto([4, 5, 3], dtype=np.float64)
    step = og.training_step(model, "cross_entropy", optimizer, target_opset=21)
    session = stock(step)
    states = [o.name.removeprefix("next/") for o in session.get_outputs()[1:]]
    defaults = initializers(step)
    assert set(states) <= set(defaults)
    state = {name: defaults[name] for name in states}
    fixed = {i.name: i.type for i in session.get_inputs()}
    assert {"X", "label", "learning_rate"} <= set(fixed)
    rate = np.array(0.1, np.float32 if fixed["learning_rate"] == "tensor(float)" else np.float64)

    described = og.optimizers.from_name(optimizer).replace(lr=0.1)
    ours = og.TrainingSession(model, "cross_entropy", described)
    for _ in range(10):
        loss, *values = session.run(None, {"X": X, "label": y, "learning_rate": rate, **state})
        assert ours.step({"X": X, "label": y}) == pytest.approx(float(loss), rel=1e-10)
        state = dict(zip(states, values, strict=True))
    found = ours.state()
    assert set(found) == set(states)
    for name in states:
        np.testing.assert_allclose(found[name], state[name], rtol=1e-9, atol=1e-12)
    assert loss < 0.9 * mlp_loss(initializers(model), X, y)


def test_initialize_changes_only_the_weights():
    model = mlp_proto([6, 5, 3])
    drawn = og.initialize(model, seed=3)
    assert drawn.SerializeToString() == og.initialize(model, seed=3).SerializeToString()
    old, new = initializers(model), initializers(drawn)
    for name in old:
        assert not np.array_equal(old[name], new[name])
        assert new[name].dtype == old[name].dtype
    bound = np.sqrt(6 / (6 + 5))
    assert 0.8 * bound < np.abs(new["W0"]).max() <= bound
    kept = og.initialize(model, "zeros", weights="W*")
    assert not initializers(kept)["W0"].any()
    np.testing.assert_array_equal(initializers(kept)["b0"], old["b0"])
    for changed in (drawn, kept):
        for proto in (changed, copy := onnx.ModelProto()):
            if proto is copy:
                copy.CopyFrom(model)
            del proto.graph.initializer[:]
        assert changed == copy


def test_set_weights(linear_proto):
    changed = og.set_weights(linear_proto, {"coef": np.array([[3], [4]], np.float32)})
    found = initializers(changed)
    np.testing.assert_array_equal(found["coef"], [[3], [4]])
    np.testing.assert_array_equal(found["intercept"], [0.125])
    with pytest.raises(og.ModelError, match="coef"):
        og.set_weights(linear_proto, {"coef": np.zeros((3, 1), np.float32)})
    with pytest.raises(og.ModelError, match="'coef'"):
        og.set_weights(linear_proto, {"coeff": np.zeros((2, 1), np.float32)})


def test_report(linear_proto):
    found = og.report(linear_proto)
    assert found.opset == 17
    assert (found.num_trainable, found.num_parameters) == (3, 3)
    assert [use.op_type for use in found.operators] == ["Add", "MatMul"]
    assert all(use.runs and use.has_gradient for use in found.operators)
    assert [weight.name for weight in found.weights] == ["coef", "intercept"]
    assert found.missing_gradients == []
    assert "squared error" in found.loss_line
    text = str(found)
    assert "coef" in text
    assert max(len(line) for line in text.splitlines()) <= 100
    assert found.to_dict()["weights"][0]["shape"] == (2, 1)


def table_of(text, first):
    """The rows of the table of a report whose first title is `first`, split at wide gaps."""
    lines = text.split(f"\n{first} ")[1].split("\n\n")[0].splitlines()[1:]
    return [re.split(r" {2,}", line.strip()) for line in lines]


def test_report_lists_every_weight():
    found = og.report(mlp_proto([20, 30, 3], head="Softmax"))
    *weights, totals = table_of(str(found), "weight")
    assert weights == [
        ["W0", "MatMul matmul_0", "float32", "[20, 30]", "600", "1200", "yes"],
        ["b0", "Add add_0", "float32", "[30]", "30", "30", "yes"],
        ["W1", "MatMul matmul_1", "float32", "[30, 3]", "90", "180", "yes"],
        ["b1", "Add add_1", "float32", "[3]", "3", "3", "yes"],
    ]
    assert totals == [
        "723 parameters (2.8 KiB): 723 trained, 0 frozen; 1413 FLOPs per row in a forward pass"
    ]
    assert table_of(str(found), "operator")[1] == ["MatMul", "2", "yes", "yes"]
    as_json = json.loads(json.dumps(found.to_dict()))
    assert as_json["weights"][0]["num_parameters"] == 600
    assert (as_json["num_frozen"], as_json["num_bytes"]) == (0, 4 * 723)


LAYERS = """
<ir_version: 8, opset_import: ["" : 17]>
main (float[N, 4, 6, 5] X, int64[N, 3] ids) =>
  (float[N, 2, 9, 9] Y, float[N, 3, 7] Z, float[5, N] T)
{
  c = Conv<group = 2>(X, conv, bias)  Y = ConvTranspose<strides = [2, 2]>(c, up)
  e = Gather(table, ids)  back = Transpose<perm = [1, 0]>(square)  z = MatMul(e, back)
  Z = Mul(z, scale)
  one = ReduceMean<axes = [1], keepdims = 0>(e)  turned = Transpose<perm = [1, 0]>(one)
  T = MatMul(left, turned)
}
"""
SHAPES = {
    "conv": (6, 2, 3, 2),
    "bias": (6,),
    "up": (6, 2, 3, 2),
    "table": (10, 4),
    "square": (7, 4),
    "left": (5, 4),
    "scale": (7,),
}


def test_operations_of_layers():
    """Counted by hand, for one row: two for each product and its sum."""
    model = onnx.parser.parse_model(LAYERS)
    for name, dims in SHAPES.items():
        model.graph.initializer.append(
            onnx.numpy_helper.from_array(np.ones(dims, np.float32), name)
        )
    found = og.report(model)
    flops = dict(zip([weight.name for weight in found.weights], found.weight_flops, strict=True))
    # Each of 6 x 4 x 4 results sums 2 x 3 x 2 products; 6 x 4 x 4 inputs meet 2 x 3 x 2 weights.
    assert flops["conv"] == 2 * (6 * 4 * 4) * (2 * 3 * 2)
    assert flops["bias"] == 6 * 4 * 4
    assert flops["up"] == 2 * (6 * 4 * 4) * (2 * 3 * 2)
    assert flops["table"] == 0
    assert flops["square"] == 2 * 3 * 7 * 4
    assert flops["scale"] == 3 * 7
    assert flops["left"] == 2 * 5 * 4
    assert found.flops == sum(flops.values())


def test_report_counts_what_is_frozen():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[N, 2] X) => (float[N, 2] Y)
        <double[2] scale = {1, 2}, float[2, 2] w = {1, 2, 3, 4}, int64[1] axes = {1}>
        { c = Cast<to = 1>(scale)  s = Shape(c)  z = Cast<to = 1>(s)
          m = MatMul(X, w)  n = Mul(m, z)  r = ReduceSum(n, axes)  Y = Sub(n, r) }"""
    )
    found = og.report(model)
    assert (found.num_trainable, found.num_frozen, found.num_bytes) == (4, 2, 4 * 4 + 2 * 8)
    assert [row[-1] for row in table_of(str(found), "weight")[:-1]] == ["no", "yes"]


def test_report_in_a_notebook(linear_proto):
    linear_proto = onnx.ModelProto.FromString(linear_proto.SerializeToString())
    linear_proto.producer_name = "<b>&"
    page = ElementTree.fromstring(f"<div>{closed(og.report(linear_proto)._repr_html_())}</div>")
    cells = [[cell.text for cell in row] for row in page.iter("tr")]
    assert ["coef", "MatMul", "float32", "[2, 1]", "2", "4", "yes"] in cells
    assert page.find("b").text.endswith("produced by <b>&")
    assert len(og.report(mlp_proto([3] * 500))._repr_html_()) < 10_000
    assert "and 968 more" in og.report(mlp_proto([3] * 500))._repr_html_()


def test_report_says_the_same_in_a_notebook():
    found = og.report(mlp_proto([20, 30, 3], head="Softmax"))
    page = ElementTree.fromstring(f"<div>{closed(found._repr_html_())}</div>")
    rows = [[cell.text for cell in row] for row in page.iter("tr")]
    tables = [table_of(str(found), first) for first in ("operator", "weight")]
    totals = tables[1].pop()
    assert [row for row in rows if row[0] not in ("operator", "weight")] == tables[0] + tables[1]
    assert totals == [page.findall("p")[1].text]


def test_report_is_not_cut():
    model = onnx.parser.parse_model("""
      <ir_version: 10, opset_import: ["" : 21]>
      m (float[N, 2] x) => (float[N, 2] y) <float[1, 1, 1, 1, 1, 2, 2] w = {1, 2, 3, 4}>
      {
        s = Constant <value_ints = [2, 2]> ()
        v = Reshape (w, s)
        [the_node_of_a_layer_with_a_long_name_indeed] y = MatMul (x, v)
      }
    """)
    text = str(og.report(model))
    assert "MatMul the_node_of_a_layer_with_a_long_name_indeed" in text
    assert "[1, 1, 1, 1, 1, 2, 2]" in text
    model.graph.node[2].name = "n" * 5000
    widest = sorted(len(line) for line in str(og.report(model)).splitlines())[-2:]
    assert widest[0] < 200  # a long cell does not widen its column
    assert widest[1] > 5000


def test_report_of_names_beyond_ascii():
    model = onnx.ModelProto.FromString(mlp_proto([3, 2]).SerializeToString())
    name = "größe_" * 9
    for field in (model.graph.initializer[0], model.graph.node[0]):
        field.name = name
    model.graph.node[0].input[1] = name
    line = next(row for row in str(og.report(model)).splitlines() if row.startswith("größe_"))
    cells = re.split(r" {2,}", line)
    assert cells[0] == name
    assert cells[1] == f"MatMul {name}"
    assert line.encode().decode() == line


def test_change_of_weights(linear_proto):
    zero = og.set_weights(linear_proto, {"intercept": np.zeros(1, np.float32)})
    changes = og.weight_change(zero, linear_proto)
    assert [change.name for change in changes] == ["coef", "intercept"]
    assert [change.relative for change in changes] == [0, np.inf]
    assert "intercept" in changes._repr_html_()
    with pytest.raises(og.ModelError, match=r"'W0' \[3, 2\] is \[3, 4\] in the second"):
        og.weight_change(mlp_proto([3, 2, 1]), mlp_proto([3, 4, 1]))
    with pytest.raises(og.ModelError, match=r"'W1' .* is missing"):
        og.weight_change(mlp_proto([3, 2, 1]), mlp_proto([3, 2]))


def closed(page):
    return page.replace("<br>", "<br/>").replace("colspan=6", 'colspan="6"')


def test_report_names_what_has_no_gradient():
    found = og.report(onnx.parser.parse_model(TWO_WITHOUT_GRADIENT))
    used = {use.op_type: use for use in found.operators}
    assert used["Conv"].has_gradient
    assert not used["OptionalGetElement"].has_gradient
    gaps = {gap.node for gap in found.missing_gradients if gap.op_type == "OptionalGetElement"}
    assert gaps == {"first_get", "second_get"}


REPORTED = """<ir_version: 10, opset_import: ["" : 24, "ai.onnx.ml" : 3]>
main (float[2, 4, 8] X) => (float[2, 4, 8] Y)
{
  half = Constant <value = float {0.5}> ()
  q = MatMul (X, a_weight_with_a_very_long_name_of_many_characters)
  k = MatMul (q, a_weight_with_a_very_long_name_of_many_characters)
  n = RMSNormalization (k, scale)
  z = Attention <q_num_heads = 2, kv_num_heads = 2> (n, k, q)
  Y = Mul (z, half)
}"""


def test_reports_of_what_runs_through_definitions_and_of_weights():
    model = onnx.parser.parse_model(REPORTED)
    rng = np.random.default_rng(0)
    shapes = {"a_weight_with_a_very_long_name_of_many_characters": (8, 8), "scale": (8,)}
    for name, shape in shapes.items():
        array = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    found = og.report(model)
    for use in found.operators:
        assert (use.runs, use.has_gradient) == (True, True), use.op_type
    assert "a_weight_with_a_very_long_name_of_many_characters" in str(found)
    assert "MatMul and 1 more" in str(found)
    assert found.to_dict()["weights"][0]["readers"] == 2
    og.TrainingSession(model, "mse").step(
        {"X": np.ones((2, 4, 8), np.float32), "label": np.ones((2, 4, 8), np.float32)}
    )


def test_report_of_a_zip_map_and_of_what_has_no_kernel():
    labelled = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
        main (float[N, 2] X) => (seq(map(int64, float)) Z) <float[2, 2] w = {1, 2, 3, 4}>
        { s = MatMul (X, w) p = Softmax (s)
          Z = ai.onnx.ml.ZipMap <classlabels_int64s = [0, 1]> (p) }"""
    )
    uses = {use.op_type: use for use in og.report(labelled).operators}
    assert (uses["ZipMap"].runs, uses["ZipMap"].has_gradient) == (True, True)
    uses = {
        use.op_type: use
        for use in og.report(onnx.parser.parse_model(TWO_WITHOUT_GRADIENT)).operators
    }
    assert not uses["OptionalGetElement"].has_gradient


def test_add_loss_with_a_newer_opset():
    old = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 9]>
        main (float[N, 2] X) => (float[N, 3] Y) <float[2, 3] w = {1, 2, 3, 4, 5, 6}>
        { Y = MatMul (X, w) }"""
    )
    loss = og.losses.SoftmaxCrossEntropy()
    try:
        og.add_loss(old, loss)
    except og.ModelError as error:
        assert "target_opset" in str(error)  # noqa: PT017
    newer = og.add_loss(old, loss, target_opset=17)
    assert newer.opset_import[0].version == 17
    onnx.checker.check_model(newer, full_check=True)
    assert [value.name for value in newer.graph.output] == ["loss", "Y"]
