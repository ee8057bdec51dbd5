"""OrtGradientForwardBackward: forward and backward passes one by one."""

import logging
import pickle

import numpy as np
import onnx
import onnxruntime
import pytest

from compat_models import POINTS, names, polynomial, run
from onnxgrad.compat.onnxcustom.training.excs import ProviderError
from onnxgrad.compat.onnxcustom.training.ortgradient import (
    OrtGradientForwardBackward,
    OrtGradientForwardBackwardFunction,
)
from onnxgrad.compat.onnxruntime import (
    OrtDevice,
    OrtModuleGraphBuilder,
    OrtModuleGraphBuilderConfiguration,
    OrtValue,
    OrtValueCache,
    OrtValueVector,
    PartialGraphExecutionState,
    TrainingAgent,
)

WEIGHTS = ["init", "init_1", "init_b10"]
SEEDS = np.array([[1], [2], [-1], [0.5], [3]], np.float32)


def weight_values(scale=1.0):
    values = ([[2, 3]], [[0.5, 0.33333]], [1])
    return [scale * np.array(value, np.float32) for value in values]


def expected_gradients(seeds, x, weights):
    """By hand: y = sum_j x_j^2 a_j + x_j b_j, plus c."""
    a, b, _ = weights
    return [
        seeds * (2 * x * a + b),
        np.sum(seeds * x**2, axis=0, keepdims=True),
        np.sum(seeds * x, axis=0, keepdims=True),
        np.sum(seeds, axis=0),
    ]


def as_arrays(values):
    return [OrtValue.numpy(value) for value in values]


def stock(values):
    return [onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(v)) for v in values]


def stock_inner(values):
    return [value._ortvalue for value in stock(values)]


def test_other_shapes_with_as_many_elements():
    function = OrtGradientForwardBackward(polynomial()).new_instance()
    a, b, c = weight_values()
    for shapes in (((2,), (2, 1), ()), ((1, 2), (1, 1, 2), (1, 1))):
        given = [w.reshape(shape) for w, shape in zip((a, b, c), shapes, strict=True)]
        outputs = function.forward([POINTS, *given], training=True)
        expected = (POINTS**2 * a + POINTS * b).sum(axis=1, keepdims=True) + c
        np.testing.assert_allclose(outputs[0].numpy(), expected, rtol=1e-6)
        gradients = as_arrays(function.backward([SEEDS.ravel()]))
        wanted = expected_gradients(SEEDS, POINTS, (a, b, c))
        for found, right in zip(gradients, wanted, strict=True):
            assert found.shape == right.shape
            np.testing.assert_allclose(found, right, rtol=1e-5)
    with pytest.raises(ValueError, match=r"shape \[3\]"):
        function.forward([POINTS, np.ones(3, np.float32), b, c])


@pytest.mark.parametrize(
    "wrap",
    [list, OrtValueVector, stock, stock_inner],
    ids=["arrays", "vector", "stock", "stock_inner"],
)
def test_gradients(wrap):
    function = OrtGradientForwardBackward(polynomial()).new_instance()
    inputs = [POINTS, *weight_values()]
    outputs = function.forward(wrap(inputs), training=True)
    assert isinstance(outputs, OrtValueVector)
    x, (a, b, c) = POINTS, weight_values()
    expected = (x**2 * a + x * b).sum(axis=1, keepdims=True) + c
    np.testing.assert_allclose(outputs[0].numpy(), expected, rtol=1e-6)
    gradients = function.backward(wrap([SEEDS]))
    assert type(function)._bw_fetches_names == ["x_grad", *(f"{name}_grad" for name in WEIGHTS)]
    wanted = expected_gradients(SEEDS, x, (a, b, c))
    for found, value in zip(as_arrays(gradients), wanted, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-5)


def test_passes_are_a_stack():
    function = OrtGradientForwardBackward(polynomial()).new_instance()
    feeds = [[POINTS, *weight_values(scale)] for scale in (1, 2, -3)]
    for one in feeds:
        function.forward(one, training=True)
    assert len(function.saved_tensors_) == 3
    for one in reversed(feeds):
        gradients = as_arrays(function.backward([SEEDS]))
        wanted = expected_gradients(SEEDS, POINTS, one[1:])
        np.testing.assert_allclose(gradients[0], wanted[0], rtol=1e-5)
    assert function.saved_tensors_ == []
    with pytest.raises(RuntimeError, match="training=True"):
        function.backward([SEEDS])


def test_inference_saves_nothing_and_saved_lists_are_shallow_copies():
    function = OrtGradientForwardBackward(polynomial()).new_instance()
    inputs = OrtValueVector([POINTS, *weight_values()])
    function.forward(inputs)
    assert function.saved_tensors_ == []
    function.forward(inputs, training=True)
    (saved,) = function.saved_tensors_
    assert saved is not inputs
    assert all(one is other for one, other in zip(saved, inputs, strict=True))
    assert function.saved_tensors is saved
    assert function.saved_tensors_ == []


def test_caches_reuse_memory():
    function = OrtGradientForwardBackward(polynomial()).new_instance()
    forward_cache, backward_cache = OrtValueVector(), OrtValueVector()
    pointers = []
    for scale in (1, 2):
        inputs = [POINTS, *weight_values(scale)]
        outputs = function.forward(inputs, True, forward_cache)
        gradients = function.backward([SEEDS], backward_cache)
        pointers.append([value.data_ptr() for value in (*outputs, *gradients)])
        wanted = expected_gradients(SEEDS, POINTS, inputs[1:])
        np.testing.assert_allclose(gradients[0].numpy(), wanted[0], rtol=1e-5)
    assert pointers[0] == pointers[1]


def test_attributes_of_the_class():
    maker = OrtGradientForwardBackward(polynomial(), class_name="Layer")
    cls = maker.cls_type_
    assert cls.__name__ == "Layer"
    assert issubclass(cls, OrtGradientForwardBackwardFunction)
    attributes = (
        "__doc__ __module__ _run_options _sess _sess_eval _training_agent _cache _logger "
        "_input_names _debug _grad_input_names _output_names _weights_to_train "
        "_bw_fetches_names _fw_outputs_device_info _bw_outputs_device_info "
        "_fw_no_grad_output_device_info _graph_info _trained_onnx _optimized_pre_grad_model "
        "_graph_builder"
    )
    for name in attributes.split():
        assert hasattr(cls, name), name
    assert cls._grad_input_names == ["x", *WEIGHTS]
    assert cls._weights_to_train == WEIGHTS
    assert isinstance(cls._training_agent, TrainingAgent)
    assert isinstance(cls._cache, OrtValueCache)
    assert isinstance(cls._graph_builder, OrtModuleGraphBuilder)
    assert cls._sess.run(None, {"x": POINTS})[0].shape == (5, 1)
    feeds = dict(zip(cls._grad_input_names, [POINTS, *weight_values()], strict=True))
    np.testing.assert_allclose(
        cls._sess_eval.run(None, feeds)[0],
        OrtValue.numpy(maker.new_instance().forward(list(feeds.values()))[0]),
    )
    assert "OrtGradientForwardBackward(weights_to_train=['init'" in repr(maker)
    assert "input_names=['x']" in OrtGradientForwardBackward._repr_helper_(maker, 2)


def test_initializers():
    maker = OrtGradientForwardBackward(polynomial())
    np.testing.assert_array_equal(maker.get_initializer("init_1").numpy(), [[-2, 3]])
    assert maker.get_initializer("no", exc=False) is None
    with pytest.raises(RuntimeError, match="Unable to find name 'no'"):
        maker.get_initializer("no")


def test_weights_in_any_order_and_a_part_of_them():
    maker = OrtGradientForwardBackward(polynomial(), ["init_b10", "init"])
    assert maker.cls_type_._grad_input_names == ["x", "init_b10", "init"]
    a, _, c = weight_values()
    function = maker.new_instance()
    function.forward([POINTS, c, a], training=True)
    found = as_arrays(function.backward([SEEDS]))
    wanted = expected_gradients(SEEDS, POINTS, (a, np.array([[-2, 3]]), c))
    for value, place in zip(found, (0, 3, 1), strict=True):
        np.testing.assert_allclose(value, wanted[place], rtol=1e-5)


def test_config_chooses_weights_and_inputs():
    config = OrtModuleGraphBuilderConfiguration()
    config.initializer_names_to_train = ["init_1"]
    maker = OrtGradientForwardBackward(polynomial(), graph_builder_config=config)
    assert maker.weights_to_train == ["init_1"]
    assert maker.cls_type_._bw_fetches_names == ["x_grad", "init_1_grad"]


def test_models_with_subgraphs():
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    m (float[N] x) => (float[N] y) <float[1] w = {2}, float zero = {0}>
    {
      s = ReduceSum<keepdims = 0>(x)
      b = Greater(s, zero)
      y = If <then_branch = t () => (float[N] a) { a = Mul(x, w) },
              else_branch = e () => (float[N] a) { u = Mul(w, w)  a = Mul(x, u) }> (b)
    }
    """
    function = OrtGradientForwardBackward(onnx.parser.parse_model(text), ["w"]).new_instance()
    for x, factor, slope in (([1.0, 2.0], 3, 1), ([-1.0, -2.0], 9, 6)):
        x, w = np.array(x, np.float32), np.array([3], np.float32)
        (y,) = as_arrays(function.forward([x, w], training=True))
        np.testing.assert_allclose(y, factor * x)
        dx, dw = as_arrays(function.backward([np.ones(2, np.float32)]))
        np.testing.assert_allclose(dx, [factor, factor])
        np.testing.assert_allclose(dw, [slope * x.sum()])


def test_pickle():
    maker = pickle.loads(pickle.dumps(OrtGradientForwardBackward(polynomial(), debug=True)))
    function = maker.new_instance()
    function.forward([POINTS, *weight_values()], training=True)
    wanted = expected_gradients(SEEDS, POINTS, weight_values())
    np.testing.assert_allclose(function.backward([SEEDS])[0].numpy(), wanted[0], rtol=1e-5)


def test_pickle_leaves_out_options_of_stock_onnxruntime():
    maker = OrtGradientForwardBackward(
        polynomial(),
        sess_options=onnxruntime.SessionOptions(),
        run_options=onnxruntime.RunOptions(),
    )
    copy = pickle.loads(pickle.dumps(maker))
    assert maker.run_options is not None
    assert (copy.sess_options, copy.run_options) == (None, None)
    y, expected = (
        m.new_instance().forward([POINTS, *weight_values()])[0].numpy() for m in (copy, maker)
    )
    np.testing.assert_array_equal(y, expected)
    plain = OrtGradientForwardBackward(polynomial(), sess_options={"kept": 1})
    assert pickle.loads(pickle.dumps(plain)).sess_options == {"kept": 1}


@pytest.mark.parametrize("name", ["terminate", "only_execute_path_to_fetches"])
def test_run_options_that_change_a_run_are_refused_by_name(name):
    options = onnxruntime.RunOptions()
    function = OrtGradientForwardBackward(polynomial(), run_options=options).new_instance()
    function.forward([POINTS, *weight_values()])
    setattr(options, name, True)
    with pytest.raises(NotImplementedError, match=f"run_options.{name}=True"):
        function.forward([POINTS, *weight_values()])
    with pytest.raises(NotImplementedError, match=f"run_options.{name}=True"):
        OrtGradientForwardBackward(polynomial(), run_options=options)


def test_saved_graphs_run_in_stock_onnxruntime(tmp_path):
    maker = OrtGradientForwardBackward(polynomial(), class_name="Layer")
    saved = maker.new_instance().save_onnx_graph(tmp_path, suffix="_x")
    assert [*saved] == ["_trained_onnx", "_optimized_pre_grad_model"]
    assert saved["_trained_onnx"].endswith("Layer._trained_onnx_x.onnx")
    gradient, forward = (onnx.load(path) for path in saved.values())
    feeds = dict(zip(["x", *WEIGHTS], [POINTS, *weight_values()], strict=True))
    assert names(forward.graph.input) == [*feeds]
    y = run(forward, feeds)[0]
    found = dict(
        zip(names(gradient.graph.output), run(gradient, {**feeds, "y_grad": SEEDS}), strict=True)
    )
    np.testing.assert_allclose(found["y"], y, rtol=1e-6)
    wanted = expected_gradients(SEEDS, POINTS, weight_values())
    np.testing.assert_allclose(found["x_grad"], wanted[0], rtol=1e-5)


def test_logging_and_debug(caplog):
    with caplog.at_level(logging.DEBUG, logger="onnxcustom"):
        maker = OrtGradientForwardBackward(polynomial(), enable_logging=True, debug=True)
        function = maker.new_instance()
        function.forward([POINTS, *weight_values()], training=True)
        function.backward([SEEDS])
    text = caplog.text
    assert "new class" in text
    assert "forward" in text
    assert "backward" in text
    with pytest.raises(TypeError, match="Unexpected type for input 1"):
        function.forward([POINTS, "no", 3, 4])
    assert function.device_name(OrtDevice(OrtDevice.cuda(), 0, 1)) == "cuda:1"


def test_refused_options():
    with pytest.raises(ValueError, match="Unable to find 'no'"):
        OrtGradientForwardBackward(polynomial(), ["no"])
    with pytest.raises(NotImplementedError, match="provider_options"):
        OrtGradientForwardBackward(polynomial(), provider_options=[{"a": 1}])
    with pytest.raises(ValueError, match="device_index=1"):
        OrtGradientForwardBackward(polynomial(), device_index=1)
    with pytest.raises(ProviderError, match="TPU"):
        OrtGradientForwardBackward(polynomial(), providers=["TPU"])
    with pytest.raises(ValueError, match="1 inputs, expected 4"):
        OrtGradientForwardBackward(polynomial()).new_instance().forward([POINTS])


def test_agent():
    builder, config = OrtModuleGraphBuilder(), OrtModuleGraphBuilderConfiguration()
    with pytest.raises(RuntimeError, match="initialize"):
        builder.get_forward_model()
    builder.initialize(polynomial(), config)
    builder.build()
    model = builder.get_forward_model()
    agent = TrainingAgent(model, ["x", *WEIGHTS], None, ["init_grad", "x_grad"], None, 0)
    state, outputs, gradients = PartialGraphExecutionState(), OrtValueVector(), OrtValueVector()
    agent.run_forward(OrtValueVector([POINTS, *weight_values()]), outputs, state, OrtValueCache())
    agent.run_backward(OrtValueVector([SEEDS]), gradients, state)
    wanted = expected_gradients(SEEDS, POINTS, weight_values())
    np.testing.assert_allclose(gradients[0].numpy(), wanted[1], rtol=1e-5)
    np.testing.assert_allclose(gradients[1].numpy(), wanted[0], rtol=1e-5)
