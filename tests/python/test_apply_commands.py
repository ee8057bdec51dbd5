"""`onnxgrad evaluate` and `onnxgrad predict` agree with the models in stock onnxruntime."""

import csv
import json

import numpy as np
import onnxruntime
import pytest
import sklearn.metrics

from command_line import run
from support import mlp_proto


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = mlp_proto([4, 6, 3], head="Softmax")
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    X, y = rows()
    np.savez("rows.npz", X=X, kind=y, w=np.linspace(0, 1, len(X)))
    np.save("X.npy", X)
    np.save("kind.npy", y)
    table = np.column_stack([X, y])
    np.savetxt("rows.csv", table, "%.9g", ",", header="a,b,c,d,kind", comments="")
    return tmp_path


def rows():
    rng = np.random.default_rng(3)
    return rng.normal(size=(9000, 4)).astype(np.float32), rng.integers(0, 3, 9000)


def probabilities():
    return onnxruntime.InferenceSession("model.onnx").run(None, {"X": rows()[0]})[0]


@pytest.mark.parametrize("way", ["--stream", "--no-stream"])
@pytest.mark.parametrize("data", [("rows.csv", "kind"), ("X.npy", "kind.npy")])
def test_evaluate(folder, data, way):
    options = ("--data", data[0], "--target", data[1], "--metrics", "f1,log_loss", way, "--json")
    found = json.loads(run("evaluate", "model.onnx", *options)[0])
    p, y = probabilities(), rows()[1]
    assert found["rows"] == 9000
    assert found["accuracy"] == pytest.approx(np.mean(p.argmax(axis=1) == y))
    assert found["loss"] == pytest.approx(sklearn.metrics.log_loss(y, p), rel=1e-5)
    assert found["log_loss"] == pytest.approx(found["loss"], rel=1e-5)
    expected = sklearn.metrics.f1_score(y, p.argmax(axis=1), average="macro")
    assert found["f1"] == pytest.approx(expected)


def test_evaluate_with_weights_as_text(folder):
    options = ("--data", "rows.npz", "--target", "kind", "--sample-weight", "w")
    out, err = run("evaluate", "model.onnx", *options)
    numbers = dict(line.split() for line in out.splitlines())
    weight = np.linspace(0, 1, 9000)
    expected = sklearn.metrics.log_loss(rows()[1], probabilities(), sample_weight=weight)
    assert float(numbers["loss"]) == pytest.approx(expected, rel=1e-5)
    assert "softmax cross-entropy" in err


def test_text_labels_are_numbered_as_by_training(folder):
    """The model lists no classes: they are the sorted labels, in `train` and in `evaluate`."""
    X, y = rows()
    header, names = "a;b;c;d;kind", np.array(["ant", "bee", "cat"])
    lines = [";".join([*map(str, row.tolist()), names[k]]) for row, k in zip(X, y, strict=True)]
    (folder / "t.csv").write_text("\n".join([header, *lines]) + "\n")
    options = ("--data", "t.csv", "--target", "kind", "--delimiter", ";", "--json")
    found = json.loads(run("evaluate", "model.onnx", *options)[0])
    expected = sklearn.metrics.log_loss(y, probabilities())
    assert found["loss"] == pytest.approx(expected, rel=1e-5)
    # Rows without one of the classes would give the others wrong numbers.
    few = [line for line in lines if not line.endswith("ant")]
    (folder / "t.csv").write_text("\n".join([header, *few]) + "\n")
    out, err = run("evaluate", "model.onnx", *options, status=4)
    assert not out
    assert "the rows have 2 of the model's 3 classes" in err
    assert "'bee', 'cat'" in err
    assert "Give class numbers, or rows of every class." in err


def test_predict(folder):
    run("predict", "model.onnx", "--data", "X.npy", "-o", "p.npy")
    np.testing.assert_allclose(np.load("p.npy"), probabilities(), rtol=1e-5)
    out, _ = run("predict", "model.onnx", "--data", "rows.csv", "--ignored", "kind", "-o", "p.npz")
    assert out == "wrote p.npz with Y of 9000 rows\n"
    np.testing.assert_allclose(np.load("p.npz")["Y"], probabilities(), rtol=1e-4)
    run("predict", "model.onnx", "--data", "rows.csv", "--ignored", "kind", "-o", "p.csv")
    out, _ = run("predict", "model.onnx", "--data", "rows.csv", "--ignored", "kind")
    assert (folder / "p.csv").read_text() == out
    lines = list(csv.reader(out.splitlines()))
    assert lines[0] == ["Y_0", "Y_1", "Y_2"]
    np.testing.assert_allclose(np.array(lines[1:], float), probabilities(), rtol=1e-4)


def test_predict_labels_of_scikit_learn(folder):
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression

    X, y = rows()
    classifier = LogisticRegression().fit(X, np.array(["no", "yes, sure", "?"])[y])
    (folder / "c.onnx").write_bytes(to_onnx(classifier, X[:1]).SerializeToString())
    run("predict", "c.onnx", "--data", "X.npy", "--of", "output_label", "-o", "p.csv")
    with (folder / "p.csv").open() as file:
        labels = [line["output_label"] for line in csv.DictReader(file)]
    assert labels == classifier.predict(X).tolist()
    run("predict", "c.onnx", "--data", "X.npy", "-o", "p.npz")
    found = np.load("p.npz")
    assert found["output_label"].tolist() == labels
    np.testing.assert_allclose(
        found["output_probability"], classifier.predict_proba(X), rtol=1e-3, atol=1e-5
    )


CSV = ("--data", "rows.csv")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["predict", "model.onnx", *CSV], 4, "--ignored"),
        (["predict", "model.onnx", "--data", "X.npy", "-o", "p.txt"], 2, ".npz"),
        (["predict", "model.onnx", "--data", "X.npy", "-o", "no/p.csv"], 6, "no/p.csv"),
        (["predict", "model.onnx", "--data", "X.npy", "--of", "Z"], 4, "'Z'"),
        (["predict", "missing.onnx", "--data", "X.npy"], 3, "missing.onnx"),
        (["evaluate", "model.onnx", *CSV, "--target", "kin"], 4, "'kind'"),
        (["evaluate", "model.onnx", *CSV, "--target", "kind", "--metrics", "f2"], 2, "f2"),
    ],
)
def test_mistakes(folder, arguments, status, message):
    _, err = run(*arguments, status=status)
    assert message in err
    assert len(err.splitlines()) <= 6
