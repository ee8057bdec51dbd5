"""Rows in several files."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import onnxgrad as og
from command_line import run
from onnxgrad.data.arrays import from_native

SIZES = (40, 3, 100, 1, 57)
ROWS = sum(SIZES)


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 2)).astype(np.float32)
    return X, (X @ [1.0, -2.0] + 0.5).astype(np.float32)


def write(folder, kind, X, y):
    """Write the rows into several files; return the arguments of fit."""
    begin = 0
    for i, size in enumerate(SIZES):
        part = slice(begin, begin + size)
        begin += size
        a, b, target = X[part, 0], X[part, 1], y[part]
        path = folder / f"part-{i}.{kind}"
        if kind == "csv":
            lines = ["a,b,y", *(f"{p!s},{q!s},{t!s}" for p, q, t in zip(a, b, target, strict=True))]
            path.write_text("\n".join(lines) + "\n")
        elif kind == "npz":
            np.savez(path, X=X[part], y=target)
        elif kind == "parquet":
            pq.write_table(pa.table({"a": a, "b": b, "y": target}), path, row_group_size=16)
        else:
            np.save(path, X[part])
            np.save(folder / f"target-{i}.npy", target)
    if kind == "npy":
        return str(folder / "part-*.npy"), str(folder / "target-*.npy")
    return str(folder / f"part-*.{kind}"), "y"


def trained(model, rows, **options):
    trainer = og.Trainer(model, "mse", og.optimizers.SGD(lr=0.05), seed=1)
    trainer.fit(*rows, epochs=3, batch_size=16, verbose=0, **options)
    return trainer


def weights_of(trainer):
    return trainer.session.state()


@pytest.mark.parametrize("kind", ["csv", "npz", "npy", "parquet"])
def test_files_are_one_data_set(tmp_path, linear_model, rows, kind):
    files = write(tmp_path, kind, *rows)
    in_order = weights_of(trained(linear_model, files, shuffle=False))
    of_arrays = weights_of(trained(linear_model, rows, shuffle=False))
    for name, value in in_order.items():
        np.testing.assert_allclose(value, of_arrays[name], rtol=1e-6)
    shuffled = weights_of(trained(linear_model, files))
    again = weights_of(trained(linear_model, files))
    for name, value in shuffled.items():
        np.testing.assert_array_equal(value, again[name])
    assert any(not np.array_equal(shuffled[name], in_order[name]) for name in shuffled)


@pytest.mark.parametrize("kind", ["csv", "npz", "npy", "parquet"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_ranges_of_a_pass_make_up_the_whole(tmp_path, linear_model, rows, kind, shuffle):
    session = trained(linear_model, rows).session
    source = og.data.open_file(*write(tmp_path, kind, *rows)).native(session)
    assert source.num_rows == ROWS

    def numbers(begin, end):
        assert source.take_rows(begin, end)
        source.start(2, shuffle, 7)
        found = []
        while (chunk := source.next()) is not None:
            count = len(from_native(chunk.target))
            found += range(chunk.first_row, chunk.first_row + count)
            target = from_native(chunk.target).ravel().astype(np.float32)
            np.testing.assert_array_equal(target, rows[1][found[-count:]])
        return found

    whole = numbers(0, ROWS)
    assert sorted(whole) == list(range(ROWS))
    assert (whole == sorted(whole)) != shuffle
    for parts in (2, 5):
        limits = [ROWS * part // parts for part in range(parts + 1)]
        pieces = [numbers(*limits[part : part + 2]) for part in range(parts)]
        assert [row for piece in pieces for row in piece] == whole


def test_an_error_names_file_and_line(tmp_path, linear_model, rows):
    files = write(tmp_path, "csv", *rows)
    path = tmp_path / "part-2.csv"
    lines = path.read_text().splitlines()
    lines[5] = "1,two,3"
    path.write_text("\n".join(lines))
    with pytest.raises(og.DataError, match=r"line 6, column 'b'[\s\S]*part-2\.csv"):
        trained(linear_model, files, shuffle=False)


def test_patterns_that_match_nothing_or_different_numbers(tmp_path, linear_model, rows):
    with pytest.raises(og.DataError, match="no file matches"):
        og.data.open_file(tmp_path / "*.csv", "y")
    X, _ = write(tmp_path, "npy", *rows)
    (tmp_path / "target-4.npy").unlink()
    with pytest.raises(og.DataError, match=r"matches 5 files, but .* 4"):
        og.data.open_file(X, tmp_path / "target-*.npy")
    with pytest.raises(og.DataError, match="expected a list of sources"):
        og.data.Shards(["a.csv"])


def test_the_command_line_takes_patterns(tmp_path, linear_model, rows):
    (tmp_path / "model.onnx").write_bytes(linear_model)
    data, _ = write(tmp_path, "csv", *rows)
    out = tmp_path / "out.onnx"
    common = ("--target", "y", "-o", out, "--epochs", 2, "--optimizer", "sgd:lr=0.05")
    printed, _ = run("train", tmp_path / "model.onnx", "--data", data, *common)
    assert "train: loss" in printed
    printed, _ = run(
        "train", tmp_path / "model.onnx", "--data", data, *common, "--validation", data
    )
    assert "validation: loss" in printed


WORKER = """
import sys
import numpy as np
import onnxgrad as og
model, pattern, batch, out = sys.argv[1:]
workers = og.distributed.connect(timeout=60)
trainer = og.Trainer(model, "mse", og.optimizers.SGD(lr=0.05), seed=1)
trainer.fit(pattern, "y", epochs=3, batch_size=int(batch), verbose=0)
evaluation = trainer.evaluate(pattern, "y")
if workers.rank == 0:
    np.savez(out, **trainer.session.state(), loss=evaluation.loss)
"""


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_train_on_all_rows_once(tmp_path, linear_file, linear_model, rows, workers):
    """A batch of all rows is the same for any number of workers, whoever reads which of them."""
    files = write(tmp_path, "csv", *rows)
    script = tmp_path / "worker.py"
    script.write_text(WORKER)

    def state(batch):
        out = tmp_path / "out.npz"
        command = [sys.executable, "-m", "onnxgrad", "launch", "-n", str(workers)]
        command += ["--transport", "tcp", str(script), str(linear_file), files[0], str(batch)]
        done = subprocess.run([*command, str(out)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return dict(np.load(out))

    found = state(ROWS)
    alone = og.Trainer(linear_model, "mse", og.optimizers.SGD(lr=0.05), seed=1)
    alone.fit(*rows, epochs=3, batch_size=ROWS, verbose=0)
    for name, value in alone.session.state().items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)
    np.testing.assert_allclose(found["loss"], alone.evaluate(*rows).loss, rtol=1e-5)
    # Uneven slices and a last batch that is smaller than the number of workers (201 = 25 * 8 + 1).
    assert state(8)["loss"] < 0.01
