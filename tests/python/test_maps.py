"""Maps in every entry point: the dictionaries of a ZipMap as outputs, dictionaries as rows."""

import json
import subprocess
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto as Types
from onnx import helper as oh

import onnxgrad as og
from forking import run_module
from onnx_tool import ROOT

ML = "ai.onnx.ml"
HEADS = ROOT / "tests/data/heads"
ZIPMAPS = sorted(path.stem for path in HEADS.glob("*zipmap_float32.onnx"))
FEATURES = ["age", "height", "weight"]
LABELS = ["ash", "elm", "oak"]
ROWS = np.random.default_rng(5)


def stock(model: bytes, feeds: dict[str, Any]) -> list[Any]:
    return ort.InferenceSession(model).run(None, feeds)


def assert_same_maps(got: Any, want: list[dict]) -> None:
    """Also the types and the order of keys."""
    assert isinstance(got, list)
    assert [[*row] for row in got] == [[*row] for row in want]
    assert [[type(k) for k in row] for row in got] == [[type(k) for k in row] for row in want]
    assert {type(v) for row in got for v in row.values()} == {float}
    np.testing.assert_allclose(
        [[*row.values()] for row in got], [[*row.values()] for row in want], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", ZIPMAPS)
def test_a_zip_map_returns_dictionaries(name: str) -> None:
    model = (HEADS / f"{name}.onnx").read_bytes()
    (given,) = ort.InferenceSession(model).get_inputs()
    x = ROWS.normal(size=(5, given.shape[1])).astype(np.float32)
    labels, maps = stock(model, {given.name: x})
    session = og.InferenceSession(model)
    assert session.get_outputs()[1].type == ort.InferenceSession(model).get_outputs()[1].type
    got = session.run(None, {given.name: x})
    np.testing.assert_array_equal(got[0], labels)
    assert_same_maps(got[1], maps)
    output = session.get_outputs()[1].name
    assert_same_maps(session.run([output], {given.name: x})[0], maps)
    trainer = og.Trainer(model)
    assert_same_maps(trainer.predict(x, output), maps)
    assert_same_maps(trainer.session.predict({given.name: x})[1], maps)
    values = og.ForwardBackward(model).forward({given.name: x}, training=False)[-1]
    np.testing.assert_allclose(values, [[*row.values()] for row in maps], rtol=1e-5, atol=1e-6)


def test_training_reads_the_tensor_before_the_maps() -> None:
    """The loss, its gradient and separate passes: what a list of dictionaries has not."""
    model = (HEADS / "mlp_3_strings_zipmap_float32.onnx").read_bytes()
    layer = og.ForwardBackward(model)
    x = ROWS.normal(size=(6, 4)).astype(np.float32)
    feeds = {layer.get_inputs()[0].name: x[:, : layer.get_inputs()[0].shape[1]]}
    outputs = layer.forward(feeds)
    gradients = layer.backward([None, np.ones_like(outputs[1])])
    assert all(np.isfinite(g).all() for g in gradients.weights.values())


def test_estimators_return_arrays() -> None:
    model = (HEADS / "logistic_regression_3_strings_zipmap_float32.onnx").read_bytes()
    (given,) = ort.InferenceSession(model).get_inputs()
    x = ROWS.normal(size=(30, given.shape[1])).astype(np.float32)
    labels, _ = stock(model, {given.name: x})
    if len({*labels}) < 2:
        pytest.skip("one class only")
    estimator = og.sklearn.OnnxClassifier(model, max_iter=1).fit(x, np.asarray(labels, object))
    shares = estimator.predict_proba(x)
    assert shares.shape == (30, 3)
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)


# ------------------------------------------------------------------------- dictionaries as rows


def classifier(vocabulary: list[str] = FEATURES) -> bytes:
    """Maps of features, a classifier of three texts and a ZipMap, declared for one row."""
    count = len(vocabulary)
    weights = np.random.default_rng(1).normal(size=(3, count)).astype(np.float32)
    nodes = [
        oh.make_node("DictVectorizer", ["x"], ["v"], domain=ML, string_vocabulary=vocabulary),
        oh.make_node("Scaler", ["v"], ["s"], domain=ML, offset=[1.0] * count, scale=[0.5] * count),
        oh.make_node(
            "LinearClassifier",
            ["s"],
            ["label", "scores"],
            domain=ML,
            coefficients=weights.ravel().tolist(),
            intercepts=[0.0, 0.1, -0.1],
            classlabels_strings=LABELS,
            post_transform="SOFTMAX",
        ),
        oh.make_node("ZipMap", ["scores"], ["shares"], domain=ML, classlabels_strings=LABELS),
    ]
    numbers = oh.make_tensor_type_proto(Types.FLOAT, [])
    source = oh.make_map_type_proto(Types.STRING, numbers)
    pairs = oh.make_sequence_type_proto(oh.make_map_type_proto(Types.STRING, numbers))
    outputs = [
        oh.make_tensor_value_info("label", Types.STRING, [1]),
        oh.make_value_info("shares", pairs),
    ]
    graph = oh.make_graph(nodes, "g", [oh.make_value_info("x", source)], outputs)
    opsets = [oh.make_opsetid("", 15), oh.make_opsetid(ML, 1)]
    return oh.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def people(count: int = 40) -> tuple[list[dict[str, float]], np.ndarray, np.ndarray]:
    """Maps that lack features now and then, the same as rows, and labels."""
    g = np.random.default_rng(2)
    rows = g.normal(size=(count, 3)).astype(np.float32)
    rows[:, 1:][g.random((count, 2)) < 0.2] = 0
    maps = [
        {name: float(v) for name, v in zip(FEATURES, row, strict=True) if v != 0} for row in rows
    ]
    maps[1]["shoe size"] = 43.0
    labels = np.array(LABELS, object)[np.argmax(rows + g.normal(size=rows.shape) * 0.2, axis=1)]
    return maps, rows, labels


def test_dictionaries_as_rows_of_a_session() -> None:
    model = classifier()
    maps, rows, _ = people()
    session = og.InferenceSession(model)
    assert session.get_inputs()[0].type == ort.InferenceSession(model).get_inputs()[0].type
    found = session.run(None, {"x": maps})
    one_by_one = [stock(model, {"x": one}) for one in maps]
    assert found[0].tolist() == [labels[0] for labels, _ in one_by_one]
    assert_same_maps(found[1], [shares[0] for _, shares in one_by_one])
    assert_same_maps(session.run(["shares"], {"x": maps[3]})[0], one_by_one[3][1])
    assert_same_maps(session.run(["shares"], {"x": rows})[0], found[1])
    assert session.run(None, {"x": {}})[0].shape == (1,)


def test_dictionaries_as_data_of_a_training() -> None:
    maps, rows, labels = people()
    options = {"epochs": 4, "batch_size": 7, "verbose": 0}
    states = []
    for X in (maps, {"x": maps}, np.array(maps, object), rows, {"x": rows}):
        trainer = og.Trainer(classifier(), optimizer="adam", lr=0.05)
        trainer.fit(X, labels, validation=0.2, **options)
        losses = trainer.history["train_loss"]
        assert losses[-1] < losses[0]
        states.append(trainer.session.state())
        assert trainer.evaluate(X, labels).accuracy > 0.3
    for state in states[1:]:
        for name, value in states[0].items():
            np.testing.assert_array_equal(state[name], value)
    trained = trainer.trained_model().SerializeToString()
    want = [stock(trained, {"x": one})[1][0] for one in maps]
    assert_same_maps(trainer.predict(maps, "shares"), want)
    assert_same_maps(trainer.predict(maps[0], "shares"), want[:1])


def test_steps_and_passes_take_dictionaries() -> None:
    maps, rows, labels = people(8)
    feeds = {"x": maps, "label": None}
    session = og.TrainingSession(classifier(), optimizer="sgd")
    name = session.target_name
    target = session.encode_target(labels)
    del feeds["label"]
    by_maps = session.step({**feeds, name: target})
    other = og.TrainingSession(classifier(), optimizer="sgd")
    assert other.step({"x": rows, name: target}) == by_maps
    assert session.evaluate({**feeds, name: target}) == other.evaluate({"x": rows, name: target})
    layer = og.ForwardBackward(classifier())
    first = layer.forward({"x": maps})
    np.testing.assert_array_equal(first[-1], layer.forward({"x": rows})[-1])
    weights = [w.name for w in og.report(classifier()).weights if w.trainable]
    gradient = og.gradient(og.add_loss(classifier(), "auto"), weights, ["loss"])
    (x,) = (value for value in gradient.graph.input if value.name == "x")
    assert [d.dim_value for d in x.type.tensor_type.shape.dim][1] == 3
    onnx.checker.check_model(gradient)


@pytest.mark.parametrize("to", ["FLOAT", "INT64"])
@pytest.mark.parametrize("form", ["DENSE", "SPARSE"])
@pytest.mark.parametrize("value", ["float", "string"])
def test_cast_map_of_many_rows(value: str, form: str, to: str) -> None:
    node = oh.make_node(
        "CastMap", ["x"], ["y"], domain=ML, cast_to=f"TO_{to}", map_form=form, max_map=4
    )
    values = oh.make_tensor_type_proto(getattr(Types, value.upper()), [])
    graph = oh.make_graph(
        [node],
        "g",
        [oh.make_value_info("x", oh.make_map_type_proto(Types.INT64, values))],
        [oh.make_tensor_value_info("y", getattr(Types, to), None)],
    )
    opsets = [oh.make_opsetid("", 15), oh.make_opsetid(ML, 1)]
    session = og.InferenceSession(oh.make_model(graph, opset_imports=opsets, ir_version=8))
    maps: list[dict] = [{2: 2.5, 0: -3.0}, {3: 7.0, 1: 1.0}]
    want = [[-3.0, 0, 2.5, 0], [0, 1.0, 0, 7.0]] if form == "SPARSE" else [[-3.0, 2.5], [1.0, 7.0]]
    if to == "INT64":
        want = np.trunc(want).astype(int).tolist()
    if value == "string":
        maps = [{k: str(v) for k, v in one.items()} for one in maps]
    assert session.run(None, {"x": maps})[0].tolist() == want
    assert session.run(None, {"x": maps[0]})[0].tolist() == want[:1]
    if form == "DENSE":
        with pytest.raises(og.DataError, match="map 1: 1 keys"):
            session.run(None, {"x": [maps[0], {1: next(iter(maps[0].values()))}]})


def test_two_vocabularies_of_one_map() -> None:
    nodes = [
        oh.make_node("DictVectorizer", ["x"], ["a"], domain=ML, string_vocabulary=["u", "v"]),
        oh.make_node("DictVectorizer", ["x"], ["b"], domain=ML, string_vocabulary=["w", "v"]),
    ]
    source = oh.make_map_type_proto(Types.STRING, oh.make_tensor_type_proto(Types.FLOAT, []))
    outputs = [oh.make_tensor_value_info(n, Types.FLOAT, None) for n in "ab"]
    graph = oh.make_graph(nodes, "g", [oh.make_value_info("x", source)], outputs)
    opsets = [oh.make_opsetid("", 15), oh.make_opsetid(ML, 1)]
    model = oh.make_model(graph, opset_imports=opsets, ir_version=8)
    one = {"v": 2.0, "w": 3.0}
    got = og.InferenceSession(model).run(None, {"x": [one, {"u": 1.0}]})
    assert [a.tolist() for a in got] == [[[0, 2], [1, 0]], [[3, 2], [0, 0]]]
    want = stock(model.SerializeToString(), {"x": one})
    assert [a[:1].tolist() for a in got] == [a.tolist() for a in want]


def test_what_is_no_map_is_refused() -> None:
    session = og.InferenceSession(classifier())
    cases = {
        "map 1: a int": [{"age": 1.0}, 3],
        "map 0: the key 1": {1: 2.0},
        "'tall', the value of 'height'": {"height": "tall"},
        r"the value of 'age'": [{"age": [1.0]}],
        "a float for maps": 3.0,
        "2 keys|columns|shape": np.zeros((3, 2), np.float32),
    }
    for text, wrong in cases.items():
        with pytest.raises((og.DataError, og.ShapeError), match=text):
            session.run(None, {"x": wrong})


# ------------------------------------------------------------------------------- command line


def command(*arguments: Any) -> subprocess.CompletedProcess:
    return run_module("onnxgrad", *arguments)


def write_rows(folder: Any, kind: str) -> Any:
    maps, _, labels = people()
    path = folder / f"rows.{kind}"
    if kind == "jsonl":
        lines = [json.dumps({"x": one, "y": y}) for one, y in zip(maps, labels, strict=True)]
        path.write_text("\n".join(lines) + "\n")
    else:  # the columns in another order, one that no input reads, empty cells
        header = ["weight", "y", "age", "note", "height"]
        lines = [",".join(header)]
        for one, y in zip(maps, labels, strict=True):
            row = {**one, "y": y, "note": "n"}
            lines.append(",".join(str(row.get(name, "")) for name in header))
        path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("kind", ["csv", "stream", "jsonl"])
def test_train_and_predict_commands(tmp_path: Any, kind: str) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(classifier())
    data = write_rows(tmp_path, "jsonl" if kind == "jsonl" else "csv")
    streamed = ["--stream"] if kind == "stream" else []
    trained = tmp_path / "trained.onnx"
    arguments = ["--data", data, "--target", "y"]
    arguments += [] if kind == "jsonl" else ["--ignored", "note"]
    done = command(
        "train", model, *arguments, "-o", trained, "--epochs", 3, "--lr", 0.05, *streamed
    )
    assert done.returncode == 0, done.stderr
    maps, _, labels = people()
    want = [stock(trained.read_bytes(), {"x": one}) for one in maps]
    assert stock(model.read_bytes(), {"x": maps[0]})[1] != want[0][1]
    done = command("evaluate", trained, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    accuracy = np.mean([w[0][0] == y for w, y in zip(want, labels, strict=True)])
    assert json.loads(done.stdout)["accuracy"] == pytest.approx(accuracy)
    ignored = [option for name in ("y", "note") for option in ("--ignored", name)]
    predict = ["predict", trained, "--data", data, *(ignored[:2] if kind == "jsonl" else ignored)]
    for suffix in ("json", "jsonl", "csv", "npz"):
        output = tmp_path / f"out.{suffix}"
        done = command(*predict, "-o", output)
        assert done.returncode == 0, done.stderr
        shares = read_shares(output)
        np.testing.assert_allclose(
            shares, [[*w[1][0].values()] for w in want], rtol=1e-4, atol=1e-6
        )


def read_shares(output: Any) -> list[list[float]]:
    if output.suffix == ".json":
        rows = json.loads(output.read_text())
    elif output.suffix == ".jsonl":
        rows = [json.loads(line) for line in output.read_text().splitlines()]
    elif output.suffix == ".npz":
        with np.load(output) as arrays:
            assert arrays["shares.keys"].tolist() == LABELS
            return arrays["shares"].tolist()
    else:
        header, *lines = (line.split(",") for line in output.read_text().splitlines())
        assert header == ["label", *(f"shares_{label}" for label in LABELS)]
        return [[float(cell) for cell in line[1:]] for line in lines]
    assert all([*row["shares"]] == LABELS and row["label"] in LABELS for row in rows)
    return [[*row["shares"].values()] for row in rows]


def test_a_table_without_a_key_is_refused(tmp_path: Any) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(classifier())
    data = tmp_path / "rows.csv"
    data.write_text("age,height,y\n1,2,ash\n3,4,elm\n")
    for options in ([], ["--stream"]):
        done = command(
            "train", model, "--data", data, "--target", "y", "-o", tmp_path / "t.onnx", *options
        )
        assert done.returncode == 4, done.stderr
        assert "key 'weight' of the maps 'x'" in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"x": 1}\n[2]\n', "line 2: a list"),
        ('{"x": 1}\n\n{"x": "a"}\n', "line 3: 'x' is of another kind than in line 1"),
        ('{"x": 1\n', "line 1: not JSON"),
        ('{"x": [1, 2]}\n{"x": [1]}\n', "lists of different lengths"),
        ("", "no rows"),
    ],
)
def test_json_lines_that_are_refused(tmp_path: Any, text: str, message: str) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(classifier())
    data = tmp_path / "rows.jsonl"
    data.write_text(text)
    done = command("predict", model, "--data", data)
    assert done.returncode == 4, done.stderr
    assert message in done.stderr


def test_a_table_has_the_keys_as_columns() -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    maps, rows, labels = people()
    frame = pandas.DataFrame(maps)[["weight", "age", "height"]]
    frame["y"] = labels
    trainer = og.Trainer(classifier(), optimizer="adam", lr=0.05)
    trainer.fit(frame, "y", epochs=2, verbose=0)
    other = og.Trainer(classifier(), optimizer="adam", lr=0.05)
    other.fit(rows, labels, epochs=2, verbose=0)
    for name, value in other.session.state().items():
        np.testing.assert_array_equal(trainer.session.state()[name], value)
