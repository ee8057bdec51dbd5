"""Sparse rows of SciPy are made dense a piece at a time: the same as dense rows."""

import numpy as np
import onnx.parser
import pytest
from scipy import sparse

import onnxgrad as og
from support import initializers, mlp_proto, run_python

FORMATS = ["csr_array", "csr_matrix", "csc_array", "coo_array"]
OPTIONS = {"epochs": 2, "batch_size": 16, "shuffle": False, "verbose": 0}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(3)
    X = sparse.random_array((150, 6), density=0.3, rng=rng, dtype=np.float32, format="csr")
    kind = rng.integers(0, 3, 150)
    return X, kind, rng.uniform(0.5, 2, 150)


def classifier(**options):
    return og.Trainer(mlp_proto([6, 3], head="Softmax"), optimizer="sgd", lr=0.5, **options)


def assert_same_weights(found, expected):
    expected = initializers(expected.trained_model())
    for name, value in initializers(found.trained_model()).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind_of_array", FORMATS)
def test_training_validation_and_prediction(kind_of_array, rows):
    X, kind, weight = rows
    given, dense = getattr(sparse, kind_of_array)(X), X.toarray()
    options = {**OPTIONS, "class_weight": "balanced", "metrics": ["f1"]}
    expected = classifier().fit(dense, kind, weight, validation=(dense, kind), **options)
    found = classifier().fit(given, kind, weight, validation=(given, kind), **options)
    assert_same_weights(found, expected)
    for name in ("train_loss", "val_loss", "val_accuracy", "val_f1"):
        assert found.history[name] == pytest.approx(expected.history[name], rel=1e-6)
    np.testing.assert_allclose(found.predict(given), expected.predict(dense), rtol=1e-5)
    found = found.evaluate(given, kind, weight).loss
    assert found == pytest.approx(expected.evaluate(dense, kind, weight).loss, rel=1e-6)


def test_text_labels_and_other_types(rows):
    X, kind, _ = rows
    names = np.array(["ash", "birch", "cedar"])[kind]
    expected = classifier().fit(X.toarray(), kind, **OPTIONS)
    for given in (X.astype(np.float64), X):
        assert_same_weights(classifier().fit(given, names, **OPTIONS), expected)
    counts = (X * 10).astype(np.int64)
    expected = classifier().fit(counts.toarray(), kind, **OPTIONS)
    assert_same_weights(classifier().fit(counts, kind, **OPTIONS), expected)


def test_text_labels_that_the_model_lists(rows):
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression

    X, kind, _ = rows
    names = np.array(["ash", "birch", "cedar"])[kind]
    dense = X.toarray()
    model = to_onnx(LogisticRegression().fit(dense, names), dense, options={"zipmap": False})
    expected = og.Trainer(model, optimizer="sgd").fit(dense, names, **OPTIONS)
    found = og.Trainer(model, optimizer="sgd").fit(X, names, **OPTIONS)
    assert_same_weights(found, expected)


def test_many_chunks_come_in_an_order_of_the_seed(monkeypatch, rows):
    X, kind, _ = rows
    monkeypatch.setattr("onnxgrad.data.sparse._CHUNK_BYTES", 10 * 6 * 4)  # ten rows
    assert_same_weights(
        classifier().fit(X, kind, **OPTIONS), classifier().fit(X.toarray(), kind, **OPTIONS)
    )
    np.testing.assert_allclose(
        classifier().predict(X), classifier().predict(X.toarray()), rtol=1e-5
    )
    options = {**OPTIONS, "shuffle": True, "validation": 0.2}
    first = classifier(seed=1).fit(X, kind, **options)
    assert_same_weights(classifier(seed=1).fit(X, kind, **options), first)
    other = classifier(seed=2).fit(X, kind, **options)
    assert first.history["train_loss"] != other.history["train_loss"]


def test_an_input_that_is_sparse_and_one_that_is_not(rows):
    model = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 6] bag, float[N, 1] size) => (float[N, 1] Y)
<float[6, 1] a = {0.5, -0.25, 0.1, 0.2, 0.3, 0.4}>
{ sum = MatMul(bag, a)  Y = Mul(sum, size) }
""")
    X, kind, weight = rows
    size = weight.astype(np.float32)[:, None]
    make = lambda: og.Trainer(model, "mse", "sgd", lr=0.1)  # noqa: E731
    expected = make().fit({"bag": X.toarray(), "size": size}, kind, **OPTIONS)
    found = make().fit({"bag": X, "size": size}, kind, **OPTIONS)
    assert_same_weights(found, expected)
    predicted = found.predict({"bag": X, "size": size})
    np.testing.assert_allclose(
        predicted, expected.predict({"bag": X.toarray(), "size": size}), rtol=1e-5
    )
    with pytest.raises(og.DataError, match="'size' has 149 rows, 'bag' has 150"):
        make().fit({"bag": X, "size": size[1:]}, kind, **OPTIONS)
    with pytest.raises(og.DataError, match="the model has 2 inputs"):
        make().fit(X, kind, **OPTIONS)


def test_mistakes(rows):
    X, kind, weight = rows
    with pytest.raises(og.DataError, match="'y' has 149 rows, X has 150"):
        classifier().fit(X, kind[1:], **OPTIONS)
    with pytest.raises(og.DataError, match="'sample_weight' has 3 rows, X has 150"):
        classifier().fit(X, kind, weight[:3], **OPTIONS)
    with pytest.raises(og.DataError, match="has 5 columns, but the model reads 6"):
        classifier().fit(X[:, :5], kind, **OPTIONS)
    bad = X.copy()
    bad.data[-1] = np.nan
    row = bad.tocoo().coords[0][-1]
    with pytest.raises(og.DataError, match=f"NaN in row {row}"):
        classifier().fit(bad, kind, **OPTIONS)
    with pytest.raises(og.DataError, match="L-BFGS takes all rows at once"):
        og.Trainer(mlp_proto([6, 3], head="Softmax"), optimizer="lbfgs").fit(X, kind, verbose=0)
    with pytest.raises(og.DataError, match="a sparse csr"):
        og.TrainingSession(mlp_proto([6, 3], head="Softmax")).step({"X": X, "label": kind})
    with pytest.raises(og.DataError, match="y is missing"):
        classifier().fit(X, **OPTIONS)


def test_memory_is_that_of_pieces():
    code = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from scipy import sparse
import onnxgrad as og
from support import mlp_proto
rng = np.random.default_rng(0)
X = sparse.random_array((40_000, 4000), density=1e-3, rng=rng, dtype=np.float32, format="csr")
y = rng.normal(size=40_000).astype(np.float32)
trainer = og.Trainer(mlp_proto([4000, 1]), "mse", "sgd", lr=0.01)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
trainer.fit(X, y, epochs=1, verbose=0)
trainer.predict(X)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    from pathlib import Path

    result = run_python(code, Path(__file__).parent)
    assert result.returncode == 0, result.stderr
    dense_bytes = 40_000 * 4000 * 4
    assert int(result.stdout) * 1024 < dense_bytes / 3
