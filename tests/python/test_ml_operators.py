"""Every operator of ai.onnx.ml in every version: it runs beside stock onnxruntime, and trains.

The list is ONNX's own. An operator in the middle of a model trains what comes after it; where its
own numbers are weights (linear models, kernels, leaves of trees) they are trained; where a gradient
flows through it, that is compared with differences of stock onnxruntime.
"""

from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto as Types
from onnx import helper as oh
from onnx import numpy_helper

import onnxgrad as og

ML = "ai.onnx.ml"
G = np.random.default_rng(3)
NUMBERS = G.normal(size=(12, 3)).astype(np.float32)
GAPS = np.where(G.random((12, 3)) < 0.3, np.nan, NUMBERS).astype(np.float32)
WORDS = np.array([["ash"], ["oak"], ["fir"], ["elm"]] * 3, object)
WHOLE = np.array([[1], [3], [2], [9]] * 3, np.int64)
MAPS = [{"u": 1.5, "w": -1.0}, {"v": 2.0}] * 6
MAP_TYPE = oh.make_map_type_proto(Types.STRING, oh.make_tensor_type_proto(Types.FLOAT, []))
INT_MAP_TYPE = oh.make_map_type_proto(Types.INT64, oh.make_tensor_type_proto(Types.FLOAT, []))
WORDS_OF_TREES = ["ash", "elm", "oak"]


class Sample(NamedTuple):
    """A node with its inputs; `output` is the one that is compared and trained on."""

    feeds: dict[str, Any]
    attributes: dict[str, Any]
    num_outputs: int = 1
    output: int = 0
    has_gradient: bool = False  # by its input
    trains_itself: bool = False  # its own numbers
    constants: dict[str, np.ndarray] = {}  # noqa: RUF012
    is_by_rows: bool = False  # stock onnxruntime takes one map at a time
    outcome: str = "tensor"


def tree_lists(prefix: str, targets: dict[str, Any]) -> dict[str, Any]:
    """Two trees of one split each."""
    return {
        "nodes_treeids": [0, 0, 0, 1, 1, 1],
        "nodes_nodeids": [0, 1, 2, 0, 1, 2],
        "nodes_featureids": [0, 0, 0, 1, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * 2,
        "nodes_values": [0.1, 0.0, 0.0, -0.2, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0, 1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0, 2, 0, 0],
        f"{prefix}_treeids": [0, 0, 1, 1],
        f"{prefix}_nodeids": [1, 2, 1, 2],
        f"{prefix}_ids": [0, 1, 2, 0],
        **targets,
    }


def in_tensors(attributes: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The lists of version 3 as tensors."""
    changed = dict(attributes)
    for name in names:
        values = np.array(changed.pop(name), np.float32)
        changed[f"{name}_as_tensor"] = numpy_helper.from_array(values, name)
    return changed


REGRESSOR = tree_lists("target", {"target_weights": [0.5, -1.0, 2.0, 0.25], "n_targets": 3})
CLASSIFIER = tree_lists(
    "class",
    {
        "class_weights": [0.5, -1.0, 2.0, 0.25],
        "classlabels_strings": WORDS_OF_TREES,
        "post_transform": "SOFTMAX",
    },
)
ENSEMBLE = {
    "n_targets": 2,
    "aggregate_function": 1,
    "post_transform": 0,
    "tree_roots": [0, 1],
    "nodes_featureids": [0, 1],
    "nodes_splits": numpy_helper.from_array(np.array([0.1, -0.2], np.float32)),
    "nodes_modes": numpy_helper.from_array(np.array([0, 0], np.uint8)),
    "nodes_truenodeids": [0, 2],
    "nodes_trueleafs": [1, 1],
    "nodes_falsenodeids": [1, 3],
    "nodes_falseleafs": [1, 1],
    "leaf_targetids": [0, 1, 1, 0],
    "leaf_weights": numpy_helper.from_array(np.array([0.5, -1.0, 2.0, 0.25], np.float32)),
}
SVM = {
    "kernel_type": "RBF",
    "kernel_params": [0.4, 0.0, 3.0],
    "support_vectors": NUMBERS[:4].ravel().tolist(),
}
LINEAR = G.normal(size=(3, 3)).ravel().tolist()

SAMPLES: dict[tuple[str, int], Sample] = {
    ("ArrayFeatureExtractor", 1): Sample(
        {"x": NUMBERS}, {}, has_gradient=True, constants={"i": np.array([2, 0])}
    ),
    ("Binarizer", 1): Sample({"x": NUMBERS}, {"threshold": 0.2}),
    ("CastMap", 1): Sample(
        {"x": [{1: 2.0}, {0: -1.0, 2: 3.0}] * 6},
        {"cast_to": "TO_FLOAT", "map_form": "SPARSE", "max_map": 3},
        is_by_rows=True,
    ),
    ("CategoryMapper", 1): Sample(
        {"x": WORDS}, {"cats_strings": ["ash", "oak", "elm"], "cats_int64s": [4, 5, 6]}
    ),
    ("DictVectorizer", 1): Sample(
        {"x": MAPS}, {"string_vocabulary": ["w", "u", "v"]}, is_by_rows=True
    ),
    ("FeatureVectorizer", 1): Sample(
        {"x": NUMBERS, "x2": NUMBERS[:, :2] + 1}, {"inputdimensions": [3, 2]}, has_gradient=True
    ),
    ("Imputer", 1): Sample(
        {"x": GAPS},
        {"imputed_value_floats": [0.5, 1.0, 2.0], "replaced_value_float": float("nan")},
    ),
    ("LabelEncoder", 1): Sample({"x": WORDS}, {"classes_strings": ["ash", "elm", "oak"]}),
    ("LabelEncoder", 2): Sample(
        {"x": WORDS}, {"keys_strings": ["ash", "oak"], "values_int64s": [7, 2], "default_int64": -1}
    ),
    ("LabelEncoder", 4): Sample(
        {"x": WHOLE},
        {
            "keys_tensor": numpy_helper.from_array(np.array([1, 2, 3])),
            "values_tensor": numpy_helper.from_array(np.array([2.5, 0.5, 1], np.float32)),
            "default_tensor": numpy_helper.from_array(np.array([-1], np.float32)),
        },
    ),
    ("LinearClassifier", 1): Sample(
        {"x": NUMBERS},
        {
            "coefficients": LINEAR,
            "intercepts": [0.1, 0.2, 0.3],
            "classlabels_strings": WORDS_OF_TREES,
            "post_transform": "SOFTMAX",
        },
        num_outputs=2,
        output=1,
        has_gradient=True,
        trains_itself=True,
    ),
    ("LinearRegressor", 1): Sample(
        {"x": NUMBERS},
        {"coefficients": LINEAR, "intercepts": [0.1, 0.2, 0.3], "targets": 3},
        has_gradient=True,
        trains_itself=True,
    ),
    ("Normalizer", 1): Sample({"x": NUMBERS}, {"norm": "L2"}, has_gradient=True),
    ("OneHotEncoder", 1): Sample({"x": WORDS}, {"cats_strings": ["ash", "elm", "oak"], "zeros": 1}),
    ("SVMClassifier", 1): Sample(
        {"x": NUMBERS},
        {
            **SVM,
            "coefficients": [0.7, -0.2, -0.9, 0.4],
            "rho": [0.1],
            "vectors_per_class": [2, 2],
            "classlabels_ints": [0, 1],
        },
        num_outputs=2,
        output=1,
        has_gradient=True,
        trains_itself=True,
    ),
    ("SVMRegressor", 1): Sample(
        {"x": NUMBERS},
        {**SVM, "coefficients": [0.7, -0.2, -0.9, 0.4], "rho": [0.1], "n_supports": 4},
        has_gradient=True,
        trains_itself=True,
    ),
    ("Scaler", 1): Sample(
        {"x": NUMBERS}, {"offset": [0.1, 0.2, 0.3], "scale": [1.0, 2.0, 0.5]}, has_gradient=True
    ),
    ("TreeEnsemble", 5): Sample({"x": NUMBERS}, ENSEMBLE, trains_itself=True),
    ("ZipMap", 1): Sample({"x": NUMBERS}, {"classlabels_strings": WORDS_OF_TREES}, outcome="maps"),
}
for version in (1, 3):
    names = ("nodes_values", "target_weights") if version > 1 else ()
    SAMPLES["TreeEnsembleRegressor", version] = Sample(
        {"x": NUMBERS}, in_tensors(REGRESSOR, names), trains_itself=True
    )
    names = ("nodes_values", "class_weights") if version > 1 else ()
    SAMPLES["TreeEnsembleClassifier", version] = Sample(
        {"x": NUMBERS},
        in_tensors(CLASSIFIER, names),
        num_outputs=2,
        output=1,
        trains_itself=True,
    )


def type_of(name: str, value: Any) -> onnx.ValueInfoProto:
    if isinstance(value, list):
        is_text = isinstance(next(iter(value[0])), str)
        return oh.make_value_info(name, MAP_TYPE if is_text else INT_MAP_TYPE)
    dtype = Types.STRING if value.dtype == object else oh.np_dtype_to_tensor_dtype(value.dtype)
    return oh.make_tensor_value_info(name, dtype, [None, value.shape[1]])


def model_of(key: tuple[str, int], *, with_layer: bool = False) -> onnx.ModelProto:
    op_type, version = key
    sample = SAMPLES[key]
    outputs = [f"out{i}" for i in range(sample.num_outputs)]
    inputs = [*sample.feeds, *sample.constants]
    nodes = [oh.make_node(op_type, inputs, outputs, domain=ML, **sample.attributes)]
    constants = [numpy_helper.from_array(v, name) for name, v in sample.constants.items()]
    last = outputs[sample.output]
    if with_layer:
        width = run_stock(key)[sample.output].reshape(12, -1).shape[1]
        weight = G.normal(size=(width, 1)).astype(np.float32) * 0.1
        constants += [
            numpy_helper.from_array(weight, "layer"),
            numpy_helper.from_array(np.array([-1, width]), "rows"),
        ]
        nodes += [
            oh.make_node("Cast", [last], ["numbers"], to=Types.FLOAT),
            oh.make_node("Reshape", ["numbers", "rows"], ["flat"]),
            oh.make_node("MatMul", ["flat", "layer"], ["y"]),
        ]
        outputs = ["y"]
    graph = oh.make_graph(
        nodes,
        "g",
        [type_of(name, value) for name, value in sample.feeds.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        constants,
    )
    opsets = [oh.make_opsetid("", 17), oh.make_opsetid(ML, version)]
    model = oh.make_model(graph, opset_imports=opsets, ir_version=8)
    for value in model.graph.output:
        value.type.CopyFrom(output_type(sample, value.name))
    return model


def output_type(sample: Sample, name: str) -> onnx.TypeProto:
    if sample.outcome == "maps":
        return oh.make_sequence_type_proto(MAP_TYPE)
    if name == "out0" and sample.num_outputs == 2:
        is_text = "classlabels_strings" in sample.attributes
        return oh.make_tensor_type_proto(Types.STRING if is_text else Types.INT64, None)
    integers = {"cats_int64s", "values_int64s", "classes_strings"} & {*sample.attributes}
    return oh.make_tensor_type_proto(Types.INT64 if integers and name != "y" else Types.FLOAT, None)


def run_stock(key: tuple[str, int], feeds: dict[str, Any] | None = None) -> list[Any]:
    sample = SAMPLES[key]
    session = ort.InferenceSession(model_of(key).SerializeToString())
    feeds = feeds or sample.feeds
    if not sample.is_by_rows:
        return session.run(None, feeds)
    rows = [session.run(None, {"x": one})[0] for one in feeds["x"]]
    return [np.concatenate(rows)]


def test_every_operator_and_version_has_a_sample() -> None:
    known = {
        (schema.name, schema.since_version)
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.domain == ML and not schema.deprecated  # in version 5, the old trees
    }
    assert {*SAMPLES} == known


@pytest.mark.parametrize("key", SAMPLES, ids=lambda key: f"{key[0]}-{key[1]}")
def test_it_runs_as_in_stock_onnxruntime(key: tuple[str, int]) -> None:
    got = og.InferenceSession(model_of(key)).run(None, SAMPLES[key].feeds)
    for one, want in zip(got, run_stock(key), strict=True):
        if isinstance(want, list):
            assert one == want
        elif want.dtype.kind == "f":
            np.testing.assert_allclose(one, want, rtol=1e-5, atol=1e-6)
            assert one.dtype == want.dtype
        else:
            np.testing.assert_array_equal(one, want)


TRAINED = [key for key, sample in SAMPLES.items() if sample.outcome == "tensor"]


@pytest.mark.parametrize("key", TRAINED, ids=lambda key: f"{key[0]}-{key[1]}")
def test_a_layer_after_it_trains_and_its_own_weights_do(key: tuple[str, int]) -> None:
    sample = SAMPLES[key]
    y = np.full((12, 1), 2, np.float32)
    model = model_of(key, with_layer=True)
    own_names = [
        weight.name
        for weight in og.report(model).weights
        if weight.is_floating and "the definition" not in weight.reason
    ]
    trainer = og.Trainer(
        model,
        "squared_error",
        "adam",
        lr=0.02,
        trainable=own_names if sample.trains_itself else None,
    )
    own = {weight.name for weight in trainer.session.trained_weights} - {"layer"}
    assert bool(own) == sample.trains_itself
    before = trainer.session.state()
    trainer.fit(sample.feeds, y, epochs=5, batch_size=5, verbose=0, allow_nan=True)
    losses = trainer.history["train_loss"]
    assert losses[-1] < losses[0]
    after = trainer.session.state()
    for name in own:
        if name.endswith(("_weights", "coefficients", "support_vectors")):
            assert not np.array_equal(before[name], after[name]), name
    trained = trainer.trained_model().SerializeToString()
    if not sample.is_by_rows:
        want = ort.InferenceSession(trained).run(None, sample.feeds)[0]
        np.testing.assert_allclose(trainer.predict(sample.feeds), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "key", [k for k in SAMPLES if SAMPLES[k].has_gradient], ids=lambda key: f"{key[0]}-{key[1]}"
)
def test_its_gradient_beside_differences_of_stock_onnxruntime(key: tuple[str, int]) -> None:
    sample = SAMPLES[key]
    layer = og.ForwardBackward(model_of(key))
    names = [value.name for value in layer.get_outputs()]
    outputs = layer.forward(sample.feeds)
    place = names.index(f"out{sample.output}")
    seed = G.normal(size=outputs[place].shape).astype(np.float32)
    gradient = layer.backward({f"out{sample.output}": seed}).inputs["x"]
    direction = G.normal(size=NUMBERS.shape).astype(np.float32)
    step = 1e-2
    sides = []
    for sign in (1, -1):
        feeds = {**sample.feeds, "x": sample.feeds["x"] + sign * step * direction}
        sides.append(np.sum(run_stock(key, feeds)[sample.output] * seed, dtype=np.float64))
    difference = (sides[0] - sides[1]) / (2 * step)
    np.testing.assert_allclose(np.sum(gradient * direction), difference, rtol=2e-2, atol=2e-2)


def coupled(classes: int, pairs: list[tuple[int, int]], offsets: np.ndarray) -> np.ndarray:
    """Wu, Lin and Weng (2004): the least sum of (r_ji p_i - r_ij p_j)^2, by least squares."""
    rows = np.zeros((len(pairs) + 1, classes))
    for row, (i, j), offset in zip(rows, pairs, offsets, strict=False):
        row[i], row[j] = 1 - 1 / (1 + np.exp(offset)), -1 / (1 + np.exp(offset))
    rows[-1] = 1  # the sum of p, whose weight changes p by a factor alone
    solution = np.linalg.lstsq(rows, np.eye(len(rows))[-1], rcond=None)[0]
    return solution / solution.sum()


@pytest.mark.parametrize("classes", [3, 5])
def test_probabilities_of_pairs_that_agree_are_those_of_the_classes(classes: int) -> None:
    """r_ij = p_i / (p_i + p_j): the equations that couple them are singular."""
    rng = np.random.default_rng(classes)
    for spread in (0.5, 2, 4):
        p = np.exp(spread * rng.normal(size=classes))
        p /= p.sum()
        pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
        node = oh.make_node(
            "SVMClassifier",
            ["x"],
            ["label", "y"],
            domain=ML,
            kernel_type="LINEAR",
            kernel_params=[0.0, 0.0, 0.0],
            vectors_per_class=[1] * classes,
            support_vectors=[0.0] * 3 * classes,
            coefficients=[0.0] * classes * (classes - 1),
            rho=[0.0] * len(pairs),
            prob_a=[-1.0] * len(pairs),
            prob_b=[float(np.log(p[j] / p[i])) for i, j in pairs],
            classlabels_ints=list(range(classes)),
        )
        graph = oh.make_graph(
            [node],
            "pairs",
            [oh.make_tensor_value_info("x", Types.FLOAT, ["N", 3])],
            [oh.make_tensor_value_info("y", Types.FLOAT, ["N", classes])],
        )
        opsets = [oh.make_opsetid("", 18), oh.make_opsetid(ML, 3)]
        proto = oh.make_model(graph, opset_imports=opsets, ir_version=9)
        y = og.InferenceSession(proto).run(None, {"x": NUMBERS})[0]
        np.testing.assert_allclose(y, np.tile(p, (len(NUMBERS), 1)), rtol=2e-4)
        passes = og.ForwardBackward(proto, weights=["label.prob_b"])
        passes.forward({"x": NUMBERS[:1]})
        seed = np.eye(classes, dtype=np.float32)[:1]
        slopes = passes.backward({"y": seed}).weights["label.prob_b"]
        offsets = np.array([np.log(p[j] / p[i]) for i, j in pairs])
        for k, step in enumerate(1e-6 * np.eye(len(pairs))):
            sides = [coupled(classes, pairs, offsets + sign * step)[0] for sign in (1, -1)]
            difference = (sides[0] - sides[1]) / 2e-6
            np.testing.assert_allclose(slopes[k], difference, rtol=1e-3, atol=1e-6)
