"""Models of any opset mean the same after they are brought to the internal one.

Stock onnxruntime runs each model before and after; its own kernels for old opsets are the oracle.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxgrad as og
from onnx_tool import MODELS, assert_same, convert, npz_feeds, run_ort, run_reference, run_tool

# Operators whose internal version stock onnxruntime has no kernel for.
NOT_IN_ORT = {"RoiAlign"}

RNG = np.random.default_rng(0)
FLOAT = TensorProto.FLOAT
INT64 = TensorProto.INT64


def uniform(*shape: int, low: float = -2, high: float = 2) -> np.ndarray:
    return RNG.uniform(low, high, shape).astype(np.float32)


class Case:
    """One node of an old opset, its inputs (None: absent) and what is constant."""

    def __init__(self, opset, op_type, inputs, outputs=1, constants=None, name="", **attributes):
        self.opset, self.op_type, self.inputs = opset, op_type, inputs
        self.outputs, self.constants, self.attributes = outputs, constants or {}, attributes
        self.name = name

    def __str__(self):
        return f"{self.op_type}-{self.opset}{'-' + self.name if self.name else ''}"

    def model(self) -> onnx.ModelProto:
        names, values, initializers = [], [], []
        for i, array in enumerate(self.inputs):
            names.append("" if array is None else f"x{i}")
            if array is None:
                continue
            if i in self.constants:
                initializers.append(numpy_helper.from_array(array, f"x{i}"))
            else:
                dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
                values.append(helper.make_tensor_value_info(f"x{i}", dtype, array.shape))
        outputs = [f"y{i}" for i in range(self.outputs)]
        node = helper.make_node(self.op_type, names, outputs, name="node", **self.attributes)
        graph = helper.make_graph(
            [node],
            "g",
            values,
            [helper.make_empty_tensor_value_info(y) for y in outputs],
            initializers,
        )
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=4)

    def feeds(self) -> dict[str, np.ndarray]:
        return {
            f"x{i}": array
            for i, array in enumerate(self.inputs)
            if array is not None and i not in self.constants
        }


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


IMAGE = uniform(2, 4, 5, 6)
SMALL = uniform(1, 1, 4, 4)
NORM = [uniform(4), uniform(4), uniform(4), uniform(4, low=0.5)]

CASES = [
    Case(7, "BatchNormalization", [IMAGE, *NORM], name="spatial", spatial=1),
    Case(8, "BatchNormalization", [IMAGE, *NORM], epsilon=0.1, momentum=0.5),
    Case(9, "BatchNormalization", [IMAGE, *NORM]),
    Case(7, "Clip", [uniform(3, 4)]),
    Case(10, "Clip", [uniform(3, 4)], min=-0.5, max=0.75),
    Case(10, "Clip", [np.array([np.inf, -np.inf, 1e38], np.float32)], name="infinite", min=0.0),
    Case(7, "Dropout", [uniform(3, 4)], ratio=0.3),
    Case(10, "Dropout", [uniform(3, 4)], outputs=2),
    Case(11, "Dropout", [uniform(3, 4)], name="mask", outputs=2, ratio=0.1),
    Case(11, "Pad", [uniform(2, 3), ints(0, 1, 2, 0), np.float32(7)], constants={1, 2}),
    Case(10, "Pad", [uniform(2, 3)], pads=[0, 1, 2, 0], value=1.5),
    Case(10, "Pad", [uniform(2, 3)], name="negative", pads=[0, -1, 2, 0]),
    Case(7, "Pad", [uniform(4, 5)], name="reflect", pads=[1, 1, 2, 0], mode="reflect"),
    Case(
        10, "Pad", [uniform(4, 5).astype(np.float64)], name="double", pads=[1, 1, 2, 0], value=0.1
    ),
    *[
        Case(opset, f"Reduce{kind}", [uniform(2, 3, 4, low=0.5)], name=name, **attributes)
        for opset in (7, 11, 13, 17)
        for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
        for name, attributes in {
            "all": {},
            "axes": {"axes": [1], "keepdims": 0},
            "many": {"axes": [0, 2]},
        }.items()
    ],
    Case(11, "ReduceMean", [uniform(2, 3, 4)], name="negative", axes=[-1, 0]),
    Case(7, "ReduceSum", [uniform(2, 3, 4)], axes=[1], keepdims=0),
    Case(11, "ReduceSum", [uniform(2, 3, 4)], name="negative", axes=[-1]),
    Case(12, "ReduceSum", [uniform(2, 3, 4)], name="all"),
    Case(10, "Resize", [SMALL, np.array([1, 1, 2, 3], np.float32)], constants={1}, mode="nearest"),
    Case(
        10,
        "Resize",
        [SMALL, np.array([1, 1, 1.7, 1.3], np.float32)],
        constants={1},
        name="uneven",
        mode="nearest",
    ),
    Case(
        10,
        "Resize",
        [SMALL, np.array([1, 1, 0.5, 0.6], np.float32)],
        constants={1},
        name="shrink",
        mode="nearest",
    ),
    Case(
        10,
        "Resize",
        [SMALL, np.array([1, 1, 2, 2.5], np.float32)],
        constants={1},
        name="linear",
        mode="linear",
    ),
    Case(
        10,
        "Resize",
        [SMALL, np.array([1, 1, 0.5, 0.6], np.float32)],
        constants={1},
        name="shrink-linear",
        mode="linear",
    ),
    Case(
        11,
        "Resize",
        [SMALL, np.zeros(0, np.float32), np.array([1, 1, 2, 3], np.float32)],
        constants={1, 2},
        mode="cubic",
    ),
    Case(
        11,
        "Resize",
        [SMALL, np.zeros(0, np.float32), np.zeros(0, np.float32), ints(1, 1, 7, 3)],
        constants={1, 2, 3},
        name="sizes",
        mode="nearest",
        coordinate_transformation_mode="align_corners",
        nearest_mode="ceil",
    ),
    Case(
        13,
        "Resize",
        [SMALL, None, None, ints(1, 1, 7, 3)],
        constants={3},
        name="sizes",
        mode="linear",
    ),
    Case(7, "Upsample", [SMALL], scales=[1.0, 1.0, 2.0, 3.0]),
    Case(7, "Upsample", [SMALL], name="linear", mode="linear", scales=[1.0, 1.0, 2.0, 3.0]),
    Case(9, "Upsample", [SMALL, np.array([1, 1, 2, 3], np.float32)], constants={1}),
    Case(
        9,
        "Upsample",
        [SMALL, np.array([1, 1, 2, 3], np.float32)],
        constants={1},
        name="linear",
        mode="linear",
    ),
    *[
        Case(opset, kind, [uniform(2, 3, 4)], name=f"axis{axis}", axis=axis)
        for opset in (7, 11, 12)
        for kind in ("Softmax", "LogSoftmax", "Hardmax")
        for axis in (0, 1, 2)
    ],
    Case(11, "Softmax", [uniform(2, 3, 4)], name="default"),
    Case(12, "Softmax", [uniform(2, 3, 4)], name="negative", axis=-2),
    Case(13, "Softmax", [uniform(2, 3, 4)], name="default"),
    Case(7, "Slice", [uniform(4, 5)], starts=[1, 0], ends=[3, 4]),
    Case(9, "Slice", [uniform(4, 5)], name="axes", axes=[1], starts=[-3], ends=[1000]),
    Case(10, "Slice", [uniform(4, 5), ints(3), ints(-10), ints(0), ints(-2)], name="inputs"),
    Case(7, "Split", [uniform(4, 6)], outputs=3, axis=1),
    Case(11, "Split", [uniform(4, 6)], outputs=2, name="sizes", axis=-1, split=[1, 5]),
    Case(13, "Split", [uniform(4, 6)], outputs=2),
    Case(13, "Split", [uniform(4, 6), ints(1, 5)], outputs=2, name="sizes", constants={1}, axis=1),
    Case(7, "Squeeze", [uniform(1, 4, 1)]),
    Case(11, "Squeeze", [uniform(1, 4, 1)], name="axes", axes=[-1]),
    Case(7, "Unsqueeze", [uniform(4)], axes=[0, 2]),
    Case(11, "Unsqueeze", [uniform(4)], name="negative", axes=[-1]),
    Case(7, "TopK", [uniform(3, 5)], outputs=2, k=2),
    Case(10, "TopK", [uniform(3, 5), ints(2)], outputs=2, axis=0),
    Case(9, "Scatter", [uniform(3, 3), np.array([[0, 1, 2]]), uniform(1, 3)], axis=1),
    Case(
        10,
        "RoiAlign",
        [uniform(1, 2, 6, 6), np.array([[0, 0, 4, 4.5]], np.float32), ints(0)],
        output_height=2,
        output_width=3,
        sampling_ratio=2,
        spatial_scale=0.7,
    ),
    Case(16, "GridSample", [uniform(1, 2, 4, 4), uniform(1, 3, 3, 2, low=-1, high=1)]),
    Case(
        16,
        "GridSample",
        [uniform(1, 2, 4, 4), uniform(1, 3, 3, 2, low=-1, high=1)],
        name="bicubic",
        mode="bicubic",
    ),
    Case(17, "DFT", [uniform(1, 4, 6, 1)]),
    Case(17, "DFT", [uniform(1, 4, 6, 1)], name="axis", axis=2),
    Case(18, "GroupNormalization", [uniform(2, 6, 3, 3), uniform(3), uniform(3)], num_groups=3),
    # Operators without a rule, oldest and changed versions.
    Case(7, "Gemm", [uniform(2, 3), uniform(3, 4), uniform(4)], alpha=0.5, beta=2.0),
    Case(7, "MaxPool", [IMAGE], kernel_shape=[2, 3], strides=[2, 1]),
    Case(8, "MaxPool", [IMAGE], name="indices", outputs=2, kernel_shape=[2, 2]),
    Case(10, "AveragePool", [IMAGE], kernel_shape=[3, 3], ceil_mode=1, strides=[2, 2]),
    Case(7, "Conv", [IMAGE, uniform(3, 4, 2, 2), uniform(3)], auto_pad="SAME_UPPER"),
    Case(7, "ConvTranspose", [IMAGE, uniform(4, 2, 3, 3)], strides=[2, 2], output_padding=[1, 1]),
    Case(7, "Cast", [uniform(3)], to=INT64),
    Case(7, "ArgMax", [uniform(3, 4)], axis=1, keepdims=0),
    Case(7, "Flatten", [uniform(2, 3, 4)], axis=2),
    Case(7, "Reshape", [uniform(2, 6), ints(3, -1)], constants={1}),
    Case(7, "Concat", [uniform(2, 3), uniform(2, 1)], axis=1),
    Case(7, "Gather", [uniform(4, 3), ints(3, 0)], axis=0),
    Case(
        7,
        "LSTM",
        [uniform(3, 1, 2), uniform(1, 12, 2), uniform(1, 12, 3)],
        outputs=3,
        hidden_size=3,
    ),
    Case(
        7,
        "GRU",
        [uniform(3, 1, 2), uniform(1, 9, 2), uniform(1, 9, 3)],
        outputs=2,
        hidden_size=3,
        linear_before_reset=1,
    ),
    Case(7, "PRelu", [uniform(2, 3, 4), uniform(3, 1)]),
    Case(7, "Pow", [uniform(2, 3, low=0.1), uniform(3)]),
    Case(7, "LeakyRelu", [uniform(2, 3)], alpha=0.3),
    Case(7, "Selu", [uniform(2, 3)]),
    Case(7, "Elu", [uniform(2, 3)], alpha=1.5),
    Case(7, "HardSigmoid", [uniform(2, 3)]),
    Case(7, "InstanceNormalization", [IMAGE, uniform(4), uniform(4)]),
    Case(7, "LRN", [IMAGE], size=3),
    Case(7, "LpPool", [IMAGE], kernel_shape=[2, 2]),
    Case(7, "DepthToSpace", [uniform(1, 8, 2, 2)], blocksize=2),
    Case(11, "DepthToSpace", [uniform(1, 8, 2, 2)], name="crd", blocksize=2, mode="CRD"),
    Case(11, "CumSum", [uniform(3, 4), np.array(1)], exclusive=1),
    Case(11, "Round", [uniform(3, 4)]),
    Case(9, "OneHot", [ints(0, 2, 1), np.array(3), np.array([0.0, 1.0], np.float32)]),
    Case(9, "ConstantOfShape", [ints(2, 3)], constants={0}),
    Case(13, "BatchNormalization", [IMAGE, *NORM], name="newer"),
    Case(15, "BatchNormalization", [IMAGE, *NORM], outputs=3, name="training", training_mode=1),
    Case(17, "LayerNormalization", [uniform(2, 3, 4), uniform(4), uniform(4)]),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_old_operators_mean_the_same(case: Case, tmp_path: Path) -> None:
    model = case.model()
    upgraded = convert("internal", model, tmp_path)
    assert upgraded.opset_import[0].version == 26
    assert upgraded.ir_version == 10
    onnx.checker.check_model(upgraded, full_check=True)
    run_new = run_reference if case.op_type in NOT_IN_ORT else run_ort
    got, want = run_new(upgraded, case.feeds()), run_ort(model, case.feeds())
    count = 1 if case.op_type == "Dropout" else len(want)  # onnxruntime's old masks are all False
    assert_same(got[:count], want[:count], 2e-6)


def test_group_normalization_18_computes_in_the_type_of_its_input() -> None:
    x, scale, bias = (uniform(*shape).astype(np.float64) for shape in ((2, 4, 5), (2,), (2,)))
    values = {"x": x, "scale": scale, "bias": bias}
    graph = helper.make_graph(
        [helper.make_node("GroupNormalization", list(values), ["y"], num_groups=2)],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.DOUBLE, v.shape) for n, v in values.items()],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, x.shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    rows = x.reshape(2, 2, 10)
    deviation = rows - rows.mean(-1, keepdims=True)
    expected = deviation / np.sqrt((deviation**2).mean(-1, keepdims=True) + 1e-5)
    expected = expected * scale[:, None] + bias[:, None]
    found = og.InferenceSession(model).run(None, values)[0]
    np.testing.assert_allclose(found, expected.reshape(x.shape), rtol=0, atol=1e-8)


def test_every_exported_model_means_the_same(tmp_path: Path) -> None:
    names = sorted(path.stem for path in MODELS.glob("*.onnx"))
    jobs = [("internal", MODELS / f"{name}.onnx", tmp_path / f"{name}.onnx") for name in names]
    assert run_tool(jobs) == ["ok"] * len(names)
    for _, source, target in jobs:
        name = source.stem.removesuffix("_loss")
        feeds = npz_feeds(name, with_label=source.stem.endswith("_loss"))
        assert_same(run_ort(target, feeds), run_ort(source, feeds), 1e-5)
        upgraded = onnx.load(target)
        assert {i.version for i in upgraded.opset_import if i.domain == ""} == {26}
        assert not any(node.op_type == "Constant" for node in upgraded.graph.node)


REFUSED = {
    "opset 6": Case(6, "Add", [uniform(3), uniform(3)]),
    "shrinks and enlarges": Case(
        10, "Resize", [SMALL, np.array([1, 1, 2, 0.5], np.float32)], constants={1}
    ),
    "unknown": Case(13, "Relu", [uniform(3)], color=3),
    "expected int": Case(13, "Softmax", [uniform(3)], axis=1.5),
    "missing": Case(13, "Cast", [uniform(3)]),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_would_change_its_meaning_is_refused(reason: str, tmp_path: Path) -> None:
    model = REFUSED[reason].model()
    with pytest.raises(ValueError, match=f"(ModelError|UnsupportedOperatorError).*{reason}"):
        convert("internal", model, tmp_path)


def function_model() -> onnx.ModelProto:
    """Functions that call functions, with default attributes and constants, called twice."""
    text = """
        <ir_version: 9, opset_import: ["" : 17, "f" : 1]>
        main (float[N, 4] x) => (float[N, 4] y, float[N, 4] z) {
          y = f.Outer(x)
          z = f.Outer<alpha = 0.75>(y)
        }
        <domain: "f", opset_import: ["" : 13]>
        Scale (a) => (b) {
          w = Constant <value = float[4] {1.0, 2.0, -1.0, 0.5}> ()
          b = Mul(a, w)
        }
        <domain: "f", opset_import: ["" : 11, "f" : 1]>
        Outer <alpha: float = 0.25> (a) => (b) {
          s = f.Scale(a)
          l = LeakyRelu <alpha: float = @alpha> (s)
          m = ReduceSum <axes = [-1]> (l)
          b = Add(l, m)
        }"""
    return onnx.parser.parse_model(text)


def test_functions_are_expanded_with_their_defaults_and_opsets(tmp_path: Path) -> None:
    model = function_model()
    upgraded = convert("internal", model, tmp_path)
    assert not upgraded.functions
    assert len(upgraded.graph.initializer) == 2  # w once for both calls, and the axes
    feeds = {"x": uniform(3, 4)}

    def outer(a, alpha):
        scaled = a * np.array([1, 2, -1, 0.5], np.float32)
        leaky = np.where(scaled < 0, np.float32(alpha) * scaled, scaled)
        return leaky + leaky.sum(axis=-1, keepdims=True)

    y = outer(feeds["x"], 0.25)
    assert_same(run_ort(upgraded, feeds), [y, outer(y, 0.75)], 1e-5)


def test_newer_opsets_are_mapped_down(tmp_path: Path) -> None:
    def value(name):
        return helper.make_tensor_value_info(name, FLOAT, ["N", 3])

    graph = helper.make_graph(
        [
            helper.make_node("SwiGLU", ["x", "w"], ["s"]),
            helper.make_node("Celu", ["s"], ["y"], alpha=0.5),
        ],
        "g",
        [value("x"), value("w")],
        [value("y")],
    )
    opsets = [helper.make_opsetid("", 28)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    upgraded = convert("internal", model, tmp_path)
    assert "SwiGLU" not in {node.op_type for node in upgraded.graph.node}
    feeds = {"x": uniform(2, 3), "w": uniform(2, 3)}
    assert_same(run_reference(upgraded, feeds), run_reference(model, feeds), 1e-5)


def test_subgraphs_are_upgraded_and_their_constants_hoisted(tmp_path: Path) -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 12]>
        main (float[2, 3] x, int64 n) => (float[2, 3] y) {
          yes = Constant <value = bool {1}> ()
          y = Loop (n, yes, x) <body = step (int64 i, bool c, float[2, 3] s)
                                       => (bool d, float[2, 3] t) {
            d = Identity(c)
            w = Constant <value = float[3] {0.5, -1.0, 2.0}> ()
            m = Softmax <axis = 0> (s)
            p = Mul(m, w)
            t = Add(p, x)
          }>
        }"""
    model = onnx.parser.parse_model(text)
    upgraded = convert("internal", model, tmp_path)
    feeds = {"x": uniform(2, 3), "n": np.array(3)}
    assert_same(run_ort(upgraded, feeds), run_ort(model, feeds))
    assert {"w_1", "yes"} <= {value.name for value in upgraded.graph.initializer}
