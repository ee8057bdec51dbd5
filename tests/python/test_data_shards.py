"""Rows in several files."""

import subprocess
import sys

import numpy as np
import onnx.parser
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import onnxgrad as og
from command_line import run
from onnxgrad.data.arrays import from_native
from support import initializers

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
model, batch, options, out, *files = sys.argv[1:]
workers = og.distributed.connect(timeout=60)
for number, given in enumerate(eval(options)):
    trainer = og.Trainer(model, "mse", og.optimizers.SGD(lr=0.05), seed=1)
    trainer.fit(*files, epochs=3, batch_size=int(batch), verbose=0, **given)
    evaluation = trainer.evaluate(*files)
    if workers.rank == 0:
        history = {name: values for name, values in trainer.history.items() if "loss" in name}
        np.savez(f"{out}/{number}.npz", **trainer.session.state(), loss=evaluation.loss, **history)
"""


def run_workers(tmp_path, workers, model, batch, options, files):
    """Run WORKER in several processes; return what the first one has saved, for each options."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    command = [sys.executable, "-m", "onnxgrad", "launch", "-n", str(workers)]
    command += ["--transport", "tcp", str(script), str(model), str(batch)]
    command += [repr(options), str(tmp_path)]
    done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [dict(np.load(tmp_path / f"{number}.npz")) for number in range(len(options))]


@pytest.mark.parametrize(("kind", "workers"), [("csv", 2), ("npy", 3), ("parquet", 3)])
def test_workers_train_as_one(tmp_path, linear_file, linear_model, rows, kind, workers):
    """Every batch has the rows that one worker would take; the last one has a single row."""
    files = write(tmp_path, kind, *rows)
    several = [{}, {"validation": 0.3}]
    results = run_workers(tmp_path, workers, linear_file, 8, several, files)
    for options, found in zip(several, results, strict=True):
        alone = og.Trainer(linear_model, "mse", og.optimizers.SGD(lr=0.05), seed=1)
        alone.fit(*files, epochs=3, batch_size=8, verbose=0, **options)
        for name, value in alone.session.state().items():
            np.testing.assert_allclose(found.pop(name), value, rtol=1e-5)
        expected = alone.evaluate(*files).loss  # its terms are small beside the rows
        np.testing.assert_allclose(found.pop("loss"), expected, rtol=1e-5, atol=1e-9)
        assert ("val_loss" in found) == ("validation" in options)
        for name, values in found.items():
            np.testing.assert_allclose(alone.history[name], values, rtol=1e-4, atol=1e-9)


def test_row_groups_of_others_are_not_read(tmp_path, linear_model, rows):
    """A reader of some pieces decodes these row groups alone, in their order."""
    session = trained(linear_model, rows).session
    files, target = write(tmp_path, "parquet", *rows)
    source = og.data.open_file(files, target).native(session)
    pieces = [count for count, _ in source.pieces()]
    assert len(pieces) == sum(-(-size // 16) for size in SIZES)
    assert sum(pieces) == ROWS
    first_rows = np.cumsum([0, *pieces])
    reader = source.open_pieces([7, 2])
    reader.start(0, True, 3)
    found = []
    while (chunk := reader.next()) is not None:
        found += range(chunk.first_row, chunk.first_row + len(from_native(chunk.target)))
    expected = [range(first_rows[piece], first_rows[piece + 1]) for piece in (7, 2)]
    assert found == [row for rows_of_piece in expected for row in rows_of_piece]


def test_rows_are_read_by_ranges(linear_model, rows):
    X, y = rows
    asked = []

    def read(begin, end):
        asked.append((begin, end))
        return X[begin:end], y[begin:end]

    source = og.data.Rows(read, ROWS, piece_rows=16)
    in_order = weights_of(trained(linear_model, (source,), shuffle=False))
    of_arrays = weights_of(trained(linear_model, rows, shuffle=False))
    for name, value in in_order.items():
        np.testing.assert_allclose(value, of_arrays[name], rtol=1e-6)
    asked.clear()
    trainer = trained(linear_model, (source,))
    pieces = [(begin, min(begin + 16, ROWS)) for begin in range(0, ROWS, 16)]
    assert sorted(asked) == sorted(pieces * 3)
    evaluation = trainer.evaluate(source)
    assert evaluation.rows == ROWS
    np.testing.assert_allclose(evaluation.loss, trainer.evaluate(*rows).loss, rtol=1e-6)
    native = source.native(trainer.session)
    assert native.take_rows(20, 40)
    asked.clear()
    native.start()
    while native.next() is not None:
        pass
    assert asked == [(20, 32), (32, 40)]


def test_what_a_function_of_ranges_gets_wrong(linear_model, rows):
    X, y = rows
    with pytest.raises(og.DataError, match=r"read\(\d+, \d+\) returned 1 rows, expected"):
        trained(linear_model, (og.data.Rows(lambda begin, _: (X[begin:][:1], y[:1]), ROWS),))
    with pytest.raises(og.DataError, match="is no function"):
        og.data.Rows((X, y), ROWS)

    def fails(begin, end):
        raise ValueError(f"no rows {begin} to {end}")

    with pytest.raises(ValueError, match="no rows 0 to 201"):
        trained(linear_model, (og.data.Rows(fails, ROWS),))


TWO = """
<ir_version: 10, opset_import: ["" : 21]>
m (float[N, 1] x) => (float[N, 2] y) <float[1, 2] w = {0.5, -0.5}> { y = MatMul(x, w) }
"""


@pytest.mark.parametrize("kind", ["csv", "npz", "parquet"])
def test_several_target_columns_of_several_files(tmp_path, kind):
    """A step of gradient descent on the mean of squared errors of two columns."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(12, 1)).astype(np.float32), rng.normal(size=(12, 2)).astype(np.float32)
    for i, part in enumerate((slice(0, 5), slice(5, 12))):
        columns = {"x": x[part, 0], "p": y[part, 0], "q": y[part, 1]}
        path = tmp_path / f"part-{i}.{kind}"
        if kind == "csv":
            lines = ["q,x,p", *(f"{q},{a},{p}" for a, p, q in zip(*columns.values(), strict=True))]
            path.write_text("\n".join(lines) + "\n")
        elif kind == "npz":
            np.savez(path, x=x[part], p=columns["p"], q=columns["q"][:, None])
        else:
            pq.write_table(pa.table(columns), path)
    pattern = str(tmp_path / f"part-*.{kind}")
    w = np.array([[0.5, -0.5]])
    expected = w - 0.1 * 2 / 24 * x.T.astype(float) @ (x @ w - y)
    (tmp_path / "m.onnx").write_bytes(onnx.parser.parse_model(TWO).SerializeToString())
    trainer = og.Trainer(str(tmp_path / "m.onnx"), "mse", og.optimizers.SGD(0.1))
    trainer.fit(
        pattern, ["p", "q"], epochs=1, batch_size=12, verbose=0, run_dir=tmp_path / "python"
    )
    assert 'target = "p,q"' in (tmp_path / "python" / "config.toml").read_text()
    np.testing.assert_allclose(initializers(trainer.trained_model())["w"], expected, rtol=1e-5)
    run(
        *("train", tmp_path / "m.onnx", "--data", pattern, "--target", "p", "--target", "q"),
        *("--loss", "mse", "--optimizer", "sgd", "--lr", 0.1, "--epochs", 1, "--batch-size", 12),
        *("-o", tmp_path / "o.onnx", "--run-dir", tmp_path / "run"),
    )
    np.testing.assert_allclose(initializers(str(tmp_path / "o.onnx"))["w"], expected, rtol=1e-5)
    _, err = run(
        *("train", tmp_path / "m.onnx", "--data", pattern, "--target", "p,r"),
        "-o",
        tmp_path / "o.onnx",
        status=4,
    )
    assert "there is no column 'r'" in err


def test_a_list_of_one_column_is_that_column():
    for kind in (og.data.CsvFile, og.data.NpzFile):
        assert kind("rows", ["y"]).target == "y"
        assert kind("rows", ["y", "z"]).target == ["y", "z"]
