"""Several targets by the names of columns: of files, of batches, of tables."""

import csv

import numpy as np
import onnx.parser
import pytest

import onnxgrad as og
from support import TWO_HEADS, initializers, mlp_proto

BY_OUTPUT = {"price": "p", "kind": "k"}
OPTIONS = {"epochs": 2, "batch_size": 16, "shuffle": False, "verbose": 0}


def two_heads():
    loss = {"price": ("mse", 0.5), "kind": "cross_entropy"}
    return og.Trainer(onnx.parser.parse_model(TWO_HEADS), loss, "sgd", lr=0.1)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(3)
    kind = rng.integers(0, 3, 90)
    X = (rng.normal(size=(90, 2)) + kind[:, None]).astype(np.float32)
    return X, rng.normal(size=90).astype(np.float32), kind, rng.uniform(0.5, 2, 90)


@pytest.fixture(scope="module")
def expected(rows):
    X, price, kind, weight = rows
    return two_heads().fit(X, {"price": price, "kind": kind}, weight, **OPTIONS)


def assert_same(found, expected):
    assert found.history["train_loss"] == pytest.approx(expected.history["train_loss"], rel=1e-6)
    wanted = initializers(expected.trained_model())
    for name, value in initializers(found.trained_model()).items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-6)


def columns(rows):
    X, price, kind, weight = rows
    return {"a": X[:, 0], "p": price, "b": X[:, 1], "k": kind, "w": weight}


def write_csv(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns(rows))
        writer.writerows(zip(*(c.tolist() for c in columns(rows).values()), strict=True))


def write_npz(path, rows):
    X, price, kind, weight = rows
    np.savez(path, X=X, p=price, k=kind, w=weight)


def write_parquet(path, rows):
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pa.table(columns(rows)), path)


FILES = {"rows.csv": write_csv, "rows.npz": write_npz, "rows.parquet": write_parquet}


@pytest.mark.parametrize("name", FILES)
def test_files(name, rows, expected, tmp_path):
    path = tmp_path / name
    FILES[name](path, rows)
    found = two_heads().fit(path, BY_OUTPUT, "w", validation=str(path), **OPTIONS)
    assert_same(found, expected)
    assert len(found.history["val_loss"]) == 2
    X, price, kind, weight = rows
    in_memory = expected.evaluate(X, {"price": price, "kind": kind}, weight)
    assert found.evaluate(path, BY_OUTPUT, "w").loss == pytest.approx(in_memory.loss, rel=1e-5)
    with pytest.raises(og.DataError, match="no column 'q'"):
        two_heads().fit(path, {"price": "q", "kind": "k"}, **OPTIONS)
    with pytest.raises(og.DataError, match="no target for output 'kind'\n  Given: price, kinds"):
        two_heads().fit(path, {"price": "p", "kinds": "k"}, **OPTIONS)
    for one in ({"price": "p"}, "p"):
        with pytest.raises(og.DataError, match="no target for output"):
            two_heads().fit(path, one, **OPTIONS)
    wrong = {"price": "p", "kind": "k", "sort": "k"}
    with pytest.raises(og.DataError, match="no loss on 'sort'"):
        two_heads().fit(path, wrong, **OPTIONS)


def test_npy_files(rows, expected, tmp_path):
    X, price, kind, weight = rows
    for name, array in {"X": X, "p": price, "k": kind, "w": weight}.items():
        np.save(tmp_path / f"{name}.npy", array)
    y = {"price": tmp_path / "p.npy", "kind": str(tmp_path / "k.npy")}
    found = two_heads().fit(tmp_path / "X.npy", y, tmp_path / "w.npy", **OPTIONS)
    assert_same(found, expected)


SAME = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 2] X) => (float[N, 1] one, float[N, 1] two)
<float[2, 1] a = {0.5, -0.25}, float[2, 1] b = {0.1, 0.2}>
{ one = MatMul(X, a)  two = MatMul(X, b) }
"""


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_one_array_is_the_target_of_two_outputs(save, rows, tmp_path):
    X, price, _, _ = rows
    save(tmp_path / "rows.npz", X=X, p=price)

    def make():
        return og.Trainer(onnx.parser.parse_model(SAME), {"one": "mse", "two": "mae"}, "sgd")

    found = make().fit(tmp_path / "rows.npz", {"one": "p", "two": "p"}, **OPTIONS)
    assert_same(found, make().fit(X, {"one": price, "two": price}, **OPTIONS))


def make_batches(kind, rows):
    pa = pytest.importorskip("pyarrow")
    X, price, labels, weight = rows
    table = pa.table(columns(rows))
    arrays = pa.table({name: column for name, column in columns(rows).items() if name in "ab"})
    pieces = [slice(i, i + 16) for i in range(0, 90, 16)]
    y = [{"price": price[rows], "kind": labels[rows]} for rows in pieces]
    named = {"target": BY_OUTPUT, "sample_weight": "w"}
    weighted = {"sample_weight": True}
    return {
        "pairs": ([(X[p], t, weight[p]) for p, t in zip(pieces, y, strict=True)], weighted),
        "inputs for targets": (
            [
                {
                    "X": X[p],
                    "label_price": price[p],
                    "label_kind": labels[p],
                    "sample_weight": weight[p],
                }
                for p in pieces
            ],
            weighted,
        ),
        "outputs": (
            [{"X": X[p], **t, "sample_weight": weight[p]} for p, t in zip(pieces, y, strict=True)],
            weighted,
        ),
        "names": (
            [{"X": X[p], "p": price[p], "k": labels[p], "w": weight[p]} for p in pieces],
            named,
        ),
        "record batches": (table.to_batches(max_chunksize=16), named),
        "tables and arrays": (
            [(arrays.slice(p.start, 16), t, weight[p]) for p, t in zip(pieces, y, strict=True)],
            weighted,
        ),
    }[kind]


KINDS = ["pairs", "inputs for targets", "outputs", "names", "record batches", "tables and arrays"]


@pytest.mark.parametrize("kind", KINDS)
def test_batches(kind, rows, expected):
    batches, options = make_batches(kind, rows)
    found = two_heads().fit(og.data.Batches(batches, **options), **OPTIONS)
    assert_same(found, expected)


def test_tables(rows, expected):
    pa = pytest.importorskip("pyarrow")
    table = pa.table(columns(rows))
    found = two_heads().fit(table, BY_OUTPUT, "w", **OPTIONS)
    assert_same(found, expected)
    mixed = {"price": "p", "kind": rows[2]}
    assert_same(two_heads().fit(table.drop_columns(["k"]), mixed, "w", **OPTIONS), expected)
    with pytest.raises(og.DataError, match="no column 'q'"):
        two_heads().fit(table, {"price": "q", "kind": "k"}, **OPTIONS)


@pytest.mark.parametrize("target", ["p", "one by output"])
def test_record_batches_by_the_names_of_columns(target, rows):
    pa = pytest.importorskip("pyarrow")
    X, price, _, weight = rows
    table = pa.table(columns(rows)).drop_columns(["k"])
    batches = table.to_batches(max_chunksize=16)
    make = lambda loss="mse": og.Trainer(mlp_proto([2, 4, 1]), loss, "sgd", lr=0.1)  # noqa: E731
    expected = make().fit(X, price, weight, **OPTIONS)
    if target != "p":
        found = make({"Y": "mse"}).fit(batches, {"Y": "p"}, "w", **OPTIONS)
        assert_same(found, expected)
        return
    found = make().fit(batches, "p", "w", **OPTIONS)
    assert_same(found, expected)
    assert_same(make().fit(lambda: iter(batches), "p", "w", **OPTIONS), expected)
    assert_same(make().fit(table.to_reader(16), "p", "w", **OPTIONS), expected)
    assert found.evaluate(batches, "p", "w").loss == pytest.approx(
        found.evaluate(X, price, weight).loss, rel=1e-6
    )
    with pytest.raises(og.DataError, match="no column 'q'"):
        make().fit(batches, "q", "w", **OPTIONS)
    with pytest.raises(og.DataError, match="no column 'label'"):
        make().fit(batches, **OPTIONS)
