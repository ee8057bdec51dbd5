"""Helpers of the compatibility layer: names, small functions, values, batches, texts."""

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxgrad.compat.onnxcustom as onnxcustom
from compat_models import POINTS, names, polynomial, run
from onnxgrad.compat.mlprodict.onnx_tools.onnx_manipulations import (
    onnx_rename_names,
    select_model_inputs_outputs,
)
from onnxgrad.compat.mlprodict.onnxrt import OnnxInference
from onnxgrad.compat.mlprodict.plotting.text_plot import onnx_simple_text_plot, onnx_text_plot_io
from onnxgrad.compat.onnxcustom.training.data_loader import OrtDataLoader
from onnxgrad.compat.onnxcustom.utils import onnx_helper, onnxruntime_helper
from onnxgrad.compat.onnxcustom.utils.onnx_function import (
    function_onnx_graph,
    get_supported_functions,
)
from onnxgrad.compat.onnxcustom.utils.onnx_rewriter import (
    onnx_rewrite_operator,
    unreduced_onnx_loss,
)
from onnxgrad.compat.onnxcustom.utils.onnx_split import OnnxSegment, OnnxSplitting, split_onnx
from onnxgrad.compat.onnxcustom.utils.print_helper import str_ortvalue
from onnxgrad.compat.onnxruntime import OrtDevice, OrtValue, OrtValueVector
from onnxgrad.compat.onnxruntime.capi._pybind_state import C_OrtValue
from onnxgrad.compat.onnxruntime.values import array_of

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(2, 5, 1)).astype(np.float32)
G = RNG.normal(size=(5, 1)).astype(np.float32)
W = RNG.uniform(0.5, 2, 5).astype(np.float32)
ALPHA, BETA = np.array([0.3], np.float32), np.array([0.7], np.float32)


def test_versions():
    assert onnxcustom.__max_supported_opset__ >= 15
    assert onnxcustom.__version__


def sigmoid_case(w):
    t = (A > 0).astype(np.int64)
    p = 1 / (1 + np.exp(-B.astype(np.float64)))
    loss = np.sum(w * -(t * np.log(p) + (1 - t) * np.log(1 - p)))
    return {"X1": t, "X2": B}, [loss, w * (p - t)]


# name -> (options, feeds, expected outputs), all computed in NumPy.
def function_cases(w):
    d = A - B
    two = {"X1": A, "X2": B}
    velocity = BETA * G + ALPHA * A
    l1, l2 = 0.2, 0.7
    weights = {"l1_weight": l1, "l2_weight": l2}
    elastic = l1 * np.abs(A).sum() + l2 * (A**2).sum()
    elastic_grad = l1 * np.sign(A) + 2 * l2 * A
    sizes = np.abs(G).sum() * l1 + (G**2).sum() * l2
    several = {"loss": np.ones((1, 1), np.float32), "W0": A, "W1": G}
    return {
        "axpy": ({}, {**two, "alpha": ALPHA}, [ALPHA * A + B]),
        "axpyw": (
            {},
            {**two, "G": G, "alpha": ALPHA, "beta": BETA},
            [velocity + B, velocity],
        ),
        "axpyw2": (
            {},
            {**two, "G": G, "alpha": ALPHA, "beta": BETA},
            [BETA * velocity + ALPHA * A + B, velocity],
        ),
        "copy": ({}, {"X": A}, [A]),
        "zero": ({}, {"X": A}, [0 * A]),
        "square_error": ({}, two, [np.sum(w * d**2)]),
        "grad_square_error": ({}, two, [-2 * w * d]),
        "linear_regression": (
            {},
            {"X": A, "A": np.array([[2]], np.float32), "B": ALPHA},
            [2 * A + ALPHA],
        ),
        "grad_loss_square_error": ({}, two, [np.sum(w * d**2), -2 * w * d]),
        "grad_loss_absolute_error": ({}, two, [np.sum(w * np.abs(d)), -w * np.sign(d)]),
        "grad_loss_elastic_error": (
            weights,
            two,
            [
                np.sum(w * (l1 * np.abs(d) + l2 * d**2)),
                -w * (l1 * np.sign(d) + 2 * l2 * d),
            ],
        ),
        "grad_sigmoid_neg_log_loss_error": ({}, *sigmoid_case(w)),
        "grad_penalty_elastic_error": (weights, {"X": A}, [elastic, elastic_grad]),
        "update_penalty_elastic_error": ({"l1": l1, "l2": l2}, {"X": A}, [A - elastic_grad]),
        "n_penalty_elastic_error": (
            {**weights, "n_tensors": 2},
            several,
            [1 + elastic + sizes],
        ),
    }


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", get_supported_functions())
def test_function(name, weighted):
    w = W[:, None] if weighted else np.ones((5, 1), np.float32)
    options, feeds, expected = function_cases(w)[name]
    takes_weight = "loss" in name or name in ("square_error", "grad_square_error")
    if weighted and not takes_weight:
        with pytest.raises(ValueError, match="takes no weight"):
            function_onnx_graph(name, weight_name="weight", **options)
        return
    model = function_onnx_graph(name, weight_name="weight" if weighted else None, **options)
    found = run(model, {**feeds, **({"weight": W} if weighted else {})})
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value.reshape(np.shape(wanted)), wanted, rtol=2e-5, atol=1e-6)


def test_function_of_another_type_and_opset():
    model = function_onnx_graph("axpy", target_opset=17, dtype=np.float64)
    assert model.opset_import[0].version == 17
    feeds = {"X1": A.astype(float), "X2": B.astype(float), "alpha": np.array([2.0])}
    np.testing.assert_array_equal(run(model, feeds)[0], 2 * feeds["X1"] + feeds["X2"])
    with pytest.raises(ValueError, match="Unable to find function"):
        function_onnx_graph("no")
    with pytest.raises(ValueError, match="has no option"):
        function_onnx_graph("axpy", eps=1)


def test_rename_names_keeps_inputs_and_outputs():
    before = run(polynomial(), {"x": POINTS})[0]
    model = onnx_rename_names(polynomial())
    assert names(model.graph.input) == ["x"]
    assert names(model.graph.output) == ["y"]
    assert names(model.graph.initializer) == [f"i{i}" for i in range(7)]
    results = [name for node in model.graph.node for name in node.output]
    assert results == [*(f"r{i}" for i in range(10)), "y"]
    np.testing.assert_array_equal(run(model, {"x": POINTS})[0], before)


def test_rename_names_in_bodies():
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    m (float[2] x, bool b) => (float[2] y) <float[2] w = {1, 2}>
    {
      h = Mul(x, w)
      y = If <then_branch = t () => (float[2] a) { u = Add(h, w)  a = Neg(u) },
              else_branch = e () => (float[2] a) { a = Identity(h) }> (b)
    }
    """
    model = onnx.parser.parse_model(text)
    feeds = [{"x": np.array([3, 4], np.float32), "b": np.array(value)} for value in (True, False)]
    before = [run(model, feed)[0] for feed in feeds]
    renamed = onnx_rename_names(model)
    assert [*renamed.graph.node[0].output] == ["r0"]
    for feed, value in zip(feeds, before, strict=True):
        np.testing.assert_array_equal(run(renamed, feed)[0], value)


def test_rename_weights_gives_prefixes_in_order():
    model = onnx_helper.onnx_rename_weights(polynomial())
    assert names(model.graph.initializer)[:3] == ["I0_init", "I1_init_1", "I2_init_2"]
    many = polynomial()
    for i in range(5):
        many = onnx_helper.add_initializer(many, f"w{i}", np.zeros(1, np.float32))
    renamed = names(onnx_helper.onnx_rename_weights(many).graph.initializer)
    assert renamed[0] == "I00_init"
    assert renamed == sorted(renamed)


def test_select_a_part():
    part = select_model_inputs_outputs(polynomial(), outputs=["out_add_0"])
    assert names(part.graph.initializer) == ["init", "init_1"]
    value = run(part, {"x": POINTS})[0]
    np.testing.assert_allclose(value, POINTS * [-2, 3] + POINTS**2 * [0.5, -0.33333], rtol=1e-6)
    tail = select_model_inputs_outputs(polynomial(), inputs="out_add_0")
    np.testing.assert_allclose(
        run(tail, {"out_add_0": value})[0], run(polynomial(), {"x": POINTS})[0], rtol=1e-6
    )
    with pytest.raises(ValueError, match="Unable to find 'no'"):
        select_model_inputs_outputs(polynomial(), outputs="no")


def test_types_and_opsets():
    assert onnx_helper.get_onnx_opset(polynomial()) == 14
    with pytest.raises(ValueError, match="Unable to find opset"):
        onnx_helper.get_onnx_opset(polynomial(), "no")
    assert onnx_helper.proto_type_to_dtype(onnx.TensorProto.FLOAT) is np.float32
    assert onnx_helper.proto_type_to_dtype("tensor(double)") is np.float64
    assert onnx_helper.dtype_to_var_type(np.float32).__name__ == "FloatTensorType"
    with pytest.raises(ValueError, match="Unexpected"):
        onnx_helper.proto_type_to_dtype("map(int64)")


def test_replace_initializers():
    new = {"init": np.array([[1, 2]], np.float64), "init_b10": OrtValue(np.ones(1, np.float32))}
    model = onnx_helper.replace_initializers_into_onnx(polynomial(), new)
    expected = POINTS * [-2, 3] + POINTS**2 * [1, 2]
    np.testing.assert_allclose(
        run(model, {"x": POINTS})[0], expected.sum(axis=1, keepdims=True) + 1, rtol=1e-6
    )
    with pytest.raises(ValueError, match="Unable to find initializer"):
        onnx_helper.replace_initializers_into_onnx(polynomial(), {"no": A})
    with pytest.raises(ValueError, match="has shape"):
        onnx_helper.replace_initializers_into_onnx(polynomial(), {"init": A})
    with pytest.raises(ValueError, match="already taken"):
        onnx_helper.add_initializer(polynomial(), "init", A)


def test_rewrite_operator():
    text = """
    <ir_version: 8, opset_import: ["" : 15]>
    m (float[N] x) => (float[N] y) { h = Reciprocal(x)  z = Reciprocal(h)  y = Add(z, h) }
    """
    sub = """
    <ir_version: 8, opset_import: ["" : 15]>
    r (float[N] X) => (float[N] Y) <float[1] one = {1}> { Y = Div(one, X) }
    """
    model = onnx_rewrite_operator(
        onnx.parser.parse_model(text), "Reciprocal", onnx.parser.parse_model(sub)
    )
    assert [node.op_type for node in model.graph.node] == ["Div", "Div", "Add"]
    np.testing.assert_allclose(run(model, {"x": W})[0], W + 1 / W, rtol=1e-6)


def test_unreduced_loss():
    model = unreduced_onnx_loss(function_onnx_graph("square_error"))
    value = run(model, {"X1": A, "X2": B})[0]
    np.testing.assert_allclose(value, (A - B) ** 2, rtol=1e-6)
    with pytest.raises(ValueError, match="not a ReduceSum"):
        unreduced_onnx_loss(function_onnx_graph("copy"))


@pytest.mark.parametrize(
    "options", [{"n_parts": 2}, {"n_parts": 3}, {"cut_points": ["out_add_0", "out_add_0_1"]}]
)
def test_parts_one_after_the_other_are_the_model(options):
    model = polynomial()
    parts = split_onnx(model, **options)
    assert len(parts) == options.get("n_parts", 3)
    value = POINTS
    for part in parts:
        value = run(part, {part.graph.input[0].name: value})[0]
    np.testing.assert_array_equal(value, run(model, {"x": POINTS})[0])
    with pytest.raises(ValueError, match="Unable to split"):
        split_onnx(model, cut_points=["out_sli_0"])


def test_values_share_memory():
    value = OrtValue.ortvalue_from_numpy(A, "cpu", 0)
    assert value.data_ptr() == A.ctypes.data
    assert value.numpy() is A
    assert (value.shape(), value.data_type()) == ([5, 1], "tensor(float)")
    assert value.element_type() == value.proto_type() == onnx.TensorProto.FLOAT
    assert value.device_name() == "cpu"
    assert value._ortvalue is value
    assert OrtValue.from_dlpack(value).data_ptr() == A.ctypes.data
    assert np.asarray(value).ctypes.data == A.ctypes.data
    assert C_OrtValue is OrtValue
    value = OrtValue.ortvalue_from_shape_and_type([2], np.int64)
    value.update_inplace(np.array([1, 2]))
    assert value.numpy().tolist() == [1, 2]
    with pytest.raises(ValueError, match="does not fit"):
        value.update_inplace(A)
    with pytest.raises(RuntimeError, match="not available"):
        OrtValue.ortvalue_from_numpy(A, "cuda")


@pytest.mark.parametrize("inner", [False, True])
def test_stock_values_are_taken_without_a_copy(inner):
    stock = onnxruntime.OrtValue.ortvalue_from_numpy(A)
    given = stock._ortvalue if inner else stock
    assert array_of(given).ctypes.data == stock.data_ptr()
    np.testing.assert_array_equal(array_of(given), A)
    vector = OrtValueVector([given, A])
    vector.push_back(B)
    assert [value.data_ptr() for value in vector] == [
        stock.data_ptr(), A.ctypes.data, B.ctypes.data,
    ]  # fmt: skip
    with pytest.raises(TypeError, match="neither"):
        vector.push_back("text")


def test_devices():
    helper = onnxruntime_helper
    for name in ("cpu", "cuda", "cuda:1"):
        assert helper.ort_device_to_string(helper.get_ort_device(name)) == name
    assert helper.get_ort_device("gpu").device_type() == OrtDevice.cuda()
    assert helper.device_to_providers("cpu") == ["CPUExecutionProvider"]
    assert helper.device_to_providers("cuda:0")[0] == "CUDAExecutionProvider"
    assert helper.provider_to_device("CUDAExecutionProvider") == "cuda"
    assert helper.numpy_to_ort_value(A, helper.get_ort_device("cpu")).data_ptr() == A.ctypes.data
    with pytest.raises(ValueError, match="Unable to interpret"):
        helper.get_ort_device("tpu")
    session = onnxruntime.InferenceSession(
        polynomial().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    assert helper.get_ort_device_from_session(session).device_type() == OrtDevice.cpu()


def test_value_as_text():
    text = str_ortvalue(OrtValue(np.arange(20, dtype=np.float32)))
    assert "device=Cpu" in text
    assert "shape=(20,)" in text
    assert "[0.0, 1.0, 2.0, 3.0, 4.0, ..., 15.0, 16.0, 17.0, 18.0, 19.0]" in text
    stock = onnxruntime.OrtValue.ortvalue_from_numpy(A)
    assert "shape=(5, 1)" in str_ortvalue(stock)


def test_windows_of_consecutive_rows():
    X = np.arange(50, dtype=np.float32).reshape((25, 2))
    loader = OrtDataLoader(X, X[:, 0], batch_size=4)
    assert len(loader) == 25
    np.random.seed(0)  # noqa: NPY002
    starts = set()
    for _ in range(200):
        batches = list(loader)
        assert len(batches) == 7  # ceil(25 / 4)
        for x, y in batches:
            assert x.shape == (4, 2)
            assert y.shape == (4, 1)
            assert np.all(np.diff(x[:, 0]) == 2)
            assert np.shares_memory(x, X)
            starts.add(int(x[0, 0]) // 2)
    assert starts == set(range(22))


def test_rows_in_order_weights_and_large_batches():
    X, y = RNG.normal(size=(7, 2)), RNG.normal(size=7)
    w = np.arange(7)
    ordered = OrtDataLoader(X, y, w, batch_size=3, random_iter=False)
    np.testing.assert_array_equal(np.concatenate([batch[2] for batch in ordered]), w)
    (whole,) = OrtDataLoader(X, y, batch_size=10).iter_ortvalue()
    assert whole[0].shape() == [7, 2]
    assert OrtDataLoader(X, y).data()[1].shape == (7, 1)
    with pytest.raises(ValueError, match=r"Shape mismatch X.shape=\(7, 2\), y.shape=\(6, 1\)"):
        OrtDataLoader(X, y[:6])


def test_windows_bound_to_a_session():
    session = onnxruntime.InferenceSession(
        polynomial().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    binding.bind_output("y")
    loader = OrtDataLoader(POINTS, POINTS[:, 0], batch_size=2)
    for rows in loader.iter_bind(binding, ["x"]):
        session.run_with_iobinding(binding)
        assert rows == len(binding.copy_outputs_to_cpu()[0]) == 2


def test_texts():
    pytest.importorskip("onnx_array_api")
    lines = onnx_simple_text_plot(polynomial()).splitlines()
    assert lines[0] == "opset: domain='' version=14"
    assert lines[1].startswith("input: name='x' type=dtype('float32') shape=")
    (weight,) = (line for line in lines if line.startswith("init: name='init_1' "))
    assert weight.endswith("shape=(1, 2) -- array([-2.,  3.], dtype=float32)")
    at = lines.index("Mul(x, x) -> out_mul_0")
    assert lines[at + 1] == "  Mul(out_mul_0, init) -> out_mul_0_1"
    assert lines[at + 2] == "Mul(x, init_1) -> out_mul_0_2"
    assert lines[at + 3] == "  Add(out_mul_0_2, out_mul_0_1) -> out_add_0"
    assert lines[-1].startswith("output: name='y' type=dtype('float32') shape=")
    short = onnx_text_plot_io(polynomial()).splitlines()
    assert [line.split(":")[0] for line in short] == ["opset", "input", *["init"] * 7, "output"]


@pytest.mark.parametrize("runtime", [None, "python", "onnxruntime1"])
def test_inference_by_names(runtime):
    inference = OnnxInference(polynomial(), runtime=runtime)
    assert (inference.input_names, inference.output_names) == (["x"], ["y"])
    found = inference.run({"x": POINTS})
    assert [*found] == ["y"]
    np.testing.assert_allclose(found["y"], run(polynomial(), {"x": POINTS})[0], rtol=1e-6)


def test_a_splitting_and_its_segments():
    model = polynomial()
    lines = []
    parts, more = split_onnx(
        model, n_parts=2, verbose=1, stats=True, doc_string=True, fLOG=lines.append
    )
    splitting = more["split"]
    assert isinstance(splitting, OnnxSplitting)
    assert lines
    assert len(splitting.segments) == len(splitting.cutting_points) + 1
    assert all(isinstance(segment, OnnxSegment) for segment in splitting.segments)
    assert sum(row["nodes"] for row in more["segments"]) == len(model.graph.node)
    assert more["extremities"][0] == 0
    assert more["extremities"][-1] == len(splitting.segments)
    assert more["split_points"] == names(parts[0].graph.output)
    assert "segments 0:" in parts[0].doc_string
    assert [part.graph for part in splitting.make_onnx(more["extremities"])] == [
        part.graph for part in parts
    ]
    # All segments one after the other are the model.
    value = POINTS
    for part in splitting.make_onnx(range(len(splitting.segments) + 1)):
        value = run(part, {part.graph.input[0].name: value})[0]
    np.testing.assert_array_equal(value, run(model, {"x": POINTS})[0])
