"""CSV, NPY, NPZ and Parquet files: the same rows as arrays; what is refused; memory."""

import contextlib
import io
import locale
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import onnxgrad as og
from support import initializers, mlp_proto, run_python

ROWS = 500


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(11)
    X = rng.normal(size=(ROWS, 4)).astype(np.float32)
    y = (X @ rng.normal(size=4) + 0.1).astype(np.float32)
    return X, y, rng.uniform(0.5, 2, ROWS).astype(np.float32)


def write_csv(path, X, y, w):
    table = np.column_stack([X, y, w])
    lines = [",".join(repr(float(value)) for value in line) for line in table]
    path.write_text("a,b,c,d,y,w\n" + "\n".join(lines) + "\n")
    return path


def write_npy(path, X, y, w):
    for name, array in (("X", X), ("y", y), ("w", w)):
        np.save(path.parent / f"{name}.npy", array)


def write_parquet(path, X, y, w):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    columns = {name: X[:, i] for i, name in enumerate("abcd")}
    pq.write_table(pa.table({**columns, "y": y, "w": w}), path, row_group_size=60)


FORMATS = {
    "csv": (write_csv, lambda path, **o: og.data.CsvFile(path, "y", chunk_bytes=2000, **o)),
    "npz": (
        lambda path, X, y, w: np.savez(path, X=X, y=y, w=w),
        lambda path, **o: og.data.NpzFile(path, "y", chunk_bytes=900, **o),
    ),
    "npz compressed": (
        lambda path, X, y, w: np.savez_compressed(path, X=X, y=y, w=w),
        lambda path, **o: og.data.NpzFile(path, "y", chunk_bytes=900, **o),
    ),
    "npy": (
        write_npy,
        lambda path, sample_weight=None, ignored=(): og.data.NpyFiles(
            path.parent / "X.npy",
            path.parent / "y.npy",
            path.parent / "w.npy" if sample_weight else None,
            chunk_bytes=900,
        ),
    ),
    "parquet": (
        write_parquet,
        lambda path, **o: og.data.ParquetFile(path, "y", chunk_bytes=900, **o),
    ),
}


@pytest.fixture(params=FORMATS)
def stored(request, rows, tmp_path):
    write, make = FORMATS[request.param]
    path = tmp_path / f"rows.{request.param.split()[0]}"
    write(path, *rows)
    return lambda **options: make(path, **options)


def trainer(**options):
    return og.Trainer(mlp_proto([4, 8, 1], seed=1), "squared_error", "sgd", lr=0.05, **options)


def assert_same_weights(found, expected):
    for name, value in initializers(expected.trained_model()).items():
        np.testing.assert_array_equal(initializers(found.trained_model())[name], value)


def test_rows_are_those_of_the_arrays(stored, rows):
    X, y, _ = rows
    options = {"epochs": 2, "batch_size": 32, "shuffle": False, "verbose": 0}
    expected = trainer().fit(X, y, **options)
    found = trainer().fit(stored(ignored=["w"]), **options)
    assert_same_weights(found, expected)
    assert "data_wait_s" in found.history


def test_weights_validation_and_evaluation(stored, rows):
    X, y, w = rows
    options = {"epochs": 1, "batch_size": 32, "shuffle": False, "verbose": 0}
    expected = trainer().fit(X, y, w, validation=(X, y, w), **options)
    source = stored(sample_weight="w")
    found = trainer().fit(source, validation=stored(sample_weight="w"), **options)
    assert_same_weights(found, expected)
    assert found.history["val_loss"] == pytest.approx(expected.history["val_loss"], rel=1e-6)
    assert found.evaluate(source).loss == pytest.approx(found.history["val_loss"][0], rel=1e-6)


def order_of_rows(source, seed=0, epochs=1):
    """The rows of the file in the order in which they are trained on, by the loss of each."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[N, 4] X) => (float[N, 1] Y) <float[4, 1] w = {0, 0, 0, 0}>
    { Y = MatMul(X, w) }
    """
    watch = []

    class Steps(og.callbacks.Callback):
        every_n_steps = 1

        def on_step_end(self, trainer, logs):
            watch.append(logs["train_loss"])

    model = og.Trainer(onnx.parser.parse_model(text), "squared_error", "sgd", lr=0.0, seed=seed)
    model.fit(source, batch_size=1, epochs=epochs, callbacks=[Steps()], verbose=0)
    return watch


def test_shuffling_gives_each_row_once_by_the_seed(stored, rows):
    squares = np.sort(rows[1].astype(np.float64) ** 2)
    first = order_of_rows(stored(ignored=["w"]), epochs=2)
    assert first == order_of_rows(stored(ignored=["w"]), epochs=2)
    one, two = first[:ROWS], first[ROWS:]
    for found in (one, two):
        np.testing.assert_allclose(np.sort(found), squares, rtol=1e-5, atol=1e-9)
    assert one != two
    assert one != order_of_rows(stored(ignored=["w"]), seed=1)


def test_paths_stand_for_files(rows, tmp_path):
    X, y, w = rows
    write_csv(tmp_path / "rows.csv", X, y, w)
    np.savez(tmp_path / "rows.npz", X=X, target=y, w=w)
    write_npy(tmp_path / "any.npy", X, y, w)
    options = {"epochs": 1, "batch_size": 50, "shuffle": False, "verbose": 0}
    expected = trainer().fit(X, y, w, validation=(X, y, w), **options)
    csv = str(tmp_path / "rows.csv")
    for found in (
        trainer().fit(csv, "y", "w", validation=csv, **options),
        trainer().fit(tmp_path / "rows.npz", "target", "w", **options),
        trainer().fit(tmp_path / "X.npy", tmp_path / "y.npy", tmp_path / "w.npy", **options),
    ):
        assert_same_weights(found, expected)
    assert trainer().evaluate(csv, "y", "w").rows == ROWS


def test_validation_share(stored):
    found = trainer().fit(
        stored(ignored=["w"]), validation=0.2, batch_size=16, epochs=2, drop_last=True, verbose=0
    )
    assert len(found.history["val_loss"]) == 2
    assert 330 < 16 * found.session.steps / 2 < 460


# ------------------------------------------------------------------------------------------ CSV

LINEAR2 = """
<ir_version: 8, opset_import: ["" : 17]>
main (float[N, 2] X) => (float[N, 1] Y) <float[2, 1] w = {1, 1}>
{ Y = MatMul(X, w) }
"""


def read_csv(tmp_path, text, target="y", model=LINEAR2, loss="squared_error", **options):
    path = tmp_path / "rows.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    session = og.TrainingSession(onnx.parser.parse_model(model), loss)
    source = og.data.CsvFile(path, target, **options).native(session)
    chunks = []
    source.start()
    while (chunk := source.next()) is not None:
        chunks.append(chunk)
    assert source.num_rows == sum(len(chunk.target) for chunk in chunks)
    X = np.concatenate([chunk.inputs["X"] for chunk in chunks])
    return X, np.concatenate([chunk.target for chunk in chunks])


SAME = {
    "plain": "a,b,y\n1,2,3\n4,5,6\n",
    "no newline at the end": "a,b,y\n1,2,3\n4,5,6",
    "carriage returns": "a,b,y\r\n1,2,3\r\n4,5,6\r\n",
    "byte order mark": "\ufeffa,b,y\n1,2,3\n4,5,6\n",
    "blank lines": "\na,b,y\n\n1,2,3\n  \n\r\n4,5,6\n\n",
    "spaces": " a , b ,y\n 1 , 2\t,3 \n4,5,6\n",
    "quotes": '"a","b","y"\n"1",2,"3"\n4,"5","6"\n',
    "signs and exponents": "a,b,y\n+1,2.0e0,.3e1\n4.,+5E0,60e-1\n",
    "target in the middle": "a,y,b\n1,3,2\n4,6,5\n",
}


@pytest.mark.parametrize("chunk_bytes", [16, 1 << 20])
@pytest.mark.parametrize("case", SAME)
def test_forms_of_csv(case, chunk_bytes, tmp_path):
    X, y = read_csv(tmp_path, SAME[case], chunk_bytes=chunk_bytes)
    np.testing.assert_array_equal(X, [[1, 2], [4, 5]])
    np.testing.assert_array_equal(y, [3, 6])
    assert X.dtype == np.float32


def test_separators_and_empty_cells(tmp_path):
    X, _ = read_csv(tmp_path, "a;b;y\n;2;3\n4;nan;6\n", delimiter=";")
    np.testing.assert_array_equal(X, [[np.nan, 2], [4, np.nan]])
    X, _ = read_csv(tmp_path, "a\tb\ty\n1\t\t3\n", delimiter="\t")
    np.testing.assert_array_equal(X, [[1, np.nan]])


def test_numbers_are_those_of_python(tmp_path):
    cells = ["1e-3", "0.1", "3.4028234e38", "-0", "1e-50", "123456789.123456789", "inf", "-1e-400"]
    text = "a,b,y\n" + "".join(f"{cell},0,{cell}\n" for cell in cells)
    X, y = read_csv(tmp_path, text)
    np.testing.assert_array_equal(y, [float(cell) for cell in cells])
    np.testing.assert_array_equal(X[:, 0], np.array([float(cell) for cell in cells], np.float32))


def test_point_whatever_the_locale(tmp_path):
    before = locale.setlocale(locale.LC_ALL)
    for name in ("de_DE.UTF-8", "fr_FR.UTF-8", "C.UTF-8"):
        try:
            locale.setlocale(locale.LC_ALL, name)
        except locale.Error:
            continue
        try:
            X, _ = read_csv(tmp_path, "a,b,y\n1.5,2,3\n")
        finally:
            locale.setlocale(locale.LC_ALL, before)
        assert X[0, 0] == 1.5


REFUSED = {
    "empty": ("", "the file is empty"),
    "header only": ("a,b,y\n", "no rows below the header"),
    "numbers first": ("1,2,3\n4,5,6\n", "the first line has numbers"),
    "twice": ("a,a,y\n1,2,3\n", "column 'a' occurs twice"),
    "no target": ("a,b,z\n1,2,3\n", "no column 'y'"),
    "text": ("a,b,y\n1,2,3\n4,five,6\n", "line 3, column 'b': 'five' is not a number"),
    "comma": ('a,b,y\n1,2,3\n"1,5",2,3\n', "line 3, column 'a': '1,5' is not a number"),
    "few cells": ("a,b,y\n\n1,2\n", "line 3 has 2 cells, expected 3"),
    "many cells": ("a,b,y\n1,2,3,4\n", "line 2 has 4 cells, expected 3"),
    "after newlines in quotes": ('a,b,y\n1,2,3\n1,"\n\n",3\nx,2,3\n', "line 3, column 'b'"),
    "open quote": ('a,b,y\n1,"2,3\n4,5,6\n', "line 2: a misplaced quote"),
    "half a quote": ('a,b,y\n1,"2"2,3\n', "line 2: a misplaced quote"),
    "large": ("a,b,y\n1,1e39,3\n", "column 'b': '1e39' does not fit into float32"),
    "zero byte": (b"a,b,y\n1,2\0,3\n", r"'2\\x00' is not a number"),
    "hexadecimal": ("a,b,y\n0x10,2,3\n", "'0x10' is not a number"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_csv(case, tmp_path):
    text, message = REFUSED[case]
    with pytest.raises(og.DataError, match=message) as caught:
        read_csv(tmp_path, text)
    assert "rows.csv" in str(caught.value)


def test_lines_longer_than_a_chunk(tmp_path):
    header = "a" * 40 + ",b,y\n"
    text = header + "1,2,3\n1," + "0" * 50 + "2,3\n" + "4,5,6\n" * 20
    for chunk_bytes in (5, 16, 32, 64, 1 << 20):
        X, _ = read_csv(tmp_path, text, chunk_bytes=chunk_bytes)
        np.testing.assert_array_equal(X, [[1, 2], [1, 2], *[[4, 5]] * 20])


def test_a_missing_quote_is_found_before_the_file_is_read_as_one_line(tmp_path):
    text = 'a,b,y\n1,2,3\n1,"2,3\n' + "4,5,6\n" * (3 << 20)
    with pytest.raises(og.DataError, match="line 3 is longer than 16777216 bytes"):
        read_csv(tmp_path, text)


def test_line_numbers_in_later_chunks(tmp_path):
    lines = "".join(f"{i},{i},{i}\n" for i in range(1000))
    with pytest.raises(og.DataError, match="line 1002, column 'a': 'bad'"):
        read_csv(tmp_path, "a,b,y\n" + lines + "bad,1,1\n", chunk_bytes=100)


def test_empty_cell_is_nan_and_refused_in_training(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a,b,y\n" + "1,2,3\n" * 40 + "1,,3\n")
    model = og.Trainer(onnx.parser.parse_model(LINEAR2), "squared_error")
    with pytest.raises(og.DataError, match="'X' has NaN or an empty cell in line 42, column 'b'"):
        model.fit(path, "y", verbose=0)
    options = {"batch_size": 40, "drop_last": True, "shuffle": False, "verbose": 0}
    model.fit(path, "y", allow_nan=True, epochs=1, **options)


def test_no_such_file(tmp_path):
    with pytest.raises(og.DataError, match="No such file"):
        trainer().fit(tmp_path / "none.csv", "y", verbose=0)
    with pytest.raises(og.DataError, match=r"type '\.xls'"):
        trainer().fit(tmp_path / "none.xls", "y", verbose=0)
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(og.DataError):
        trainer().fit(tmp_path / "pipe.csv", "y", verbose=0)


def test_text_labels_in_files(tmp_path):
    sklearn = pytest.importorskip("sklearn.linear_model")
    skl2onnx = pytest.importorskip("skl2onnx")
    rng = np.random.default_rng(0)
    labels = np.array(["ash", "birch", "cedar"])[rng.integers(0, 3, 120)]
    X = (rng.normal(size=(120, 3)) + 3 * (labels[:, None] == ["ash", "birch", "cedar"])).astype(
        np.float32
    )
    model = skl2onnx.to_onnx(sklearn.LogisticRegression(max_iter=2).fit(X, labels), X[:1])
    lines = [
        f'{a!r},{b!r},{c!r},"{label}"' for (a, b, c), label in zip(X.tolist(), labels, strict=True)
    ]
    (tmp_path / "t.csv").write_text("a,b,c,tree\n" + "\n".join(lines))
    np.savez(tmp_path / "t.npz", X=X, tree=labels)
    results = []
    for data in ((X, labels), (tmp_path / "t.csv", "tree"), (tmp_path / "t.npz", "tree")):
        found = og.Trainer(model, lr=0.05)
        found.fit(*data, epochs=3, batch_size=32, shuffle=False, verbose=0)
        results.append(found.history["train_loss"])
    assert results[1] == pytest.approx(results[0], rel=1e-6)
    assert results[2] == pytest.approx(results[0], rel=1e-6)
    (tmp_path / "t.csv").write_text("a,b,c,tree\n1,2,3,ash\n1,2,3,elm\n")
    with pytest.raises(og.DataError, match="label 'elm' in line 3, column 'tree'"):
        og.Trainer(model).fit(tmp_path / "t.csv", "tree", verbose=0)


def test_several_inputs(tmp_path):
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[N, 1] p, float[N, 2] rest) => (float[N, 1] Y) <float[2, 1] w = {1, 1}>
    { q = MatMul(rest, w)  Y = Add(p, q) }
    """
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    p, rest = rng.normal(size=(40, 1)), rng.normal(size=(40, 2))
    y = p[:, 0] + rest @ [2.0, -1.0]
    table = np.column_stack([rest[:, 0], p, y, rest[:, 1]])
    np.savetxt(tmp_path / "t.csv", table, delimiter=",", header="r1,p,y,r2", comments="")
    np.savez(tmp_path / "t.npz", p=p, rest=rest, y=y)
    options = {"epochs": 2, "shuffle": False, "verbose": 0, "batch_size": 8}
    results = [
        og.Trainer(model, "squared_error").fit(*data, **options).history["train_loss"]
        for data in (
            ({"p": p, "rest": rest}, y),
            (tmp_path / "t.csv", "y"),
            (tmp_path / "t.npz", "y"),
        )
    ]
    assert results[1] == pytest.approx(results[0], rel=1e-5)
    assert results[2] == pytest.approx(results[0], rel=1e-5)


# ----------------------------------------------------------------------------------- NPY and NPZ


def npy_bytes(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npy_with_header(text, data=b"", version=b"\x01\x00"):
    header = text.encode("latin1")
    length = struct.pack("<H" if version[0] == 1 else "<I", len(header))
    return b"\x93NUMPY" + version + length + header + data


def read_npy(tmp_path, y_bytes, model=LINEAR2, X=None):
    X = np.zeros((3, 2), np.float32) if X is None else X
    np.save(tmp_path / "X.npy", X)
    (tmp_path / "y.npy").write_bytes(y_bytes)
    session = og.TrainingSession(onnx.parser.parse_model(model), "squared_error")
    source = og.data.NpyFiles(tmp_path / "X.npy", tmp_path / "y.npy").native(session)
    source.start()
    return source.next()


DTYPES = ["<f4", ">f4", "<f8", ">f8", "<f2", "<i8", ">i2", "|u1", "|b1", "<U5", ">U5", "|S3"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_npy_types(dtype, tmp_path):
    values = ["aé", "", "b𝄞z"] if dtype[1] == "U" else [b"ab", b"", b"xyz"]
    y = np.array(values if dtype[1] in "US" else [1, 0, 3], dtype=dtype)
    chunk = read_npy(tmp_path, npy_bytes(y))
    if dtype[1] in "US":
        expected = y.tolist() if dtype[1] == "U" else [text.decode() for text in y.tolist()]
        assert chunk.target[0][0] == expected
    else:
        np.testing.assert_array_equal(chunk.target, y)


def test_text_that_is_not_unicode(tmp_path):
    points = np.array([[0x61, 0x110000], [0xD800, 0x62], [0xFFFFFFFF, 0]], "<u4")
    header = npy_with_header("{'descr': '<U2', 'fortran_order': False, 'shape': (3, ), }")
    chunk = read_npy(tmp_path, header + points.tobytes())
    assert chunk.target[0][0] == ["a\ufffd", "\ufffdb", "\ufffd"]


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions(version, tmp_path):
    file = io.BytesIO()
    y = np.arange(3.0)
    np.lib.format.write_array(file, y, version=version)
    np.testing.assert_array_equal(read_npy(tmp_path, file.getvalue()).target, y)


BAD_NPY = {
    "empty": (b"", "not .npy data"),
    "short": (b"\x93NUMPY\x01", "not .npy data"),
    "text": (b"a,b\n1,2\n3,4\n5,6\n", "not .npy data"),
    "version": (npy_with_header("{}", version=b"\x09\x00"), "version 9.0"),
    "header longer than the file": (b"\x93NUMPY\x01\x00\xff\xff{'de", "header .* corrupt"),
    "no dictionary": (npy_with_header("__import__('os').abort()"), "header .* corrupt"),
    "code": (
        npy_with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (f(), )}"),
        "header .* corrupt",
    ),
    "negative": (
        npy_with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (-3, ), }"),
        "header .* corrupt",
    ),
    "bomb": (
        npy_with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (65536, 65536), }"),
        r"shape \(65536, 65536\), but there are 0 bytes",
    ),
    "overflow": (
        npy_with_header(
            "{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387904, 4), }"
        ),
        "there are 0 bytes",
    ),
    "cut": (npy_bytes(np.arange(3.0))[:-1], "there are 23 bytes"),
    "pickle": (
        npy_with_header("{'descr': '|O', 'fortran_order': False, 'shape': (3, ), }", b"x" * 99),
        "cannot be read|pickle",
    ),
    "objects": (
        npy_with_header("{'descr': '|O8', 'fortran_order': False, 'shape': (3, ), }", b"x" * 99),
        "pickle",
    ),
    "records": (npy_bytes(np.zeros(3, "i4,f8")), "records"),
    "complex": (npy_bytes(np.zeros(3, complex)), "'<c16' cannot be read"),
    "scalar": (npy_bytes(np.array(3.0)), "one number"),
    "fortran": (npy_bytes(np.asfortranarray(np.zeros((3, 2)))), "Fortran order"),
    "rows": (npy_bytes(np.zeros(4)), "'X' has 3 rows, 'label' has 4"),
}


@pytest.mark.parametrize("case", BAD_NPY)
def test_bad_npy(case, tmp_path):
    data, message = BAD_NPY[case]
    with pytest.raises(og.DataError, match=message):
        read_npy(tmp_path, data)


def test_every_prefix_and_flipped_byte_of_an_npz_is_an_error_or_rows(tmp_path):
    path = tmp_path / "t.npz"
    session = og.TrainingSession(onnx.parser.parse_model(LINEAR2), "squared_error")

    def read(data):
        path.write_bytes(data)
        source = og.data.NpzFile(path, "y").native(session)
        source.start()
        return source.next().target

    for save in (np.savez, np.savez_compressed):
        save(path, X=np.zeros((3, 2), np.float32), y=np.arange(3.0))
        good = path.read_bytes()
        np.testing.assert_array_equal(read(good), np.arange(3.0))
        for length in range(len(good)):
            with pytest.raises(og.DataError):
                read(good[:length])
        for place in range(len(good)):
            for flip in (0x01, 0x80, 0xFF):
                bad = bytearray(good)
                bad[place] ^= flip
                with contextlib.suppress(og.DataError):
                    assert len(read(bytes(bad))) <= 3


def test_zip_bomb_takes_no_memory(tmp_path):
    path = tmp_path / "t.npz"
    header = npy_with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (3, ), }")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("y.npy", header + bytes(24))
        archive.writestr("X.npy", header.replace(b"(3, )", b"(9, )") + bytes(100 << 20))
    session = og.TrainingSession(onnx.parser.parse_model(LINEAR2), "squared_error")
    with pytest.raises(og.DataError, match="has 9 rows"):
        og.data.NpzFile(path, "y").native(session)
    assert path.stat().st_size < 1 << 20


def test_names_in_archives_are_never_opened(tmp_path):
    path = tmp_path / "t.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../y.npy", npy_bytes(np.arange(3.0)))
        archive.writestr("/etc/passwd.npy", npy_bytes(np.zeros((3, 2), np.float32)))
    session = og.TrainingSession(onnx.parser.parse_model(LINEAR2), "squared_error")
    source = og.data.NpzFile(path, "../../y").native(session)
    source.start()
    np.testing.assert_array_equal(source.next().target, np.arange(3.0))


# --------------------------------------------------------------------------------------- memory

LIMIT_MIB = 48  # memory that reading and training may add
LARGER = 2  # the file is so many times larger

MEMORY_CODE = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import onnxgrad as og
from support import mlp_proto
path, kind, limit = sys.argv[2], sys.argv[3], int(sys.argv[4]) << 20
trainer = og.Trainer(mlp_proto([32, 4, 1]), "squared_error", "sgd", lr=1e-4, threads=1)
X = np.zeros((64, 32), np.float32)
trainer.fit([(X, X[:, 0])], epochs=1, batch_size=64, verbose=0)  # libraries are loaded
if kind == "parquet":
    import pyarrow.parquet
    pyarrow.array([1.0]).to_numpy(zero_copy_only=False)  # looks for pandas, and imports it
def statm():
    with open("/proc/self/statm") as file:
        return [int(value) * resource.getpagesize() for value in file.read().split()[:2]]
address_space, resident = statm()
if kind != "parquet":
    # A hard limit of the address space: one byte more is an error. (The stack and the malloc
    # arena of the reading thread reserve, but do not use, up to 136 MiB.)
    reserved = 136 << 20
    resource.setrlimit(resource.RLIMIT_AS, (address_space + reserved + limit,) * 2)
kinds = {"csv": og.data.CsvFile, "npz": og.data.NpzFile, "packed": og.data.NpzFile,
         "parquet": og.data.ParquetFile}
if kind == "npy":
    source = og.data.NpyFiles(path + ".X.npy", path + ".y.npy")
else:
    source = kinds[kind](path)
trainer.fit(source, epochs=1, batch_size=64, buffer_bytes=16 << 20, verbose=0)
with open("/proc/self/status") as file:
    peak = next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))
print(trainer.session.steps, (peak - resident) >> 20)
"""


def write_large(kind, path, mebibytes):
    rng = np.random.default_rng(0)
    if kind == "csv":
        block = "\n".join(
            ",".join(f"{value:.7f}" for value in line) for line in rng.normal(size=(1000, 33))
        )
        names = ",".join(f"c{i}" for i in range(32))
        count = 0
        with path.open("w") as file:
            file.write(f"{names},y\n")
            while file.tell() < mebibytes << 20:
                file.write(block + "\n")
                count += 1000
        return count
    noise = 1.25 if kind == "packed" else 1.0  # random numbers get a tenth smaller
    count = int(noise * (mebibytes << 20)) // (4 * 33)
    X = rng.normal(size=(count, 32)).astype(np.float32)
    y = X[:, 0].copy()
    if kind == "npy":
        np.save(f"{path}.X.npy", X)
        np.save(f"{path}.y.npy", y)
    elif kind in ("npz", "packed"):
        method = zipfile.ZIP_STORED if kind == "npz" else zipfile.ZIP_DEFLATED
        with zipfile.ZipFile(path, "w", method, compresslevel=1) as archive:
            for name, array in (("X", X), ("y", y)):
                archive.writestr(f"{name}.npy", npy_bytes(array))
    else:
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        table = pa.table({f"c{i}": X[:, i] for i in range(32)} | {"y": y})
        pq.write_table(table, path, row_group_size=20000, compression="none", use_dictionary=False)
    return count


@pytest.mark.parametrize("kind", ["csv", "npy", "npz", "packed", "parquet"])
def test_file_twice_the_memory(kind, tmp_path):
    path = tmp_path / f"large.{kind}"
    # pyarrow's own pool, and the four row groups that are read at a time.
    allowed = LIMIT_MIB + (32 if kind == "parquet" else 0)
    count = write_large(kind, path, LARGER * allowed)
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert size >= LARGER * (allowed << 20) - (1 << 20)
    result = run_python(MEMORY_CODE, Path(__file__).parent, path, kind, LIMIT_MIB)
    assert result.returncode == 0, result.stderr[-2000:]
    steps, added = map(int, result.stdout.split())
    assert steps == 1 + -(-count // 64)
    assert added <= allowed
