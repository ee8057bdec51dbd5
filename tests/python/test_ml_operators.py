"""Operators of ai.onnx.ml beside stock onnxruntime, by the node and as skl2onnx writes them."""

import subprocess
import sys

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as nh
import onnxruntime as ort
import pytest
from skl2onnx import convert_sklearn, to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.datasets import make_classification, make_regression
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC, NuSVC, OneClassSVM
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import onnxgrad as og

F = np.float32
ML = "ai.onnx.ml"
NAN = float("nan")

ort.set_default_logger_severity(4)


def run_stock(model: onnx.ModelProto, feeds: dict) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options).run(None, feeds)


def node_model(op_type: str, inputs: list[np.ndarray], outputs: int = 1, opset: int = 3, **given):
    names = [f"x{i}" for i in range(len(inputs))]
    results = ["label", "scores"][-outputs:] if outputs == 2 else ["y"]
    node = oh.make_node(op_type, names, results, "the_node", domain=ML, **given)
    infos = [
        oh.make_tensor_value_info(
            name,
            onnx.TensorProto.STRING
            if array.dtype.kind in "OU"
            else oh.np_dtype_to_tensor_dtype(array.dtype),
            array.shape,
        )
        for name, array in zip(names, inputs, strict=True)
    ]
    graph = oh.make_graph(
        [node], "sample", infos, [oh.make_empty_tensor_value_info(name) for name in results]
    )
    opsets = [oh.make_opsetid("", 17), oh.make_opsetid(ML, opset)]
    model = oh.make_model(graph, opset_imports=opsets, ir_version=8)
    return model, dict(zip(names, inputs, strict=True))


def texts(*values: str) -> np.ndarray:
    return np.array(values, dtype=object)


FLOATS = np.array([[1.0, NAN, 3.0], [2.0, 5.0, -1.0]], F)
WORDS = texts("red", "blue", "pink", "red")

ENCODERS = {
    "label_text_to_int": (
        "LabelEncoder",
        [WORDS],
        {"keys_strings": ["red", "blue"], "values_int64s": [7, 8], "default_int64": -3},
    ),
    "label_text_to_float": (
        "LabelEncoder",
        [WORDS],
        {"keys_strings": ["red", "blue"], "values_floats": [0.5, 1.5], "default_float": 9.0},
    ),
    "label_text_to_text": (
        "LabelEncoder",
        [WORDS],
        {"keys_strings": ["red"], "values_strings": ["RED"], "default_string": "none"},
    ),
    "label_int_to_text": (
        "LabelEncoder",
        [np.array([0, 2, 5, 1])],
        {"keys_int64s": [0, 1, 2], "values_strings": ["a", "b", "c"], "default_string": "z"},
    ),
    "label_int_to_int": (
        "LabelEncoder",
        [np.array([[0, 2], [5, 1]])],
        {"keys_int64s": [0, 5], "values_int64s": [3, 4]},
    ),
    "label_int_to_float": (
        "LabelEncoder",
        [np.array([0, 2, 10**12])],
        {"keys_int64s": [0, 10**12], "values_floats": [0.25, 4.0]},
    ),
    "label_float_to_int": (
        "LabelEncoder",
        [np.array([0.5, NAN, 2.0], F)],
        {"keys_floats": [0.5, NAN], "values_int64s": [1, 2]},
    ),
    "label_float_to_float": (
        "LabelEncoder",
        [np.array([0.5, 1.5, 2.0], F)],
        {"keys_floats": [0.5, 1.5], "values_floats": [1.0, 2.0], "default_float": -1.0},
    ),
    "mapper_to_int": (
        "CategoryMapper",
        [WORDS],
        {"cats_strings": ["red", "blue"], "cats_int64s": [1, 0], "default_int64": 5},
    ),
    "mapper_to_text": (
        "CategoryMapper",
        [np.array([1, 0, 4])],
        {"cats_strings": ["red", "blue"], "cats_int64s": [1, 0], "default_string": "?"},
    ),
    "one_hot_text": ("OneHotEncoder", [WORDS], {"cats_strings": ["blue", "red"]}),
    "one_hot_int": ("OneHotEncoder", [np.array([[1], [3], [9]])], {"cats_int64s": [3, 1]}),
    "one_hot_float": (
        "OneHotEncoder",
        [np.array([[1.0], [3.0]], F)],
        {"cats_int64s": [3, 1], "zeros": 1},
    ),
    "imputer_nan": (
        "Imputer",
        [FLOATS],
        {"imputed_value_floats": [9.0, 8.0, 7.0], "replaced_value_float": NAN},
    ),
    "imputer_number": (
        "Imputer",
        [FLOATS],
        {"imputed_value_floats": [9.0], "replaced_value_float": 3.0},
    ),
    "imputer_int": (
        "Imputer",
        [np.array([[1, 2], [2, 3]])],
        {"imputed_value_int64s": [7, 8], "replaced_value_int64": 2},
    ),
    "binarizer": ("Binarizer", [FLOATS[1:]], {"threshold": 2.0}),
    "vectorizer": (
        "FeatureVectorizer",
        [np.array([[1.0, 2.0]], F), np.array([[3.0]], F)],
        {"inputdimensions": [2, 1]},
    ),
    "extractor_text": (
        "ArrayFeatureExtractor",
        [np.array([["a", "b"], ["c", "d"]], dtype=object), np.array([1])],
        {},
    ),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_equal_onnxruntimes(name: str) -> None:
    op_type, inputs, attributes = ENCODERS[name]
    model, feeds = node_model(op_type, inputs, opset=4, **attributes)
    expected = run_stock(model, feeds)[0]
    given = og.InferenceSession(model).run(None, feeds)[0]
    assert given.shape == expected.shape
    np.testing.assert_array_equal(given, expected)


def test_one_hot_encoder_refuses_what_it_does_not_know() -> None:
    model, feeds = node_model("OneHotEncoder", [WORDS], cats_strings=["red", "blue"], zeros=0)
    with pytest.raises(og.DataError, match="not one of its 2 categories"):
        og.InferenceSession(model).run(None, feeds)


@pytest.mark.parametrize(
    ("keys", "values", "default"),
    [
        (np.array([1, 2], np.int32), np.array([0.5, 1.5]), np.array([7.0])),
        (np.array([1.5, 2.5]), np.array([3, 4], np.int16), np.array([-1], np.int16)),
        (np.array(["a", "b"], object), np.array([3, 4], np.int32), np.array([0], np.int32)),
    ],
)
def test_label_encoder_with_tensors(keys, values, default) -> None:
    x = np.concatenate([keys, keys[:1]])
    if keys.dtype == object:
        x[-1] = "other"
    elif keys.dtype == np.int32:
        x[-1] = 99
    model, feeds = node_model("LabelEncoder", [x], opset=4)
    node = model.graph.node[0]
    for name, array in (("keys", keys), ("values", values), ("default", default)):
        node.attribute.append(oh.make_attribute(f"{name}_tensor", nh.from_array(array)))
    given = og.InferenceSession(model).run(None, feeds)[0]
    found = dict(zip(keys.tolist(), values.tolist(), strict=True))
    expected = [found.get(key, default[0]) for key in x.tolist()]
    assert given.dtype == values.dtype
    np.testing.assert_array_equal(given, np.array(expected, values.dtype))


# Trees.


def table(classes: int = 0) -> tuple[np.ndarray, np.ndarray]:
    if classes:
        x, y = make_classification(
            80, 5, n_informative=4, n_redundant=0, n_classes=classes, random_state=0
        )
    else:
        x, y = make_regression(80, 5, noise=1.0, random_state=0)
    return x.astype(F), y


FORESTS = {
    "tree": (DecisionTreeRegressor(max_depth=4), 0),
    "stump": (DecisionTreeRegressor(max_depth=1), 0),
    "forest": (RandomForestRegressor(7, max_depth=3, random_state=0), 0),
    "boosting": (GradientBoostingRegressor(n_estimators=6, random_state=0), 0),
    "tree_classes": (DecisionTreeClassifier(max_depth=4), 3),
    "forest_classes": (RandomForestClassifier(5, max_depth=3, random_state=0), 3),
    "forest_two": (RandomForestClassifier(5, max_depth=3, random_state=0), 2),
}


@pytest.mark.parametrize("name", FORESTS)
def test_trees_equal_onnxruntimes(name: str) -> None:
    estimator, classes = FORESTS[name]
    x, y = table(classes)
    model = to_onnx(estimator.fit(x, y), x[:1], options={"zipmap": False} if classes else None)
    expected = run_stock(model, {"X": x})
    given = og.InferenceSession(model).run(None, {"X": x})
    for ours, theirs in zip(given, expected, strict=True):
        if theirs.dtype.kind == "f":
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(ours, theirs)


TREES = {
    "nodes_treeids": [0] * 5 + [1] * 3,
    "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
    "nodes_featureids": [0, 1, 0, 0, 0, 1, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "BRANCH_GT", "LEAF", "LEAF", "LEAF", "BRANCH_LT", "LEAF", "LEAF"],
    "nodes_values": [0.5, 0.0, 0.0, 0.0, 0.0, 0.25, 0.0, 0.0],
    "nodes_truenodeids": [1, 3, 0, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [2, 4, 0, 0, 0, 2, 0, 0],
    "nodes_missing_value_tracks_true": [1, 0, 0, 0, 0, 0, 0, 0],
}
LEAVES = {"treeids": [0, 0, 0, 1, 1], "nodeids": [2, 3, 4, 1, 2]}
# onnxruntime leaves out what no leaf of a row has a weight for; here every leaf has all of them.
ROWS = np.array([[0.1, 0.2], [0.9, 0.3], [0.5, -0.5], [NAN, 0.1], [0.2, NAN]], F)


def list_model(op_type: str, prefix: str, ids: list[int], weights: list[float], **given):
    attributes = {
        **TREES,
        **{f"{prefix}_{name}": value * (len(ids) // 5) for name, value in LEAVES.items()},
        f"{prefix}_ids": ids,
        f"{prefix}_weights": weights,
        **given,
    }
    return node_model(op_type, [ROWS], 2 if prefix == "class" else 1, **attributes)


REGRESSORS = [
    {"n_targets": 1},
    {"n_targets": 1, "aggregate_function": "AVERAGE"},
    {"n_targets": 1, "aggregate_function": "MIN"},
    {"n_targets": 1, "aggregate_function": "MAX", "base_values": [0.5]},
    {"n_targets": 2, "base_values": [1.0, 2.0]},
    {"n_targets": 2, "post_transform": "SOFTMAX"},
    {"n_targets": 3, "post_transform": "LOGISTIC"},
    {"n_targets": 3, "post_transform": "SOFTMAX_ZERO", "aggregate_function": "MAX"},
    {"n_targets": 2, "ids": [0, 0, 0, 1, 1], "base_values": [1.0, 2.0]},
]


@pytest.mark.parametrize("given", REGRESSORS)
def test_regressors_of_lists(given: dict) -> None:
    given = dict(given)
    ids = given.pop("ids", np.repeat(np.arange(given["n_targets"]), 5).tolist())
    weights = np.random.default_rng(0).normal(size=len(ids)).tolist()
    model, feeds = list_model("TreeEnsembleRegressor", "target", ids, weights, **given)
    expected = run_stock(model, feeds)[0]
    ours = og.InferenceSession(model).run(None, feeds)[0]
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


THREE = {"classlabels_int64s": [4, 5, 6]}
TWO = {"classlabels_strings": ["no", "yes"]}
ALL_THREE, BOTH, ONE = ([i for i in range(n) for _ in range(5)] for n in (3, 2, 1))
CLASSIFIERS = [
    (THREE, ALL_THREE, -0.5, {}),
    (THREE, ALL_THREE, -0.5, {"post_transform": "SOFTMAX"}),
    (THREE, ALL_THREE, 0.0, {"base_values": [0.1, 0.2, 0.3]}),
    (THREE, ALL_THREE, -0.5, {"post_transform": "LOGISTIC"}),
    (TWO, BOTH, 0.0, {}),
    (TWO, BOTH, -0.5, {"post_transform": "SOFTMAX"}),
    (TWO, ONE, 0.0, {}),
    (TWO, ONE, -0.5, {"post_transform": "LOGISTIC"}),
    (TWO, ONE, -0.5, {"base_values": [0.3]}),
]


@pytest.mark.parametrize(("labels", "ids", "least", "given"), CLASSIFIERS)
def test_classifiers_of_lists(labels: dict, ids: list, least: float, given: dict) -> None:
    weights = np.random.default_rng(0).uniform(least, 0.5, len(ids)).tolist()
    model, feeds = list_model("TreeEnsembleClassifier", "class", ids, weights, **labels, **given)
    expected = run_stock(model, feeds)
    ours = og.InferenceSession(model).run(None, feeds)
    np.testing.assert_array_equal(ours[0], expected[0])
    np.testing.assert_allclose(ours[1], expected[1], rtol=1e-5, atol=1e-6)


def test_the_weights_of_leaves_are_trained() -> None:
    """Splits stay; the leaves become the means of what falls into them."""
    x, y = table()
    tree = DecisionTreeRegressor(max_depth=3).fit(x, y)
    model = to_onnx(tree, x[:1])
    node = next(n for n in model.graph.node if n.op_type == "TreeEnsembleRegressor")
    wanted = next(a for a in node.attribute if a.name == "target_weights")
    before = list(wanted.floats)
    wanted.floats[:] = [0.0] * len(before)
    trainer = og.Trainer(
        model, loss="mse", optimizer="sgd", lr=0.5, trainable=[f"{node.output[0]}.target_weights"]
    )
    trainer.fit(x, y.reshape(-1, 1).astype(F), epochs=400, batch_size=len(x), verbose=False)
    after = next(
        a
        for n in trainer.trained_model().graph.node
        if n.op_type == "TreeEnsembleRegressor"
        for a in n.attribute
        if a.name == "target_weights"
    )
    np.testing.assert_allclose(after.floats, before, rtol=1e-3, atol=1e-2)


# Support vectors.

MACHINES = {
    "rbf": (SVR(), 0),
    "linear": (SVR(kernel="linear"), 0),
    "poly": (SVR(kernel="poly", degree=2, coef0=0.5), 0),
    "sigmoid": (SVR(kernel="sigmoid", gamma=0.05), 0),
    "one_class": (OneClassSVM(nu=0.3), 0),
    "two": (SVC(), 2),
    "three": (SVC(), 3),
    "three_linear": (SVC(kernel="linear"), 3),
    "nu": (NuSVC(), 3),
    "two_shares": (SVC(probability=True, random_state=0), 2),
    "three_shares": (SVC(probability=True, random_state=0), 3),
    "linear_shares": (SVC(kernel="linear", probability=True, random_state=0), 3),
    "nu_shares": (NuSVC(nu=0.3, probability=True, random_state=0), 3),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MACHINES)
def test_support_vectors_equal_onnxruntimes(name: str) -> None:
    estimator, classes = MACHINES[name]
    x, y = table(classes)
    if not classes:
        y = y / 50
    model = to_onnx(estimator.fit(x, y), x[:1], options={"zipmap": False} if classes else None)
    expected = run_stock(model, {"X": x})
    given = og.InferenceSession(model).run(None, {"X": x})
    for ours, theirs in zip(given, expected, strict=True):
        if theirs.dtype.kind == "f":
            # Coupling of probabilities stops at a change of 0.005 / classes there.
            tolerance = 5e-3 if name.endswith("shares") else 5e-5
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)
        else:
            np.testing.assert_array_equal(ours, theirs)  # by votes, not by probabilities


ENSEMBLES = {
    "extra_trees": ExtraTreesClassifier(n_estimators=4, random_state=0),
    "gradient_boosting": GradientBoostingClassifier(n_estimators=4, random_state=0),
    "isolation_forest": IsolationForest(n_estimators=4, random_state=0),
    "ada_boost": AdaBoostClassifier(n_estimators=4, random_state=0),
    "bagging": BaggingClassifier(n_estimators=3, random_state=0),
    "calibrated": CalibratedClassifierCV(LinearSVC(), cv=2),
    "stacking": StackingClassifier(
        [("lines", LogisticRegression()), ("tree", DecisionTreeClassifier(max_depth=3))], cv=2
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ENSEMBLES)
def test_ensembles_equal_onnxruntimes(name: str) -> None:
    estimator = ENSEMBLES[name]
    x, y = table(3)
    estimator.fit(x, y)
    options = {id(estimator): {"zipmap": False}} if hasattr(estimator, "classes_") else None
    model = to_onnx(estimator, x[:1], options=options, target_opset={"": 18, ML: 3})
    feeds = {model.graph.input[0].name: x}
    for ours, theirs in zip(
        og.InferenceSession(model).run(None, feeds), run_stock(model, feeds), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


# A table with columns of texts and numbers, as ColumnTransformer is exported.


def mixed_rows(count: int = 120) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    columns = {
        "age": rng.uniform(18, 80, count).astype(F),
        "fare": rng.uniform(1, 100, count).astype(F),
        "sex": rng.choice(["male", "female"], count).astype(object),
        "port": rng.choice(["S", "C", "Q"], count).astype(object),
    }
    score = (columns["sex"] == "female") * 2.0 + (columns["port"] == "C") - columns["age"] / 40
    labels = (score + rng.normal(0, 0.5, count) > 0).astype(np.int64)
    columns["age"][::7] = NAN
    return columns, labels


def mixed_model() -> tuple[onnx.ModelProto, dict[str, np.ndarray], np.ndarray]:
    pandas = pytest.importorskip("pandas")
    columns, labels = mixed_rows()
    numbers = Pipeline([("imputer", SimpleImputer()), ("scaler", StandardScaler())])
    transformer = ColumnTransformer(
        [
            ("numbers", numbers, ["age", "fare"]),
            ("texts", OneHotEncoder(handle_unknown="ignore"), ["sex", "port"]),
        ]
    )
    pipeline = Pipeline([("columns", transformer), ("classifier", LogisticRegression())])
    pipeline.fit(pandas.DataFrame(columns), labels)
    types = [
        (name, StringTensorType([None, 1]) if array.dtype == object else FloatTensorType([None, 1]))
        for name, array in columns.items()
    ]
    options = {id(pipeline): {"zipmap": False}}
    return convert_sklearn(pipeline, initial_types=types, options=options), columns, labels


def test_columns_of_strings_equal_onnxruntimes() -> None:
    model, columns, _ = mixed_model()
    columns["port"][3] = "elsewhere"
    feeds = {name: array.reshape(-1, 1) for name, array in columns.items()}
    expected = run_stock(model, feeds)
    given = og.InferenceSession(model).run(None, feeds)
    np.testing.assert_array_equal(given[0], expected[0])
    np.testing.assert_allclose(given[1], expected[1], rtol=1e-5, atol=1e-5)


def test_columns_of_strings_are_trained_on() -> None:
    """The classifier comes back from zero, in memory as from a file."""
    model, columns, labels = mixed_model()
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "coefficients":
                attribute.floats[:] = [0.0] * len(attribute.floats)
    feeds = {name: array.reshape(-1, 1) for name, array in columns.items()}
    trainer = og.Trainer(model, optimizer="adam", lr=0.05)
    trainer.fit(feeds, labels, epochs=80, batch_size=20, verbose=False, allow_nan=True)
    trained = trainer.trained_model()
    predicted = run_stock(trained, feeds)[0]
    assert np.mean(predicted == labels) > 0.8
    np.testing.assert_array_equal(trainer.predict(feeds), predicted)
    # What the encoder knows is what it was.
    encoders = [
        [n.SerializeToString() for n in one.graph.node if n.op_type == "OneHotEncoder"]
        for one in (model, trained)
    ]
    assert encoders[0] == encoders[1]


def test_the_command_line_trains_on_columns_of_strings(tmp_path) -> None:
    model, columns, labels = mixed_model()
    onnx.save(model, tmp_path / "mixed.onnx")
    lines = ["age,fare,sex,port,survived"]
    for i, label in enumerate(labels):
        age = columns["age"][i]
        cells = [
            "" if np.isnan(age) else str(age),
            *(columns[n][i] for n in ("fare", "sex", "port")),
        ]
        lines.append(",".join(map(str, [*cells, label])))
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    arguments = [
        "train",
        "mixed.onnx",
        "--data",
        "rows.csv",
        "--target",
        "survived",
        "--epochs",
        "3",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "onnxgrad", *arguments, "--allow-nan", "-o", "trained.onnx"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    feeds = {name: array.reshape(-1, 1) for name, array in columns.items()}
    trained = onnx.load(tmp_path / "trained.onnx")
    assert np.mean(run_stock(trained, feeds)[0] == labels) > 0.7
