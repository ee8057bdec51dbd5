"""Files with very many columns or arrays: time in proportion to their number, not to its square."""

import zipfile

import numpy as np
import onnx
import pytest

import onnxgrad as og
from onnxgrad.data import tables
from support import mlp_proto

COLUMNS = 100_000  # minutes where each is compared with all others


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A file of two rows, its rows, and a session that reads them."""
    path = tmp_path_factory.mktemp("wide") / "rows.csv"
    rows = np.arange(2.0 * COLUMNS).reshape(2, COLUMNS) / 4
    names = [f"c{i}" for i in range(COLUMNS)]
    lines = [[*names, "y"], *([*map(repr, row), "0.5"] for row in rows.tolist())]
    path.write_text("".join(",".join(line) + "\n" for line in lines))
    return path, rows, og.TrainingSession(mlp_proto([COLUMNS, 1]), "squared_error")


def test_in_memory(wide):
    path, rows, _ = wide
    table = tables.read_table(str(path))
    assert table.columns["c1"].dtype == np.float64  # 0.25, 25000.25
    assert table.columns["c4"].dtype == np.int64  # 1, 25001
    np.testing.assert_array_equal(table.inputs(["X"], ["y"])["X"], rows)
    left = table.inputs(["X"], ["y", *(f"c{i}" for i in range(COLUMNS // 2))])["X"]
    np.testing.assert_array_equal(left, rows[:, COLUMNS // 2 :])


def test_in_chunks(wide):
    path, rows, session = wide
    source = og.data.CsvFile(path, "y").native(session)
    source.start()
    chunks = []
    while (chunk := source.next()) is not None:
        chunks.append(np.array(chunk.inputs["X"]))
    np.testing.assert_array_equal(np.concatenate(chunks), rows.astype(np.float32))
    half = og.TrainingSession(mlp_proto([COLUMNS // 2, 1]), "squared_error")
    ignored = [f"c{i}" for i in range(COLUMNS // 2)]
    source = og.data.CsvFile(path, "y", ignored=ignored).native(half)
    source.start()
    np.testing.assert_array_equal(
        source.next().inputs["X"][0], rows[0, COLUMNS // 2 :].astype(np.float32)
    )


def test_a_repeated_name(wide):
    path, _, session = wide
    other = path.with_name("twice.csv")
    header, rest = path.read_text().split("\n", 1)
    other.write_text(header.replace(f"c{COLUMNS - 1},", "c7,") + "\n" + rest)
    with pytest.raises(og.DataError, match="column 'c7' occurs twice"):
        tables.read_table(str(other))
    with pytest.raises(og.DataError, match="column 'c7' occurs twice"):
        og.data.CsvFile(other, "y").native(session)


def test_arrays_that_are_not_read_are_not_opened(tmp_path):
    path = tmp_path / "rows.npz"
    X, y = np.ones((3, 2), np.float32), np.zeros(3, np.float32)
    np.savez_compressed(path, X=X, y=y, other=np.ones(5))
    with zipfile.ZipFile(path) as archive:
        offset = archive.getinfo("other.npy").header_offset
    data = bytearray(path.read_bytes())
    data[offset : offset + 4] = b"none"
    path.write_bytes(data)
    onnx.save(mlp_proto([2, 1]), tmp_path / "m.onnx")
    trainer = og.Trainer(tmp_path / "m.onnx")
    trainer.fit(og.data.NpzFile(path, "y", ignored=["other"]), epochs=1, verbose=0)
    with pytest.raises(og.DataError, match="header in the zip archive is corrupt"):
        trainer.fit(og.data.NpzFile(path, "other", ignored=["y"]), epochs=1, verbose=0)
