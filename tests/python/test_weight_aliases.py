"""Weights that exporters named: aliases, state dictionaries, tied tables."""

import warnings
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxgrad as og

DATA = Path(__file__).parents[1] / "data" / "torch_names"
EXPORTS = [
    f"{name}.{kind}" for name in ("encoder", "cells", "bert") for kind in ("dynamo", "script")
]
EXPORTS += ["tied.dynamo", "tied.script"]
# Parameters that are in no tensor of the file as they are: torch.export unrolls an nn.RNN and adds
# its biases to the inputs, and looks up the constant positions.
FOLDED = {
    "cells.dynamo": {"rnn.bias_ih_l0", "rnn.bias_hh_l0"},
    "bert.dynamo": {"net.bert.embeddings.position_embeddings.weight"},
}


def torch_values(name, prefix="state"):
    values = np.load(DATA / f"{name.split('.')[0]}.npz")
    start = prefix + "/"
    return values, {key[len(start) :]: values[key] for key in values if key.startswith(start)}


def run(model, x):
    path = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def names_of(weight):
    return (weight.name, *weight.aliases)


@pytest.mark.parametrize("name", EXPORTS)
def test_state_dict_is_torchs(name):
    path = DATA / f"{name}.onnx"
    _, expected = torch_values(name)
    found = og.state_dict(path)
    if name.startswith("tied"):  # the file holds the table twice
        expected.setdefault("head.weight", expected["table.weight"])
    for key, array in expected.items():
        if key in FOLDED.get(name, ()):
            continue
        np.testing.assert_array_equal(found[key], array, err_msg=key)
    assert name in FOLDED or set(found) == set(expected)


@pytest.mark.parametrize("name", EXPORTS)
def test_loaded_state_computes_what_torch_computes(name):
    values, other = torch_values(name, "other")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = og.load_state_dict(DATA / f"{name}.onnx", other, strict=name not in FOLDED)
    if name not in FOLDED:
        np.testing.assert_allclose(run(model, values["x"]), values["other_y"], atol=2e-6)
        assert og.load_state_dict(model, torch_values(name)[1]) == onnx.load(DATA / f"{name}.onnx")


@pytest.mark.parametrize("name", EXPORTS)
def test_every_parameter_of_torch_is_matched_by_its_name(name):
    _, state = torch_values(name)
    weights = [weight for weight in og.report(DATA / f"{name}.onnx").weights if weight.is_floating]
    graph = onnx.load(DATA / f"{name}.onnx").graph
    values = {value for node in graph.node for value in (*node.input, *node.output)}
    aliases = [alias for weight in weights for alias in weight.aliases]
    assert len(aliases) == len(set(aliases))
    assert not set(aliases) & values
    found = {one for weight in weights for one in names_of(weight)}
    assert {key for key in state if key not in found} <= FOLDED.get(name, set())


@pytest.mark.parametrize("kind", ["dynamo", "script"])
def test_patterns_take_aliases_everywhere(kind, tmp_path):
    path = DATA / f"encoder.{kind}.onnx"
    matrix = "enc.layers.0.linear1.weight"
    (stored,) = (w.name for w in og.report(path).weights if matrix in w.aliases)

    def trained(session):
        return {weight.name for weight in session.trained_weights}

    session = og.TrainingSession(path, "cross_entropy", frozen="enc.layers.0.*")
    assert not any(
        one.startswith("enc.layers.0") for w in session.trained_weights for one in names_of(w)
    )
    session.unfreeze(matrix)
    assert stored in trained(session)
    session.freeze("*linear1.weight")
    assert stored not in trained(session)
    session = og.TrainingSession(
        path,
        "cross_entropy",
        trainable=[matrix],
        penalty=og.losses.Penalty(l2=0.1, weights=matrix),
        groups=og.optimizers.ParameterGroup(matrix, weight_decay=0.0),
        outputs=[f"{matrix}_grad"],
    )
    assert trained(session) == {stored}
    assert f"penalty on '{stored}'" in session.loss_line
    values, _ = torch_values("encoder")
    _, (gradient,) = session.step({"x": values["x"], "label": np.array([0, 1])})
    assert gradient.shape == (8, 6)

    assert [o.name for o in og.gradient(path, wrt=matrix).graph.output] == [f"{stored}_grad"]
    assert len(og.gradient(path, wrt="*linear1.weight").graph.output) == 2
    checked = og.check_gradients(path, wrt=[matrix], samples=3)
    assert [one.name for one in checked.inputs] == [stored]
    assert checked.ok
    with pytest.raises(og.ModelError, match="no floating-point input or weight 'linear9'"):
        og.check_gradients(path, wrt="linear9")
    new = og.set_weights(path, {matrix: np.zeros((8, 6), np.float32)})
    assert not og.state_dict(new)[matrix].any()
    drawn = og.state_dict(og.initialize(path, weights=matrix))
    before = og.state_dict(path)
    assert [key for key in before if not np.array_equal(before[key], drawn[key])] == [matrix]
    assert f"{stored} ({matrix})" in str(og.report(path))


def test_a_pattern_that_takes_the_bias_alone_warns():
    def f(*shape):
        return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)

    nodes = [
        helper.make_node("MatMul", ["x", "matrix_of_one"], ["a"]),
        helper.make_node("Add", ["a", "enc.one.bias"], ["b"]),
        helper.make_node("Tanh", ["b"], ["c"]),
        helper.make_node("Gemm", ["c", "enc.two.weight", "enc.two.bias"], ["y"]),
    ]
    shapes = {"matrix_of_one": (3, 4), "enc.one.bias": (4,), "enc.two.weight": (4, 2)}
    weights = {name: f(*shape) for name, shape in (shapes | {"enc.two.bias": (2,)}).items()}
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with pytest.warns(
        UserWarning, match=r"'enc\*' matches the bias 'enc.one.bias' .*'matrix_of_one'"
    ):
        session = og.TrainingSession(model, "squared_error", frozen=["enc*"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        og.TrainingSession(model, "squared_error", frozen=["*.bias"])
        og.TrainingSession(model, "squared_error", frozen=["enc*two*", "enc.one.bias"])
        og.TrainingSession(model, "squared_error", frozen=["enc.one*", "matrix_of_one"])
        session = og.TrainingSession(model, "squared_error")
    with pytest.warns(UserWarning, match="matrix_of_one"):
        session.freeze("enc.one*")


class Parameter:
    """An array that, as torch's parameters, gives its numbers only without its gradient."""

    requires_grad = True

    def __init__(self, array):
        self.array = array

    def detach(self):
        return self.array

    def __array__(self, *args, **kwargs):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

    __dlpack__ = __array__


def test_parameters_with_gradients_and_other_dtypes_are_loaded():
    path = DATA / "tied.dynamo.onnx"
    values, other = torch_values("tied", "other")
    state = {key: Parameter(array.astype(np.float64)) for key, array in other.items()}
    loaded = og.load_state_dict(path, state)
    np.testing.assert_allclose(run(loaded, values["x"]), values["other_y"], atol=2e-6)


def test_missing_and_unexpected_keys_are_all_named():
    path = DATA / "tied.dynamo.onnx"
    _, state = torch_values("tied")
    del state["head.weight"]  # the file's copy of the table, which is still given
    og.load_state_dict(path, state | {"bn.num_batches_tracked": np.array(3)})
    del state["hidden.bias"], state["hidden.weight"]
    state |= {"more.weight": np.zeros(2), "more.bias": np.zeros(2)}
    with pytest.raises(og.ModelError) as error:
        og.load_state_dict(path, state)
    for text in ('Missing key(s) in state_dict: "hidden', '"hidden.weight"', '"hidden.bias"',
                 'Unexpected key(s) in state_dict: "more.weight", "more.bias"'):  # fmt: skip
        assert text in str(error.value)
    with pytest.warns(UserWarning, match="missing .*unexpected 'more.weight', 'more.bias'"):
        og.load_state_dict(path, state, strict=False)
    with pytest.raises(og.ModelError, match=r"size mismatch for table.weight: \[3, 4\].*\[9, 4\]"):
        og.load_state_dict(path, {"table.weight": np.zeros((3, 4))}, strict=False)


def test_folded_normalisations_are_unexpected():
    _, state = torch_values("convolutions")
    with pytest.raises(og.ModelError, match=r"(?s)Unexpected.*bn1.weight.*BatchNormalization"):
        og.load_state_dict(DATA / "convolutions.script.onnx", state)
    found = og.state_dict(DATA / "convolutions.script.onnx")
    np.testing.assert_array_equal(found["fc.weight"], state["fc.weight"])
    assert "conv1.weight" in found
    assert "conv1.bias" in found


@pytest.mark.parametrize("kind", ["dynamo", "script"])
def test_a_tied_table_is_one_weight(kind):
    path = DATA / f"tied.{kind}.onnx"
    values, state = torch_values("tied")
    x = values["x"]
    assert any("transposed" in one for one in og.report(path).tied)
    session = og.TrainingSession(path, "cross_entropy", "sgd", outputs=["gradient_norm"])
    assert "trained as one" in session.weights_line
    label = np.roll(x, -1, axis=1)
    session.step({"x": x, "label": label})
    trained = og.state_dict(session.trained_model())
    np.testing.assert_array_equal(trained["table.weight"], trained["head.weight"])
    # The gradient is the sum of those of the two tensors.
    lr = session.lr
    apart = og.gradient(og.add_loss(path, og.losses.SoftmaxCrossEntropy(axis=-1)), fill_grad=True)
    feeds = {"x": x, "label": label}
    weights = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    stock = onnxruntime.InferenceSession(
        apart.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feeds |= {i.name: weights[i.name] for i in stock.get_inputs() if i.name in weights}
    gradients = dict(
        zip([o.name for o in stock.get_outputs()], stock.run(None, feeds), strict=True)
    )
    total = sum(g if g.shape == (9, 4) else g.T for g in gradients.values() if g.size == 36)
    np.testing.assert_allclose(
        trained["table.weight"], state["table.weight"] - lr * total, atol=1e-6
    )
    frozen = og.TrainingSession(path, "cross_entropy", frozen="head.weight")
    assert all(weight.num_parameters != 36 for weight in frozen.trained_weights)


def test_a_transposed_copy_without_names_is_the_table():
    table = np.random.default_rng(0).normal(size=(11, 6)).astype(np.float32)
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (int64[N, T] ids) => (float[N, T, 11] scores)
        { e = Gather(table, ids)  t = Tanh(e)  scores = MatMul(t, copy) }""")
    for name, array in (("table", table), ("copy", np.ascontiguousarray(table.T))):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    session = og.TrainingSession(model, "cross_entropy", "adam")
    ids = np.arange(40).reshape(8, 5) % 11
    for _ in range(10):
        session.step({"ids": ids, "label": np.roll(ids, -1, axis=1)})
    found = {t.name: numpy_helper.to_array(t) for t in session.trained_model().graph.initializer}
    np.testing.assert_array_equal(found["table"].T, found["copy"])
    assert not np.array_equal(found["table"], table)


def test_equal_numbers_by_accident_stay_separate():
    def model(first, second):
        nodes = [
            helper.make_node("Gather", ["E", "ids"], ["e"]),
            helper.make_node("MatMul", ["e", "F"], ["logits"]),
        ]
        graph = helper.make_graph(
            nodes, "g", [helper.make_tensor_value_info("ids", TensorProto.INT64, ["N"])],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 5])],
            [numpy_helper.from_array(first, "E"), numpy_helper.from_array(second, "F")],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    random = np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32)
    assert og.report(model(random, random.T.copy())).tied == ["'F' is 'E' transposed"]
    for first, second in (
        (np.full((5, 5), 0.5, np.float32), np.full((5, 5), 0.5, np.float32)),
        (np.eye(5, dtype=np.float32), np.eye(5, dtype=np.float32)),
        (random, random.copy()),  # not transposed: layers that began with the same numbers
        (random, np.where(np.arange(25).reshape(5, 5) == 7, 9, random.T).astype(np.float32)),
    ):
        assert og.report(model(first, second)).tied == []
